"""Any searcher of Ray Tune, centrally private."""

import gc
import json
import math
import warnings
from collections import Counter
from types import SimpleNamespace

import numpy as np
import pytest
import ray.cloudpickle as cloudpickle
from ray import tune
from ray.tune.schedulers import PopulationBasedTraining
from ray.tune.search.optuna import OptunaSearch

from privbo_plugins.algorithms.released_means import MeansConfig
from privbo_plugins.blocks import in_blocks
from privbo_plugins.cli import main
from privbo_plugins.errors import PrivacyError, PrivacyWarning, VaultError
from privbo_plugins.scores import PerRecord, Score, predictions
from privbo_plugins.store.run import NEVER_COMPARED
from raytune_searchers import PrivateSearch, private_trainable, report_public
from raytune_searchers._channel import LOSSES, UNWATCHED
from tests.drivers import TWO_SCORES
from tests.inside import call_host, channel_of, host_name, published_by
from tests.raytune_searchers.hosts import Trial, crash, in_session, lose, refused, sent
from tests.raytune_searchers.means_scenes import (
    Experiment,
    counted,
    dies_at_the_third,
    in_a_file,
)
from tests.raytune_searchers.runs import (
    LINE,
    PLANE,
    assert_sound,
    begun,
    fit,
    ledger,
    make_search,
    squares,
)
from tests.worker import lines

N = 6


def private_of(trainable=squares, **more):
    own = {"param_space": LINE, "mu": 1, "n_trials": N, "seed": 3}
    return private_trainable(trainable, **(own | more))


def started(trainable=squares, **more):
    """A trainable, and its experiment."""
    private = private_of(trainable, **more)
    return private, Experiment(private.callback)


def unheard(private, trial, config):
    """What a trial returns whose rows reach nobody."""
    with in_session(trial, lambda _: None):
        return sent(private)(sent(config))


def run(private, folder, search=None, *, given=None, **more):
    """An experiment with the callback; ``given`` is what the Tuner gets instead."""
    settings = {
        "num_samples": N, "metric": "loss", "mode": "min", "max_concurrent_trials": 2,
        "callbacks": [private.callback],
    }  # fmt: skip
    return fit(search, given or private, folder, **(settings | more))


@pytest.fixture
def quiet_noise():
    """Counted draws are drawn securely, but the run does not know."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", ".*test source", PrivacyWarning)
        yield


def spent(private):
    """Squares of what was charged, summed without the product's help."""
    charges, _, _ = ledger(private)
    return sum(c.mu**2 for c in charges if c.population == "validation")


# In the driver alone ----------------------------------------------------------------------------


def test_a_trial_gets_the_function_alone():
    private = private_of()
    blob = cloudpickle.dumps(private)
    assert len(blob) < 10_000
    assert b"ComparingCallback" not in blob
    assert b"_means" not in blob
    travelled = cloudpickle.loads(blob)
    assert travelled.__name__ == private.__name__ == "squares"


def test_what_a_score_s_function_holds_is_in_no_pickle_of_the_experiment():
    """Tune writes the callback into tuner.pkl."""
    records = np.full(50, 0.123456789)
    own = Score("own", PerRecord(lambda told: records[0] - told.y_true), TWO_SCORES[0].combine)
    private = private_of(scores=[own], mode="max")
    assert records.tobytes()[:64] in cloudpickle.dumps(own.statistic.function)
    for part in (private.callback, private, private.callback.get_state()):
        assert records.tobytes()[:8] not in cloudpickle.dumps(part)
    assert sent(private.callback)._run is private.callback._run


# The callback, in this process ------------------------------------------------------------------


@pytest.mark.parametrize(
    "name", ["config", "training_iteration", "a/b", "least_sd", "least_lacks"]
)
def test_a_score_that_a_result_has_no_name_for_is_refused(name):
    other = Score(name, TWO_SCORES[1].statistic, TWO_SCORES[1].combine, greater_is_better=False)
    with pytest.raises(ValueError, match="hold something else under"):
        private_of(scores=[TWO_SCORES[0], other], constraints={"least": 0.5})


@pytest.mark.filterwarnings("ignore::privbo_plugins.errors.UtilityWarning")
def test_a_result_shows_what_it_lacks_of_each_constraint_by_name(local_hosts):
    private, experiment = started(
        lambda config: predictions(np.full(40, config["x"])), scores=[*TWO_SCORES],
        constraints={"half": 0.25}, feasible_with=0.9, mode="min",
    )  # fmt: skip
    trial = experiment.run(private, "t0")
    row = {name: told for name, told in trial.last_result.items() if name != "config"}
    lacks = row["half"] - 0.25 + 1.2815516 * row["half_sd"]
    assert row["half_lacks"] == pytest.approx(lacks)
    assert private.guarantee([Trial("t0", trial.config, row)]).protected
    other = row | {"half_lacks": lacks + 0.5}
    with pytest.warns(PrivacyWarning, match="values under other names"):
        assert not private.guarantee([Trial("t0", trial.config, other)]).protected


def test_the_first_score_is_the_metric_and_no_other_name():
    assert private_of(scores=[*TWO_SCORES])._metric == TWO_SCORES[0].name
    with pytest.raises(ValueError, match="put the score that trials are compared by first"):
        private_of(scores=[*TWO_SCORES], metric=TWO_SCORES[1].name)


@pytest.mark.filterwarnings("ignore::privbo_plugins.errors.UtilityWarning")
def test_scores_of_blocks_travel_with_their_deal(local_hosts):
    score = in_blocks(len, 12, N)
    private, experiment = started(lambda _config: score())
    trial = experiment.run(private, "t0")
    assert "A run of blocks takes" in str(trial.error)
    assert ledger(private)[0] == []
    told, experiment = started(lambda _config: score(), **score.settings())
    assert experiment.run(told, "t0").error is None
    assert told.guarantee().n_records == 12


def test_a_value_that_was_released_and_never_compared_unprotects_until_all_rows_are_given(
    local_hosts,
):
    private, experiment = started()
    experiment.run(private, "t0")
    trial = experiment.begin("t1")
    returned = unheard(private, "t1", trial.config)
    assert not private.guarantee().protected  # nor while the trial is out
    private._here.clear()  # as another process that reads the run
    guarantee = private.guarantee()
    assert not guarantee.protected
    assert NEVER_COMPARED in guarantee.details()
    last = {"trial_id": "t1", "training_iteration": 2, **returned}
    assert not private.guarantee([Trial("t1", {"x": 0.5}, last)]).protected  # one row is missing
    whole = last | {"training_iteration": 1}
    assert private.guarantee([Trial("t1", {"x": 0.5}, whole)]).protected
    assert private.guarantee().protected


def test_trials_that_are_out_when_the_experiment_ends_are_looked_at(local_hosts):
    private, experiment = started()
    trial = experiment.begin("t0")
    unheard(private, "t0", trial.config)
    experiment.end()
    assert private.guarantee().protected
    with pytest.raises(Exception, match="No callback"):
        unheard(private, "t0", trial.config)


def test_without_the_callback_no_function_runs(local_hosts, tmp_path):
    private = private_of(counted(tmp_path))
    for _ in range(2):
        with pytest.raises(VaultError) as raised:
            unheard(private, "t0", {"x": 0.5})
        assert UNWATCHED in str(raised.value)
    assert lines(tmp_path / "trained") == []
    assert Experiment(private.callback).run(private, "t1").error is None


def test_what_another_driver_has_watched_counts_for_nothing(local_hosts, tmp_path):
    private = private_of(counted(tmp_path))
    trial = Experiment(private.callback).begin("t0")
    local_hosts.job = "another"
    with pytest.raises(Exception, match="No callback"):
        unheard(private, "t0", trial.config)
    assert lines(tmp_path / "trained") == []


def test_a_trial_is_watched_also_if_another_host_takes_the_place_of_the_first(
    local_hosts, tmp_path
):
    private, experiment = started(vault=f"sqlite:///{tmp_path}/v.db", run_name="r")
    trial = experiment.begin("t0")
    crash(host_name(private))
    with in_session("t0", lambda _row: None):
        assert set(sent(private)(trial.config)) == {"loss"}


def test_a_config_of_another_space_is_refused_before_a_function_runs(local_hosts):
    with pytest.raises(ValueError, match="param_space has 'depth'"):
        Experiment(private_of().callback).begin("t0", depth=3)


def test_a_config_that_a_scheduler_has_changed_on_the_way_is_no_concern(local_hosts):
    """Its row may come before or after the scheduler has changed what the trial goes on with."""
    private, experiment = started(param_space={"x": tune.uniform(0, 1), "more": [1, math.nan]})
    trial = experiment.begin("t0", x=0.5, more=[1, math.nan])
    experiment.shows(trial, loss=math.nan)
    first, trial.config = trial.config, {"x": 0.7, "more": [1, math.nan]}
    private.callback.on_trial_result(trial=trial, result={"trial_id": "t0", "config": first})
    experiment._tell("on_trial_start", trial)
    experiment.shows(trial, loss=math.nan)
    experiment.run(private, "t1", x=0.3, more=[1, math.nan])
    experiment.end()
    assert private.guarantee().protected


def test_a_search_of_ours_beside_it_is_refused_by_name_before_a_function_runs(local_hosts):
    search = begun(make_search())
    config = search.suggest("t0-of-ours")
    with pytest.raises(ValueError, match=r"DPGIBOSearch was given.*search\.private\(trainable\)"):
        Experiment(private_of().callback).begin("t0-of-ours", **config)
    Experiment(private_of().callback).begin("t1-of-another")
    search.close()


def test_a_vault_alone_claims_no_more_than_the_experiment(local_hosts, tmp_path, capsys):
    url = f"sqlite:///{tmp_path}/v.db"
    private, experiment = started(vault=url, run_name="r")

    def claimed():
        assert main(["guarantee", "--vault", url, "--run", "r", "--json"]) == 0
        alone = json.loads(capsys.readouterr().out)["guarantee"]
        assert set(alone["reasons"]) <= {*private.guarantee().reasons, "no private trial has run"}
        assert alone["protected"] == private.guarantee().protected
        return bool(alone["protected"])

    assert not claimed()  # nothing has run yet
    trial = experiment.begin("t0")
    returned = unheard(private, "t0", trial.config)
    assert not claimed()
    experiment.shows(trial, **returned)
    assert not claimed()  # more may come
    experiment.end()
    assert claimed()


def test_a_grid_is_declared_as_a_choice_and_other_choices_are_refused(local_hosts, tmp_path):
    def losses(config):
        (tmp_path / "ran").touch()
        return squares({"x": config["grid"] / 10})

    private, experiment = started(losses, param_space={"grid": tune.choice([3, 6, 9])}, mu=1e6)
    for value in (3, 6, 9):
        experiment.run(private, f"t{value}", grid=value)
    assert private.recommend() == {"grid": 6}
    (tmp_path / "ran").unlink()
    assert "none of its 3 declared choices" in str(experiment.run(private, "t5", grid=5).error)
    assert not (tmp_path / "ran").exists()
    beyond = private_of()
    Experiment(beyond.callback).run(beyond, "t", x=1.3)
    assert beyond.recommend() == {"x": 1.0}


def test_a_run_of_a_search_is_not_gone_on_with_beside_it(local_hosts, tmp_path):
    own = {"vault": f"sqlite:///{tmp_path}/v.db", "run_name": "r"}
    search = PrivateSearch(
        MeansConfig(1, n_trials=N), metric="loss", mode="min", search_space=LINE, seed=3, **own
    )
    channel_of(search)
    with pytest.raises(ValueError, match="suggests its trials"):
        Experiment(private_of(**own).callback)


def test_a_restored_callback_refuses_values_of_another_ledger(local_hosts):
    first, second = private_of(), private_of()
    trial = Experiment(first.callback).run(first, "t0")
    with pytest.raises(VaultError, match="spend mu a second time"):
        Experiment(second.callback, (trial,))
    callback = first.callback
    callback.set_state(first.callback.get_state())
    assert Experiment(callback, (trial,)).trials == [trial]


def test_the_state_of_another_run_or_vault_is_refused(local_hosts, tmp_path):
    first, second = private_of(), private_of()
    Experiment(first.callback)
    stored = [private_of(vault=f"sqlite:///{tmp_path}/{n}.db", run_name="r") for n in "ab"]
    for own, other in ((first, second), stored):
        callback = other.callback
        callback.set_state(own.callback.get_state())
        with pytest.raises(VaultError, match="spend mu a second time"):
            Experiment(callback)


def test_what_tune_pickles_and_restores_is_the_run_that_this_process_knows(local_hosts):
    private = private_of()
    Experiment(private.callback).run(private, "t0")
    again = sent(private.callback)
    again.set_state(private.callback.get_state())
    trial = Experiment(again).begin("t1")
    with pytest.warns(PrivacyWarning, match="plain floats"):
        again.on_trial_result(trial=trial, result={"loss": 0.3, "trial_id": "t1"})
    assert not private.guarantee().protected


def test_what_a_callback_has_seen_of_a_vault_in_memory_outlives_its_process(local_hosts):
    private, experiment = started()
    experiment.run(private, "t0")
    state, blob = sent(private.callback.get_state()), cloudpickle.dumps(private.callback)
    local_hosts.end_driver()
    del private, experiment
    gc.collect()
    restored = cloudpickle.loads(blob)
    restored.set_state(state)
    with refused(LOSSES.lost):
        Experiment(restored)
    guarantee = restored._run.guarantee()
    assert guarantee.protected
    assert guarantee.n_releases == 1
    assert "the vault has ended" in guarantee.details()


@pytest.mark.parametrize("beyond", ["a release", "a row"])
def test_what_comes_after_the_last_report_of_a_vault_that_ended_is_not_claimed(
    beyond, local_hosts
):
    private, experiment = started()
    experiment.run(private, "t0")
    trial = experiment.begin("t1") if beyond == "a row" else None
    private.callback.get_state()
    if trial is None:
        experiment.run(private, "t1")
    lose(host_name(private))
    if trial is not None:
        experiment.shows(trial, loss=0.5)
    with pytest.raises(VaultError):
        experiment.step()
    guarantee = private.guarantee()
    assert not guarantee.protected
    assert trial or "more had been released than its last report knew" in guarantee.details()


def test_a_vault_that_ends_after_the_last_experiment_leaves_all_that_it_knew(local_hosts):
    """More than 50 trials: a checkpoint keeps no single releases of so many."""
    private, trials = private_of(n_trials=80), []
    for n in (20, 40):
        experiment = Experiment(private.callback)
        trials += [experiment.run(private, f"{n}-{i}") for i in range(n)]
        private.callback.get_state()
        experiment.end()
        assert private.guarantee().protected
    lose(host_name(private))
    guarantee = private.guarantee(trials)
    assert guarantee.protected, guarantee
    assert guarantee.mu_spent == guarantee.mu  # at most: more may have been drawn since
    assert "the vault has ended" in guarantee.details()
    assert len(private.history().values) == 60


# On a real Ray ----------------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.parametrize("mode", ["min", pytest.param("max", marks=pytest.mark.soak)])
def test_another_searcher_sees_releases_only(the_ray, tmp_path, mode):
    private = private_of(param_space=PLANE, mode=mode)
    more = {"param_space": PLANE, "mode": mode, "max_concurrent_trials": 1}
    results = run(private, tmp_path, OptunaSearch(seed=1), **more)
    assert not results.errors
    search = private
    published = published_by(search)
    assert {r.metrics["trial_id"]: r.metrics["loss"] for r in results} == published
    exact = {float(np.mean(squares(r.config))) for r in results}
    assert exact.isdisjoint(published.values())
    assert_sound(search)
    _, releases, held = ledger(search)
    assert Counter(r.kind for r in releases) == {"value": N}
    assert held == []
    assert spent(private) == pytest.approx(1.0)
    guarantee = private.guarantee()
    assert guarantee.protected
    assert guarantee.mu_spent == pytest.approx(1.0)
    assert private.guarantee(results).protected
    assert private.finished()
    assert private.recommend()["c"] == 5
    assert private.recommend() in [r.config for r in results]
    private.close()
    assert private.guarantee().protected
    assert private.guarantee().mu_spent == pytest.approx(1.0)


@pytest.mark.soak
def test_a_config_that_population_based_training_changes_is_the_one_released(the_ray, tmp_path):
    def trained(config):
        folder = tmp_path / f"model-{tune.get_context().get_trial_id()}"
        folder.mkdir(exist_ok=True)
        for _ in range(4):
            checkpoint = tune.Checkpoint.from_directory(str(folder))
            report_public({"train_loss": config["x"]}, checkpoint=checkpoint)
        return squares(config)

    private = private_of(trained, mu=1e5, n_trials=2)
    scheduler = PopulationBasedTraining(
        metric="train_loss",
        mode="min",
        perturbation_interval=1,
        resample_probability=1.0,
        quantile_fraction=0.5,
        hyperparam_mutations={"x": tune.uniform(0.0, 1.0)},
    )
    results = run(private, tmp_path, scheduler=scheduler, metric=None, mode=None, num_samples=2)
    assert not results.errors
    assert private.guarantee().protected, private.guarantee()
    for result in results:
        assert result.metrics["loss"] == pytest.approx(np.mean(squares(result.config)), abs=1e-3)
    private.close()


@pytest.mark.soak
@pytest.mark.usefixtures("quiet_noise")
def test_a_killed_driver_goes_on_elsewhere(killed, tmp_path):
    path = killed(dies_at_the_third)
    assert len(lines(tmp_path / "draws")) == 2
    again = in_a_file(tmp_path)
    results = tune.Tuner.restore(str(path), again).fit()
    assert not results.errors
    assert len(results) == len(lines(tmp_path / "draws")) == N
    assert_sound(again)
    assert spent(again) == pytest.approx(1.0)
    published = published_by(again)
    assert {r.metrics["trial_id"]: r.metrics["loss"] for r in results} == published
    assert call_host(again, "report", False)["uncompared"] == []
    again.close()


# What an experiment that ends without a word leaves behind ---------------------------------------


def test_a_trial_that_was_begun_by_an_experiment_that_died_runs_once_at_most(local_hosts):
    """Taken up again without the callback; what ran unseen is not protected."""
    private, experiment = started()
    experiment.run(private, "t0")
    experiment.begin("t1", x=0.3)  # no hook is called any more
    unheard(private, "t1", {"x": 0.3})
    guarantee = private.guarantee()
    assert not guarantee.protected
    assert any(NEVER_COMPARED in reason for reason in guarantee.reasons)
    with pytest.raises(PrivacyError, match="No callback"):
        unheard(private, "t1", {"x": 0.3})


def test_an_experiment_with_trials_whose_callback_has_no_state_is_another_ledgers(local_hosts):
    """Tune keeps the states of callbacks by their places in the list."""
    private = private_of()
    left = SimpleNamespace(trial_id="t0", config={"x": 0.3}, last_result={})
    with pytest.raises(VaultError, match="in the same order"):
        Experiment(private.callback, (left,))
    assert private.guarantee().mu_spent == 0


def test_rows_that_an_error_of_another_callback_kept_from_ours_count_as_not_compared(local_hosts):
    private, experiment = started()
    experiment.run(private, "t0")
    trial = experiment.begin("t1", x=0.3)
    returned = unheard(private, "t1", {"x": 0.3})
    try:
        raise RuntimeError("a dashboard is down")
    except RuntimeError:
        experiment.end()
    assert not private.guarantee().protected
    stored = SimpleNamespace(
        metrics={**returned, "trial_id": trial.trial_id, "training_iteration": 1}, error=None
    )
    assert not private.guarantee([stored]).protected  # an earlier logger may have shown more
