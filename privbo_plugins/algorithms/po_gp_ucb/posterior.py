"""Posterior of f at rows, and hyperparameters; notation as in :mod:`.modeler`."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import scipy
from numpy.typing import NDArray

from privbo_plugins.algorithms.po_gp_ucb.kernel import RowKernel, RowPrior

Array = NDArray[np.float64]


@dataclass(frozen=True)
class Hyperparameters:
    """What the model assumes of f and of outcomes.

    Attributes:
        lengthscale: l.
        s2: Variance of f.
        s2_n: Variance of an outcome's noise, privatising included.
        mean: Prior mean, for maximisation.
    """

    lengthscale: float
    s2: float
    s2_n: float
    mean: float


class RowPosterior:
    """Posterior of f given outcomes of rows; equation (1) with the kernel of noisy rows.

    Args:
        kernel: Covariance of rows.
        hyper: Hyperparameters.
        Z: Released rows, shape (n, r).
        rows: Rows told, in order; a row may be there twice.
        y: Their outcomes, shape (t,).
        out: Rows that are out: they shrink the deviation, and leave the mean.
    """

    def __init__(
        self,
        kernel: RowKernel,
        hyper: Hyperparameters,
        Z: Array,
        rows: Sequence[int],
        y: Array,
        out: Sequence[int],
    ) -> None:
        self._kernel, self._hyper = kernel, hyper
        told, both = list(rows), [*rows, *out]
        self._Z = Z[both]
        self._K = gram(kernel, self._Z, both)
        self._L = _factor(self._K, hyper.s2_n)
        known = self._L[: len(told), : len(told)]
        self._alpha = scipy.linalg.cho_solve((known, True), y - hyper.mean)

    def predict(self, Z: Array) -> tuple[Array, Array]:
        """Mean and standard deviation at rows that have not been told; both (n,)."""
        return self._at(self._kernel.cross(self._Z, Z), self._kernel.s2)

    def predict_shared(self, Z: Array) -> tuple[Array, Array]:
        """The same of g(u), f where a row is thought to lie; both (n,).

        s2 (1 - A) stays with each row after any answers of others. In a bound it would hide
        which places are known and which are not, and it is no reason to prefer any row.
        """
        return self._at(self._kernel.cross(self._Z, Z), self._kernel.shared)

    def predict_told(self, places: Sequence[int]) -> tuple[Array, Array]:
        """The same at rows that have, by their place among the told ones."""
        return self._at(self._K[:, list(places)], self._kernel.s2)

    def _at(self, k: Array, prior: float) -> tuple[Array, Array]:
        mu = self._hyper.mean + self._alpha @ k[: len(self._alpha)]
        S = scipy.linalg.solve_triangular(self._L, k, lower=True, check_finite=False)
        return mu, np.sqrt(np.maximum(prior - np.einsum("ij,ij->j", S, S), 0.0))


def gram(kernel: RowKernel, Z: Array, rows: Sequence[int]) -> Array:
    """K of rows Z with these numbers, in which a row may stand twice: then it is the same f."""
    listed = np.asarray(rows, dtype=np.int64)
    K = kernel.cross(Z, Z)
    K[listed[:, None] == listed] = kernel.s2
    return K


def _factor(K: Array, s2_n: float) -> Array:
    """Cholesky factor of K + s2_n I; a jitter keeps noise-free repeats positive definite."""
    jitter = 1e-10 * float(K[0, 0])
    return np.asarray(scipy.linalg.cholesky(K + (s2_n + jitter) * np.eye(len(K)), lower=True))


# Hyperparameters --------------------------------------------------------------------------------

_PRIOR = {
    "lengthscale": (math.log(0.4), 1.0),
    "s2": (0.0, 0.7),
    "s2_n": (math.log(0.03), 1.5),
}
"""Mean and deviation of the logarithms: of l in typical distances of rows, of the variances in
those of the outcomes told."""

_REACH = 4.0
"""Deviations from the mean that are searched."""

_FEWEST, _MOST = 3, 400
"""Outcomes from which on anything is fitted, and the last so many that are used."""


def fit(
    prior: RowPrior,
    Z: Array,
    rows: Sequence[int],
    y: Array,
    unit: float,
    mean: float,
    given: Mapping[str, float | None],
    answer_variance: float,
) -> Hyperparameters:
    """Fits what is not given, by maximum a posteriori on released rows and answers.

    The priors are weak: f changes on the scale of the table, and noise is smaller than signal.

    Args:
        prior: Of the rows.
        Z: Rows told, shape (t, r).
        rows: Their numbers.
        y: Their outcomes less the mean, for maximisation, shape (t,).
        unit: Standard deviation of the outcomes.
        mean: The mean.
        given: Values of "lengthscale", "s2" and "s2_n" that are known; None for those that are
            not.
        answer_variance: Known part of s2_n.
    """
    units = {"lengthscale": prior.scale, "s2": unit**2, "s2_n": unit**2}
    free = [name for name, value in given.items() if value is None]
    kept = {name: value for name, value in given.items() if value is not None}
    last = Z[-_MOST:], rows[-_MOST:], y[-_MOST:]

    def at(logs: Array) -> Hyperparameters:
        found = {name: units[name] * math.exp(u) for name, u in zip(free, logs, strict=True)}
        lengthscale, s2, s2_n = ({**kept, **found}[name] for name in units)
        return Hyperparameters(lengthscale, s2, s2_n + answer_variance, mean)

    def loss(logs: Array) -> float:
        known = at(logs)
        kernel = prior.kernel(known.lengthscale, known.s2)
        return _unlikely(free, logs) - log_likelihood(kernel, known.s2_n, *last)

    logs = np.array([_PRIOR[name][0] for name in free])
    if free and len(y) >= _FEWEST:
        logs = _best(loss, free, logs)
    return at(logs)


def _unlikely(free: Sequence[str], logs: Array) -> float:
    """-ln of the prior's density, up to a constant."""
    off = [(u - _PRIOR[name][0]) / _PRIOR[name][1] for name, u in zip(free, logs, strict=True)]
    return 0.5 * float(np.dot(off, off))


def _best(loss: Callable[[Array], float], free: Sequence[str], middle: Array) -> Array:
    """The best of three searches: from the middle, and from shorter and longer scales."""
    bounds = [(m - _REACH * s, m + _REACH * s) for m, s in (_PRIOR[name] for name in free)]
    starts = [middle]
    if "lengthscale" in free:
        shift = np.array([float(name == "lengthscale") for name in free])
        starts += [middle - shift, middle + shift]
    found = [
        scipy.optimize.minimize(loss, start, bounds=bounds, method="L-BFGS-B") for start in starts
    ]
    return np.asarray(min(found, key=lambda result: float(result.fun)).x)


def log_likelihood(
    kernel: RowKernel, s2_n: float, Z: Array, rows: Sequence[int], y: Array
) -> float:
    """Ln p(y | Z) of centred outcomes, shape (t,)."""
    L = _factor(gram(kernel, Z, rows), s2_n)
    white = scipy.linalg.solve_triangular(L, y, lower=True)
    return float(
        -0.5 * white @ white - np.log(np.diag(L)).sum() - 0.5 * len(y) * math.log(2 * math.pi)
    )
