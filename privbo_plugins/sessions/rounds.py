"""The server of a federation: rounds, ledger, and links for its agents.

A round opens with the first message, draws one coin an agent of the roster, adds what arrives to
an exact sum and forgets it, and closes when every agent has sent or the deadline is over. Closing
charges the ledger, draws the noise and stores the broadcast in one transaction; a round that was
released is replayed, never drawn again. What the vault holds is the ledger and the broadcasts.
Agents' vectors live in this process's memory for as long as adding them takes.

With ``trust="aggregate"`` a round is an attempt of :mod:`privbo_plugins.sessions.aggregation`
instead: agents send masked vectors with noise of their own. The ledger is charged before the sum
is opened; an attempt that ends between the two has cost its round.
"""

from __future__ import annotations

import hashlib
import math
import os
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from privbo_plugins.algorithms.dp_fts_de.config import FederationConfig
from privbo_plugins.algorithms.dp_fts_de.model import SharedModel
from privbo_plugins.algorithms.dp_fts_de.server import Broadcast, Measure, RoundSum
from privbo_plugins.algorithms.dp_fts_de.shares import share_scale
from privbo_plugins.errors import FederationError, PrivacyError, SpaceChangedError, VaultError
from privbo_plugins.federation.published import published
from privbo_plugins.federation.shared import shared_model
from privbo_plugins.plots import FederationHistory
from privbo_plugins.privacy.guarantee import FederationGuarantee
from privbo_plugins.privacy.ledger import AGENTS, Charge, check_budget
from privbo_plugins.privacy.source import NoiseSource, ShareSource
from privbo_plugins.reports import federation_report
from privbo_plugins.sanitize import public_name
from privbo_plugins.sessions.broadcasts import BROADCAST, claimed_of, from_payload, to_payload
from privbo_plugins.sessions.local import LocalLink
from privbo_plugins.sessions.settings import FederatedServerSettings
from privbo_plugins.settings import takes
from privbo_plugins.spaces import Float, Space
from privbo_plugins.store.release import PAYLOADS, Order, Outlet
from privbo_plugins.store.run import OtherSettingsError, Run, begin_or_join
from privbo_plugins.store.vault import Transaction, Vault, open_vault

if TYPE_CHECKING:
    from privbo_plugins.federation.identity import Address
    from privbo_plugins.federation.listening import Listener
    from privbo_plugins.federation.phases import Masking, Sent
    from privbo_plugins.sessions.aggregation import Attempt

Array = NDArray[np.float64]
R = TypeVar("R")

_ANY_SPACE = Space({"x": Float(0.0, 1.0)}).to_dict()
"""The published mechanism does not depend on the space."""

_NO_VAULT = (
    "Round {t} was not released: the server's vault refused it. Nothing was published. Agents can "
    "go on alone; the server needs its database back."
)

_NO_RELEASE = (
    "Round {t} was not released: the server failed inside ({kind}). Nothing was published. Agents "
    "can go on alone; the server's operator has to look after it."
)


@dataclass
class _Round:
    """A round that is open."""

    total: RoundSum
    sent: set[int]
    opened: float

    @property
    def t(self) -> int:
        """Its number."""
        return self.total.t

    def complete(self, left: set[int]) -> bool:
        """Whether nobody is waited for."""
        return len(self.sent | left) == self.total.config.n_agents


class FederatedServer:
    """Mixes what agents send under user-level differential privacy.

    The process that holds it is trusted: it sees every agent's vectors. Agents, and whoever reads
    what they received, are not. With ``FederationConfig(trust="aggregate")`` it sees their noisy
    sum alone, and need only follow the protocol.

    {settings}

    Raises:
        ValueError: If names or times make no sense, or the run was started with other settings.
        VaultError: If the vault cannot be opened.

    Example:
        >>> space = Space({"x": Float(0.0, 1.0)})
        >>> server = FederatedServer(FederationConfig(n_agents=1, epsilon=2.0), space=space)
        >>> link = server.connect(0)
        >>> t = link.submit(np.ones(link.config.message_length))
        >>> link.collect(t).weights.shape == (1, link.config.message_length)
        True
        >>> link.submit(np.ones(link.config.message_length)) is None
        True
    """

    @takes(FederatedServerSettings)
    def __init__(self, given: FederatedServerSettings) -> None:
        self.config = given.config
        self._names = _checked_names(given.agents, self.config.n_agents)
        _check_clock(given)
        self._deadline, self._hold = given.deadline, given.hold
        self._invitations = hashlib.sha256(given.run_name.encode()).hexdigest()[:32]
        self.run = _run_of(open_vault(given.vault), given.run_name, self.config)
        self._outlet = Outlet(self.run, given.noise)
        self._lock = threading.Condition(threading.RLock())
        self._round: _Round | Attempt | None = None
        self._masking: dict[int, Masking] = {}
        """Of this process's agents, if the server sees the sum alone."""
        self._shares = _share_source(self.config, given.noise)
        self._lost = 0
        self._given_up: tuple[str, str, int] | None = None
        """Name of the attempt that was given up last, why, and its round."""
        self._left: set[int] = set()
        self._broadcasts: dict[int, Broadcast] = {}
        self._space: dict[str, Any] | None = None
        self._shared: SharedModel | None = None
        self._listener: Listener | None = None
        self._begin(None if given.space is None else given.space.to_dict())
        if self._hold and self.n_left:
            self._round = self._open()

    def __reduce__(self) -> Any:
        raise PrivacyError(
            "A federation's server cannot be pickled: it holds the sum of an open round. Give "
            "other processes an invitation (server.listen(), server.invitation(agent))."
        )

    def _begin(self, space: dict[str, Any] | None) -> None:
        with self.run.transaction() as tx:
            known = tx.run()
            if known is not None and known[2] is not None:
                self._space = known[2]["space"]
            self._read(tx)
        if space is not None:
            self._agree(space)

    def read_again(self) -> None:
        """Takes note of what another process released in this run since this one was begun."""
        with self._lock, self.run.transaction() as tx:
            self._read(tx)

    def _read(self, tx: Transaction) -> None:
        for _, kind, key, payload in tx.releases_after(0):
            if kind == BROADCAST:
                self._broadcasts[int(key)] = from_payload(int(key), payload)
        self._lost = len(tx.charges()) - len(self._broadcasts)

    # Agents -------------------------------------------------------------------------------------

    def connect(self, agent: int | str) -> LocalLink:
        """A link for an agent of this process.

        Args:
            agent: Its number on the roster, from 0, or its name.

        Raises:
            ValueError: If the roster does not list it.
        """
        return LocalLink(self, self.number_of(agent))

    def _masking_of(self, link: LocalLink) -> Masking | None:
        """An agent's part in rounds whose sum alone is seen; one an agent of this process."""
        if not self.config.aggregated:
            return None
        from privbo_plugins.federation.phases import Masking  # with libraries of an extra

        with self._lock:
            known = self._masking.get(link.agent)
            if known is None:
                known = Masking(link, self.config, link.agent, self._shares)
                self._masking[link.agent] = known
            return known

    def listen(
        self,
        address: Address | os.PathLike[str] = ("127.0.0.1", 0),
        *,
        secret: bytes | str | os.PathLike[str] | None = None,
        cert: str | os.PathLike[str] | None = None,
        key: str | os.PathLike[str] | None = None,
        client_ca: str | os.PathLike[str] | None = None,
    ) -> Address:
        """Answers agents of other processes over TLS, until :meth:`close`.

        Needs the ``federation`` extra, and ``space=``: else whoever came first would say what all
        tune.

        Args:
            address: Host and port (0 for any that is free), or the path of a Unix socket.
            secret: From which the server's certificate and the agents' secrets follow: at least 16
                random bytes (guesses can be tried on the certificate), or the path of a file,
                which is created, for this user alone, if there is none. With the same secret,
                address and ``run_name``, invitations outlive the server's process. None for a new
                one.
            cert: File of a certificate of the institution (PEM, then those up to an authority, if
                any), in place of one that follows from the secret. Agents accept this certificate
                alone: a new one needs new invitations.
            key: File of its private key (PEM without password), which this user alone can read.
            client_ca: File of the authorities (PEM) of whom agents need a certificate besides
                their secret. None to ask for no certificate.

        Returns:
            The address, with the port that was chosen.

        Raises:
            FederationError: If the address cannot be used.
            ImportError: If the ``federation`` extra is not installed.
            PrivacyError: If other users can read the secret file or the key.
            ValueError: If the server listens already, has no space, or a file cannot be used.

        Example:
            >>> space = Space({"x": Float(0.0, 1.0)})
            >>> server = FederatedServer(FederationConfig(n_agents=2, epsilon=4.0), space=space)
            >>> host, port = server.listen()
            >>> server.invitation(1).startswith(f"privbo://{host}:{port}/1?server=")
            True
            >>> server.close()
        """
        if self._listener is not None:
            raise ValueError(f"The server listens already: {self._listener}. Call close() first.")
        if self._space is None:
            raise ValueError(
                "A server that listens needs FederatedServer(space=...): else the first agent "
                "that joins would say what all the others tune."
            )
        from privbo_plugins.federation.identity import identity_of  # with libraries of an extra
        from privbo_plugins.federation.listening import Listener

        where = address if isinstance(address, tuple) else os.fspath(address)
        self._listener = Listener(self, where, identity_of(secret, cert, key, client_ca))
        return self._listener.address

    def invitation(self, agent: int | str, *, address: Address | None = None) -> str:
        """What ``connect`` takes in an agent's process: give it to that agent and nobody else.

        Args:
            agent: Its number on the roster, from 0, or its name.
            address: By which the agent reaches the server, if it is another than where it
                listens, such as the near end of a tunnel.

        Raises:
            ValueError: If the roster does not list the agent, the server does not listen, or it
                listens on all addresses and ``address`` does not say which to use.
        """
        number = self.number_of(agent)
        if self._listener is None:
            raise ValueError("The server does not listen: call listen() before invitation().")
        return self._listener.invitation(number, address)

    def close(self) -> None:
        """Stops listening and ends the connections of other processes, waiting for their threads.

        What an open round holds stays; agents of this process can go on.
        """
        listener, self._listener = self._listener, None
        if listener is not None:
            listener.close()

    def number_of(self, agent: int | str) -> int:
        """The number of an agent on the roster.

        Raises:
            ValueError: If the roster does not list it.
        """
        if isinstance(agent, str) and agent in self._names:
            return self._names.index(agent)
        if isinstance(agent, int | np.integer) and 0 <= agent < self.config.n_agents:
            return int(agent)
        raise ValueError(
            f"The roster lists {self.config.n_agents} agents, numbered from 0"
            f"{' and named at construction' if self._names else ''}; {agent!r} is none of them."
        )

    def _agree(self, space: dict[str, Any]) -> None:
        try:
            varies = Space.from_dict(space).varies
        except (KeyError, TypeError, ValueError):
            varies = False
        if not varies:
            raise SpaceChangedError("A federation's search space needs a parameter that varies.")
        with self._lock:
            if self._space is None:
                with self.run.transaction() as tx:
                    known = tx.run()
                    if known is not None and known[2] is not None:
                        self._space = known[2]["space"]
                    else:
                        tx.freeze({"space": space})
                        self._space = space
            if self._space != space:
                raise SpaceChangedError(
                    "All agents of a federation tune the same parameters with the same ranges; "
                    f"this one tunes {', '.join(space)}, the federation "
                    f"{', '.join(self._space or ())}, or their ranges differ."
                )

    # Rounds -------------------------------------------------------------------------------------

    @property
    def finished(self) -> bool:
        """Whether all rounds have been released: agents go on alone.

        Raises:
            FederationError: If a round that is due cannot be released.
        """
        with self._lock:
            self._advance()
            return self.n_left == 0

    @property
    def n_left(self) -> int:
        """Rounds that may still be released; one that was paid for and not opened is used up."""
        return max(0, self.config.n_rounds - len(self._broadcasts) - self._lost)

    @property
    def given_up(self) -> str:
        """Why the last attempt at the round that is due was given up; empty if none was."""
        with self._lock:
            known = self._given_up
            return known[1] if known and known[2] not in self._broadcasts else ""

    def broadcasts(self) -> list[Broadcast]:
        """Everything released so far, in order.

        Raises:
            FederationError: If a round that is due cannot be released.
        """
        with self._lock:
            self._advance()
            return [self._broadcasts[t] for t in sorted(self._broadcasts)]

    def _advance(self) -> None:
        """Closes what the server's clock has closed: a function of time alone.

        Whatever shows how far the rounds are calls it first: else what is shown would tell
        whether somebody else has sent meanwhile.
        """
        while self._hold and self._round is not None and self._overdue(self._round):
            due = self._round.opened + (self._deadline or 0.0)
            self._close(self._round)
            if self.n_left:
                self._round = self._open()
                self._round.opened = due

    def _overdue(self, current: _Round | Attempt) -> bool:
        return self._time_left(current) <= 0

    def digests(self) -> list[str]:
        """One fingerprint a released round: who has seen it notices if it changes."""
        return [broadcast.digest() for broadcast in self.broadcasts()]

    def _joined(self, agent: int) -> _Round | Attempt | None:
        """The open round, which an agent that is back opens; None once all are used up."""
        self._advance()
        if self.n_left == 0 and self._round is None:
            return None
        if self._round is None:
            self._round = self._open()
        self._left.discard(agent)
        return self._round

    def _submit(self, agent: int, message: Array) -> int | None:
        if self.config.aggregated:
            raise PrivacyError(
                "A federation with trust='aggregate' takes masked vectors alone. Nothing was used "
                "of this one; connect with the version that the server runs."
            )
        with self._lock:
            current = self._joined(agent)
            if not isinstance(current, _Round):
                return None
            if agent not in current.sent:  # the first message counts, whatever is sent again
                current.total.add(agent, message)
                current.sent.add(agent)
                self._close_if_complete()
            return current.total.t

    def _model(self) -> SharedModel:
        if self._shared is None:
            space = self._space
            if space is None and self.config.population == "prior":
                raise FederationError("No agent has joined yet, so the space is not known.")
            self._shared = shared_model(self.config, Space.from_dict(space or _ANY_SPACE))
        return self._shared

    def _open(self) -> _Round | Attempt:
        t = len(self._broadcasts) + 1
        S = self._model().clipping_norm(t)
        if not 1e-9 <= S <= 1e9:
            raise FederationError(
                f"The prior and the space give a clipping norm of {S:.3g}, outside [1e-9, 1e9]. "
                "Give another prior=, or clipping_norm=."
            )
        if self.config.aggregated:
            from privbo_plugins.sessions.aggregation import Attempt  # with libraries of an extra

            return Attempt(self.config, t, S, time.monotonic())
        chosen = self._outlet.sample(self.config.n_agents, self.config.q)
        return _Round(RoundSum(self.config, t, chosen, S), set(), time.monotonic())

    def _complete(self, current: _Round | Attempt) -> bool:
        return not self._hold and current.complete(self._left)

    def _close_if_complete(self) -> None:
        if self._round is not None and self._complete(self._round):
            self._close(self._round)

    def close_round(self) -> None:
        """Closes the open round, if any, without those that have not sent."""
        with self._lock:
            if self._round is not None:
                self._close(self._round)
                if self._hold and self.n_left:
                    self._round = self._open()

    def _close(self, current: _Round | Attempt) -> None:
        """Charges, draws, stores and publishes a round, once; or goes on to its next phase."""
        if isinstance(current, _Round):
            self._publish(current.t, lambda: self._release(current.total))
        else:
            from privbo_plugins.sessions import aggregation  # with libraries of an extra

            aggregation.end_phase(self, current)
        self._lock.notify_all()

    def _publish(self, t: int, release: Callable[[], Mapping[str, Any]]) -> None:
        payload = self._tried(t, release)
        self._broadcasts[t] = from_payload(t, payload)
        self._round = None

    def _tried(self, t: int, act: Callable[[], R]) -> R:
        """What is done with the vault, or an error that tells nothing of what was summed."""
        failure = ""
        try:
            return act()
        except Exception as error:  # its text and frames may hold the sum: only its kind is told
            failure = _NO_VAULT if isinstance(error, VaultError) else _NO_RELEASE
            failure = failure.format(t=t, kind=public_name(error))
        self._lock.notify_all()  # whoever waits tries again, and hears the same
        raise FederationError(failure)

    def _release(self, total: RoundSum) -> Mapping[str, Any]:
        order = Order(
            BROADCAST,
            str(total.t),
            charge=lambda tx: self._charge(tx, total, str(total.t)),
            draw=lambda noise: to_payload(total.broadcast(self._draw(total, noise))),
            shelf=PAYLOADS,
        )
        with self.run.transaction() as tx:
            return self._outlet.release(tx, order)

    def _charge(self, tx: Transaction, total: Measure, key: str) -> None:
        config = self.config
        mu = 1.0 / config.noise_multiplier if config.noise_multiplier else math.inf
        charge = Charge(BROADCAST, key, mu, total.S, total.noise_scale, AGENTS)
        check_budget(mu * math.sqrt(config.n_rounds), tx.spent_mu2(AGENTS), charge)
        tx.charge(charge)

    # Rounds whose sum alone is seen --------------------------------------------------------------

    def _enter(self, agent: int, asked: Sent) -> Sent | None:
        from privbo_plugins.sessions import aggregation  # with libraries of an extra

        return aggregation.enter(self, agent, asked)

    def _turn(
        self,
        agent: int,
        asked: Sent,
        ended: threading.Event | None = None,
        patience: float = math.inf,
    ) -> Sent:
        from privbo_plugins.sessions import aggregation

        return aggregation.turn(self, agent, asked, ended, patience)

    def _go_round(self) -> None:
        """Lets this process's agents do what they can without waiting for others."""
        while any([one.step() for one in list(self._masking.values())]):
            pass

    def _draw(self, total: RoundSum, noise: NoiseSource) -> Array:
        exact = total.exact()
        if self.config.noise_multiplier == 0:
            return exact
        return noise.add_gaussian(exact, total.noise_scale)

    def _collect(
        self,
        t: int,
        sender: int | None = None,
        ended: threading.Event | None = None,
        patience: float = math.inf,
    ) -> Broadcast | _Round | Attempt | None:
        """Waits for the end of round t.

        Args:
            t: Its number.
            sender: An agent that has sent to it, if so; a server that was started again meanwhile
                has not got what it sent, and says so at once.
            ended: Ends the wait, once whoever set it has notified the lock.
            patience: Seconds after which it ends too.

        Returns:
            What was released; the round if it is open still; None if there is no such round.
        """
        until = time.monotonic() + patience
        with self._lock:
            self._advance()
            while t not in self._broadcasts:
                current = self._round
                if current is None or current.t != t or (ended and ended.is_set()):
                    return None
                if sender is not None and sender not in current.sent:
                    return None
                if self._hold and self._overdue(current):
                    self._advance()
                elif self._overdue(current) or self._complete(current):
                    self._close(current)  # complete and open: the vault refused it before
                elif (left := until - time.monotonic()) <= 0:
                    return current
                else:
                    self._wait(left, current)
            return self._broadcasts[t]

    def _wait(self, seconds: float, current: _Round | Attempt) -> None:
        """Waits for news, at most until a round's deadline."""
        least = min(seconds, self._time_left(current))
        self._lock.wait(None if math.isinf(least) else least)

    @staticmethod
    def _now() -> float:
        """Seconds on the server's clock."""
        return time.monotonic()

    def _time_left(self, current: _Round | Attempt) -> float:
        if self._deadline is None:
            return math.inf
        return current.opened + self._deadline - time.monotonic()

    def poll(self) -> int:
        """Closes the open round if its deadline is over; how many rounds have been released."""
        with self._lock:
            self._advance()
            current = self._round
            due = current is not None and (self._overdue(current) or self._complete(current))
            if current is not None and due and not self._hold:
                self._close(current)  # complete and open: the vault refused it before
            return len(self._broadcasts)

    def _leave(self, agent: int) -> None:
        with self._lock:
            self._left.add(agent)
            self._close_if_complete()

    # What may be claimed ------------------------------------------------------------------------

    def ledger(self) -> list[Charge]:
        """One charge a released round.

        Raises:
            FederationError: If a round that is due cannot be released.
        """
        with self._lock:
            self._advance()
        with self.run.transaction() as tx:
            return tx.charges()

    @property
    def vault_id(self) -> str:
        """Identity of the vault that holds the ledger."""
        return self.run.vault.vault_id

    def mark(self, kind: str, text: str) -> None:
        """Records a fact about the run for ever; "unprotected" says why nothing is claimed."""
        with self.run.transaction() as tx:
            tx.mark(kind, text)

    def marks(self, kind: str) -> tuple[str, ...]:
        """All facts of a kind that were recorded."""
        with self.run.transaction() as tx:
            return tx.marks(kind)

    def guarantee(self) -> FederationGuarantee:
        """What may be claimed for everything that this federation broadcasts.

        Raises:
            FederationError: If a round that is due cannot be released.
        """
        with self._lock:
            self._advance()
        return claimed_of(self.run, self.config, held=self._hold)

    def history(self) -> FederationHistory:
        """What has been broadcast, for :mod:`privbo_plugins.plots`.

        Raises:
            FederationError: If a round that is due cannot be released.
        """
        return published(self.config, self.broadcasts())

    def report(self, path: str | Path) -> Path:
        """Writes an HTML page: guarantee, rounds and budget.

        Args:
            path: Where to write.

        Returns:
            The path written.

        Raises:
            FederationError: If a round that is due cannot be released.
            ImportError: If the ``viz`` extra is not installed.
        """
        page = federation_report("Federation report", self.guarantee(), self.history())
        return page.write(path)


def _share_source(config: FederationConfig, noise: NoiseSource | None) -> ShareSource | None:
    """Whence this process's agents draw their shares of the noise."""
    if not config.aggregated:
        return None
    share_scale(config)
    if noise is None or isinstance(noise, ShareSource):
        return noise
    raise ValueError("noise= draws no shares: give it a method discrete_gaussian(d, scale).")


def _run_of(vault: Vault, run_name: str, config: FederationConfig) -> Run:
    settings = config.to_dict() | {"noise_multiplier": config.noise_multiplier}
    try:
        return begin_or_join(vault, f"federation:{run_name}", settings)
    except OtherSettingsError:
        raise ValueError(
            f"The vault holds the federation {run_name!r} with other settings (or a noise "
            "multiplier that this version would not choose for them). Use the same, or another "
            "run_name=."
        ) from None


def _check_clock(given: FederatedServerSettings) -> None:
    deadline = given.deadline
    if deadline is not None and not 0 < deadline < threading.TIMEOUT_MAX:
        raise ValueError(f"deadline must be a positive number of seconds, got {deadline}.")
    if given.hold and given.config.aggregated:
        raise ValueError(
            "hold=True hides who is there from others, and trust='aggregate' shows it to the "
            "server and to all agents: give one of them."
        )
    if given.hold and (deadline is None or given.space is None):
        raise ValueError(
            "hold=True runs rounds on the server's clock, whoever joins: give deadline= and "
            "space=."
        )


def _checked_names(agents: Sequence[str] | None, n_agents: int) -> tuple[str, ...]:
    names = () if agents is None else tuple(agents)
    if agents is not None and (len(set(names)) != len(names) or len(names) != n_agents):
        raise ValueError(
            f"agents must list {n_agents} different names, one an agent, got {len(names)} with "
            f"{len(set(names))} different ones."
        )
    return names
