"""Problems whose trials are one noisy reward each: the LDP paper's, on finitely many arms."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import minimize

from privbo_plugins.models.kernels import RBF, Isotropic, Matern52

Array = NDArray[np.float64]
Draw = Callable[[int, np.random.Generator], float]

STOCKS = Path(__file__).parents[1].parent / "shared" / "data" / "stocks" / "fin.csv"
"""Adjusted closing prices of 29 stocks, 2016 to 2019; not part of the project."""


@dataclass(frozen=True)
class RewardProblem:
    """Arms with a known mean reward.

    Attributes:
        K: Covariance of the arms, shape (N, N).
        f: True mean rewards, shape (N,).
        draw: One reward of an arm.
        reward_range: Public range that rewards are clipped to.
        B: Largest |f|.
        R: Largest |noise|; infinity if unbounded.
        v: Second moment of the rewards.
        c: Second moment of their noise.
    """

    K: Array
    f: Array
    draw: Draw
    value_range: tuple[float, float]
    B: float
    R: float
    v: float
    c: float

    @property
    def uniform(self) -> float:
        """Regret of an evaluation that is chosen uniformly."""
        return float((self.f.max() - self.f).mean())


@cache
def stocks() -> RewardProblem:
    """The most profitable of 29 stocks; a reward is the price of a random day.

    f is the mean price over the largest mean, K the covariance of the standardised prices, as the
    paper describes; the public range is [0, 1.9].

    Raises:
        FileNotFoundError: If the data set is not there.
    """
    table = np.genfromtxt(STOCKS, delimiter=",", skip_header=1)[:, 1:]
    prices = table[:, ~np.isnan(table).any(0)]
    y = prices / prices.mean(0).max()
    f = y.mean(0)
    Z = (prices - prices.mean(0)) / prices.std(0)
    return RewardProblem(
        K=Z.T @ Z / len(Z),
        f=f,
        draw=lambda arm, rng: float(y[rng.integers(len(y)), arm]),
        value_range=(0.0, 1.9),
        B=float(f.max()),
        R=float(np.abs(y - f).max()),
        v=float((y**2).mean()),
        c=float(((y - f) ** 2).mean()),
    )


def synthetic(kernel: str, seed: int, *, heavy: bool = False) -> RewardProblem:
    """100 points of [0, 1], f a sum of 100 kernel functions with weights in [-1, 1].

    Args:
        kernel: "rbf" or "matern52"; length-scale 0.2.
        seed: Of f.
        heavy: Student-t noise with three degrees of freedom instead of uniform noise on [-1, 1].
    """
    rng = np.random.default_rng([seed, 7])
    kernels: dict[str, type[Isotropic]] = {"rbf": RBF, "matern52": Matern52}
    X = np.linspace(0, 1, 100)[:, None]
    K = kernels[kernel](0.2).k(X, X)
    f = K[:, rng.integers(100, size=100)] @ rng.uniform(-1, 1, 100)
    B = float(np.abs(f).max())
    noise = _student if heavy else _uniform
    second = 3.0 if heavy else 1.0 / 3.0
    R = np.inf if heavy else 1.0
    return RewardProblem(
        K=K,
        f=f,
        draw=lambda arm, rng: float(f[arm] + noise(rng)),
        value_range=(-B - 1.0, B + 1.0),
        B=B,
        R=R,
        v=B**2 + second,
        c=second,
    )


def _student(rng: np.random.Generator) -> float:
    return float(rng.standard_t(3))


def _uniform(rng: np.random.Generator) -> float:
    return float(rng.uniform(-1, 1))


PROBLEMS: dict[str, Callable[[int], RewardProblem]] = {
    "stocks": lambda seed: stocks(),  # noqa: ARG005
    "rbf": lambda seed: synthetic("rbf", seed),
    "matern52": lambda seed: synthetic("matern52", seed),
}
"""By name, from a seed: f is another one for each seed of the synthetic ones."""


def unrelated(seed: int) -> RewardProblem:
    """20 arms whose mean rewards are uniform and independent, though K calls them smooth."""
    rng = np.random.default_rng([seed, 13])
    X = np.linspace(0, 1, 20)[:, None]
    return _bounded(RBF(0.2).k(X, X), rng.uniform(-1, 1, 20))


def grouped(seed: int) -> RewardProblem:
    """40 arms in eight groups: half of an arm's mean is its group's, and K says no more."""
    rng = np.random.default_rng([seed, 17])
    group = np.repeat(np.arange(8), 5)
    f = rng.uniform(-1, 1, 8)[group] / 2 + rng.uniform(-1, 1, 40) / 2
    return _bounded((group[:, None] == group) * 0.99 + 0.01 * np.eye(40), f)


def _bounded(K: Array, f: Array) -> RewardProblem:
    """Uniform noise on [-1, 1]."""
    B = float(np.abs(f).max())
    return RewardProblem(
        K=K,
        f=f,
        draw=lambda arm, rng: float(f[arm] + _uniform(rng)),
        value_range=(-2.0, 2.0),
        B=B,
        R=1.0,
        v=B**2 + 1.0 / 3.0,
        c=1.0 / 3.0,
    )


@dataclass(frozen=True)
class BoxProblem:
    """A continuum with a known mean reward.

    Attributes:
        d: Number of parameters, each in [0, 1].
        centres: Of the kernel functions that f is the sum of, shape (m, d).
        weights: Of these, scaled so that |f| <= 1 on the points that were tried, shape (m,).
        best: Largest f that was found on 2^14 points and by climbing from the best of them.
        uniform: Regret of an evaluation that is chosen uniformly.
    """

    d: int
    centres: Array
    weights: Array
    best: float
    uniform: float

    value_range = (-2.0, 2.0)

    def f(self, X: Array) -> Array:
        """Mean rewards of points (n, d), shape (n,)."""
        return np.asarray(_matern(self.d).k(X, self.centres) @ self.weights)

    def draw(self, x: Array, rng: np.random.Generator) -> float:
        """One reward at a point (d,), with uniform noise on [-1, 1]."""
        return float(self.f(x[None])[0]) + _uniform(rng)


def _matern(d: int) -> Isotropic:
    """Rougher, and with another length-scale, than what the algorithm takes by default."""
    return Matern52(0.3 * d**0.5)


@cache
def box(d: int, seed: int) -> BoxProblem:
    """A sum of 20 d kernel functions with weights in [-1, 1] on the unit cube."""
    rng = np.random.default_rng([seed, 19, d])
    centres, weights = rng.random((20 * d, d)), rng.uniform(-1, 1, 20 * d)
    X = rng.random((2**14, d))
    values = _matern(d).k(X, centres) @ weights

    def below(x: Array) -> float:
        return -float((_matern(d).k(x[None], centres) @ weights)[0])

    top = minimize(below, X[values.argmax()], bounds=[(0, 1)] * d)
    scale = max(float(np.abs(values).max()), -float(top.fun))
    best = -float(top.fun) / scale
    return BoxProblem(d, centres, weights / scale, best, best - float(values.mean()) / scale)


def available() -> tuple[str, ...]:
    """Problems whose data are there."""
    return tuple(name for name in PROBLEMS if name != "stocks" or STOCKS.exists())
