"""A plain TCP connection that keeps the line full in both directions while a loop computes."""

from __future__ import annotations

import contextlib
import socket
import threading

import torch
import torch.distributed as dist

from slow_link.loop import Method
from slow_link.net import ADDRESSES

CHUNK_BYTES = 1 << 16


def full_line() -> Method:
    connection = _connect()
    threads = [threading.Thread(target=work, args=(connection,), daemon=True) for work in (_send, _receive)]

    def begin() -> None:
        for thread in threads:
            thread.start()

    def close() -> None:
        with contextlib.suppress(OSError):
            connection.shutdown(socket.SHUT_RDWR)
        connection.close()

    return Method(begin=begin, close=close)


def _connect() -> socket.socket:
    port = torch.zeros(1, dtype=torch.int64)
    if dist.get_rank() == 0:
        server = socket.create_server((ADDRESSES[0], 0))
        port[0] = server.getsockname()[1]
    dist.broadcast(port, src=0)
    if dist.get_rank() == 0:
        return server.accept()[0]
    return socket.create_connection((ADDRESSES[0], int(port)))


def _send(connection: socket.socket) -> None:
    chunk = bytes(CHUNK_BYTES)
    with contextlib.suppress(OSError):
        while True:
            connection.sendall(chunk)


def _receive(connection: socket.socket) -> None:
    buffer = bytearray(CHUNK_BYTES)
    with contextlib.suppress(OSError):
        while connection.recv_into(buffer):
            pass
