"""One interface over folders and URLs: the same calls leave and find the same.

pytest tests/checkpoint/test_storage.py
"""

from __future__ import annotations

import errno
import os
import uuid
from pathlib import Path

import pytest

from diloco.checkpoint.storage import Folder, Storage, Url, open_storage
from diloco.errors import BadInput


@pytest.fixture(params=["folder", "file", "memory", "local"])
def storage(request, tmp_path) -> Storage:
    if request.param == "local":  # fsspec's own local files, as a stand-in for a remote disk
        return open_storage(f"local://{tmp_path}/root")
    places = {
        "folder": tmp_path / "root",
        "file": f"file://{tmp_path}/root",
        "memory": f"memory://{uuid.uuid4().hex}/a",
    }
    return open_storage(places[request.param])


def put(storage: Storage, path: str, content: bytes) -> None:
    storage.write(path, lambda file: file.write_bytes(content))


def test_a_file_system(storage: Storage, tmp_path: Path) -> None:
    assert storage.names("") == storage.names("nowhere") == []
    assert storage.size_bytes("a/x") is None
    with pytest.raises(FileNotFoundError):
        storage.read("a/x")
    put(storage, "a/x", b"one")
    put(storage, "a/y", b"two2")
    put(storage, "b/x", b"")
    assert storage.names("") == ["a", "b"] and storage.names("a") == ["x", "y"]
    assert [storage.size_bytes(p) for p in ("a/x", "a/y", "b/x", "a")] == [3, 4, 0, None]
    put(storage, "a/x", b"other")
    assert storage.read("a/x") == b"other" and storage.size_bytes("a/x") == 5
    assert storage.local("a/y", tmp_path).read_bytes() == b"two2"
    storage.remove("a/x")
    storage.remove("b")
    storage.remove("nowhere")
    assert storage.names("") == ["a"] and storage.names("a") == ["y"]
    assert storage.name_of("a/y").endswith("a/y")


def test_a_write_that_fails_leaves_what_was_there(storage: Storage) -> None:
    put(storage, "a/x", b"one")

    def fail(file: Path) -> None:
        file.write_bytes(b"half")
        raise OSError(28, "No space left on device", str(file))

    with pytest.raises(OSError, match=r"a/x cannot be written \(No space left on device\): free some space there"):
        storage.write("a/x", fail)
    assert storage.read("a/x") == b"one" and storage.names("a") == ["x"]


@pytest.mark.parametrize("number", [errno.EROFS, errno.EACCES, errno.EIO, errno.ENOSPC, errno.EDQUOT])
def test_free_space_is_the_way_out_of_a_full_disk_alone(storage: Storage, number: int) -> None:
    def fail(file: Path) -> None:
        raise OSError(number, os.strerror(number), str(file))

    with pytest.raises(OSError) as caught:
        storage.write("a/x", fail)
    assert ("free some space" in str(caught.value)) == (number in (errno.ENOSPC, errno.EDQUOT))
    assert str(caught.value).endswith("choose another place")


def test_what_a_file_systems_own_library_raises_is_one_sentence(monkeypatch) -> None:
    """No such bucket, no credentials: each library has exceptions of its own."""
    storage = open_storage(f"memory://{uuid.uuid4().hex}")

    class NoCredentialsError(Exception):
        pass

    def fail(*_: object) -> None:
        raise NoCredentialsError("Unable to locate\ncredentials")

    monkeypatch.setattr(storage.files, "put_file", fail, raising=False)
    with pytest.raises(OSError, match=r"a/x cannot be written \(Unable to locate credentials\): choose another place"):
        put(storage, "a/x", b"one")


def test_only_memory_is_this_process_own(storage: Storage) -> None:
    assert storage.own == storage.name_of("").startswith("memory://")


def test_a_url_that_leads_nowhere_is_refused() -> None:
    with pytest.raises(BadInput, match="is no place that fsspec reaches .*: give a folder, or another URL"):
        open_storage("nonsense://x")


def test_kinds(tmp_path: Path) -> None:
    assert isinstance(open_storage(tmp_path), Folder) and isinstance(open_storage(f"file://{tmp_path}"), Folder)
    assert isinstance(open_storage("memory://x"), Url)
