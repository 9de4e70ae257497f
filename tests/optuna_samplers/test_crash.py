"""SIGKILL at every point of a release: charged once, drawn once, published as stored."""

from __future__ import annotations

import json
import multiprocessing
import signal
import tempfile
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import crash_worker
import optuna
import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st
from runs import rows, vault_facts

from tests.leaks import Scanner

_CONTEXT = multiprocessing.get_context("forkserver")
_CONTEXT.set_forkserver_preload(["optuna", "optuna_samplers", "opendp.measurements"])

TARGETS = {
    "value that completes a batch": ("value", "3"),
    "value, last": ("value", "final"),
    "gradient, first": ("gradient", "0"),
    "gradient, last": ("gradient", "1"),
}
N_RELEASES = 7 + 2
UNDONE = ("after draw", "after store", "before commit")
"""Points at which a draw has been made and nothing of it is kept."""
KEPT = ("after commit", "before publish", "after publish")


def in_child(work: Callable[..., None], *args: Any) -> int | None:
    process = _CONTEXT.Process(target=work, args=args)
    process.start()
    process.join(120)
    return process.exitcode


def lines(path: Path) -> list[Any]:
    return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []


def draws(folder: Path) -> Counter[tuple[str, str]]:
    return Counter(tuple(label) for label in lines(folder / "draws"))


def study_values(folder: Path) -> dict[str, float]:
    """Value of each complete trial by the vault's name of it."""
    study = optuna.load_study(study_name="s", storage=f"sqlite:///{folder}/study.db")
    done = study.get_trials(states=(optuna.trial.TrialState.COMPLETE,))
    return {str(t.system_attrs.get("failed_trial", t.number)): t.value for t in done}


def check_consistent(folder: Path) -> dict[str, Any]:
    """What must hold of the files at every moment; returns the vault's facts."""
    facts = vault_facts(folder / "vault.db")
    charged = Counter((kind, key) for kind, key, _ in facts["ledger"])
    assert set(charged.values()) <= {1}
    assert set(charged) == set(facts["releases"])
    assert len(facts["order"]) == len(set(facts["order"]))
    assert sum(mu**2 for *_, mu in facts["ledger"]) <= 1 + 1e-9
    for name, value in study_values(folder).items():
        assert facts["published"][name] == value
    for (kind, key), values in facts["releases"].items():
        if kind == "value":
            shown = {
                v
                for trial, role, _, _, state, v in facts["trials"]
                if key in (trial, role) and state == "done"
            }
            assert shown == set(values)
    return facts


def uncommitted(folder: Path, facts: dict[str, Any]) -> Scanner:
    """A scanner for the outcomes of draws that no release holds."""
    scanner = Scanner()
    for kind, key, values in lines(folder / "outcomes"):
        if facts["releases"].get((kind, key)) != values:
            for value in values:
                scanner.add_raw(f"{kind}/{key}", value)
    return scanner


def file_bytes(folder: Path) -> dict[str, bytes]:
    return {p.name: p.read_bytes() for p in folder.iterdir() if ".db" in p.name}


def check_finished(folder: Path, before: dict[str, Any]) -> dict[str, Any]:
    """The run is complete, and what was committed before the crash is as it was."""
    facts = check_consistent(folder)
    shown = json.loads((folder / "shown.json").read_text())
    for name, values in before["releases"].items():
        assert facts["releases"][name] == values
    assert facts["order"][: len(before["order"])] == before["order"]
    assert facts["held"] == []
    assert shown["finished"]
    assert shown["protected"]
    assert shown["mu_spent"] <= 1 + 1e-9
    return shown | {"facts": facts}


CASES = [
    pytest.param(point, *release, id=f"{point}, {name}")
    for name, release in TARGETS.items()
    for point in crash_worker.POINTS
    if not name.endswith(", last") or point in ("after charge", "before commit", "after commit")
]


@pytest.mark.slow
@pytest.mark.parametrize(("point", "kind", "key"), CASES)
def test_killed_at_a_point_of_a_release(point: str, kind: str, key: str, tmp_path: Path) -> None:
    assert in_child(crash_worker.crash, tmp_path, point, kind, key) == -signal.SIGKILL
    before = check_consistent(tmp_path)
    assert ((kind, key) in before["releases"]) == (point in KEPT)
    drawn = lines(tmp_path / "outcomes")
    lost = uncommitted(tmp_path, before)
    assert bool(len(lost)) == (point in UNDONE)
    assert lost.scan(file_bytes(tmp_path)) == []

    assert in_child(crash_worker.finish, tmp_path) == 0
    shown = check_finished(tmp_path, before)
    assert len(shown["facts"]["releases"]) == N_RELEASES
    expected = Counter({name: 1 for name in shown["facts"]["releases"]})
    if point in UNDONE:
        expected[kind, key] += 1
        assert lines(tmp_path / "outcomes")[: len(drawn)] == drawn
    assert draws(tmp_path) == expected
    assert lost.scan(file_bytes(tmp_path)) == []

    # A gradient comes after its last trial's value was committed and before the study stores it.
    zombie = point in ("after commit", "before publish") or (
        kind == "gradient" and point != "after publish"
    )
    assert len(shown["replayed"]) == zombie
    stored = [before["published"][str(n)] for n in shown["replayed"]]
    assert shown["replayed_values"] == stored


def test_control_the_scan_finds_committed_draws(tmp_path: Path) -> None:
    assert in_child(crash_worker.finish, tmp_path) == 0
    scanner = uncommitted(tmp_path, {"releases": {}})
    found = " ".join(scanner.scan(file_bytes(tmp_path)))
    assert "vault.db: value/final" in found
    assert "study.db: value/final" in found
    assert "vault.db: gradient/1" in found
    assert draws(tmp_path) == Counter({n: 1 for n in vault_facts(tmp_path / "vault.db")["order"]})
    assert rows(tmp_path / "vault.db", "SELECT count(*) FROM privbo_ledger") == [(N_RELEASES,)]


@pytest.mark.parametrize("attribute", ["privbo:run", "privbo:guarantee"])
def test_killed_before_the_study_remembers_its_run(attribute: str, tmp_path: Path) -> None:
    """The run is in the vault by then, with nothing told of it: the study goes on all the same."""
    code = in_child(crash_worker.crash_at_attribute, tmp_path, attribute)
    assert code == -signal.SIGKILL
    before = check_consistent(tmp_path)
    assert len(before["ledger"]) == (attribute == "privbo:guarantee")  # shown with a first value
    assert in_child(crash_worker.finish, tmp_path) == 0
    assert len(check_finished(tmp_path, before)["facts"]["releases"]) == N_RELEASES


@pytest.mark.slow
@settings(
    max_examples=4,
    deadline=None,
    database=None,
    phases=[Phase.generate],
    suppress_health_check=list(HealthCheck),
)
@given(
    st.lists(
        st.tuples(
            st.sampled_from(crash_worker.POINTS),
            st.sampled_from(["value", "gradient"]),
            st.integers(0, 1),
        ),
        min_size=2,
        max_size=3,
    )
)
def test_killed_again_and_again(deaths: list[tuple[str, str, int]]) -> None:
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        before: dict[str, Any] = {"releases": {}, "order": []}
        undone = 0
        for point, kind, nth in deaths:
            code = in_child(crash_worker.crash, folder, point, kind, None, nth)
            assert code in (0, -signal.SIGKILL)  # 0 where the run ended before the point
            undone += code != 0 and point in UNDONE
            after = check_consistent(folder)
            assert before["order"] == after["order"][: len(before["order"])]
            assert before["releases"].items() <= after["releases"].items()
            before = after
        assert in_child(crash_worker.finish, folder) == 0
        shown = check_finished(folder, before)
        assert len(shown["facts"]["releases"]) == N_RELEASES
        assert draws(folder).total() == N_RELEASES + undone
