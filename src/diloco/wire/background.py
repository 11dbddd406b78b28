"""One thread that drives a replica's rounds in the order they were started, while its inner steps go on."""

from __future__ import annotations

import contextlib
import weakref
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor

import torch

from diloco.threads import stay_behind


class Background:
    """Runs calls one after the other, so that all replicas' messages keep one order.

    On a CUDA device they run on a stream of their own, which waits for what the caller's stream has been given so far;
    `wait` makes the caller's stream wait for them in turn.
    """

    def __init__(self, device: torch.device) -> None:
        self._stream = torch.cuda.Stream(device) if device.type == "cuda" else None
        self._thread = ThreadPoolExecutor(max_workers=1, thread_name_prefix="diloco", initializer=stay_behind)
        weakref.finalize(self, self._thread.shutdown, wait=False, cancel_futures=True)

    def start(self, work: Callable[[], None]) -> Pending:
        ready = torch.cuda.current_stream(self._stream.device).record_event() if self._stream else None
        return Pending(self._thread.submit(_call, work, self._stream, ready), self._stream)

    def drain(self) -> None:
        """Until everything started so far has ended."""
        self._thread.submit(lambda: None).result()


class Pending:
    """A call on its way."""

    def __init__(self, future: Future, stream: torch.cuda.Stream | None) -> None:
        self._future, self._stream = future, stream

    def wait(self) -> None:
        """Until it has ended. Raises what it raised."""
        self._future.result()
        if self._stream:
            torch.cuda.current_stream(self._stream.device).wait_stream(self._stream)


def _call(work: Callable[[], None], stream: torch.cuda.Stream | None, ready: torch.cuda.Event | None) -> None:
    with torch.no_grad(), torch.cuda.stream(stream) if stream else contextlib.nullcontext():
        if stream:
            stream.wait_event(ready)
        work()
        if stream:
            # So that the seconds booked are the transfer's, not those of handing it to the device.
            stream.synchronize()
