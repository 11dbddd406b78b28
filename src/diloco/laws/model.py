"""A form bound to data: the logarithm of the law and its analytic Jacobian, for many parameter sets at once.

S parameter sets, n rows, K terms, q exponents, p parameters. The law is a sum of exponentials of functions that are
linear in the exponents, so that log f = logsumexp_k(lambda_k + offset_k + phi_k nu + bend_k). theta_SP holds first the
K log amplitudes lambda, then the q exponents nu, then (change, log place, log width) of a bend. Features are centred
per term, which the amplitude takes up: with raw log params each amplitude would be all but collinear with its exponent.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from diloco.errors import BadInput
from diloco.laws.arguments import named
from diloco.laws.expressions import NUMBERS
from diloco.laws.forms import BEND_PARAMETERS, EXPONENT_LIMIT, Form

AMPLITUDE_RANGE = (-40.0, 60.0)
"""log of an amplitude against the mean target; below exp(-40) a term is nothing."""

BEND_WIDTH = (0.05, 3.0)
"""Width of a break in units of the logarithm of its axis."""


@dataclass(frozen=True)
class Model:
    """What is fixed once the rows are known; `at` binds the same centring to other points."""

    form: Form
    phi_KNQ: np.ndarray
    offset_KN: np.ndarray
    mu_KQ: np.ndarray
    """Centres of the features, per term."""
    u_N: np.ndarray
    """log of the bend's axis minus `u_center`, or empty."""
    u_center: float

    @property
    def names(self) -> tuple[str, ...]:
        """Of theta's entries; a term whose factor is a number is called `number K`."""
        amplitudes = (name or f"number {k}" for k, name in enumerate(self.form.amplitudes))
        return (*amplitudes, *self.form.exponents, *(BEND_PARAMETERS if self.form.bend is not None else ()))

    @property
    def terms(self) -> int:
        return self.phi_KNQ.shape[0]

    def log_terms(self, theta_SP: np.ndarray) -> np.ndarray:
        """(K, S, n): the logarithm of each term."""
        count, q = self.terms, self.phi_KNQ.shape[2]
        nu_SQ = theta_SP[:, count : count + q]
        g_KSN = np.matmul(nu_SQ, self.phi_KNQ.transpose(0, 2, 1))
        g_KSN += self.offset_KN[:, None, :] + theta_SP[:, :count].T[:, :, None]
        if self.form.bend is not None:
            change, _, width, z_SN = self._bend(theta_SP)
            g_KSN[self.form.bend] += change * width * np.logaddexp(0.0, z_SN)
        return g_KSN

    def __call__(self, theta_SP: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """log f (S, n) and its derivatives by theta (S, n, p)."""
        share_KSN, log_SN = _softmax(self.log_terms(theta_SP))
        (n_sets, n_rows), (count, _, q) = log_SN.shape, self.phi_KNQ.shape
        jacobian = np.empty((n_sets, n_rows, theta_SP.shape[1]))
        jacobian[:, :, :count] = share_KSN.transpose(1, 2, 0)
        jacobian[:, :, count : count + q] = share_KSN[0][:, :, None] * self.phi_KNQ[0]
        for k in range(1, count):
            if self.form.terms[k].exponents:
                jacobian[:, :, count : count + q] += share_KSN[k][:, :, None] * self.phi_KNQ[k]
        if self.form.bend is not None:
            jacobian[:, :, count + q :] = self._bend_jacobian(theta_SP) * share_KSN[self.form.bend][:, :, None]
        return log_SN, jacobian

    def log_value(self, theta_SP: np.ndarray) -> np.ndarray:
        """log f (S, n)."""
        return _softmax(self.log_terms(theta_SP))[1]

    def tangent(self, theta_SP: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """As a call, but with the derivative by the floor itself, which stays where the floor goes to 0.

        Every covariance is in these coordinates: else a floor at 0 would count as known, and intervals be too narrow.
        """
        log_SN, jacobian = self(theta_SP)
        if self.form.floor is not None:
            jacobian[:, :, self.form.floor] = np.exp(-log_SN)
        return log_SN, jacobian

    def _bend(self, theta_SP: np.ndarray) -> tuple[np.ndarray, ...]:
        change, place, log_width = (column[:, None] for column in theta_SP[:, -3:].T)
        width = np.exp(log_width)
        return change, place, width, (self.u_N - place) / width

    def _bend_jacobian(self, theta_SP: np.ndarray) -> np.ndarray:
        """(S, n, 3): derivatives of change * width * log(1 + exp(z)), z = (u - place) / width."""
        change, _, width, z_SN = self._bend(theta_SP)
        soft = np.logaddexp(0.0, z_SN)
        above = np.exp(z_SN - soft)
        return np.stack([width * soft, -change * above, change * width * (soft - z_SN * above)], axis=-1)

    def natural(self, theta_P: np.ndarray) -> np.ndarray:
        """theta with amplitudes and place as they stand in the expression (logs of amplitudes, log of the place)."""
        return self.to_natural() @ theta_P + self._shift()

    def internal(self, natural_P: np.ndarray) -> np.ndarray:
        """The inverse of `natural`."""
        return np.linalg.solve(self.to_natural(), natural_P - self._shift())

    def to_natural(self) -> np.ndarray:
        """(p, p): derivatives of `natural`."""
        count, q = self.mu_KQ.shape
        matrix = np.eye(len(self.names))
        matrix[:count, count : count + q] = -self.mu_KQ
        return matrix

    def _shift(self) -> np.ndarray:
        shift = np.zeros(len(self.names))
        if self.form.bend is not None:
            shift[-2] = self.u_center
        return shift

    def at(self, columns: Mapping[str, np.ndarray]) -> Model:
        """The same model over other points."""
        phi, offset, u = _features(self.form, columns)
        return Model(self.form, phi - self.mu_KQ[:, None, :], offset, self.mu_KQ, u - self.u_center, self.u_center)

    def take(self, index: np.ndarray) -> Model:
        """The same model over some of its rows."""
        u = self.u_N[index] if self.u_N.size else self.u_N
        return Model(self.form, self.phi_KNQ[:, index], self.offset_KN[:, index], self.mu_KQ, u, self.u_center)


def _softmax(g_KSN: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Each term's share of the sum (K, S, n), and the log of the sum (S, n)."""
    if len(g_KSN) == 1:
        return np.ones_like(g_KSN), g_KSN[0]
    top_SN = g_KSN.max(axis=0)
    share_KSN = np.exp(g_KSN - top_SN)
    total_SN = share_KSN.sum(axis=0)
    return share_KSN / total_SN, top_SN + np.log(total_SN)


def bind(form: Form, columns: Mapping[str, np.ndarray], pinned: Mapping[str, float] | None = None) -> Model:
    """`form` over the rows' columns (each (n,)). Terms whose amplitude is pinned keep their features uncentred."""
    phi, offset, u = _features(form, columns)
    mu = phi.mean(axis=1)
    for k, name in enumerate(form.amplitudes):
        if not name or name in (pinned or {}):
            mu[k] = 0.0
    center = float(u.mean()) if u.size else 0.0
    return Model(form, phi - mu[:, None, :], offset, mu, u - center, center)


def _features(form: Form, columns: Mapping[str, np.ndarray]) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    n = len(next(iter(columns.values())))
    phi = np.zeros((len(form.terms), n, len(form.exponents)))
    offset = np.zeros((len(form.terms), n))
    logs = {axis: np.log(columns[axis]) for axis in form.axes}
    for k, term in enumerate(form.terms):
        offset[k] = np.log(term.value) if term.amplitude else 0.0
        for name, pieces in term.exponents.items():
            total = sum(factor * logs[axis] * (columns[times] if times else 1.0) for factor, axis, times in pieces)
            if name:
                phi[k, :, form.exponents.index(name)] += total
            else:
                offset[k] += total
    bend = form.terms[form.bend].bend if form.bend is not None else ""
    return phi, offset, logs[bend] if bend else np.empty(0)


def limits(model: Model, y_N: np.ndarray, pinned: Mapping[str, float]) -> tuple[np.ndarray, np.ndarray]:
    """Lower and upper bounds (p,) of theta; equal where a value is pinned.

    Raises:
        BadInput: `pinned` names no coefficient, or gives one a value that it cannot have.
    """
    form, count = model.form, model.terms
    unknown = sorted(set(pinned) - set(form.parameters))
    if unknown:
        raise BadInput(
            f"{named('fixed', {unknown[0]: pinned[unknown[0]]})}: the form's coefficients are "
            f"{', '.join(form.parameters)}"
        )
    lower, upper = np.full(len(model.names), -EXPONENT_LIMIT), np.full(len(model.names), EXPONENT_LIMIT)
    lower[:count], upper[:count] = y_N.mean() + AMPLITUDE_RANGE[0], y_N.mean() + AMPLITUDE_RANGE[1]
    for i, name in enumerate(model.names):
        lower[i], upper[i] = form.bounds.get(name, (lower[i], upper[i]))
    if form.bend is not None:
        lower[-2], upper[-2] = model.u_N.min(), model.u_N.max()
        lower[-1], upper[-1] = np.log(BEND_WIDTH)
    for k, term in enumerate(form.terms):
        if not term.amplitude:
            lower[k] = upper[k] = np.log(term.value)
    for name, value in pinned.items():
        i = model.names.index(name)
        if i < count and value <= 0:
            raise BadInput(
                f"{named('fixed', {name: value})}: an amplitude is above 0; leave the term out of the form instead"
            )
        least, most = _fixable(model, i, y_N, (lower[i], upper[i]))
        if not least <= value <= most:
            raise BadInput(f"{named('fixed', {name: value})} lies outside {least:.4g} to {most:.4g}: give one inside")
        lower[i] = upper[i] = (
            np.log(value) if i < count else value - (model.u_center if name == BEND_PARAMETERS[1] else 0)
        )
    return lower, upper


def _fixable(model: Model, index: int, y_N: np.ndarray, bounds: tuple[float, float]) -> tuple[float, float]:
    """Least and most that a coefficient may be given as: no floor above every run, no number that ends beyond any."""
    if index == model.form.floor:
        return NUMBERS[0], float(np.exp(y_N.max()))
    if index < model.terms:
        return NUMBERS
    shift = model.u_center if model.names[index] == BEND_PARAMETERS[1] else 0.0
    return bounds[0] + shift, bounds[1] + shift
