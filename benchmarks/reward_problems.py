"""Problems whose trials are one noisy reward each: the LDP paper's, on finitely many arms."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

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
        """Regret of a play that is chosen uniformly."""
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


def available() -> tuple[str, ...]:
    """Problems whose data are there."""
    return tuple(name for name in PROBLEMS if name != "stocks" or STOCKS.exists())
