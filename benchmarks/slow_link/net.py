"""Two network namespaces joined by a virtual cable whose rate the kernel limits. Linux, root, iproute2."""

from __future__ import annotations

import contextlib
import os
import re
import shutil
import signal
import subprocess
from pathlib import Path

from diloco.errors import BadInput
from diloco.wire.link import Link

INTERFACE = "wire0"
ADDRESSES = ("10.213.0.1", "10.213.0.2")
SUBNET, CONGESTION_CONTROL = "10.213.0.0/30", "cubic"
CORES = (0, 1)
# What a box's queue holds, and how much a line that was idle may send at once: both small against a message.
QUEUE_S, BURST_BYTES = 0.1, 16 << 10


class Namespaces:
    """`with Namespaces() as net:` two of them; both, and the processes started in them, are gone afterwards.

    Raises BadInput without root or without the tools.
    """

    def __init__(self) -> None:
        missing = [tool for tool in ("ip", "ss", "tc", "taskset") if shutil.which(tool) is None]
        if missing:
            raise BadInput(f"{missing[0]} is not installed: install iproute2 and util-linux, or run on another machine")
        if os.geteuid() != 0:
            raise BadInput("network namespaces need root: run this as root, or use --link, which needs none")
        self._names = [f"diloco-{os.getpid()}-{rank}" for rank in range(2)]
        self._processes: list[subprocess.Popen] = []

    def __enter__(self) -> Namespaces:
        try:
            for name in self._names:
                _run("ip", "netns", "add", name)
            first, second = self._names
            _run(
                "ip", "-n", first, "link", "add", INTERFACE, "type", "veth", "peer", "name", INTERFACE, "netns", second
            )
            for name, address in zip(self._names, ADDRESSES, strict=True):
                _run("ip", "-n", name, "address", "add", f"{address}/30", "dev", INTERFACE)
                for device in ("lo", INTERFACE):
                    _run("ip", "-n", name, "link", "set", device, "up")
                # A namespace has the machine's own congestion control; this one is what most machines have.
                route = (SUBNET, "dev", INTERFACE, "proto", "kernel", "scope", "link", "src", address)
                _run("ip", "-n", name, "route", "change", *route, "congctl", CONGESTION_CONTROL)
        except BaseException:
            self._remove()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self._remove()

    def _remove(self) -> None:
        self.stop()
        for name in self._existing():
            _run("ip", "netns", "delete", name)  # and with it the cable

    def limit(self, link: Link | None) -> None:
        """Both directions at the link's rate; None takes the limit away. The kernel delays nothing here."""
        for name in self._names:
            device = ("dev", INTERFACE, "root")
            if link is None:
                if "tbf" in _run("tc", "-n", name, "qdisc", "show", "dev", INTERFACE):
                    _run("tc", "-n", name, "qdisc", "delete", *device)
                continue
            rate = ("rate", f"{int(link.bit_per_s)}bit", "burst", str(BURST_BYTES), "latency", f"{1e3 * QUEUE_S:g}ms")
            _run("tc", "-n", name, "qdisc", "replace", *device, "tbf", *rate)

    def start(self, rank: int, command: list[str], env: dict[str, str], log: Path) -> subprocess.Popen:
        """Starts a command in a namespace, on a core of its own, with its output in `log`."""
        core = str(CORES[rank % len(CORES)])
        inside = ["ip", "netns", "exec", self._names[rank], "taskset", "-c", core, *command]
        with log.open("w") as file:
            process = subprocess.Popen(inside, env=os.environ | env, stdout=file, stderr=subprocess.STDOUT)
        self._processes.append(process)
        return process

    def stop(self) -> None:
        """Ends whatever runs in the two namespaces, children of what was started there included."""
        for name in self._existing():
            for pid in _run("ip", "netns", "pids", name).split():
                with contextlib.suppress(ProcessLookupError):  # it has ended by itself meanwhile
                    os.kill(int(pid), signal.SIGKILL)
        for process in self._processes:
            process.wait()
        self._processes = []

    def _existing(self) -> list[str]:
        there = {line.split()[0] for line in _run("ip", "netns", "list").splitlines() if line}
        return [name for name in self._names if name in there]


def line_bytes() -> int:
    """Bytes that have left this namespace, headers included. The kernel counts a header once for several frames where
    it leaves cutting them to the device."""
    return int(Path(f"/sys/class/net/{INTERFACE}/statistics/tx_bytes").read_text())


def socket_bytes(rank: int) -> int:
    """Payload that TCP has sent from this namespace to the other through the sockets now open, each byte once."""
    sockets = _run("ss", "-tinH", "dst", ADDRESSES[1 - rank])
    sent, again = (sum(map(int, re.findall(rf"\b{name}:(\d+)", sockets))) for name in ("bytes_sent", "bytes_retrans"))
    return sent - again


def _run(*command: str) -> str:
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        raise RuntimeError(f"{' '.join(command)} failed: {done.stderr.strip()}")
    return done.stdout
