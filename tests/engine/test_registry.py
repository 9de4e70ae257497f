"""Entries of the registry: what they refuse, and how a process finds one that it was not told."""

from __future__ import annotations

import base64
import dataclasses
import json
import pickle
import subprocess
import sys
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pytest

from privbo_plugins.algorithms import registry
from privbo_plugins.algorithms.dp_gibo import GIBOConfig
from privbo_plugins.algorithms.duets import DUETSConfig
from privbo_plugins.algorithms.registry import CENTRAL, REWARD
from privbo_plugins.store.vault import open_vault
from tests import sixth

from .helpers import cube, open_session, run_session

ROOT = Path(__file__).parents[2]
PRODUCT = ("privbo_plugins", "optuna_samplers", "raytune_searchers")


@pytest.fixture(autouse=True)
def _as_delivered():
    """The registry without the sixth, and afterwards as it was."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(registry, "_ENTRIES", {e.name: e for e in registry._BUILT_IN})
        yield


# What is registered -----------------------------------------------------------------------------


def test_an_algorithm_is_registered_once_however_often_it_is_said():
    assert sixth.NAME not in registry.classes(CENTRAL)
    assert registry.register(sixth.ENTRY) == sixth.ENTRY
    assert registry.register(dataclasses.replace(sixth.ENTRY)) == sixth.ENTRY
    assert registry.classes(CENTRAL)[sixth.NAME] is sixth.Sixth
    assert len(registry.classes(CENTRAL)) == 3
    assert sixth.NAME not in registry.classes(REWARD)


def test_a_name_that_is_taken_is_refused_and_stays_with_whoever_has_it():
    thief = dataclasses.replace(sixth.ENTRY, name="dp-gibo")
    with pytest.raises(ValueError, match="another algorithm of the name 'dp-gibo'"):
        registry.register(thief)
    assert registry.classes(CENTRAL)["dp-gibo"].name == "dp-gibo"


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"name": "A Name"}, "lower case without blanks, got 'A Name'"),
        ({"name": ""}, "lower case without blanks"),
        ({"kind": "records"}, "kind must be one of central, .* got 'records'"),
        ({"algorithm": "tests.sixth"}, "algorithm must be written 'module:name'"),
        ({"config": ":SixthConfig"}, "config must be written 'module:name'"),
    ],
)
def test_an_entry_that_lacks_something_is_refused(wrong, message):
    with pytest.raises(ValueError, match=message):
        dataclasses.replace(sixth.ENTRY, **wrong)


def test_a_place_that_holds_nothing_says_where_it_was_looked_for():
    lost = dataclasses.replace(sixth.ENTRY, name="lost", algorithm="tests.sixth:Seventh")
    with pytest.raises(ImportError, match=r"tests\.sixth has no 'Seventh'"):
        lost.load_algorithm()


# Whose settings are whose -----------------------------------------------------------------------


def test_settings_that_say_nothing_of_the_kind_are_refused():
    @dataclasses.dataclass(frozen=True)
    class Unknown(sixth.SixthConfig):
        algorithm: ClassVar[str] = "nobody"
        registered_at: ClassVar[Any] = None

    class Posing(Unknown):
        algorithm: ClassVar[str] = "dp-gibo"

    class Rewarded(Unknown):
        algorithm: ClassVar[str] = "duets"

    with pytest.raises(ValueError, match="No algorithm of the name 'nobody' is registered"):
        registry.entry_of(Unknown(1.0, 3))
    with pytest.raises(ValueError, match=r"Posing claims .* dp-gibo, .* of class GIBOConfig"):
        registry.entry_of(Posing(1.0, 3))
    with pytest.raises(ValueError, match="kind distributed, which does not tune on per-record"):
        registry.entry_of(Rewarded(1.0, 3))
    with pytest.raises(TypeError, match="DUETSConfig names no algorithm"):
        registry.entry_of(DUETSConfig(n_agents=2))


def test_an_entry_that_a_process_cannot_find_is_an_error_that_says_so():
    """Such as of an algorithm that was written into a script, in a worker."""

    class Scripted(sixth.SixthConfig):
        algorithm: ClassVar[str] = "scripted"
        registered_at: ClassVar[str] = "__main__:NOWHERE"

    class Absent(Scripted):
        registered_at: ClassVar[str] = "no_such_package.algorithms:ENTRY"

    for kind in (Scripted, Absent):
        with pytest.raises(
            ValueError, match=f"entry of scripted is not at '{kind.registered_at}'"
        ):
            registry.entry_of(kind(1.0, 3))


def test_a_run_of_one_algorithm_is_not_gone_on_with_by_another():
    vault = open_vault()
    open_session(sixth.SixthConfig(1.0, 3), cube(1), vault=vault)
    with pytest.raises(ValueError, match="started with other settings"):
        open_session(GIBOConfig(1.0), cube(1), vault=vault)


# Other processes --------------------------------------------------------------------------------

_ELSEWHERE = """
import base64, json, pickle, sys
before = [m for m in sys.modules if m.startswith("tests")]
config = pickle.loads(base64.b64decode(sys.argv[1]))
from privbo_plugins.algorithms import registry
known = sorted(entry.name for entry in registry.entries())
from privbo_plugins.sessions.records import Session
from privbo_plugins.spaces import Float, Space
from privbo_plugins.store.vault import open_vault
session = Session.open(open_vault(sys.argv[2]), "run", config, maximize=False)
session.set_space(Space({"x00": Float(0.0, 1.0)}))
ours = [m for m in sys.modules if m.startswith("privbo_plugins.algorithms.")]
print(json.dumps([before, known, session.finished, session.recommendation(), ours]))
"""


def test_a_process_that_was_sent_nothing_but_settings_finds_their_algorithm(tmp_path):
    config, url = sixth.SixthConfig(1.0, 3), f"sqlite:///{tmp_path}/vault.db"
    session = open_session(config, cube(1), vault=open_vault(url))
    run_session(session, lambda x: np.full(20, 0.5))
    sent = base64.b64encode(pickle.dumps(config)).decode()
    done = subprocess.run(
        [sys.executable, "-c", _ELSEWHERE, sent, url],
        cwd=ROOT, capture_output=True, text=True, check=True, timeout=300,
    )  # fmt: skip
    before, known, finished, recommended, ours = json.loads(done.stdout)
    assert before == []
    assert sixth.NAME not in known
    assert finished
    assert recommended == session.recommendation()
    papers = {name.split(".")[2] for name in ours}
    assert papers == {"protocols", "registry"}, "another paper's algorithm was imported"


# What the product knows of it -------------------------------------------------------------------


def _modules():
    return [path for package in PRODUCT for path in sorted((ROOT / package).rglob("*.py"))]


def test_no_module_of_the_product_names_the_sixth():
    naming = [path for path in _modules() if sixth.NAME in path.read_text().lower()]
    assert len(_modules()) > 100
    assert naming == []
