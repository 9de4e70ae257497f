"""Experiments that version 0.1 left half-finished, and searches that it saved, go on."""

from __future__ import annotations

from dataclasses import fields, replace
from typing import Any

import numpy as np
import pytest

from privbo_plugins.errors import VaultError
from privbo_plugins.privacy.reward_noise import RewardNoise
from tests.inside import settings_of
from tests.raytune_searchers.hosts import LocalRay, Trial, evaluate
from tests.raytune_searchers.hosts import evaluation as play
from tests.stored import searches, test_stored
from tests.stored.test_stored import (
    Left,
    as_then,
    assert_chained,
    assert_no_less,
    drawn,
    lines,
    put_back,
)

pytestmark = pytest.mark.filterwarnings("ignore:The vault holds releases")
"""Searches of version 0.1 have seen nothing: nobody then remembered how far releases had come."""

N_TRIALS = {"ray_records": 7}
"""That a whole run has, where it is not 12."""

left = test_stored.left
each = pytest.mark.parametrize("left", searches.TUNED, indirect=True)


def begun_anew(left: Left, **changes: Any) -> Any:
    """The program once more, which knows the vault and the run's name."""
    return fitted(as_then(searches.SEARCHES[left.name], **changes))


def restored(left: Left) -> Any:
    """What version 0.1 saved, or a later save of this one."""
    return fitted(type(as_then(searches.SEARCHES[left.name])).from_experiment(left.folder))


def fitted(search: Any) -> Any:
    assert search.set_search_properties(None, None, dict(searches.LINE), num_samples=-1)
    return search


def claimed(left: Left, search: Any) -> Any:
    """The guarantee, once what the experiment holds was compared: version 0.1 noted none of it."""
    rows = [
        {search.metric: value, "trial_id": trial, "training_iteration": 1}
        for trial, value in left.facts["trials"].items()
    ]
    assert not search.guarantee().protected
    return search.guarantee([Trial(row["trial_id"], {}, row, [row]) for row in rows])


def go_on(left: Left, search: Any, n: int, name: str) -> list[Any]:
    return play(search, searches.trainable_of(search), n, name=name)


@each
@pytest.mark.parametrize("way", [begun_anew, restored])
def test_a_search_goes_on_to_its_end(left: Left, way: Any, local_hosts: LocalRay) -> None:
    whole = N_TRIALS.get(left.name, 12)
    more = whole - len(left.facts["trials"])
    search = way(left)
    assert_no_less(claimed(left, search), left.facts["guarantee"])
    done = go_on(left, search, more, "new")
    assert [trial.error for trial in done] == [None] * more
    assert_no_less(search.guarantee(), left.facts["guarantee"])
    assert "x" in search.recommend()
    assert lines(left.before) <= lines(left.now())
    assert_chained(left)
    assert len(left.now()["privbo_runs"]) == 1
    rows, shown = left.now(), {trial.trial_id: trial.metrics for trial in done}
    if left.name == "ray_records":
        assert search.finished()
        told = {trial: value for _, trial, *_, value in rows["privbo_trials"]}
    else:
        told = {trial: value for _, trial, *_, value in rows["privbo_plays"]}
    assert len(told) == whole
    assert left.facts["trials"].items() <= told.items()
    assert all(metrics[search.metric] == told[trial] for trial, metrics in shown.items())


@each
def test_a_trial_that_runs_again_shows_what_it_released(left: Left, local_hosts: LocalRay) -> None:
    search = restored(left)
    assert claimed(left, search).protected  # which begins its host
    private = searches.trainable_of(search)
    for trial, value in left.facts["trials"].items():
        again = evaluate(search, private, trial, {"x": 0.25})
        assert again.error is None
        assert again.metrics[search.metric] == value
    rows = left.now()
    assert rows["privbo_ledger"] == left.before["privbo_ledger"]
    assert rows["privbo_releases"] == left.before["privbo_releases"]
    assert rows["privbo_plays"] == left.before["privbo_plays"]


@each
def test_a_search_whose_older_vault_is_put_back_is_refused(
    left: Left, local_hosts: LocalRay
) -> None:
    search = restored(left)
    go_on(left, search, 1, "one")
    with put_back(left):
        go_on(left, search, 1, "two")
        (saved,) = left.folder.glob("searcher-state-*.pkl")
        search.save(str(saved))
    before = drawn(left.now())
    del search
    local_hosts.end_driver()
    with pytest.raises(VaultError, match="restored from an older backup"):
        restored(left).suggest("three")
    assert drawn(left.now()) == before


OTHER: list[tuple[str, dict[str, Any]]] = [
    ("ray_records", {"n_steps": 3}),
    ("ray_records", {"lengthscale": 0.3}),
    ("ray_records", {"mode": "max"}),
    ("ray_gp_ucb", {"reward_range": (0, 2)}),
    ("ray_gp_ucb", {"user_budget": 50.0}),
    ("ray_moma_gp_ucb", {"mechanism": "duchi"}),
    ("ray_duets", {"reward_range": (0, 2)}),
]


@pytest.mark.parametrize(("left", "changes"), OTHER, indirect=["left"], ids=str)
def test_a_run_is_refused_any_other_setting(
    left: Left, changes: dict[str, Any], local_hosts: LocalRay
) -> None:
    with pytest.raises((VaultError, ValueError), match=r"other settings|another mechanism"):
        begun_anew(left, **changes).guarantee()
    assert lines(left.now()) == lines(left.before)


@pytest.mark.parametrize("left", searches.SEARCHES, indirect=True)
def test_a_saved_search_has_the_settings_that_it_was_made_with(
    left: Left, local_hosts: LocalRay
) -> None:
    made = as_then(searches.SEARCHES[left.name])
    saved = type(made).from_experiment(left.folder)
    ours, theirs = settings_of(made), settings_of(saved)
    if left.name == "ray_records":  # what was saved goes on by the rules of its version
        assert (ours.planning, theirs.planning) == (2, 1)
        ours = ours.continuing(theirs.to_dict())
    if left.name == "ray_duets":  # likewise
        assert (ours.first_epoch, theirs.first_epoch) == (None, 2)
        ours = replace(ours, first_epoch=2)
    if left.name == "ray_rows":  # likewise
        assert (ours.correction, theirs.correction) == ("shared", "posterior")
        ours = replace(ours, correction="posterior")
    for field in fields(ours):
        now, then = getattr(ours, field.name), getattr(theirs, field.name)
        if isinstance(now, RewardNoise):  # a figure, which may have become a little sharper
            assert then.variance == pytest.approx(now.variance, rel=1e-6)
        else:
            assert np.array_equal(now, then), field.name


@pytest.mark.parametrize("left", ["ray_rows"], indirect=True)
def test_a_modeler_and_a_curators_actor_go_on(left: Left, local_hosts: LocalRay) -> None:
    search = searches.POGPUCBSearch.from_experiment(left.folder)
    assert search.set_search_properties(None, None, {}, num_samples=-1)
    assert settings_of(search).correction == "posterior"  # what was the default then
    assert_no_less(search.guarantee(), left.facts["guarantee"])
    done = play(search, searches.trainable_of(search), len(searches.scripts.ROWS) - 3, name="new")
    assert [trial.error for trial in done] == [None] * (len(searches.scripts.ROWS) - 3)
    rows = left.now()["privbo_plays"]
    answers = {trial: value for _, trial, *_, value in rows}
    assert len(answers) == len(searches.scripts.ROWS)
    for trial in done:
        assert trial.metrics["outcome"] == answers[str(trial.config["row"])]
    assert_no_less(search.guarantee(), left.facts["guarantee"])
    assert lines(left.before) <= lines(left.now())
    assert_chained(left)


@pytest.mark.parametrize("left", ["ray_federation"], indirect=True)
@pytest.mark.parametrize("saved", [True, False])
def test_a_federation_of_actors_goes_on(left: Left, saved: bool, local_hosts: LocalRay) -> None:
    before = released(left)
    search = as_then(searches.federation)
    if saved:
        search.close()
        local_hosts.end_driver()
        search = searches.DPFTSDESearch.from_experiment(left.folder)
    assert search.set_search_properties(None, None, {}, num_samples=-1)
    assert_no_less(search.guarantee(), left.facts["guarantee"])
    done = play(search, searches.trainable_of(search), name="new")
    assert [trial.error for trial in done] == [None] * 4
    assert released(left)[: len(before)] == before
    assert (len(before), len(released(left))) == (2, 3)
    assert_no_less(search.guarantee(), left.facts["guarantee"])
    for name in searches.scripts.AGENTS:
        template = f"sqlite:///{left.folder}/{{agent}}.db"
        trials = searches.agent_trials(template, name, searches.LINE, "hospitals")
        assert len(trials) == 4


def released(left: Left) -> list[str]:
    """Broadcasts, in order."""
    rows = left.now()["privbo_releases"]
    return [payload for _, payload in sorted((seq, payload) for _, seq, *_, payload in rows)]


@pytest.mark.parametrize("left", ["ray_federation"], indirect=True)
def test_owners_read_what_their_agents_found(left: Left) -> None:
    template = f"sqlite:///{left.folder}/{{agent}}.db"
    for name in searches.scripts.AGENTS:
        trials = searches.agent_trials(template, name, searches.LINE, "hospitals")
        assert [value for config, value in trials] == [
            searches.reward(config) for config, value in trials
        ]
        assert len(trials) == 2
