"""How a curator's table is released: the mechanism, its charge and its draw."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from privbo_plugins.algorithms.po_gp_ucb.arguments import (
    checked_bound,
    checked_columns,
    checked_rows,
)
from privbo_plugins.algorithms.po_gp_ucb.gaussian import (
    checked_scaling,
    count_beyond,
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
from privbo_plugins.errors import PrivacyError
from privbo_plugins.privacy.accountant import gdp_mu
from privbo_plugins.privacy.ledger import Charge
from privbo_plugins.privacy.mechanisms import check_share
from privbo_plugins.privacy.source import NoiseSource
from privbo_plugins.sessions.columns import TABLE
from privbo_plugins.sessions.settings import CuratorSettings
from privbo_plugins.store.transaction import UNPROTECTED, Transaction

Array = NDArray[np.float64]
Progress = Callable[[int, int], None]

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


class TableMechanism:
    """Holds a curator's rows and what happens to them when the table is released.

    Args:
        given: The curator's settings.

    Raises:
        ValueError: For every argument outside its range; no text quotes an entry of the table.
        PrivacyError: With ``on_excess="refuse"``, if a row lies outside.
    """

    def __init__(self, given: CuratorSettings) -> None:
        self.X = checked_rows(given.X, given.columns, given.bounds)
        self.n, self.d = self.X.shape
        self.name, self.on_excess = given.mechanism, given.on_excess
        self.epsilon, self.delta = float(given.epsilon), float(given.delta)
        self.mu = gdp_mu(self.epsilon, self.delta)  # refuses what lies outside
        check_share(self.mu)
        self._scaling = checked_scaling(given.bounds, self.d)
        nu = given.neighbor_distance
        self.neighbor_distance = None if nu is None else float(nu)
        self.norm_bound = checked_bound(given.norm_bound, self._scaling, self.neighbor_distance)
        self.columns = checked_columns(given.columns, self.d)
        self._seed = int(given.projection_seed)
        self._r = self._checked_r(given.r)
        if self.on_excess == "refuse":
            self._refuse_excess()

    @property
    def is_private(self) -> bool:
        """Whether the mechanism has a guarantee."""
        return self.name != "projection"

    def _checked_r(self, r: int | None) -> int | None:
        if r is None:
            return self.d if self.is_private else None
        if not isinstance(r, int | np.integer) or isinstance(r, bool) or r < 1:
            raise ValueError(f"r must be an integer >= 1, got {r!r}.")
        if self.is_private:
            public_projection(self.d, r, self._seed)
        return int(r)

    def _refuse_excess(self) -> None:
        if count_beyond(self.X, self._scaling, self.norm_bound):
            raise PrivacyError(
                "Some row lies outside the public bounds or the norm bound "
                f"{self.norm_bound:g}, or holds an entry that is no number. Nothing was released. "
                "Give wider public bounds, or on_excess='clip'."
            )

    def public(self) -> dict[str, Any]:
        """Lists the public settings that the run and the manifest both hold."""
        return {
            "mechanism": self.name, "n": self.n, "d": self.d, "epsilon": self.epsilon,
            "delta": self.delta, "neighbor_distance": self.neighbor_distance,
            "norm_bound": self.norm_bound, "on_excess": self.on_excess,
            "scaling": self._public_scaling(),
        }  # fmt: skip

    def settings(self) -> dict[str, Any]:
        """Lists the public settings of the run."""
        return self.public() | {"r": self._r, "projection_seed": self._seed}

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
        """P, Delta and sigma."""
        P = public_projection(self.d, self._r or self.d, self._seed)
        delta_2 = sensitivity(self.neighbor_distance, self.norm_bound, P)
        return P, delta_2, noise_scale(delta_2, self.mu)

    def draw(self, noise: NoiseSource, progress: Progress) -> tuple[Array, dict[str, Any]]:
        """Draws the released table, and lists what its manifest says of the draw."""
        rows = rows_within(self.X, self._scaling, self.norm_bound)
        if not self.is_private:
            return self._projected(rows, noise)
        P, delta_2, sigma = self._noise_of_rows()
        seeded = {"kind": "seeded", "seed": self._seed}
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
        progress(min(start + step, len(Z)), len(Z))
    return Z
