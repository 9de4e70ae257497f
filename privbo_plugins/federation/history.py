"""What one agent keeps of its own trials: its secret, which never goes to the server."""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from privbo_plugins.errors import SpaceChangedError, VaultError
from privbo_plugins.settings import is_finite
from privbo_plugins.spaces import Space
from privbo_plugins.store.log import DAMAGED
from privbo_plugins.store.run import begin_or_join, stored_settings
from privbo_plugins.store.vault import open_vault

Array = NDArray[np.float64]

_ROLE, _TOLD = "agent", "told"


class AgentHistory:
    """One agent's trials, in memory or in a database of its own; a file gets mode 0600.

    The first write of a trial counts: a trial that is evaluated again changes nothing.

    Args:
        agent: The agent's name.
        space: What it tunes.
        vault: Where trials are kept; None for memory.
        run_name: Name of the run in the vault.
        create: Whether a run that is not there is started; False only reads.

    Raises:
        SpaceChangedError: If the run was started with another space.
        VaultError: If the vault cannot be opened, or there is nothing to read.

    Example:
        >>> from privbo_plugins.spaces import Float
        >>> history = AgentHistory("a", Space({"x": Float(0, 1)}))
        >>> history.append(0, np.array([0.25]), 3.5)
        >>> history.append(1, np.array([0.75]), math.nan)
        >>> X, values = history.read()
        >>> X.tolist(), values.tolist(), history.n_trials
        ([[0.25]], [3.5], 2)
    """

    def __init__(
        self,
        agent: str,
        space: Space,
        *,
        vault: str | Path | None = None,
        run_name: str = "federation",
        create: bool = True,
    ) -> None:
        self._d, key = len(space), f"agent:{run_name}/{agent}"
        held = open_vault(vault, create=create)
        if not create and stored_settings(held, key) is None:
            raise VaultError(
                f"The vault holds no run {run_name!r} of the agent {agent!r}: check both names."
            )
        other = SpaceChangedError(
            f"The vault of the agent {agent!r} holds the run {run_name!r} over another search "
            "space. Use the same space, or another run_name=."
        )
        self._run = begin_or_join(held, key, {"space": space.to_dict()}, otherwise=other)

    @property
    def n_trials(self) -> int:
        """Trials that are over, with a value or without."""
        with self._run.transaction() as tx:
            return max((row.slot for row in tx.trials()), default=-1) + 1

    def append(self, number: int, x: Array, value: float) -> None:
        """Stores the end of a trial, once.

        Args:
            number: The trial's, from 0.
            x: Where it was evaluated, shape (D,).
            value: What was observed; NaN and infinity for a trial that failed.

        Raises:
            ValueError: If the number or the shape makes no sense.
            VaultError: If the vault cannot be written.
        """
        x = np.asarray(x, dtype=float)
        if number < 0 or x.shape != (self._d,):
            raise ValueError(
                f"A trial has a number >= 0 and a point of shape ({self._d},), got number="
                f"{number} and shape {x.shape}."
            )
        trial = f"{number:06d}"
        with self._run.transaction() as tx:
            if tx.trial(trial) is not None:
                return
            tx.new_trial(trial, _ROLE, 0, number, x)
            if math.isfinite(value):
                tx.finish(trial, x, float(value))
            else:
                tx.fail(trial)

    def read(self) -> tuple[Array, Array]:
        """Points (n, D) and values (n,) of the trials that have one, in order."""
        with self._run.transaction() as tx:
            done = [row for row in tx.trials() if row.state == "done"]
        points, told = [row.x for row in done], [row.value for row in done]
        if not all(map(is_finite, told)) or any(len(x) != self._d for x in points):
            raise VaultError(DAMAGED)
        X = np.array(points) if points else np.empty((0, self._d))
        return X, np.array(told, dtype=float)

    def told(self) -> bool:
        """True from the second call on, for what is to be done once for a run."""
        with self._run.transaction() as tx:
            known = bool(tx.marks(_TOLD))
            tx.mark(_TOLD, "the owner")
        return known
