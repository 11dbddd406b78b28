"""Files that a verb is asked to write, checked before it starts: none may be a folder, an input, or another's."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from pathlib import Path

from diloco.errors import BadInput


def check_outputs(files: Mapping[str, str], inputs: Iterable[Path] = ()) -> None:
    """Refuses a file that cannot be meant, before anything is computed for it.

    Args:
        files: option -> path, "" where it was not given.
        inputs: files that the verb reads.

    Raises:
        BadInput: a path is a folder, is one of `inputs`, or is given twice, under whatever spelling or link.
    """
    read = list(inputs)
    taken: dict[str, str] = {}
    for option, path in files.items():
        if not path:
            continue
        if os.path.isdir(path):
            raise BadInput(f"--{option} {path} is a folder: name a file, as in --{option} {Path(path) / 'NAME'}")
        for source in read:
            if _same(Path(path), source):
                raise BadInput(f"--{option} {path} is {source}, which is read and would be lost: give another file")
        for other, before in taken.items():
            if _same(Path(path), Path(before)):
                raise BadInput(f"--{option} {path} and --{other} {before} are one file: give each its own")
        taken[option] = path


def _same(one: Path, other: Path) -> bool:
    """Whether both are one file, through links and spellings, be it there already or not.

    By os.path, which takes a name that no file can have for one that is not there: writing it will say so.
    """
    if os.path.exists(one) and os.path.exists(other):
        return os.path.samefile(one, other)
    return os.path.realpath(one) == os.path.realpath(other)
