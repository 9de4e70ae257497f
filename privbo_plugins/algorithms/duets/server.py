"""The server (Algorithm 2 of the paper): it replays the coins and adds up projections."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from privbo_plugins.algorithms.duets.communication import Communication
from privbo_plugins.algorithms.duets.messages import (
    PROJECTION,
    REWARDS,
    Broadcast,
    InducingSet,
    Upload,
    numbers,
)
from privbo_plugins.algorithms.duets.party import Party
from privbo_plugins.algorithms.duets.posterior import (
    Inducing,
    Scale,
    Sums,
    fitted,
    sampled,
    solved,
    spanning,
    variance,
)

Array = NDArray[np.float64]


class Server:
    """The server.

    Args:
        party: What it knows of the run: all coins.
    """

    def __init__(self, party: Party) -> None:
        self.party = party
        self.communication = Communication(party.config.n_agents)
        self._uploads: dict[int, Upload] = {}
        self._announced: InducingSet | None = None

    # The inducing set -----------------------------------------------------------------------

    def inducing_set(self) -> InducingSet | None:
        """S_j to send to all agents; None where they compute it. Asked again, it is the same."""
        if self.party.config.coins == "shared" or self.party.last:
            return None
        if self._announced is None or self._announced.epoch != self.party.j:
            points = self._choose()
            self._announced = InducingSet(self.party.j, tuple(map(numbers, points)))
            self.communication.down += self._announced.reals
        return self._announced

    def _choose(self) -> Array:
        """S_j as points (m, D): by coin with p_j = p0 sigma_max², or a spanning set."""
        config = self.party.config
        X = np.vstack([self.party.points(n) for n in range(config.n_agents)])
        inputs = self.party.domain.inputs(X)
        if config.inducing == "spanning":
            S = spanning(self.party.kernel, inputs)
            return X[[int(np.flatnonzero((inputs == s).all(1))[0]) for s in S]]
        lam = self.party.fixed_scale().lam
        s2 = variance(self.party.kernel, inputs, self.party.active.inputs, lam)
        return sampled(config.p0 * float(s2.max()), X, self.party.coins.inducing(self.party.j))

    # Uploads --------------------------------------------------------------------------------

    def receive(self, upload: Upload) -> bool:
        """Takes an agent's upload.

        Returns:
            False if it is a duplicate, or of an epoch that is over: the first one stands.

        Raises:
            ValueError: If it is of an epoch to come, or not as long as its epoch asks for.
        """
        self.communication.up += upload.reals
        if upload.epoch < self.party.j or upload.agent in self._uploads:
            return False
        if upload.epoch > self.party.j or not 0 <= upload.agent < self.party.config.n_agents:
            raise ValueError(
                f"Epoch {self.party.j} of agents 0 to {self.party.config.n_agents - 1} is open, "
                f"got an upload of agent {upload.agent} for epoch {upload.epoch}."
            )
        self._check(upload)
        self._uploads[upload.agent] = upload
        return True

    def _check(self, upload: Upload) -> None:
        if not np.isfinite(upload.numbers).all():
            raise ValueError("An upload holds finite numbers.")
        if upload.kind == REWARDS and upload.reals != self.party.T_j:
            raise ValueError(f"An agent has {self.party.T_j} rewards, got {upload.reals} numbers.")
        if upload.kind == PROJECTION:
            fit, m = self.party.config.fit, self._inducing().m
            if upload.reals != m + 2 * fit:
                raise ValueError(
                    f"A projection of epoch {self.party.j} has {m} numbers"
                    f"{' and two sums' if fit else ''}, got {upload.reals}."
                )
        if upload.kind not in (PROJECTION, REWARDS):
            raise ValueError(f"An upload is a projection or rewards, got {upload.kind!r}.")

    @property
    def waiting_for(self) -> list[int]:
        """Agents that have not reported in the open epoch."""
        return [n for n in range(self.party.config.n_agents) if n not in self._uploads]

    def close(self, *, without: Iterable[int] = ()) -> Broadcast:
        """Ends the epoch and trims.

        Args:
            without: Agents that are lost: their points count for nothing in this epoch, and
                everybody is told so. They may come back once they have heard what was sent.

        Returns:
            What every agent has to hear.

        Raises:
            ValueError: If other agents have not reported yet, or nobody has.
        """
        lost = set(without)
        late = [n for n in self.waiting_for if n not in lost]
        if late or not set(self._uploads) - lost:
            raise ValueError(
                f"Epoch {self.party.j} still waits for the agents {self.waiting_for}: receive "
                "their uploads, or close(without=...) those that are lost."
            )
        agents = tuple(n for n in sorted(self._uploads) if n not in lost)
        inducing, broadcast = self._aggregate(agents)
        self._uploads.clear()
        self.communication.down += broadcast.reals
        self.party.hear(broadcast, inducing)
        return broadcast

    def _aggregate(self, agents: tuple[int, ...]) -> tuple[Inducing, Broadcast]:
        """v_bar (eq. 8) of those agents."""
        party, config = self.party, self.party.config
        inducing = self._inducing()
        Z = inducing.z(party.inputs_of(agents))
        G, ones = Z.T @ Z, Z.sum(0)
        sums = self._summed(agents, inducing, len(Z))
        scale = party.fixed_scale()
        if config.fit:
            scale = fitted(G, ones, sums, party.noise, party.level)
        v_bar = solved(G, ones, sums, scale)
        sigma_max = self._sigma(agents, scale) if config.trimming == "paper" else None
        sent = party.described(scale) if config.fit else ()
        v, digest = numbers(v_bar), party.digest
        return inducing, Broadcast(party.j, v, sigma_max, sent, agents, digest)

    def _inducing(self) -> Inducing:
        message = self.inducing_set()
        if message is None:
            return self.party.spanning_inducing()
        return Inducing(self.party.kernel, self.party.domain.inputs(np.array(message.points)))

    def _summed(self, agents: tuple[int, ...], inducing: Inducing, n: int) -> Sums:
        """What all uploads add up to; rewards are projected here."""
        v, one, two = np.zeros(inducing.m), 0.0, 0.0
        for agent in agents:
            upload = self._uploads[agent]
            values = np.array(upload.numbers)
            if upload.kind == PROJECTION:
                own, more = values[: inducing.m], values[inducing.m :]
            else:
                Z = inducing.z(self.party.domain.inputs(self.party.points(agent)))
                own, more = Z.T @ values, np.array([values.sum(), values @ values])
            v += own
            if len(more):
                one, two = one + float(more[0]), two + float(more[1])
        return Sums(n, v, one, two)

    def _sigma(self, agents: tuple[int, ...], scale: Scale) -> float:
        """sigma_{j,max}, on the discretisation."""
        party = self.party
        D, X = party.inputs_of(agents), party.active.inputs
        return scale.s * float(np.sqrt(variance(party.kernel, D, X, scale.lam).max()))

    # State ----------------------------------------------------------------------------------

    def state_dict(self) -> dict[str, Any]:
        """JSON-ready: what was heard, counted, and received for the open epoch."""
        return {
            **self.party.state_dict(),
            "announced": self._announced is not None and self._announced.epoch == self.party.j,
            "communication": self.communication.to_dict(),
            "uploads": [
                [u.epoch, u.agent, u.kind, list(u.numbers)] for u in self._uploads.values()
            ],
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restores :meth:`state_dict` in a new server of the same settings, key and domain."""
        for heard in map(Broadcast.from_dict, state["heard"]):
            self.party.hear(heard, self._inducing())
        for epoch, agent, kind, values in state["uploads"]:
            self._uploads[int(agent)] = Upload(int(epoch), int(agent), kind, tuple(values))
        if state["announced"]:
            self.inducing_set()  # counted already
        self.communication.load(state["communication"])
