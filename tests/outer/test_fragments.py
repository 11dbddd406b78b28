"""Fragments: every trained tensor in exactly one, for models of all kinds and wrappings.

pytest tests/outer/test_fragments.py
"""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from dataclasses import FrozenInstanceError, dataclass
from pathlib import Path

import pytest
import torch
import torch.distributed as dist
from torch import Tensor, nn

from diloco.errors import BadInput
from diloco.outer.fragments import (
    Balanced,
    Fragmentation,
    Named,
    Sequential,
    Strided,
    Whole,
    as_fragmentation,
    describe,
    find_blocks,
    fragment_names,
)
from diloco.outer.tensors import roster
from diloco.train.model import build_model
from diloco.train.sizes import get_size


def own_model(size: str = "1m", tied: bool = True) -> nn.Module:
    return build_model(get_size(size), 32, 16, seed=0, tied=tied, device="meta")


def llama(layers: int = 4, tied: bool = True) -> nn.Module:
    transformers = pytest.importorskip("transformers")
    config = transformers.LlamaConfig(
        vocab_size=32, hidden_size=16, intermediate_size=24, num_hidden_layers=layers, num_attention_heads=2,
        num_key_value_heads=1, max_position_embeddings=16, tie_word_embeddings=tied,
    )  # fmt: skip
    return transformers.AutoModelForCausalLM.from_config(config)


def split(fragmentation: object, model: nn.Module) -> list[list[str]]:
    """The groups, after a check of its own that they are a partition."""
    trained = roster(model).trained
    groups = as_fragmentation(fragmentation).split(model, trained)
    assert sorted(name for group in groups for name in group) == list(trained)
    assert all(groups) and all(group == sorted(group) for group in groups)
    return groups


def blocks_in(groups: list[list[str]], prefix: str) -> list[list[int]]:
    """The block numbers of each group."""
    return [sorted({int(n.removeprefix(prefix).split(".")[0]) for n in g if n.startswith(prefix)}) for g in groups]


class Layers(nn.Module):
    """`count` blocks of one matrix between an embedding and a norm."""

    def __init__(self, count: int) -> None:
        super().__init__()
        self.embed = nn.Embedding(5, 3)
        self.layers = nn.ModuleList(nn.Linear(3, 3) for _ in range(count))
        self.norm = nn.LayerNorm(3)


# -- by block


@pytest.mark.parametrize(
    ("layers", "blocks", "sequential", "strided"),
    [
        (4, 3, [[0, 1, 2], [3]], [[0, 2], [1, 3]]),
        (6, 3, [[0, 1, 2], [3, 4, 5]], [[0, 2, 4], [1, 3, 5]]),
        (7, 3, [[0, 1, 2], [3, 4, 5], [6]], [[0, 3, 6], [1, 4], [2, 5]]),
        (2, 3, [[0, 1]], [[0, 1]]),
        (3, 1, [[0], [1], [2]], [[0], [1], [2]]),
    ],
)
def test_blocks_as_in_the_paper_report_129(
    layers: int, blocks: int, sequential: list[list[int]], strided: list[list[int]]
) -> None:
    """P = ceil(L / blocks); the layers need not divide by it."""
    model = Layers(layers)
    for fragmentation, expected in ((Sequential(blocks), sequential), (Strided(blocks), strided)):
        groups = split(fragmentation, model)
        assert blocks_in(groups, "layers.") == expected
        assert "embed.weight" in groups[0] and {"norm.weight", "norm.bias"} <= set(groups[-1])


@pytest.mark.parametrize("size", ["30k", "1m"])
@pytest.mark.parametrize("tied", [True, False])
def test_own_model(size: str, tied: bool) -> None:
    model = own_model(size, tied)
    for fragmentation in (Sequential(2), Strided(2)):
        groups = split(fragmentation, model)
        assert len(groups) == -(-get_size(size).layers // 2)
        assert "embed.weight" in groups[0] and "norm.weight" in groups[-1]
        assert tied or "head.weight" in groups[-1]


@pytest.mark.parametrize("tied", [True, False])
def test_hugging_face_llama(tied: bool) -> None:
    groups = split("strided:2", llama(tied=tied))
    assert blocks_in(groups, "model.layers.") == [[0, 2], [1, 3]]
    assert "model.embed_tokens.weight" in groups[0] and "model.norm.weight" in groups[1]
    assert ("lm_head.weight" in groups[1]) is not tied, "a tied head is the embedding, and counts once"


def test_plain_sequential_and_layers_without_parameters() -> None:
    model = nn.Sequential(nn.Linear(2, 3), nn.ReLU(), nn.Linear(3, 3), nn.ReLU(), nn.Linear(3, 1))
    assert split("sequential:2", model) == [["0.bias", "0.weight", "2.bias", "2.weight"], ["4.bias", "4.weight"]]


def test_experts_are_part_of_their_block() -> None:
    """The longest list is not the model's trunk where every block has one like it."""
    model = Layers(3)
    for layer in model.layers:
        layer.experts = nn.ModuleList(nn.Linear(2, 2) for _ in range(8))
    assert blocks_in(split("sequential:1", model), "layers.") == [[0], [1], [2]]
    blocks = nn.Sequential(*(nn.Sequential(*(nn.Linear(2, 2) for _ in range(5))) for _ in range(3)))
    model = nn.Sequential(nn.Embedding(4, 2), blocks, nn.Linear(2, 4))
    groups = split("sequential:1", model)
    assert [sorted({n.split(".")[0] for n in g}) for g in groups] == [["0", "1"], ["1"], ["1", "2"]]


def test_frozen_blocks_do_not_count() -> None:
    model = Layers(6)
    model.layers[:4].requires_grad_(False)
    assert blocks_in(split("sequential:1", model), "layers.") == [[4], [5]]


def test_weights_tied_across_blocks_count_once() -> None:
    model = Layers(4)
    model.layers[3].weight = model.layers[1].weight
    model.layers[2].weight = model.embed.weight
    groups = split("sequential:2", model)
    assert "layers.1.weight" in groups[0] and "layers.3.weight" not in groups[1] and "layers.3.bias" in groups[1]
    model.layers[3].bias = model.layers[1].bias  # nothing of its own is left
    assert blocks_in(split("sequential:1", model), "layers.") == [[0], [1], [2]]


def test_a_model_without_blocks_is_offered_balanced() -> None:
    class Flat(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.a, self.b = nn.Linear(2, 2), nn.Linear(2, 2, bias=False)

    assert find_blocks(Flat(), roster(Flat()).trained) == []
    for spec in ("sequential:3", "strided:3"):
        with pytest.raises(BadInput, match=f"fragments are {spec} but the model has no blocks.*use balanced:3"):
            split(spec, Flat())
    assert len(split("balanced:3", Flat())) == 3


# -- wrappers


@pytest.fixture
def process_group() -> Iterator[None]:
    with tempfile.TemporaryDirectory() as folder:
        store = dist.FileStore(str(Path(folder) / "store"), 1)
        dist.init_process_group("gloo", store=store, rank=0, world_size=1)
        yield
        dist.destroy_process_group()


@pytest.mark.parametrize("spec", ["whole", "sequential:2", "strided:2", "balanced:3"])
def test_wrapped_models_split_alike_report_37(process_group: None, spec: str) -> None:
    """torch.compile and DistributedDataParallel put prefixes into names; two replicas may be wrapped differently."""
    plain = split(spec, Layers(5))
    compiled_blocks = Layers(5)
    for index, layer in enumerate(compiled_blocks.layers):
        compiled_blocks.layers[index] = torch.compile(layer)
    wrapped = [
        torch.compile(Layers(5)),
        nn.parallel.DistributedDataParallel(Layers(5)),
        nn.parallel.DistributedDataParallel(torch.compile(Layers(5))),
        compiled_blocks,
    ]
    assert all(split(spec, model) == plain for model in wrapped)


# -- balanced


def test_balanced_packs_the_largest_first() -> None:
    trained = {n: torch.empty(k) for n, k in (("a", 7), ("b", 6), ("c", 5), ("d", 4), ("e", 2), ("f", 1))}
    groups = Balanced(3).split(nn.Module(), trained)
    assert groups == [["a", "f"], ["b", "e"], ["c", "d"]]


def test_balanced_counts_bytes_and_breaks_ties_by_name() -> None:
    trained = {"a": torch.empty(6, dtype=torch.bfloat16), "b": torch.empty(4), "c": torch.empty(4), "d": torch.empty(0)}
    assert Balanced(2).split(nn.Module(), trained) == [["a", "b"], ["c", "d"]]
    shuffled = dict(reversed(trained.items()))
    assert Balanced(2).split(nn.Module(), shuffled) == Balanced(2).split(nn.Module(), trained)
    assert all(Balanced(4).split(nn.Module(), {n: torch.empty(0) for n in "abcd"})), "no group is empty"


def test_balanced_is_balanced() -> None:
    trained = roster(own_model()).trained
    loads = [sum(trained[n].nbytes for n in group) for group in split("balanced:4", own_model())]
    assert max(loads) < 1.02 * sum(loads) / 4


def test_more_fragments_than_tensors() -> None:
    with pytest.raises(BadInput, match="fragments are balanced:99 but .* has 8 trained tensors: .* balanced:8"):
        split("balanced:99", nn.Sequential(*(nn.Linear(1, 1) for _ in range(4))))


# -- named


def test_named_by_name_module_and_glob() -> None:
    groups = split([["embed.weight", "layers.0"], ["layers.[12].*"], ["*"]], Layers(4))
    assert groups[0] == ["embed.weight", "layers.0.bias", "layers.0.weight"]
    assert groups[1] == ["layers.1.bias", "layers.1.weight", "layers.2.bias", "layers.2.weight"]
    assert groups[2] == ["layers.3.bias", "layers.3.weight", "norm.bias", "norm.weight"]


def test_a_module_name_is_not_a_string_prefix() -> None:
    groups = split([["layers.1"], ["*"]], Layers(12))
    assert groups[0] == ["layers.1.bias", "layers.1.weight"], "not layers.10 and layers.11"


def test_the_rest_may_stand_anywhere_and_a_tensor_may_be_named_twice_in_one_group() -> None:
    groups = split([["*"], ["norm.weight", "norm.*", "norm"]], Layers(1))
    assert groups == [["embed.weight", "layers.0.bias", "layers.0.weight"], ["norm.bias", "norm.weight"]]


@pytest.mark.parametrize(
    ("lists", "message"),
    [
        ([["layer.0"], ["*"]], "'layer.0', which matches no trained tensor: the nearest are 'layers.0'"),
        ([["h.*.attn"], ["*"]], "matches no trained tensor"),
        ([["layers.*"], ["layers.1.weight"], ["*"]], "fragments 0 and 1 both name 'layers.1.weight'"),
        ([["norm"], ["embed"]], r"name 3 of 7 .*'layers.0.bias', 'layers.0.weight', 'layers.1.bias' and 1 more: "
         r"add a last group \['\*'\]"),
        ([["norm"], ["embed"], ["layers"], ["*"]], "fragment 3 takes the rest .* nothing is left"),
    ],
)  # fmt: skip
def test_names_that_do_not_fit_the_model(lists: list[list[str]], message: str) -> None:
    with pytest.raises(BadInput, match=message):
        split(lists, Layers(2))


# -- specs


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        (None, Whole()),
        ("whole", Whole()),
        (" Strided:2 ", Strided(2)),
        ("sequential", Sequential(3)),
        ("balanced:7", Balanced(7)),
        (Strided(5), Strided(5)),
        ([["a"], ("b", "*")], Named((("a",), ("b", "*")))),
    ],
)
def test_as_fragmentation(value: object, expected: Fragmentation) -> None:
    found = as_fragmentation(value)
    assert found == expected and hash(found) == hash(expected)
    assert "\n" not in describe(found) and as_fragmentation(found) is found
    assert isinstance(found, Named) or as_fragmentation(describe(found)) == found
    with pytest.raises(FrozenInstanceError):
        found.blocks = 1


@pytest.mark.parametrize(
    ("value", "message"),
    [
        ("stride:2", "fragments are 'stride:2': did you mean 'strided:3'?"),
        ("hole", "did you mean 'whole'?"),
        ("strided:x", "give one of whole, sequential:3, strided:3, balanced:4"),
        ("whole:2", "did you mean 'whole'?"),
        ("strided:0", "blocks=0: it must be a whole number of at least 1"),
        ("balanced:0", "count=0"),
        ("", "fragments are '': give one of"),
        (3, "fragments are 3: give one of"),
        (Strided, "give one of"),
        ([], "none of them empty"),
        (["a", "b"], "a list of lists of names"),
        ([["a"], []], "none of them empty"),
        ([["a", 3]], "every name must be a string"),
        ([["*"], ["*"]], "name '*' 2 times"),
    ],
)
def test_bad_values_are_refused_with_the_way_out(value: object, message: str) -> None:
    with pytest.raises(BadInput) as refusal:
        as_fragmentation(value)
    assert message in str(refusal.value)


@pytest.mark.parametrize("value", [0, -1, 2.0, True, "3"])
@pytest.mark.parametrize("kind", [Sequential, Strided, Balanced])
def test_counts_are_whole_numbers(kind: type, value: object) -> None:
    with pytest.raises(BadInput, match="whole number of at least 1"):
        kind(value)


def test_descriptions_differ_when_the_fragments_do() -> None:
    values = [None, "strided:3", "strided:2", "sequential:3", "balanced:3", [["a", "b"]], [["a"], ["b"]], [["a, b"]]]
    descriptions = [describe(as_fragmentation(value)) for value in values]
    assert len(set(descriptions)) == len(values) and describe(Named([["a\nb"]])) == 'named:[["a\\nb"]]'


# -- a fragmentation of one's own


@dataclass(frozen=True)
class Halves:
    """Alternate names; `lose` drops the last."""

    lose: bool = False

    def split(self, model: nn.Module, trained: dict[str, Tensor]) -> list[list[str]]:
        names = list(trained)[: len(trained) - self.lose]
        return [names[::2], names[1::2]]


def test_own_fragmentation() -> None:
    model = Layers(2)
    trained = roster(model).trained
    own = as_fragmentation(Halves())
    assert describe(own) == "Halves(lose=False)" and sum(map(len, fragment_names(own, model, trained))) == 7
    with pytest.raises(BadInput, match=r"Halves\(lose=True\), whose split leaves 'norm.weight' not in exactly one"):
        fragment_names(Halves(lose=True), model, trained)

    class Anonymous:
        def split(self, model: nn.Module, trained: dict[str, Tensor]) -> list[list[str]]:
            return [list(trained), []]

    with pytest.raises(BadInput, match="Anonymous without a repr"):
        as_fragmentation(Anonymous())
    with pytest.raises(BadInput, match="an empty group"):
        fragment_names(Anonymous(), model, trained)
