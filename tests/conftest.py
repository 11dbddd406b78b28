"""Shared by all tests: one BLAS thread, so that sums have one order, and the same examples of a property every time."""

from __future__ import annotations

import os

os.environ.setdefault("OMP_NUM_THREADS", "1")

import pytest
import torch
from hypothesis import settings

# The same examples every time and no stopwatch, so that what passed once passes again;
# `--hypothesis-profile=default` looks elsewhere.
settings.register_profile("fixed", derandomize=True, deadline=None)
settings.load_profile("fixed")


@pytest.fixture(autouse=True)
def one_thread() -> None:
    torch.set_num_threads(1)
