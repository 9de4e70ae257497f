"""Smooths noisy means by a Gaussian process whose noise is known.

Notation:

    ======  =============================================================  ========
    symbol  meaning                                                        shape
    ======  =============================================================  ========
    X       evaluated points, choices as corners of a simplex              (m, p)
    y       released values                                                (m,)
    sigma   standard deviation of their noise, known from the plan         scalar
    l, a    length-scale and amplitude (prior variance), chosen by the     scalar
            marginal likelihood of the releases
    c       constant mean, by generalised least squares                    scalar
    Q, v    eigenvectors and eigenvalues of K(X, X)                        (m, m)
    V       a v + sigma²: eigenvalues of the covariance of y               (m,)
    M       inverse of the Cholesky factor of the covariance of y          (m, m)
    z, u    M y and M 1: values and constant, whitened                     (m,)
    ======  =============================================================  ========

The least of m noisy values lies about sigma sqrt(2 ln m) too low, and its parameters are those of
a lucky draw. Everything here reads releases only, so it costs nothing.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from privbo_plugins.models.kernels import Matern52

Array = NDArray[np.float64]

LENGTHSCALES = np.geomspace(0.08, 3.0, 10)
"""Candidates of l over sqrt(p / 2), in units of the unit cube."""

_SPREADS = np.geomspace(0.1, 10.0, 9)
"""Candidates of sqrt(a), in standard deviations of the released values."""

MOST = 1200
"""Values that are smoothed, the latest; one more factorisation costs a cube."""

_TINY = 1e-9
"""Noise in spreads of the values where there is none: mu = infinity."""


class Scales(NamedTuple):
    """What a covariance of values depends on: l, a and sigma."""

    lengthscale: float
    amplitude: float
    sigma: float


class Smoother:
    """Posterior of the exact means, given all that has been released.

    Args:
        X: Evaluated points, shape (m, p), m >= 1.
        y: Released values, shape (m,).
        sigma: Standard deviation of their noise, >= 0.
        lengths: Candidates of l in units of the unit cube; None for the default ones.

    Example:
        >>> x = np.linspace(0, 1, 30)[:, None]
        >>> noise = 0.1 * np.random.default_rng(0).standard_normal(30)
        >>> mean, _ = Smoother(x, (x[:, 0] - 0.3) ** 2 + noise, 0.1).posterior(x)
        >>> bool(abs(x[mean.argmin(), 0] - 0.3) < 0.15)
        True
    """

    def __init__(
        self, X: Array, y: Array, sigma: float, lengths: Sequence[float] | None = None
    ) -> None:
        self._X, y = X[-MOST:], y[-MOST:]
        spread = max(float(np.std(y)), sigma) or 1.0
        s2 = max(sigma, _TINY * spread) ** 2
        if lengths is None:
            lengths = (LENGTHSCALES * math.sqrt(X.shape[1] / 2)).tolist()
        fits = (self._fit(length, spread, y, s2) for length in lengths)
        _, self.lengthscale, self.amplitude, self._Q, self._V, self.constant = max(
            fits, key=lambda fit: fit[0]
        )
        self.scales = Scales(self.lengthscale, self.amplitude, math.sqrt(s2))
        self._kernel = Matern52(self.lengthscale)
        self._weights = self._Q @ ((self._Q.T @ (y - self.constant)) / self._V)

    def _fit(
        self, length: float, spread: float, y: Array, s2: float
    ) -> tuple[float, float, float, Array, Array, float]:
        """The best amplitude of one length-scale, with its marginal log likelihood."""
        v, Q = np.linalg.eigh(Matern52(length).k(self._X, self._X))
        v, z, u = np.maximum(v, 0.0), Q.T @ y, Q.sum(axis=0)
        a = (_SPREADS * spread) ** 2
        V = a[:, None] * v + s2
        c = (u * z / V).sum(axis=1) / (u * u / V).sum(axis=1)
        r = z - c[:, None] * u
        found = -0.5 * (r * r / V + np.log(V)).sum(axis=1)
        best = int(found.argmax())
        return float(found[best]), length, float(a[best]), Q, V[best], float(c[best])

    def posterior(self, X: Array) -> tuple[Array, Array]:
        """Posterior mean and standard deviation of the exact means at X, shape (x,) each.

        The deviation counts that c is estimated too: with one release it is that of its noise.
        """
        k = self.amplitude * self._kernel.k(self._X, X)
        root = np.sqrt(self._V)
        whitened, u = (self._Q.T @ k) / root[:, None], self._Q.sum(axis=0) / root
        of_constant = (1.0 - u @ whitened) ** 2 / (u @ u)
        variance = self.amplitude - (whitened**2).sum(axis=0) + of_constant
        return self.constant + k.T @ self._weights, np.sqrt(np.maximum(variance, 0.0))


class GrowingSmoother:
    """The posterior under given scales, to which values are added one at a time, in O(m²) each.

    Args:
        scales: Of the covariance.
        X: The first points, shape (m, p).
        y: Their values, shape (m,).
    """

    def __init__(self, scales: Scales, X: Array, y: Array) -> None:
        self.scales, self.m = scales, len(y)
        self._kernel = Matern52(scales.lengthscale)
        K = scales.amplitude * self._kernel.k(X, X) + scales.sigma**2 * np.eye(len(y))
        self._X, self._M = X, np.linalg.inv(np.linalg.cholesky(K))
        self._zu = self._M @ np.column_stack([y, np.ones(len(y))])

    def add(self, x: Array, y: float) -> None:
        """Adds a value (y) at a point x (p,)."""
        if self.m == len(self._X):
            self._make_room()
        m, noise = self.m, self.scales.sigma**2
        w = self._whitened(x[None])[:, 0]
        d = math.sqrt(max(self.scales.amplitude + noise - float(w @ w), noise))
        self._M[m, :m], self._M[m, m], self._X[m] = -(w @ self._M[:m, :m]) / d, 1.0 / d, x
        self._zu[m] = (np.array([y, 1.0]) - w @ self._zu[:m]) / d
        self.m += 1

    def _make_room(self) -> None:
        more = (0, max(16, self.m))
        self._X, self._zu = (np.pad(array, (more, (0, 0))) for array in (self._X, self._zu))
        self._M = np.pad(self._M, (more, more))

    def _whitened(self, X: Array) -> Array:
        """M k(X), shape (m, x)."""
        k = self.scales.amplitude * self._kernel.k(self._X[: self.m], X)
        return np.asarray(self._M[: self.m, : self.m] @ k)

    def posterior(self, x: Array, own: Array, y: float) -> tuple[float, float]:
        """Posterior mean and standard deviation at x, given one more value (y) at a point (own).

        The deviation counts that c is estimated too.
        """
        X, (z, u) = np.array([x, own]), self._zu[: self.m].T
        w, uu = self._whitened(X), float(u @ u)
        c, of_constant = float(u @ z) / uu, 1.0 - u @ w
        f = c + w.T @ (z - c * u)
        S = self.scales.amplitude * self._kernel.k(X, X) - w.T @ w
        S += np.outer(of_constant, of_constant) / uu
        gain = S[0, 1] / (S[1, 1] + self.scales.sigma**2)
        s2 = float(S[0, 0] - gain * S[0, 1])
        return float(f[0] + gain * (y - f[1])), math.sqrt(max(s2, 0.0))
