"""The problems of the map of methods."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from benchmarks import map_problems
from benchmarks.map_problems import Bowl, Instance, Lattice, Penalties, ScaledRidge, instance

Array = NDArray[np.float64]


def _lattice(seed: int) -> Lattice:
    shape = (3, 4, 2, 30)
    return Lattice(np.random.default_rng(seed).integers(0, 2, shape).astype(np.uint8))


COMPUTED: dict[str, Callable[[int], Instance]] = {
    "bowl": lambda seed: Bowl(4, seed),
    "lattice": _lattice,
    "digits-8": lambda seed: instance("digits-8", seed),
    "digits-15": lambda seed: instance("digits-15", seed),
    "ridge-4": ScaledRidge,
}


@pytest.mark.parametrize("kind", COMPUTED)
def test_losses_lie_between_0_and_1_and_no_point_is_better_than_the_least(kind: str) -> None:
    problem = COMPUTED[kind](3)
    U = np.random.default_rng(0).random((200, problem.d))
    U = np.vstack([U, np.round(U[:40]), np.full((1, problem.d), 0.5)])
    Y = problem.losses(U)
    assert Y.shape == (problem.n_records, len(U))
    assert Y.min() >= 0
    assert Y.max() <= 1
    assert problem.least() <= Y.mean(0).min() + 1e-9


@pytest.mark.parametrize(("part", "d"), [("digits-8", 8), ("digits-15", 15)])
def test_the_descent_to_the_least_of_a_ridge_classifier_follows_its_own_slopes(
    part: str, d: int
) -> None:
    """Differences of the losses themselves."""
    problem = instance(part, 3)
    assert isinstance(problem, Penalties)
    assert problem.d == d
    u = np.random.default_rng(1).random(d)
    step = 1e-5 * np.eye(d)
    slopes = (problem.losses(u + step) - problem.losses(u - step)).mean(0) / 2e-5
    assert problem.mean_and_gradient(u)[1] == pytest.approx(slopes, abs=1e-6)


@pytest.mark.parametrize("seed", [0, 1])
def test_penalties_are_those_of_another_ridge_on_scaled_pixels(seed: int) -> None:
    from sklearn.datasets import load_digits
    from sklearn.linear_model import Ridge

    problem = instance("digits-8", seed)
    u = np.random.default_rng(seed).random(8)
    X, y = load_digits(return_X_y=True)
    order = np.random.default_rng([seed, 6]).permutation(len(X))[:900]
    scale = 10.0 ** (-(7.0 * u - 4.0) / 2)
    X, labels = X[order] / 16.0 * np.repeat(scale, 8), np.eye(10)[y[order]]
    outputs = Ridge(alpha=1.0).fit(X[:100], labels[:100]).predict(X[100:])
    expected = np.minimum(((outputs - labels[100:]) ** 2).sum(1) / 2, 1.0)
    assert problem.losses(u[None])[:, 0] == pytest.approx(expected, abs=1e-8)


def test_antidiagonals_of_pixels_have_fifteen_penalties() -> None:
    groups = map_problems._ANTIDIAGONALS.reshape(8, 8)
    assert set(groups.ravel()) == set(range(15))
    assert (groups[1:, :-1] == groups[:-1, 1:]).all()


def test_a_lattice_is_interpolated_as_scipy_does_it_and_exact_at_its_points() -> None:
    from scipy.interpolate import RegularGridInterpolator

    problem = _lattice(0)
    axes = [np.linspace(0, 1, g) for g in problem.table.shape[:-1]]
    U = np.random.default_rng(0).random((50, 3))
    theirs = RegularGridInterpolator(axes, problem.table.astype(float))(U)
    assert problem.losses(U).T == pytest.approx(theirs, abs=1e-12)
    points = np.stack(np.meshgrid(*axes, indexing="ij"), -1).reshape(-1, 3)
    exact = problem.losses(points).T.reshape(problem.table.shape)
    assert exact == pytest.approx(problem.table, abs=1e-12)
    assert exact.mean(-1).min() == pytest.approx(problem.least(), abs=1e-12)


@pytest.mark.parametrize(
    ("fill", "shape"), [("_network", (2, 1, 2, 1)), ("_boosted", (2, 1, 1, 3))]
)
def test_a_table_is_computed_once_and_holds_errors_that_training_changes(
    fill: str, shape: tuple[int, ...], tmp_path: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(map_problems, "TABLES", tmp_path / "tables")
    calls = []

    def filled() -> NDArray[np.uint8]:
        calls.append(fill)
        found: NDArray[np.uint8] = getattr(map_problems, fill)(shape)
        return found

    first, again = (map_problems._kept_table("small", filled) for _ in range(2))
    assert calls == [fill]
    assert first.table.shape == (*shape, 800)
    assert (first.table == again.table).all()
    assert set(np.unique(first.table)) == {0, 1}
    assert np.ptp(first.table.mean(-1)) > 0.05
