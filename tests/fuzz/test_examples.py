"""Inputs that once came out as another error, hung, or were told to whoever reads the log."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from privbo_plugins.algorithms.dp_fts_de import Broadcast, FederationConfig
from privbo_plugins.algorithms.po_gp_ucb import ReleasedTable, TableManifest
from privbo_plugins.algorithms.po_gp_ucb.exchange import read_answers
from privbo_plugins.errors import FederationError, VaultError
from privbo_plugins.federation import FederatedServer, RemoteLink, connect
from privbo_plugins.federation.history import AgentHistory
from privbo_plugins.sessions.rows import Curator
from privbo_plugins.spaces import Float, Space
from privbo_plugins.store.vault import resolve_url
from tests import inside, wires

from .mutations import as_json
from .parsers import CONFIG, SPACE, pretender

Change = dict[str, Any]

# Spaces and settings ----------------------------------------------------------------------------

LINE = {"type": "float", "low": 0.0, "high": 1.0, "log": False, "step": None}
WHOLE = {"type": "int", "low": 1, "high": 9, "log": False, "step": 1}
CHOICE = {"type": "categorical", "choices": ["'rbf'"]}


@pytest.mark.parametrize("described", [
    1e17, [], {}, {"a": 1e17}, {"a": []}, {"a": LINE | {"type": "double"}},
    {"a": LINE | {"low": ""}}, {"a": {"type": "float", "low": 0.1}},
    {"a": LINE | {"choices": []}}, {"a": LINE | {"log": 2}},
    {"a": LINE | {"high": 1e308, "step": 1e-320}}, {"a": LINE | {"high": 10**400}},
    {"a": WHOLE | {"low": 1.5}}, {"a": WHOLE | {"step": None}}, {"a": WHOLE | {"high": 10**400}},
    {"a": WHOLE | {"step": 10**400}},
    {"a": CHOICE | {"choices": "rbf"}}, {"a": CHOICE | {"choices": [[1]]}},
])  # fmt: skip
def test_what_describes_no_space_is_a_value_error(described: Any) -> None:
    with pytest.raises(ValueError, match=r"describes no search space|needs at least|than can be"):
        Space.from_dict(described)


def test_a_step_far_beyond_the_range_leaves_one_value() -> None:
    space = Space({"a": Float(0.0, 1e-320, step=2.0**63)})
    assert space.decode(space.snap(np.array([0.7]))) == {"a": 0.0}
    assert not space.varies


@pytest.mark.parametrize("change", [
    {"prior": 3}, {"temperature": None}, {"value_range": 1.0}, {"value_range": ["", 1.0]},
    {"epsilon": [], "z": None}, {"z": [], "epsilon": None}, {"population": None},
    {"n_regions": "1"}, {"value_range": [10**400, 0]},
])  # fmt: skip
def test_what_are_no_settings_of_a_federation_is_a_value_error(change: Change) -> None:
    with pytest.raises(ValueError, match=r"no settings for|must be|needs"):
        FederationConfig.from_dict(CONFIG.to_dict() | change)
    with pytest.raises(ValueError, match="no settings for"):
        FederationConfig.from_dict({"n_agents": 3})


# Between agents and their server ----------------------------------------------------------------


SENT = wires.told(Broadcast(1, np.ones((1, 4)), np.ones(1)))
PAGE = {"page": [SENT], "more": False}
GREETING = wires.greeting(CONFIG)


@pytest.fixture
def dialled() -> Iterator[Callable[..., RemoteLink]]:
    """A link to a server that greets and replies as given."""
    text = wires.invitation(("nowhere.example", 1), 1, bytes(32))

    def begin(reply: Callable[[], Any] | Any = None, greeting: Any = GREETING) -> RemoteLink:
        says = reply if callable(reply) else lambda: reply
        met.append(pretender(greeting, lambda: as_json(says())))
        return RemoteLink(text)

    met: list[wires.Peer] = []
    with wires.meeting(lambda: met[-1]):
        yield begin


@pytest.mark.parametrize("change", [
    {"config": None}, {"config": {}}, {"config": CONFIG.to_dict() | {"prior": 3}},
    {"released": -1}, {"released": [3]}, {"epoch": 3}, {"chain": [1]},
    {"deadline": "soon"}, {"deadline": "1"}, {"deadline": -1},
    {"deadline": float("nan")},
])  # fmt: skip
def test_a_greeting_that_is_none_is_another_version_of_a_server(
    dialled: Any, change: Change
) -> None:
    with pytest.raises(FederationError, match="an answer that this version does not know"):
        dialled(greeting=GREETING | change)
    partial = {name: value for name, value in GREETING.items() if name not in change}
    with pytest.raises(FederationError, match="an answer that this version does not know"):
        dialled(greeting=partial)


CALLS: dict[str, Callable[[RemoteLink], Any]] = {
    "submit": lambda link: link.submit(np.ones(4)),
    "collect": lambda link: link.collect(1),
    "broadcasts": lambda link: link.broadcasts(),
    "guarantee": lambda link: str(link.guarantee()),
    "leave": lambda link: link.leave(),
}
WIDE = wires.packed(np.ones(5))
GUARANTEE = FederatedServer(CONFIG, space=SPACE, deadline=None).guarantee().to_dict()


@pytest.mark.parametrize(("call", "reply"), [
    ("submit", {"result": [1]}), ("submit", {"result": "1"}), ("submit", {"result": -1}),
    ("collect", {"result": []}), ("collect", {"result": {"round": 1}}),
    ("collect", {"result": SENT | {"weights": WIDE}}),
    ("collect", {"result": SENT | {"round": ""}}),
    ("collect", {"result": SENT | {"noise": wires.packed(np.array([np.nan]))}}),
    ("collect", {"result": SENT | {"round": 10**9}}),
    ("broadcasts", {"result": None}), ("broadcasts", {"result": {"page": []}}),
    ("broadcasts", {"result": PAGE | {"page": [None]}}),
    ("broadcasts", {"result": PAGE | {"page": [SENT] * 9}}),
    ("broadcasts", {"result": PAGE | {"page": [SENT | {"chain": 3}]}}),
    ("leave", {"again": True}),
    ("guarantee", {"result": {}}), ("guarantee", {"result": GUARANTEE | {"reasons": 3}}),
    ("guarantee", {"result": GUARANTEE | {"n_released": 1e308}}),
    ("guarantee", {"result": GUARANTEE | {"held": "no"}}),
    ("leave", {"error": "it failed"}), ("leave", {"error": [[], "it failed"]}),
    ("leave", {"error": ["ValueError", {"a": 1}]}),
])  # fmt: skip
def test_an_answer_that_is_none_is_an_error_of_the_federation(
    dialled: Any, call: str, reply: Any
) -> None:
    with pytest.raises(FederationError, match="an answer that this version does not know"):
        CALLS[call](dialled(reply))


def test_pages_without_end_are_not_asked_for_without_end(dialled: Any) -> None:
    asked: list[int] = []

    def page() -> Any:
        asked.append(1)
        assert len(asked) < 100
        return {"result": {"page": [], "more": True}}

    with pytest.raises(FederationError, match="an answer that this version does not know"):
        dialled(page).broadcasts()


SECRET = bytes(range(32))
INVITATION = wires.invitation(("127.0.0.1", 4711), 3, SECRET)


@pytest.mark.parametrize("text", [
    f"env:{INVITATION}", f"env:\ud800{INVITATION}", f"env:\0{INVITATION}",
    INVITATION.replace("127.0.0.1", "a" * 64), INVITATION.replace("127.0.0.1", "a..b"),
])  # fmt: skip
def test_an_invitation_in_a_wrong_place_is_refused_and_not_repeated(text: str) -> None:
    with pytest.raises(ValueError, match="is not an invitation") as raised:
        connect(text)
    assert INVITATION.rpartition("#")[2] not in str(raised.value)


# Vaults -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("text", [
    "postgresql://me:Jane4711Doe/vault",  # the host was forgotten: the password stands for a port
    "postgresql+psycopg://me:Jane4711Doedb.example:5432/vault",
    "env:postgresql://me:Jane4711Doe@db.example/vault", "postgresql://\ud800:Jane4711Doe@db/vault",
])  # fmt: skip
def test_a_url_with_a_slip_is_refused_and_its_password_not_repeated(text: str) -> None:
    with pytest.raises(ValueError, match="vault must be") as raised:
        resolve_url(text)
    assert "Jane4711Doe" not in str(raised.value)
    assert raised.value.__suppress_context__


@pytest.mark.parametrize(("column", "stored"), [
    ("x", 2**40),  # as a number of bytes it would be a terabyte of zeros
    ("x", b"1234567"), ("x", float("inf")), ("x", b"12345678"), ("value", "Jane Doe"),
    ("value", b"="), ("value", float("inf")), ("slot", "Jane Doe"), ("slot", b"1"),
])  # fmt: skip
def test_a_history_that_another_program_changed_is_refused(
    tmp_path: Path, column: str, stored: Any
) -> None:
    url, path = f"sqlite:///{tmp_path}/agent.db", tmp_path / "agent.db"
    history = AgentHistory("a", SPACE, vault=url)
    history.append(0, np.full(5, 0.5), 1.0)
    with closing(sqlite3.connect(path)) as database:
        database.execute(f"UPDATE privbo_board SET {column} = ?", (stored,))
        database.commit()
    with pytest.raises(VaultError, match="never stored") as raised:
        print(history.n_trials, history.read())
    assert "Jane" not in str(raised.value)


@pytest.mark.parametrize(("column", "stored"), [
    ("payload", "Jane Doe"), ("payload", "[" * 10**5), ("payload", "[]"), ("payload", 3.0),
    ("payload", b"Jane Doe"), ("salt", "Jane Doe"), ("key", "Jane Doe"),
])  # fmt: skip
def test_a_run_that_another_program_changed_is_refused(
    tmp_path: Path, column: str, stored: Any
) -> None:
    url, path = f"sqlite:///{tmp_path}/agent.db", tmp_path / "agent.db"
    AgentHistory("a", SPACE, vault=url)
    with closing(sqlite3.connect(path)) as database:
        database.execute(f"UPDATE privbo_events SET {column} = ? WHERE kind = 'run'", (stored,))
        database.commit()
    with pytest.raises(VaultError, match="never stored"):
        AgentHistory("a", SPACE, vault=url)


def test_a_schema_that_is_no_text_is_a_damaged_vault(tmp_path: Path) -> None:
    url, path = f"sqlite:///{tmp_path}/agent.db", tmp_path / "agent.db"
    inside.close_history(AgentHistory("a", SPACE, vault=url))
    with closing(sqlite3.connect(path)) as database:
        database.execute("PRAGMA writable_schema=ON")
        database.execute(
            "UPDATE sqlite_master SET name = CAST(x'e5e5' AS TEXT), sql = 'CREATE TABLE ('"
            " WHERE name = 'privbo_board'"
        )
        database.commit()
    with pytest.raises(VaultError, match="never stored"):
        AgentHistory("a", SPACE, vault=url, create=False)


# What a curator and a modeler exchange ----------------------------------------------------------


@pytest.mark.parametrize("change", [
    {"projection": {}}, {"projection": 3}, {"sensitivity": ""}, {"noise_sd": []}, {"delta": "0"},
    {"ledger": 0.5}, {"outcomes": "none"}, {"outcomes": {"outcome_range": 1}}, {"reasons": 3},
    {"n": "6"}, {"epsilon": 10**400}, {"mu": float("nan")}, {"scaling": 1}, {"protected": 1},
    {"reasons": [[]]},
])  # fmt: skip
def test_a_manifest_of_other_kinds_is_a_value_error(change: Change) -> None:
    X = np.random.default_rng(0).uniform(size=(6, 3))
    table = Curator(X, epsilon=1.0, delta=1e-5, norm_bound=2.0).release()
    with pytest.raises(ValueError, match="no manifest of a released table"):
        TableManifest.from_dict(table.manifest.to_dict() | change)


def test_a_table_that_says_it_is_encrypted_is_a_value_error(tmp_path: Path) -> None:
    X, path = np.random.default_rng(0).uniform(size=(6, 3)), tmp_path / "table.npz"
    Curator(X, epsilon=1.0, delta=1e-5, norm_bound=2.0).release().save(path)
    data = path.read_bytes()
    path.write_bytes(data.replace(b"PK\1\2-\3-\0\0\0", b"PK\1\2-\3-\0\1\0"))
    assert path.read_bytes() != data
    with pytest.raises(ValueError, match="is no released table"):
        ReleasedTable.load(path)


def test_an_answer_beyond_all_floats_is_a_value_error(tmp_path: Path) -> None:
    path = tmp_path / "answers.json"
    told = {"format": "privbo-answers-1", "table": "t", "answers": {"0": 10**400}}
    path.write_bytes(as_json(told))
    with pytest.raises(ValueError, match="one finite outcome a row"):
        read_answers(path, "t")
