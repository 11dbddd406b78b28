"""`DiLoCo` over a `transformers` model in one's own loop: saved through `diloco.checkpoint`, it resumes to the bit.

pytest tests/sync/test_transformers.py
"""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from support.replicas import Fleet, restored, trees_of

from diloco import checkpoint

VOCAB, REPLICAS, STEPS = 61, 2, 13
WAYS = {
    "plain": {"sync_every": 4},
    "streaming": {"sync_every": 5, "fragments": "strided:2", "overlap": 2, "codec": "e3m0"},
}
"""The second has a round under way after steps 6 and 10, and kept-back errors."""


pytestmark = pytest.mark.slow


def llama(replica: int, tied: bool, seed: int = 0) -> Any:
    transformers = pytest.importorskip("transformers")
    torch.manual_seed(seed)
    config = transformers.LlamaConfig(
        vocab_size=VOCAB, hidden_size=24, intermediate_size=40, num_hidden_layers=2, num_attention_heads=2,
        num_key_value_heads=1, max_position_embeddings=16, tie_word_embeddings=tied,
    )  # fmt: skip
    return transformers.AutoModelForCausalLM.from_config(config)


class Loop(Fleet):
    """The user's: next-token loss on tokens that depend on replica and step."""

    def run(self, steps: int) -> list[list[float]]:
        losses = []
        for _ in range(steps):
            row = []
            for m, (model, optimizer) in enumerate(zip(self.models, self.optimizers, strict=True)):
                generator = torch.Generator().manual_seed(1000 * m + self.step)
                tokens_BT = torch.randint(0, VOCAB, (2, 12), generator=generator)
                loss = model(input_ids=tokens_BT, labels=tokens_BT).loss
                loss.backward()
                optimizer.step()
                optimizer.zero_grad()
                row.append(loss.item())
            losses.append(row)
            self.step += 1
        return losses


def save(folder: Path, loop: Loop) -> None:
    checkpoint.save(folder, loop.step, {f"replica-{m}": tree for m, tree in enumerate(trees_of(loop))}, meta={})


def load(folder: Path, loop: Loop) -> Loop:
    path, skipped = checkpoint.latest_whole(folder)
    trees, _ = checkpoint.load(path)
    assert not skipped
    return restored(loop, [trees[f"replica-{m}"] for m in range(REPLICAS)], checkpoint.step_of(path))


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("tied", [True, False], ids=["tied", "untied"])
@pytest.mark.parametrize("stops", [[8], [6], [3, 10]], ids=str)
def test_saved_and_resumed_equals_never_stopping_report_21_22_47(
    tmp_path: Path, way: str, tied: bool, stops: list[int]
) -> None:
    """At a sync (8, where H is 4), inside a window, and twice. What resumes is built from another seed."""
    make = partial(Loop, REPLICAS, lr=0.01, **WAYS[way])
    whole = make(build=partial(llama, tied=tied))
    expected = whole.run(STEPS)
    loop, losses = make(build=partial(llama, tied=tied)), []
    for stop in stops:
        losses += loop.run(stop - loop.step)
        save(tmp_path, loop)
        loop = load(tmp_path, make(build=partial(llama, tied=tied, seed=99)))
    losses += loop.run(STEPS - loop.step)
    whole.finish()
    loop.finish()
    assert losses == expected and losses[-1] != losses[0]
    for ours, theirs in zip(whole.models, loop.models, strict=True):
        state = theirs.state_dict()
        assert all(torch.equal(value, state[name]) for name, value in ours.state_dict().items())
        head, embedding = theirs.get_output_embeddings().weight, theirs.get_input_embeddings().weight
        assert (head.data_ptr() == embedding.data_ptr()) is tied
    assert whole.syncs[0].checksum() == loop.syncs[0].checksum()
    assert [r.checksum for r in whole.syncs[0].rounds] == [r.checksum for r in loop.syncs[0].rounds]


@pytest.mark.parametrize("tied", [True, False], ids=["tied", "untied"])
def test_the_anchor_in_mid_window_is_what_transformers_loads(tmp_path: Path, tied: bool) -> None:
    """The global weights, by the model's own parameter names, written by the model itself."""
    loop = Loop(REPLICAS, build=partial(llama, tied=tied), lr=0.01, sync_every=4)
    loop.run(6)
    model, anchor = loop.models[0], loop.syncs[0].anchor()
    assert anchor.keys() == dict(model.named_parameters()).keys()
    model.save_pretrained(tmp_path / "local")
    model.load_state_dict(anchor, strict=not tied)
    model.save_pretrained(tmp_path / "global")
    auto = pytest.importorskip("transformers").AutoModelForCausalLM
    local, shared = (auto.from_pretrained(tmp_path / name).state_dict() for name in ("local", "global"))
    assert all(torch.equal(shared[name], value) for name, value in anchor.items())
    assert not any(torch.equal(local[name], value) for name, value in anchor.items() if value.dim() > 1)
