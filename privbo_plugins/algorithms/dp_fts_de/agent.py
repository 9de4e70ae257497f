"""An agent's part: what it sends, and where it evaluates next.

State is explicit: an agent's history and the broadcasts are arguments. All that an agent does with
a broadcast is post-processing. Its draws are functions of its seed, its number and its own round,
so an agent that is started again repeats itself.
"""

from __future__ import annotations

import json
import weakref
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from privbo_plugins.algorithms.dp_fts_de.config import FederationConfig
from privbo_plugins.algorithms.dp_fts_de.explore import FeatureModel
from privbo_plugins.algorithms.dp_fts_de.model import SharedModel
from privbo_plugins.algorithms.dp_fts_de.population import PopulationModel
from privbo_plugins.algorithms.dp_fts_de.regions import dealt
from privbo_plugins.algorithms.dp_fts_de.server import Broadcast
from privbo_plugins.spaces import Space

Array = NDArray[np.float64]

_START, _MESSAGE, _PROPOSE = range(3)
"""Streams of an agent's randomness."""


FEDERATED_MODELS: dict[str, type[SharedModel]] = {
    "prior": PopulationModel,
    "explore": FeatureModel,
}
"""How agents use what they receive, by the name in ``FederationConfig.population``."""


def make_model(config: FederationConfig, space: Space) -> SharedModel:
    """Makes the public model that the settings name."""
    return FEDERATED_MODELS[config.population](config, space)


_SHARED: weakref.WeakValueDictionary[str, SharedModel] = weakref.WeakValueDictionary()


def shared_model(config: FederationConfig, space: Space) -> SharedModel:
    """Makes the public model once for the server and all agents of this process."""
    key = json.dumps([config.to_dict(), space.to_dict()])
    found = _SHARED.get(key)
    if found is None:
        found = _SHARED[key] = make_model(config, space)
    return found


class Agent:
    """One agent of a federation.

    Args:
        model: Shared by all agents of a space; see :func:`make_model`.
        number: The agent's number on the roster, from 0.
        maximize: Whether large values are good.
        seed: Drives its points and draws, never noise.
    """

    def __init__(
        self, model: SharedModel, number: int, *, maximize: bool = True, seed: int = 0
    ) -> None:
        self.model, self.config, self.number = model, model.config, number
        self._maximize, self.seed = maximize, seed
        self.region = int(dealt(np.array(number), self.config.n_regions))

    def _rng(self, stream: int, t: int) -> np.random.Generator:
        words = [self.seed, self.number, stream, t]
        short = 0 <= self.seed < 2**32  # then an array is the same seed, and read sooner
        return np.random.default_rng(np.array(words, dtype=np.uint32) if short else words)

    def units(self, values: Array) -> Array:
        """Values as the model sees them: clipped to the public range, in [0, 1], 1 is best.

        NaN counts as the worst.
        """
        low, high = self.config.value_range
        y = (np.clip(values, low, high) - low) / (high - low)
        return np.where(np.isnan(values), 0.0, y if self._maximize else 1.0 - y)

    def start_point(self, i: int) -> Array:
        """The i-th point before the first round, i = 0, 1, ..., uniform in the agent's region."""
        return np.asarray(self.model.regions.draw(self.region, 1, self._rng(_START, i))[0])

    def message(
        self, X: Array, values: Array, t: int, broadcasts: Sequence[Broadcast] = ()
    ) -> Array:
        """Makes the message of round t, shape (M,); arguments as for :meth:`propose`."""
        return self.model.message(X, self.units(values), broadcasts, self._rng(_MESSAGE, t))

    def propose(self, X: Array, values: Array, t: int, broadcasts: Sequence[Broadcast]) -> Array:
        """The next point, shape (D,).

        Args:
            X: Points evaluated so far, shape (n, D).
            values: What was observed, shape (n,).
            t: The agent's own round, from 1.
            broadcasts: Everything received so far.
        """
        return self.model.propose(X, self.units(values), t, broadcasts, self._rng(_PROPOSE, t))
