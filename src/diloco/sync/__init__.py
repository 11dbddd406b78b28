"""`DiLoCo`: the five lines that go into somebody's own training loop.

It counts inner steps, decides when which round is due, keeps the books, and leaves the arithmetic to `outer/` and the
travelling to `wire/`.
"""

from diloco.sync.diloco import DiLoCo

__all__ = ["DiLoCo"]
