"""``privbo federation serve``: the server of a federation, whose agents are other processes.

    privbo federation serve --agents 3 --epsilon 4 --space C:0.001:1000:log
        --vault sqlite:///server.db --secret server.key --listen 0.0.0.0:7000
        --reached federation.example:7000 --invitations invitations

or the same from a file, ``privbo federation serve settings.toml``, whose keys are the options.

Each agent gets its own file of ``invitations`` and gives its text to
:func:`privbo_plugins.federation.connect`. Connections are encrypted (TLS). The server sees every
agent's vectors: whoever runs this is trusted by all of them, unless ``--trust aggregate`` shows it
their noisy sum alone. What it prints are rounds and the guarantee.
"""

from __future__ import annotations

import argparse
import signal
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

from privbo_plugins.cli import health
from privbo_plugins.cli.outcome import add_vault, check_lasting, of_setting
from privbo_plugins.cli.plan import add_federation_options, add_space, federation_config, space_of
from privbo_plugins.errors import FederationError
from privbo_plugins.sessions.settings import FederatedServerSettings, RoundSettings

if TYPE_CHECKING:
    from privbo_plugins.federation import FederatedServer
    from privbo_plugins.federation.identity import Address

_PAUSE = 0.2
"""Seconds between looks at what has been released."""


def serve(given: argparse.Namespace) -> None:
    """Serves until it is interrupted, which is its ordinary end."""
    from privbo_plugins.federation import FederatedServer

    check_lasting(given.vault)
    raise_file_limit()
    _check_folder(given.invitations)
    server = FederatedServer(
        federation_config(given),
        space=space_of(given.space),
        deadline=given.deadline,
        hold=given.hold,
        vault=given.vault,
        run_name=given.run,
    )
    try:
        where = server.listen(
            given.socket or given.listen, secret=given.secret, cert=given.cert, key=given.key,
            client_ca=given.client_ca,
        )  # fmt: skip
        _invite(server, given.invitations, given.reached)
        certificate = _fingerprint(server, given.reached)
        print(
            f"Listening on {_written(where)}. The server's certificate is SHA-256 "
            f"{certificate}. The invitations are in {given.invitations}, one file an agent: each "
            "is that agent's secret. Ctrl-C ends the server.",
            flush=True,
        )
        work = _Work(server)
        with _interrupted_by_sigterm(), health.told(given.health, work.state) as asked:
            if asked is not None:
                print(f"Its health: http://{_written(asked)}{health.PATH}", flush=True)
            work.go_on()
    except KeyboardInterrupt:
        print(f"\n{server.guarantee()}")
    finally:
        server.close()


def raise_file_limit() -> None:
    """As many open files as the system allows: every agent's connection is one."""
    try:
        import resource
    except ImportError:  # Windows has no such limit
        return
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    with suppress(OSError, ValueError):  # macOS tells of no limit and has one
        resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))


def _fingerprint(server: FederatedServer, reached: Address | None) -> str:
    from privbo_plugins.federation.identity import fingerprint, invitation_from

    return fingerprint(invitation_from(server.invitation(0, address=reached)).certificate)


class _Work:
    """Rounds as they are released, and whether they can be."""

    def __init__(self, server: FederatedServer) -> None:
        self._server, self._released, self._trouble = server, 0, ""

    def go_on(self) -> None:
        """Says when a round is released, or cannot be."""
        while True:
            self._look()
            time.sleep(_PAUSE)

    def _look(self) -> None:
        try:
            released, trouble = self._server.poll(), self._server.given_up
        except FederationError as error:
            released, trouble = self._released, str(error)
        if trouble not in ("", self._trouble):
            print(f"WARNING: {trouble}", file=sys.stderr, flush=True)
        self._trouble = trouble
        if released > self._released:
            self._released = released
            print(f"{released} rounds released, {self._server.n_left} to come.", flush=True)

    def state(self) -> dict[str, Any]:
        """Public facts."""
        return {
            "able": not self._trouble,
            "rounds_released": self._released,
            "rounds_left": self._server.n_left,
            "trouble": self._trouble,
        }


@contextmanager
def _interrupted_by_sigterm() -> Iterator[None]:
    """What a supervisor sends ends the server as Ctrl-C does."""

    def interrupt(_signal: int, _frame: object) -> None:
        raise KeyboardInterrupt

    before = signal.signal(signal.SIGTERM, interrupt)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


def _check_folder(folder: Path) -> None:
    """That invitations have a place of their own.

    Raises:
        PrivacyError: If other users can write into it.
        ValueError: If there is something else than a folder.
    """
    from privbo_plugins.files import check_unchangeable

    if folder.exists() and not folder.is_dir():
        raise ValueError(f"--invitations must be a folder, and {folder} is none.")
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    check_unchangeable(folder)


def _invite(server: FederatedServer, folder: Path, reached: Address | None) -> None:
    """Writes one file an agent, for this user alone."""
    from privbo_plugins.files import write_text

    for agent in range(server.config.n_agents):
        text = server.invitation(agent, address=reached)
        write_text(folder / f"agent-{agent}.invitation", text, private=True)


def address(text: str) -> tuple[str, int]:
    """``host:port``.

    Raises:
        argparse.ArgumentTypeError: If it is none.

    Example:
        >>> address("127.0.0.1:7000"), address("[::1]:0")
        (('127.0.0.1', 7000), ('::1', 0))
    """
    host, _, port = text.rpartition(":")
    if not host or not port.isdecimal() or len(port) > 5 or int(port) > 65535:
        raise argparse.ArgumentTypeError(f"{text!r} must be host:port, with port 0 for any.")
    return host.removeprefix("[").removesuffix("]"), int(port)


def _written(where: Address) -> str:
    return where if isinstance(where, str) else f"{where[0]}:{where[1]}"


def add_to(commands: Any) -> None:
    """Adds ``federation`` to a command line."""
    text = "the server of a federation"
    made = commands.add_parser("federation", help=text, description=f"Runs {text}.")
    command = made.add_subparsers(dest="federation", required=True).add_parser(
        "serve", help="mix what agents in other processes send, and broadcast it with noise",
        usage="%(prog)s [SETTINGS.toml] [options]",
    )  # fmt: skip
    command.set_defaults(act=serve)
    add_federation_options(command)
    add_vault(command, "database of ledger and broadcasts, such as sqlite:///server.db")
    command.add_argument("--run", **of_setting(FederatedServerSettings, "run_name"))
    place = command.add_mutually_exclusive_group()
    place.add_argument(
        "--listen", type=address, default=("127.0.0.1", 0), metavar="HOST:PORT",
        help="where agents reach the server, over TLS",
    )  # fmt: skip
    place.add_argument("--socket", metavar="PATH", help="or the path of a Unix socket")
    command.add_argument(
        "--reached", type=address, metavar="HOST:PORT",
        help="by which agents reach it, if that is another address",
    )  # fmt: skip
    command.add_argument(
        "--secret", type=Path, required=True,
        help="file from which invitations are derived; created for you alone if there is none",
    )  # fmt: skip
    command.add_argument(
        "--cert", type=Path, metavar="PEM",
        help="the institution's certificate for this server; else one that follows from --secret",
    )  # fmt: skip
    command.add_argument("--key", type=Path, metavar="PEM", help="its private key")
    command.add_argument(
        "--client-ca", type=Path, metavar="PEM",
        help="authorities of whom agents need a certificate besides their invitation",
    )  # fmt: skip
    command.add_argument(
        "--invitations", type=Path, required=True, help="folder for one file an agent"
    )
    command.add_argument(
        "--health", type=address, metavar="HOST:PORT",
        help="where GET /health is answered with public facts; not encrypted",
    )  # fmt: skip
    command.add_argument(
        "--deadline", type=float, metavar="SECONDS", **of_setting(RoundSettings, "deadline")
    )
    command.add_argument("--hold", action="store_true", **of_setting(RoundSettings, "hold"))
    add_space(command, required=True)
