"""Where a fit starts: variable projection over a grid of the nonlinear coefficients.

For given exponents a law is linear in its amplitudes (Golub and Pereyra 1973), and a single term with a floor is linear
in logs once the floor is given. So the grid has one dimension per exponent, or one for the floor, and each of its
points comes with the best amplitudes at once.
"""

from __future__ import annotations

from itertools import combinations, product

import numpy as np

from diloco.laws.model import AMPLITUDE_RANGE, BEND_WIDTH, Model
from diloco.laws.solve import MAX_ITERATIONS, Solutions, minimise

_GRID_POINTS = 900
_SINGLE_TERM_POINTS = 100
"""For a form of one term, whose floor is scanned by ordinary least squares as well."""

_GRID_ROWS = 120
"""A grid needs to be roughly right only: with more rows than this, some spread over the design stand for all."""

_FLOOR_SHARES = (1e-12, 0.1, 0.25, 0.4, 0.55, 0.7, 0.8, 0.87, 0.92, 0.95, 0.97, 0.985, 0.995)
"""Of the smallest target."""

_BEND_PLACES = (0.15, 0.3, 0.45, 0.6, 0.75, 0.9)
"""Quantiles of the bend's axis."""

_BEND_LOG_WIDTHS = (1.0, 2.0, 3.0)
"""Above the least width."""

_RIDGE = 1e-12
_SAME = 1e-6
"""Optima whose logs differ less than this on every row are one."""


def grid_starts(
    model: Model, y_N: np.ndarray, weights_N: np.ndarray, bounds: tuple[np.ndarray, np.ndarray], keep: int
) -> np.ndarray:
    """The `keep` best starts (keep, p) of the grid."""
    return _ranked(model, y_N, weights_N, bounds, keep, _grid(model, bounds))


def random_starts(
    model: Model, y_N: np.ndarray, weights_N: np.ndarray, bounds: tuple[np.ndarray, np.ndarray], count: int, seed: int
) -> np.ndarray:
    """`count` starts (count, p) with exponents drawn at random and the best amplitudes for them."""
    exponents = _cube(np.random.default_rng(seed).random((count, len(_shape_names(model)))), model, bounds)
    return _ranked(model, y_N, weights_N, bounds, count, exponents)


def descend(
    model: Model,
    y_N: np.ndarray,
    weights_N: np.ndarray,
    start_SP: np.ndarray,
    bounds: tuple[np.ndarray, np.ndarray],
    delta: float = np.inf,
    max_iterations: int = MAX_ITERATIONS,
) -> Solutions:
    """`minimise` from each start; with many rows on those that stand for all, then on all from each optimum found."""
    rows = representatives(model, weights_N)
    if len(y_N) <= _GRID_ROWS or len(start_SP) == 1:
        return minimise(model, y_N, weights_N, start_SP, bounds, delta, max_iterations)
    small = model.take(rows)
    coarse = minimise(small, y_N[rows], weights_N[rows], start_SP, bounds, delta, max_iterations)
    value_SN = small.log_value(coarse.theta_SP)
    first_S = np.array([int(np.argmax((np.abs(value_SN - value) < _SAME).all(axis=1))) for value in value_SN])
    distinct, which_S = np.unique(first_S, return_inverse=True)
    fine = minimise(model, y_N, weights_N, coarse.theta_SP[distinct], bounds, delta, max_iterations)
    return Solutions(fine.theta_SP[which_S], fine.objective_S[which_S], fine.converged_S[which_S])


def _ranked(
    model: Model,
    y_N: np.ndarray,
    weights_N: np.ndarray,
    bounds: tuple[np.ndarray, np.ndarray],
    keep: int,
    shapes: np.ndarray,
) -> np.ndarray:
    rows = representatives(model, weights_N)
    small, y, w = model.take(rows), y_N[rows], weights_N[rows]
    lower, upper = bounds
    theta = _project(small, y, w, shapes, bounds)
    if _single_term(model):
        theta = np.concatenate([theta, _log_linear(small, y, w, bounds)])
    theta = np.clip(theta, lower, upper)
    error = (w * (small.log_value(theta) - y) ** 2).sum(axis=1)
    return theta[np.argsort(error, kind="stable")[:keep]]


def representatives(model: Model, weights_N: np.ndarray) -> np.ndarray:
    """Rows evenly spread over the design, whatever their order in the file."""
    live = np.flatnonzero(weights_N > 0)
    if len(live) <= _GRID_ROWS:
        return live
    design = np.concatenate(
        [model.phi_KNQ[:, live].transpose(0, 2, 1).reshape(-1, len(live)), model.offset_KN[:, live]]
    )
    order = live[np.lexsort(design)]
    return order[np.linspace(0, len(order) - 1, _GRID_ROWS).round().astype(int)]


def _single_term(model: Model) -> bool:
    return model.terms - (model.form.floor is not None) == 1


def _shape_names(model: Model) -> tuple[str, ...]:
    return model.names[model.terms :]


def _grid(model: Model, bounds: tuple[np.ndarray, np.ndarray]) -> np.ndarray:
    """Points (G, q) over exponents and bend: a full grid up to two dimensions, an additive recurrence beyond."""
    free = np.flatnonzero((bounds[0] < bounds[1])[model.terms :])
    unit = np.full((1, len(_shape_names(model))), 0.5)
    if free.size:
        count = _SINGLE_TERM_POINTS if _single_term(model) else _GRID_POINTS
        side = int(count ** (1 / free.size))
        if free.size <= 2:
            ticks = (np.arange(side) + 0.5) / side
            points = np.stack(np.meshgrid(*[ticks] * free.size, indexing="ij"), axis=-1).reshape(-1, free.size)
        else:
            golden = _plastic(free.size) ** -np.arange(1, free.size + 1)
            points = (0.5 + np.arange(1, count + 1)[:, None] * golden) % 1
        unit = np.full((len(points), len(_shape_names(model))), 0.5)
        unit[:, free] = points
    return _cube(unit, model, bounds)


def _plastic(dimensions: int) -> float:
    """The root of x^(d+1) = x + 1, whose powers fill a cube evenly (Roberts 2018)."""
    root = 1.5
    for _ in range(60):
        root = (1 + root) ** (1 / (dimensions + 1))
    return root


def _cube(unit: np.ndarray, model: Model, bounds: tuple[np.ndarray, np.ndarray]) -> np.ndarray:
    """Unit cube to exponents, dense near 0 on both sides, where exponents of losses lie."""
    lower, upper = (bound[model.terms :] for bound in bounds)
    q = len(model.form.exponents)
    signed = np.where(lower < 0, 2 * unit - 1, unit)
    cubed = np.sign(signed) * np.abs(signed) ** 2 * 1.5
    shapes = np.clip(cubed, lower, upper)
    if model.form.bend is not None:
        shapes[:, q + 1 :] = lower[q + 1 :] + unit[:, q + 1 :] * (upper - lower)[q + 1 :]
    return shapes


def _project(
    model: Model, y: np.ndarray, w: np.ndarray, shapes: np.ndarray, bounds: tuple[np.ndarray, np.ndarray]
) -> np.ndarray:
    """Best amplitudes (at least 0) for each point: relative least squares over every set of active terms."""
    count = model.terms
    theta = np.concatenate([np.zeros((len(shapes), count)), shapes], axis=1)
    pinned = bounds[0][:count] == bounds[1][:count]
    theta[:, :count] = np.where(pinned, bounds[0][:count], 0.0)
    columns = np.exp(np.clip(model.log_terms(theta) - y, -80, 80))
    free = np.flatnonzero(~pinned)
    target = 1 - columns[pinned].sum(axis=0)
    scaled = columns[free] * np.sqrt(w)
    gram = np.einsum("ign,jgn->gij", scaled, scaled, optimize=True)
    moment = np.einsum("ign,gn->gi", scaled, target * np.sqrt(w), optimize=True)
    amplitude = np.zeros_like(moment)
    gain = np.full(len(shapes), -np.inf)
    for size in range(1, free.size + 1):
        for active in map(list, combinations(range(free.size), size)):
            sub = gram[np.ix_(range(len(shapes)), active, active)]
            diagonal = np.einsum("gii->gi", sub)
            sub = sub + np.eye(size) * (_RIDGE * diagonal + 1e-200)[:, None, :]
            found = np.linalg.solve(sub, moment[:, active][:, :, None])[:, :, 0]
            explained = (found * moment[:, active]).sum(axis=1)
            better = (found >= 0).all(axis=1) & (explained > gain)
            gain[better] = explained[better]
            amplitude[better] = 0.0
            amplitude[np.ix_(better, active)] = found[better]
    tiny = np.exp(AMPLITUDE_RANGE[0] / 2) * np.exp(y.mean())
    theta[:, free] = np.log(np.maximum(amplitude, tiny))
    return theta


def _log_linear(model: Model, y: np.ndarray, w: np.ndarray, bounds: tuple[np.ndarray, np.ndarray]) -> np.ndarray:
    """Starts of a single term with or without a floor: ordinary least squares on log(target - floor)."""
    floor, count = model.form.floor, model.terms
    (lead,) = [k for k in range(count) if k != floor][:1]
    places: list[tuple[float, ...]] = [()]
    if model.form.bend is not None:
        places = list(product(np.quantile(model.u_N, _BEND_PLACES), np.log(BEND_WIDTH[0]) + np.array(_BEND_LOG_WIDTHS)))
    shares = _FLOOR_SHARES if floor is not None else (0.0,)
    if floor is not None and bounds[0][floor] == bounds[1][floor]:
        shares = (min(np.exp(bounds[0][floor] - y.min()), _FLOOR_SHARES[-1]),)
    starts = []
    for place in places:
        design = [np.ones(len(y)), *model.phi_KNQ[lead].T]
        if place:
            width = np.exp(place[1])
            design.append(width * np.logaddexp(0.0, (model.u_N - place[0]) / width))
        root = np.sqrt(w)
        matrix = np.stack(design, axis=1) * root[:, None]
        excess = np.stack([y + np.log1p(-share * np.exp(y.min() - y)) for share in shares], axis=1)
        found = np.linalg.lstsq(matrix, (excess - model.offset_KN[lead][:, None]) * root[:, None], rcond=None)[0]
        for column, share in enumerate(shares):
            theta = np.zeros(len(model.names))
            theta[lead] = found[0, column]
            if floor is not None:
                theta[floor] = np.log(share) + y.min()
            theta[count : count + found.shape[0] - 1] = found[1:, column]
            if place:
                theta[-2:] = place
            starts.append(theta)
    return np.array(starts)
