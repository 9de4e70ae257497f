"""How a curator's table is released: the mechanism, its charge and its draw."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from privbo_plugins import sanitize
from privbo_plugins.algorithms.po_gp_ucb.gaussian import (
    WIDEST,
    Scaling,
    checked_scaling,
    noise_scale,
    public_projection,
    rows_within,
    sensitivity,
)
from privbo_plugins.algorithms.po_gp_ucb.projection import (
    centred,
    largest_r,
    smallest_singular_value,
    transform,
)
from privbo_plugins.convert import as_floats, as_rows
from privbo_plugins.groups import PERSON, Groups, names_of, unit_of_rows
from privbo_plugins.privacy.accountant import gdp_mu
from privbo_plugins.privacy.ledger import Charge
from privbo_plugins.privacy.local import LocalMechanism
from privbo_plugins.privacy.mechanisms import check_share
from privbo_plugins.privacy.source import NoiseSource
from privbo_plugins.privacy.words import ROW
from privbo_plugins.sessions.columns import TABLE
from privbo_plugins.sessions.settings import CuratorSettings
from privbo_plugins.store.log import UNPROTECTED
from privbo_plugins.store.transaction import Transaction

Array = NDArray[np.float64]
Progress = Callable[[int, int], None]
Outcomes = ArrayLike | Callable[[int], float]
"""Outcomes by row, or a function of the row's number."""

ROWS = "rows"
"""The payer of a table's charge: each row."""

NOT_PRIVATE = (
    "the published random projection keeps every column of the released table in the column space "
    "of the secret one, so one look tells almost any two neighbouring tables apart, and whoever "
    "knows a few rows can compute what was released of all others; it preserves distances and "
    "nothing else"
)

_NUMBERS_AT_ONCE = 2**14
"""Numbers in one draw of noise: the memory that the noise library needs stays small."""

_SEED = 0
"""Of the public matrix for r < d."""


class TableMechanism:
    """Holds a curator's rows and what happens to them when the table is released.

    Args:
        given: The curator's settings.

    Raises:
        ValueError: For every argument outside its range; no text quotes an entry of the table.
    """

    def __init__(self, given: CuratorSettings) -> None:
        self.X = checked_rows(given.X, given.columns, given.bounds)
        self.n, self.d = self.X.shape
        self.rows_per_group = given.rows_per_group or (None if given.groups is None else 1)
        self.unit = given.unit or PERSON
        if self.rows_per_group is None:
            names = names_of(given.X)
            self.unit = unit_of_rows(given.unit, names, "Curator(groups=ids)") or ROW
        self.name = given.mechanism
        self.groups = self._grouped(given.groups)
        self.counts = None if self.groups is None else self.groups.first(self.rows_per_group or 1)
        self.epsilon, self.delta = float(given.epsilon), float(given.delta)
        self.mu = gdp_mu(self.epsilon, self.delta)  # refuses what lies outside
        check_share(self.mu)
        self._scaling = checked_scaling(given.bounds, self.d)
        nu = given.neighbor_distance
        self.neighbor_distance = None if nu is None else float(nu)
        self.norm_bound = checked_bound(given.norm_bound, self._scaling, self.neighbor_distance)
        self.columns = checked_columns(given.columns, self.d)
        self._r = self._checked_r(given.r)
        if self.counts is not None:
            self.X = np.where(self.counts[:, None], self.X, self._middle())

    @property
    def is_private(self) -> bool:
        """True if the mechanism has a guarantee."""
        return self.name != "projection"

    def _grouped(self, ids: Any) -> Groups | None:
        """Reads whose each row is, where some of one person may not count.

        Raises:
            ValueError: If there is not one id a row, or the mechanism claims nothing for persons.
        """
        if not self.is_private and self.rows_per_group is not None:
            raise ValueError(
                'mechanism="projection" has no guarantee, so groups= and rows_per_group= do '
                'nothing: leave them out, or take mechanism="gaussian".'
            )
        if ids is None:
            return None
        groups = Groups(ids)
        if len(groups.of) != self.n:
            raise ValueError(
                f"groups must hold one id for each of the {self.n} rows of X, in their order; it "
                "has another length. Nothing was released or charged."
            )
        return groups

    def _middle(self) -> Array:
        """The public row (d,) that stands for one that does not count: scaled, it is 0."""
        if self._scaling is None:
            return np.zeros(self.d)
        return np.asarray(np.mean([self._scaling.low, self._scaling.high], axis=0))

    def _checked_r(self, r: int | None) -> int | None:
        if r is None:
            return self.d if self.is_private else None
        if self.is_private:
            public_projection(self.d, r, _SEED)
        return r

    def public(self) -> dict[str, Any]:
        """Lists the public settings that the run and the manifest both hold."""
        return {
            "mechanism": self.name, "n": self.n, "d": self.d, "epsilon": self.epsilon,
            "delta": self.delta, "neighbor_distance": self.neighbor_distance,
            "norm_bound": self.norm_bound, "scaling": self._public_scaling(), "unit": self.unit,
            "rows_per_group": self.rows_per_group,
        }  # fmt: skip

    def settings(self) -> dict[str, Any]:
        """Lists the public settings of the run."""
        return self.public() | {"r": self._r}

    def _public_scaling(self) -> dict[str, Any] | None:
        scaling = self._scaling
        if scaling is None and self.columns is None:
            return None
        return {
            "columns": None if self.columns is None else list(self.columns),
            "low": None if scaling is None else list(scaling.low),
            "high": None if scaling is None else list(scaling.high),
        }

    def charge(self, tx: Transaction) -> None:
        """Charges the release, or marks the run where nothing can be claimed."""
        if not self.is_private:
            tx.charge(Charge(TABLE, "0", math.inf, math.inf, 0.0, ROWS))
            tx.mark(UNPROTECTED, NOT_PRIVATE)
            return
        _, delta_2, sigma = self._noise_of_rows()
        tx.charge(Charge(TABLE, "0", self.mu, delta_2, sigma, ROWS))

    def _noise_of_rows(self) -> tuple[Array, float, float]:
        """P, Delta and sigma.

        A person changes k rows at most, each by the Delta of one row: sqrt(k) times it in all.
        """
        P = public_projection(self.d, self._r or self.d, _SEED)
        delta_2 = sensitivity(self.neighbor_distance, self.norm_bound, P)
        delta_2 *= math.sqrt(self.rows_per_group or 1)
        return P, delta_2, noise_scale(delta_2, self.mu)

    def draw(self, noise: NoiseSource, progress: Progress) -> tuple[Array, dict[str, Any]]:
        """Draws the released table, and lists what its manifest says of the draw."""
        rows = rows_within(self.X, self._scaling, self.norm_bound)
        if not self.is_private:
            return self._projected(rows, noise)
        P, delta_2, sigma = self._noise_of_rows()
        seeded = {"kind": "seeded", "seed": _SEED}
        return _with_noise(rows @ P, sigma, noise, progress), {
            "mu": self.mu, "sensitivity": delta_2, "noise_sd": sigma,
            "projection": {"kind": "identity"} if self._r == self.d else seeded,
        }  # fmt: skip

    def _projected(self, rows: Array, noise: NoiseSource) -> tuple[Array, dict[str, Any]]:
        epsilon, delta = self.epsilon, self.delta
        r = self._r or largest_r(smallest_singular_value(centred(rows)), epsilon, delta) or self.d
        M = noise.add_gaussian(np.zeros(self.d * r), 1.0).reshape(self.d, r)
        Z, raised = transform(rows, M, epsilon, delta)
        return Z, {
            "mu": None, "sensitivity": None, "noise_sd": 0.0,
            "projection": {"kind": "secret", "singular_values_raised": raised},
        }  # fmt: skip


def _with_noise(exact: Array, sigma: float, noise: NoiseSource, progress: Progress) -> Array:
    Z, step = np.empty_like(exact), max(1, _NUMBERS_AT_ONCE // exact.shape[1])
    for start in range(0, len(Z), step):
        rows = exact[start : start + step]
        Z[start : start + step] = noise.add_gaussian(rows.ravel(), sigma).reshape(rows.shape)
        with sanitize.forgiven:  # what is raised after a draw would take back its charge
            progress(min(start + step, len(Z)), len(Z))
    return Z


# Arguments; no text quotes an entry of the table or an outcome ----------------------------------


def checked_rows(X: ArrayLike, columns: Sequence[str] | None, bounds: ArrayLike | None) -> Array:
    """Convert a table (n, d) to numbers; entries that are none are missing.

    Args:
        X: An array, whose shape is public, or a list of rows.
        columns: Names of the columns; they or the bounds say how wide the rows of a list are.
        bounds: One (low, high) a column.

    Raises:
        ValueError: If it is no table.
    """
    ends = np.shape([] if bounds is None else bounds)
    named = 1 if ends in ((), (2,)) else ends[0]
    rows = as_rows(X, named if columns is None else len(columns))
    if rows is None or rows.ndim != 2 or rows.shape[0] < 1 or rows.shape[1] < 1:
        raise ValueError(
            "X must be a table of numbers, shape (n, d), with at least one row and one column: an "
            "array, or a list of rows beside bounds= or columns=, which say how wide it is. "
            "Encode texts and categories as numbers first."
        )
    return rows


def checked_bound(R: float | None, scaling: Scaling | None, nu: float | None) -> float:
    """The norm bound that rows are clipped to, from public knowledge only.

    Raises:
        ValueError: If there is nothing to take it from, or it is too wide for nu.
    """
    if R is not None:
        bound = float(R)
    elif scaling is not None:
        bound = scaling.radius
    elif nu is not None:
        bound = WIDEST * nu
    else:
        raise ValueError(
            "Give bounds= (public ranges of the columns), norm_bound= or neighbor_distance=: "
            "without any of them no finite noise hides a row."
        )
    widest = bound if scaling is None else max(bound, scaling.radius)
    if nu is not None and widest > WIDEST * nu:
        raise ValueError(
            "neighbor_distance must be at least 2^-20 times the largest norm of a row "
            f"(norm_bound, or sqrt(d) / 2 with bounds), got {nu} and {widest}: rounding errors "
            "would be too large for the guarantee."
        )
    return bound


def checked_columns(names: Sequence[str] | None, d: int) -> tuple[str, ...] | None:
    """One name a column.

    Raises:
        ValueError: If there are more or fewer.
    """
    if names is None:
        return None
    listed = tuple(str(name) for name in names)
    if len(listed) != d:
        raise ValueError(f"columns must name {d} columns, got {len(listed)} names.")
    return listed


def checked_outcomes(outcomes: Outcomes | None, n: int) -> Array | Callable[[int], float] | None:
    """Outcomes by row, shape (n,), or a function.

    Raises:
        ValueError: If there is not one number a row.
    """
    if outcomes is None or callable(outcomes):
        return outcomes
    y = as_floats(outcomes)
    if y is None or y.shape != (n,):
        raise ValueError(
            f"outcomes must be one number for each of the {n} rows, or a function, got "
            f"{'something else' if y is None else f'shape {y.shape}'}."
        )
    return y


def checked_row(row: Any, n: int) -> int:
    """A row's number.

    Raises:
        ValueError: If there is no such row.
    """
    whole = isinstance(row, int | np.integer) and not isinstance(row, bool)
    if not (whole and 0 <= row < n):
        raise ValueError(f"row must be an integer from 0 to {n - 1}, got {row!r}.")
    return int(row)


def worst_outcome(mechanism: LocalMechanism | None, maximize: bool) -> float:
    """Names the value that NaN and infinity count as."""
    if mechanism is None:
        return math.nan
    return mechanism.low if maximize else mechanism.high
