"""The driver's way to the hosts of a federation's agents, none of which it ever waits for."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import ray
from ray.exceptions import ActorUnavailableError, RayError

from privbo_plugins.errors import VaultError
from raytune_searchers._shell import AGENTS
from raytune_searchers.hosts.actors import ActorHandle, _found_actor, anchor, begin_actor
from raytune_searchers.hosts.agents import AGENT_HOST, AgentSettings, Standing
from raytune_searchers.hosts.server import Status

PAUSE, _AGAIN = 0.05, 5.0
"""Seconds: between asking hosts; and after which one is asked again although nothing happened."""

_DROPPED = 30.0
"""Seconds after which a trial that its host knows nothing of was dropped by an earlier fit."""

Left = tuple[Sequence[int], str]
"""Agents that are left out, and why."""

Start = Callable[[Sequence[int]], tuple[AgentSettings, dict[int, str] | None]]
"""From agents to what their host is started with: its settings, and a database's URL of each."""


class _OneHost:
    """One host of agents, as the driver knows it."""

    def __init__(self, own: ActorHandle, members: Sequence[int]) -> None:
        self.own, self.members = own, tuple(members)
        self.standings: dict[int, Standing] = {}
        self.stale = True
        self.known_at = 0.0
        """When the host was asked what is known of it."""
        self._future: Any = None
        self._status: Status | None = None
        self._asked_at = self._changed_at = 0.0

    def change(self) -> None:
        """Marks the known status as out of date, and an answer that is on its way too."""
        self.stale, self._changed_at = True, time.monotonic()

    def settled(self, status: Status | None) -> bool:
        """Checks whether asking again would tell nothing new."""
        known = not self.stale and self._status == status and self._future is None
        return known and time.monotonic() < self.known_at + _AGAIN

    def ask(self, actor: Any, status: Status | None, skip: Mapping[int, int]) -> Any:
        """Asks where the agents are, unless that has been asked; what to wait for."""
        if self._future is None:
            self._asked_at, self._status = time.monotonic(), status
            self._future = actor.call.remote("tend", status, dict(skip))
        return self._future

    def hear(self) -> str | None:
        """Takes the answer; why there is none, if so.

        Raises:
            ActorUnavailableError: If the host is being restarted.
        """
        future, self._future = self._future, None
        error, standings = ray.get(future)
        if error is not None:
            return str(error[1])
        self.standings, self.known_at = standings, self._asked_at
        self.stale = self._asked_at < self._changed_at
        return None


class AgentHosts:
    """The hosts of a federation's agents; never pickled.

    Args:
        names: Names of their actors; agent i has host i modulo their number.
        n_agents: Number of agents.
        durable: Whether agents have databases, so that another host can take one's place.
        may_begin: Whether this process may begin those that hold their agents in memory.
        out: Agents that were left out.
    """

    def __init__(
        self, names: Sequence[str], n_agents: int, *, durable: bool, may_begin: bool, out: set[int]
    ) -> None:
        n = len(names)
        self._hosts = [
            _OneHost(anchor(name, AGENT_HOST, may_begin=may_begin), range(i, n_agents, n))
            for i, name in enumerate(names)
        ]
        self.out, self._durable = out, durable

    @property
    def standings(self) -> Iterator[tuple[int, Standing]]:
        """(agent, where it is) of all agents of which that is known."""
        for host in self._hosts:
            yield from host.standings.items()

    def ready(self, busy: set[int]) -> list[tuple[int, int]]:
        """(trials done, agent) of agents whose next trial may begin.

        Args:
            busy: Agents with a trial that is out: their hosts run one.
        """
        free = (
            host
            for host in self._hosts
            if not self.out.issuperset(host.members)
            and not host.stale
            and not busy & set(host.members)
        )
        return [
            (standing.done, agent)
            for host in free
            for agent, standing in host.standings.items()
            if standing.ready
        ]

    def is_over(self, agent: int, number: int, since: float) -> bool:
        """Tells if a trial that is out is over: its host has finished it, or never heard of it.

        Args:
            agent: Whose trial it is.
            number: The trial's, from 0.
            since: When it was suggested.
        """
        host = self._of(agent)
        standing = host.standings.get(agent)
        if standing is None or standing.done > number:
            return standing is not None
        return not host.stale and host.known_at > since + _DROPPED

    def change(self, agent: int) -> None:
        """Marks what is known of an agent's host as out of date."""
        self._of(agent).change()

    def _of(self, agent: int) -> _OneHost:
        return self._hosts[agent % len(self._hosts)]

    def refresh(
        self,
        status: Status | None,
        skipped: Mapping[int, int],
        start: Start,
    ) -> list[Left]:
        """Asks hosts where their agents are, and takes the answers that are there.

        Args:
            status: Of the server; None if it does not answer.
            skipped: Trials (agent to number) that failed too often.
            start: What a host is started with, by its agents.

        Returns:
            Agents that are left out now, and why.
        """
        futures: dict[Any, _OneHost] = {}
        left: list[Left] = []
        for host in self._hosts:
            if self.out.issuperset(host.members) or host.settled(status):
                continue
            skip = {agent: number for agent, number in skipped.items() if agent in host.members}
            try:
                futures[host.ask(self._actor(host, start), status, skip)] = host
            except Exception as error:  # Ray's, and what handles of an ended Ray raise
                left += self._failed(host, error)
        if futures:
            heard, _ = ray.wait(list(futures), num_returns=len(futures), timeout=PAUSE)
            for future in heard:
                left += self._heard(futures[future])
        return left

    def begin(self, start: Start) -> None:
        """Has all hosts begin."""
        for host in self._hosts:
            self._actor(host, start)

    def end(self) -> None:
        """Ends the hosts that this process holds."""
        for host in self._hosts:
            host.own.end()

    def _heard(self, host: _OneHost) -> list[Left]:
        try:
            refused = host.hear()
        except ActorUnavailableError:  # Ray is restarting it
            host.change()
        except RayError as error:
            return self._failed(host, error)
        else:
            if refused is not None:
                return self._leave(host, refused)
        return []

    def _failed(self, host: _OneHost, error: Exception) -> list[Left]:
        """A host has ended: with a database for its agents another one takes its place."""
        host.change()
        if self._durable:
            host.own.actor = None
            return []
        if host.own.actor is None and not host.standings:  # nothing was ever started here
            raise VaultError(AGENTS.lost) from error
        return self._leave(host, AGENTS.lost)

    def _leave(self, host: _OneHost, why: str) -> list[Left]:
        self.out |= set(host.members)
        return [(host.members, why)]

    def _actor(self, host: _OneHost, start: Start) -> Any:
        """A host's actor, started where that is allowed: in memory once, by its maker."""
        own = host.own
        with own.lock:
            if own.actor is None and not self._durable and not own.may_begin:
                return _found_actor(own)
            if own.actor is None:
                settings, urls = start(host.members)
                one = None if urls is None else urls[host.members[0]]
                # An objective that ends its host must not do so for ever.
                actor = begin_actor(own, one, settings, urls, max_task_retries=0)
                own.began(actor, durable=self._durable)
            return own.actor
