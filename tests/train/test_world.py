"""Which replicas this process runs, and that torchrun's processes are the configured ones.

pytest tests/train/test_world.py
"""

from __future__ import annotations

import socket
from pathlib import Path

import pytest
import torch
import torch.distributed as dist
from support.processes import run_ranks
from support.training import tiny, train_over_ranks

from diloco.errors import BadInput
from diloco.train.world import World, enter_world, pick_device, world_size
from diloco.wire.collective import Collective


def test_without_torchrun_all_replicas_are_here(tmp_path: Path) -> None:
    with enter_world(tiny(tmp_path, replicas=4)) as world:
        assert world.mine == (0, 1, 2, 3) and world.replicas == 4 and world.main and not world.distributed
        rows = torch.arange(8.0).view(4, 2)
        assert world.gather(rows) is rows and world.gather_json([1, 2, 3, 4]) == [1, 2, 3, 4]
        assert world.together(lambda: 7) == 7 and world.together(lambda: None) is None
        assert world.device == torch.device("cpu")


def test_threads_are_set_on_request(tmp_path: Path) -> None:
    with enter_world(tiny(tmp_path, threads=2)):
        assert torch.get_num_threads() == 2


def test_world_size_is_torchrun_s(monkeypatch) -> None:
    assert world_size() is None
    monkeypatch.setenv("WORLD_SIZE", "3")
    assert world_size() is None  # a scheduler may set it alone
    monkeypatch.setenv("RANK", "0")
    assert world_size() == 3


def test_other_processes_than_replicas_are_refused(tmp_path: Path, monkeypatch) -> None:
    monkeypatch.setenv("WORLD_SIZE", "3")
    monkeypatch.setenv("RANK", "0")
    message = "replicas is 2, but torchrun started 3 processes and each is a replica: leave --replicas out"
    with pytest.raises(BadInput, match=message), enter_world(tiny(tmp_path)):
        pass


@pytest.mark.parametrize("device", ["quantum", "cuda:77", "meta:x"])
def test_a_device_that_is_not_there_is_refused(tmp_path: Path, device: str) -> None:
    with (
        pytest.raises(BadInput, match=f"device is '{device}'.*: use auto or cpu"),
        enter_world(tiny(tmp_path, device=device)),
    ):
        pass


def test_a_taken_port_is_refused_report_125(tmp_path: Path, monkeypatch) -> None:
    with socket.socket() as other:
        other.bind(("127.0.0.1", 0))
        other.listen()
        port = str(other.getsockname()[1])
        for name, value in {"RANK": "0", "WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port}.items():
            monkeypatch.setenv(name, value)
        with pytest.raises(BadInput, match=f"127.0.0.1:{port}.*choose a free port with torchrun --master-port"):
            with enter_world(tiny(tmp_path)):
                pass
    assert not dist.is_initialized()


def _agree(rank: int) -> tuple:
    world = World(Collective(), (rank,), torch.device("cpu"))

    def refuse_on(refusing: tuple[int, ...]) -> str:
        def work() -> int:
            if rank in refusing:
                raise BadInput(f"rank {rank} will not")
            return rank

        try:
            return str(world.together(work))
        except BadInput as error:
            return str(error)

    gathered = world.gather(torch.full((1, 2), float(rank)))
    return world.main, gathered.tolist(), world.gather_json([rank]), [refuse_on(r) for r in ((), (1,), (0, 1))]


@pytest.mark.slow
def test_what_one_process_refuses_all_refuse() -> None:
    first, second = run_ranks(2, _agree)
    assert first == (True, [[0.0, 0.0], [1.0, 1.0]], [0, 1], ["0", "rank 1 will not", "rank 0 will not"])
    assert second == (False, [[0.0, 0.0], [1.0, 1.0]], [0, 1], ["1", "rank 1 will not", "rank 1 will not"])


@pytest.mark.slow
def test_one_process_under_torchrun_is_a_run_of_one_replica(tmp_path: Path) -> None:
    (receipt,) = train_over_ranks(tiny(tmp_path, replicas=1), 1)
    assert receipt["ok"] and receipt["rounds_committed"] == 5 and receipt["bytes_sent"] == 0


def test_a_rank_takes_the_gpu_of_its_own(monkeypatch) -> None:
    """Without a GPU to try it on: which calls are made, and with what."""
    taken = []
    monkeypatch.setenv("LOCAL_RANK", "3")
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "set_device", taken.append)
    monkeypatch.setattr(torch, "empty", lambda *_, device: None)
    assert pick_device("auto") == torch.device("cuda", 3) == taken[0]
    assert pick_device("cuda:1") == torch.device("cuda", 1) == taken[1]


@pytest.mark.parametrize(
    "environment, message",
    [
        ({"RANK": "0", "WORLD_SIZE": "abc"}, "environment variable WORLD_SIZE is 'abc'"),
        ({"LOCAL_RANK": "x"}, "environment variable LOCAL_RANK is 'x'"),
        ({"RANK": "0", "WORLD_SIZE": "2"}, "environment variable MASTER_ADDR is not set"),
    ],
)
def test_an_environment_torchrun_did_not_make_is_refused(
    monkeypatch, tmp_path, environment: dict, message: str
) -> None:
    for name in ("RANK", "WORLD_SIZE", "LOCAL_RANK", "MASTER_ADDR", "MASTER_PORT"):
        monkeypatch.delenv(name, raising=False)
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    with pytest.raises(BadInput, match=message), enter_world(tiny(tmp_path)):
        pass
