"""Tables of rows with an outcome each, for outsourced tuning.

Notation:

    ======  ====================================================  ==========
    symbol  meaning                                               shape
    ======  ====================================================  ==========
    X       the curator's rows                                    (n, d)
    f       what a row is worth                                   (n,)
    y       what is told when a row is asked                      (n,)
    K       covariance of one axis of the grid                    (m, m)
    A       a square root of K, A A^T = K                         (m, m)
    G       standard normal                                       (m, m)
    ======  ====================================================  ==========

The covariance of f on a grid with a squared exponential kernel is K (x) K, so A G A^T is an exact
sample of it.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cache
from importlib.util import find_spec

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]

SIDE = 100
"""Points on an axis of the paper's grid."""

RADIUS = 25.0
"""The paper scales inputs to this maximal norm."""

OUTCOME_VARIANCE = 1e-5
"""The paper's sigma_n², in units of f's variance."""


@dataclass(frozen=True)
class OutsourcedProblem:
    """A table and its outcomes, large ones wanted.

    Attributes:
        X: Rows in their own units, shape (n, d).
        f: What they are worth, shape (n,).
        y: What is told, shape (n,).
        unit: In which regrets are shown: a standard deviation of f.
        bounds: Public range of each column; None leaves units as they are.
        norm_bound: Public bound on a row's norm; None for what follows from the bounds.
    """

    X: Array
    f: Array
    y: Array
    unit: float
    bounds: tuple[tuple[float, float], ...] | None
    norm_bound: float | None

    @property
    def scaled(self) -> Array:
        """Rows in the units in which they are released."""
        if self.bounds is None:
            return self.X
        low, high = np.array(self.bounds).T
        return np.asarray((self.X - low) / (high - low) - 0.5)

    def lost(self, rows: list[int]) -> Array:
        """Simple regret after each ask, in units of f's standard deviation."""
        return np.asarray((self.f.max() - np.maximum.accumulate(self.f[rows])) / self.unit)


# The paper's grid -------------------------------------------------------------------------------


def axis() -> Array:
    """One axis of the centred grid, shape (100,)."""
    reach = RADIUS / math.sqrt(2)
    return np.linspace(-reach, reach, SIDE)


def grid() -> Array:
    """100 x 100 points, centred, with maximal norm 25; shape (10000, 2)."""
    return np.array(np.meshgrid(axis(), axis(), indexing="ij")).reshape(2, -1).T


@cache
def _root(lengthscale: float) -> Array:
    """A, by eigenvalues; those that rounding made negative are 0."""
    u = axis()
    K = np.exp(-0.5 * (u[:, None] - u) ** 2 / lengthscale**2)
    values, vectors = np.linalg.eigh(K)
    return np.asarray(vectors * np.sqrt(np.maximum(values, 0.0)))


def sampled(lengthscale: float, seed: int) -> OutsourcedProblem:
    """A function drawn from a GP with mean 0 and variance 1, exactly on the grid."""
    rng = np.random.default_rng([seed, 77])
    A = _root(lengthscale)
    f = (A @ rng.standard_normal((SIDE, SIDE)) @ A.T).ravel()
    y = f + math.sqrt(OUTCOME_VARIANCE) * rng.standard_normal(len(f))
    return OutsourcedProblem(grid(), f, y, 1.0, None, RADIUS)


# People -----------------------------------------------------------------------------------------

COLUMNS = {
    "lncoins": (0.0, math.log(101.0)),  # ln(coinsurance rate in % + 1)
    "idp": (0.0, 1.0),  # individual deductible plan
    "lpi": (0.0, 7.5),  # ln(annual participation incentive payment in dollars)
    "fmde": (0.0, 8.5),  # ln of a transformed maximal expenditure
    "physlm": (0.0, 1.0),  # physical limitation
    "disea": (0.0, 60.0),  # index of chronic diseases
    "health": (0.0, 3.0),  # self-rated: excellent, good, fair, poor
}
"""Inputs and their public bounds, from the data set's description and common sense."""


def available() -> bool:
    """Whether the people's table is installed."""
    return find_spec("statsmodels") is not None


@cache
def people(outcome: str) -> OutsourcedProblem:
    """Rows of the RAND Health Insurance Experiment: 20190 person-years.

    Args:
        outcome: "visits" (the logarithm of 1 + outpatient visits of that year) or "expected" (the
            logarithm of the visits that a gradient boosting model, trained on the whole table,
            expects of the row).
    """
    X, visits = _health_insurance()
    f = np.log1p(visits) if outcome == "visits" else np.log(_expected(X, visits))
    return OutsourcedProblem(X, f, f, float(f.std()), tuple(COLUMNS.values()), None)


@cache
def _health_insurance() -> tuple[Array, Array]:
    from statsmodels.datasets import randhie

    table = randhie.load_pandas().data
    health = table["hlthg"] + 2 * table["hlthf"] + 3 * table["hlthp"]
    columns = {name: table[name] for name in COLUMNS if name != "health"} | {"health": health}
    X = np.column_stack([columns[name].to_numpy(dtype=float) for name in COLUMNS])
    return X, table["mdvis"].to_numpy(dtype=float)


def _expected(X: Array, visits: Array) -> Array:
    from sklearn.ensemble import HistGradientBoostingRegressor

    model = HistGradientBoostingRegressor(loss="poisson", random_state=0)
    return np.asarray(model.fit(X, visits).predict(X), dtype=float)
