"""The selftest holds on sound code and fails on broken code: each promise is broken on purpose and must be seen.

pytest tests/selftest/test_suite.py
"""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch

import diloco
from diloco.cli import main
from diloco.errors import BadInput
from diloco.outer.round import Round
from diloco.selftest import processes, promises
from diloco.selftest.measure import worst_ulp
from diloco.selftest.subject import Choice, open_subject
from diloco.selftest.suite import _guarded

NET = '''
import torch
from torch import nn

class Net(nn.Module):
    """Tied, frozen, unused, bf16 and buffered tensors, and dropout."""
    def __init__(self):
        super().__init__()
        self.embed, self.norm = nn.Embedding(11, 6), nn.BatchNorm1d(6)
        self.frozen = nn.Linear(6, 6).requires_grad_(False)
        self.head = nn.Linear(6, 11, bias=False)
        self.head.weight = self.embed.weight
        self.unused = nn.Parameter(torch.zeros(3))
        self.gain = nn.Parameter(torch.ones(6, dtype=torch.bfloat16))
        self.drop = nn.Dropout(0.1)

    def forward(self, x, y):
        hidden = self.norm(self.frozen(self.drop(self.embed(x)))) * self.gain
        return nn.functional.cross_entropy(self.head(hidden), y)

def make_model():
    return Net()

def make_batch(step, replica):
    generator = torch.Generator().manual_seed(100 * replica + step)
    return tuple(torch.randint(11, (8,), generator=generator) for _ in range(2))
'''

IN_ONE_PROCESS = {
    "mean": promises.lands_on_the_mean,
    "once": promises.every_tensor_once,
    "resume": promises.resumes_bit_equal,
    "nan": promises.nan_is_left_out,
}


@pytest.fixture
def net(tmp_path: Path) -> Choice:
    (tmp_path / "net.py").write_text(NET)
    return Choice(model=f"{tmp_path / 'net.py'}:make_model")


def broken(choice: Choice, replicas: int = 3) -> set[str]:
    subject = open_subject(choice)
    found = {name: _guarded(name, lambda p=p: [p(subject, replicas, 4)])[0] for name, p in IN_ONE_PROCESS.items()}
    return {name for name, finding in found.items() if not finding.ok}


@pytest.mark.parametrize("replicas", [2, 5])
def test_all_promises_hold(net, replicas):
    assert broken(net, replicas) == set()


def test_sizes_hold_too():
    assert broken(Choice(size="30k"), 2) == set()


def test_evidence_names_tied_and_frozen_tensors_once(net):
    finding = promises.every_tensor_once(open_subject(net), 2, 4)
    # embedding 66, its tied head not again, norm 12, unused 3, gain 6
    assert "87 of 87 trainable elements in 5 tensors" in finding.evidence
    assert "1 tied, taken once (head.weight)" in finding.evidence
    assert "frozen.weight" in finding.evidence and "2 float buffers averaged" in finding.evidence


# -- mutations


def test_a_skipped_sum_is_seen_report_7(net, monkeypatch):
    contribute = Round._contribute

    def skips_others(self, lo, hi, out):
        contribute(self, lo, hi, out)
        if self.means.rank:
            out.zero_()

    monkeypatch.setattr(Round, "_contribute", skips_others)
    assert {"mean", "once"} <= broken(net)


def test_a_wrong_sign_is_seen_report_1(net, monkeypatch):
    own = Round._own
    monkeypatch.setattr(Round, "_own", lambda self, lo, hi, out: (own(self, lo, hi, out), out.neg_()))
    assert {"mean", "once", "nan"} <= broken(net)


def test_a_wrong_divisor_is_seen_report_13(net, monkeypatch):
    absorb = Round._absorb
    monkeypatch.setattr(Round, "_absorb", lambda self, merged, lo, hi: absorb(self, merged.div_(2), lo, hi))
    assert {"mean", "once"} <= broken(net)


def test_a_sync_that_does_nothing_is_seen_report_2(net, monkeypatch):
    monkeypatch.setattr(diloco.DiLoCo, "step", lambda self: None)
    assert {"mean", "once", "nan"} <= broken(net)


def test_a_tensor_left_out_is_seen_by_name_report_5(net, monkeypatch):
    from diloco.outer import tensors

    roster = tensors.roster

    def without_the_gain(model):
        found = roster(model)
        found.trained.pop("gain")
        return found

    monkeypatch.setattr("diloco.sync.diloco.roster", without_the_gain)
    # The wrapper's own check would end the run first.
    monkeypatch.setattr("diloco.sync.checks.check_roster", lambda model, tensors: None)
    finding = promises.every_tensor_once(open_subject(net), 2, 4)
    assert (
        not finding.ok and "gain is not merged" in finding.evidence and "81 elements merged of 87" in finding.evidence
    )


def test_a_stepped_buffer_is_seen(net, monkeypatch):
    monkeypatch.setattr(Round, "_merge_buffers", lambda self, rows: self._buffers())
    finding = promises.every_tensor_once(open_subject(net), 2, 4)
    assert not finding.ok and "buffer norm.running_mean is not averaged" in finding.evidence


@pytest.mark.parametrize("lost", ["anchor", "outer"])
def test_state_lost_in_a_checkpoint_is_seen_reports_21_22(net, lost, monkeypatch):
    load = diloco.DiLoCo.load_state_dict
    monkeypatch.setattr(
        diloco.DiLoCo,
        "load_state_dict",
        lambda self, state: load(self, {**state, lost: diloco.DiLoCo.state_dict(self)[lost]}),
    )
    assert broken(net) == {"resume"}


def test_unseeded_randomness_is_seen_as_a_resume_that_differs(net, tmp_path):
    (tmp_path / "net.py").write_text(NET.replace("return Net()", "net = Net(); net.drop = Noise(); return net") + NOISE)
    assert broken(net) == {"resume"}


NOISE = """
ticks = iter(range(10**9))

class Noise(nn.Module):
    def forward(self, x):
        return x * (1 + 0.001 * next(ticks))
"""


def test_a_nan_that_is_let_in_is_seen(net, monkeypatch):
    monkeypatch.setattr(Round, "_finite", lambda self: True)
    assert "nan" in broken(net)


def test_replicas_that_do_not_differ_prove_nothing_report_7(net, tmp_path):
    """Every sync test must start from replicas that differ: equal batches for all are told of."""
    (tmp_path / "net.py").write_text(
        NET.replace("100 * replica + step", "step").replace("nn.Dropout(0.1)", "nn.Identity()")
    )
    finding = promises.lands_on_the_mean(open_subject(net), 2, 4)
    assert not finding.ok and "did not differ" in finding.evidence


# -- real processes


def outcome(**changes):
    return {"losses": [1.0, 0.9], "messages": [0, 3], "checksum": "aa", "dtypes": {"w": "torch.float32"}, **changes}


def test_processes_that_differ_are_seen():
    local, here = [[1.0, 1.0], [0.9, 0.9]], {"checksum": "aa", "dtypes": {"w": "torch.float32"}}
    assert processes._same_numbers(local, here, [outcome(), outcome()]).ok
    assert not processes._same_numbers(local, here, [outcome(), outcome(losses=[1.0, 0.91])]).ok
    assert not processes._same_numbers(local, here, [outcome(), outcome(checksum="bb")]).ok
    assert processes._dtypes(here, [outcome()]).ok
    assert not processes._dtypes(here, [outcome(dtypes={"w": "torch.bfloat16"})]).ok


def test_chatter_between_syncs_is_seen_report_130():
    assert processes._silent([outcome()], sync_every=2).ok
    assert not processes._silent([outcome(messages=[1, 3])], sync_every=2).ok
    assert not processes._silent([outcome(messages=[0, 0])], sync_every=2).ok


@pytest.mark.slow
def test_the_command_passes_on_a_users_own_model(net, capsys):
    assert main(["selftest", "--model", net.model, "--replicas", "3", "--json"]) == 0
    printed = json.loads(capsys.readouterr().out)
    assert printed["ok"] and len(printed["promises"]) == 7 and printed["replicas"] == 3
    evidence = " ".join(p["evidence"] for p in printed["promises"])
    assert "3 gloo processes" in evidence and "bfloat16, float32, int64" in evidence


def test_the_command_fails_with_what_it_means(net, capsys, monkeypatch):
    """The processes are left out here: they would not see the mutation."""
    monkeypatch.setattr("diloco.selftest.suite.in_processes", lambda *_: [])
    monkeypatch.setattr(Round, "_finite", lambda self: True)
    assert main(["selftest", "--model", net.model]) == 1
    out = capsys.readouterr().out
    assert out.count("PASS") == 3 and out.count("FAIL") == 1 and "one bad replica would spoil" in out


def test_a_promise_that_raises_is_broken_and_the_rest_go_on(net, capsys, monkeypatch):
    monkeypatch.setattr("diloco.selftest.suite.in_processes", lambda *_: [])
    monkeypatch.setattr("diloco.selftest.promises.checkpoint.save", lambda *_, **__: 1 / 0)
    assert main(["selftest", "--model", net.model, "--json"]) == 1
    found = json.loads(capsys.readouterr().out)["promises"]
    assert [f["ok"] for f in found] == [True, True, False, True] and "ZeroDivisionError" in found[2]["evidence"]


# -- subjects


@pytest.mark.parametrize(
    ("change", "says"),
    [
        (("return Net()", "return None"), "fails in one training step"),
        (("cross_entropy(self.head(hidden), y)", "cross_entropy(self.head(hidden), y) * torch.nan"), "loss nan"),
        (("def make_batch", "def make_it"), "no function make_batch"),
    ],
)
def test_a_model_that_does_not_train_is_refused(change, says, net, tmp_path):
    (tmp_path / "net.py").write_text(NET.replace(*change))
    with pytest.raises(BadInput, match=says):
        open_subject(net)


def test_outputs_that_are_no_loss_serve_as_one(net, tmp_path):
    (tmp_path / "net.py").write_text(
        NET.replace("return nn.functional.cross_entropy(self.head(hidden), y)", "return hidden")
    )
    subject = open_subject(net)
    loss = subject.loss(subject.make(), 0, 0)
    assert loss.dim() == 0 and loss.requires_grad


def test_a_users_own_optimizer_is_used(net, tmp_path):
    (tmp_path / "net.py").write_text(
        NET + "\ndef make_optimizer(model):\n    return torch.optim.SGD(model.parameters(), 0.1)\n"
    )
    subject = open_subject(net)
    assert isinstance(subject.optimizer(subject.make()), torch.optim.SGD)


def test_ulp_is_that_of_the_largest_number_seen():
    one = torch.tensor([1.0])
    found = {"w": torch.nextafter(one, torch.tensor(2.0))}
    assert worst_ulp(found, {"w": one.double()}, [{"w": one}]) == (1.0, "w")
    assert worst_ulp(found, {"w": one.double()}, [{"w": one}, {"w": 4 * one}])[0] == 0.25
    assert worst_ulp({"w": torch.tensor([torch.nan])}, {"w": one.double()}, [{"w": one}])[0] == float("inf")
