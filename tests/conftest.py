"""Fixtures for the whole suite: a throw-away PostgreSQL cluster."""

from __future__ import annotations

import getpass
import glob
import os
import shutil
import socket
import subprocess
import tempfile
import uuid
from collections.abc import Iterator
from pathlib import Path

import pytest

USER = "tests"


def _binaries() -> Path | None:
    """The folder that holds initdb and pg_ctl, newest version first."""
    on_path = shutil.which("initdb")
    folders = [str(Path(on_path).resolve().parent)] if on_path else []
    folders += sorted(glob.glob("/usr/lib/postgresql/*/bin"), reverse=True)
    return next((Path(f) for f in folders if (Path(f) / "pg_ctl").exists()), None)


def _as_user() -> tuple[list[str], str] | None:
    """A command prefix and a user name: PostgreSQL refuses to run as root."""
    if os.geteuid() != 0:
        return [], getpass.getuser()
    import pwd

    names = {entry.pw_name for entry in pwd.getpwall()}
    user = next((name for name in ("postgres", "nobody") if name in names), None)
    if user is None or shutil.which("runuser") is None:
        return None
    return ["runuser", "-u", user, "--"], user


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def _run(*command: str | Path) -> None:
    done = subprocess.run(
        [str(part) for part in command],
        cwd="/tmp",
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        check=False,
        timeout=120,
    )
    if done.returncode:
        pytest.skip(f"PostgreSQL does not start here: {done.stdout[-300:]}")


@pytest.fixture(scope="session")
def postgres_url() -> Iterator[str]:
    """URL of an existing, empty database in a cluster that lives as long as the test session."""
    pytest.importorskip("psycopg", reason="the PostgreSQL driver psycopg is not installed")
    binaries, prefix_user = _binaries(), _as_user()
    if binaries is None:
        pytest.skip("no PostgreSQL server binaries (initdb, pg_ctl) on this machine")
    if prefix_user is None:
        pytest.skip("PostgreSQL does not run as root, and there is no other user to run it")
    prefix, user = prefix_user
    root = Path(tempfile.mkdtemp(prefix="pg-", dir="/tmp"))
    if prefix:
        shutil.chown(root, user)
    data, port = root / "data", _free_port()
    options = (
        f"-c listen_addresses=127.0.0.1 -p {port} -c unix_socket_directories={root} "
        "-c fsync=off -c full_page_writes=off -c synchronous_commit=off -c max_connections=60 "
        "-c shared_buffers=16MB"
    )
    _run(*prefix, binaries / "initdb", "-D", data, "-U", USER, "-A", "trust", "-E", "UTF8",
         "--no-sync", "--no-locale")  # fmt: skip
    try:
        _run(*prefix, binaries / "pg_ctl", "-D", data, "-o", options, "-l", root / "log",
             "-w", "-t", "60", "start")  # fmt: skip
        yield f"postgresql+psycopg://{USER}@127.0.0.1:{port}/postgres"
    finally:
        subprocess.run(
            [*prefix, str(binaries / "pg_ctl"), "-D", str(data), "-m", "immediate", "stop"],
            cwd="/tmp",
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            check=False,
        )
        shutil.rmtree(root, ignore_errors=True)


@pytest.fixture
def postgres_database(postgres_url: str) -> Iterator[str]:
    """URL of a fresh database for one test."""
    import psycopg

    name, admin = f"t{uuid.uuid4().hex[:12]}", postgres_url.replace("+psycopg", "")
    with psycopg.connect(admin, autocommit=True) as connection:
        connection.execute(f'CREATE DATABASE "{name}"')
    yield postgres_url.rsplit("/", 1)[0] + f"/{name}"
    with psycopg.connect(admin, autocommit=True) as connection:
        connection.execute(f'DROP DATABASE IF EXISTS "{name}" WITH (FORCE)')
