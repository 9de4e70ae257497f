"""Inputs that once came out as another error, hung, or were told to whoever reads the log."""

import sqlite3
import traceback
import warnings
from contextlib import ExitStack, closing

import numpy as np
import pytest

from privbo_plugins.algorithms.dp_fts_de import Broadcast
from privbo_plugins.errors import FederationError, VaultError
from privbo_plugins.federation import FederatedServer, RemoteLink
from privbo_plugins.federation.history import AgentHistory
from privbo_plugins.spaces import Float, Space
from tests import inside, wires

from .mutations import as_json
from .parsers import CONFIG, INVITATIONS, PARSERS, SECRET, SPACE, Scene, pretender, released_table

LINE = {"type": "float", "low": 0.0, "high": 1.0, "log": False, "step": None}
WHOLE = {"type": "int", "low": 1, "high": 9, "log": False, "step": 1}
CHOICE = {"type": "categorical", "choices": ["'rbf'"]}

SPACES = [
    1e17, [], {}, {"a": 1e17}, {"a": []}, {"a": LINE | {"type": "double"}},
    {"a": LINE | {"low": ""}}, {"a": {"type": "float", "low": 0.1}},
    {"a": LINE | {"choices": []}}, {"a": LINE | {"log": 2}},
    {"a": LINE | {"high": 1e308, "step": 1e-320}}, {"a": LINE | {"high": 10**400}},
    {"a": WHOLE | {"low": 1.5}}, {"a": WHOLE | {"step": None}}, {"a": WHOLE | {"high": 10**400}},
    {"a": WHOLE | {"step": 10**400}},
    {"a": CHOICE | {"choices": "rbf"}}, {"a": CHOICE | {"choices": [[1]]}},
]  # fmt: skip

OF_A_FEDERATION = [
    {"n_agents": 3},
    *(CONFIG.to_dict() | change for change in (
        {"prior": 3}, {"temperature": None}, {"value_range": 1.0}, {"value_range": ["", 1.0]},
        {"epsilon": [], "z": None}, {"z": [], "epsilon": None}, {"population": None},
        {"n_regions": "1"}, {"value_range": [10**400, 0]},
    )),
]  # fmt: skip

SENT = wires.told(Broadcast(1, np.ones((1, 4)), np.ones(1)))
PAGE = {"page": [SENT], "more": False}
WIDE = wires.packed(np.ones(5))
GUARANTEE = FederatedServer(CONFIG, space=SPACE, deadline=None).guarantee().to_dict()
GREETING = wires.greeting(CONFIG)

GREETINGS = [
    greeting
    for change in (
        {"config": None}, {"config": {}}, {"config": CONFIG.to_dict() | {"prior": 3}},
        {"released": -1}, {"released": [3]}, {"epoch": 3}, {"chain": [1]},
        {"deadline": "soon"}, {"deadline": "1"}, {"deadline": -1}, {"deadline": float("nan")},
    )
    for greeting in (GREETING | change, {n: v for n, v in GREETING.items() if n not in change})
]  # fmt: skip
REPLIES = [
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
]  # fmt: skip

INVITATION, KEY = INVITATIONS[0], INVITATIONS[0].rpartition("#")[2]

IN_A_WRONG_PLACE = [
    f"env:{INVITATION}", f"env:\ud800{INVITATION}", f"env:\0{INVITATION}",
    INVITATION.replace("127.0.0.1", "a" * 64), INVITATION.replace("127.0.0.1", "a..b"),
]  # fmt: skip

URLS = [
    f"postgresql://me:{SECRET}/vault",  # the host was forgotten: the password stands for a port
    f"postgresql+psycopg://me:{SECRET}db.example:5432/vault",
    f"env:postgresql://me:{SECRET}@db.example/vault", f"postgresql://\ud800:{SECRET}@db/vault",
]  # fmt: skip

STORED = [
    *((None, ("privbo_board", column, 1), stored) for column, stored in (
        ("x", 2**40),  # as a number of bytes it would be a terabyte of zeros
        ("x", b"1234567"), ("x", float("inf")), ("x", b"12345678"), ("value", SECRET),
        ("value", b"="), ("value", float("inf")), ("slot", SECRET), ("slot", b"1"),
    )),
    *((None, ("privbo_events", column, 1), stored) for column, stored in (
        ("payload", SECRET), ("payload", "[" * 10**5), ("payload", "[]"), ("payload", 3.0),
        ("payload", SECRET.encode()), ("salt", SECRET), ("key", SECRET),
    )),
]  # fmt: skip

OF_A_TABLE = [
    {"projection": {}}, {"projection": 3}, {"sensitivity": ""}, {"noise_sd": []}, {"delta": "0"},
    {"ledger": 0.5}, {"outcomes": "none"}, {"outcomes": {"outcome_range": 1}}, {"reasons": 3},
    {"n": "6"}, {"epsilon": 10**400}, {"mu": float("nan")}, {"scaling": 1}, {"protected": 1},
    {"reasons": [[]]},
]  # fmt: skip


def manifests(_folder):
    known = released_table().manifest.to_dict()
    return [known | change for change in OF_A_TABLE]


def encrypted(folder):
    data = released_table().save(folder / "whole.npz").read_bytes()
    says_so = data.replace(b"PK\1\2-\3-\0\0\0", b"PK\1\2-\3-\0\1\0")
    assert says_so != data
    return [says_so]


BEYOND = {"format": "privbo-answers-1", "table": "t", "answers": {"0": 10**400}}

EXAMPLES = {
    "spaces": (
        r"describes no search space|needs at least|than can be", lambda _: SPACES
    ),
    "federation settings": (r"no settings for|must be|needs", lambda _: OF_A_FEDERATION),
    "federation replies": (
        "an answer that this version does not know",
        lambda _: [
            *(("leave", greeting, as_json({"result": None})) for greeting in GREETINGS),
            *((call, GREETING, as_json(reply)) for call, reply in REPLIES),
        ],
    ),
    "invitations": ("is not an invitation", lambda _: IN_A_WRONG_PLACE),
    "vault handles": ("vault must be", lambda _: URLS),
    "agents' databases": ("never stored|holds no run", lambda _: STORED),
    "manifests": ("no manifest of a released table", manifests),
    "released tables, npz": ("is no released table", encrypted),
    "requests and answers": ("one finite outcome a row", lambda _: [(1, as_json(BEYOND))]),
}  # fmt: skip
"""To a parser what its error says, and the inputs."""


@pytest.mark.parametrize("name", EXAMPLES)
def test_what_once_went_wrong_is_refused_and_not_repeated(name, tmp_path):
    (parser,) = (one for one in PARSERS if one.name == name)
    said, made = EXAMPLES[name]
    with warnings.catch_warnings(), ExitStack() as ending:
        warnings.simplefilter("ignore")
        _, read = parser.prepare(Scene(tmp_path, ending))
        for value in made(tmp_path):
            with pytest.raises(parser.errors, match=said) as raised:
                read(value)
            shown = "".join(traceback.format_exception(raised.value))
            assert SECRET not in shown
            assert KEY not in shown


def test_a_step_far_beyond_the_range_leaves_one_value():
    space = Space({"a": Float(0.0, 1e-320, step=2.0**63)})
    assert space.decode(space.snap(np.array([0.7]))) == {"a": 0.0}
    assert not space.varies


def test_pages_without_end_are_not_asked_for_without_end():
    asked = []

    def page():
        asked.append(1)
        assert len(asked) < 100
        return as_json({"result": {"page": [], "more": True}})

    with wires.meeting(lambda: pretender(GREETING, page)):
        link = RemoteLink(wires.invitation(("nowhere.example", 1), 1, bytes(32)))
        with pytest.raises(FederationError, match="an answer that this version does not know"):
            link.broadcasts()


def test_a_schema_that_is_no_text_is_a_damaged_vault(tmp_path):
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
