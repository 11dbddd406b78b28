"""DiLoCo: train language models across machines that can seldom talk to each other."""

from __future__ import annotations

import importlib

# Loaded when first used, so that `diloco --help` and the tools that need no tensors stay fast.
_HOME = {
    "DiLoCo": "diloco.sync",
    "SGD": "diloco.outer.optimizers",
    "HeavyBall": "diloco.outer.optimizers",
    "Nesterov": "diloco.outer.optimizers",
    "Adam": "diloco.outer.optimizers",
    "Average": "diloco.outer.optimizers",
    "Custom": "diloco.outer.optimizers",
    "Torch": "diloco.outer.optimizers",
    "OuterOptimizer": "diloco.outer.optimizers",
    "Cosine": "diloco.outer.rates",
    "Linear": "diloco.outer.rates",
    "RoundReport": "diloco.outer.report",
    "Mismatch": "diloco.outer.report",
    "Whole": "diloco.outer.fragments",
    "Sequential": "diloco.outer.fragments",
    "Strided": "diloco.outer.fragments",
    "Balanced": "diloco.outer.fragments",
    "Stage": "diloco.outer.fragments",
    "Fixed": "diloco.outer.interval",
    "Tapered": "diloco.outer.interval",
    "Smooth": "diloco.outer.interval",
    "Adaptive": "diloco.outer.interval",
    "Collective": "diloco.wire.collective",
    "Local": "diloco.wire.local",
    "Hierarchical": "diloco.wire.hierarchical",
    "Link": "diloco.wire.link",
    "Message": "diloco.wire.exchange",
    "Law": "diloco.laws.law",
    "advise": "diloco.laws.advice",
    "compare_forms": "diloco.laws.compare",
    "fit_hyperparameters": "diloco.laws.hyperparameters",
    "fit_law": "diloco.laws.fit",
    "load_law": "diloco.laws",
    "next_runs": "diloco.laws.design",
    "read_rows": "diloco.laws.rows",
    "recommend": "diloco.laws.rules",
    "BadInput": "diloco.errors",
}

__version__ = "0.1.0"
__all__ = sorted(_HOME)


def __getattr__(name: str) -> object:
    if name not in _HOME:
        raise AttributeError(f"module 'diloco' has no attribute {name!r}")
    value = getattr(importlib.import_module(_HOME[name]), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return __all__
