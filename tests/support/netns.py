"""A network of one's own, in which every byte on the loopback is ours."""

from __future__ import annotations

import ctypes
import fcntl
import multiprocessing
import os
import socket
import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any

CLONE_NEWNET = 0x40000000
SIOCSIFFLAGS, IFF_UP = 0x8914, 0x1


def in_own_network(work: Callable[..., Any], *arguments: Any) -> Any:
    """What `work(*arguments)` returns when it is run in a forked process with nothing but a fresh loopback; None where
    the system does not permit that."""
    context = multiprocessing.get_context("fork")
    ours, theirs = context.Pipe()
    process = context.Process(target=_child, args=(theirs, work, arguments))
    process.start()
    theirs.close()
    try:
        return ours.recv()
    finally:
        process.join()


def _child(results: Any, work: Callable[..., Any], arguments: tuple) -> None:
    entered = ctypes.CDLL(None, use_errno=True).unshare(CLONE_NEWNET) == 0
    if entered:
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as control:
            fcntl.ioctl(control, SIOCSIFFLAGS, struct.pack("16sh14x", b"lo", IFF_UP))
    results.send(work(*arguments) if entered else None)
    results.close()
    os._exit(0)


def loopback_bytes() -> int:
    """Bytes that this network's loopback has carried, headers included."""
    line = next(x for x in Path("/proc/net/dev").read_text().splitlines() if x.strip().startswith("lo:"))
    return int(line.split(":")[1].split()[8])
