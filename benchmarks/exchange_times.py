"""How long one exchange takes on a slow line that has nothing else to do: no training, just the messages of a fragment.

    sudo python benchmarks/exchange_times.py [--slow-link results/slow_link.json] [--out results/exchange_times.json]

The network is that of `slow_link.py`, and so are the messages: a small one, the payload, a small one, after a pause as
between two fragments. For the overlapped methods of a result file of `slow_link.py`, whose steps wait for what the
overlap does not hide of an exchange. Of a coded payload `exchange_s` is an all-gather, `receive_first_s` the same bytes
with the receive posted before the send, as diloco sends them between two replicas. Linux, root and iproute2; three
minutes, and hardly any processor time.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import sys
import tempfile
import time
from pathlib import Path

import plan_reality
from slow_link.net import ADDRESSES, INTERFACE, Namespaces

from diloco.errors import BadInput
from diloco.wire.link import Link

HERE = Path(__file__).resolve().parent
ROUNDS, PAUSE_S = 7, 0.4
"""The pause is longer than a TCP sender remembers how fast it may go."""
LATE_S = 0.02
"""By which one rank comes later than the other: replicas that train never come together."""
HEADER_BYTES = 64
LONGEST_S = 3.0
"""Of line time: longer exchanges differ little from their line time, and take long."""
TIMEOUT_S = 300.0


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--slow-link", default=str(plan_reality.SLOW_LINK), help="result file of slow_link.py")
    parser.add_argument("--out", default="", help="JSON file for the result")
    parser.add_argument("--rank", nargs=3, metavar=("PAYLOADS", "OPERATIONS", "FILE"), help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.rank:
        payloads, operations, out = arguments.rank
        Path(out).write_text(json.dumps(exchange(json.loads(payloads), json.loads(operations))))
        os._exit(0)  # gloo aborts a process whose group lives until the interpreter is torn down
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))  # an exception, so that the namespaces are taken away
    try:
        rows = measure(plan_reality.cells(json.loads(Path(arguments.slow_link).read_text())))
    except BadInput as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    for row in rows:
        print(f"{row['model']:<6}{row['method']:<16}{row['link']:<9}line {row['line_s']:.2f} s")
        for name in ("exchange_s", "receive_first_s"):
            print(f"  {name:<18}{' '.join(f'{t:.2f}' for t in row.get(name, []))}")
    if arguments.out:
        Path(arguments.out).write_text(json.dumps({"rows": rows}, indent=1) + "\n")
    return 0


def measure(cells: list[plan_reality.Cell]) -> list[dict]:
    """Rows with the seconds of every exchange, from when both ranks are there."""
    rows = []
    chosen = [c for c in cells if c.path == "tbf" and c.overlap_steps and _line_s(c) <= LONGEST_S]
    with Namespaces() as net, tempfile.TemporaryDirectory() as folder:
        for link in dict.fromkeys(cell.link for cell in chosen):
            here = [cell for cell in chosen if cell.link == link]
            net.limit(Link.parse(link))
            coded = [cell for cell in here if cell.codec != "fp32"]
            usual = ["all_reduce" if cell.codec == "fp32" else "all_gather" for cell in here]
            seconds = _timed(net, Path(folder), [*here, *coded], usual + ["receive_first"] * len(coded))
            others = dict(zip(coded, seconds[len(here) :], strict=True))
            for cell, exchange_s in zip(here, seconds, strict=False):
                payload = {"payload_bytes": _payload_bytes(cell), "line_s": _line_s(cell), "exchange_s": exchange_s}
                rows.append({"model": cell.model, "method": cell.method, "link": link, **payload})
                if cell in others:
                    rows[-1]["receive_first_s"] = others[cell]
    return rows


def _timed(net: Namespaces, folder: Path, cells: list[plan_reality.Cell], operations: list[str]) -> list[list[float]]:
    payloads = json.dumps([_payload_bytes(cell) for cell in cells])
    outs = [folder / f"{rank}.json" for rank in range(2)]
    started = []
    for rank, out in enumerate(outs):
        command = [sys.executable, __file__, "--rank", payloads, json.dumps(operations), str(out)]
        env = {"RANK": str(rank), "WORLD_SIZE": "2", "MASTER_ADDR": ADDRESSES[0], "MASTER_PORT": "29700"}
        env |= {"GLOO_SOCKET_IFNAME": INTERFACE, "OMP_NUM_THREADS": "1", "PYTHONPATH": str(HERE.parent / "src")}
        started.append(net.start(rank, command, env, out.with_suffix(".log")))
    deadline = time.monotonic() + TIMEOUT_S
    while time.monotonic() < deadline and any(process.poll() is None for process in started):
        time.sleep(0.1)
    net.stop()
    if any(process.returncode for process in started):
        raise RuntimeError(outs[0].with_suffix(".log").read_text().strip())
    ranks = [json.loads(out.read_text()) for out in outs]
    return [[min(pair) for pair in zip(*times, strict=True)] for times in zip(*ranks, strict=True)]


def exchange(payloads: list[int], operations: list[str]) -> list[list[float]]:
    """On this rank, for each payload the seconds of each round."""
    import torch
    import torch.distributed as dist

    def gather(sent: torch.Tensor) -> None:
        dist.all_gather([torch.empty_like(sent) for _ in range(2)], sent)

    def swap(sent: torch.Tensor) -> None:
        other = 1 - dist.get_rank()
        received = dist.irecv(torch.empty_like(sent), other)
        dist.send(sent, other)
        received.wait()

    dist.init_process_group("gloo")
    header = torch.zeros(HEADER_BYTES, dtype=torch.uint8)
    found = []
    for payload, operation in zip(payloads, operations, strict=True):
        values = torch.zeros(payload // 4) if operation == "all_reduce" else torch.zeros(payload, dtype=torch.uint8)
        send = {"all_reduce": dist.all_reduce, "all_gather": gather, "receive_first": swap}[operation]
        seconds = []
        for _ in range(ROUNDS):
            time.sleep(PAUSE_S)
            dist.barrier()
            gather(header)
            time.sleep(LATE_S * dist.get_rank())
            start = time.perf_counter()
            send(values)
            gather(header)
            seconds.append(time.perf_counter() - start)
        found.append(seconds)
    dist.barrier()
    return found


def _payload_bytes(cell: plan_reality.Cell) -> int:
    return round(plan_reality.outer_round(cell.run(1.0)).link_bits / 8)


def _line_s(cell: plan_reality.Cell) -> float:
    return plan_reality.outer_round(cell.run(1.0)).link_s


if __name__ == "__main__":
    sys.exit(main())
