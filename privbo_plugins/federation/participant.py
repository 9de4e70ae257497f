"""What an agent does in a federation, whatever tunes it."""

from __future__ import annotations

import json
import threading
import warnings
import weakref

import numpy as np
from numpy.typing import NDArray

from privbo_plugins.algorithms.dp_fts_de.agent import Agent, SharedModel
from privbo_plugins.algorithms.dp_fts_de.config import FederationConfig
from privbo_plugins.algorithms.dp_fts_de.server import Broadcast
from privbo_plugins.errors import FederationError
from privbo_plugins.federation.link import Link
from privbo_plugins.spaces import Space

Array = NDArray[np.float64]


class Participant:
    """Sends, waits and proposes for one agent.

    It keeps nothing of the agent's history: that is an argument, read from wherever the agent's
    own trials are kept. A server that cannot be reached ends nothing: the agent goes on with what
    it received before, and tries again next time.

    Args:
        link: The way to the server.
        space: What is tuned.
        maximize: Whether large values are good.
        seed: Drives the agent's points and draws, never noise.

    Raises:
        SpaceChangedError: If the other agents tune another space.
    """

    def __init__(self, link: Link, space: Space, *, maximize: bool, seed: int) -> None:
        link.join(space.to_dict())
        self.link, self.space = link, space
        self.agent = Agent(
            shared_model(link.config, space), link.agent, maximize=maximize, seed=seed
        )
        self._lock = threading.Lock()
        self._pending: int | None = None
        self._received: list[Broadcast] = []

    @property
    def n_startup(self) -> int:
        """Trials before the first round."""
        return self.link.config.n_startup

    def send(self, X: Array, values: Array, number: int) -> None:
        """Sends this agent's vector for the next round, unless it has; see :meth:`next_point`.

        Raises:
            FederationError: If the server cannot be reached or does not go on.
        """
        t = number - self.n_startup + 1
        with self._lock:
            if t >= 1 and self._pending is None:
                self._pending = self.link.submit(self.agent.message(X, values, t))

    def receive(self) -> bool:
        """Waits for the end of the round that this agent has sent to, if any.

        Trials of one agent that run at the same time wait for the same round.

        Returns:
            False if the server knows that round no longer: it was begun again, so the vector has
            to be sent again.

        Raises:
            FederationError: If the server cannot be reached or does not go on.
        """
        pending = self._pending
        try:
            known = pending is None or self.link.collect(pending) is not None
        finally:
            with self._lock:
                if self._pending == pending:
                    self._pending = None
        self._received = self.link.broadcasts()
        return known

    def next_point(self, X: Array, values: Array, number: int) -> Array:
        """The point of the agent's trial ``number`` = 0, 1, ..., shape (D,).

        Args:
            X: Points evaluated so far, shape (n, D).
            values: What was observed there, shape (n,).
            number: How many trials came before, finished or not.

        Warns:
            UserWarning: If the agent goes on alone, because the server does not answer.
        """
        if number < self.n_startup:
            return self.agent.start_point(number)
        try:
            self.send(X, values, number)
            if not self.receive():
                self.send(X, values, number)
                self.receive()
        except FederationError as error:
            warnings.warn(f"This agent goes on alone: {error}", UserWarning, stacklevel=2)
        return self.agent.propose(X, values, number - self.n_startup + 1, self._received)


_MODELS: weakref.WeakValueDictionary[str, SharedModel] = weakref.WeakValueDictionary()


def shared_model(config: FederationConfig, space: Space) -> SharedModel:
    """Features and regions of a space, one for all agents of this process."""
    key = json.dumps([config.to_dict(), space.to_dict()])
    found = _MODELS.get(key)
    if found is None:
        found = _MODELS[key] = SharedModel(config, space)
    return found
