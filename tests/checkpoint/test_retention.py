"""What stays: the newest, every so many-th, the best, and all that these rest on.

pytest tests/checkpoint/test_retention.py
"""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from diloco.checkpoint import Policy
from diloco.checkpoint.retention import Entry, reasons, to_drop, wanted
from diloco.errors import BadInput


def run_of(losses: list[float | None], full_every: int) -> list[Entry]:
    """Checkpoints 1, 2, ... at steps 10, 20, ..., every `full_every`-th full."""
    return [
        Entry(10 * n, n, None if (n - 1) % full_every == 0 else 10 * (n - 1), loss) for n, loss in enumerate(losses, 1)
    ]


@pytest.mark.parametrize(
    "policy, full_every, kept",
    [
        (Policy(last=2), 1, [50, 60]),
        (Policy(last=0), 1, [10, 20, 30, 40, 50, 60]),
        (Policy(last=1, every=3), 1, [30, 60]),
        (Policy(last=1, best=2), 1, [20, 40, 60]),
        (Policy(last=1), 4, [50, 60]),
        (Policy(last=1, every=3), 4, [10, 20, 30, 50, 60]),
        (Policy(last=3), 4, [10, 20, 30, 40, 50, 60]),
    ],
)
def test_what_stays(policy, full_every, kept):
    entries = run_of([5.0, 2.0, None, 1.0, 3.0, None], full_every)
    assert sorted({e.step for e in entries} - set(to_drop(entries, policy))) == kept


@given(
    st.lists(st.one_of(st.none(), st.floats(0, 10)), max_size=25),
    st.integers(1, 6),
    st.builds(Policy, last=st.integers(0, 4), every=st.integers(0, 4), best=st.integers(0, 3)),
)
def test_nothing_kept_loses_what_it_rests_on(losses, full_every, policy):
    entries = run_of(losses, full_every)
    dropped = to_drop(entries, policy)
    kept = [e for e in entries if e.step not in dropped]
    assert all(e.base is None or e.base not in dropped for e in kept)
    assert wanted(entries, policy).keys() <= {e.step for e in kept} == reasons(entries, policy).keys()
    assert {e.step for e in entries[-max(policy.last, 1) :]} <= {e.step for e in kept}
    # Pruning again changes nothing, and in order nothing is ever left without its base.
    assert to_drop(kept, policy) == []
    assert dropped == sorted(dropped, reverse=True)


def test_a_policy_that_cannot_be_is_refused():
    with pytest.raises(BadInput, match="keep best is -1: give 0 or more"):
        Policy(best=-1)
