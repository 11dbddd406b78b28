"""Threads that work while a replica takes its inner steps."""

from __future__ import annotations

import contextlib
import os
import sys
import threading

NICENESS = 15
"""Leaves such a thread 3% of a core that an inner step wants to itself."""


def stay_behind() -> None:
    """Lets the inner steps go first where they share a core with this thread: its arithmetic is then spread over many
    of them instead of making one late. Whoever waits for it leaves it the core. Linux only."""
    if not sys.platform.startswith("linux"):
        return  # elsewhere the call would slow down the whole process
    with contextlib.suppress(OSError):
        os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), NICENESS)
