"""A federation's agents as their driver knows them: who they are, and where each of them is.

The driver asks the hosts of agents (:mod:`raytune_searchers.hosts.agents`) and waits for none.
"""

from __future__ import annotations

import os
import re
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import ray
from ray.exceptions import ActorUnavailableError, RayError

from privbo_plugins.algorithms.dp_fts_de import FederationConfig
from privbo_plugins.errors import VaultError
from privbo_plugins.sessions.server import checked_names
from privbo_plugins.store.vault import as_handle
from raytune_searchers._arguments import checked_handle, private_url
from raytune_searchers._shell import AGENTS, Agent
from raytune_searchers.hosts.actors import ActorHandle, actor_of, anchor
from raytune_searchers.hosts.agents import AgentHost, AgentSettings, Standing
from raytune_searchers.hosts.server import Status

PAUSE, _AGAIN = 0.05, 5.0
"""Seconds: between asking hosts; and after which one is asked again although nothing happened."""

_NAME = re.compile(r"[\w-][\w.-]{0,63}")

_MARK = "--agent--"

Left = tuple[Sequence[int], str]
"""Agents that are left out, and why."""

Settings = Callable[[], AgentSettings]
"""Made where a host begins, and kept by none: a search would hold itself."""


@dataclass(frozen=True)
class Roster:
    """A federation's agents, and what their hosts are started with; all of it public.

    Attributes:
        names: In the order of their numbers.
        n_hosts: Processes that they share; agent i has host i modulo their number.
        vaults: URL of each agent's database, with ``{agent}`` in it; None for memory.
        log_to: Path of what objectives print, with ``{agent}`` in it; None drops it.
    """

    names: tuple[Agent, ...]
    n_hosts: int
    vaults: str | None
    log_to: str | None

    @classmethod
    def checked(cls, given: Any) -> Roster:
        """Makes the roster of a federation.

        Args:
            given: Keywords of the search.

        Raises:
            ValueError: For every argument that fits neither the others nor its own range.
        """
        n, log_to = given.config.n_agents, given.log_to
        names = _checked_agents(given.agents, n)
        n_hosts = n if isinstance(given.hosts, str) else min(given.hosts, n)
        if log_to is not None and ("{agent}" not in log_to or n_hosts < n):
            raise ValueError(
                "log_to= needs a path with {agent} in it, and hosts='agent': agents that share a "
                "host share its output, and one would read what another's objective prints. Got "
                f"log_to={log_to!r} with {n_hosts} hosts for {n} agents."
            )
        return cls(names, n_hosts, checked_template(given.agent_vaults), log_to)

    @property
    def members(self) -> list[range]:
        """Numbers of the agents of each host."""
        return [range(i, len(self.names), self.n_hosts) for i in range(self.n_hosts)]

    @property
    def url(self) -> str | None:
        """Of their databases; see :func:`url_of`."""
        return None if self.vaults is None else url_of(self.vaults)

    def of_host(self, settings: AgentSettings, members: Sequence[int]) -> AgentSettings:
        """Settings of the host of some agents."""
        names, log_to = {i: self.names[i] for i in members}, self.log_to
        if log_to is not None:
            log_to = log_to.replace("{agent}", str(names[members[0]]))
        return replace(settings, members=names, log_to=log_to)


class _OneHost:
    """One host of agents, as the driver knows it."""

    def __init__(self, own: ActorHandle, members: Sequence[int]) -> None:
        self.own, self.members = own, tuple(members)
        self.standings: dict[int, Standing] = {}
        self.stale = True
        self.known_at = 0.0
        """When the host told what is known of it."""
        self._future: Any = None
        self._status: Status | None = None

    def change(self) -> None:
        """Marks the known status as out of date, and drops an answer that is on its way.

        A trial of its agents has begun or ended.
        """
        self.stale, self._future = True, None

    def settled(self, status: Status | None) -> bool:
        """Checks whether asking again would tell nothing new."""
        known = not self.stale and self._status == status and self._future is None
        return known and time.monotonic() < self.known_at + _AGAIN

    def ask(self, actor: Any, status: Status | None, skip: Mapping[int, int]) -> Any:
        """Asks where the agents are, unless that has been asked; what to wait for."""
        if self._future is None:
            self._status = status
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
        self.standings, self.known_at, self.stale = standings, time.monotonic(), False
        return None


class AgentHosts:
    """The hosts of a federation's agents; never pickled.

    Args:
        roster: The agents.
        names: Names of their hosts' actors.
        may_begin: Whether this process may begin those that hold their agents in memory.
        out: Agents that were left out.
    """

    def __init__(
        self, roster: Roster, names: Sequence[str], *, may_begin: bool, out: set[int]
    ) -> None:
        self._hosts = [
            _OneHost(anchor(name, AgentHost, may_begin=may_begin), members)
            for name, members in zip(names, roster.members, strict=True)
        ]
        self.out, self._roster = out, roster

    @property
    def names(self) -> list[str]:
        """Name of the host's actor of each agent."""
        return [self._of(agent).own.name for agent in range(len(self._roster.names))]

    @property
    def _standings(self) -> Iterator[tuple[int, Standing]]:
        """(agent, where it is) of all agents of which that is known."""
        for host in self._hosts:
            yield from host.standings.items()

    def over(self, trials: int) -> bool:
        """Checks whether every agent has done so many trials, or was left out."""
        done = {agent for agent, standing in self._standings if standing.done >= trials}
        return len(done | self.out) == len(self._roster.names)

    def next(self, busy: set[int]) -> tuple[int, int] | None:
        """The agent with the fewest trials whose next one may begin: (agent, number).

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
        known = [
            (standing.done, agent)
            for host in free
            for agent, standing in host.standings.items()
            if standing.ready
        ]
        return min(known)[::-1] if known else None

    def is_over(self, agent: int, number: int) -> bool:
        """Tells if a trial that is out is over: its host has finished it.

        How long a trial waits for its place, or a host takes to begin anew, says nothing.

        Args:
            agent: Whose trial it is.
            number: The trial's, from 0.
        """
        standing = self._of(agent).standings.get(agent)
        return standing is not None and standing.done > number

    def change(self, agent: int) -> None:
        """Marks what is known of an agent's host as out of date."""
        self._of(agent).change()

    def _of(self, agent: int) -> _OneHost:
        return self._hosts[agent % len(self._hosts)]

    def refresh(
        self, status: Status | None, skipped: Mapping[int, int], settings: Settings
    ) -> list[Left]:
        """Asks hosts where their agents are, and takes the answers that are there.

        Args:
            status: Of the server; None if it does not answer.
            skipped: Trials (agent to number) that failed too often.
            settings: What hosts are started with, without their members.

        Returns:
            Agents that are left out now, and why.
        """
        futures: dict[Any, _OneHost] = {}
        ended: list[tuple[_OneHost, str | None]] = []
        for host in self._hosts:
            if self.out.issuperset(host.members) or host.settled(status):
                continue
            skip = {agent: number for agent, number in skipped.items() if agent in host.members}
            try:
                futures[host.ask(self._actor(host, settings), status, skip)] = host
            except Exception as error:  # Ray's, and what handles of an ended Ray raise
                ended.append((host, self._failed(host, error)))
        if futures:
            heard, _ = ray.wait(list(futures), num_returns=len(futures), timeout=PAUSE)
            ended += [(futures[future], self._hear(futures[future])) for future in heard]
        left: list[Left] = [(host.members, why) for host, why in ended if why is not None]
        self.out.update(*(members for members, _ in left))
        return left

    def begin(self, settings: Settings) -> None:
        """Has all hosts begin."""
        for host in self._hosts:
            self._actor(host, settings)

    def end(self) -> None:
        """Ends the hosts that this process holds."""
        for host in self._hosts:
            host.own.end()

    def _hear(self, host: _OneHost) -> str | None:
        """Takes a host's answer; why its agents are left out, if so."""
        try:
            return host.hear()
        except ActorUnavailableError:  # Ray is restarting it
            host.change()
            return None
        except RayError as error:
            return self._failed(host, error)

    def _failed(self, host: _OneHost, error: Exception) -> str | None:
        """Takes note that a host has ended; why its agents are left out, if so.

        With a database for its agents another one takes its place.
        """
        host.change()
        if self._roster.vaults is not None:
            host.own.actor = None
            return None
        if host.own.actor is None and not host.standings:  # nothing was ever started here
            raise VaultError(AGENTS.lost) from error
        return AGENTS.lost

    def _actor(self, host: _OneHost, settings: Settings) -> Any:
        if host.own.actor is not None:
            return host.own.actor
        own = self._roster.of_host(settings(), host.members)
        # An objective that ends its host must not do so for ever.
        return actor_of(host.own, self._roster.url, own, max_task_retries=0)


# What users give -----------------------------------------------------------------------------


def checked_template(agent_vaults: str | Path | None) -> str | None:
    """A URL for each agent that may be pickled: with ``{agent}`` in it, and no password.

    Raises:
        ValueError: If it is none.
    """
    template = as_handle(agent_vaults)
    if template is None:
        return None
    if "{agent}" not in _resolved(template):
        raise ValueError(
            "agent_vaults must be a path or URL with {agent} in it, such as "
            "'/private/{agent}.db', or 'env:NAME' for one: each agent keeps its trials "
            "where no other agent can read them."
        )
    checked = str(checked_handle(template.replace("{agent}", _MARK)))
    return checked.replace(_MARK, "{agent}")


def _resolved(template: str) -> str:
    if not template.startswith("env:"):
        return template
    return os.environ.get(template.removeprefix("env:"), "")


def url_of(template: str) -> str:
    """The URL of agents' databases, with ``{agent}`` in it: for their hosts' memory only."""
    marked = private_url(_resolved(template).replace("{agent}", _MARK))
    return marked.replace(_MARK, "{agent}")


def _checked_agents(agents: Sequence[str] | None, n_agents: int) -> tuple[Agent, ...]:
    names = checked_names(agents, n_agents)
    for name in names:
        if not isinstance(name, str) or _NAME.fullmatch(name) is None:
            raise ValueError(
                "An agent's name has 1 to 64 letters, digits, '_', '-' and '.', not '.' first, "
                f"got {name!r}."
            )
    return names or tuple(range(n_agents))


def check_rounds(config: FederationConfig, trials: int, deadline: float | None) -> None:
    """Raises ValueError if a federation of these rounds cannot run on one cluster."""
    if trials <= config.n_startup:
        raise ValueError(
            f"n_trials must be above n_startup={config.n_startup}, the trials before an agent's "
            f"first round, got {trials}."
        )
    if deadline is not None and not deadline > 0:
        raise ValueError(f"deadline must be a positive number of seconds, got {deadline}.")
    if config.aggregated:
        raise ValueError(
            "trust='aggregate' hides vectors from the server's operator, and one cluster runs "
            "server and agents here: let every agent tune a study of its own "
            "(optuna_samplers.DPFTSDESampler), or use trust='server'."
        )
