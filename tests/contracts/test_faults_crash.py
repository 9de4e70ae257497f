"""SIGKILL at every point of a release: charged once, drawn once, published as stored."""

import json
import shutil
import signal
import tempfile
from collections import Counter
from pathlib import Path

import optuna
import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

from tests.leaks import Scanner
from tests.optuna_samplers.runs import rows, vault_facts
from tests.optuna_samplers.scenes import crashes
from tests.worker import child, ended, lines

TARGETS = {
    "value that completes a batch": ("value", "3"),
    "value, last": ("value", "7"),
    "gradient, first": ("gradient", "0"),
    "gradient, last": ("gradient", "1"),
    "comparison": ("comparison", "comparison"),
}
STEPS = {("gradient", "0"), ("gradient", "1"), ("comparison", "comparison")}
N_VALUES = dict.fromkeys(crashes.STEPWISE, (8, 9)) | dict.fromkeys(
    (crashes.from_outside, crashes.OfScores), (6,)
)
"""Of a whole run; the third point that is compared may be one of the other two."""
UNDONE = ("after draw", "after store", "before commit")
"""Points at which a draw has been made and nothing of it is kept."""
KEPT = ("after commit", "before publish", "after publish")


@pytest.fixture
def folder(tmp_path, study_tables):
    """Holds a study's file with Optuna's tables; the scenes make the rest."""
    return tmp_path


def draws(folder):
    return Counter(tuple(label) for label in lines(folder / "draws"))


def study_values(folder):
    """Value of each complete trial by the vault's name of it."""
    study = optuna.load_study(study_name="s", storage=f"sqlite:///{folder}/study.db")
    done = study.get_trials(states=(optuna.trial.TrialState.COMPLETE,))
    return {str(t.system_attrs.get("failed_trial", t.number)): t.value for t in done}


def study_draws(folder):
    """The draw that each trial shows beside its value, by the vault's name of it."""
    study = optuna.load_study(study_name="s", storage=f"sqlite:///{folder}/study.db")
    return {
        str(t.system_attrs.get("failed_trial", t.number)): t.user_attrs["privbo:release"]
        for t in study.trials
        if "privbo:release" in t.user_attrs
    }


def check_consistent(folder):
    """What must hold of the files at every moment; returns the vault's facts."""
    facts = vault_facts(folder / "vault.db")
    charged = Counter((kind, key) for kind, key, _ in facts["ledger"])
    assert set(charged.values()) <= {1}
    assert set(charged) == {*facts["releases"], *facts["drawn"]}
    assert len(facts["order"]) == len(set(facts["order"]))
    assert sum(mu**2 for *_, mu in facts["ledger"]) <= 1 + 1e-9
    for name, value in study_values(folder).items():
        assert facts["published"][name] == value
    for (kind, key), values in facts["releases"].items():
        if kind == "value":
            shown = {
                v
                for trial, _, _, _, state, v in facts["trials"]
                if key == trial and state == "done"
            }
            assert len(shown) == 1
            assert all(0 <= v <= 1 for v in shown) or shown == set(values)
    draws_shown = study_draws(folder)
    for name, drawn in draws_shown.items():
        assert facts["releases"]["value", name] == [drawn]
    return facts


def uncommitted(folder, facts):
    """A scanner for the outcomes of draws that no release holds."""
    scanner = Scanner()
    for kind, key, values in lines(folder / "outcomes"):
        if {**facts["drawn"], **facts["releases"]}.get((kind, key)) != values:
            for value in values:
                scanner.add_raw(f"{kind}/{key}", value)
    return scanner


def file_bytes(folder):
    return {p.name: p.read_bytes() for p in folder.iterdir() if ".db" in p.name}


def check_finished(folder, before, make=crashes.stepwise):
    """The run is complete, and what was committed before the crash is as it was."""
    facts = check_consistent(folder)
    of_trials = {(kind, key) for kind, key in facts["releases"] if kind == "value"}
    assert len(of_trials) in N_VALUES[make]
    assert {key for _, key in of_trials} <= set(facts["published"])
    assert set(facts["releases"]) - of_trials == (STEPS if make in crashes.STEPWISE else set())
    shown = json.loads((folder / "shown.json").read_text())
    for name, values in before["releases"].items():
        assert facts["releases"][name] == values
    assert facts["order"][: len(before["order"])] == before["order"]
    for name, number in before["published"].items():
        assert facts["published"][name] == number  # an estimate is made once
    assert facts["held"] == []
    assert shown["finished"]
    assert shown["protected"]
    assert shown["mu_spent"] <= 1 + 1e-9
    return shown | {"facts": facts}


ALWAYS = {
    "value that completes a batch": ("after draw", "after commit", "before publish"),
    "value, last": ("after commit",),
    "gradient, first": (*UNDONE[::2], "after charge", "after commit", "after publish"),
    "gradient, last": ("before commit",),
    "comparison": ("after draw", "after commit"),
    "from outside, 0": crashes.POINTS,
    "from outside, 5": (),
    "of_persons": ("after draw",),
    "of_blocks": ("after commit",),
    "scores, 0": ("after draw", "after commit"),
    "scores, 5": ("before commit", "after publish"),
}
"""The points of every run: all of them on values, of other releases those where more hangs on it.

The rest is soak: nothing of what keeps a release whole is DP-GIBO's own.
"""


RELEASES = {
    **{name: (*release, crashes.stepwise) for name, release in TARGETS.items()},
    **{f"from outside, {key}": ("value", key, crashes.from_outside) for key in "05"},
    **{f"scores, {key}": ("value", key, crashes.OfScores) for key in "05"},
    "of_persons": (*TARGETS["gradient, first"], crashes.of_persons),
    "of_blocks": (*TARGETS["gradient, first"], crashes.of_blocks),
}
CASES = [
    pytest.param(point, *release, id=f"{point}, {name}",
                 marks=() if point in ALWAYS[name] else pytest.mark.soak)
    for name, release in RELEASES.items() for point in crashes.POINTS
    if (point, release[2]) != ("before publish", crashes.OfScores)
]  # fmt: skip


@pytest.mark.slow
@pytest.mark.parametrize(("point", "kind", "key", "make"), CASES)
def test_killed_at_a_point_of_a_release(point, kind, key, make, folder):
    assert ended(child(crashes.crash, folder, point, kind, key, 0, make)) == -signal.SIGKILL
    before = check_consistent(folder)
    assert ((kind, key) in before["releases"]) == (point in KEPT)
    drawn = lines(folder / "outcomes")
    lost = uncommitted(folder, before)
    undone = UNDONE[:1] if make is crashes.OfScores else UNDONE  # it is drawn ahead
    assert bool(len(lost)) == (point in undone)
    assert lost.scan(file_bytes(folder)) == []

    assert ended(child(crashes.finish, folder, make)) == 0
    shown = check_finished(folder, before, make)
    assert make in crashes.STEPWISE or shown["mu_spent"] == pytest.approx(1)
    expected = Counter({name: 1 for name in shown["facts"]["releases"]})
    if point in undone:
        expected[kind, key] += 1
        assert lines(folder / "outcomes")[: len(drawn)] == drawn
    assert draws(folder) == expected
    assert lost.scan(file_bytes(folder)) == []

    # What follows the values of trials is committed before the study stores the last of them.
    zombie = point in ("after commit", "before publish") or (
        kind != "value" and point != "after publish"
    )
    assert len(shown["replayed"]) == zombie
    stored = [before["published"][str(n)] for n in shown["replayed"]]
    assert shown["replayed_values"] == stored


def test_control_the_scan_finds_committed_draws(folder):
    assert ended(child(crashes.finish, folder)) == 0
    scanner = uncommitted(folder, {"drawn": {}, "releases": {}})
    found = " ".join(scanner.scan(file_bytes(folder)))
    assert "vault.db: value/7" in found
    assert "study.db: value/7" in found
    assert "vault.db: comparison/comparison" in found
    assert "vault.db: gradient/1" in found
    released = vault_facts(folder / "vault.db")["order"]
    assert draws(folder) == Counter({n: 1 for n in released})
    charged = "SELECT count(*) FROM privbo_events WHERE kind = 'charge'"
    assert rows(folder / "vault.db", charged) == [(len(released),)]


@pytest.mark.parametrize("attribute", ["privbo:run", "privbo:guarantee"])
def test_killed_before_the_study_remembers_its_run(attribute, folder):
    """The run is in the vault by then, with nothing told of it: the study goes on all the same."""
    code = ended(child(crashes.crash_at_attribute, folder, attribute))
    assert code == -signal.SIGKILL
    before = check_consistent(folder)
    assert len(before["ledger"]) == (attribute == "privbo:guarantee")  # shown with a first value
    assert ended(child(crashes.finish, folder)) == 0
    check_finished(folder, before)


DEATHS = st.lists(
    st.tuples(
        st.sampled_from(crashes.POINTS),
        st.sampled_from(["value", "gradient", "comparison"]),
        st.integers(0, 1),
    ),
    min_size=2,
    max_size=3,
)


def few(n):
    """So many examples, as they are drawn: an example takes a second."""
    checks = list(HealthCheck)
    phases = [Phase.generate]
    return settings(max_examples=n, database=None, phases=phases, suppress_health_check=checks)


def _again_and_again(empty_study, deaths):
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        shutil.copy(empty_study, folder / "study.db")
        before = {"releases": {}, "order": []}
        undone = 0
        for point, kind, nth in deaths:
            code = ended(child(crashes.crash, folder, point, kind, None, nth))
            assert code in (0, -signal.SIGKILL)  # 0 where the run ended before the point
            undone += code != 0 and point in UNDONE
            after = check_consistent(folder)
            assert before["order"] == after["order"][: len(before["order"])]
            assert before["releases"].items() <= after["releases"].items()
            before = after
        assert ended(child(crashes.finish, folder)) == 0
        released = check_finished(folder, before)["facts"]["releases"]
        assert draws(folder).total() == len(released) + undone


@pytest.mark.slow
@few(1)
@given(deaths=DEATHS)
def test_killed_again_and_again(empty_study, deaths):
    _again_and_again(empty_study, deaths)


@pytest.mark.soak
@few(40)
@given(deaths=DEATHS)
def test_killed_again_and_again_for_long(empty_study, deaths):
    _again_and_again(empty_study, deaths)
