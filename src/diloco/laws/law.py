"""A fitted law: coefficients with intervals, predictions, and what is known about its fit."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from diloco.errors import BadInput
from diloco.laws.arguments import counted, mapping, named, one_number, positive, sane_level
from diloco.laws.axes import TOKENS_PER_PARAM
from diloco.laws.budget import FLOPS_PER_PARAM_TOKEN, ONE_RATIO, TokenRatio, other_ratio
from diloco.laws.certify import Certificate
from diloco.laws.forms import Form
from diloco.laws.holdout import HoldOut
from diloco.laws.misfits import Misfit, misfits
from diloco.laws.model import Model
from diloco.laws.prediction import Curve, Prediction, extrapolations, reservations, unused
from diloco.laws.problem import is_exact, variance_along
from diloco.laws.quantile import t_quantile

if TYPE_CHECKING:
    from diloco.laws.frontier import Optimum

_SAYS_TOKENS = frozenset({"tokens", TOKENS_PER_PARAM})


@dataclass(frozen=True)
class Runs:
    """The runs that a law was fitted on. Columns are (n,)."""

    labels: tuple[str, ...]
    columns: dict[str, np.ndarray]
    """Every axis of the form."""
    target: np.ndarray
    fitted: np.ndarray
    weight: np.ndarray
    """What each run weighed in the fit: 0 was left out, between 0 and 1 counted less."""
    tokens_per_param: TokenRatio | None = None
    """Of the runs that were not left out, whether or not the form knows tokens; None where the rows do not say."""

    @property
    def ranges(self) -> dict[str, tuple[float, float]]:
        return {axis: (float(values.min()), float(values.max())) for axis, values in self.columns.items()}


@dataclass(frozen=True, repr=False)
class Law:
    """One form fitted to one set of runs. `theta` is in the internal coordinates of `model`."""

    form: Form
    target: str
    model: Model
    theta_P: np.ndarray
    covariance_PP: np.ndarray
    noise: float
    """Standard deviation of the log of one run's target around the law."""
    dof: float
    level: float
    t: float
    """Quantile of Student's t that `level` asks for."""
    runs: Runs
    certificate: Certificate
    holdout: HoldOut | None
    notes: tuple[str, ...]
    data_hash: str
    settings: dict[str, Any]
    versions: dict[str, str]
    alternatives: tuple[Law, ...] = ()
    """Other forms that the hold-out cannot tell from this one."""

    @cached_property
    def id(self) -> str:
        """Twelve hex digits that change with the form, the data or the coefficients."""
        text = f"{self.form.expression}|{self.target}|{self.data_hash}|{[f'{value:.5g}' for value in self.natural_P]}"
        return hashlib.sha256(text.encode()).hexdigest()[:12]

    def __repr__(self) -> str:
        found = ", ".join(f"{key} {value:.4g}" for key, value in self.coefficients.items())
        kept = counted(int((self.runs.weight > 0).sum()), "run")
        noise = f"noise {100 * self.noise:.2g}%"
        return f"<Law {self.id}: {self.target} = {self.form.expression} ({found}; {kept}, {noise})>"

    @property
    def exact(self) -> bool:
        """Whether the law fits its runs to rounding, as computed numbers do and measured ones don't."""
        return is_exact(self.noise)

    @property
    def rms_residual_pct(self) -> float:
        """Root mean square distance from its own runs, those left out apart."""
        kept = self.runs.weight > 0
        return 100 * float(np.sqrt((np.log(self.runs.target / self.runs.fitted)[kept] ** 2).mean()))

    @property
    def holdout_error_pct(self) -> float:
        """Mean over the splits of the hold-out; NaN where there is none."""
        return self.holdout.error_pct if self.holdout else float("nan")

    @cached_property
    def misfits(self) -> tuple[Misfit, ...]:
        """Where the runs that were left out lie together."""
        return misfits(self.form.size_axis, self.runs.columns, np.flatnonzero(self.runs.weight == 0))

    @cached_property
    def natural_P(self) -> np.ndarray:
        return self.model.natural(self.theta_P)

    @cached_property
    def _natural_se_P(self) -> np.ndarray:
        matrix = self.model.to_natural()
        return np.sqrt(np.maximum(np.diag(matrix @ self.covariance_PP @ matrix.T), 0.0))

    @cached_property
    def parameters(self) -> dict[str, float]:
        """Every coefficient of the expression by its own name."""
        return {name: value for name, (value, _, _) in self._estimates.items()}

    @cached_property
    def coefficients(self) -> dict[str, float]:
        """`A`, an exponent per axis under the axis's own name and with its real sign, `floor` (0 without one)."""
        return {"floor": 0.0} | {key: value for key, (value, _, _) in self._keyed.items()}

    @cached_property
    def intervals(self) -> dict[str, tuple[float, float] | None]:
        """Interval at `level` for each of `coefficients`, by the delta method; None where the data give none."""
        return {key: None if np.isnan(low) else (low, high) for key, (_, low, high) in self._keyed.items()}

    @cached_property
    def _estimates(self) -> dict[str, tuple[float, float, float]]:
        """Name -> (value, low, high); NaN limits for what is pinned, at a bound, confounded, or has no dof."""
        found = {}
        for i, name in enumerate(self.model.names):
            if name not in self.form.parameters:
                continue
            value, half = self.natural_P[i], self.t * self._natural_se_P[i]
            known = half > 0 and np.isfinite(half) and name not in self.certificate.confounded
            if i == self.form.floor:
                points = np.maximum(np.exp(value) + np.array([0.0, -half, half]), 0.0)
            else:
                points = value + np.array([0.0, -half, half])
                with np.errstate(over="ignore"):
                    points = np.exp(points) if i < self.model.terms else points
            found[name] = (float(points[0]), *(float(x) if known else np.nan for x in points[1:]))
        return found

    @cached_property
    def _keyed(self) -> dict[str, tuple[float, float, float]]:
        keyed = {}
        for key, ((name, sign), *_) in self.form.coefficient_keys().items():
            value, low, high = self._estimates[name]
            keyed[key] = (sign * value, *sorted((sign * low, sign * high))) if low == low else (sign * value, low, high)
        return keyed

    def curve(self, columns: Mapping[str, Any]) -> Curve:
        """The law and its intervals at many points; `columns` are arrays or numbers per axis, broadcast together.

        Raises:
            BadInput: an axis of the form is missing or not above 0.
        """
        points, shape = self.points(columns)
        log_value, jacobian = self.model.at(points).tangent(self.theta_P[None])
        spread = variance_along(jacobian[0], self.covariance_PP)
        curve, new = self.t * np.sqrt(spread), self.t * np.sqrt(spread + self.noise**2)
        ends = (np.zeros_like(curve), -curve, curve, -new, new)
        return Curve(*(np.exp(log_value[0] + end).reshape(shape) for end in ends))

    def log_gradient(self, columns: Mapping[str, Any]) -> np.ndarray:
        """(n, p): derivatives of log f at `columns`, in the coordinates of the covariance."""
        points, _ = self.points(columns)
        return self.model.at(points).tangent(self.theta_P[None])[1][0]

    def predict(self, **point: float) -> Prediction:
        """The target at one point, for example `law.predict(params=10e9, replicas=4)`.

        Gives the law's value, the interval of a new run and of the law itself, the spread over forms that the hold-out
        cannot tell apart, and a sentence for each axis on which the point lies outside the runs.

        Raises:
            BadInput: an axis of the form is missing, not one number, or not above 0, a name is no axis, or the answer
                overflows.
        """
        if several := [axis for axis, value in point.items() if np.size(value) != 1 or np.ndim(value)]:
            raise BadInput(
                f"{several[0]} holds {counted(np.size(point[several[0]]), 'number')} and predict answers at one point: "
                f"law.curve takes arrays"
            )
        point = {axis: one_number(axis, value) for axis, value in point.items()}
        _refuse_two_ratios(point)
        with np.errstate(over="ignore", invalid="ignore"):
            curve = self.curve(point)
        if not np.isfinite(curve.value) or np.isinf(curve.high) or np.isinf(curve.new_high):
            where = ", ".join(f"{axis} {value:.4g}" for axis, value in point.items())
            raise BadInput(f"the law {self.form.expression} has no finite answer at {where}: ask nearer to its runs")
        points, _ = self.points(point)
        central = {self.form.name: float(curve.value)}
        for other in self.alternatives:
            if all(axis in point or axis in points for axis in other.form.axes):
                known = {axis: value for axis, value in point.items() if axis in other.form.columns}
                central[other.form.name] = float(other.curve(known).value)
        return Prediction(
            target=self.target,
            value=float(curve.value),
            low=float(curve.new_low),
            high=float(curve.new_high),
            curve_low=float(curve.low),
            curve_high=float(curve.high),
            level=self.level,
            forms=central,
            warnings=tuple(self._doubts({axis: float(points[axis][0]) for axis in points}, point)),
            point=point,
            law=self.id,
        )

    def _doubts(self, point: Mapping[str, float], given: Mapping[str, float]) -> list[str]:
        """`point` has the form's axes alone, `given` is what was asked."""
        found = [*extrapolations(point, self.runs.ranges), *reservations(point, self.runs.columns)]
        found += [str(misfit) for misfit in self.misfits if misfit.holds(point[misfit.axis])]
        if self.knows_tokens:
            return found + self.unused({axis: value for axis, value in given.items() if axis not in _SAYS_TOKENS})
        of_tokens = self.runs.tokens_per_param and {"params", "tokens"} <= set(given)
        found += other_ratio("the law", self.runs.tokens_per_param, given, self.runs.ranges)
        return found + self.unused({axis: value for axis, value in given.items() if axis != "tokens" or not of_tokens})

    @property
    def knows_tokens(self) -> bool:
        return bool(_SAYS_TOKENS & set(self.form.axes))

    def unused(self, given: Mapping[str, float]) -> list[str]:
        """A sentence for each of the numbers given that no answer depends on."""
        used = self.form.axes
        if TOKENS_PER_PARAM in used:
            used = (*used, "tokens", "params")
        elif "tokens" in used:
            used = (*used, TOKENS_PER_PARAM)
        return unused(given, used, f"the law, {self.form.expression},")

    def points(self, columns: Mapping[str, Any]) -> tuple[dict[str, np.ndarray], tuple[int, ...]]:
        """Each axis of the form as (n,), and the shape that answers take."""
        named_columns = mapping("columns", columns, "{'params': sizes, 'replicas': 4}")
        given = {name: _array(name, values) for name, values in named_columns.items()}
        if TOKENS_PER_PARAM in self.form.axes and {"tokens", "params"} <= set(given):
            given.setdefault(TOKENS_PER_PARAM, given["tokens"] / given["params"])
        if unknown := [name for name in given if name not in self.form.columns]:
            raise BadInput(f"{unknown[0]} is no axis: this law is {self.form.expression}, so give {_axes(self.form)}")
        missing = [axis for axis in self.form.axes if axis not in given]
        if missing:
            raise BadInput(f"this law needs {', '.join(missing)} too: it is {self.form.expression}")
        for axis in given:
            usable = np.isfinite(given[axis]) & (given[axis] > 0)
            if not np.all(usable):
                positive(axis, float(given[axis][~usable].ravel()[0]), np.inf)
        try:
            arrays = np.broadcast_arrays(*(given[axis] for axis in self.form.axes))
        except ValueError as error:
            shapes = ", ".join(f"{axis} {given[axis].shape}" for axis in self.form.axes)
            raise BadInput(f"the columns {shapes} do not go together: give each one shape, or one number") from error
        return {axis: array.ravel() for axis, array in zip(self.form.axes, arrays, strict=True)}, arrays[0].shape

    def at_level(self, level: float) -> Law:
        """The same law with intervals at another level."""
        level = sane_level(level)
        others = tuple(other.at_level(level) for other in self.alternatives)
        return replace(self, level=level, t=t_quantile((1 + level) / 2, self.dof), alternatives=others)

    def optimal(self, flops: float, flops_per_param_token: float = FLOPS_PER_PARAM_TOKEN, **fixed: float) -> Optimum:
        """The params and tokens of least loss at a budget, with intervals; see `frontier.optimal`."""
        from diloco.laws.frontier import optimal

        return optimal(self, flops, flops_per_param_token, **fixed)

    def report(self) -> dict[str, Any]:
        """Everything above as plain data, ready for JSON."""
        from diloco.laws.report import report

        return report(self)

    def save(self, path: str | Path) -> None:
        """Write the law as one JSON file, atomically."""
        from diloco.laws.lawfile import save

        save(self, path)


def _refuse_two_ratios(point: Mapping[str, float]) -> None:
    """Raises BadInput for tokens and tokens per parameter that say different things."""
    if {"params", "tokens", TOKENS_PER_PARAM} <= {name for name, value in point.items() if value > 0}:
        ratio = point["tokens"] / point["params"]
        if not np.exp(-ONE_RATIO) <= ratio / point[TOKENS_PER_PARAM] <= np.exp(ONE_RATIO):
            raise BadInput(
                f"tokens_per_param {point[TOKENS_PER_PARAM]:g} beside {named('tokens', point['tokens'])}, which are "
                f"{ratio:.4g} per parameter: give one of them"
            )


def _axes(form: Form) -> str:
    return ", ".join(form.axes)


def _array(name: str, values: Any) -> np.ndarray:
    """`values` as floats. Raises BadInput for what holds anything else."""
    array = np.asarray(values)
    if array.dtype.kind in "OUS":
        array = np.array([one_number(name, value) for value in array.ravel()]).reshape(array.shape)
    if array.dtype.kind not in "iuf":
        raise BadInput(f"{name} holds values of type {array.dtype}: give numbers")
    return array.astype(float)
