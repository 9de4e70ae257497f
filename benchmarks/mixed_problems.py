"""Tuning problems with choices, on real data, each known on a grid.

- ``svc``: which of scikit-learn's two photographs does a patch of 8 x 8 pixels come from? Choices:
  kernel (4), brightness kept or not (2); numbers: C and gamma. 5400 records.
- ``boosting``: how bright is the pixel in the middle of a patch of 6 x 6? Choices: loss (3),
  features that a split sees (2); numbers: learning rate, share of rows, depth. 5400 records.
- ``knn``: scikit-learn's digits, each validation image six times, five of them moved by a pixel.
  Choices: metric (4), weights (2); numbers: k, and a power of the brightness. 5388 records.

Losses are errors of 0 or 1, and for boosting absolute errors over a quarter of the range of
brightness, at most 1. Between the grid's points a record's losses are interpolated linearly, so
that the least mean loss is that of a point of the grid. Patches do not overlap, and 1200 of them
train the model.

Fitting takes about ten minutes; tables are kept in a folder of temporary files.
"""

from __future__ import annotations

import itertools
import tempfile
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from privbo_plugins.spaces import Categorical, Float, Int, Space

Array = NDArray[np.float64]

TABLES = Path(tempfile.gettempdir()) / "privbo-mixed"

_TRAINED = 1200
_VALIDATED = 5400


@dataclass(frozen=True)
class Table:
    """Losses in [0, 1] of every choice on a grid of the numeric parameters.

    Attributes:
        space: Choices and numbers.
        axes: Grid of each numeric parameter in the unit cube, ascending, by name.
        table: Shape (choices of each categorical ..., points of each axis ..., n_records), in
            the order of the space.
    """

    space: Space
    axes: Mapping[str, Array]
    table: NDArray[np.float32]

    @property
    def d(self) -> int:
        """Number of parameters, choices included."""
        return len(self.space)

    @property
    def n_records(self) -> int:
        """Records that are simulated."""
        return int(self.table.shape[-1])

    def losses(self, U: Array) -> Array:
        """Of points (m, d) as the space encodes them, shape (n_records, m)."""
        return np.column_stack([self._at(u) for u in np.atleast_2d(U)])

    def _at(self, u: Array) -> Array:
        numeric = self.space.numeric
        own = self.table[tuple(u[~numeric].astype(int))]
        for value, axis in zip(u[numeric], self.axes.values(), strict=True):
            i = int(np.clip(np.searchsorted(axis, value) - 1, 0, len(axis) - 2))
            share = min(max((value - axis[i]) / (axis[i + 1] - axis[i]), 0.0), 1.0)
            own = (1.0 - share) * own[i] + share * own[i + 1]
        return np.asarray(own, dtype=float)

    def least(self) -> float:
        """The least mean loss."""
        return float(self.table.mean(axis=-1, dtype=float).min())

    def given(self, **chosen: Any) -> Table:
        """The numeric problem that is left once every choice is made."""
        kinds = {n: dim for n, dim in self.space.items() if isinstance(dim, Categorical)}
        where = tuple(int(dim.encode(chosen[name])) for name, dim in kinds.items())
        rest = Space({n: dim for n, dim in self.space.items() if n not in kinds})
        return Table(rest, self.axes, self.table[where])


Fit = Callable[..., Array]
"""From parameters to the losses of all records, shape (n_records,)."""


def filled(space: Space, axes: Mapping[str, Array], name: str, fit: Fit) -> Table:
    """The table, computed once and kept under a name."""
    path = TABLES / f"{name}.npy"
    if not path.exists():
        TABLES.mkdir(parents=True, exist_ok=True)
        np.save(path, np.array(list(_all_losses(space, axes, fit)), dtype=np.float16))
    kinds = [len(dim.choices) for dim in space.values() if isinstance(dim, Categorical)]
    shape = (*kinds, *(len(axis) for axis in axes.values()), -1)
    return Table(space, axes, np.load(path).astype(np.float32).reshape(shape))


def _all_losses(space: Space, axes: Mapping[str, Array], fit: Fit) -> Iterator[Array]:
    kinds = {n: dim.choices for n, dim in space.items() if isinstance(dim, Categorical)}
    for chosen in itertools.product(*kinds.values()):
        for point in itertools.product(*axes.values()):
            numbers = {n: space[n].decode(u) for n, u in zip(axes, point, strict=True)}
            yield fit(**dict(zip(kinds, chosen, strict=True)), **numbers)


def _even(size: int) -> Array:
    return np.linspace(0.0, 1.0, size)


def _photographs() -> list[Array]:
    """Brightness in [0, 1]."""
    from sklearn.datasets import load_sample_image

    return [load_sample_image(f"{n}.jpg").mean(axis=2) / 255.0 for n in ("china", "flower")]


def _patches(image: Array, size: int) -> Array:
    """Patches that do not overlap, shape (n, size²)."""
    high, wide = (side // size for side in image.shape)
    cut = image[: high * size, : wide * size].reshape(high, size, wide, size)
    return np.asarray(cut.transpose(0, 2, 1, 3).reshape(-1, size * size))


def _split(X: Array, y: Array) -> tuple[Array, Array, Array, Array]:
    """Training patches, their targets, validation patches, theirs."""
    order = np.random.default_rng(0).permutation(len(X))
    train, valid = order[:_TRAINED], order[_TRAINED : _TRAINED + _VALIDATED]
    return X[train], y[train], X[valid], y[valid]


@cache
def svc() -> Table:
    """A support vector classifier that tells patches of two photographs apart."""
    from sklearn.metrics.pairwise import pairwise_kernels
    from sklearn.svm import SVC

    patches = [_patches(image, 8) for image in _photographs()]
    y = np.repeat([0, 1], [len(part) for part in patches])
    X, y, V, s = _split(np.vstack(patches), y)
    space = Space(
        {
            "kernel": Categorical(("linear", "poly", "rbf", "sigmoid")),
            "brightness": Categorical(("kept", "removed")),
            "C": Float(1e-2, 1e3, log=True),
            "gamma": Float(1e-4, 1e1, log=True),
        }
    )

    @cache
    def kernels(kernel: str, brightness: str, gamma: float) -> tuple[Array, Array]:
        A, B = (
            part - part.mean(axis=1, keepdims=True) if brightness == "removed" else part - 0.5
            for part in (X, V)
        )
        given = {} if kernel == "linear" else {"gamma": gamma}
        return tuple(pairwise_kernels(P, A, metric=kernel, **given) for P in (A, B))

    @cache
    def fit(C: float, gamma: float, kernel: str, brightness: str) -> Array:
        K, P = kernels(kernel, brightness, gamma)
        found = SVC(C=C, kernel="precomputed", max_iter=5000).fit(K, y).predict(P)
        return np.asarray(found != s, dtype=float)

    def once(C: float, gamma: float, kernel: str, brightness: str) -> Array:
        return fit(C, 1.0 if kernel == "linear" else gamma, kernel, brightness)

    return filled(space, {"C": _even(11), "gamma": _even(11)}, "svc", once)


@cache
def boosting() -> Table:
    """Gradient boosting of the brightness in the middle of a patch."""
    from sklearn.ensemble import GradientBoostingRegressor

    patches = np.vstack([_patches(image, 6) for image in _photographs()])
    middle = 14
    X, y, V, s = _split(np.delete(patches, [middle, 7, 8, 9, 13, 15, 19, 20, 21], axis=1),
                        patches[:, middle])  # fmt: skip
    space = Space(
        {
            "loss": Categorical(("squared_error", "absolute_error", "huber")),
            "max_features": Categorical((None, "sqrt")),
            "learning_rate": Float(0.003, 1.0, log=True),
            "subsample": Float(0.1, 1.0),
            "max_depth": Int(1, 7),
        }
    )

    def fit(**parameters: Any) -> Array:
        model = GradientBoostingRegressor(n_estimators=30, random_state=0, **parameters)
        errors = np.abs(model.fit(X, y).predict(V) - s)
        return np.asarray(np.minimum(4.0 * errors, 1.0))

    axes = {"learning_rate": _even(7), "max_depth": _even(4), "subsample": _even(3)}
    return filled(space, axes, "boosting", fit)


@cache
def knn() -> Table:
    """Nearest neighbours on digits that are moved by a pixel."""
    from scipy.spatial.distance import cdist
    from sklearn.datasets import load_digits

    found = load_digits()
    order = np.random.default_rng(0).permutation(len(found.data))
    images, y = found.images[order] / 16.0, found.target[order]
    ways = [(0, 0), (0, 1), (1, 0), (0, -1), (-1, 0), (1, 1)]
    moved = [np.roll(images[899:], way, axis=(1, 2)) for way in ways]
    X, V, s = images[:899].reshape(899, -1), np.vstack(moved).reshape(-1, 64), np.tile(y[899:], 6)
    space = Space(
        {
            "metric": Categorical(("euclidean", "cityblock", "chebyshev", "cosine")),
            "weights": Categorical(("uniform", "distance")),
            "k": Int(1, 64, log=True),
            "power": Float(0.1, 10.0, log=True),
        }
    )

    @cache
    def neighbours(metric: str, power: float) -> tuple[Array, NDArray[np.int64]]:
        D = cdist(V**power, X**power, metric)  # type: ignore[call-overload]
        nearest = np.argsort(D, axis=1)[:, :64]
        return np.take_along_axis(D, nearest, axis=1), y[nearest]

    def fit(metric: str, weights: str, k: int, power: float) -> Array:
        D, labels = neighbours(metric, power)
        share = np.ones_like(D) if weights == "uniform" else 1.0 / (D + 1e-9)
        votes = [(share[:, :k] * (labels[:, :k] == digit)).sum(axis=1) for digit in range(10)]
        return np.asarray(np.argmax(votes, axis=0) != s, dtype=float)

    return filled(space, {"k": _even(10), "power": _even(11)}, "knn", fit)


PROBLEMS: dict[str, Callable[[], Table]] = {"svc": svc, "boosting": boosting, "knn": knn}
"""By name; each is built once a process."""
