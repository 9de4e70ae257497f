"""Hosts of a federation's agents: what an agent's objective returns stays in its host's process.

A trial of Tune is a shell. It asks the host to run (agent, round), waits, and reports these two
tags. The host chooses the parameters, evaluates the objective, keeps the result in the agent's
history, and sends the vector for the agent's next round to the server at once, so that no worker
ever waits for a round. Nothing that a host answers depends on a private value, other than whether
the objective failed.
"""

from __future__ import annotations

import logging
import math
import os
import sys
import traceback
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import ray.cloudpickle as cloudpickle
from numpy.typing import NDArray
from ray.train._internal import session as ray_session

from privbo_plugins import sanitize
from privbo_plugins.algorithms.dp_fts_de import Broadcast, FederationConfig
from privbo_plugins.convert import as_reward
from privbo_plugins.errors import (
    FederationError,
    ObjectiveFailedError,
    PrivacyError,
    VaultError,
)
from privbo_plugins.federation import Participant
from privbo_plugins.federation.history import AgentHistory
from privbo_plugins.privacy.guarantee import FederationGuarantee
from privbo_plugins.sanitize import of_converting, withheld
from raytune_searchers._channel import Channel, channel_of_trial
from raytune_searchers._closing import check_closed
from raytune_searchers._search import merged
from raytune_searchers._shell import AGENTS, Agent, Finish, Objective
from raytune_searchers._space import TuneSpace
from raytune_searchers.hosts.actors import in_worker
from raytune_searchers.hosts.base import Host, Settings, by_name
from raytune_searchers.hosts.server import SERVER, Receipt, Status

Array = NDArray[np.float64]


class ClosedSessionError(PrivacyError):
    """An agent's objective called ``tune.report`` or another function of Tune's session."""

    def __init__(self, *_: object) -> None:
        super().__init__(
            "tune.report and the rest of Ray Tune's session are closed to an agent's objective: "
            "it runs in its agent's own process, and what a trial reports is stored and drawn by "
            "dashboards. Return the value; to keep more, write it where only the agent can read."
        )


class _ClosedSession:
    """Stands where Tune looks for the session of a trial."""

    def __getattr__(self, name: str) -> Any:
        raise ClosedSessionError


@dataclass(frozen=True, kw_only=True)
class AgentSettings(Settings):
    """Everything that a host must know of its agents; all of it public.

    Attributes:
        server: Name of the server's actor.
        config: The federation's settings.
        members: The host's agents: number on the roster to name.
        space: The pickled (:class:`TuneSpace`, constants) of the driver.
        maximize: Whether large values are good.
        seed: Drives points and draws, never noise.
        trials: Trials of each agent.
        log_to: File for what objectives print and log; None drops it.
    """

    server: str
    config: FederationConfig
    members: Mapping[int, Agent]
    space: bytes
    maximize: bool
    seed: int
    trials: int
    log_to: str | None = None


class Standing(NamedTuple):
    """Where an agent is, as its host tells the driver.

    Attributes:
        done: Trials that are over.
        ready: Whether the next one may begin: its round has been released, or is not waited for.
    """

    done: int
    ready: bool


# To the server ----------------------------------------------------------------------------------


class ServerLink:
    """An agent's way to the server's actor; it waits for no round.

    Args:
        channel: To the server.
        config: The federation's settings.
        agent: The agent's number on the roster.
    """

    def __init__(self, channel: Channel, config: FederationConfig, agent: int) -> None:
        self.agent, self.config, self._channel = agent, config, channel
        self.number = 0
        """Of the trial that the next message is for."""
        self.receipt: Receipt | None = None
        """Of the last message; its round is None where there is none to wait for."""
        self._received: list[Broadcast] = []
        self._joining = True

    @property
    def released(self) -> int:
        """Rounds that the agent has received."""
        return len(self._received)

    def _call(self, operation: str, *args: Any) -> Any:
        with _as_the_links():
            return self._channel.call(operation, *args)

    def join(self, space: Mapping[str, Any]) -> None:
        """Nothing to do: the driver has told the server which space all agents tune."""

    def submit(self, message: Array) -> int | None:
        """Sends a vector to the open round and returns its number; None once there is none.

        Raises:
            FederationError: If the server does not answer, or cannot release the round.
        """
        self.receipt = None
        with _as_the_links():
            self.receipt = self._channel.call_sealed(
                "send", str(self.agent), (message, self.number)
            )
        return self.receipt.round

    def collect(self, t: int) -> Broadcast | None:
        """The broadcast of a round, if it has been released."""
        return next((b for b in self.broadcasts() if b.round == t), None)

    def broadcasts(self) -> list[Broadcast]:
        """Everything released so far; at first none, if the server does not answer."""
        try:
            self._received += self._call("broadcasts", len(self._received))
        except FederationError:
            if not self._joining:
                raise
        self._joining = False
        return list(self._received)

    def leave(self) -> None:
        """Says that this agent sends nothing more."""
        with suppress(FederationError):
            self._call("leave", self.agent)

    def guarantee(self) -> FederationGuarantee:
        """Returns the claim for the broadcasts."""
        return self._call("report", False)["guarantee"]  # type: ignore[no-any-return]


@contextmanager
def _as_the_links() -> Iterator[None]:
    """Translates the errors of a channel into those of an agent's link."""
    try:
        yield
    except (VaultError, PrivacyError) as error:
        raise FederationError(str(error)) from None


# In a host --------------------------------------------------------------------------------------


class Member:
    """One agent in its host.

    Args:
        settings: The host's.
        space: What is tuned.
        agent: The agent's number on the roster.
        vault: Database of its trials; None for memory.
        link: To the server.
    """

    def __init__(
        self,
        settings: AgentSettings,
        space: TuneSpace,
        agent: int,
        vault: str | None,
        link: ServerLink,
    ) -> None:
        self.name, self.link, self._settings = settings.members[agent], link, settings
        public, name = space.public, str(self.name)
        self.history = AgentHistory(name, public, vault=vault, run_name=settings.run)
        self._participant = Participant(
            link, public, maximize=settings.maximize, seed=settings.seed
        )
        self._point: tuple[int, Array] | None = None

    @property
    def over(self) -> bool:
        """Checks whether all trials are."""
        return self.history.n_trials >= self._settings.trials

    def stand(self, status: Status | None) -> Standing:
        """Sends what has not been sent, and tells where the agent is.

        Args:
            status: Of the server; None if it does not answer: the agent goes on alone.
        """
        k, n_rounds = self.history.n_trials, self._settings.config.n_rounds
        starts = k < self._participant.n_startup
        if self.over or starts or status is None or status.released >= n_rounds:
            return Standing(k, not self.over)
        receipt = self._receipt(k)
        if receipt is not None and self._is_lost(receipt, status):
            with suppress(FederationError):
                self._participant.receive()  # forgets what it had sent
            receipt = None
        if receipt is None:
            self._send(k)
            receipt = self._receipt(k)
        waits = receipt is not None and receipt.round is not None
        return Standing(k, not waits or receipt.round <= status.released)  # type: ignore

    def _receipt(self, k: int) -> Receipt | None:
        return self.link.receipt if self.link.number == k else None

    @staticmethod
    def _is_lost(receipt: Receipt, status: Status) -> bool:
        """Checks whether another server has taken the place of the one that took the vector."""
        is_open = receipt.round is not None and receipt.round > status.released
        return is_open and receipt.incarnation != status.incarnation

    def _send(self, k: int) -> None:
        """Sends the vector for trial k; without a server the agent goes on alone."""
        if k < self._participant.n_startup:
            return
        self.link.number = k
        with suppress(FederationError):
            self._participant.send(*self.history.read(), k)

    def point(self, k: int) -> Array:
        """Returns the point of trial k, the same for each of its attempts, shape (D,)."""
        if self._point is None or self._point[0] != k:
            self.link.number = k
            X, values = self.history.read()
            self._point = k, self._participant.next_point(X, values, k)
        return self._point[1]

    def tell(self, k: int, value: float) -> None:
        """Stores the end of trial k and sends what follows from it; NaN for no value."""
        held = self._point is not None and self._point[0] == k
        x = self._point[1] if held else np.zeros(len(self._participant.space))  # type: ignore
        self.history.append(k, x, value)
        if self.over:
            self.link.leave()
        else:
            self._send(k + 1)

    def best(self) -> tuple[Array | None, float | None]:
        """The best point and its value; None if no trial had one."""
        X, values = self.history.read()
        if not len(values):
            return None, None
        i = int(np.argmax(values) if self._settings.maximize else np.argmin(values))
        return X[i], float(values[i])


class AgentHost(Host[dict[int, Member]]):
    """Some of a federation's agents in their host, by number on the roster.

    The URL of their databases has ``{agent}`` for each one's name; without one they are kept in
    this process's memory. Warnings stay here, because they may be an objective's.
    """

    missing, prefix = AGENTS, "agents/"
    operations = by_name("tend evaluate")

    def open(self) -> dict[int, Member]:
        """Begins without any agent: each is made when it is asked for."""
        if in_worker():
            redirect(self.settings.log_to)
        self._space, self._constants = cloudpickle.loads(self.settings.space)
        self._functions: dict[bytes, tuple[Objective, Finish | None]] = {}
        return {}

    def translate(self, error: BaseException) -> Exception:
        """As a host's errors travel; why an objective failed may be told."""
        if type(error) is ObjectiveFailedError:
            return ObjectiveFailedError(str(error))
        return super().translate(error)

    def _member(self, agent: int) -> Member:
        members, s = self.session, self.settings
        if agent not in members:
            url = self.url and self.url.replace("{agent}", str(s.members[agent]))
            channel = channel_of_trial(s.server, SERVER, watched=False)
            link = ServerLink(channel, s.config, agent)
            members[agent] = Member(s, self._space, agent, url, link)
        return members[agent]

    def tend(self, status: Status | None, skip: Mapping[int, int]) -> dict[int, Standing]:
        """Sends what has not been sent, and tells the driver where every agent is.

        Args:
            status: Of the server; None if it does not answer.
            skip: Trials (agent to number) that failed too often and end without a value.
        """
        for agent, number in skip.items():
            if self._member(agent).history.n_trials == number:
                self._member(agent).tell(number, math.nan)
        return {agent: self._member(agent).stand(status) for agent in self.settings.members}

    def evaluate(self, agent: int, number: int, functions: bytes) -> int:
        """Runs a trial of an agent, unless it is over already.

        Args:
            agent: The agent's number on the roster.
            number: The trial's, from 0.
            functions: The user's, pickled; this process makes them once.

        Returns:
            Rounds released so far.

        Raises:
            ObjectiveFailedError: If one of the functions does; the text tells nothing private.
            VaultError: If the agent's history shows fewer trials than its tags say.
        """
        member = self._member(agent)
        if functions not in self._functions:
            self._functions[functions] = _guarded(lambda: cloudpickle.loads(functions))
        objective, finish = self._functions[functions]
        done = member.history.n_trials
        if number > done:
            raise VaultError(
                f"Trial {number + 1} of an agent was to run, and its history holds {done}: it was "
                "restored from an older backup, or belongs to another run. Give each agent its "
                "own agent_vaults= file."
            )
        if number == done and not member.over:
            config = self._config(member.point(number))
            returned = _guarded(lambda: objective(member.name, config))
            value = _guarded(lambda: as_reward(returned), of_converting)
            member.tell(number, math.nan if value is None else value)
        if finish is not None and member.over and not member.history.told():
            x, value = member.best()
            best = None if x is None else self._config(x)
            _guarded(lambda: finish(member.name, best, value))
        return member.link.released

    def _config(self, x: Array) -> dict[str, Any]:
        """A config with constants, which the user's code may change."""
        constants = cloudpickle.loads(cloudpickle.dumps(self._constants))
        return merged(constants, self._space.suggestion(x))


def _closed(error: BaseException) -> BaseException | None:
    return ClosedSessionError() if isinstance(error, ClosedSessionError) else None


def _guarded(
    call: Callable[[], Any],
    translate: Callable[[BaseException], BaseException | None] = _closed,
) -> Any:
    """Returns the result of the user's code; its own exception goes to the owner's log.

    Raises:
        ObjectiveFailedError: If it fails, or tries to end its process; the text may be told.
        PrivacyError: If reports are not closed to it.
    """

    def logged() -> Any:
        try:
            return call()
        except BaseException:
            traceback.print_exc()
            raise

    ray_session._session = _ClosedSession()
    try:
        check_closed(ClosedSessionError)
        result, failure = sanitize.call(logged, translate)
    finally:
        ray_session._session = None
    if failure is None:
        return result
    ends_all = not isinstance(failure, Exception)  # elsewhere; here it ends the trial
    raise ObjectiveFailedError(str(withheld(type(failure).__name__) if ends_all else failure))


# What a host prints -----------------------------------------------------------------------------


def redirect(log_to: str | None) -> None:
    """Sends everything that this process prints or logs to a file, or nowhere.

    Ray keeps what its workers print in files of the session, which its operator reads.

    Args:
        log_to: A path, created with mode 0600; None for nowhere.
    """
    flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND
    target = os.open(os.devnull if log_to is None else log_to, flags, 0o600)
    for stream in (sys.stdout, sys.stderr, sys.__stdout__, sys.__stderr__):
        with suppress(AttributeError, OSError, ValueError):
            stream.flush()  # type: ignore[union-attr]
            os.dup2(target, stream.fileno())  # type: ignore[union-attr]
    for descriptor in (1, 2):
        os.dup2(target, descriptor)
    os.close(target)
    sys.stdout = os.fdopen(os.dup(1), "w", buffering=1, errors="backslashreplace")
    sys.stderr = os.fdopen(os.dup(2), "w", buffering=1, errors="backslashreplace")
    for logger in (logging.getLogger(), logging.getLogger("ray")):
        for handler in list(logger.handlers):
            logger.removeHandler(handler)
    logging.getLogger().addHandler(logging.StreamHandler(sys.stderr))
