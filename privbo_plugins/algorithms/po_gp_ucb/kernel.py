"""Covariance of f between rows of which only noisy images are known.

Notation:

    ========  ==============================================================  ========
    symbol    meaning                                                         shape
    ========  ==============================================================  ========
    z_i       released row, x_i + sigma N(0, I)                               (r,)
    l         length-scale of f's squared exponential kernel                  scalar
    s2        variance of f (the paper's sigma_y²)                            scalar
    m, tau2   mean and variance of the true rows, from the released ones      (r,)
    w         tau2 / (tau2 + sigma²), how much of z_i is signal               (r,)
    u_i       E[x_i | z_i] = m + w (z_i - m)                                  (r,)
    v         Var[x_i | z_i] = w sigma²                                       (r,)
    A         factor by which not knowing x lowers every covariance           scalar
    ========  ==============================================================  ========

f lives on the true rows. With x_i | z_i ~ N(u_i, diag(v)), independently for each row,

    E[k(x_i, x_j)] = s2 prod_p sqrt(l² / (l² + 2 v_p)) exp(-(u_ip - u_jp)² / (2 (l² + 2 v_p)))

for i != j, and s2 for i = j. So length-scales grow, and what is lost of a covariance stays with
the row itself. A prior on the rows without any shape has w = 1: u = z and v = sigma².
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]

CORRECTIONS = ("shared", "posterior", "kernel", "none")


@dataclass(frozen=True)
class RowKernel:
    """The covariance for one length-scale.

    Args:
        m: Mean of the rows, shape (r,).
        w: Share of signal in each column, shape (r,), in (0, 1].
        v: What remains unknown of each column, shape (r,), >= 0.
        lengthscale: l, > 0.
        s2: Variance of f, > 0.
    """

    m: Array
    w: Array
    v: Array
    lengthscale: float
    s2: float = 1.0

    @property
    def widths(self) -> Array:
        """sqrt(l² + 2 v), shape (r,)."""
        return np.sqrt(self.lengthscale**2 + 2 * self.v)

    @property
    def A(self) -> float:
        """prod_p sqrt(l² / (l² + 2 v_p)), in (0, 1]."""
        return float(np.prod(self.lengthscale / self.widths))

    @property
    def shared(self) -> float:
        """Variance of g(u_i) = E[f(x_i) | z_i, f], which the answers of other rows tell of."""
        return self.s2 * self.A

    def scaled(self, Z: Array) -> Array:
        """Inputs whose plain squared exponential gives the shape, shape of ``Z``.

        u - m instead of u: a table far from zero keeps its digits.
        """
        return np.asarray(self.w * (Z - self.m) / self.widths)

    def cross(self, Z: Array, other: Array) -> Array:
        """Covariances of different rows, shape (a, b)."""
        a, b = self.scaled(Z), self.scaled(other)
        q = (a * a).sum(1)[:, None] + (b * b).sum(1) - 2.0 * (a @ b.T)
        return np.asarray(self.s2 * self.A * np.exp(-0.5 * np.maximum(q, 0.0)))


@dataclass(frozen=True)
class RowPrior:
    """What the released table tells about the true rows.

    Attributes:
        m: Mean, shape (r,).
        w: Share of signal, shape (r,).
        v: Uncertainty of one row, shape (r,).
        scale: Typical distance of two true rows.
        shared: Whether rows are asked for what other rows can tell of them, instead of all of f.
    """

    m: Array
    w: Array
    v: Array
    scale: float
    shared: bool = False

    def kernel(self, lengthscale: float, s2: float = 1.0) -> RowKernel:
        """The covariance for a length-scale and a variance of f."""
        return RowKernel(self.m, self.w, self.v, lengthscale, s2)


def row_prior(Z: Array, sigma: float, correction: str) -> RowPrior:
    """The prior of the rows, from released data only.

    Args:
        Z: Released rows, shape (n, r).
        sigma: Standard deviation of the noise in them; 0 for none.
        correction: "shared" or "posterior" (rows have the mean and variance that Z shows),
            "kernel" (nothing is assumed of them), or "none" (released rows are taken for the true
            ones).
    """
    r = Z.shape[1]
    m, total = Z.mean(0), Z.var(0)
    tau2 = np.maximum(total - sigma**2, 1e-3 * total)
    scale = math.sqrt(2 * float(tau2.sum())) or 1.0
    if correction == "none" or sigma**2 == 0:  # also where the square is too small for a float
        return RowPrior(m, np.ones(r), np.zeros(r), math.sqrt(2 * float(total.sum())) or 1.0)
    if correction == "kernel":
        return RowPrior(m, np.ones(r), np.full(r, sigma**2), scale)
    w = tau2 / (tau2 + sigma**2)
    return RowPrior(m, w, w * sigma**2, scale, correction == "shared")
