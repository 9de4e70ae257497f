"""Fixtures that several tests of the engine share."""

from types import SimpleNamespace

import pytest

from privbo_plugins.cli import main
from privbo_plugins.sessions import rounds as server_module
from privbo_plugins.store.vault import open_vault

from .listeners import PUBLIC, serving


@pytest.fixture
def clock(monkeypatch):
    """A federation server's clock; it stands until ``now`` is set, and waiting takes real time."""
    hands = SimpleNamespace(now=1000.0)
    monkeypatch.setattr(server_module, "time", SimpleNamespace(monotonic=lambda: hands.now))
    return hands


@pytest.fixture
def server():
    """A federation's server that listens for one agent, whose deadline nobody waits for."""
    with serving(1, deadline=None, space=PUBLIC) as made:
        yield made


@pytest.fixture
def path(tmp_path):
    """Where a vault's file may lie."""
    return tmp_path / "private.db"


@pytest.fixture(params=["file", "postgres"])
def url(request, path):
    """A vault's address, of every database."""
    if request.param == "postgres":
        return str(request.getfixturevalue("postgres_database"))
    return f"sqlite:///{path}"


@pytest.fixture
def vault(url):
    """An empty vault, in every database."""
    opened = open_vault(url)
    yield opened
    opened.close()


@pytest.fixture
def printed(capsys):
    """Runs a command that is done, and returns what it prints."""

    def run(*arguments):
        assert main(arguments) == 0
        return capsys.readouterr().out

    return run


@pytest.fixture
def refused(capsys):
    """Runs a command that is refused, and returns why: one text, and no traceback."""

    def run(*arguments):
        assert main(arguments) == 2
        out, err = capsys.readouterr()
        assert out == ""
        assert err.startswith("Refused: ")
        assert "Traceback" not in err
        return err

    return run
