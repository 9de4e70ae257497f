"""The server (Algorithm 2 of the paper): it replays the coins and adds up projections."""

from __future__ import annotations

import math
from collections.abc import Iterable

import numpy as np
from numpy.typing import NDArray

from privbo_plugins.algorithms.duets.messages import (
    LARGEST,
    PROJECTION,
    REWARDS,
    Broadcast,
    Communication,
    InducingSet,
    Upload,
    is_real,
    is_whole,
    numbers,
)
from privbo_plugins.algorithms.duets.posterior import (
    Sums,
    fitted,
    sampled,
    solved,
    variance,
)
from privbo_plugins.algorithms.duets.public_state import PublicState
from privbo_plugins.models.nystrom import NystromEmbedding

Array = NDArray[np.float64]

_ROUNDING = 1.001
"""So much may what an agent adds up exceed its bound."""


class Server:
    """The server.

    Args:
        public_state: What it knows of the run: all coins.
    """

    def __init__(self, public_state: PublicState) -> None:
        self.public_state = public_state
        self.communication = Communication(public_state.config.n_agents)
        self._uploads: dict[int, Upload] = {}

    # The inducing set -----------------------------------------------------------------------

    def inducing_set(self) -> InducingSet | None:
        """S_j to send to all agents; None where they compute it. Asked again, it is the same."""
        if not self.public_state.config.published or self.public_state.last:
            return None
        if self.public_state.announced is None:
            points = self._choose()
            message = InducingSet(self.public_state.j, tuple(map(numbers, points)))
            self.public_state.announce(message)
            self.communication.down += message.reals
        return self.public_state.announced

    def _choose(self) -> Array:
        """S_j as points (m, D): by coin with p_j = p0 sigma_max²."""
        config = self.public_state.config
        agents = tuple(range(config.n_agents))
        X = np.vstack([self.public_state.points(n) for n in agents])
        p = config.p0 * self._sigma2(agents, self.public_state.fixed_scale().lam)
        return sampled(p, X, self.public_state.coins.inducing(self.public_state.j))

    # Uploads --------------------------------------------------------------------------------

    def receive(self, upload: Upload) -> bool:
        """Takes an agent's upload.

        Returns:
            False if it is a duplicate, or of an epoch that is over, which is not read: the first
            one stands.

        Raises:
            ValueError: If it is of an epoch to come, or nothing that an agent of this run sends.
                It is not counted then.
        """
        self._check_sender(upload)
        if upload.epoch < self.public_state.j:
            return False
        upload = self._checked(upload)
        self.communication.up += upload.reals
        if upload.agent in self._uploads:
            return False
        self._uploads[upload.agent] = upload
        return True

    def _checked(self, upload: Upload) -> Upload:
        """An upload as it is stored; no error says what it holds, which may be private."""
        T, summed = self.public_state.T_j, False
        if upload.kind == REWARDS:
            bounds = [LARGEST] * T
        elif upload.kind == PROJECTION:
            # |z| <= 1, so no entry is larger than the sum of the rewards' sizes.
            entry, summed = _ROUNDING * T * LARGEST, not self.public_state.config.published
            bounds = [entry] * self._inducing().m + [entry, entry * LARGEST] * summed
        else:
            raise ValueError(f"An upload is of the kind {PROJECTION!r} or {REWARDS!r}.")
        values, what = upload.numbers, f"{upload.kind} of epoch {upload.epoch}"
        if not isinstance(values, tuple | list) or len(values) != len(bounds):
            raise ValueError(f"An upload of the {what} holds {len(bounds)} numbers.")
        if not all(map(is_real, values, bounds)):
            raise ValueError(
                f"An upload of the {what} holds finite numbers, none larger than rewards up to "
                f"{LARGEST:g} add up to."
            )
        if summed:
            _check_sums(values[-2], values[-1], T)
        sent = tuple(map(float, values))
        return Upload(int(upload.epoch), int(upload.agent), str(upload.kind), sent)

    def _check_sender(self, upload: Upload) -> None:
        public_state, last = self.public_state, self.public_state.config.n_agents - 1
        if not (is_whole(upload.agent) and 0 <= upload.agent <= last):
            raise ValueError(f"An upload comes from one of the agents 0 to {last}, an integer.")
        if not (is_whole(upload.epoch) and upload.epoch >= 1):
            raise ValueError("The epoch of an upload is an integer >= 1.")
        over = upload.epoch <= len(public_state.heard)
        if not over and (upload.epoch != public_state.j or public_state.finished):
            now = "No epoch" if public_state.finished else f"Epoch {public_state.j}"
            raise ValueError(
                f"{now} of agents 0 to {last} is open, got an upload of agent {upload.agent} for "
                f"epoch {upload.epoch}."
            )

    @property
    def waiting_for(self) -> list[int]:
        """Agents that have not reported in the open epoch."""
        return [n for n in range(self.public_state.config.n_agents) if n not in self._uploads]

    def close(self, *, without: Iterable[int] = ()) -> Broadcast:
        """Ends the epoch and trims.

        Args:
            without: Agents that are lost: their points count for nothing in this epoch, and
                the broadcast says so. They may come back once they have heard what was sent.

        Returns:
            What every agent has to hear.

        Raises:
            ValueError: If other agents have not reported yet, or none has; also if nothing
                could be learnt from what they report. Nothing has changed then.
        """
        lost = set(without)
        late = [n for n in self.waiting_for if n not in lost]
        if late or not set(self._uploads) - lost:
            raise ValueError(
                f"Epoch {self.public_state.j} still waits for the agents {self.waiting_for}: "
                "receive their uploads, or close(without=...) those that are lost."
            )
        agents = tuple(n for n in sorted(self._uploads) if n not in lost)
        broadcast = self._aggregate(agents)
        try:
            self.public_state.hear(broadcast)
        except ValueError as error:
            raise ValueError(
                f"Epoch {self.public_state.j} cannot end with the uploads of the agents {agents}, "
                f"and nothing was broadcast: {error} Name those that may be wrong in without=."
            ) from error
        self._uploads.clear()
        self.communication.down += broadcast.reals
        return broadcast

    def _aggregate(self, agents: tuple[int, ...]) -> Broadcast:
        """v_bar (eq. 8) of those agents."""
        public_state, config = self.public_state, self.public_state.config
        inducing = self._inducing()
        Z = inducing.features(public_state.inputs_of(agents))
        G, ones = Z.T @ Z, Z.sum(0)
        sums = self._summed(agents, inducing, len(Z))
        sigma_max: float | None = None
        sent: tuple[float, ...] = ()
        if config.published:
            scale = public_state.fixed_scale()
            sigma_max = scale.s * math.sqrt(self._sigma2(agents, scale.lam))
        else:
            scale = fitted(G, ones, sums, public_state.noise, public_state.level)
            # The level once: it is the mean over the whole domain, which later epochs, on the
            # best part of it, can no longer see.
            sent = (scale.lam, scale.s, scale.c)[: 3 if public_state.level is None else 2]
        v, digest = numbers(solved(G, ones, sums, scale)), public_state.digest
        return Broadcast(public_state.j, v, sigma_max, sent, agents, digest)

    def _inducing(self) -> NystromEmbedding:
        self.inducing_set()  # announces it, where coins are private
        return self.public_state.inducing

    def _summed(self, agents: tuple[int, ...], inducing: NystromEmbedding, n: int) -> Sums:
        """Adds up all uploads; rewards are projected here."""
        v, one, two = np.zeros(inducing.m), 0.0, 0.0
        for agent in agents:
            upload = self._uploads[agent]
            values = np.array(upload.numbers)
            if upload.kind == PROJECTION:
                own, more = values[: inducing.m], values[inducing.m :]
            else:
                Z = inducing.features(self.public_state.inputs_of((agent,)))
                own, more = Z.T @ values, np.array([values.sum(), values @ values])
            v += own
            if len(more):
                one, two = one + float(more[0]), two + float(more[1])
        return Sums(n, v, one, two)

    def _sigma2(self, agents: tuple[int, ...], lam: float) -> float:
        """sigma²_{j,max} on the discretisation, for a signal of deviation 1."""
        public_state = self.public_state
        D, X = public_state.inputs_of(agents), public_state.active.inputs
        return float(variance(public_state.kernel, D, X, lam).max())

    def hear(self, broadcast: Broadcast) -> None:
        """Takes one of its own broadcasts, in order, in a new server that goes on after a crash.

        Agents then send what the open epoch still waits for. Numbers are counted anew.

        Raises:
            ValueError: As for :meth:`PublicState.hear`.
        """
        self.inducing_set()
        self.public_state.hear(broadcast)


def _check_sums(one: float, two: float, n: int) -> None:
    """Checks that n rewards can have this sum and this sum of squares (Cauchy-Schwarz)."""
    if two < 0.0 or one * one > _ROUNDING * n * two + 1e-300:
        raise ValueError(
            f"The last two numbers of a projection are the sum of {n} rewards and that of their "
            f"squares, which is at least the former's square over {n}."
        )
