"""How far any modeler could get on the grid: one that knows what no modeler is told.

It knows f's kernel and the law of the rows (uniform on the square) and of the noise, draws where
the rows asked truly lie from their posterior, and asks for the row of largest expected improvement
over the best answer, averaged over the draws.

Notation:

    ======  ===========================================================  ==========
    symbol  meaning                                                      shape
    ======  ===========================================================  ==========
    X       where the rows asked lie, one chain's state                  (t, 2)
    Z, s    released rows, and the standard deviation of their noise     (n, 2)
    u, v    mean and variance of each row given Z alone                  (n, 2)
    l       length-scale of f, whose variance is 1                       scalar
    ======  ===========================================================  ==========

The chains are Hamiltonian Monte Carlo (Neal, 2011), each going on where the last answer left it.
"""

from __future__ import annotations

import math

import numpy as np
import scipy
from numpy.typing import NDArray
from scipy.stats import norm

from benchmarks.outsourced_problems import RADIUS

Array = NDArray[np.float64]

REACH = RADIUS / math.sqrt(2)
"""Half the square's side."""

_CHAINS, _MOVES, _LEAPS = 8, 4, 12
_NOISE = 1e-3
"""Variance of an answer that keeps factors well conditioned."""
_WALL = 0.1
"""How far over the square's edge a draw may be, about."""


class Oracle:
    """Asks for rows.

    Args:
        Z: Released rows, shape (n, 2).
        s: Standard deviation of the noise in them, > 0.
        lengthscale: l.
        seed: Of the chains.
    """

    def __init__(self, Z: Array, s: float, lengthscale: float, seed: int) -> None:
        self._Z, self._s, self._l = Z, s, lengthscale
        self._u, self._v = _on_the_square(Z, s)
        self._rng = np.random.default_rng([seed, 9])
        self._chains = [np.empty((0, 2)) for _ in range(_CHAINS)]
        self._steps = np.full(_CHAINS, 0.15)
        self._rows: list[int] = []
        self._y: list[float] = []

    def tell(self, row: int, y: float) -> None:
        """Learns a row's answer."""
        self._rows.append(row)
        self._y.append(y)
        for c, X in enumerate(self._chains):
            drawn = self._u[row] + np.sqrt(self._v[row]) * self._rng.standard_normal(2)
            start = np.vstack([X, np.clip(drawn, -REACH, REACH)])
            self._chains[c], self._steps[c] = self._moved(start, float(self._steps[c]))

    def ask(self) -> int:
        """The row of largest expected improvement."""
        gain = np.sum([self._improvement(X) for X in self._chains], axis=0)
        gain[self._rows] = -np.inf
        return int(np.argmax(gain))

    def _improvement(self, X: Array) -> Array:
        y, width = np.array(self._y), np.sqrt(self._l**2 + self._v)
        L = np.linalg.cholesky(self._K(X) + _NOISE * np.eye(len(X)))
        k = np.ones((len(X), len(self._Z)))
        for p in range(2):
            off = (X[:, p, None] - self._u[:, p]) / width[:, p]
            k *= (self._l / width[:, p]) * np.exp(-0.5 * off**2)
        S = scipy.linalg.solve_triangular(L, k, lower=True)
        told = np.prod(self._l / np.sqrt(self._l**2 + 2 * self._v), axis=1)
        sd = np.sqrt(np.maximum(told - (S * S).sum(0), 1e-12))
        z = (scipy.linalg.cho_solve((L, True), y) @ k - y.max()) / sd
        return np.asarray(sd * (z * norm.cdf(z) + norm.pdf(z)))

    def _K(self, X: Array) -> Array:
        d = (X[:, None] - X) / self._l
        return np.asarray(np.exp(-0.5 * (d * d).sum(-1)))

    def _energy(self, X: Array) -> tuple[float, Array]:
        """-ln of the posterior's density up to a constant, and its gradient."""
        y, K = np.array(self._y), self._K(X)
        L = np.linalg.cholesky(K + _NOISE * np.eye(len(K)))
        S = scipy.linalg.cho_solve((L, True), np.eye(len(K)))
        alpha, off = S @ y, (X - self._Z[self._rows]) / self._s
        G = (S - np.outer(alpha, alpha)) * K
        out = np.sign(X) * np.maximum(np.abs(X) - REACH, 0.0) / _WALL
        energy = 0.5 * (y @ alpha + (off**2).sum() + (out**2).sum()) + np.log(np.diag(L)).sum()
        pull = (G @ X - G.sum(1)[:, None] * X) / self._l**2
        return float(energy), pull + off / self._s + out / _WALL

    def _moved(self, X: Array, step: float) -> tuple[Array, float]:
        """A chain some moves later, and its step, which aims at seven acceptances of ten."""
        energy, gradient = self._energy(X)
        for _ in range(_MOVES):
            e = step * self._s * self._rng.uniform(0.5, 1.3)
            p = self._rng.standard_normal(X.shape)
            at, slope, before = X, gradient, energy + 0.5 * float((p * p).sum())
            for _ in range(_LEAPS):
                p = p - 0.5 * e * slope
                at = at + e * p
                now, slope = self._energy(at)
                p = p - 0.5 * e * slope
            rise = now + 0.5 * float((p * p).sum()) - before
            chance = math.exp(min(0.0, -rise)) if math.isfinite(rise) else 0.0
            if self._rng.random() < chance:
                X, energy, gradient = at, now, slope
            step = min(0.5, max(0.003, step * math.exp(0.15 * (chance - 0.7))))
        return X, step


def _on_the_square(Z: Array, s: float) -> tuple[Array, Array]:
    """Mean and variance of rows that are uniform on the square, given their noisy images."""
    a, b = (-REACH - Z) / s, (REACH - Z) / s
    mass = np.maximum(norm.cdf(b) - norm.cdf(a), 1e-300)
    shift = (norm.pdf(a) - norm.pdf(b)) / mass
    v = s**2 * (1 + (a * norm.pdf(a) - b * norm.pdf(b)) / mass - shift**2)
    far = mass < 1e-8  # digits are lost there
    u = np.where(far, np.clip(Z, -REACH, REACH), Z + s * shift)
    return u, np.where(far, 1e-2 * s**2, np.clip(v, 1e-4 * s**2, s**2))
