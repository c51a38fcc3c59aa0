"""A Bayesian model of a figure that is a sum over units: the regression behind the surrogate.

A figure `y` of a plan `x` (relative time, quality drop) is modelled as

    y = offset + (sum_u exp(prior[u, x_u] + eta[u, x_u])) ** root + noise
    eta[u, k] = s_global * w + s_format * w_k + s_unit * w_u + s_cell * w_uk,   every w ~ N(0, 1)

so what one run tells about a unit or a format is shared with the plans that use it elsewhere, and
contributions stay positive: a plan that did no harm vouches for every unit in it. The model is linear in
`w` after the exponential, and is fitted by Gauss-Newton to the mode, with the Gaussian (Laplace)
posterior there; see Bishop, "Pattern Recognition and Machine Learning", sections 3.3 and 4.4. All
algebra is in the dual form, so its cost grows with runs (n³) and only linearly with units × formats.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import scipy.linalg
from numpy.typing import NDArray

Floats = NDArray[np.float64]
Ints = NDArray[np.intp]

ITERATIONS = 12
MAX_SHIFT = 8.0
"""Largest |eta| that a draw may take: a factor of 3 000 away from the profile."""


@dataclass(frozen=True, slots=True)
class AdditivePrior:
    """What is believed before any run.

    Attributes:
        log_table: `[U, K]` log of the expected contribution; `-inf` where there is none.
        global_std: Standard deviation (in log units) of the common scale.
        format_std: Of each format's own factor.
        unit_std: Of each unit's own factor.
        cell_std: Of each unit × format pair's own factor.
        offset: Expected figure of a plan without contributions.
        offset_std: Its standard deviation.
        root: The power that the sum is raised to.
        noise: Expected standard deviation of a run's noise.
        noise_floor: Smallest standard deviation that is believed.
    """

    log_table: Floats
    global_std: float
    format_std: float
    unit_std: float
    cell_std: float
    offset: float
    offset_std: float
    root: float
    noise: float
    noise_floor: float


class AdditivePosterior:
    """The prior conditioned on runs.

    Args:
        prior: The prior.
        assignments: `[n, U]` format indices of the measured plans; `n` may be 0.
        values: `[n]` measured figures, finite.
        misfit: `[n]` standard deviation by which the law itself may be wrong for each run, beside noise.

    Attributes:
        table: `[U, K]` contributions at the mode.
        offset: The figure of a plan without contributions, at the mode.
        noise: Estimated standard deviation of a run's noise.
        log_evidence: Laplace approximation to the log of the marginal likelihood.
    """

    def __init__(self, prior: AdditivePrior, assignments: Ints, values: Floats, misfit: Floats) -> None:
        self.prior = prior
        self._plans = assignments
        units, formats = prior.log_table.shape
        self._shape = (units, formats)
        self._weights = np.zeros(2 + formats + units + units * formats)
        self.noise = prior.noise
        self.log_evidence = 0.0
        self._solve(values, misfit)
        self.table = self._table(self._weights)
        self.offset = self._offset(self._weights)

    def predict(self, assignments: Ints) -> tuple[Floats, Floats]:
        """Return mode and standard deviation of the noise-free figure of plans `[N, U]`."""
        mean, jacobian = self._linearise(self._weights, assignments)
        variance = np.einsum("np,np->n", jacobian, jacobian)
        if len(self._plans):
            half = scipy.linalg.solve_triangular(
                self._factor, self._jacobian @ jacobian.T, lower=True, check_finite=False
            )
            variance = variance - np.einsum("mn,mn->n", half, half)
        return mean, np.sqrt(np.maximum(variance, 0.0))

    def draw(self, rng: np.random.Generator, count: int) -> tuple[Floats, Floats]:
        """Return `count` posterior draws: tables `[count, U, K]` and offsets `[count]`.

        Drawn by conditioning prior draws on the runs (Matheron's rule), which needs no covariance matrix.
        """
        weights = rng.standard_normal((count, len(self._weights)))
        if len(self._plans):
            noise = rng.standard_normal((count, len(self._plans))) * self._spread
            residual = weights @ self._jacobian.T + noise
            weights = weights - _cho_solve(self._factor, residual.T).T @ self._jacobian
        weights = weights + self._weights
        return self._table(weights), self._offset(weights)

    def log_std(self) -> Floats:
        """Return the posterior standard deviation of the log of each contribution, `[U, K]`."""
        units, formats = self._shape
        p = self.prior
        total = p.global_std**2 + p.format_std**2 + p.unit_std**2 + p.cell_std**2
        if not len(self._plans):
            return np.full(self._shape, np.sqrt(total))
        half = scipy.linalg.solve_triangular(self._factor, self._jacobian, lower=True, check_finite=False)
        parts = self._split(half)
        cross = (
            p.global_std * parts[0][:, :, None]
            + p.format_std * parts[1][:, None, :]
            + p.unit_std * parts[2][:, :, None]
            + p.cell_std * parts[3].reshape(-1, units, formats)
        )
        return np.asarray(np.sqrt(np.maximum(total - np.einsum("nuk,nuk->uk", cross, cross), 0.0)))

    def _solve(self, values: Floats, misfit: Floats) -> None:
        if not len(values):
            return
        objective = np.inf
        for _ in range(ITERATIONS):
            self._spread = np.sqrt(self.noise**2 + misfit**2)
            mean, jacobian = self._linearise(self._weights, self._plans)
            self._factor_at(jacobian)
            target = values - mean + jacobian @ self._weights
            proposal = jacobian.T @ _cho_solve(self._factor, target)
            before, objective = objective, self._step(proposal, values)
            moved = self._update_noise(values, misfit)
            if before - objective < 0.02 and moved < 0.1:
                break
        self._spread = np.sqrt(self.noise**2 + misfit**2)
        mean, jacobian = self._linearise(self._weights, self._plans)
        self._factor_at(jacobian)
        self.log_evidence = -self._loss(self._weights, values) - float(np.log(np.diag(self._factor)).sum())

    def _factor_at(self, jacobian: Floats) -> None:
        self._jacobian = jacobian
        self._gram = jacobian @ jacobian.T
        total = self._gram + np.diag(self._spread**2)
        self._factor = np.asarray(scipy.linalg.cholesky(total, lower=True, check_finite=False))

    def _step(self, proposal: Floats, values: Floats) -> float:
        """Move towards the proposal as far as that lowers the loss; return the new loss."""
        start = self._loss(self._weights, values)
        for fraction in (1.0, 0.5, 0.2, 0.05):
            moved = self._weights + fraction * (proposal - self._weights)
            loss = self._loss(moved, values)
            if loss < start:
                self._weights = moved
                return loss
        return start

    def _loss(self, weights: Floats, values: Floats) -> float:
        residual = (values - self._figure(weights, self._plans)[0]) / self._spread
        return 0.5 * float(residual @ residual + weights @ weights)

    def _update_noise(self, values: Floats, misfit: Floats) -> float:
        """Do one expectation-maximisation step for the noise; return by how much (relative) it moved.

        The prior counts as two runs of the expected noise.
        """
        residual = values - self._figure(self._weights, self._plans)[0]
        share = self.noise**2 / (self.noise**2 + misfit**2)
        half = scipy.linalg.solve_triangular(self._factor, self._gram, lower=True, check_finite=False)
        fitted = np.maximum(np.diag(self._gram) - np.einsum("mn,mn->n", half, half), 0.0)
        expected = share**2 * (residual**2 + fitted) + share * misfit**2
        variance = (2 * self.prior.noise**2 + expected.sum()) / (2 + len(values))
        noise = max(float(np.sqrt(variance)), self.prior.noise_floor)
        moved = abs(np.log(noise / self.noise))
        self.noise = noise
        return float(moved)

    def _table(self, weights: Floats) -> Floats:
        glob, fmt, unit, cell = self._split(weights)[:4]
        p = self.prior
        eta = (
            p.global_std * glob[..., None]
            + p.format_std * fmt[..., None, :]
            + p.unit_std * unit[..., :, None]
            + p.cell_std * cell.reshape(*cell.shape[:-1], *self._shape)
        )
        return np.asarray(np.exp(p.log_table + np.clip(eta, -MAX_SHIFT, MAX_SHIFT)))

    def _offset(self, weights: Floats) -> Floats:
        return np.asarray(self.prior.offset + self.prior.offset_std * weights[..., -1])

    def _split(self, weights: Floats) -> tuple[Floats, Floats, Floats, Floats]:
        units, formats = self._shape
        ends = np.cumsum([1, formats, units, units * formats])
        return (
            weights[..., : ends[0]],
            weights[..., ends[0] : ends[1]],
            weights[..., ends[1] : ends[2]],
            weights[..., ends[2] : ends[3]],
        )

    def _figure(self, weights: Floats, assignments: Ints) -> tuple[Floats, Floats, Floats]:
        """Return figures `[N]`, contributions `[N, U]` and their sums `[N]`."""
        parts = self._table(weights)[np.arange(self._shape[0]), assignments]
        total = parts.sum(axis=1)
        return self._offset(weights) + total**self.prior.root, parts, total

    def _linearise(self, weights: Floats, assignments: Ints) -> tuple[Floats, Floats]:
        """Return figures `[N]` and their derivatives by the weights `[N, P]`."""
        p = self.prior
        units, formats = self._shape
        figure, parts, total = self._figure(weights, assignments)
        slope = p.root * np.maximum(total, 1e-300) ** (p.root - 1)
        gradient = np.where(parts > 0, parts * slope[:, None], 0.0)
        cells = np.zeros((len(assignments), units, formats))
        np.put_along_axis(cells, assignments[:, :, None], gradient[:, :, None], axis=2)
        jacobian = np.concatenate(
            [
                p.global_std * gradient.sum(axis=1, keepdims=True),
                p.format_std * cells.sum(axis=1),
                p.unit_std * gradient,
                p.cell_std * cells.reshape(len(assignments), -1),
                np.full((len(assignments), 1), p.offset_std),
            ],
            axis=1,
        )
        return figure, jacobian


def _cho_solve(factor: Floats, right: Floats) -> Floats:
    return np.asarray(scipy.linalg.cho_solve((factor, True), right, check_finite=False))
