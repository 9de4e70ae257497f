"""DUETS with the server and all agents in one place: what hosts ask and tell.

N agents are N roles: a free worker takes a draw of the open epoch. A draw that failed is asked
for again, at the same point, because its coin is tossed once; a draw whose trial is lost can be
taken over by anybody. While an epoch waits for its last draws, and beyond the horizon, further
asks are *spare*: the most promising points that are not evaluated yet. They teach the epochs
nothing (so an epoch's outcome does not depend on who was fast), but the recommendation knows them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from privbo_plugins.algorithms.duets.agent import Agent, bounded
from privbo_plugins.algorithms.duets.coins import Coins
from privbo_plugins.algorithms.duets.config import DUETSConfig
from privbo_plugins.algorithms.duets.domain import Domain, SpaceDomain
from privbo_plugins.algorithms.duets.messages import Communication
from privbo_plugins.algorithms.duets.posterior import posterior_of
from privbo_plugins.algorithms.duets.public_state import PublicState
from privbo_plugins.algorithms.duets.server import Server
from privbo_plugins.algorithms.protocols import Evaluation, RewardAlgorithm, Slot
from privbo_plugins.algorithms.search import place
from privbo_plugins.spaces import Space, same_point

Array = NDArray[np.float64]


@dataclass(frozen=True)
class Epoch:
    """What one epoch has led to; public.

    Attributes:
        epoch: j.
        length: T_j.
        inducing: Size of the inducing set.
        share: Estimated share of the domain that is left after it.
        components: Number of connected components of what is left, as the discretisation shows.
        up: Real numbers that all agents have sent so far.
        down: Real numbers that the server has broadcast so far.
        per_agent: C so far: uploads averaged over agents plus broadcasts (eq. 2).
    """

    epoch: int
    length: int
    inducing: int
    share: float
    components: int
    up: int
    down: int
    per_agent: float


def make_agents(
    config: DUETSConfig,
    domain: Domain,
    key: int,
    *,
    together: bool = False,
) -> tuple[Server, list[Agent]]:
    """A server and its agents.

    Args:
        config: Settings.
        domain: Where they look.
        key: Number behind all coins, >= 0. With ``variant="paper"``, whose coins are private, it
            must be random and of at least 128 bits, e.g. ``secrets.randbits(128)``: an agent could
            try all small ones.
        together: Whether the server and the agents share one public state, as they may within
            one process; otherwise each derives its own from the server's broadcasts.

    Returns:
        The server and N agents.

    Raises:
        ValueError: If the key behind private coins is no integer >= 0.
    """
    toss = Coins.tossed if config.published else Coins.shared
    coins = toss(key, config.n_agents)
    whole = PublicState(config, domain, coins)
    agents = []
    for n in range(config.n_agents):
        if together:
            agents.append(Agent(n, whole))
        else:
            known = coins.known_to(n) if config.published else coins
            agents.append(Agent(n, whole.apart(known)))
    return Server(whole), agents


class DUETS(RewardAlgorithm):
    """Ask/tell over N agents and a server; maximises inside, in either direction of the host.

    Args:
        config: Settings.
        space: The space.
        maximize: Whether larger values are better.
        seed: Number behind all coins, >= 0.
        domain: Where to look; None for the whole space.

    Example:
        >>> from privbo_plugins.spaces import Float
        >>> space = Space({"x": Float(0.0, 1.0)})
        >>> duets = DUETS(DUETSConfig(n_agents=4, n_trials=32), space, seed=1)
        >>> for key in range(32):
        ...     evaluation = duets.ask(key)
        ...     duets.tell(evaluation, 1 - abs(evaluation.x[0] - 0.3))
        >>> bool(abs(duets.recommendation()[0] - 0.3) < 0.1)
        True
    """

    name = "duets"
    config: DUETSConfig

    def __init__(
        self, config: DUETSConfig, space: Space, *, domain: Domain | None = None, **more: Any
    ) -> None:
        super().__init__(config, space, **more)
        self.domain: Domain = SpaceDomain(space) if domain is None else domain
        self.server, self.agents = make_agents(config, self.domain, self.seed, together=True)
        self.history: list[Epoch] = []
        self.lost: list[tuple[int, Evaluation, float]] = []

    # What hosts see -------------------------------------------------------------------------

    @property
    def public_state(self) -> PublicState:
        """The state that the server and all agents know."""
        return self.server.public_state

    @property
    def epoch(self) -> int:
        """The open epoch, counted from 1."""
        return self.public_state.j

    @property
    def communication(self) -> Communication:
        """Real numbers sent so far, as between agents and server that are apart."""
        return self.server.communication

    @property
    def finished(self) -> bool:
        """Tells if the last epoch has closed; never without a horizon."""
        return self.public_state.finished

    def slots(self) -> list[Slot]:
        """Draws of the open epoch (epoch, agent, draw), the agents' draws alternating."""
        j, T_j, N = self.public_state.j, self.public_state.T_j, self.config.n_agents
        return [(j, n, t) for t in range(T_j) for n in range(N)]

    def open_slots(self) -> list[Slot]:
        """Draws of the open epoch that have no reward yet, in the order of :meth:`slots`."""
        missing = {(n, t) for n, agent in enumerate(self.agents) for t in agent.missing()}
        return [slot for slot in self.slots() if slot[1:] in missing]

    def evaluation_of(self, slot: Slot) -> Evaluation:
        """Returns the evaluation of a draw of the open epoch."""
        epoch, agent, draw = slot
        return Evaluation(self.agents[agent].points[draw], epoch, agent, draw)

    # Ask and tell ---------------------------------------------------------------------------

    def ask(
        self, key: int, pending: Sequence[Evaluation] = (), *, may_wait: bool = False
    ) -> Evaluation | None:
        """The next evaluation.

        Args:
            key: Distinguishes this ask from others where nothing is known yet.
            pending: Evaluations that were handed out and have no value yet.
            may_wait: Whether None may be returned while an epoch's last draws are out.

        Returns:
            A draw of the open epoch that no trial holds; else a spare evaluation, or None to wait.
            Nothing changes; only :meth:`tell` learns.
        """
        out = {evaluation.slot for evaluation in pending}
        for slot in self.open_slots():
            if slot not in out:
                return self.evaluation_of(slot)
        if may_wait and not self.public_state.finished:
            return None
        return Evaluation(self._spare(key, pending))

    def _spare(self, key: int, pending: Sequence[Evaluation]) -> Array:
        """The most promising point that is neither pending nor evaluated; if none is left, any."""
        known = {place(evaluation.x) for evaluation in pending}
        known |= {place(evaluation.x) for evaluation, _ in self.evaluations}
        if self.public_state.posterior is None:
            size = len(self.public_state.active.U)
            known_nothing = np.random.default_rng([self.seed, key]).permutation(size)
            candidates = self.public_state.active.U[known_nothing]
        else:
            candidates = self.public_state.ranked
        unevaluated = (x for x in candidates if place(x) not in known)
        return np.asarray(next(unevaluated, candidates[0]))

    def give_up(self, evaluation: Evaluation, value: float) -> None:
        """Counts a draw of the open epoch as a value without an observation.

        Its epoch goes on; the recommendation is not told.

        Raises:
            ValueError: If the value is not finite.
        """
        if not np.isfinite(value):
            raise ValueError(f"A draw that is given up counts as a finite value, got {value}.")
        if self._is_draw(evaluation):
            self.lost.append((len(self.evaluations), evaluation, float(value)))
            self._learn(evaluation, value)

    def _learn(self, evaluation: Evaluation, value: float) -> None:
        """Fills a draw of the open epoch.

        An evaluation that is none, a duplicate, or one at another point than its coin's is known
        to the recommendation only.
        """
        slot = evaluation.slot
        if slot is not None and self._is_draw(evaluation):
            _, agent, draw = slot
            self.agents[agent].tell(draw, self._reward(value))
            self._close_if_complete()

    def worst(self, known: Sequence[float]) -> float | None:
        """Returns the value that a draw without a number counts as, in the host's direction.

        Args:
            known: Values to take the worst of, where the rewards have no public range.

        Returns:
            The worse end of the range, or the worst value; None if there is neither.
        """
        end = self.config.low if self.maximize else self.config.high
        if end is not None:
            return end
        return (min if self.maximize else max)(known, default=None)

    def _is_draw(self, evaluation: Evaluation) -> bool:
        slot = evaluation.slot
        if slot is None or slot not in self.slots():
            return False
        snapped = self.space.snap(self.evaluation_of(slot).x), self.space.snap(evaluation.x)
        return same_point(*snapped)

    def _reward(self, value: float) -> float:
        return bounded(super()._reward(value))

    def _close_if_complete(self) -> None:
        if any(agent.missing() for agent in self.agents):
            return
        length = self.public_state.T_j
        if self.public_state.last:
            self.public_state.skip()
            return
        message = self.server.inducing_set()
        for agent in self.agents:
            self.server.receive(agent.upload(message))
        broadcast = self.server.close()
        for agent in self.agents:
            agent.hear(broadcast)
        self.history.append(self._record(broadcast.epoch, length, len(broadcast.v_bar)))

    def _record(self, epoch: int, length: int, inducing: int) -> Epoch:
        sent, active = self.communication, self.public_state.active
        return Epoch(
            epoch, length, inducing, active.share, active.components,
            sent.up, sent.down, sent.per_agent,
        )  # fmt: skip

    # What is known --------------------------------------------------------------------------

    def _recommended(self) -> Array:
        """The point of the active set with the largest posterior mean of all evaluations, (D,)."""
        X = np.array([self.space.snap(evaluation.x) for evaluation, _ in self.evaluations])
        Y = np.array([self._reward(value) for _, value in self.evaluations])
        scale = self.public_state.fixed_scale() if self.config.published else None
        D = self.domain.inputs(X)
        posterior = posterior_of(self.public_state.kernel, D, Y, scale, self.public_state.noise)
        active = self.public_state.active
        candidates = np.vstack([active.U, X[active.contains(X)]])
        return np.asarray(candidates[np.argmax(posterior.mean(self.domain.inputs(candidates)))])

    def status(self) -> dict[str, Any]:
        """JSON-ready: where the run stands, for dashboards."""
        active = self.public_state.active
        return {
            "agents": self.config.n_agents,
            "epoch": self.epoch,
            "active_share": active.share,
            "reals_up": self.communication.up,
            "reals_down": self.communication.down,
            "reals_per_agent": self.communication.per_agent,
            "epochs": [asdict(epoch) for epoch in self.history],
        }

    def state_dict(self) -> dict[str, Any]:
        """The transcript: JSON-ready, and public where the rewards are."""
        lost = [[after, *evaluation.row(value)] for after, evaluation, value in self.lost]
        return super().state_dict() | {"lost": lost}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Replays :meth:`state_dict` on a new object, which goes on with the same coins."""
        lost = [(int(after), *Evaluation.of_row(row)) for after, *row in state.get("lost", [])]
        told = [Evaluation.of_row(row) for row in state["evaluations"]]
        for i, (evaluation, value) in enumerate([*told, (None, 0.0)]):
            for _, gone, worst in (entry for entry in lost if entry[0] == i):
                self.give_up(gone, worst)
            if evaluation is not None:
                self.tell(evaluation, value)
