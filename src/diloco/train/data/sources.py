"""Documents out of a source: the standard library, files and folders, or a streamed Hugging Face dataset."""

from __future__ import annotations

import hashlib
import json
import os
import sysconfig
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from diloco.errors import BadInput

PIECE_CHARS = 1 << 14
"""Text files are read in pieces of about this many characters: BPE is twice as fast on these as on whole megabytes."""

TEXT_SUFFIXES = frozenset(
    ".txt .md .rst .tex .org .log .csv .html .xml .py .pyi .c .h .cc .cpp .hpp .cu .rs .go .java .js".split()
)
JSONL_SUFFIXES = frozenset({".jsonl", ".ndjson"})
PARQUET_SUFFIXES = frozenset({".parquet"})
SUFFIXES = TEXT_SUFFIXES | JSONL_SUFFIXES | PARQUET_SUFFIXES

# Not the library's own code: tests, bundled packages, and tables of data.
STDLIB_SKIP = frozenset(
    "site-packages dist-packages test tests idlelib idle_test lib2to3 ensurepip turtledemo pydoc_data encodings".split()
)


class Piece(NamedTuple):
    """A stretch of a document; `ends` marks the last one."""

    text: str
    ends: bool


@dataclass(frozen=True)
class Source:
    """Text that can be read again and again in the same order.

    `identity` changes when the text may have changed (paths, sizes and modification times); `size_bytes` is 0 when
    unknown.
    """

    spec: str
    identity: str
    size_bytes: int
    streamed: bool
    pieces: Callable[[], Iterator[Piece]]


def open_source(spec: str, text_field: str) -> Source:
    """Find the documents of `spec` without reading them. Raises `BadInput` if there are none."""
    if spec == "stdlib":
        root = Path(sysconfig.get_paths()["stdlib"])
        return _files_source(spec, root, _stdlib_files(root), text_field)
    if spec.startswith("hf:"):
        return _hf_source(spec, text_field)
    root = Path(spec).expanduser()
    if not root.exists():
        raise BadInput(f"source {spec} does not exist: give stdlib, a file, a folder or hf:NAME")
    if root.is_file():
        if root.suffix.lower() not in SUFFIXES:
            raise BadInput(
                f"source {spec} has the unknown extension {root.suffix!r}: use .txt, .jsonl, .parquet or a source file"
            )
        return _files_source(spec, root.parent, [root], text_field)
    if not root.is_dir():
        raise BadInput(f"source {spec} is neither a file nor a folder: give stdlib, a file, a folder or hf:NAME")
    files = [path for path in _walk(root) if path.suffix.lower() in SUFFIXES]
    if not files:
        raise BadInput(f"source {spec} is a folder without any .txt, .jsonl, .parquet or other text file")
    return _files_source(spec, root, files, text_field)


def _stdlib_files(root: Path) -> list[Path]:
    files = [path for path in _walk(root, STDLIB_SKIP) if path.suffix == ".py"]
    if not files:
        raise BadInput(f"source stdlib: this Python keeps no .py files in {root}, so name a text file or folder")
    return files


def _walk(root: Path, skip: frozenset[str] = frozenset()) -> Iterator[Path]:
    """The files below `root`, leaving out hidden ones and folders called as in `skip`."""
    for folder, subfolders, names in os.walk(root):
        subfolders[:] = [name for name in subfolders if name not in skip and not name.startswith(".")]
        for name in names:
            path = Path(folder, name)
            if not name.startswith(".") and path.is_file():
                yield path


def _files_source(spec: str, root: Path, files: list[Path], text_field: str) -> Source:
    # In the order of a hash, the tail that is held out is a random sample of the files; the same one on every machine.
    names = {path.relative_to(root).as_posix(): path for path in files}
    ordered = sorted(names, key=lambda name: hashlib.sha256(name.encode("utf-8", "surrogateescape")).digest())
    stats = {name: names[name].stat() for name in ordered}
    identity = json.dumps([str(root.resolve()), [(name, s.st_size, s.st_mtime_ns) for name, s in stats.items()]])

    def pieces() -> Iterator[Piece]:
        for name in ordered:
            yield from _read_file(names[name], text_field)

    return Source(spec, identity, sum(s.st_size for s in stats.values()), False, pieces)


def _read_file(path: Path, text_field: str) -> Iterator[Piece]:
    suffix = path.suffix.lower()
    try:
        if suffix in PARQUET_SUFFIXES:
            yield from _read_parquet(path, text_field)
        elif suffix in JSONL_SUFFIXES:
            yield from _read_jsonl(path, text_field)
        else:
            yield from _read_text(path)
    except OSError as error:
        raise BadInput(f"source file {path} cannot be read: {error.strerror or error}") from error


def _read_text(path: Path) -> Iterator[Piece]:
    with open(path, encoding="utf-8", errors="replace", newline="") as file:
        # Cut behind a line, so that a tokenizer sees whole words.
        text = file.read(PIECE_CHARS) + file.readline(PIECE_CHARS)
        while text:
            following = file.read(PIECE_CHARS) + file.readline(PIECE_CHARS)
            yield Piece(text, ends=not following)
            text = following


def _read_jsonl(path: Path, text_field: str) -> Iterator[Piece]:
    with open(path, encoding="utf-8", errors="replace") as file:
        for number, line in enumerate(file, start=1):
            if not line.strip():
                continue
            where = f"{path}:{number}"
            try:
                row = json.loads(line)
            except json.JSONDecodeError as error:
                raise BadInput(
                    f"{where} is not JSON ({error.msg} at column {error.colno}): mend or remove the line"
                ) from None
            if not isinstance(row, dict):
                raise BadInput(f'{where} is not a JSON object: write one {{"{text_field}": "..."}} a line')
            yield from _field(row, text_field, where)


def _read_parquet(path: Path, text_field: str) -> Iterator[Piece]:
    try:
        import pyarrow
        import pyarrow.parquet
    except ImportError:
        raise BadInput(f'source file {path} is parquet, which needs pyarrow: pip install "diloco[data]"') from None
    try:
        with pyarrow.parquet.ParquetFile(path) as table:
            if text_field not in table.schema_arrow.names:
                raise BadInput(_no_field(str(path), text_field, table.schema_arrow.names))
            for batch in table.iter_batches(batch_size=256, columns=[text_field]):
                for row in batch.to_pylist():
                    yield from _field(row, text_field, str(path))
    except pyarrow.ArrowInvalid as error:
        raise BadInput(f"source file {path} is not a readable parquet file: {str(error).splitlines()[0]}") from error


def _hf_source(spec: str, text_field: str) -> Source:
    name, _, config = spec[len("hf:") :].partition(":")
    if not name:
        raise BadInput(f"source {spec} names no dataset: write hf:NAME or hf:NAME:CONFIG, as in hf:allenai/c4:en")

    def pieces() -> Iterator[Piece]:
        try:
            import datasets
        except ImportError:
            raise BadInput(f'source {spec} needs the datasets library: pip install "diloco[data]"') from None
        try:
            rows = datasets.load_dataset(name, config or None, split="train", streaming=True)
        except (OSError, ValueError) as error:
            raise BadInput(f"source {spec} cannot be opened: {str(error).splitlines()[0]}") from error
        for row in rows:
            yield from _field(row, text_field, spec)

    return Source(spec, spec, 0, True, pieces)


def _field(row: dict, text_field: str, where: str) -> Iterator[Piece]:
    if text_field not in row:
        raise BadInput(_no_field(where, text_field, list(row)))
    text = row[text_field]
    if text is None or text == "":
        return
    if not isinstance(text, str):
        raise BadInput(
            f"{where}: the field {text_field!r} holds {type(text).__name__}, not text: choose another with text_field"
        )
    # JSON may carry halves of surrogate pairs, which no tokenizer takes.
    yield Piece(text.encode("utf-8", "replace").decode("utf-8"), ends=True)


def _no_field(where: str, text_field: str, present: list[str]) -> str:
    choices = ", ".join(map(str, present)) or "none, it is empty"
    return f"{where} has no field {text_field!r}: set text_field to one of {choices}"
