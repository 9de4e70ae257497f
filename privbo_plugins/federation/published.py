"""What a federation has broadcast, for pictures and reports."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from privbo_plugins.algorithms.dp_fts_de.config import FederationConfig
from privbo_plugins.algorithms.dp_fts_de.plan import spent_by_round
from privbo_plugins.algorithms.dp_fts_de.server import Broadcast
from privbo_plugins.plots import FederationHistory, Round


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


def round_of(broadcast: Broadcast) -> Round:
    """A broadcast in two numbers."""
    size, noise = (
        float(np.sqrt(np.mean(np.square(numbers))))
        for numbers in (broadcast.weights, broadcast.noise)
    )
    return Round(broadcast.round, size, noise)
