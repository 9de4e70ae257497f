"""Agents as concurrent trials: Tune's hooks, what is kept, and three real experiments."""

import json
import math
from collections import Counter

import numpy as np
import pytest
import ray.cloudpickle as cloudpickle
from ray import tune

from privbo_plugins.algorithms.duets import DUETS, DUETSConfig
from privbo_plugins.algorithms.protocols import ATTEMPTS
from privbo_plugins.errors import PrivacyWarning
from privbo_plugins.shown import TrialRecord
from raytune_searchers import DUETSSearch
from raytune_searchers._space import to_space
from raytune_searchers.duets import TAG
from tests.raytune_searchers.hosts import evaluation, finish

pytestmark = pytest.mark.filterwarnings("ignore:Nothing is protected. epsilon = infinity")

SPACE = {"x": tune.uniform(0.0, 1.0), "y": tune.uniform(0.0, 1.0)}

MIXED = {
    "lr": tune.loguniform(1e-4, 1e-1),
    "net": {"layers": tune.randint(1, 5), "act": tune.choice(["relu", "tanh", None]), "c": 5},
    "units": tune.qlograndint(8, 64, 8),
    "k": "v",
}

POINTS = 128
"""Of the discretisation: enough for all that is tested here."""


def score(config):
    """Largest at (0.3, 0.7)."""
    return 1.0 - 2.0 * math.hypot(config["x"] - 0.3, config["y"] - 0.7)


def mixed_score(config):
    """Largest at lr = 0.01, 2 layers, tanh."""
    off = abs(math.log10(config["lr"]) + 2) + abs(config["net"]["layers"] - 2)
    return -off - (config["net"]["act"] != "tanh") - config["units"] / 64


def search_of(n_agents=3, *, space=SPACE, **settings):
    own = {"metric": "value", "mode": "max", "seed": 1, "discretisation": POINTS}
    search = DUETSSearch(n_agents, **(own | settings))
    if space is not None:
        assert search.set_search_properties(None, None, dict(space))
    return search


def config_of(search, trial):
    config = search.suggest(trial)
    assert isinstance(config, dict), f"suggests {config}"
    return config


def run(search, n, objective=score, prefix="t"):
    """Trials one after another."""
    configs = []
    for i in range(n):
        configs.append(config_of(search, f"{prefix}{i}"))
        finish(search, f"{prefix}{i}", objective(configs[-1]))
    return configs


def known(search):
    """What all agents know: it must not depend on what happened to a trial."""
    duets = search._duets()
    return (
        duets.epoch, duets.public_state.active.digest, duets.communication.to_dict(),
        duets.open_slots(), search.history(),
    )  # fmt: skip


def draws(search):
    """Draws that have been told, and how often."""
    told = (
        evaluation for evaluation, _ in search._duets().evaluations if evaluation.draw is not None
    )
    return Counter((evaluation.epoch, evaluation.agent, evaluation.draw) for evaluation in told)


def draw_of(search, trial):
    known = search._evaluations[trial]
    return None if known.draw is None else (known.epoch, known.agent, known.draw)


def restored(search, folder):
    """A blank search that has read what another one saved."""
    search.save(str(folder / "state.pkl"))
    blank = DUETSSearch()
    blank.restore(str(folder / "state.pkl"))
    return blank


# Who evaluates what ---------------------------------------------------------------------------


@pytest.mark.parametrize("mode", ["max", "min"])
@pytest.mark.parametrize(("space", "objective"), [(SPACE, score), (MIXED, mixed_score)])
def test_a_search_learns_what_the_algorithm_does(mode, space, objective):
    sign = 1.0 if mode == "max" else -1.0
    search = search_of(4, space=space, mode=mode, n_trials=24, seed=5)
    found = to_space(space)
    config = DUETSConfig(n_agents=4, n_trials=24, discretisation=POINTS)
    alone = DUETS(config, found.space, maximize=mode == "max", seed=5)
    for i in range(30):  # beyond the horizon too
        evaluation = alone.ask(i)
        suggested = config_of(search, f"t{i}")
        assert suggested == found.suggestion(evaluation.x)
        value = sign * objective(suggested)
        finish(search, f"t{i}", value)
        alone.tell(evaluation, value)
    assert search._duets().state_dict() == alone.state_dict()
    assert known(search)[1] == alone.public_state.active.digest
    assert alone.status().items() <= search.status().items()
    assert search.history() == alone.history
    assert json.loads(json.dumps(search.status()))["agents"] == 4
    best = search.recommend()
    assert search.recommend(space) == best
    assert objective(best) > np.median([sign * value for _, value in alone.evaluations[:8]])
    if space is MIXED:
        assert type(best["net"]["layers"]) is int
        assert best["net"]["c"] == 5
        assert best["k"] == "v"
        assert best["units"] % 8 == 0


def test_points_come_first_and_take_no_draw():
    points = [{"x": 0.3, "y": 0.7}, {"x": 0.5, "y": 0.25}]
    search = search_of(2, points_to_evaluate=points)
    for i, point in enumerate(points):
        assert config_of(search, f"p{i}") == pytest.approx(point)
        assert draw_of(search, f"p{i}") is None
        finish(search, f"p{i}", score(point))
    plain = search_of(2)
    assert run(search, 4) == run(plain, 4)
    assert known(search) == known(plain)
    assert len(search._duets().evaluations) == 6


# Trials that fail -------------------------------------------------------------------------------


@pytest.mark.parametrize("how", ["error", "nan", "nothing"])
def test_the_draw_of_a_failed_trial_is_evaluated_again_at_the_same_point(how):
    search, plain = search_of(3), search_of(3)
    configs = {trial: config_of(search, trial) for trial in "abc"}
    draw = draw_of(search, "b")
    if how == "nan":
        finish(search, "b", math.nan)
    else:
        search.on_trial_complete("b", None, error=how == "error")
    assert config_of(search, "d") == configs["b"]
    assert draw_of(search, "d") == draw
    assert config_of(search, "e") not in configs.values()
    for trial in "acde":
        finish(search, trial, score(config_of(search, trial)))
    run(search, 2)
    run(plain, 6)
    assert known(search) == known(plain)
    assert set(draws(search).values()) == {1}


def fail(search, trial):
    config_of(search, trial)
    search.on_trial_complete(trial, error=True)


def next_draw(search):
    """The draw that a further trial would get."""
    probe = cloudpickle.loads(cloudpickle.dumps(search))
    config_of(probe, "probe")
    return draw_of(probe, "probe")


def test_what_was_given_up_is_tried_again_by_another_fit():
    search = search_of(1, value_range=(-3.0, 1.0))
    for i in range(ATTEMPTS):
        fail(search, f"t{i}")
    with pytest.raises(ValueError, match="nothing to recommend yet"):
        search.recommend()
    assert next_draw(search) == (1, 0, 1)
    search.set_search_properties(None, "max", dict(SPACE))
    assert next_draw(search) == (1, 0, 0)


@pytest.mark.parametrize("entered", [True, False])
def test_a_trial_that_the_ledger_has_refused_says_nothing_of_its_point(entered, monkeypatch):
    search = search_of(1, epsilon=1.0, value_range=(-3.0, 1.0))

    def answer(operation, *_):
        head = (0, "")
        record = TrialRecord(None, entered, frozenset(), head)
        return {"record": record, "head": head}.get(operation)

    monkeypatch.setattr(search, "_open", lambda: None)
    monkeypatch.setattr(search, "_call", answer)
    for i in range(ATTEMPTS):
        fail(search, f"t{i}")
    assert next_draw(search) == ((1, 0, 1) if entered else (1, 0, 0))


def test_a_failed_trial_that_is_run_again_has_its_draw():
    search = search_of(2)
    for trial in "abcd":
        config_of(search, trial)
    draw = draw_of(search, "b")
    search.on_trial_complete("b", error=True)
    finish(search, "b", 0.5)  # resume_errored: the same trial, which asks for nothing
    assert draws(search) == {draw: 1}


# Saved and restored -----------------------------------------------------------------------------


def interrupted(search):
    """A search in the midst of its second epoch, with three draws out; their configs."""
    run(search, 8)
    out = {trial: config_of(search, trial) for trial in ("o1", "o2", "o3")}
    run(search, 2, prefix="u")
    return out


def go_on(search, epoch=4):
    """Runs alone until an epoch begins."""
    for i in range(200):
        if search.status()["epoch"] >= epoch:
            return
        run(search, 1, prefix=f"g{i}-")
    raise AssertionError


def test_draws_that_a_restore_dropped_are_evaluated_again_after_the_others(tmp_path):
    plain, search = search_of(4), search_of(4)
    go_on(plain)
    out = interrupted(search)
    dropped = {draw_of(search, trial) for trial in out}
    again = restored(search, tmp_path)
    again.on_trial_result("o1", {"training_iteration": 1})  # this one goes on
    kept = draw_of(again, "o1")
    fresh = len(set(again._duets().open_slots()) - dropped)
    trials = [f"n{i}" for i in range(fresh + 4)]
    configs = {trial: config_of(again, trial) for trial in trials}
    taken = [draw_of(again, trial) for trial in trials]
    assert not set(taken[:fresh]) & dropped
    assert set(taken[fresh : fresh + 2]) == dropped - {kept}
    assert taken[fresh + 2 :] == [None, None]
    assert configs[f"n{fresh}"] in (out["o2"], out["o3"])
    for trial, config in (configs | {"o1": out["o1"]}).items():
        finish(again, trial, score(config))
    assert again.status()["epoch"] == 3
    finish(again, "o2", -9.0)  # it had not been dropped after all, and comes too late
    go_on(again)
    assert known(again) == known(plain)


# What is shown ----------------------------------------------------------------------------------


def test_tags_say_what_a_trial_is_and_nothing_else_changes(tmp_path):
    search, plain = search_of(2, tags=True), search_of(2)
    for i in range(4):
        config = config_of(search, f"t{i}")
        tag = config.pop(TAG)
        assert config == config_of(plain, f"t{i}")
        assert tag == {"agent": i % 2, "epoch": 1, "active_share": 1.0, "reals": 0.0}
    spare = {"active_share": 1.0, "reals": 0.0}
    assert config_of(search, "spare")[TAG] == spare
    for i in range(4):
        finish(search, f"t{i}", score(config_of(search, f"t{i}")))
    assert search.status()["epoch"] == 2
    assert config_of(search, "spare")[TAG] == spare  # as it was when the trial began
    tag = config_of(search, "u")[TAG]
    assert json.loads(json.dumps(tag)) == tag
    last = search.history()[-1]
    assert tag == {"agent": 0, "epoch": 2, "active_share": last.share, "reals": last.per_agent}
    assert tag["reals"] > 0
    again = restored(search, tmp_path)
    finish(search, "spare", 0.0)
    run(search, 7, prefix="v")
    assert config_of(search, "u")[TAG] == tag
    assert config_of(again, "u")[TAG] == tag
    assert set(search.recommend()) == {"x", "y"}
    finish(search, "u", 0.5)
    assert set(search._tags) <= set(search._live)


@pytest.mark.usefixtures("local_hosts")
@pytest.mark.parametrize("name", [f"config/{TAG}/secret", f"config/{TAG}/reals", f"config/{TAG}"])
def test_tags_do_not_hide_anything_else(name):
    search = search_of(2, epsilon=1.0, value_range=(0, 1), tags=True)
    (trial,) = evaluation(search, search.private(lambda config: config["x"]), 1)
    assert set(trial.config[TAG]) == {"agent", "epoch", "active_share", "reals"}
    assert search.guarantee().protected
    search.suggest("b")
    with pytest.warns(PrivacyWarning, match="another config"):
        search.on_trial_result("b", {"trial_id": "b", name: 0.5})
    assert not search.guarantee().protected


def test_a_space_with_the_tags_name_is_refused():
    space = {**SPACE, TAG: tune.uniform(0, 1)}
    with pytest.raises(ValueError, match="tags=False"):
        search_of(space=space, tags=True)
    with pytest.raises(ValueError, match="tags=False"):
        search_of(space=None, search_space=space, tags=True)
    assert TAG in config_of(search_of(space=space), "t")
