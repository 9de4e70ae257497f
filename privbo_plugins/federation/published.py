"""What a federation has broadcast, for pictures and reports."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from privbo_plugins.algorithms.dp_fts_de.config import FederationConfig
from privbo_plugins.algorithms.dp_fts_de.server import Broadcast
from privbo_plugins.plots import FederationHistory, Round

_MOST = 12
"""Numbers of rounds for which epsilon is worked out; each takes a moment."""


def published(config: FederationConfig, broadcasts: Sequence[Broadcast]) -> FederationHistory:
    """Rounds and budget of a federation.

    Args:
        config: Its public settings.
        broadcasts: What was released so far.

    Example:
        >>> history = published(FederationConfig(n_agents=4, z=1.0, n_rounds=2), [])
        >>> [t for t, _ in history.spent], len(history.rounds)
        ([1, 2], 0)
    """
    return FederationHistory(
        [round_of(broadcast) for broadcast in broadcasts],
        config.n_rounds,
        spent_by_round(config, len(broadcasts)),
    )


def spent_by_round(config: FederationConfig, released: int = 1) -> list[tuple[int, float]]:
    """(rounds, epsilon of so many), from one round to all; what was released is among them."""
    even = np.linspace(1, config.n_rounds, min(config.n_rounds, _MOST)).round().astype(int)
    counts = sorted({*even.tolist(), max(released, 1)})
    if config.noise_multiplier == 0:
        return [(t, math.inf) for t in counts]
    return [(t, config.epsilon_after(t)) for t in counts]


def round_of(broadcast: Broadcast) -> Round:
    """A broadcast in two numbers."""
    size, noise = (
        float(np.sqrt(np.mean(np.square(numbers))))
        for numbers in (broadcast.weights, broadcast.noise)
    )
    return Round(broadcast.round, size, noise)
