"""Trials that never come to an end: stopped by a scheduler, repeated, resumed, told elsewhere."""

import sys
import warnings

import pytest
from ray import tune
from ray.tune.search import ConcurrencyLimiter, Repeater, repeater

from privbo_plugins.errors import PrivacyError
from privbo_plugins.sessions.scheduler import FRUITLESS
from raytune_searchers import DPGIBOSearch, DUETSSearch, LDPGPUCBSearch, POGPUCBSearch
from raytune_searchers._search import FINISHED
from raytune_searchers._trainable import REPEATED
from tests.inside import call_host, n_compared
from tests.raytune_searchers.hosts import evaluate, evaluation
from tests.raytune_searchers.ldp_scenes import reward
from tests.raytune_searchers.runs import LINE, begun, ledger, make_search, squares

EVERYTHING_STOPPED = f"nothing was released of {FRUITLESS} trials one after another"


def searches():
    told = {"metric": "loss", "mode": "max", "seed": 1}
    local = {"value_range": (0, 1), "epsilon": 1.0}
    return {
        "DP-GIBO": lambda: make_search(),
        "LDP GP-UCB": lambda: LDPGPUCBSearch(**local, **told),
        "DUETS": lambda: DUETSSearch(2, n_trials=400, **local, **told),
        "PO-GP-UCB": lambda: POGPUCBSearch([[0.1], [0.5], [0.9]] * 30, **told),
    }


@pytest.mark.usefixtures("local_hosts")
@pytest.mark.filterwarnings("ignore::privbo_plugins.errors.PrivacyWarning")
@pytest.mark.parametrize("system", list(searches()))
def test_trials_that_are_all_stopped_end_the_search(system):
    search = searches()[system]()
    space = {} if system == "PO-GP-UCB" else dict(LINE)
    assert search.set_search_properties(None, None, space, num_samples=-1)
    said = []
    for i in range(FRUITLESS):
        config = search.suggest(f"t{i}")
        if config == FINISHED:  # a table ends where every row was tried often enough
            assert system == "PO-GP-UCB"
            break
        with warnings.catch_warnings(record=True, action="always") as caught:
            search.on_trial_complete(f"t{i}", {"trial_id": f"t{i}", "training_iteration": 4})
        said += [str(warning.message) for warning in caught]
    assert [EVERYTHING_STOPPED in text for text in said] == [True]
    assert "max_t" in said[0]
    assert search.suggest("more") == FINISHED


@pytest.mark.usefixtures("local_hosts")
def test_a_resumed_trial_finds_its_host_before_anything_is_suggested(tmp_path):
    """Tune starts resumed trials before it asks a restored search for the first time."""
    url = f"sqlite:///{tmp_path}/vault.db"
    search = begun(make_search(vault=url, run_name="r"))
    private = search.private(squares)
    assert len(evaluation(search, private, 2)) == 2
    suggestion = search.suggest("resumed")
    search.save_to_dir(str(tmp_path), "session")
    search.close()  # as the driver's end does
    found = DPGIBOSearch.from_experiment(tmp_path)
    assert found.set_search_properties(None, None, dict(LINE), num_samples=-1)
    found.restore_from_dir(str(tmp_path))
    assert evaluate(found, found.private(squares), "resumed", suggestion).error is None
    assert found.guarantee().protected


@pytest.mark.usefixtures("local_hosts")
@pytest.mark.parametrize(
    ("num_samples", "planned"), [(10, 9), (9, 9), (100, 69), (sys.maxsize, 69)]
)
def test_it_is_said_at_once_if_fewer_trials_will_run_than_were_asked_for(num_samples, planned):
    search = DPGIBOSearch(1.0, metric="loss", mode="min", seed=1)
    assert search.set_search_properties(None, None, dict(LINE), num_samples=num_samples)
    with warnings.catch_warnings(record=True, action="always") as caught:
        trials = evaluation(search, search.private(squares), min(num_samples, 100))
    said = [str(w.message) for w in caught if "trials" in str(w.message)]
    expected = f"Of num_samples={num_samples} trials {planned} will run"
    fewer = planned < num_samples < sys.maxsize  # which Tune says for -1
    assert [expected in text for text in said] == [True] * fewer
    assert len(trials) == planned - 3 + n_compared(ledger(search)[1])


# Paused trials ----------------------------------------------------------------------------------


@pytest.mark.usefixtures("local_hosts")
@pytest.mark.filterwarnings("ignore::privbo_plugins.errors.PrivacyWarning")
@pytest.mark.parametrize("system", list(searches()))
def test_a_trial_that_bohb_has_paused_makes_room_until_it_goes_on(system):
    search = searches()[system]()
    space = {} if system == "PO-GP-UCB" else dict(LINE)
    limited = ConcurrencyLimiter(search, max_concurrent=1)
    assert limited.set_search_properties(None, None, space, num_samples=-1)
    assert isinstance(limited.suggest("a"), dict)
    assert limited.suggest("b") is None
    limited.on_pause("a")
    assert isinstance(limited.suggest("b"), dict)
    limited.on_unpause("a")
    limited.on_trial_complete("b", error=True)
    assert limited.suggest("c") is None
    limited.on_trial_complete("a", error=True)
    assert isinstance(limited.suggest("c"), dict)


# Repeated and foreign values --------------------------------------------------------------------


def test_repeated_is_what_rays_repeater_writes():
    assert REPEATED == repeater.TRIAL_INDEX


@pytest.mark.usefixtures("local_hosts")
@pytest.mark.parametrize("kind", ["records", "rewards"])
def test_a_repeater_is_refused_before_anything_is_evaluated(kind):
    own = begun(make_search())
    function = squares
    if kind == "rewards":
        own, function = begun(searches()["LDP GP-UCB"]()), reward
    repeated = Repeater(own, repeat=2)
    suggestion = repeated.suggest("t0")
    assert REPEATED in suggestion
    trial = evaluate(own, own.private(function), "t0", suggestion)
    assert trial.error is not None
    assert "Repeater" in str(trial.error)
    assert "Leave it out" in str(trial.error)
    assert call_host(own, "report", False)["published"] == {}
    shown = {"trial_id": "t0", f"config/{REPEATED}": 0, "config/x": suggestion["x"]}
    own.on_trial_complete("t0", shown, error=True)
    assert "other names" not in own.guarantee().details()


@pytest.mark.usefixtures("local_hosts")
def test_a_point_from_elsewhere_is_refused_in_the_words_that_tune_expects():
    search = begun(make_search())
    with pytest.raises(NotImplementedError, match="points_to_evaluate"):
        search.add_evaluated_point({"x": 0.5}, 0.25)
    with pytest.raises(PrivacyError):
        search.add_evaluated_point({"x": 0.5}, 0.25)


def test_a_space_in_which_nothing_varies_is_refused_when_it_is_given():
    with pytest.raises(ValueError, match="Nothing in param_space varies"):
        make_search().set_search_properties(None, None, {"kind": tune.choice(["svm"])})
