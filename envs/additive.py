"""A Bayesian model of a figure that is a sum over units: the regression behind the surrogate.

A figure `y` of a plan `x` (relative time, quality drop) is modelled as

    y = offset + (sum_u c_u + sum_u pair_u) ** root + noise,    c_u = exp(prior[u, x_u] + eta[u, x_u])
    eta[u, k] = s_global * w + s_format * w_k + s_unit * w_u + s_cell * w_uk,   every w ~ N(0, 1)
    pair_u = coupling * sqrt(c_u * c_{u+1})  +  [x_u != x_{u+1}] * border_u * (p_u + p_{u+1}) / 2

so what one run tells about a unit or a format is shared with the plans that use it elsewhere, and
contributions stay positive: a plan that did no harm vouches for every unit in it. Neighbours in execution
order interact in two ways: errors that compound (`coupling`), and conversions where the format changes, whose
cost goes with the expected contributions `p` of both (`border`). The model is linear in `w` after the
exponential, and is fitted by Gauss-Newton to the mode, with the Gaussian (Laplace)
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
CHUNK = 256
"""Plans evaluated at once: one-hot, 1 000 units of 17 formats are 136 kB each."""
PRIOR_RUNS = 4
"""Runs that the prior's noise and misfit count as."""
MISFIT_SCALES = (0.1, 30.0)
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
        cell_std: `[U, K]` of each unit × format pair's own factor.
        offset: Expected figure of a plan without contributions.
        offset_std: Its standard deviation.
        root: The power that the sum is raised to.
        noise: Expected standard deviation of a run's noise.
        noise_floor: Smallest standard deviation that is believed.
        coupling: Expected strength with which neighbours' contributions compound.
        coupling_std: Its standard deviation.
        border_std: Standard deviation of what a change of format costs, as a share of both contributions:
            once for all borders together, and once for each.
    """

    log_table: Floats
    global_std: float
    format_std: float
    unit_std: float
    cell_std: Floats
    offset: float
    offset_std: float
    root: float
    noise: float
    noise_floor: float
    coupling: float = 0.0
    coupling_std: float = 0.0
    border_std: float = 0.0


@dataclass(frozen=True, slots=True)
class AdditiveDraws:
    """`S` equally likely laws that give the figure of any plan.

    Attributes:
        table: `[S, U, K]` contributions.
        offset: `[S]` figure of a plan without contributions.
        coupling: `[S]` strength with which neighbours compound.
        border: `[S, U - 1]` what a change of format costs, as a share.
        expected: `[U, K]` contributions that the shares are of.
        root: The power that the sum is raised to.
    """

    table: Floats
    offset: Floats
    coupling: Floats
    border: Floats
    expected: Floats
    root: float

    def evaluate(self, assignments: Ints) -> Floats:
        """Return figures `[S, N]` of plans `[N, U]`."""
        return self._figure(
            np.concatenate(
                [
                    self._sums(assignments[start : start + CHUNK])
                    for start in range(0, len(assignments), CHUNK)
                ]
                or [np.zeros((len(self.offset), 0))],
                axis=1,
            )
        )

    def evaluate_changes(self, assignment: Ints, units: Ints, formats: Ints) -> Floats:
        """Return figures `[S, N]` of plans that differ from one plan `[U]` in one unit each.

        The cost of a plan does not depend on the number of units.

        Args:
            assignment: The plan.
            units: `[N]` which unit changes.
            formats: `[N]` the format that it gets.
        """
        count = len(assignment)
        total = self._sums(assignment[None])
        own = self.table[:, np.arange(count), assignment]
        new = self.table[:, units, formats]
        total = total + new - own[:, units]
        if self.coupling.any():
            roots = np.sqrt(np.pad(own, ((0, 0), (1, 1))))
            beside = roots[:, units] + roots[:, units + 2]
            total = total + self.coupling[:, None] * (np.sqrt(new) - roots[:, units + 1]) * beside
        if self.border.any():
            parts = self.expected[np.arange(count), assignment]
            changed = self.expected[units, formats]
            for side in (-1, 1):
                inside = (units + side >= 0) & (units + side < count)
                other = np.clip(units + side, 0, count - 1)
                gap = np.minimum(units, other)  # the border between a unit and the one before is the lower's
                before = np.where(assignment[units] != assignment[other], parts[units] + parts[other], 0.0)
                after = np.where(formats != assignment[other], changed + parts[other], 0.0)
                weight = self.border[:, np.minimum(gap, count - 2)] * inside
                total = total + weight * (after - before) / 2
        return self._figure(total)

    def _sums(self, assignments: Ints) -> Floats:
        """Return the sums `[S, N]` under the power."""
        draws, units, formats = self.table.shape
        hot = np.zeros((len(assignments), units, formats))
        np.put_along_axis(hot, assignments[:, :, None], 1.0, axis=2)
        total = self.table.reshape(draws, -1) @ hot.reshape(len(assignments), -1).T
        if self.border.any():
            total = total + self.border @ border_costs(self.expected, assignments).T
        if self.coupling.any():
            roots = np.sqrt(self.table[:, np.arange(units), assignments])
            total = total + self.coupling[:, None] * (roots[..., 1:] * roots[..., :-1]).sum(axis=-1)
        return np.asarray(total)

    def _figure(self, total: Floats) -> Floats:
        return np.asarray(self.offset[:, None] + np.maximum(total, 0.0) ** self.root)

    def evaluate_each(self, assignments: Ints) -> Floats:
        """Return figures `[S]` of one plan `[S, U]` under each law."""
        parts = self.table[np.arange(len(assignments))[:, None], np.arange(assignments.shape[1]), assignments]
        roots = np.sqrt(parts)
        total = parts.sum(axis=1) + self.coupling * (roots[:, 1:] * roots[:, :-1]).sum(axis=1)
        total = total + (self.border * border_costs(self.expected, assignments)).sum(axis=1)
        return np.asarray(self.offset + np.maximum(total, 0.0) ** self.root)


def border_costs(expected: Floats, assignments: Ints) -> Floats:
    """Return, where the format changes from a unit to the next, the mean of what both are expected to cost.

    Args:
        expected: `[U, K]` contributions.
        assignments: `[N, U]` plans.

    Returns:
        `[N, U - 1]`, 0 where the format stays.
    """
    parts = expected[np.arange(assignments.shape[1]), assignments]
    changes = assignments[:, 1:] != assignments[:, :-1]
    return np.asarray(np.where(changes, (parts[:, 1:] + parts[:, :-1]) / 2, 0.0))


class AdditivePosterior:
    """The prior conditioned on runs.

    Args:
        prior: The prior.
        assignments: `[n, U]` format indices of the measured plans; `n` may be 0.
        values: `[n]` measured figures, finite.
        misfit: `[n]` standard deviation by which the law itself may be wrong for each run, beside noise, up
            to a factor that the runs tell.
        error: `[n]` standard deviation of a further, known error of each figure; `None` for none.

    Attributes:
        table: `[U, K]` contributions at the mode.
        noise: Estimated standard deviation of a run's noise.
        misfit_scale: Estimated factor of `misfit`.
        log_evidence: Laplace approximation to the log of the marginal likelihood.
    """

    def __init__(
        self,
        prior: AdditivePrior,
        assignments: Ints,
        values: Floats,
        misfit: Floats,
        error: Floats | None = None,
    ) -> None:
        self.prior = prior
        self._error = np.zeros(len(values)) if error is None else error
        self._plans = assignments
        units, formats = prior.log_table.shape
        self._shape = (units, formats)
        self._expected = np.exp(prior.log_table)
        self._weights = np.zeros(1 + formats + units + units * formats + 1 + max(units - 1, 0) + 2)
        self.noise = prior.noise
        self.misfit_scale = 1.0
        self.log_evidence = 0.0
        self._solve(values, misfit)
        self.table = self._table(self._weights)

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

    def mode(self) -> AdditiveDraws:
        """Return the most likely law, as one draw."""
        return self._law(self._weights[None])

    def draw(self, rng: np.random.Generator, count: int) -> AdditiveDraws:
        """Return `count` posterior draws.

        Drawn by conditioning prior draws on the runs (Matheron's rule), which needs no covariance matrix.
        """
        weights = rng.standard_normal((count, len(self._weights)))
        if len(self._plans):
            noise = rng.standard_normal((count, len(self._plans))) * self._spread
            residual = weights @ self._jacobian.T + noise
            weights = weights - _cho_solve(self._factor, residual.T).T @ self._jacobian
        return self._law(weights + self._weights)

    def log_std(self) -> Floats:
        """Return the posterior standard deviation of the log of each contribution, `[U, K]`."""
        units, formats = self._shape
        p = self.prior
        total = p.global_std**2 + p.format_std**2 + p.unit_std**2 + p.cell_std**2
        if not len(self._plans):
            return np.asarray(np.sqrt(total))
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
            self._spread = self._deviation(misfit)
            mean, jacobian = self._linearise(self._weights, self._plans)
            self._factor_at(jacobian)
            target = values - mean + jacobian @ self._weights
            proposal = jacobian.T @ _cho_solve(self._factor, target)
            before, objective = objective, self._step(proposal, values)
            moved = self._update_noise(values, misfit)
            if before - objective < 0.02 and moved < 0.1:
                break
        self._spread = self._deviation(misfit)
        mean, jacobian = self._linearise(self._weights, self._plans)
        self._factor_at(jacobian)
        self.log_evidence = -self._loss(self._weights, values) - float(np.log(np.diag(self._factor)).sum())

    def _deviation(self, misfit: Floats) -> Floats:
        return np.asarray(np.sqrt(self.noise**2 + (self.misfit_scale * misfit) ** 2 + self._error**2))

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
        """Do one expectation-maximisation step for noise and misfit; return how far (relative) they moved.

        The prior counts as so many runs of the expected noise, and of the expected misfit.
        """
        residual = values - self._figure(self._weights, self._plans)[0]
        total = self._deviation(misfit) ** 2
        share, wrong_share = self.noise**2 / total, (self.misfit_scale * misfit) ** 2 / total
        half = scipy.linalg.solve_triangular(self._factor, self._gram, lower=True, check_finite=False)
        fitted = np.maximum(np.diag(self._gram) - np.einsum("mn,mn->n", half, half), 0.0)
        square = residual**2 + fitted
        expected = share**2 * square + share * (1 - share) * total
        variance = (PRIOR_RUNS * self.prior.noise**2 + expected.sum()) / (PRIOR_RUNS + len(values))
        noise = max(float(np.sqrt(variance)), self.prior.noise_floor)
        # What is not noise is misfit: each run tells of its factor as far as misfit explains its residual.
        wrong = wrong_share**2 * square + wrong_share * (1 - wrong_share) * total
        told = misfit > 1e-3 * self.noise
        seen = np.where(told, wrong / np.where(told, misfit, 1.0) ** 2, self.misfit_scale**2)
        ratio = (PRIOR_RUNS + seen.sum()) / (PRIOR_RUNS + len(values))
        scale = float(np.clip(np.sqrt(ratio), *MISFIT_SCALES))
        moved = abs(np.log(noise / self.noise)) + abs(np.log(scale / self.misfit_scale))
        self.noise, self.misfit_scale = noise, scale
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

    def _law(self, weights: Floats) -> AdditiveDraws:
        """Return the laws of weights `[S, P]`."""
        p = self.prior
        shared, each = self._split(weights)[4:6]
        return AdditiveDraws(
            table=self._table(weights),
            offset=p.offset + p.offset_std * weights[:, -1],
            coupling=p.coupling + p.coupling_std * weights[:, -2],
            border=p.border_std * (shared + each),
            expected=self._expected,
            root=p.root,
        )

    def _split(self, weights: Floats) -> list[Floats]:
        """Return the weights of all, of formats, units, cells, all borders, each border; and the rest."""
        units, formats = self._shape
        ends = np.cumsum([1, formats, units, units * formats, 1, max(units - 1, 0)])
        return np.split(weights, ends, axis=-1)

    def _figure(self, weights: Floats, assignments: Ints) -> tuple[Floats, Floats, Floats, Floats]:
        """Return figures `[N]`, contributions `[N, U]`, sums `[N]`, and costs of borders `[N, U - 1]`."""
        law = self._law(weights[None])
        parts = law.table[0][np.arange(self._shape[0]), assignments]
        borders = border_costs(self._expected, assignments)
        roots = np.sqrt(parts)
        total = parts.sum(axis=1) + law.coupling[0] * (roots[:, 1:] * roots[:, :-1]).sum(axis=1)
        total = np.maximum(total + borders @ law.border[0], 0.0)
        return law.offset[0] + total**self.prior.root, parts, total, borders

    def _linearise(self, weights: Floats, assignments: Ints) -> tuple[Floats, Floats]:
        """Return figures `[N]` and their derivatives by the weights `[N, P]`."""
        p = self.prior
        units, formats = self._shape
        figure, parts, total, borders = self._figure(weights, assignments)
        slope = np.where(total > 0, p.root * np.maximum(total, 1e-300) ** (p.root - 1), 0.0)
        compound = np.sqrt(parts[:, 1:] * parts[:, :-1])
        coupling = p.coupling + p.coupling_std * weights[-2]
        own = parts.copy()  # the derivative of the sum by a unit's log contribution
        own[:, 1:] += coupling / 2 * compound
        own[:, :-1] += coupling / 2 * compound
        gradient = own * slope[:, None]
        cells = np.zeros((len(assignments), units, formats))
        np.put_along_axis(cells, assignments[:, :, None], gradient[:, :, None], axis=2)
        jacobian = np.concatenate(
            [
                p.global_std * gradient.sum(axis=1, keepdims=True),
                p.format_std * cells.sum(axis=1),
                p.unit_std * gradient,
                (p.cell_std * cells).reshape(len(assignments), -1),
                p.border_std * slope[:, None] * borders.sum(axis=1, keepdims=True),
                p.border_std * slope[:, None] * borders,
                p.coupling_std * (slope * compound.sum(axis=1))[:, None],
                np.full((len(assignments), 1), p.offset_std),
            ],
            axis=1,
        )
        return figure, jacobian


def _cho_solve(factor: Floats, right: Floats) -> Floats:
    return np.asarray(scipy.linalg.cho_solve((factor, True), right, check_finite=False))
