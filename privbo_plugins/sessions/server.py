"""The server of a federation: rounds, ledger, and links for its agents."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from privbo_plugins.algorithms.dp_fts_de.server import Broadcast
from privbo_plugins.errors import PrivacyError
from privbo_plugins.plots import FederationHistory
from privbo_plugins.privacy.guarantee import FederationGuarantee
from privbo_plugins.privacy.ledger import Charge
from privbo_plugins.reports import federation_report
from privbo_plugins.sessions.broadcasts import published
from privbo_plugins.sessions.local import LocalAgents, LocalLink
from privbo_plugins.sessions.rounds import Rounds
from privbo_plugins.sessions.settings import FederatedServerSettings
from privbo_plugins.settings import takes

if TYPE_CHECKING:
    from privbo_plugins.federation.identity import Address
    from privbo_plugins.federation.listening import Listener


class FederatedServer:
    """Mixes what agents send under user-level differential privacy.

    The process that holds it is trusted: it sees every agent's vectors. Agents, and readers of
    what they received, are not. With ``FederationConfig(trust="aggregate")`` it sees their noisy
    sum alone, and need only follow the protocol.

    {settings}

    Raises:
        ValueError: If names or times make no sense, or the run was started with other settings.
        VaultError: If the vault cannot be opened.

    Example:
        >>> from privbo_plugins.algorithms.dp_fts_de import FederationConfig
        >>> from privbo_plugins.spaces import Float, Space
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
        self._names = checked_names(given.agents, self.config.n_agents)
        self.rounds = Rounds(given)
        self.run = self.rounds.run
        self._agents = LocalAgents(self.rounds, given.noise)
        self._invitations = hashlib.sha256(given.run_name.encode()).hexdigest()[:32]
        self._listener: Listener | None = None

    def __reduce__(self) -> Any:
        raise PrivacyError(
            "A federation's server cannot be pickled: it holds the sum of an open round. Give "
            "other processes an invitation (server.listen(), server.invitation(agent))."
        )

    # Agents -------------------------------------------------------------------------------------

    def connect(self, agent: int | str) -> LocalLink:
        """Makes a link for an agent of this process.

        Args:
            agent: Its number on the roster, from 0, or its name.

        Raises:
            ValueError: If the roster does not list it.
        """
        return LocalLink(self._agents, self.number_of(agent))

    def listen(
        self,
        address: Address = ("127.0.0.1", 0),
        *,
        secret: bytes | str | os.PathLike[str] | None = None,
        cert: str | os.PathLike[str] | None = None,
        key: str | os.PathLike[str] | None = None,
        client_ca: str | os.PathLike[str] | None = None,
    ) -> Address:
        """Answers agents of other processes over TLS, until :meth:`close`; needs ``space=``.

        Args:
            address: Host and port; 0 for any that is free.
            secret: From which certificate and invitations follow: at least 16 random bytes, or a
                file, which is created for this user alone. None for a new one. With the same
                secret, address and ``run_name``, invitations outlive the server's process.
            cert: File of the institution's own certificate (PEM, then those up to an authority).
                Agents accept this one alone: another one needs new invitations.
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
        """
        self._check_silent()
        from privbo_plugins.federation.identity import identity_of  # with libraries of an extra
        from privbo_plugins.federation.listening import Listener

        identity = identity_of(secret, cert, key, client_ca)
        self._listener = Listener(self.rounds, address, identity, self._invitations)
        return self._listener.address

    def _check_silent(self) -> None:
        if self._listener is not None:
            raise ValueError(f"The server listens already: {self._listener}. Call close() first.")
        if self.rounds.space is None:
            raise ValueError(
                "A server that listens needs FederatedServer(space=...): else the first agent "
                "that joins would say what all the others tune."
            )

    def invitation(self, agent: int | str, *, address: Address | None = None) -> str:
        """Writes the text that ``connect`` takes in an agent's process: a secret of that agent.

        Args:
            agent: Its number on the roster, from 0, or its name.
            address: By which the agent reaches the server, if it is another than where it
                listens, such as the near end of a tunnel.

        Raises:
            ValueError: If the roster does not list the agent, the server does not listen, or it
                listens on all addresses and ``address`` does not say which to use.

        Example:
            >>> from privbo_plugins.algorithms.dp_fts_de import FederationConfig
            >>> from privbo_plugins.spaces import Float, Space
            >>> space = Space({"x": Float(0.0, 1.0)})
            >>> server = FederatedServer(FederationConfig(n_agents=2, epsilon=4.0), space=space)
            >>> host, port = server.listen()
            >>> server.invitation(1).startswith(f"privbo://{host}:{port}/1?server=")
            True
            >>> server.close()
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

    # Rounds -------------------------------------------------------------------------------------

    @property
    def finished(self) -> bool:
        """True once all rounds have been released: agents go on alone.

        Raises:
            FederationError: If a round that is due cannot be released.
        """
        self.rounds.advance()
        return self.n_left == 0

    @property
    def n_left(self) -> int:
        """Rounds that may still be released; one that was paid for and not opened is used up."""
        return self.rounds.ledger.n_left

    @property
    def given_up(self) -> str:
        """The reason for which the last attempt at the round was given up; empty if none was."""
        with self.rounds.lock:
            last = self.rounds.given_up
            return "" if last is None or last.t in self.rounds.ledger.known else last.why_given_up

    def broadcasts(self) -> list[Broadcast]:
        """Lists everything released so far, in order.

        Raises:
            FederationError: If a round that is due cannot be released.
        """
        return self.rounds.broadcasts()

    def close_round(self) -> None:
        """Closes the open round, if any, without those that have not sent."""
        self.rounds.close_round()

    def poll(self) -> int:
        """Closes the open round if it is due, and returns how many rounds were released."""
        return self.rounds.poll()

    # What may be claimed ------------------------------------------------------------------------

    def ledger(self) -> list[Charge]:
        """Lists one charge a released round.

        Raises:
            FederationError: If a round that is due cannot be released.
        """
        self.rounds.advance()
        with self.run.transaction() as tx:
            return tx.charges()

    def guarantee(self) -> FederationGuarantee:
        """Makes the claim for everything that this federation broadcasts.

        Raises:
            FederationError: If a round that is due cannot be released.
        """
        return self.rounds.guarantee()

    def history(self) -> FederationHistory:
        """Describes the broadcasts for :mod:`privbo_plugins.plots`.

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


def checked_names(agents: Sequence[str] | None, n_agents: int) -> tuple[str, ...]:
    """Names of the agents of a federation; none where numbers are their names.

    Raises:
        ValueError: If there are more or fewer of them than agents, or two are the same.
    """
    names = () if agents is None else tuple(agents)
    if agents is not None and (len(set(names)) != len(names) or len(names) != n_agents):
        raise ValueError(
            f"agents must list {n_agents} different names, one an agent, got {len(names)} with "
            f"{len(set(names))} different ones."
        )
    return names
