"""What a verb is asked to write, checked before it starts: nothing may be a folder, an input, or another's."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from itertools import combinations
from pathlib import Path

from diloco.errors import BadInput

Folders = Mapping[str, tuple[str, Iterable[str]]]


def check_outputs(files: Mapping[str, str], inputs: Iterable[Path] = (), folders: Folders | None = None) -> None:
    """Refuses an output that cannot be meant, before anything is computed for it.

    Args:
        files: option -> path, "" where it was not given.
        inputs: files that the verb reads.
        folders: option -> folder, "" where it was not given, and the names of the files that are written in it.

    Raises:
        BadInput: a file's path is a folder or a folder's is a file; or a file is one of `inputs`, is given twice, under
            whatever spelling or link, or would lie inside another file.
    """
    written = {f"--{option} {path}": Path(path) for option, path in files.items() if path}
    for label, path in written.items():
        if os.path.isdir(path):
            raise BadInput(f"{label} is a folder: name a file, as in {label.split()[0]} {path / 'NAME'}")
    for option, (folder, names) in (folders or {}).items():
        if folder and os.path.exists(folder) and not os.path.isdir(folder):
            raise BadInput(f"--{option} {folder} is a file: name a folder, new or not")
        written |= {f"{name} of --{option} {folder}": Path(folder, name) for name in names if folder}
    read = list(inputs)
    for label, path in written.items():
        for source in read:
            if _same(path, source):
                raise BadInput(f"{label} is {source}, which is read and would be lost: give another file")
    for (first, one), (second, other) in combinations(written.items(), 2):
        if _same(one, other):
            raise BadInput(f"{second} and {first} are one file: give each its own")
        for inner, outer, nested in ((first, second, _inside(one, other)), (second, first, _inside(other, one))):
            if nested:
                raise BadInput(f"{inner} would lie inside {outer}, which is a file: give each its own place")


def _same(one: Path, other: Path) -> bool:
    """Whether both are one file, through links and spellings, be it there already or not.

    By os.path, which takes a name that no file can have for one that is not there: writing it will say so.
    """
    if os.path.exists(one) and os.path.exists(other):
        return os.path.samefile(one, other)
    return os.path.realpath(one) == os.path.realpath(other)


def _inside(one: Path, other: Path) -> bool:
    return Path(os.path.realpath(other)) in Path(os.path.realpath(one)).parents
