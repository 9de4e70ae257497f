"""Problems with many agents: the DP-FTS-DE paper's landmine fields and its synthetic functions."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from privbo_plugins.models.kernels import RBF
from privbo_plugins.spaces import Float, Int, Space

Array = NDArray[np.float64]

LANDMINE = Path(__file__).parents[1].parent / "shared" / "data" / "landmine" / "LandmineData.mat"
"""Landmine detection in 29 fields (Xue et al. 2007); not part of the project."""


@dataclass(frozen=True)
class FederatedProblem:
    """One objective an agent.

    Attributes:
        space: What all agents tune.
        n_agents: N.
        evaluate: What an agent observes at a point (D,) of the unit cube; larger is better.
        true: Its objective without noise, there.
        best: The largest true value of each agent, where it is known, shape (N,).
    """

    space: Space
    n_agents: int
    evaluate: Callable[[int, Array], float]
    true: Callable[[int, Array], float]
    best: Array | None = None


@cache
def landmine_fields() -> list[tuple[Array, Array]]:
    """Features (n, 9) and labels (n,) of each field."""
    from scipy.io import loadmat

    stored = loadmat(LANDMINE)
    return [
        (np.asarray(x, dtype=float), np.asarray(y).ravel())
        for x, y in zip(stored["feature"].ravel(), stored["label"].ravel(), strict=True)
    ]


def landmine(seed: int, *, log: bool) -> FederatedProblem:
    """An RBF-SVM for each of 29 fields: gamma in [.01, 10], C in [1e-4, 10], validation AUC.

    Args:
        seed: Splits each field into halves, stratified by label.
        log: Whether the parameters are tuned on logarithmic scales; the paper does not say so.

    Raises:
        FileNotFoundError: If the data set is not there.
    """
    from sklearn.model_selection import train_test_split

    splits = [
        train_test_split(x, y, test_size=0.5, stratify=y, random_state=seed)
        for x, y in landmine_fields()
    ]
    space = Space({"C": Float(1e-4, 10.0, log=log), "gamma": Float(0.01, 10.0, log=log)})
    known: dict[tuple[int, bytes], float] = {}

    def evaluate(n: int, x: Array) -> float:
        key = n, x.tobytes()
        if key not in known:
            known[key] = _auc(splits[n], space.decode(x))
        return known[key]

    return FederatedProblem(space, len(splits), evaluate, evaluate)


def _auc(split: list[Array], params: dict[str, float]) -> float:
    from sklearn.metrics import roc_auc_score
    from sklearn.svm import SVC

    x_train, x_valid, y_train, y_valid = split
    model = SVC(C=params["C"], gamma=params["gamma"]).fit(x_train, y_train)
    return float(roc_auc_score(y_valid, model.decision_function(x_valid)))


def synthetic(seed: int, *, n_agents: int = 200, spread: float = 0.02) -> FederatedProblem:
    """A draw from a Gaussian process on 1000 points, and for each agent a rough copy of it.

    The base function (SE kernel, l = .03) is scaled to [0, 1]; at every point an agent's function
    lies above or below it by ``spread``, by a coin of its own (Dai et al. 2021, appendix B.1.1).
    Observations have noise of standard deviation .01; the paper's figures for both are lost.

    Args:
        seed: Of the functions and of the noise.
        n_agents: N.
        spread: How far agents differ.
    """
    rng = np.random.default_rng([20210, seed])
    x = np.linspace(0.0, 1.0, 1000)[:, None]
    K = RBF(0.03).k(x, x) + 1e-8 * np.eye(len(x))
    f = np.linalg.cholesky(K) @ rng.standard_normal(len(x))
    f = (f - f.min()) / (f.max() - f.min())
    F = f + spread * rng.choice([-1.0, 1.0], size=(n_agents, len(x)))
    noise = np.random.default_rng([20211, seed])

    def true(n: int, at: Array) -> float:
        return float(F[n, round(float(at[0]) * 999)])

    def evaluate(n: int, at: Array) -> float:
        return true(n, at) + 0.01 * float(noise.standard_normal())

    return FederatedProblem(Space({"x": Int(0, 999)}), n_agents, evaluate, true, F.max(1))


LIKENESS = ("alike", "shifted", "two kinds", "a fifth opposite", "strangers")
"""From agents whom a broadcast describes to agents whom it misleads."""


def likeness(kind: str, seed: int, *, n_agents: int = 60) -> FederatedProblem:
    """Functions on 300 points, drawn from a Gaussian process (SE kernel, l = .05) in [0, 1].

    Observations have noise of standard deviation .01.

    Args:
        kind: One of :data:`LIKENESS`: one function with small changes for each agent; one that
            every agent sees up to 15 points further left or right; two functions, one for half of
            the agents each; one that stands on its head for every fifth; one for each agent.
        seed: Of the functions and of the noise.
        n_agents: N.
    """
    rng, n, points = np.random.default_rng([LIKENESS.index(kind), seed]), n_agents, 300
    x = np.linspace(0.0, 1.0, points)[:, None]
    K = RBF(0.05).k(x, x) + 1e-8 * np.eye(points)
    f = rng.standard_normal((n, points)) @ np.linalg.cholesky(K).T
    low, high = f.min(1, keepdims=True), f.max(1, keepdims=True)
    f = (f - low) / (high - low)
    coins, number = 0.02 * rng.choice([-1.0, 1.0], size=(n, points)), np.arange(n)
    made: dict[str, Callable[[], Array]] = {
        "alike": lambda: f[0] + coins,
        "shifted": lambda: np.stack([np.roll(f[0], by) for by in rng.integers(-15, 16, n)]),
        "two kinds": lambda: f[number % 2] + coins,
        "a fifth opposite": lambda: np.where(number[:, None] % 5 == 0, 1.0 - f[0], f[0]) + coins,
        "strangers": lambda: f,
    }
    F = made[kind]()
    noise = np.random.default_rng([20212, seed])

    def true(agent: int, at: Array) -> float:
        return float(F[agent, round(float(at[0]) * (points - 1))])

    def evaluate(agent: int, at: Array) -> float:
        return true(agent, at) + 0.01 * float(noise.standard_normal())

    space = Space({"x": Int(0, points - 1)})
    return FederatedProblem(space, n, evaluate, true, F.max(1))


def available(name: str) -> bool:
    """Whether a problem's data are there."""
    return name != "landmine" or LANDMINE.exists()
