"""Smooths noisy means by a Gaussian process whose noise is known.

Notation:

    ======  =============================================================  ========
    symbol  meaning                                                        shape
    ======  =============================================================  ========
    X       evaluated points, choices as corners of a simplex              (m, p)
    y       released values                                                (m,)
    sigma   standard deviation of their noise, known from the plan; where  scalar
            values have their own, the median
    S       sigma over the noise of each value                             (m,)
    l, a    length-scale and amplitude (prior variance), chosen by the     scalar
            marginal likelihood of the releases
    c       constant mean, by generalised least squares                    scalar
    Q, v    eigenvectors and eigenvalues of S K(X, X) S                    (m, m)
    V       a v + sigma²: eigenvalues of the covariance of S y             (m,)
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

_LEAST = 0.1
"""Of the median noise: less, as estimates of noise may say, would make one value count alone."""

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
        sigma: Standard deviation of their noise, >= 0, or of each value's, shape (m,).
        lengths: Candidates of l in units of the unit cube; None for the default ones.

    Example:
        >>> x = np.linspace(0, 1, 30)[:, None]
        >>> noise = 0.1 * np.random.default_rng(0).standard_normal(30)
        >>> mean, _ = Smoother(x, (x[:, 0] - 0.3) ** 2 + noise, 0.1).posterior(x)
        >>> bool(abs(x[mean.argmin(), 0] - 0.3) < 0.15)
        True
    """

    def __init__(
        self, X: Array, y: Array, sigma: float | Array, lengths: Sequence[float] | None = None
    ) -> None:
        self._X, y = X[-MOST:], y[-MOST:]
        noise = np.full(len(y), sigma) if np.ndim(sigma) == 0 else np.asarray(sigma)[-MOST:]
        spread = max(float(np.std(y)), float(np.median(noise))) or 1.0
        noise = np.maximum(noise, max(_TINY * spread, _LEAST * float(np.median(noise))))
        s2 = float(np.median(noise)) ** 2
        self._S = math.sqrt(s2) / noise
        if lengths is None:
            lengths = (LENGTHSCALES * math.sqrt(X.shape[1] / 2)).tolist()
        self._fit(np.array(lengths), spread, y, s2)
        self.scales = Scales(self.lengthscale, self.amplitude, math.sqrt(s2))
        self._kernel = Matern52(self.lengthscale)
        self._weights = self._Q @ ((self._Q.T @ (self._S * (y - self.constant))) / self._V)

    def _fit(self, lengths: Array, spread: float, y: Array, s2: float) -> None:
        """Takes the length-scale and the amplitude with the largest marginal likelihood."""
        q = Matern52()._q(self._X, self._X)
        S = self._S
        K = Matern52().kappa(q / lengths[:, None, None] ** 2)[0] * np.outer(S, S)
        v, Q = np.linalg.eigh(K)
        v, z, u = np.maximum(v, 0.0)[:, None], (S * y) @ Q[:, None], S @ Q[:, None]
        a = (_SPREADS * spread) ** 2
        V = a[:, None] * v + s2
        c = (u * z / V).sum(axis=2) / (u * u / V).sum(axis=2)
        r = z - c[:, :, None] * u
        found = -0.5 * (r * r / V + np.log(V)).sum(axis=2)
        i, j = np.unravel_index(found.argmax(), found.shape)
        self.lengthscale, self.amplitude = float(lengths[i]), float(a[j])
        self._Q, self._V, self.constant = Q[i], V[i, j], float(c[i, j])

    def posterior(self, X: Array) -> tuple[Array, Array]:
        """Posterior mean and standard deviation of the exact means at X, shape (x,) each.

        The deviation counts that c is estimated too: with one release it is that of its noise.
        """
        k = self.amplitude * self._kernel.k(self._X, X) * self._S[:, None]
        root = np.sqrt(self._V)
        whitened, u = (self._Q.T @ k) / root[:, None], self._S @ self._Q / root
        of_constant = (1.0 - u @ whitened) ** 2 / (u @ u)
        variance = self.amplitude - (whitened**2).sum(axis=0) + of_constant
        return self.constant + k.T @ self._weights, np.sqrt(np.maximum(variance, 0.0))

    def difference(self, x: Array, other: Array) -> tuple[float, float]:
        """Posterior mean and standard deviation of the exact mean at x less that at another point.

        Args:
            x: One point, shape (p,).
            other: The other one, likewise.
        """
        P, of = np.array([x, other]), np.array([1.0, -1.0])
        k = self.amplitude * self._S * (self._kernel.k(self._X, P) @ of)
        prior = self.amplitude * (of @ self._kernel.k(P, P) @ of)
        root = np.sqrt(self._V)
        whitened, u = (self._Q.T @ k) / root, self._S @ self._Q / root
        variance = prior - whitened @ whitened + (u @ whitened) ** 2 / (u @ u)
        return float(k @ self._weights), math.sqrt(max(float(variance), 0.0))


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
        self._last: tuple[int, Array, Array] = -1, X, y

    def add(self, x: Array, y: float) -> None:
        """Adds a value (y) at a point x (p,)."""
        if self.m == len(self._X):
            self._make_room()
        m, noise = self.m, self.scales.sigma**2
        w = self._whitened(x)
        d = math.sqrt(max(self.scales.amplitude + noise - float(w @ w), noise))
        self._M[m, :m], self._M[m, m], self._X[m] = -(w @ self._M[:m, :m]) / d, 1.0 / d, x
        self._zu[m] = (np.array([y, 1.0]) - w @ self._zu[:m]) / d
        self.m += 1

    def _make_room(self) -> None:
        more = (0, max(16, self.m))
        self._X, self._zu = (np.pad(array, (more, (0, 0))) for array in (self._X, self._zu))
        self._M = np.pad(self._M, (more, more))

    def _whitened(self, x: Array) -> Array:
        """M k(x), shape (m,); a trial's point is asked about before and while it is added."""
        m, known, w = self._last
        if m != self.m or not np.array_equal(known, x):
            k = self.scales.amplitude * self._kernel.k(self._X[: self.m], x[None])[:, 0]
            w = self._M[: self.m, : self.m] @ k
            self._last = self.m, x, w
        return w

    def posterior(self, x: Array, own: Array, y: float) -> tuple[float, float]:
        """Posterior mean and standard deviation at x, given one more value (y) at a point (own).

        The deviation counts that c is estimated too.
        """
        (z, u), a = self._zu[: self.m].T, self.scales.amplitude
        uu, (w, v) = float(u @ u), (self._whitened(at) for at in (x, own))
        c, e, g = float(u @ z) / uu, 1.0 - float(u @ w), 1.0 - float(u @ v)
        f, of_own = (c + float(one @ (z - c * u)) for one in (w, v))
        k = a if w is v else a * float(self._kernel.k(x[None], own[None])[0, 0])
        S, T, R = (k0 - float(p @ q) for k0, p, q in ((a, w, w), (k, w, v), (a, v, v)))
        both = T + e * g / uu
        gain = both / (R + g * g / uu + self.scales.sigma**2)
        s2 = S + e * e / uu - gain * both
        return f + gain * (y - of_own), math.sqrt(max(s2, 0.0))
