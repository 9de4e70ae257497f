"""What everybody knows: a function of the settings, the coins and the server's broadcasts.

Server and agents each hold one; from the same broadcasts they reach the same active set, and a
digest tells them if they do not (which other hardware's rounding could cause).
"""

from __future__ import annotations

import copy
import hashlib
import itertools
import math
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from privbo_plugins.algorithms.duets.active_set import ActiveSet, Test
from privbo_plugins.algorithms.duets.coins import Coins, dealt_cells
from privbo_plugins.algorithms.duets.config import DUETSConfig
from privbo_plugins.algorithms.duets.domain import Domain
from privbo_plugins.algorithms.duets.messages import (
    Broadcast,
    InducingSet,
    are_real,
    is_real,
    is_whole,
)
from privbo_plugins.algorithms.duets.posterior import (
    Scale,
    SparsePosterior,
    spanning,
)
from privbo_plugins.models.kernels import kernel_on_cube
from privbo_plugins.models.nystrom import NystromEmbedding

Array = NDArray[np.float64]
IntArray = NDArray[np.int64]


class PublicState:
    """The public state, as the server or an agent keeps it.

    Args:
        config: Settings, the same for the server and all agents.
        domain: X_1.
        coins: Those that its holder knows.
    """

    def __init__(self, config: DUETSConfig, domain: Domain, coins: Coins) -> None:
        self.config, self.domain, self.coins = config, domain, coins
        self.active = ActiveSet.whole(domain, config.discretisation, coins.public % 2**32)
        self.kernel = kernel_on_cube(config.kernel, config.lengthscale, self.active.U.shape[1])
        self.j, self.evaluated = 1, 0
        self.T_j = config.length(0, 0)
        self.posterior: SparsePosterior | None = None
        self.level: float | None = None
        self.heard: list[Broadcast] = []
        self._points: dict[int, Array] = {}
        self.announced: InducingSet | None = None

    @property
    def finished(self) -> bool:
        """Tells if the horizon is used up."""
        return self.T_j == 0

    @property
    def last(self) -> bool:
        """Tells if the open epoch uses up the horizon; then no agent reports (Alg. 1, line 8)."""
        T = self.config.horizon
        return T is not None and self.evaluated + self.T_j >= T

    @property
    def digest(self) -> int:
        """Of the discretisation and of everybody's coin: a listed domain is alike for any key."""
        held = f"{self.active.digest}/{self.coins.public}".encode()
        return int.from_bytes(hashlib.sha256(held).digest()[:6], "big")

    @property
    def noise(self) -> float | None:
        """Variance of the privatising noise, if there is any."""
        return None if self.config.noise is None else self.config.noise.variance

    # Points ---------------------------------------------------------------------------------

    def points(self, agent: int) -> Array:
        """D_j^(n), the points of an agent in the open epoch, shape (T_j, D).

        Raises:
            KeyError: If the agent's coin is not known here.
        """
        if agent not in self._points:
            self._points[agent] = self._drawn(agent)
        return self._points[agent]

    def _drawn(self, agent: int) -> Array:
        if self.config.published:
            size = len(self.active.U)
            return np.asarray(self.active.U[self.coins.draws(agent, self.j, self.T_j, size)])
        if self.last and self.posterior is not None:
            ranks = np.arange(self.T_j) * self.config.n_agents + agent
            top = self.ranked[:1] if self.config.final == "best" else self.ranked
            return np.asarray(top[ranks % len(top)])
        cells = self.cells[agent * self.T_j : (agent + 1) * self.T_j]
        drawn = [self.coins.draw(agent, self.j, t, len(cell)) for t, cell in enumerate(cells)]
        return np.asarray(self.active.U[[c[i] for c, i in zip(cells, drawn, strict=True)]])

    @cached_property
    def cells(self) -> list[IntArray]:
        """The open epoch's N T_j cells of the discretisation: T_j for each agent, in order."""
        rng = self.coins.cells(self.j)
        return dealt_cells(self.active.inputs, self.config.n_agents * self.T_j, rng)

    @cached_property
    def ranked(self) -> Array:
        """The discretisation's points, the largest posterior mean first, shape (M, D).

        Before anything is known they come in the discretisation's own order.
        """
        if self.posterior is None:
            return self.active.U
        order = np.argsort(-self.posterior.mean(self.active.inputs), kind="stable")
        return np.asarray(self.active.U[order])

    def inputs_of(self, agents: tuple[int, ...]) -> Array:
        """D_j: all points of some agents as the kernel sees them, shape (n, p)."""
        return self.domain.inputs(np.vstack([self.points(agent) for agent in agents]))

    def announce(self, message: InducingSet | None) -> None:
        """Takes the open epoch's inducing set, where the server sends one."""
        if message is not None and message.epoch == self.j:
            self.announced = message

    @cached_property
    def inducing(self) -> NystromEmbedding:
        """z_S with the S_j that the server has sent, or that everybody computes.

        Where coins are shared it spans the points of all N agents. Those that are lost later
        count too: the others have projected by then.

        Raises:
            ValueError: If coins are private and the inducing set is missing.
        """
        if not self.config.published:
            D = self.inputs_of(tuple(range(self.config.n_agents)))
            return NystromEmbedding(self.kernel.k, spanning(self.kernel, D))
        if self.announced is None:
            raise ValueError(
                f"Coins are private, and this agent has no inducing set of epoch {self.j}: hear "
                "the server's, message=, too."
            )
        return NystromEmbedding(self.kernel.k, self.domain.inputs(np.array(self.announced.points)))

    # Broadcasts -----------------------------------------------------------------------------

    def hear(self, broadcast: Broadcast) -> None:
        """Trims the active set and starts the next epoch; an epoch that is over changes nothing.

        Raises:
            ValueError: If broadcasts before it were missed, the inducing set is, the
                discretisations differ, or it says what no server says. Nothing has changed then.
        """
        if not is_whole(broadcast.epoch):
            raise ValueError("The epoch of a broadcast is an integer.")
        if broadcast.epoch < self.j:
            return
        self._check_turn(broadcast)
        self._check(broadcast)
        self._take(broadcast)

    def _check_turn(self, broadcast: Broadcast) -> None:
        if broadcast.epoch > self.j:
            raise ValueError(
                f"A broadcast of epoch {broadcast.epoch} came before that of epoch {self.j}: hear "
                "the server's earlier broadcasts first."
            )
        if self.finished:
            raise ValueError("The horizon is used up: there is nothing more to hear.")
        if broadcast.digest != self.digest:
            raise ValueError(
                "The server's discretisation of the active set is another than the one here, so "
                "coins would be replayed wrongly: settings, key or hardware differ."
            )

    def _check(self, broadcast: Broadcast) -> None:
        inducing = self.inducing
        size = 0 if self.config.published else 3 if self.level is None else 2
        scale, sigma_max, last = broadcast.scale, broadcast.sigma_max, self.config.n_agents - 1
        rules = {
            f"v_bar holds {inducing.m} finite numbers": are_real(broadcast.v_bar, inducing.m),
            "sigma_max is a finite number >= 0 where variant is 'paper', else None": (
                is_real(sigma_max) and (sigma_max or 0.0) >= 0.0
                if self.config.published
                else sigma_max is None
            ),
            f"its scale holds {size} finite numbers, and the first two are > 0": (
                are_real(scale, size) and all(number > 0.0 for number in scale[:2])
            ),
            f"its agents are integers from 0 to {last} in order, at least one": (
                self._are_agents(broadcast.agents)
            ),
        }
        broken = [rule for rule, kept in rules.items() if not kept]
        if broken:
            raise ValueError(f"A broadcast of epoch {self.j} is refused: {'; '.join(broken)}.")

    def _are_agents(self, agents: Any) -> bool:
        if not (isinstance(agents, tuple | list) and agents and all(map(is_whole, agents))):
            return False
        inside = 0 <= agents[0] and agents[-1] < self.config.n_agents
        return inside and all(one < two for one, two in itertools.pairwise(agents))

    def _take(self, broadcast: Broadcast) -> None:
        """All that follows from a broadcast; nothing changes before all of it is known."""
        inducing = self.inducing
        scale, level, G = self.fixed_scale(), self.level, None
        if not self.config.published:
            lam, s, *sent = broadcast.scale
            level = sent[0] if sent else level
            scale = Scale(lam, s, level or 0.0)
            Z = inducing.features(self.inputs_of(tuple(broadcast.agents)))
            G = Z.T @ Z
        v_bar = np.array(broadcast.v_bar, dtype=float)
        posterior = SparsePosterior(inducing, v_bar, scale, G)
        with np.errstate(over="ignore", invalid="ignore"):  # what comes of it is looked at
            test = self.test(posterior, broadcast.sigma_max)
            left = math.isfinite(test.threshold) and test.passes(self.active.inputs).any()
        if not left:
            raise ValueError(
                f"A broadcast of epoch {self.j} is refused: no point of the active set would stay."
            )
        active = self.active.trimmed(test, self.coins.refinement(self.j))
        self.posterior, self.active, self.level = posterior, active, level
        self.heard.append(broadcast)
        self._open_next(self.config.length(self.T_j, self.evaluated + self.T_j))

    def test(self, posterior: SparsePosterior, sigma_max: float | None) -> Test:
        """Returns the test that decides which points stay."""
        beta = self.config.width(self.evaluated + self.T_j)
        if sigma_max is not None:  # eq. 9
            top = float(posterior.mean(self.active.inputs).max())
            return Test(posterior, top - 2 * beta * sigma_max)
        mu, sigma = posterior.predict(self.active.inputs)
        return Test(posterior, float((mu - beta * sigma).max()), beta)

    def fixed_scale(self) -> Scale:
        """The scale where nothing is fitted: from the rewards' range, if there is one."""
        low, high, noise = self.config.low, self.config.high, self.config.noise
        if low is None or high is None:
            return Scale(self.config.noise_ratio)
        half = (high - low) / 2
        prior = self.config.noise_ratio
        lam = prior if noise is None else noise.total_variance / half**2
        return Scale(lam, half, low + half)

    def skip(self) -> None:
        """Ends the last epoch, from which no agent learns."""
        self._open_next(0)

    def _open_next(self, T_j: int) -> None:
        self.evaluated += self.T_j
        self.j, self.T_j = self.j + 1, T_j
        self._forget()

    def _forget(self) -> None:
        """Drops what was worked out for another epoch, or with other coins."""
        self._points, self.announced = {}, None
        for name in ("ranked", "cells", "inducing"):
            self.__dict__.pop(name, None)

    def apart(self, coins: Coins) -> PublicState:
        """A copy of the state with other coins, for an agent of its own."""
        other = copy.copy(self)
        other.coins, other.heard = coins, list(self.heard)
        other._forget()
        return other
