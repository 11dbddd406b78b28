"""Methods are read from the names that tables and people give them, and a word that is not understood is refused.

OMP_NUM_THREADS=1 pytest tests/plan/test_method_names.py
"""

from __future__ import annotations

import itertools
import re

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from diloco.errors import BadInput
from diloco.plan.graph import Method
from diloco.plan.method_names import UNDERSTOOD, paper_method

PLAIN, STREAMING = Method(100), Method(100, 3)
NAMES = {
    # the two tables'
    "Data-Parallel": Method(),
    "DiLoCo": PLAIN,
    "DiLoCo H=1": Method(1),
    "DiLoCo H=300": Method(300),
    "Streaming DiLoCo": STREAMING,
    "Streaming overlapped": Method(100, 3, 1),
    "Streaming overlapped FP4": Method(100, 3, 1, 4.0),
    # the Eager Updates paper's
    "Streaming DiLoCo with 1-inner-step overlap": Method(100, 3, 1),
    "Streaming DiLoCo with 1-outer-step overlap": Method(100, 3, 100),
    "Streaming DiLoCo with 1-outer-step overlapped FP4 communication": Method(100, 3, 100, 4.0),
    "Streaming 1-outer-step (eager) overlap": Method(100, 3, 100),
    "Streaming 1-outer-eager": Method(100, 3, 100),
    "Streaming DiLoCo, 2 outer steps eager": Method(100, 3, 200),
    "Streaming DiLoCo with one outer step overlap": Method(100, 3, 100),
    "DiLoCo delayed H=30": Method(30, None, 30),
    "Eager": Method(100, 3, 100),
    "1-outer-step": Method(100, 3, 100),
    # H anywhere, with what follows it
    "Streaming DiLoCo H=30 with 1-inner-step overlap": Method(30, 3, 1),
    "Streaming DiLoCo H=30 FP4 overlapped": Method(30, 3, 1, 4.0),
    "H=30 Streaming DiLoCo overlapped": Method(30, 3, 1),
    "(H=30) Streaming DiLoCo, eager": Method(30, 3, 30),
    "DiLoCo (H=10)": Method(10),
    "DiLoCo H = 10": Method(10),
    "DiLoCo H 10": Method(10),
    "DiLoCo H10": Method(10),
    "DiLoCo, H: 10, BF16": Method(10),
    "DiLoCo H=1,000": Method(1000),
    "DiLoCo every 10 steps": Method(10),
    "DiLoCo sync_every=10": Method(10),
    "DiLoCo, every ten inner steps, overlapped": Method(10, None, 1),
    # overlap
    "Streaming DiLoCo without overlap": STREAMING,
    "Streaming DiLoCo (no overlap)": STREAMING,
    "Streaming DiLoCo w/o overlap": STREAMING,
    "Streaming DiLoCo non-overlapped, FP4": Method(100, 3, 0, 4.0),
    "Streaming DiLoCo overlap: none": STREAMING,
    "Streaming DiLoCo 0-step overlap": STREAMING,
    "Streaming DiLoCo 5-step overlap": Method(100, 3, 5),
    "Streaming DiLoCo overlap 5 steps": Method(100, 3, 5),
    "Streaming DiLoCo overlap of 5": Method(100, 3, 5),
    "Streaming DiLoCo overlap of 2 outer steps, H=30": Method(30, 3, 60),
    "Streaming DiLoCo tau=5": Method(100, 3, 5),
    "Streaming DiLoCo \u03c4 = 5": Method(100, 3, 5),
    "Streaming DiLoCo ($\\tau=5$, $H=30$)": Method(30, 3, 5),
    "Streaming DiLoCo with zero overlap": STREAMING,
    "DiLoCo delayed by 5 inner steps": Method(100, None, 5),
    # bits
    "Streaming DiLoCo 4-bit": Method(100, 3, 0, 4.0),
    "Streaming DiLoCo overlap 4 bits": Method(100, 3, 1, 4.0),
    "Streaming DiLoCo, quantized to 4 bits per parameter": Method(100, 3, 0, 4.0),
    "Streaming DiLoCo E3M0": Method(100, 3, 0, 4.0),
    "DiLoCo FP8 (E4M3)": Method(100, None, 0, 8.0),
    "DiLoCo int8": Method(100, None, 0, 8.0),
    "DiLoCo FP32": Method(100, None, 0, 32.0),
    "DiLoCo BF16": PLAIN,
    "DiLoCo, no quantization": PLAIN,
    "DiLoCo 1.58-bit": Method(100, None, 0, 1.58),
    "Data-Parallel FP8": Method(bits_per_param=8.0),
    # fragments
    "Streaming DiLoCo P=4": Method(100, fragments=4),
    "Streaming DiLoCo overlapped 4 fragments": Method(100, overlap_steps=1, fragments=4),
    "Streaming DiLoCo 1 layer per fragment": Method(100, 1),
    "Streaming DiLoCo, 2 layers/fragment": Method(100, 2),
    "Streaming DiLoCo 3-layer fragments": STREAMING,
    "Streaming DiLoCo, fragment size of 5 layers, sequential": Method(100, 5, strided=False),
    # the method itself
    "DataParallel": Method(),
    "data_parallel": Method(),
    "DP": Method(),
    "DDP": Method(),
    "Vanilla DiLoCo": PLAIN,
    "StreamingDiLoCo": STREAMING,
    "non-streaming DiLoCo": PLAIN,
    "Streaming DiLoCo* with overlapped comm. (ours)": Method(100, 3, 1),
    # replicas, of which the model knows nothing
    "DiLoCo M=2": PLAIN,
    "DiLoCo, M=2, H=30": Method(30),
    "DiLoCo (M=4)": PLAIN,
    "DiLoCo 2 replicas": PLAIN,
    "DiLoCo with 2 workers": PLAIN,
    "DiLoCo with 8 replicas": PLAIN,
    "DiLoCo (k=8 workers, H=30)": Method(30),
    "Data-Parallel, M=1": Method(),
    # eager and delayed, and neither
    "DiLoCo w/ eager outer update": Method(100, None, 100),
    "Eager updates for overlapped communication and computation in DiLoCo": Method(100, None, 100),
    "DiLoCo with zero-delay": PLAIN,
    "DiLoCo without delay": PLAIN,
    "DiLoCo, not delayed": PLAIN,
    "DiLoCo delayed by 0 steps": PLAIN,
    "non-eager DiLoCo": PLAIN,
    "DiLoCo without eager updates": PLAIN,
    "Streaming DiLoCo with 1-outer-step overlap, non-eager": Method(100, 3, 100),
    "Streaming DiLoCo overlapped, without eager updates": Method(100, 3, 1),
    "Non-eager Streaming DiLoCo, 5-inner-step overlap": Method(100, 3, 5),
    # mixing, footnotes, citations
    "Streaming DiLoCo \u03b1=0.5 \u03c4=1": Method(100, 3, 1),
    "Streaming DiLoCo ($\\alpha=0.5$, $\\tau=1$)": Method(100, 3, 1),
    "Streaming DiLoCo alpha=0.5": STREAMING,
    "Streaming DiLoCo mixing 0.5": STREAMING,
    "Streaming DiLoCo\u00b9": STREAMING,
    "DiLoCo*": PLAIN,
    "DiLoCo\u2020, FP4\u00a7": Method(100, None, 0, 4.0),
    "DiLoCo [12]": PLAIN,
    "DiLoCo [3, 12], H=30": Method(30),
    "DiLoCo (Douillard et al., 2023)": PLAIN,
    "DiLoCo (Douillard et al., 2023; Jaghouar et al. 2024b), H=30": Method(30),
    "Douillard et al. (2023) DiLoCo H=30": Method(30),
    "Streaming DiLoCo (ours)": STREAMING,
    # baselines, relatives, optimizers
    "Synchronous data parallel": Method(),
    "DDP (AllReduce)": Method(),
    "All-Reduce": Method(),
    "FSDP": Method(),
    "Data parallel w/ gradient compression 4-bit": Method(bits_per_param=4.0),
    "DiLoCo without compression": PLAIN,
    "DiLoCo all-reduce": PLAIN,
    "OpenDiLoCo": PLAIN,
    "Sync DiLoCo": PLAIN,
    "Local SGD": PLAIN,
    "Local SGD 4-bit": Method(100, None, 0, 4.0),
    "LocalSGD H=30": Method(30),
    "AdamW DiLoCo": PLAIN,
    "Muon DiLoCo": PLAIN,
    "DiLoCo Nesterov": PLAIN,
    "MuLoCo, H=30, 2-bit": Method(30, None, 0, 2.0),
    # inner steps that can be nothing but H
    "DiLoCo, 30 inner steps": Method(30),
    "DiLoCo without overlap, 30 inner steps": Method(30),
    "Local SGD, 500 local steps": Method(500),
    "DiLoCo-30": Method(30),
    "StreamingDiLoCo-30": Method(30, 3),
    "DiLoCo-30 FP4": Method(30, None, 0, 4.0),
    "DiLoCo-4-bit": Method(100, None, 0, 4.0),
    "DiLoCo-1-outer-step": Method(100, None, 100),
}


@pytest.mark.parametrize("name", NAMES)
def test_name_means(name) -> None:
    assert paper_method(name) == NAMES[name]


REFUSED = {
    "gossip": "'gossip' is not understood",
    "DiLoCo M=2, 4 replicas": "gives replicas as 2 and as 4",
    "DiLoCo K=8 M=4": "'k=8' is not understood",
    "DiLoCo with 8 GPUs": "'8' is not understood",
    "DiLoCo K=10": "'k=10' is not understood",
    "DiLoCo H=-10": "'h=-10' is not understood",
    "DiLoCo H=1.5": "'h=1.5' is not understood",
    "DiLoCo H=1e3": "'h=1e3' is not understood",
    "DiLoCo H=10 H=30": "gives H as 10 and as 30",
    "DiLoCo H=0": "sync_every is 0: give 1 or more",
    "DiLoCo 10-inner-step": "write H=10 or 10-inner-step overlap",
    "Streaming DiLoCo 10 inner steps": "write H=10 or 10-inner-step overlap",
    "DiLoCo, 30 inner steps, 1 outer step": "write H=30 or 30-inner-step overlap",
    "DiLoCo, 30 inner steps, H=10": "gives H as 10 and as 30",
    "DiLoCo-4": "'4' is not understood",
    "DiLoCo H=10\u00b2": "'^2' is not understood",
    "DiLoCo not eager or delayed": "'not' is not understood",
    "DiLoCo without eager and delayed updates": "'without' is not understood",
    "DiLoCo without eager overlap": "'without' is not understood",
    "DiLoCo no delay, delayed": "more than one overlap",
    "DiLoCo 8-bit AdamW": "bits beside an optimizer",
    "DiLoCo AdamW (8-bit)": "bits beside an optimizer",
    "DiLoCo uncompressed FP4": "not quantized and has 4 bits",
    "async DiLoCo": "'async' is not understood",
    "All-Reduce every 10 steps": "data parallelism has no H",
    "overlapped all-reduce": "data parallelism has no overlap",
    "AdamW": "names no method",
    "non-eager": "names no method",
    "Streaming DiLoCo overlap 0.5 steps": "'0.5' is not understood",
    "Streaming DiLoCo half overlap": "'half' is not understood",
    "Streaming DiLoCo overlap and no overlap": "more than one overlap",
    "Streaming DiLoCo 1 inner step or 1 outer step": "more than one overlap",
    "Streaming DiLoCo or DiLoCo": "'or' is not understood",
    "Streaming DiLoCo tau=5, tau=7": "more than one overlap",
    "Streaming DiLoCo without overlap and FP4": "'without' is not understood",
    "Streaming DiLoCo without FP4": "'without' is not understood",
    "Streaming DiLoCo no FP4 overlap": "'no' is not understood",
    "Streaming DiLoCo 5-step eager": "write 1 outer step eager",
    "DiLoCo delayed by 5 steps": "may be inner or outer ones",
    "DiLoCo one step delayed": "may be inner or outer ones",
    "unquantized DiLoCo FP4": "not quantized and has 4 bits",
    "DiLoCo FP4 BF16": "gives bits as 4 and as 16",
    "DiLoCo FP99": "at most 64",
    "DiLoCo quantized": "'quantized' is not understood",
    "Streaming DiLoCo P=4, 3-layer fragments": "leave one of them out",
    "non-streaming Streaming DiLoCo": "both streaming and not",
    "Streaming DiLoCo strided sequential": "both strided and consecutive",
    "Data-Parallel overlapped": "data parallelism has no overlap",
    "Data-Parallel H=10": "data parallelism has no H",
    "Data-Parallel DiLoCo": "both data parallel and DiLoCo",
    "FP4": "names no method",
    "H=30": "names no method",
    "": "names no method",
}


@pytest.mark.parametrize("name", REFUSED)
def test_name_is_refused_with_the_word(name) -> None:
    with pytest.raises(BadInput, match=re.escape(REFUSED[name])):
        paper_method(name)


PARTS = {
    "sync_every": [("", 100), ("H=30", 30), ("H = 30", 30), ("every 30 steps", 30), ("H30", 30)],
    "overlap": [("", 0), ("no overlap", 0), ("overlapped", 1), ("5-step overlap", 5), ("tau=5", 5), ("eager", None),
                ("1-outer-step overlap", None)],
    "bits": [("", 16), ("FP4", 4), ("8-bit", 8), ("E3M0", 4), ("int8", 8), ("BF16", 16)],
    "parts": [("", (3, None)), ("P=4", (None, 4)), ("2-layer fragments", (2, None)), ("6 fragments", (None, 6))],
}  # fmt: skip


@settings(max_examples=300, deadline=None)
@given(
    every=st.sampled_from(PARTS["sync_every"]),
    overlap=st.sampled_from(PARTS["overlap"]),
    bits=st.sampled_from(PARTS["bits"]),
    parts=st.sampled_from(PARTS["parts"]),
    order=st.sampled_from(list(itertools.permutations(range(5)))),
    join=st.sampled_from([", ", " (", "; ", " + ", " with "]),
)
def test_attributes_mean_the_same_in_any_order(every, overlap, bits, parts, order, join) -> None:
    words = ["Streaming DiLoCo", every[0], overlap[0], bits[0], parts[0]]
    found = paper_method(join.join(words[i] for i in order if words[i]))
    steps = every[1] if overlap[1] is None else overlap[1]
    assert found == Method(every[1], parts[1][0], steps, bits[1], fragments=parts[1][1])


@given(word=st.text("bcfgjklmnqrstvwxz", min_size=3, max_size=9), before=st.booleans())
def test_an_unknown_word_is_never_passed_over(word, before) -> None:
    with pytest.raises(BadInput, match=re.escape(f"{word!r} is not understood: write {UNDERSTOOD}")):
        paper_method(f"{word} DiLoCo H=30" if before else f"DiLoCo H=30 {word}")


def test_settings_serve_names_that_say_nothing() -> None:
    given = {"fragments": 5, "overlap_steps": 2, "bits_per_param": 8, "even_gaps": False, "strided": False}
    assert paper_method("Streaming DiLoCo", 50, **given) == Method(50, None, 2, 8, False, False, fragments=5)
    named = paper_method("Streaming DiLoCo H=30 no overlap FP4 P=4", 50, **given)
    assert named == Method(30, None, 0, 4, False, False, fragments=4)
    assert paper_method("DiLoCo", 50, **given) == Method(50, None, 2, 8, False, False)
    assert paper_method("Data-Parallel", 50, **given) == Method(bits_per_param=8)
    with pytest.raises(BadInput, match="tau is no setting of a method: give one of sync_every"):
        paper_method("DiLoCo", tau=5)
