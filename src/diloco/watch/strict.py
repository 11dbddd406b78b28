"""Strict JSON that keeps NaN and infinities.

JSON has neither, and readers in other languages choke on Python's `NaN`. So such a value is written as null, and the
object gets one more key, "nonfinite", from the value's JSON pointer (RFC 6901) to "nan", "inf" or "-inf":

    {"loss": null, "loss_per_replica": [2.1, null], "nonfinite": {"/loss": "nan", "/loss_per_replica/1": "inf"}}
"""

from __future__ import annotations

import json
import math
from typing import Any

NONFINITE = "nonfinite"


def dumps(record: dict, indent: int | None = None) -> str:
    """`record` as strict JSON text.

    Raises:
        ValueError: it already has a key "nonfinite".
        TypeError: it holds something that JSON cannot say.
    """
    if NONFINITE in record:
        raise ValueError(f"the key '{NONFINITE}' is taken: rename it")
    found: dict[str, str] = {}
    clean = _replace(record, "", found)
    if found:
        clean[NONFINITE] = found
    return json.dumps(clean, allow_nan=False, indent=indent)


def loads(text: str) -> Any:
    """What `dumps` was given; other JSON is read as it is. Raises ValueError where the text is not strict JSON."""
    record = json.loads(text, parse_constant=_refuse)
    if isinstance(record, dict):
        for pointer, value in record.pop(NONFINITE, {}).items():
            _put(record, pointer, float(value))
    return record


def _replace(node: Any, pointer: str, found: dict[str, str]) -> Any:
    if isinstance(node, float) and not math.isfinite(node):
        found[pointer] = repr(float(node))
        return None
    if isinstance(node, dict):
        return {key: _replace(value, f"{pointer}/{_escape(str(key))}", found) for key, value in node.items()}
    if isinstance(node, (list, tuple)):
        return [_replace(value, f"{pointer}/{index}", found) for index, value in enumerate(node)]
    return node


def _put(record: Any, pointer: str, value: float) -> None:
    *parents, last = (part.replace("~1", "/").replace("~0", "~") for part in pointer.split("/")[1:])
    node = record
    for part in parents:
        node = node[int(part) if isinstance(node, list) else part]
    node[int(last) if isinstance(node, list) else last] = value


def _escape(key: str) -> str:
    return key.replace("~", "~0").replace("/", "~1")


def _refuse(constant: str) -> None:
    raise ValueError(f"{constant} is not JSON")
