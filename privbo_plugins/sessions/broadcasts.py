"""Reads a federation's broadcasts from its ledger, and makes the claim for them."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from privbo_plugins.algorithms.dp_fts_de.config import FederationConfig, large_delta
from privbo_plugins.algorithms.dp_fts_de.server import Broadcast
from privbo_plugins.privacy.guarantee import FederationGuarantee
from privbo_plugins.store.run import Run
from privbo_plugins.store.vault import NOTE, UNPROTECTED

Array = NDArray[np.float64]

BROADCAST = "broadcast"
"""Kind of the releases and charges of a federation."""

NO_NOISE = "the federation was set up without noise (z = 0)"


def broadcasts_of(run: Run) -> list[Broadcast]:
    """Everything that a federation's ledger has released, in order."""
    with run.transaction() as tx:
        released = tx.releases_after(0)
    return [from_payload(int(key), told) for _, kind, key, told in released if kind == BROADCAST]


def claimed_of(run: Run, config: FederationConfig, *, held: bool) -> FederationGuarantee:
    """Makes the claim that a federation's ledger allows for its broadcasts.

    Args:
        run: The ledger's.
        config: The federation's settings.
        held: Whether rounds run on the server's clock, which the ledger does not know.
    """
    with run.transaction() as tx:
        reasons, noted = list(tx.marks(UNPROTECTED)), tx.marks(NOTE)
        released = len(tx.charges())
        lost = released - sum(kind == BROADCAST for _, kind, _, _ in tx.releases_after(0))
    if lost:
        noted = (
            *noted,
            f"{lost} of the rounds are paid for and not released: their sums were not opened",
        )
    return claim(config, released, reasons, noted, held=held)


def claim(
    config: FederationConfig,
    released: int,
    reasons: Sequence[str],
    notes: Sequence[str],
    *,
    held: bool,
) -> FederationGuarantee:
    """Makes the claim that the settings of a federation allow.

    Args:
        config: The settings.
        released: Rounds that are paid for.
        reasons: Why nothing may be claimed, if so.
        notes: Facts a reader should know.
        held: Whether rounds run on the server's clock.
    """
    if config.noise_multiplier == 0:
        reasons = [*reasons, NO_NOISE]
    infinite = bool(reasons)
    notes = [*notes, large_delta(config.delta, config.n_agents)]
    return FederationGuarantee(
        not reasons,
        config.n_agents,
        math.inf if infinite else config.epsilon_after(config.n_rounds),
        config.delta,
        math.inf if infinite else config.epsilon_after(released),
        config.n_rounds,
        released,
        parameters=config.mechanism_parameters(),
        reasons=tuple(dict.fromkeys(reasons)),
        notes=tuple(filter(None, dict.fromkeys(notes))),
        held=held,
    )


def to_payload(broadcast: Broadcast) -> dict[str, Any]:
    """A broadcast as the ledger holds it."""
    return {"weights": broadcast.weights.tolist(), "noise": broadcast.noise.tolist()}


def from_payload(t: int, payload: Mapping[str, Any]) -> Broadcast:
    """Round t's broadcast, as the ledger holds it."""
    return Broadcast(t, _frozen(payload["weights"]), _frozen(payload["noise"]))


def _frozen(numbers: Any) -> Array:
    """Makes an array read-only, because all agents of this process share it."""
    array = np.array(numbers, dtype=float)
    return np.frombuffer(array.tobytes()).reshape(array.shape)
