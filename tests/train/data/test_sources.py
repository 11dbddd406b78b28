"""Documents out of files, folders, the standard library and datasets.

Run: pytest tests/train/data/test_sources.py
"""

from __future__ import annotations

import builtins
import hashlib
import json

import pytest

from diloco.errors import BadInput
from diloco.train.data import sources
from diloco.train.data.sources import open_source


def documents(spec, text_field="text") -> list[str]:
    out, open_text = [], ""
    for piece in open_source(str(spec), text_field).pieces():
        open_text += piece.text
        if piece.ends:
            out.append(open_text)
            open_text = ""
    assert open_text == ""
    return out


def test_a_folder_is_read_in_the_order_of_the_hashed_names(tmp_path):
    names = [f"{i}.txt" for i in range(8)] + ["deep/er/x.md", "code.py"]
    for name in names:
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(name)
    (tmp_path / "picture.png").write_bytes(b"\x89PNG")
    (tmp_path / ".git").mkdir()
    (tmp_path / ".git" / "hidden.txt").write_text("hidden")
    expected = sorted(names, key=lambda name: hashlib.sha256(name.encode()).hexdigest())
    assert documents(tmp_path) == expected != sorted(names)


def test_long_text_comes_in_pieces_and_stays_whole(tmp_path, monkeypatch):
    monkeypatch.setattr(sources, "PIECE_CHARS", 10)
    text = "first line\r\nsecond line is longer than a piece\n" + "no line end at all" * 5
    (tmp_path / "a.txt").write_bytes(text.encode())
    pieces = list(open_source(str(tmp_path / "a.txt"), "text").pieces())
    assert len(pieces) > 5 and [p.ends for p in pieces] == [False] * (len(pieces) - 1) + [True]
    assert "".join(p.text for p in pieces) == text


def test_bytes_that_are_not_utf8_are_replaced(tmp_path):
    (tmp_path / "a.txt").write_bytes(b"caf\xe9!")
    assert documents(tmp_path / "a.txt") == ["caf\ufffd!"]


def test_jsonl(tmp_path):
    rows = [{"text": "one"}, {"text": ""}, {"text": None}, {"text": "half \ud83d pair"}, {"text": "ä\nb", "more": 1}]
    (tmp_path / "a.jsonl").write_text("\n\n".join(json.dumps(row) for row in rows))
    assert documents(tmp_path / "a.jsonl") == ["one", "half ? pair", "ä\nb"]


def test_jsonl_lines_that_cannot_be_used_are_named(tmp_path):
    path = tmp_path / "a.jsonl"
    for line, message in [
        ('{"text": "b"', r"a.jsonl:2 is not JSON \(.*column"),
        ('["b"]', "a.jsonl:2 is not a JSON object"),
        ('{"body": "b", "id": 1}', "a.jsonl:2 has no field 'text': set text_field to one of body, id"),
        ('{"text": 5}', "a.jsonl:2: the field 'text' holds int, not text"),
    ]:
        path.write_text('{"text": "a"}\n' + line)
        with pytest.raises(BadInput, match=message):
            documents(path)


def test_parquet(tmp_path):
    pyarrow = pytest.importorskip("pyarrow")
    parquet = pytest.importorskip("pyarrow.parquet")
    path = tmp_path / "a.parquet"
    parquet.write_table(pyarrow.table({"body": ["one", None, "two"], "id": [1, 2, 3]}), path)
    assert documents(path, "body") == ["one", "two"]
    with pytest.raises(BadInput, match="a.parquet has no field 'text': set text_field to one of body, id"):
        documents(path)
    with pytest.raises(BadInput, match="the field 'id' holds int"):
        documents(path, "id")
    path.write_bytes(b"PAR1 but not really")
    with pytest.raises(BadInput, match="not a readable parquet file"):
        documents(path)


def test_a_dataset_in_a_local_folder_is_streamed(tmp_path, monkeypatch):
    pytest.importorskip("datasets")
    monkeypatch.setenv("HF_HOME", str(tmp_path / "home"))
    folder = tmp_path / "corpus"
    folder.mkdir()
    (folder / "train.jsonl").write_text("".join(json.dumps({"text": f"row {i}"}) + "\n" for i in range(5)))
    assert open_source(f"hf:{folder}", "text").streamed
    assert documents(f"hf:{folder}") == [f"row {i}" for i in range(5)]
    with pytest.raises(BadInput, match="has no field 'body': set text_field to one of text"):
        documents(f"hf:{folder}", "body")
    with pytest.raises(BadInput, match="hf:.*nothing cannot be opened"):
        documents(f"hf:{tmp_path}/nothing")


@pytest.mark.parametrize("missing, name", [("datasets", "hf:any/thing"), ("pyarrow", "a.parquet")])
def test_a_missing_extra_is_named(tmp_path, monkeypatch, missing, name):
    real_import = builtins.__import__

    def without(module, *args, **kwargs):
        if module.partition(".")[0] == missing:
            raise ImportError(module)
        return real_import(module, *args, **kwargs)

    (tmp_path / "a.parquet").write_bytes(b"PAR1")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(builtins, "__import__", without)
    with pytest.raises(BadInput, match=r'pip install "diloco\[data\]"'):
        documents(name)


@pytest.mark.parametrize(
    "name, message",
    [
        ("nothing.txt", "nothing.txt does not exist"),
        ("empty", "empty is a folder without any .txt"),
        ("a.bin", "unknown extension '.bin'"),
        ("hf:", "names no dataset"),
    ],
)
def test_sources_that_are_not_there(tmp_path, monkeypatch, name, message):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "empty").mkdir()
    (tmp_path / "a.bin").write_bytes(b"\0")
    with pytest.raises(BadInput, match=message):
        open_source(name, "text")


def test_stdlib_leaves_out_tests_and_packages():
    source = open_source("stdlib", "text")
    names = [name for name, _, _ in json.loads(source.identity)[1]]
    assert "argparse.py" in names and len(names) > 200
    assert not any(part in name.split("/") for name in names for part in ("test", "tests", "site-packages", "idlelib"))


def test_identity_follows_the_files(tmp_path):
    (tmp_path / "a.txt").write_text("one")
    before = open_source(str(tmp_path), "text").identity
    assert open_source(str(tmp_path), "text").identity == before
    (tmp_path / "a.txt").write_text("three")
    assert open_source(str(tmp_path), "text").identity != before
