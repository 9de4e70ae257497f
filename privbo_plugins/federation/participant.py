"""An agent's part in a federation, the same under every host."""

from __future__ import annotations

import threading

import numpy as np
from numpy.typing import NDArray

from privbo_plugins.algorithms.dp_fts_de.agent import Agent, shared_model
from privbo_plugins.algorithms.dp_fts_de.server import Broadcast
from privbo_plugins.errors import FederationError, warn
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
        self._sent: tuple[int, int | None] | None = None
        self._received: list[Broadcast] = link.broadcasts()

    def reseed(self, seed: int) -> None:
        """From now on other points and draws."""
        self.agent.seed = seed

    @property
    def n_startup(self) -> int:
        """Trials before the first round."""
        return self.link.config.n_startup

    def send(self, X: Array, values: Array, number: int) -> None:
        """Sends this agent's vector before its trial ``number``, unless it has; once a trial.

        Raises:
            FederationError: If the server cannot be reached or does not go on.
        """
        t = number - self.n_startup + 1
        with self._lock:
            if t >= 1 and (self._sent is None or self._sent[0] != number):
                message = self.agent.message(X, values, t, self._received)
                self._sent = number, self.link.submit(message)

    def receive(self) -> bool:
        """Waits for the end of the round that this agent has sent to, if any.

        Trials of one agent that run at the same time wait for the same round.

        Returns:
            False if the server knows that round no longer: it was started again, so the vector has
            to be sent again.

        Raises:
            FederationError: If the server cannot be reached or does not go on.
        """
        sent = self._sent
        known = sent is None or sent[1] is None or self.link.collect(sent[1]) is not None
        with self._lock:
            if not known and self._sent == sent:
                self._sent = None
            self._received = self.link.broadcasts()
        return known

    def next_point(
        self, X: Array, values: Array, number: int, *, takes_part: bool = True
    ) -> Array:
        """The point of the agent's trial ``number`` = 0, 1, ..., shape (D,).

        Args:
            X: Points evaluated so far, shape (n, D).
            values: What was observed there, shape (n,).
            number: How many trials came before, finished or not.
            takes_part: False to use what was received, without sending anything.

        Warns:
            UserWarning: If the agent goes on alone, because the server does not answer.
        """
        if number < self.n_startup:
            return self.agent.start_point(number)
        if takes_part:
            try:
                self._take_part(X, values, number)
            except FederationError as error:
                warn(f"This agent goes on alone: {error}", UserWarning)
        return self.agent.propose(X, values, number - self.n_startup + 1, self._received)

    def _take_part(self, X: Array, values: Array, number: int) -> None:
        self.send(X, values, number)
        if not self.receive():
            self.send(X, values, number)
            self.receive()
