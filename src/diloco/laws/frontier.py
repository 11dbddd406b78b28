"""The params and tokens of least loss at a budget of FLOPs, derived from a law, never fitted apart."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from diloco.errors import BadInput
from diloco.laws.arguments import positive
from diloco.laws.axes import TOKENS_PER_PARAM
from diloco.laws.budget import FLOPS_PER_PARAM_TOKEN

if TYPE_CHECKING:
    from diloco.laws.law import Law

_PARAMS_RANGE = (1e3, 1e15)
_GRID = 400
_STEP = 1e-3
"""In log params, for second derivatives."""


@dataclass(frozen=True)
class Optimum:
    params: float
    params_low: float
    params_high: float
    tokens: float
    tokens_low: float
    tokens_high: float
    loss: float
    slope: float
    """d log loss / d log params along the budget: 0 at an optimum, shown as a check."""
    flops: float


def optimal(law: Law, flops: float, flops_per_param_token: float = FLOPS_PER_PARAM_TOKEN, **fixed: float) -> Optimum:
    """Params and tokens of least loss with flops = k * params * tokens; other axes as given in `fixed`.

    Intervals by the delta method through the implicit function theorem.

    Raises:
        BadInput: the form lacks params or tokens, or has no optimum inside a thousand to 10^15 parameters.
    """
    if "params" not in law.form.axes or not {"tokens", TOKENS_PER_PARAM} & set(law.form.axes):
        raise BadInput(f"form {law.form.expression} has no optimum at a budget: it needs params and tokens both")
    flops = positive("flops", flops, math.inf)
    flops_per_param_token = positive("flops_per_param_token", flops_per_param_token, math.inf)
    fixed = {axis: positive(axis, value, math.inf) for axis, value in fixed.items()}
    budget = flops / flops_per_param_token

    def along(log_params: np.ndarray) -> dict[str, np.ndarray]:
        params = np.exp(np.atleast_1d(log_params))
        given = {axis: np.full(params.shape, float(value)) for axis, value in fixed.items()}
        return given | {"params": params, "tokens": budget / params, TOKENS_PER_PARAM: budget / params**2}

    def log_loss(log_params: np.ndarray) -> np.ndarray:
        return np.log(law.curve(along(log_params)).value)

    place = _minimum(log_loss, law)
    value = log_loss(place + _STEP * np.array([-1.0, 0.0, 1.0]))
    curvature = (value[0] - 2 * value[1] + value[2]) / _STEP**2
    gradient = law.log_gradient(along(place + _STEP * np.array([-1.0, 1.0])))
    move_P = (gradient[1] - gradient[0]) / (2 * _STEP) / curvature
    half = law.t * float(np.sqrt(move_P @ law.covariance_PP @ move_P))
    params, tokens, factor = float(np.exp(place)), float(budget / np.exp(place)), float(np.exp(half))
    return Optimum(
        *(params, params / factor, params * factor, tokens, tokens / factor, tokens * factor),
        loss=float(np.exp(value[1])),
        slope=float((value[2] - value[0]) / (2 * _STEP)),
        flops=flops,
    )


def _minimum(log_loss: Callable[[np.ndarray], np.ndarray], law: Law) -> float:
    low, high = np.log(_PARAMS_RANGE)
    for _ in range(5):
        grid = np.linspace(low, high, _GRID)
        best = int(np.argmin(log_loss(grid)))
        if best in (0, _GRID - 1):
            raise BadInput(
                f"law {law.id} falls without end along a budget: its terms in params and tokens do not balance"
            )
        low, high = grid[best - 1], grid[best + 1]
    return float((low + high) / 2)
