"""What coding an outer gradient costs: seconds to encode and to decode, beside plain torch doing the like.

    python benchmarks/codec.py [--megabytes 100] [--repeats 7] [--codecs int8,e3m0] [--out codec.json]

One thread. The cases take turns, so that a busy machine slows all of them alike; medians over the repeats. GB/s are of
fp32 input, encode and decode together; bytes are the payload's share of fp32's.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
import warnings
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from diloco.outer.codec import Key, get_codec

CODECS = "fp32,bf16,fp16,int8,int4,e3m0,topk:0.01,topk:0.01:2,randk:0.01"
ROW = 256


@dataclass
class Case:
    """Encode leaves what decode reads; `nbytes` is what would travel."""

    encode: Callable[[], object]
    decode: Callable[[object], object]
    nbytes: int


def codec_case(spec: str, values: Tensor) -> Case:
    codec, key, out = get_codec(spec), Key(seed=1, first=0), torch.empty_like(values)
    payload = torch.empty(codec.nbytes(values.numel()), dtype=torch.uint8)
    return Case(lambda: codec.encode(values, payload, key), lambda _: codec.decode(payload, out, key), len(payload))


def torch_cases(values: Tensor) -> dict[str, Case]:
    """The like in a few lines, and torch's own quantisers, which look for no scale by themselves.

    All but the first return new tensors, and pay for their memory each time.
    """
    n, rows = values.numel(), values.view(-1, ROW)
    zeros = torch.zeros(len(rows), dtype=torch.int64)
    half, back = torch.empty(n, dtype=torch.bfloat16), torch.empty(n)

    def absmax_int8() -> tuple[Tensor, Tensor]:
        scale = rows.abs().amax(1, keepdim=True).clamp_min(1e-30) / 127
        return (rows / scale).round().to(torch.int8), scale

    def per_tensor() -> Tensor:
        return torch.quantize_per_tensor(values, values.abs().max().item() / 127, 0, torch.qint8)

    def per_channel() -> Tensor:
        return torch.quantize_per_channel(rows, rows.abs().amax(1) / 127, zeros, 0, torch.qint8)

    def top_k() -> tuple[Tensor, Tensor]:
        indices = values.abs().topk(n // 100).indices
        return indices.int(), values[indices]

    return {
        "torch: copy to kept bfloat16": Case(lambda: half.copy_(values), lambda _: back.copy_(half), 2 * n),
        "torch: .to(bfloat16)": Case(lambda: values.to(torch.bfloat16), lambda sent: sent.float(), 2 * n),
        "torch: absmax int8": Case(absmax_int8, lambda sent: sent[0].float() * sent[1], n + 4 * len(rows)),
        "torch: quantize_per_tensor": Case(per_tensor, lambda sent: sent.dequantize(), n + 4),
        "torch: quantize_per_channel": Case(per_channel, lambda sent: sent.dequantize(), n + 4 * len(rows)),
        "torch: topk of all, 1%": Case(
            top_k, lambda sent: torch.zeros(n).index_put_((sent[0].long(),), sent[1]), 8 * (n // 100)
        ),
    }


def measure(cases: dict[str, Case], numel: int, repeats: int) -> dict[str, dict]:
    seconds: dict[str, list[tuple[float, float]]] = {name: [] for name in cases}
    for _ in range(repeats + 1):
        for name, case in cases.items():
            start = time.perf_counter()
            sent = case.encode()
            middle = time.perf_counter()
            case.decode(sent)
            seconds[name].append((middle - start, time.perf_counter() - middle))
    results = {}
    for name, pairs in seconds.items():
        encode_s, decode_s = (statistics.median(column) for column in zip(*pairs[1:], strict=True))
        share, gb = cases[name].nbytes / (4 * numel), 4 * numel / 1e9
        results[name] = {
            "encode_s": encode_s,
            "decode_s": decode_s,
            "gb_per_s": gb / (encode_s + decode_s),
            "gb_per_s_best": gb / min(e + d for e, d in pairs[1:]),
            "bytes_share": share,
        }
    return results


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--megabytes", type=float, default=100, help="fp32 input, in 1e6 bytes")
    parser.add_argument("--repeats", type=int, default=7, help="timed repeats of every case, after one that is not")
    parser.add_argument("--codecs", default=CODECS, help="specs, with commas between")
    parser.add_argument("--out", default="", help="JSON file for the result")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    # torch has announced the end of its quantisers; they are what people have, and so what to compare with.
    warnings.filterwarnings("ignore", message="torch.quantize_per")
    numel = max(round(arguments.megabytes * 1e6 / 4 / ROW), 1) * ROW
    values = torch.randn(numel, generator=torch.Generator().manual_seed(0)) * 1e-3
    cases = {spec: codec_case(spec, values) for spec in arguments.codecs.split(",")} | torch_cases(values)
    results = measure(cases, numel, arguments.repeats)
    print(f"{'':30}{'encode ms':>11}{'decode ms':>11}{'GB/s':>8}{'best':>8}{'bytes':>9}")
    for name, r in results.items():
        print(
            f"{name:30}{r['encode_s'] * 1e3:11.1f}{r['decode_s'] * 1e3:11.1f}{r['gb_per_s']:8.2f}"
            f"{r['gb_per_s_best']:8.2f}{r['bytes_share']:9.4f}"
        )
    if arguments.out:
        with open(arguments.out, "w") as file:
            json.dump({"fp32_bytes": 4 * numel, "threads": 1, "torch": torch.__version__, **results}, file, indent=1)


if __name__ == "__main__":
    main()
