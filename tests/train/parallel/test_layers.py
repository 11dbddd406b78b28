"""What is done to the layers of a model on one device.

pytest tests/train/parallel/test_layers.py
"""

from __future__ import annotations

import copy
import functools

import pytest
import torch
from support.parallel import CPU, ours
from torch import nn

from diloco.errors import BadInput
from diloco.train.parallel.build import build_engine
from diloco.train.parallel.layers import Options

TOKENS_BT = torch.arange(24).view(2, 12)


def losses_and_gradients(options: Options) -> tuple[float, list[torch.Tensor]]:
    engine = build_engine(ours(), None, CPU, options)
    nll = engine.forward_backward(TOKENS_BT)
    return nll.item(), [p.grad for p in engine.model.parameters()]


def test_activation_checkpointing_changes_no_bit_and_no_name() -> None:
    plain, checked = (losses_and_gradients(Options(activation_checkpointing=on)) for on in (False, True))
    assert plain[0] == checked[0] and all(map(torch.equal, plain[1], checked[1]))
    engine = build_engine(ours(), None, CPU, Options(activation_checkpointing=True))
    assert [n for n, _ in engine.model.named_parameters()] == [n for n, _ in ours().named_parameters()]


def test_activation_checkpointing_computes_each_layer_twice() -> None:
    calls = {False: 0, True: 0}
    for on in calls:
        model = ours()

        def count(*_: object, on: bool = on) -> None:
            calls[on] += 1

        model.blocks[1].ffn.up.register_forward_hook(count)
        build_engine(model, None, CPU, Options(activation_checkpointing=on)).forward_backward(TOKENS_BT)
    assert calls == {False: 1, True: 2}


@pytest.mark.parametrize("checkpointing", [False, True])
def test_every_layer_is_compiled_checkpointed_or_not(monkeypatch: pytest.MonkeyPatch, checkpointing: bool) -> None:
    graphs = []

    def backend(graph: torch.fx.GraphModule, inputs: list) -> torch.fx.GraphModule:
        graphs.append(graph)
        return graph

    torch._dynamo.reset()
    monkeypatch.setattr(torch, "compile", functools.partial(torch.compile, backend=backend))
    found = losses_and_gradients(Options(activation_checkpointing=checkpointing, compile=True))
    assert len(graphs) == 1  # the layers are alike
    assert found[0] == pytest.approx(losses_and_gradients(Options())[0], rel=1e-6)


def test_a_model_without_layers_is_refused() -> None:
    with pytest.raises(BadInput, match="Linear has no nn.ModuleList of them: leave them out"):
        build_engine(nn.Linear(2, 2), None, CPU, Options(compile=True))


def test_offload_needs_shards() -> None:
    with pytest.raises(BadInput, match="cpu_offload is on, which only fsdp can do"):
        build_engine(ours(), None, CPU, Options(cpu_offload=True))


def test_gains_in_bf16_are_widened_not_what_they_multiply() -> None:
    """FSDP gathers a layer's gains in bf16 while the residual stream stays fp32."""
    model = ours()
    rounded = copy.deepcopy(model)
    for block in (*model.blocks, *rounded.blocks):
        block.attention_norm.weight.data = block.attention_norm.weight.data.mul(1.1).bfloat16()
    for block in rounded.blocks:
        block.attention_norm.weight.data = block.attention_norm.weight.data.float()
    assert torch.equal(model(TOKENS_BT), rounded(TOKENS_BT))
