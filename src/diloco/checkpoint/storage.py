"""Where checkpoints lie: a folder of this machine, or whatever fsspec reaches by a URL.

A `Storage` is all the rest of this package knows of either. Paths are relative to its root, with `/` between names. It
needs no rename, so an object store serves: a file is there whole or not at all once `write` has returned.
"""

from __future__ import annotations

import contextlib
import errno
import shutil
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Protocol

from diloco.checkpoint.files import fsync, replace_durably
from diloco.errors import BadInput

FILE_URL = "file://"


class Storage(Protocol):
    def names(self, folder: str) -> list[str]:
        """What lies in a folder, sorted; nothing if it is not there."""
        ...

    def size_bytes(self, path: str) -> int | None:
        """None where there is no such file."""
        ...

    def read(self, path: str) -> bytes:
        """Raises FileNotFoundError, or another OSError."""
        ...

    def local(self, path: str, scratch: Path) -> Path:
        """A file of this machine with the content of `path`: itself, or a copy in the folder `scratch`."""
        ...

    def write(self, path: str, fill: Callable[[Path], None]) -> None:
        """Lets `fill` write a file of this machine and puts it at `path`. Raises OSError in one sentence."""
        ...

    def remove(self, path: str) -> None:
        """A file or a folder with all that is in it; nothing if it is not there."""
        ...

    def name_of(self, path: str) -> str:
        """How a message calls `path`."""
        ...

    @property
    def own(self) -> bool:
        """Whether it is this process's memory, which no other sees."""
        ...

    def missing_folders(self) -> list[Path]:
        """Those of this machine that writing would make, innermost first."""
        ...


def open_storage(location: str | Path) -> Storage:
    """A folder, or an fsspec URL such as `s3://bucket/run`, `memory://run` or `file:///data/run`.

    Raises BadInput for a URL that fsspec does not know or whose library is not installed.
    """
    text = str(location)
    if text.startswith(FILE_URL):
        return Folder(Path(text.removeprefix(FILE_URL)))
    return Url(text) if "://" in text else Folder(Path(location))


class Folder:
    """A folder of this machine, or of a disk that it shares with others."""

    def __init__(self, root: Path) -> None:
        self.root = root

    def names(self, folder: str) -> list[str]:
        path = self.root / folder
        return sorted(p.name for p in path.iterdir()) if path.is_dir() else []

    def size_bytes(self, path: str) -> int | None:
        file = self.root / path
        return file.stat().st_size if file.is_file() else None

    def read(self, path: str) -> bytes:
        return (self.root / path).read_bytes()

    def local(self, path: str, scratch: Path) -> Path:
        return self.root / path

    def write(self, path: str, fill: Callable[[Path], None]) -> None:
        file = self.root / path
        try:
            if not file.parent.is_dir():
                file.parent.mkdir(parents=True, exist_ok=True)
                fsync(file.parent.parent)
            replace_durably(file, fill)
        except OSError as error:
            raise _unwritable(file, error) from error

    def remove(self, path: str) -> None:
        target = self.root / path
        if target.is_dir():
            shutil.rmtree(target)
        else:
            target.unlink(missing_ok=True)

    def name_of(self, path: str) -> str:
        return str(self.root / path)

    @property
    def own(self) -> bool:
        return False

    def missing_folders(self) -> list[Path]:
        root = self.root.absolute()
        return [folder for folder in (root, *root.parents) if not folder.exists()]


class Url:
    """Any file system that fsspec knows."""

    def __init__(self, url: str) -> None:
        from fsspec.core import url_to_fs

        self.url = url.rstrip("/")
        try:
            self.files, self.root = url_to_fs(self.url)
        except (ImportError, ValueError) as error:
            raise BadInput(f"{url} is no place that fsspec reaches ({error}): give a folder, or another URL") from error

    def names(self, folder: str) -> list[str]:
        path = self._at(folder)
        self.files.invalidate_cache(path)
        with contextlib.suppress(FileNotFoundError, NotADirectoryError):
            found = (entry.rstrip("/").rpartition("/")[2] for entry in self.files.ls(path, detail=False))
            return sorted(name for name in found if name)
        return []

    def size_bytes(self, path: str) -> int | None:
        self.files.invalidate_cache(self._at(path).rpartition("/")[0])
        with contextlib.suppress(FileNotFoundError):
            info = self.files.info(self._at(path))
            return info["size"] if info["type"] == "file" else None
        return None

    def read(self, path: str) -> bytes:
        return self.files.cat_file(self._at(path))

    def local(self, path: str, scratch: Path) -> Path:
        copy = scratch / path.replace("/", "-")
        if not copy.exists():
            self.files.get_file(self._at(path), str(copy))
        return copy

    def write(self, path: str, fill: Callable[[Path], None]) -> None:
        with tempfile.TemporaryDirectory(prefix="diloco-") as folder:
            file = Path(folder) / "file"
            try:
                fill(file)
            except OSError as error:
                raise _unwritable(self.name_of(path), error) from error
            try:
                self.files.makedirs(self._at(path).rpartition("/")[0], exist_ok=True)
                self.files.put_file(str(file), self._at(path))
            except Exception as error:  # each file system raises its own library's
                raise _unwritable(self.name_of(path), error) from error

    def remove(self, path: str) -> None:
        with contextlib.suppress(FileNotFoundError):
            self.files.rm(self._at(path), recursive=True)

    def name_of(self, path: str) -> str:
        return f"{self.url}/{path}" if path else self.url

    @property
    def own(self) -> bool:
        return "memory" in self.files.protocol

    def missing_folders(self) -> list[Path]:
        return []

    def _at(self, path: str) -> str:
        return f"{self.root}/{path}" if path else self.root


def _unwritable(path: Path | str, error: Exception) -> OSError:
    reason = getattr(error, "strerror", None) or " ".join(str(error).split()) or type(error).__name__
    full = getattr(error, "errno", None) in (errno.ENOSPC, errno.EDQUOT)
    way_out = "free some space there, or choose another place" if full else "choose another place"
    return OSError(f"{path} cannot be written ({reason}): {way_out}")
