"""The problems of :mod:`benchmarks.map`: losses in [0, 1] over the unit cube.

====================  =====================================================================
part                  what it is
====================  =====================================================================
bowl-d                :class:`Bowl`, smooth, with one low region
svc-2                 SVC on digits: C and gamma; 0-1 loss, the nearest cell of 25 by 25
ridge-2               kernel ridge on diabetes: gamma and alpha; squared error, the nearest
                      cell of 49 by 49
ridge-4               kernel ridge on diabetes: alpha and three length-scales; squared error,
                      computed where asked
mlp-4                 a neural network on digits; :func:`_network`, 0-1 loss, interpolated
boost-4               boosted trees on digits; :func:`_boosted`, 0-1 loss, interpolated
digits-8, digits-15   :class:`Penalties` on digits: a ridge classifier with one penalty for
                      each row, or each antidiagonal, of pixels; Brier loss, computed where
                      asked
====================  =====================================================================

``svc-2``, ``mlp-4`` and ``boost-4`` have one instance: their seeds drive noise and candidates
alone. The tables of the latter two are kept in ``benchmarks/tables``, which no commit has.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from itertools import product
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import sklearn
from numpy.typing import NDArray
from scipy.optimize import minimize
from tqdm import tqdm

Array = NDArray[np.float64]

TABLES = Path(__file__).parent / "tables"

DS = (1, 2, 4, 8, 15, 32, 64)


class Instance(Protocol):
    """Losses in [0, 1] over the unit cube."""

    @property
    def d(self) -> int:
        """Number of parameters."""
        ...

    @property
    def n_records(self) -> int:
        """Records that are simulated."""
        ...

    def losses(self, U: Array) -> Array:
        """Of points (m, d), shape (n_records, m)."""
        ...

    def least(self) -> float:
        """The least mean loss."""
        ...


def _descended(slope: Any, starts: list[Array], *, jac: bool = True) -> float:
    """The least value that L-BFGS-B finds in the cube."""
    bounds = [(0.0, 1.0)] * len(starts[0])
    return min(
        float(minimize(slope, x, jac=jac or None, method="L-BFGS-B", bounds=bounds).fun)
        for x in starts
    )


class Bowl:
    """A smooth bowl that flattens out far from its bottom; each record has its own.

    Record i loses a_i + (1 - a_i) r² / (1 + r²) with r² = Σ_j w_j (u_j - c_ij)². The weights are
    lognormal with standard deviation 1, so that few parameters matter more than the rest, and
    Σ w = 6: a random point has r² near 1, whatever d is. The records' bottoms scatter by .1 around
    one that is uniform on [.1, .9]^d, and a_i is uniform on [0, .2].

    Args:
        d: Number of parameters.
        seed: Seed of the instance.
        n_records: Records that are simulated.
    """

    def __init__(self, d: int, seed: int, n_records: int = 256) -> None:
        rng = np.random.default_rng([seed, d])
        w = np.exp(rng.standard_normal(d))
        self.d, self._w = d, 6.0 * w / w.sum()
        self._c = rng.uniform(0.1, 0.9, d) + 0.1 * rng.standard_normal((n_records, d))
        self._a = rng.uniform(0.0, 0.2, n_records)

    @property
    def n_records(self) -> int:
        """Records that are simulated."""
        return len(self._a)

    def losses(self, U: Array) -> Array:
        """Of points (m, d), shape (n_records, m)."""
        r2 = self._squares(U)
        a = self._a[:, None]
        return np.asarray(a + (1.0 - a) * r2 / (1.0 + r2))

    def _squares(self, U: Array) -> Array:
        root = np.sqrt(self._w)
        A, B = self._c * root, U * root
        square = (A * A).sum(1)[:, None] - 2.0 * A @ B.T + (B * B).sum(1)[None, :]
        return np.asarray(np.maximum(square, 0.0))

    def mean_and_gradient(self, u: Array) -> tuple[float, Array]:
        """Mean loss at u (d,) and its gradient."""
        r2 = self._squares(u[None])[:, 0]
        slope = (1.0 - self._a) / (1.0 + r2) ** 2 / len(r2)
        grad = 2.0 * self._w * (u * slope.sum() - slope @ self._c)
        return float(self.losses(u[None]).mean()), np.asarray(grad)

    def least(self) -> float:
        """The least mean loss in the cube, from several starts."""
        starts = [self._c.mean(0).clip(0, 1), *np.random.default_rng(0).random((4, self.d))]
        return _descended(self.mean_and_gradient, starts)


@dataclass(frozen=True)
class Grid:
    """Two parameters, known on a grid; a point has the losses of its nearest cell.

    Attributes:
        table: Losses, shape (g, g, n_records).
    """

    table: Array
    d: int = 2

    @property
    def n_records(self) -> int:
        """Records that are simulated."""
        return int(self.table.shape[2])

    def losses(self, U: Array) -> Array:
        """Of points (m, 2), shape (n_records, m)."""
        i, j = np.round(U * (len(self.table) - 1)).astype(int).T
        return np.asarray(self.table[i, j].T)

    def least(self) -> float:
        """The least mean loss of a cell."""
        return float(self.table.mean(2).min())


@dataclass(frozen=True)
class Lattice:
    """Losses known at the points of a regular lattice, multilinear in between.

    A point's losses are those of the 2^d corners of its cell, weighted. So they lie between the
    least and the largest of the table, and no mean is below that of the best lattice point.

    Attributes:
        table: Losses, shape (g_1, ..., g_d, n_records); uint8 if they are 0 or 1.
    """

    table: NDArray[Any]

    @property
    def d(self) -> int:
        """Number of parameters."""
        return self.table.ndim - 1

    @property
    def n_records(self) -> int:
        """Records that are simulated."""
        return int(self.table.shape[-1])

    def losses(self, U: Array) -> Array:
        """Of points (m, d), shape (n_records, m)."""
        last = np.array(self.table.shape[:-1]) - 1
        at = U * last
        low = np.minimum(np.floor(at).astype(int), last - 1)
        share = at - low
        found = np.zeros((len(U), self.n_records))
        for corner in product((0, 1), repeat=self.d):
            weight = np.where(corner, share, 1.0 - share).prod(1)
            found += weight[:, None] * self.table[tuple((low + corner).T)]
        return np.minimum(found.T, 1.0)  # weights may sum to a little more than 1

    def least(self) -> float:
        """The least mean loss of a lattice point."""
        return float(self.table.mean(-1).min())


class Penalties:
    """A ridge classifier of digits, one penalty a group of pixels, and the Brier loss.

    Least squares on the one-hot labels of 100 images; the loss of one of 800 others is half the
    squared distance of the outputs to its label, at most 1. Penalties lie between 1e-4 and 1e3.

    Args:
        groups: The group of each pixel, from 0, shape (64,).
        seed: Splits the images.
    """

    def __init__(self, groups: NDArray[np.int_], seed: int) -> None:
        X, y = _digits(seed)
        self.d, self._groups = int(groups.max()) + 1, groups
        labels = np.eye(10)[y[:900]]
        centre, self._prior = X[:100].mean(0), labels[:100].mean(0)
        A, self._V = X[:100] - centre, X[100:900] - centre
        self._labels = labels[100:]
        self._gram, self._moments = A.T @ A, A.T @ (labels[:100] - self._prior)

    @property
    def n_records(self) -> int:
        """Records that are simulated."""
        return len(self._V)

    def losses(self, U: Array) -> Array:
        """Of points (m, d), shape (n_records, m)."""
        return np.asarray(np.minimum([self._half_squares(u)[0] for u in U], 1.0)).T

    def _half_squares(self, u: Array) -> tuple[Array, Array, Array, Array]:
        """Unclipped losses (n,), their residuals (n, 10), weights (64, 10), the ridge (64, 64)."""
        ridge = self._gram + np.diag(self._penalties(u))
        weights = np.linalg.solve(ridge, self._moments)
        residuals = self._V @ weights + self._prior - self._labels
        return (residuals**2).sum(1) / 2, residuals, weights, ridge

    def _penalties(self, u: Array) -> Array:
        return np.asarray(10.0 ** (7.0 * u[self._groups] - 4.0))

    def mean_and_gradient(self, u: Array) -> tuple[float, Array]:
        """Mean loss at u (d,) and its gradient."""
        losses, residuals, weights, ridge = self._half_squares(u)
        inner = residuals * (losses < 1.0)[:, None] / len(losses)
        back = np.linalg.solve(ridge, self._V.T @ inner)
        each = -(back * weights).sum(1) * self._penalties(u) * 7.0 * np.log(10.0)
        grad: Array = np.bincount(self._groups, each).astype(float)
        return float(np.minimum(losses, 1.0).mean()), grad

    def least(self) -> float:
        """The least mean loss in the cube, from several starts."""
        starts = [np.full(self.d, 0.5), *np.random.default_rng(0).random((9, self.d))]
        return _descended(self.mean_and_gradient, starts)


class ScaledRidge:
    """Kernel ridge on diabetes: alpha and three length-scales.

    The loss of a record is its squared error over four variances of the targets, at most 1.

    Args:
        seed: Splits the rows.
    """

    d = 4

    def __init__(self, seed: int) -> None:
        from benchmarks.heavy_tails import ridge_diabetes_four

        self._tuning = ridge_diabetes_four(seed)

    @property
    def n_records(self) -> int:
        """Records that are simulated."""
        return len(self._tuning.targets)

    def losses(self, U: Array) -> Array:
        """Of points (m, 4), shape (n_records, m)."""
        return np.array([self._of(u) for u in U]).T

    def _of(self, u: Array) -> Array:
        outputs, targets = self._tuning.at(u)[:, 0], self._tuning.targets
        return np.minimum((outputs - targets) ** 2 / (2.0 * self._tuning.spread) ** 2, 1.0)

    def least(self) -> float:
        """The least mean loss in the cube: descent from the best of 1000 points."""
        U = np.random.default_rng(0).random((1000, self.d))
        best = U[np.argsort([self._of(u).mean() for u in U])[:4]]
        return _descended(lambda u: float(self._of(u).mean()), list(best), jac=False)


def _digits(seed: int) -> tuple[Array, NDArray[np.int_]]:
    """Images (1797, 64), in [0, 1], and labels, shuffled."""
    from sklearn.datasets import load_digits

    X, y = load_digits(return_X_y=True)
    order = np.random.default_rng([seed, 6]).permutation(len(X))
    return X[order] / 16.0, y[order]


@cache
def _svc() -> Grid:
    from sklearn.metrics.pairwise import rbf_kernel
    from sklearn.svm import SVC

    from benchmarks.problems import SvcDigits

    problem, axis = SvcDigits(), np.linspace(0, 1, 25)
    table = np.empty((25, 25, problem.n_records))
    for j, y in enumerate(axis):  # one kernel matrix for all C: problem.losses computes it anew
        gamma = problem.decode(np.array([0.0, y]))["gamma"]
        K, P = (rbf_kernel(A, problem._X, gamma) for A in (problem._X, problem._V))
        for i, x in enumerate(axis):
            C = problem.decode(np.array([x, y]))["C"]
            found = SVC(C=C, kernel="precomputed").fit(K, problem._y).predict(P)
            table[i, j] = found != problem._s
    return Grid(table)


def _ridge(seed: int) -> Grid:
    """Kernel ridge on diabetes, squared error over four variances of the targets, at most 1."""
    from benchmarks.heavy_tails import ridge_diabetes

    tuning, axis = ridge_diabetes(seed), np.linspace(0, 1, 49)
    outputs = np.array([[tuning.at(np.array([x, y]))[:, 0] for y in axis] for x in axis])
    errors = (outputs - tuning.targets) ** 2 / (2.0 * tuning.spread) ** 2
    return Grid(np.minimum(errors, 1.0))


def _kept_table(part: str, fill: Callable[[], NDArray[np.uint8]]) -> Lattice:
    """A table of 0-1 losses, which is computed once for each version of scikit-learn."""
    path = TABLES / f"{part}-{sklearn.__version__}.npy"
    if not path.exists():
        TABLES.mkdir(exist_ok=True)
        np.save(path, fill())
    return Lattice(np.load(path))


@cache
def _mlp() -> Lattice:
    return _kept_table("mlp-4", _network)


@cache
def _boost() -> Lattice:
    return _kept_table("boost-4", _boosted)


def _network(shape: tuple[int, int, int, int] = (9, 5, 5, 5)) -> NDArray[np.uint8]:
    """One hidden layer, 15 passes of gradient descent over 300 images; errors on 800 others.

    Step size .001 to 1, momentum 0 to .99, width 4 to 64 and batch 8 to 150, all on logarithmic
    scales, momentum by its distance to 1.

    Args:
        shape: Values of each.
    """
    from sklearn.neural_network import MLPClassifier

    X, y = _digits(0)
    axes = (
        np.geomspace(1e-3, 1.0, shape[0]),
        1.0 - np.geomspace(1.0, 0.01, shape[1]),
        np.geomspace(4, 64, shape[2]).round().astype(int),
        np.geomspace(8, 150, shape[3]).round().astype(int),
    )
    table = np.empty((*shape, 800), np.uint8)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # 15 passes end before convergence, some steps diverge
        for at in tqdm(list(np.ndindex(table.shape[:-1])), desc="networks"):
            step, momentum, width, batch = (axis[i] for axis, i in zip(axes, at, strict=True))
            network = MLPClassifier(
                (width,), solver="sgd", learning_rate_init=step, momentum=momentum, tol=0,
                batch_size=batch, max_iter=15, random_state=0,
            ).fit(X[:300], y[:300])  # fmt: skip
            table[at] = network.predict(X[300:1100]) != y[300:1100]
    return table


def _boosted(shape: tuple[int, int, int, int] = (7, 5, 5, 9)) -> NDArray[np.uint8]:
    """Boosted trees, odd digits against even ones: 500 images to fit, errors on 800 others.

    Step size .003 to 1, leaves 2 to 31, least records of a leaf 2 to 100 and trees 1 to 200, all
    on logarithmic scales.

    Args:
        shape: Values of each.
    """
    from sklearn.ensemble import HistGradientBoostingClassifier

    X, y = _digits(0)
    y = y % 2
    axes = (
        np.geomspace(3e-3, 1.0, shape[0]),
        np.geomspace(2, 31, shape[1]).round().astype(int),
        np.geomspace(2, 100, shape[2]).round().astype(int),
    )
    trees = np.geomspace(1, 200, shape[3]).round().astype(int)
    table = np.empty((*shape, 800), np.uint8)
    for at in tqdm(list(np.ndindex(table.shape[:3])), desc="boosted trees"):
        step, leaves, least = (axis[i] for axis, i in zip(axes, at, strict=True))
        boosted = HistGradientBoostingClassifier(
            learning_rate=step, max_leaf_nodes=leaves, min_samples_leaf=least, max_iter=200,
            early_stopping=False, random_state=0,
        ).fit(X[:500], y[:500])  # fmt: skip
        found = np.array(list(boosted.staged_predict(X[500:1300])))
        table[at] = found[trees - 1] != y[500:1300]
    return table


_ROWS = np.arange(64) // 8
_ANTIDIAGONALS = np.add.outer(np.arange(8), np.arange(8)).ravel()

_NAMED: dict[str, Callable[[int], Instance]] = {
    "svc-2": lambda _seed: _svc(),
    "ridge-2": _ridge,
    "ridge-4": ScaledRidge,
    "mlp-4": lambda _seed: _mlp(),
    "boost-4": lambda _seed: _boost(),
    "digits-8": lambda seed: Penalties(_ROWS, seed),
    "digits-15": lambda seed: Penalties(_ANTIDIAGONALS, seed),
}


def instance(part: str, seed: int) -> Instance:
    """The instance of a part and seed."""
    if part in _NAMED:
        return _NAMED[part](seed)
    return Bowl(int(part.removeprefix("bowl-")), seed)


PARTS = {f"bowl-{d}": 20 if d <= 4 else 10 for d in DS} | {
    part: 20 if part in ("svc-2", "ridge-2", "mlp-4") else 10 for part in _NAMED
}
"""Parts, and how many seeds of each."""
