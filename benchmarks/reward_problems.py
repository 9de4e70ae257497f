"""Problems whose trials are one noisy reward each: the LDP paper's, on finitely many arms."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import minimize

from benchmarks.federated_problems import LANDMINE, landmine_fields
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
    return _dearest(_prices(), _prices())


def _prices() -> Array:
    """Of the stocks without gaps, a row each day."""
    table = np.genfromtxt(STOCKS, delimiter=",", skip_header=1)[:, 1:]
    return np.asarray(table[:, ~np.isnan(table).any(0)])


def _dearest(prices: Array, before: Array) -> RewardProblem:
    """Rewards from one table of prices, their covariance from another."""
    y = prices / prices.mean(0).max()
    f = y.mean(0)
    Z = (before - before.mean(0)) / before.std(0)
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


# Arms with a prior that an oracle knows --------------------------------------------------------


@dataclass(frozen=True)
class KnownPrior:
    """A problem, and how its mean rewards came about.

    Attributes:
        problem: What an algorithm sees of it is K and the range.
        mean: Of f over problems of this kind, shape (N,).
        covariance: The same, shape (N, N).
    """

    problem: RewardProblem
    mean: Array
    covariance: Array


def _clicks(K: Array, f: Array, mean: float | Array, covariance: Array) -> KnownPrior:
    """Rewards of -1 or 1 with mean f, which is kept within .95 of 0."""
    f = np.clip(f, -0.95, 0.95)
    problem = RewardProblem(
        K=K,
        f=f,
        draw=lambda arm, rng: 1.0 if rng.random() < (1 + f[arm]) / 2 else -1.0,
        value_range=(-1.0, 1.0),
        B=float(np.abs(f).max()),
        R=1.0 + float(np.abs(f).max()),
        v=1.0,
        c=float((1 - f**2).mean()),
    )
    return KnownPrior(problem, np.broadcast_to(mean, f.shape), covariance)


def _drawn(covariance: Array, rng: np.random.Generator) -> Array:
    return rng.multivariate_normal(np.zeros(len(covariance)), covariance, method="eigh")


def window(seed: int) -> KnownPrior:
    """29 stocks over 200 days; K is what the 200 days before say."""
    rng = np.random.default_rng([seed, 101])
    prices = _prices()
    first = rng.integers(len(prices) - 400)
    problem = _dearest(prices[first + 200 : first + 400], prices[first : first + 200])
    means, spread = _means_of_windows()
    return KnownPrior(problem, np.full(len(problem.f), means.mean()), spread)


@cache
def _means_of_windows() -> tuple[Array, Array]:
    """Of all windows, and the covariance of stocks that cannot be told from each other."""
    prices = _prices()
    tables = (prices[i + 200 : i + 400] for i in range(0, len(prices) - 400, 4))
    f = np.array([table.mean(0) / table.mean(0).max() for table in tables])
    alone, common = f.var(1, ddof=1).mean(), f.mean(1).var()
    return f, alone * np.eye(f.shape[1]) + common


def detector(seed: int) -> KnownPrior:
    """41 linear detectors of landmines on one of 29 fields; K is what the others say.

    A reward tells whether a detector is right on a mine or on a clear spot, each equally likely.
    """
    accuracy = _accuracies()
    field = seed % len(accuracy)
    f = 2 * accuracy - 1
    others = np.delete(f, field, axis=0)
    K = np.corrcoef((others - others.mean(1, keepdims=True)).T)
    return _clicks((K + K.T) / 2, f[field], f.mean(0), np.cov(f.T))


@cache
def _accuracies() -> Array:
    """Balanced accuracy of each detector (9 features, 32 pairs) on each field, shape (29, 41)."""
    fields, labels = zip(*landmine_fields(), strict=True)
    mines = [label > 0 for label in labels]
    X, y = np.vstack(fields), np.concatenate(mines)
    centre, scale, weight = X.mean(0), X.std(0), np.where(y, 1 / y.mean(), 1 / (1 - y.mean()))
    rng = np.random.default_rng(0)
    chosen = [np.array([i]) for i in range(9)]
    chosen += [rng.choice(9, 2, replace=False) for _ in range(32)]
    accuracy = np.zeros((len(fields), len(chosen)))
    for j, columns in enumerate(chosen):
        Z = np.column_stack([np.ones(len(X)), ((X - centre) / scale)[:, columns]])
        WZ = weight[:, None] * Z
        right = (Z @ np.linalg.solve(Z.T @ WZ, WZ.T @ np.where(y, 1.0, -1.0)) > 0) == y
        ends = np.cumsum([len(x) for x in fields])[:-1]
        for i, (told, mine) in enumerate(zip(np.split(right, ends), mines, strict=True)):
            accuracy[i, j] = (told[mine].mean() + told[~mine].mean()) / 2
    return accuracy


def factors(seed: int) -> KnownPrior:
    """41 arms with three factors in common, as stocks have, which tell half of their means."""
    rng = np.random.default_rng([seed, 107])
    L = rng.standard_normal((41, 3))
    L /= np.linalg.norm(L, axis=1, keepdims=True)
    covariance = 0.35**2 / 2 * (L @ L.T + np.eye(41))
    return _clicks(
        0.7 * L @ L.T + 0.3 * np.eye(41), _drawn(covariance, rng) - 0.2, -0.2, covariance
    )


def uneven(seed: int) -> KnownPrior:
    """41 arms in ten groups of any size: a third of the variance is each arm's own."""
    rng = np.random.default_rng([seed, 109])
    group = np.sort(rng.integers(0, 10, 41))
    same = (group[:, None] == group).astype(float)
    covariance = 0.4**2 * (2 * same + np.eye(41)) / 3
    return _clicks(0.99 * same + 0.01 * np.eye(41), _drawn(covariance, rng), 0.0, covariance)


def rough(seed: int) -> KnownPrior:
    """41 arms in a row whose length-scale is .05, and is called .2."""
    return _in_a_row(seed, 113, scale=0.4, true=0.05, told=0.2)


def narrow(seed: int) -> KnownPrior:
    """41 arms in a row that use a part of their range."""
    return _in_a_row(seed, 127, scale=0.3, true=0.15, told=0.15, mean=0.2)


def _in_a_row(
    seed: int, coin: int, *, scale: float, true: float, told: float, mean: float = 0.0
) -> KnownPrior:
    X = np.linspace(0, 1, 41)[:, None]
    covariance = scale**2 * RBF(true).k(X, X)
    f = _drawn(covariance, np.random.default_rng([seed, coin])) + mean
    return _clicks(RBF(told).k(X, X), f, mean, covariance)


FRESH: dict[str, Callable[[int], KnownPrior]] = {
    "stocks of 200 days": window,
    "detectors of mines": detector,
    "arms with factors": factors,
    "uneven groups": uneven,
    "rougher than told": rough,
    "a part of the range": narrow,
}
"""Kinds on which no default was chosen."""

DATA = {"stocks of 200 days": STOCKS, "detectors of mines": LANDMINE}
"""What real ones need."""


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
