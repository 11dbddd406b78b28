"""Files that appear whole or not at all."""

from __future__ import annotations

import os
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO

from diloco.errors import BadInput


@contextmanager
def atomic_file(path: Path) -> Iterator[BinaryIO]:
    """A file to write that takes the place of `path` when the block ends well, and vanishes when it does not.

    Raises `BadInput` if the folder cannot be written.
    """
    partial = path.with_name(f"{path.name}.{os.getpid()}-{uuid.uuid4().hex[:8]}.tmp")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        file = open(partial, "wb")
    except OSError as error:
        raise BadInput(
            f"cache_dir {path.parent} cannot be written ({error.strerror}): choose another folder"
        ) from error
    try:
        with file:
            yield file
            file.flush()
            os.fsync(file.fileno())
        os.replace(partial, path)
    finally:
        partial.unlink(missing_ok=True)


def write_atomically(path: Path, content: bytes) -> None:
    """Write `content` to `path` in one step."""
    with atomic_file(path) as file:
        file.write(content)
