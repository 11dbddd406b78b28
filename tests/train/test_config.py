"""The options of a run: to plain data and back, refused where they cannot work, warned of where they do nothing.

pytest tests/train/test_config.py
"""

from __future__ import annotations

import ast
import dataclasses
import inspect
import json
import math
import re
from itertools import product
from typing import Any

import pytest

from diloco.errors import BadInput
from diloco.outer import optimizers, rates
from diloco.train.config import OuterConfig, TrainConfig, config_hash, from_dict, to_dict
from diloco.train.data.config import DataConfig
from diloco.train.inner import InnerConfig

# A valid value other than the default, for every option there is.
OTHER: dict[str, Any] = {
    "method": "local-sgd", "size": "30k", "hf": "some/model", "replicas": 2, "sync_every": 7, "merge": "tokens",
    "interval": "adaptive:10-200", "fragments": "strided:2", "overlap": "5", "mixing": "0.5", "codec": "e3m0",
    "sites": 2, "site_every": 5, "link": "100mbit,25ms",
    "mesh": "fsdp=2", "activation_checkpointing": True, "compile": True, "microbatches": 4,
    "pipeline_schedule": "gpipe", "cpu_offload": True,
    "batch_tokens": 2048, "tokens": 5000, "steps": 9, "seed": 1, "precision": "bf16", "z_loss": 0.5, "eval_every": 3,
    "eval_sequences": 5, "checkpoint_every": 2, "keep": 1, "stop_at": 4, "device": "cpu", "anchor_device": "cpu",
    "checkpoint_to": "memory://there", "checkpoint_kind": "lossy", "full_every": 4, "checkpoint_background": False,
    "keep_every": 5, "keep_best": 2,
    "threads": 2, "runs": "elsewhere", "name": "given", "resume": True,
    "inner.optimizer": "muon", "inner.lr": 0.5, "inner.beta1": 0.5, "inner.beta2": 0.5, "inner.eps": 1e-3,
    "inner.weight_decay": 0.25, "inner.warmup_steps": 2, "inner.min_lr_ratio": 0.5, "inner.clip": 0.5,
    "outer.optimizer": "adam", "outer.lr": 0.125, "outer.momentum": 0.125, "outer.schedule": "linear",
    "outer.floor": 0.5, "outer.clip": 0.5,
    "data.sources": ("a.txt", "b.txt=2"), "data.tokenizer": "bpe:300", "data.seq_len": 32, "data.heldout": 0.25,
    "data.max_tokens": 1000, "data.text_field": "body", "data.seed": 1, "data.shards": "contiguous",
    "data.overlap": 0.25, "data.cache_dir": "/elsewhere",
}  # fmt: skip
CLASSES = {"": TrainConfig, "inner.": InnerConfig, "outer.": OuterConfig, "data.": DataConfig}


def options() -> list[str]:
    return [
        prefix + field.name
        for prefix, kind in CLASSES.items()
        for field in dataclasses.fields(kind)
        if f"{field.name}." not in CLASSES
    ]


def nested(name: str, value: Any) -> dict:
    group, _, key = name.rpartition(".")
    return {group: {key: value}} if group else {key: value}


# What an option needs beside it to have an effect.
BESIDE: dict[str, dict] = {
    "mixing": {"overlap": "5"},
    "site_every": {"sites": 2},
    "microbatches": {"mesh": "pp=2"},
    "pipeline_schedule": {"mesh": "pp=2"},
}


def changed(name: str, **others: Any) -> TrainConfig:
    return from_dict({**others, **nested(name, OTHER[name])})


def test_every_option_is_tried_here() -> None:
    """A new option belongs into OTHER, and so into the tests below."""
    assert set(options()) == set(OTHER)


@pytest.mark.parametrize("name", OTHER)
def test_each_option_round_trips_and_changes_the_hash(name: str) -> None:
    config = changed(name)
    assert config != TrainConfig() and config_hash(config) != config_hash(TrainConfig())
    plain = to_dict(config)
    assert json.loads(json.dumps(plain)) == plain
    assert from_dict(plain) == config and config_hash(from_dict(plain)) == config_hash(config)


def test_hashes_are_all_different_and_stable() -> None:
    assert len({config_hash(changed(name)) for name in OTHER}) == len(OTHER)
    assert config_hash(TrainConfig()) == config_hash(TrainConfig()) and len(config_hash(TrainConfig())) == 16


def test_given_values_go_over_the_base() -> None:
    base = from_dict({"steps": 9, "inner": {"lr": 0.5}})
    config = from_dict({"inner": {"clip": 2}, "data": {"sources": ["a.txt"]}}, base)
    assert (config.steps, config.inner.lr, config.inner.clip, config.data.sources) == (9, 0.5, 2.0, ("a.txt",))
    assert isinstance(config.inner.clip, float) and base.inner.clip == 1.0
    assert config.data.seq_len == TrainConfig().data.seq_len
    assert from_dict({}) == TrainConfig() and from_dict({"outer": {"clip": None}}).outer.clip is None


@pytest.mark.parametrize("prefix, kind", CLASSES.items())
def test_every_option_is_documented(prefix: str, kind: type) -> None:
    """A docstring right below each field, which the command line shows as its help."""
    body = ast.parse(inspect.getsource(kind)).body[0].body
    for field, below in zip(body, body[1:], strict=False):
        if isinstance(field, ast.AnnAssign):
            documented = isinstance(below, ast.Expr) and isinstance(below.value, ast.Constant)
            assert documented and len(below.value.value) > 10, prefix + ast.unparse(field.target)


@pytest.mark.parametrize(
    "values, message",
    [
        ({"sync_evry": 5}, "unknown setting sync_evry: did you mean sync_every?"),
        ({"inner": {"lrr": 5}}, "unknown setting inner.lrr: did you mean inner.lr?"),
        ({"zzz": 5}, "unknown setting zzz: known are replicas, sync_every"),
        ({"inner": 5}, "inner is 5: it is a table of settings"),
        ({"steps": "9"}, "steps is '9': give a value of type int"),
        ({"steps": 9.0}, "steps is 9.0: give a value of type int"),
        ({"steps": True}, "steps is True: give a value of type int"),
        ({"resume": 1}, "resume is 1: give a value of type bool"),
        ({"size": 30}, "size is 30: give a value of type str"),
        ({"z_loss": "small"}, "z_loss is 'small': give a value of type float"),
        ({"outer": {"clip": "x"}}, "outer.clip is 'x': give a value of type float"),
        ({"data": {"sources": "stdlib"}}, "data.sources is 'stdlib': give a value of type tuple"),
        ({"data": {"sources": [1]}}, r"data.sources is 1: give a value of type str"),
        ({"method": "fedavg"}, "method is fedavg: give one of diloco, dp, local-sgd"),
        ({"method": ["dp"]}, "method is .'dp'.: give one of"),
        ({"merge": "median"}, "merge is 'median': did you mean 'mean'. give one of mean, tokens, trimmed"),
        ({"merge": "trimmed:0.6"}, "merge is 'trimmed:0.6': the fraction .* between 0 and 0.5"),
        ({"merge": "clipped:x"}, "merge is 'clipped:x': .* a number, as in 'clipped:1.0'"),
        ({"merge": "trimmed", "replicas": 2}, "merge is 'trimmed', which needs 3 replicas or more: use mean"),
        ({"interval": "tapr:0.5=60"}, "interval is 'tapr:0.5=60': did you mean 'taper:0.5=60,0.75=120'"),
        ({"interval": "taper:1.5=60"}, "interval is 'taper:1.5=60': the fractions .* between 0 and 1"),
        (
            {"interval": "taper:0.5=0"},
            "interval is 'taper:0.5=0': give the fractions in ascending order, each with an H of 1 or more",
        ),
        ({"interval": "smooth"}, "interval is 'smooth': write it as in 'smooth:120'"),
        ({"interval": "adaptive:200-10"}, "bounds are 200-10: give 10-200"),
        ({"interval": "adaptive:40-200"}, "sync_every is 30, outside the bounds 40-200 .* nearest valid value is 40"),
        ({"fragments": "stride:3"}, "fragments are 'stride:3': did you mean 'strided:3'"),
        ({"fragments": "balanced:0"}, "fragments have count=0: it must be a whole number of at least 1"),
        ({"overlap": "soon"}, "overlap is 'soon': give a whole number of inner steps, or delayed or eager"),
        (
            {"overlap": "-1"},
            "overlap is -1 but the shortest sync interval is 30 steps: give a whole number from 0 to 29",
        ),
        ({"overlap": "30"}, "overlap is 30 but the shortest sync interval is 30 steps: .* from 0 to 29"),
        ({"overlap": "5", "interval": "adaptive:4-200"}, "overlap is 5 but the shortest .* is 4 steps: .* 0 to 3"),
        ({"overlap": 5}, "overlap is 5: give a value of type str"),
        ({"mixing": "1.5"}, "mixing is 1.5: give the weight of the local values, a number from 0 to 1, or rebase"),
        ({"mixing": "nan"}, "mixing is nan: give the weight of the local values"),
        ({"mixing": "half"}, "mixing is half: give the weight of the local values"),
        ({"mixing": 0.5}, "mixing is 0.5: give a value of type str"),
        ({"codec": "fp8"}, "codec is 'fp8': give 'fp32', or another of fp32, bf16"),
        ({"codec": "topk:2"}, "codec is 'topk:2': .* give 'topk:1.0:8'"),
        ({"codec": "fp32+ef"}, "codec is 'fp32.ef': fp32 leaves nothing unsent to feed back, give 'fp32'"),
        ({"sites": 0}, "sites is 0: give 1 or more"),
        ({"sites": 3}, "sites is 3, which does not divide 4 replicas: the nearest is [24]"),
        ({"site_every": -1}, "site_every is -1: give 0 or more"),
        ({"link": "100"}, "link is '100': give a rate in kbit, mbit or gbit .* as in 100mbit,25ms"),
        ({"link": "0mbit"}, "link has a rate of 0.0 bit/s: give one above 0"),
        ({"precision": "fp8"}, "precision is fp8: give fp32 or bf16"),
        ({"replicas": 0}, "replicas is 0: give 1 or more"),
        ({"sync_every": 0}, "sync_every is 0: give 1 or more"),
        ({"eval_every": -2}, "eval_every is -2: give -1 or more"),
        ({"tokens": -1}, "tokens is -1: give 0 or more"),
        ({"z_loss": math.nan}, "z_loss is nan: give a finite number"),
        ({"size": "30m"}, "size '30m' is unknown"),
        ({"outer": {"optimizer": "lion"}}, "outer.optimizer is lion: give one of nesterov"),
        ({"outer": {"lr": math.nan}}, "outer.lr is nan: give a finite number of 0 or more"),
        ({"outer": {"lr": -0.1}}, "outer.lr is -0.1: give a finite number of 0 or more"),
        ({"outer": {"momentum": 1}}, "outer.momentum is 1.0: give from 0 up to, but not including, 1"),
        ({"outer": {"schedule": "step"}}, "outer.schedule is step: give constant, cosine or linear"),
        ({"outer": {"floor": 2}}, "outer.floor is 2.0: give from 0 to 1"),
        ({"outer": {"clip": 0}}, "outer.clip is 0.0: give a positive number"),
    ],
)
def test_what_cannot_be_used_is_refused_in_one_sentence(values: dict, message: str) -> None:
    with pytest.raises(BadInput, match=message) as caught:
        from_dict(values)
    assert "\n" not in str(caught.value)


def test_a_batch_that_cannot_be_shared_comes_with_one_that_can() -> None:
    for batch, replicas, seq_len in product((1, 31, 100, 1000, 1024, 99_999), (1, 3, 4, 7), (1, 32, 100)):
        data = DataConfig(seq_len=seq_len)
        try:
            config = TrainConfig(batch_tokens=batch, replicas=replicas, data=data)
        except BadInput as error:
            named = re.search(r"the nearest that works is (\d+)$", str(error))
            assert str(error).startswith(f"batch_tokens is {batch}, ") and named
            config = TrainConfig(batch_tokens=int(named[1]), replicas=replicas, data=data)
            unit = replicas * seq_len
            assert abs(config.batch_tokens - batch) <= max(unit / 2, unit - batch)
        assert config.sequences * seq_len == config.batch_tokens and config.sequences % replicas == 0


def test_steps_come_from_steps_or_tokens_or_twenty_a_parameter() -> None:
    assert TrainConfig(steps=9, tokens=10**6).total_steps(10**6) == 9
    assert TrainConfig(tokens=10_500, batch_tokens=1024).total_steps(10**6) == 10
    assert TrainConfig(batch_tokens=1024).total_steps(10**6) == 20 * 10**6 // 1024
    with pytest.raises(BadInput, match="tokens is 100, less than one step of batch_tokens=1024"):
        TrainConfig(tokens=100, batch_tokens=1024).total_steps(10**6)


@pytest.mark.parametrize(
    "values, warning",
    [
        ({"method": "dp", "outer": {"lr": 0.1}}, "outer.* has no effect with method dp"),
        ({"method": "local-sgd", "outer": {"clip": 1}}, "outer.* has no effect with method local-sgd"),
        ({"outer": {"optimizer": "sgd", "momentum": 0.1}}, "outer.momentum has no effect with outer.optimizer sgd"),
        ({"outer": {"optimizer": "adam", "momentum": 0.1}}, "outer.momentum has no effect with outer.optimizer adam"),
        ({"outer": {"optimizer": "average", "lr": 0.1}}, "outer.lr has no effect with outer.optimizer average"),
        ({"outer": {"optimizer": "average", "clip": 1}}, "outer.clip has no effect with outer.optimizer average"),
        ({"outer": {"floor": 0.5}}, "outer.floor has no effect with outer.schedule constant"),
        ({"method": "dp", "merge": "tokens"}, "merge has no effect with method dp"),
        ({"method": "dp", "anchor_device": "cpu"}, "anchor_device has no effect with method dp"),
        ({"method": "dp", "codec": "int8"}, "codec has no effect with method dp"),
        ({"method": "dp", "overlap": "5"}, "overlap has no effect with method dp"),
        ({"method": "dp", "fragments": "strided"}, "fragments has no effect with method dp"),
        ({"method": "dp", "interval": "smooth:60"}, "interval has no effect with method dp"),
        ({"method": "dp", "sites": 2}, "sites has no effect with method dp"),
        ({"mixing": "0.5"}, "mixing has no effect with overlap 0"),
        ({"mixing": "rebase"}, "mixing has no effect with overlap 0"),
        ({"mixing": "0.5", "overlap": "eager"}, "mixing has no effect with overlap eager"),
        ({"site_every": 5}, "site_every has no effect with one site"),
        ({"replicas": 1, "codec": "int8"}, "codec has no effect with one replica"),
        ({"replicas": 1, "link": "1mbit"}, "link has no effect with one replica"),
        ({"hf": "some/model", "size": "30k"}, "size has no effect with hf"),
        ({"steps": 5, "tokens": 5000}, "tokens has no effect where steps is given"),
    ],
)
def test_a_setting_without_effect_is_a_warning(values: dict, warning: str) -> None:
    assert from_dict(values).ignored() == [warning]


def test_settings_with_an_effect_are_no_warning() -> None:
    assert TrainConfig().ignored() == []
    silent = {"outer.floor", "hf"}
    assert [n for n in OTHER if n not in silent and changed(n, **BESIDE.get(n, {})).ignored()] == []
    assert from_dict({"method": "dp", "link": "1mbit"}).ignored() == []  # the baseline's gradients cross it too
    assert from_dict({"outer": {"schedule": "cosine", "floor": 0.5}}).ignored() == []


@pytest.mark.parametrize(
    "values, built",
    [
        ({"optimizer": "nesterov", "lr": 0.6, "momentum": 0.8}, optimizers.Nesterov(0.6, 0.8)),
        ({"optimizer": "heavyball", "lr": 1.0, "momentum": 0.8, "clip": 2.0}, optimizers.HeavyBall(1.0, 0.8, 2.0)),
        ({"optimizer": "sgd", "lr": 0.6}, optimizers.SGD(0.6)),
        ({"optimizer": "adam", "lr": 0.6, "clip": 2.0}, optimizers.Adam(0.6, clip=2.0)),
        ({"optimizer": "average"}, optimizers.Average()),
        (
            {"optimizer": "sgd", "lr": 0.6, "schedule": "cosine", "floor": 0.1},
            optimizers.SGD(rates.Cosine(0.6, 10, 0.1)),
        ),
        (
            {"optimizer": "sgd", "lr": 0.6, "schedule": "linear", "floor": 0.1},
            optimizers.SGD(rates.Linear(0.6, 10, 0.1)),
        ),
    ],
)
def test_the_outer_optimizer_is_built_as_configured(values: dict, built: object) -> None:
    assert OuterConfig(**values).build(rounds=10) == built


def test_run_names_tell_runs_apart() -> None:
    assert TrainConfig(size="1M", seed=2, replicas=4, sync_every=30).run_name == "diloco-1m-m4-h30-seed2"
    assert TrainConfig(method="dp", size="1m", replicas=2).run_name == "dp-1m-m2-seed0"
    assert TrainConfig(hf="org/some-model/", replicas=4, sync_every=7).run_name == "diloco-some-model-m4-h7-seed0"
    assert TrainConfig(name="mine").run_name == "mine"
