"""``privbo federation serve``: the server of a federation, whose agents are other processes.

    privbo federation serve --agents 3 --epsilon 4 --space C:0.001:1000:log
        --vault server.db --secret server.key --listen 0.0.0.0:7000
        --reached federation.example:7000 --invitations invitations

or the same from a file, ``privbo federation serve settings.toml``, whose keys are the options.

Each agent gets its own file of ``invitations`` and gives its text to
:func:`privbo_plugins.federation.connect`. Connections are encrypted (TLS). The server sees every
agent's vectors: all agents trust its operator, unless ``--trust aggregate`` shows it their noisy
sum alone. It prints rounds and the guarantee.
"""

from __future__ import annotations

import signal
import sys
import time
import tomllib
from contextlib import closing, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

import click

from privbo_plugins.cli import health
from privbo_plugins.cli.outcome import Answer, Group, of_setting, vault_at
from privbo_plugins.cli.plan import configured, federation_options, space_of, space_option
from privbo_plugins.errors import FederationError
from privbo_plugins.sessions.settings import FederatedServerSettings, RoundSettings

if TYPE_CHECKING:
    from privbo_plugins.federation import FederatedServer
    from privbo_plugins.federation.identity import Address

_PAUSE = 0.2
"""Seconds between looks at what has been released."""


def address(text: str) -> tuple[str, int]:
    """Reads ``host:port``.

    Raises:
        click.BadParameter: If it is none.

    Example:
        >>> address("127.0.0.1:7000"), address("[::1]:0")
        (('127.0.0.1', 7000), ('::1', 0))
    """
    host, _, port = text.rpartition(":")
    if not host or not port.isdecimal() or len(port) > 5 or int(port) > 65535:
        raise click.BadParameter(f"{text!r} must be host:port, with port 0 for any.")
    return host.removeprefix("[").removesuffix("]"), int(port)


def _from_file(ctx: click.Context, _option: click.Parameter, path: Path | None) -> None:
    """Takes options from a TOML file, whose keys are their names; typed ones win.

    Raises:
        click.UsageError: If the file cannot be read, is no TOML, or holds something else.
    """
    if path is None:
        return
    try:
        given = tomllib.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise click.UsageError(f"The settings {path} cannot be read: {error.strerror}.") from None
    except ValueError:  # its text quotes a line, in which a password may stand
        raise click.UsageError(f"The settings {path} are no TOML in UTF-8.") from None
    options = {name: one for one in ctx.command.params for name in one.opts}
    taken = {}
    for name, value in given.items():
        option = options.get(f"--{name.replace('_', '-')}")
        if option is None or option.name is None:
            raise click.NoSuchOption(f"--{name}", ctx=ctx)
        flag = getattr(option, "is_flag", False)
        words = value if option.multiple and isinstance(value, list) else [value]
        if not all(
            isinstance(one, str | int | float) and isinstance(one, bool) == flag for one in words
        ):
            raise click.UsageError(
                f"The setting {name} in the file must be a text, a number, true, false, or a list "
                "of texts or numbers, as its option takes it; a table is none of them."
            )
        typed = [one if flag else str(one) for one in words]
        taken[option.name] = typed if option.multiple else typed[0]
    ctx.default_map = taken


@click.group(cls=Group)
def federation() -> None:
    """Run the server of a federation."""


@federation.command()
@click.argument(
    "settings_file", metavar="[SETTINGS.toml]", type=Path, required=False, is_eager=True,
    expose_value=False, callback=_from_file,
)  # fmt: skip
@federation_options
@vault_at("ledger and broadcasts: a file such as server.db, a database URL, or env:NAME")
@of_setting(FederatedServerSettings, "run_name", "--run")
@click.option(
    "--listen", type=address, metavar="HOST:PORT",
    help="where agents reach the server, over TLS; a free port of 127.0.0.1 if it is not given",
)  # fmt: skip
@click.option(
    "--reached", type=address, metavar="HOST:PORT",
    help="by which agents reach it, if that is another address",
)  # fmt: skip
@click.option(
    "--secret", type=Path, required=True,
    help="file from which invitations are derived; created for you alone if there is none",
)  # fmt: skip
@click.option(
    "--cert", type=Path, metavar="PEM",
    help="the institution's certificate for this server; else one that follows from --secret",
)  # fmt: skip
@click.option("--key", type=Path, metavar="PEM", help="its private key")
@click.option(
    "--client-ca", type=Path, metavar="PEM",
    help="authorities of whom agents need a certificate besides their invitation",
)  # fmt: skip
@click.option("--invitations", type=Path, required=True, help="folder for one file an agent")
@click.option(
    "--health", "health_at", type=address, metavar="HOST:PORT",
    help="where GET /health is answered with public facts; not encrypted",
)  # fmt: skip
@of_setting(RoundSettings, "deadline", type=float, metavar="SECONDS")
@of_setting(RoundSettings, "hold", is_flag=True)
@space_option
def serve(
    *, vault: str, run: str, listen: Address | None, reached: Address | None,
    invitations: Path, health_at: tuple[str, int] | None, deadline: float | None, hold: bool,
    space: Any, settings: Any, secret: Path, cert: Path | None, key: Path | None,
    client_ca: Path | None, **options: Any,
) -> Answer:  # fmt: skip
    """Mix the vectors of agents in other processes, and broadcast the sum with noise.

    It serves until it is interrupted, which is its ordinary end.
    """
    from privbo_plugins.algorithms.dp_fts_de.config import FederationConfig
    from privbo_plugins.federation import FederatedServer
    from privbo_plugins.federation.identity import place

    raise_file_limit()
    _check_folder(invitations)
    config, own_space = configured(FederationConfig, options, settings), space_of(space)
    server = FederatedServer(
        config, space=own_space, deadline=deadline, hold=hold, vault=vault, run_name=run
    )
    with closing(server):
        try:
            signal.signal(signal.SIGTERM, signal.default_int_handler)  # a supervisor's Ctrl-C
            where = server.listen(
                listen or ("127.0.0.1", 0),
                secret=secret,
                cert=cert,
                key=key,
                client_ca=client_ca,
            )
            _invite(server, invitations, reached)
            print(
                f"Listening on {place(where)}. The server's certificate is SHA-256 "
                f"{_fingerprint(server, reached)}. The invitations are in {invitations}, one file "
                "an agent: each is that agent's secret. Ctrl-C ends the server.",
                flush=True,
            )
            _watch(server, health_at)
        except KeyboardInterrupt:
            return Answer(f"\n{server.guarantee().details()}")


def _watch(server: FederatedServer, health_at: tuple[str, int] | None) -> NoReturn:
    """Tells of released rounds, here and to monitoring, until it is interrupted."""
    from privbo_plugins.federation.identity import place

    facts = {"able": True, "rounds_released": 0, "rounds_left": server.n_left, "trouble": ""}
    with health.told(health_at, facts.copy) as asked:
        if asked is not None:
            print(f"Its health: http://{place(asked)}{health.PATH}", flush=True)
        while True:
            _look(server, facts)
            time.sleep(_PAUSE)


def raise_file_limit() -> None:
    """Allows as many open files as the system does: every agent's connection is one."""
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


def _look(server: FederatedServer, facts: dict[str, Any]) -> None:
    """Prints that rounds were released, or cannot be; keeps the public facts of it."""
    try:
        released, trouble = server.poll(), server.given_up
    except FederationError as error:
        released, trouble = facts["rounds_released"], str(error)
    if trouble not in ("", facts["trouble"]):
        print(f"WARNING: {trouble}", file=sys.stderr, flush=True)
    if released > facts["rounds_released"]:
        print(f"{released} rounds released, {server.n_left} to come.", flush=True)
    facts.update(
        able=not trouble, rounds_released=released, rounds_left=server.n_left, trouble=trouble
    )


def _check_folder(folder: Path) -> None:
    """Makes a folder for invitations, which no other user can write into.

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
