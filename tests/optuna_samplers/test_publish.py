"""``publish``: note, mark and pictures in a study, kept up to date and never in the way."""

import json
import sys
import warnings

import numpy as np
import optuna
import plotly.graph_objects as go
import pytest

from optuna_samplers import DPGIBOSampler, _publish, private_objective
from privbo_plugins.errors import UtilityWarning

RECORDS = np.random.default_rng(0).normal(0.7, 0.1, size=400)


def losses(trial):
    return (trial.suggest_float("x", 0, 1) - RECORDS) ** 2


def begun(n_trials=6):
    sampler = DPGIBOSampler(mu=1.0, n_trials=20, seed=0)
    study = optuna.create_study(sampler=sampler)
    if n_trials:
        study.optimize(sampler.private(losses), n_trials=n_trials)
    return study, sampler


def attrs_of(study):
    return dict(study._storage.get_study_system_attrs(study._study_id))


def note_of(study):
    return str(pytest.importorskip("optuna_dashboard").get_note(study))


def marked(study):
    found = attrs_of(study)
    ids = [(t.number, t._trial_id) for t in study.trials]
    return [n for n, i in ids if _publish.MARK in found.get(f"dashboard:{i}:note_str:0", "")]


def test_the_dashboard_reads_what_is_written_without_it(monkeypatch):
    study, sampler = begun()
    with monkeypatch.context() as patch:
        patch.setitem(sys.modules, "optuna_dashboard", None)
        patch.setitem(sys.modules, "plotly", None)
        sampler.publish(study)
    text = note_of(study)
    assert text.startswith("**What the values are.** Each is an estimate")
    assert f"| x | {sampler.recommend(study)['x']:.4g} |" in text
    assert str(RECORDS.mean()) not in text
    reader = pytest.importorskip("optuna_dashboard._custom_plot_data")
    shown = reader.get_plotly_graph_objects(attrs_of(study))
    assert set(shown) == {
        "privbo-released-values",
        "privbo-path-of-the-recommendation",
        "privbo-budget-spent",
    }
    assert '"error_y"' in shown["privbo-released-values"]


def test_what_has_not_changed_is_not_written(monkeypatch):
    study, sampler = begun()
    sampler.publish(study)
    written = []
    monkeypatch.setattr(
        study._storage, "set_study_system_attr", lambda _, name, value: written.append(name)
    )
    sampler.publish(study)
    assert written == []


@pytest.mark.parametrize("edited", ["mine", "{}\n\nmine", "mine {}"])
def test_a_note_of_the_users_own_is_never_overwritten(edited):
    board = pytest.importorskip("optuna_dashboard")
    study, sampler = begun()
    sampler.publish(study)
    theirs = edited.format(note_of(study))
    board.save_note(study, theirs)
    study.optimize(sampler.private(losses), n_trials=2)
    sampler.publish(study)
    assert note_of(study) == theirs


def long_losses(trial):
    for i in range(20):
        trial.suggest_float(f"a_parameter_with_a_long_name_{i:02d}", 0, 1)
    return losses(trial)


def cut_off_after(n_writes, study, publish):
    """Publishes in a worker that ends after some writes; tells whether it came to that."""
    left, write = iter(range(n_writes)), study._storage.set_study_system_attr

    def write_or_end(*args):
        if next(left, None) is None:
            raise KeyboardInterrupt
        write(*args)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(study._storage, "set_study_system_attr", write_or_end)
        try:
            publish(study)
        except KeyboardInterrupt:
            return True
    return False


def named_of(study, sampler):
    return [note for note in sampler.guarantee(study).notes if "did not write" in note]


@pytest.mark.parametrize("over", ["nothing", "its own", "its own, saved by the dashboard"])
def test_a_worker_that_ends_after_any_write_leaves_nothing_of_others(over, monkeypatch):
    """The note is longer than the parts that the dashboard makes of one.

    What it has saved itself, and a picture in several parts, may be named until the next call.
    """
    board = pytest.importorskip("optuna_dashboard")
    reader = pytest.importorskip("optuna_dashboard._custom_plot_data")
    if "dashboard" in over:
        monkeypatch.setattr(_publish, "_PART", 300)
    sampler = DPGIBOSampler(mu=1.0, n_trials=60, seed=0)
    study = optuna.create_study(sampler=sampler)
    study.optimize(sampler.private(long_losses), n_trials=2)
    for number in (1, 0)[over == "nothing" :]:
        params = study.trials[number].params
        monkeypatch.setattr(sampler, "recommend", lambda _, params=params: dict(params))
        if number == 1:
            sampler.publish(study)
            if "dashboard" in over:
                board.save_note(study, note_of(study))
    held, before = study._storage._studies[study._study_id], attrs_of(study)
    for n_writes in range(99):
        held.system_attrs = dict(before)
        cut = cut_off_after(n_writes, study, sampler.publish)
        assert "dashboard" in over or named_of(study, sampler) == []
        assert len(note_of(study)) > 2045 or over == "nothing"  # and the dashboard can read it
        sampler.publish(study)
        assert named_of(study, sampler) == []
        assert "Trial 0 was run there" in note_of(study)
        assert note_of(study).count("Kept up to date") == 1
        shown = reader.get_plotly_graph_objects(attrs_of(study))
        assert all("data" in json.loads(picture) for picture in shown.values())
        if not cut:
            break
    assert n_writes > 2


@pytest.mark.parametrize(
    ("name", "value"),
    {
        "dashboard:plot_data:privbo-mine:0": "raw losses",
        "dashboard:plot_data:privbo-released-values:0": "raw losses",
        "dashboard:plot_data:privbo-released-values:1": "raw losses",
        "dashboard:plot_data:privbo-released-values:9": "raw losses",
        "dashboard:note_str:9": "raw losses",
        "dashboard:note_ver": "raw losses",
        "dashboard:9:note_str:0": "raw losses",
        "dashboard:raw": "raw losses",
    }.items(),
)
def test_whatever_is_not_as_it_is_written_here_is_of_others(name, value):
    study, sampler = begun()
    sampler.publish(study)
    assert named_of(study, sampler) == []
    study._storage.set_study_system_attr(study._study_id, name, value)
    assert name in " ".join(named_of(study, sampler))


def test_the_note_is_written_anew_when_more_is_known_and_leaves_no_rest():
    study, sampler = begun()
    sampler.publish(study)
    before = note_of(study)
    study.optimize(sampler.private(losses), n_trials=2)
    sampler.publish(study)
    assert note_of(study) != before
    assert "at most mu = 1, whatever the run releases" in note_of(study)
    assert note_of(study).count("Kept up to date") == 1


def test_the_mark_moves_with_the_recommendation(monkeypatch):
    study, sampler = begun()
    for number in (3, 1):
        params = study.trials[number].params
        monkeypatch.setattr(sampler, "recommend", lambda _, params=params: dict(params))
        sampler.publish(study)
        assert marked(study) == [number]
        assert f"Trial {number} was run there" in note_of(study)
    monkeypatch.setattr(sampler, "recommend", lambda _: {"x": 0.123})
    sampler.publish(study)
    assert marked(study) == []
    assert "No trial was run there" in note_of(study)


def test_the_mark_leaves_a_note_of_the_users_own():
    board = pytest.importorskip("optuna_dashboard")
    study, sampler = begun(20)
    last = study.trials[-1]
    trial = optuna.Trial(study, last._trial_id)
    board.save_note(trial, "mine")
    sampler.publish(study)
    assert board.get_note(trial) == "mine"


def test_what_others_show_on_the_dashboard_is_named_in_the_guarantee():
    board = pytest.importorskip("optuna_dashboard")
    study, sampler = begun()
    sampler.publish(study)
    assert "not cover" not in " ".join(sampler.guarantee(study).notes)
    trial = optuna.Trial(study, study.trials[0]._trial_id)
    board.save_note(trial, str(RECORDS[:3]))
    board.save_plotly_graph_object(study, go.Figure(), graph_object_id="raw")
    (note,) = [n for n in sampler.guarantee(study).notes if "did not write" in n]
    assert f"dashboard:{trial._trial_id}:note_str:0" in note
    assert "dashboard:plot_data:raw:0" in note
    board.save_note(study, str(RECORDS[:3]))
    (note,) = [n for n in sampler.guarantee(study).notes if "did not write" in n]
    assert "dashboard:note_str:0" in note


def test_as_a_callback_it_waits_and_shows_the_end(monkeypatch):
    """The clock stands still after a call that took a second, so that only the end is due."""
    ticks = iter([0.0, 0.0, 1.0])
    monkeypatch.setattr(_publish, "clock", lambda: next(ticks, 1.5))
    study, sampler = begun(0)
    seen = []

    def look(study, trial):
        seen.append(note_of(study))

    study.optimize(sampler.private(losses), callbacks=[sampler.publish, look])
    assert len(seen) == len(study.trials)
    assert len(set(seen)) == 2
    sampler.publish(study)
    assert note_of(study) == seen[-1]


def test_a_failure_of_the_callback_is_one_warning_and_no_failed_trial(monkeypatch):
    def broken(*_):
        raise RuntimeError("secret 0.7123")

    monkeypatch.setattr("optuna_samplers._sampler.publish", broken)
    study, sampler = begun(0)
    with pytest.warns(UtilityWarning, match="not up to date \\(RuntimeError\\)") as caught:
        study.optimize(sampler.private(losses), n_trials=4, callbacks=[sampler.publish])
    assert len(caught) == 1
    assert "0.7123" not in str(caught[0].message)
    assert all(trial.state.name == "COMPLETE" for trial in study.trials)
    with pytest.raises(RuntimeError):
        sampler.publish(study)


def test_threads_leave_whole_pictures():
    reader = pytest.importorskip("optuna_dashboard._custom_plot_data")
    study, sampler = begun(0)
    study.optimize(sampler.private(losses), n_jobs=4, callbacks=[sampler.publish])
    shown = reader.get_plotly_graph_objects(attrs_of(study))
    assert len(shown) == 3
    assert all("data" in json.loads(picture) for picture in shown.values())
    shown_last = note_of(study)
    sampler.publish(study)
    assert note_of(study) == shown_last


def test_an_unprotected_study_says_so_first():
    study, sampler = begun(0)
    with warnings.catch_warnings(action="ignore"):
        study.optimize(lambda trial: trial.suggest_float("x", 0, 1), n_trials=3)
        sampler.publish(study)
    assert note_of(study).startswith("**What the values are.** They are **not** all private")


def test_under_any_sampler_the_best_value_is_called_lucky():
    private = private_objective(losses, mu=1, n_trials=12, seed=0)
    study = optuna.create_study(sampler=optuna.samplers.TPESampler(seed=0))
    study.optimize(private, callbacks=[private.publish])
    assert "*luckiest* draw" in note_of(study)
    assert "at most mu = 1, whatever the run releases" in note_of(study)


# Every system -----------------------------------------------------------------------------------

LUCKY = "*luckiest* draw"
REWARDS = {"privbo-released-rewards", "privbo-settings-that-users-were-asked"}

SHOWN = {
    "DP-GIBO": (
        "Each is an estimate",
        {"privbo-released-values", "privbo-path-of-the-recommendation", "privbo-budget-spent"},
    ),
    "LDP GP-UCB": (LUCKY, REWARDS),
    "DUETS": (LUCKY, {*REWARDS, "privbo-communication", "privbo-active-set"}),
    "PO-GP-UCB": ("*luckiest* answer", {"privbo-answers"}),
    "DP-FTS-DE": (
        "exact and this agent's own secret",
        {"privbo-what-each-round-has-broadcast", "privbo-budget-by-round"},
    ),
}


@pytest.mark.parametrize("name", SHOWN)
def test_every_system_says_what_its_values_are_and_shows_its_pictures(name, tmp_path):
    from tests.contracts.optuna_subjects import SUBJECTS, Ground, go_on

    reader = pytest.importorskip("optuna_dashboard._custom_plot_data")
    subject = SUBJECTS[name](Ground(tmp_path))
    study = optuna.create_study(sampler=subject.sampler, direction=subject.direction)
    with warnings.catch_warnings(action="ignore"):
        go_on(study, subject)
        subject.sampler.publish(study)
        recommended = subject.sampler.recommend(study)
    said, pictures = SHOWN[name]
    text = note_of(study)
    assert said in text.partition("### Recommendation")[0]
    for parameter, value in recommended.items():
        assert f"| {parameter} | {value:.4g} |" in text
    assert str(subject.guarantee(study).statement().sentence)[:20] in text
    assert set(reader.get_plotly_graph_objects(attrs_of(study))) == pictures
    at = [t.number for t in study.trials if t.params == recommended]
    assert set(marked(study)) <= set(at)
    assert len(marked(study)) == bool(at)
    subject.close()


def test_names_and_values_from_outside_are_no_markup_in_a_note():
    """A table's bars, HTML and links, in a name and in a choice; long ones are cut."""
    name, choice = "x | <img src=x>", "[here](http://x.example)" + "y" * 99
    study, sampler = begun(0)

    def objective(trial):
        return (trial.suggest_float(name, 0, 1) - RECORDS) ** 2 + len(
            trial.suggest_categorical("kind", [choice])
        )

    with warnings.catch_warnings(action="ignore"):
        study.optimize(sampler.private(objective), n_trials=4)
    sampler.publish(study)
    text = note_of(study)
    assert r"| x \| &lt;img src=x&gt; |" in text
    assert r"\[here\](http:\//x.example)" in text
    assert "y" * 40 not in text
