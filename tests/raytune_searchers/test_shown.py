"""Whatever code around a private function shows is noticed by every searcher alike."""

from __future__ import annotations

import copy
import math
import shutil
from unittest import mock

import pytest
from ray import tune
from ray.train._internal.session import get_session

import raytune_searchers
from privbo_plugins.errors import PrivacyWarning, VaultError
from privbo_plugins.sessions.stored import runs_of
from privbo_plugins.shown import altered, flat
from privbo_plugins.store.run import NEVER_COMPARED
from privbo_plugins.store.vault import open_vault
from raytune_searchers._audit import foreign
from tests.drivers import OnRay, begin
from tests.inside import call_host, refusing
from tests.raytune_searchers.hosts import Grid, Trial, in_session, sent
from tests.raytune_searchers.means_scenes import Experiment

pytestmark = pytest.mark.usefixtures("local_hosts")


SEARCHERS = {
    "DPGIBOSearch": ("records", {}),
    "LDPGPUCBSearch": ("rewards", {}),
    "LDPTGPUCBSearch": ("rewards, t", {}),
    "LDPATAGPUCBSearch": ("rewards, ata", {}),
    "LDPMoMAGPUCBSearch": ("rewards, moma", {}),
    "DUETSSearch": ("duets", {}),
    "DUETSSearch with tags": ("duets", {"tags": True}),
    "DPFTSDESearch": (
        "federation", {"config": {"n_agents": 1}, "agents": None, "n_trials": 9},
    ),
    "ldp_trainable": ("any sampler, local", {}),
    "private_trainable": ("any sampler", {}),
}  # fmt: skip
"""To each public name its run, and settings. A searcher of Tune's own looks at no reward on its
way: what the experiment holds is compared."""


def start(name, folder):
    """An experiment of one searcher."""
    key, more = SEARCHERS[name]
    run = begin(key, "ray", folder, vault=True, run_name="r", **more)
    if key == "federation":
        call_host(run.search, "rounds")
    return run


def runs(run, n, around=lambda private: private):
    """So many trials of what stands around the private function; the experiment's results."""
    with mock.patch.object(run, "trainable", around(run.trainable)):
        run.trials(n)
    return run.results


def claims(run, results=None):
    """What is claimed, of given results."""
    return run.ask("guarantee", *([] if results is None else [results]))


def shows(run, leak):
    """One trial that shows what is no release, and what is said once all results are given."""
    runs(run, 1, leak)
    claims(run)


def stored(run):
    """What the vault alone claims, as the command line and certificates do."""
    (one,) = runs_of(open_vault(run.vault["vault"]))
    return one.guarantee


def test_every_searcher_is_here():
    """But the base class, and the modeler, who holds nothing that is private."""
    kinds = ("Search", "_trainable")
    public = {name for name in raytune_searchers.__all__ if name.endswith(kinds)}
    assert public - {"PrivateSearch", "POGPUCBSearch"} == {name.split()[0] for name in SEARCHERS}


SECRET = 0.7654321


class Twofold(float):
    """Counts as one number, and is written as another."""

    told: float

    def __new__(cls, written, counts):
        made = super().__new__(cls, written)
        made.told = counts
        return made

    def __reduce__(self):
        return Twofold, (float.__add__(self, 0.0), self.told)

    def __float__(self):
        return self.told

    def __eq__(self, other):
        return True

    __hash__ = float.__hash__


def after(act):
    """Does something with a config and a row once the private function has returned them."""

    def leak(private):
        def wrapper(config):
            row = private(config)
            return act(config, row) or row

        return wrapper

    return leak


def reports_before(private):
    """Rows of its own, of which the last is a release."""

    def wrapper(config):
        tune.report({OnRay.metric: 0.7654321, "federation_round": 0.5})
        return private(config)

    return wrapper


def reports_after(private):
    """Rows of its own, after the release."""

    def wrapper(config):
        report = get_session().report  # an agent's host is another process elsewhere
        report(private(config))
        return {OnRay.metric: 0.7654321, "federation_round": 0.5}

    return wrapper


def _other(config, number):
    """In the place of one parameter, which is a number of the space's or an agent's round."""
    name = "x" if "x" in config else "round"
    config[name] = number(config[name])


def _overwritten(config, _row):
    config.update({n: v | {"agent": 7} if isinstance(v, dict) else 7 for n, v in config.items()})


shows_more = after(lambda _, row: {**row, "auc": SECRET})
LEAKS = {
    "a raw number counts as the release": after(
        lambda _, row: {name: Twofold(SECRET, value) for name, value in row.items()}
    ),
    "a raw number equals a parameter": after(
        lambda config, _: _other(config, lambda given: Twofold(SECRET, given))
    ),
    "another name": shows_more,
    "every parameter": after(_overwritten),
    "a setting of the space": after(
        lambda config, _: _other(config, lambda given: given + 1 if given >= 1 else SECRET)
    ),
    "a parameter more": after(lambda config, _: config.update(auc=SECRET)),
    "into the search's own tags": after(
        lambda config, _: config.setdefault("duets", {}).update(auc=SECRET)
    ),
    "rows before the release": reports_before,
    "rows after the release": reports_after,
    "a parameter less": after(lambda config, _: config.__delitem__(next(iter(config)))),
    "the name of Tune's Repeater": after(lambda config, _: config.update(__trial_index__=SECRET)),
}


class Model:
    """What a space may hold."""


GIVEN = {
    "x": 0.5, "opts": {}, "layers": [{"units": 3}, "relu"], "model": Model, "made": Model(),
    "deep": {"a": {"b": 1}}, "flag": "on", "none": None, "nan": math.nan,
    "one": 1, "zero": 0.0, "numbers": [1, 2],
}  # fmt: skip

OTHERS = {
    "into an empty dictionary": {"opts": {"raw": 0.7654321}},
    "an empty dictionary itself": {"opts": 0.7654321},
    "into a dictionary of a list": {"layers": [{"units": 0.7654321}, "relu"]},
    "beside it": {"layers": [{"units": 3, "raw": 0.7654321}, "relu"]},
    "a class": {"model": 0.7654321},
    "a class by a text": {"model": "0.7654321"},
    "an object": {"made": [0.7654321]},
    "deep inside": {"deep": {"a": {"b": 0.7654321}}},
    "deeper": {"deep": {"a": {"b": 1, "c": 0.7654321}}},
    "a missing value": {"nan": 0.7654321},
    "nothing": {"none": 0.7654321},
    "a further name": {"raw": 0.7654321},
    "Repeater's": {"__trial_index__": 3},
    "a number of another type": {"one": 1.0},
    "a truth for a number": {"one": True},
    "another sign": {"zero": -0.0},
    "a number of another type in a list": {"numbers": [1.0, 2]},
    "a number that equals all": {"x": Twofold(0.7654321, 0.5)},
}


@pytest.mark.parametrize("other", OTHERS.values(), ids=OTHERS)
def test_any_other_config_than_the_given_one_is_noticed(other):
    given = [flat(GIVEN)]
    assert not altered(flat(copy.deepcopy(GIVEN)), given)
    assert not altered(None, given), "a row that shows none"
    assert altered(flat({**GIVEN, **other}), given)


def test_another_order_and_a_parameter_that_is_missing_are_noticed():
    given = [flat(GIVEN)]
    assert altered(flat(dict(reversed(GIVEN.items()))), given)
    for name in GIVEN:
        assert altered(flat({key: value for key, value in GIVEN.items() if key != name}), given)


@pytest.mark.parametrize(
    "name", ["time_this_iter_s", "experiment_tag", "training_iteration", "done"]
)
@pytest.mark.parametrize("stamp_first", [True, False])
def test_what_a_function_gives_under_a_name_that_tune_keeps_is_noticed(name, stamp_first):
    own = {"timestamp": 1, "checkpoint_dir_name": None}
    added = {"done": False, "training_iteration": 1, "time_this_iter_s": 0.1}
    assert not foreign({"loss": 0.5, **own, **added}, "loss", ())
    first = {"timestamp": 1, "loss": 0.5} if stamp_first else {"loss": 0.5, "timestamp": 1}
    assert name in foreign({**first, name: 1, **own, **added}, "loss", ())


@pytest.mark.parametrize("leak", LEAKS.values(), ids=LEAKS)
@pytest.mark.parametrize("name", SEARCHERS)
def test_what_code_around_a_private_function_shows_is_noticed(name, leak, tmp_path):
    run = start(name, tmp_path)
    sound = runs(run, 2)
    assert not any(trial.error for trial in sound)
    assert claims(run).protected, claims(run)
    assert stored(run).protected, stored(run)
    with pytest.warns(PrivacyWarning, match="Nothing is protected"):
        shows(run, leak)
    for claim in (claims(run), stored(run)):
        assert not claim.protected
        assert math.isinf(claim.epsilon)


@pytest.mark.parametrize("name", SEARCHERS)
def test_what_the_experiment_holds_is_compared_row_by_row_once_more(name, tmp_path):
    run = start(name, tmp_path)
    results = runs(run, 3)
    assert claims(run, results).protected, claims(run, results)
    config = next(iter(results[1].rows[-1]["config"]))
    results[1].metrics["config"] = results[1].metrics["config"] | {config: 0.7654321}
    with pytest.warns(PrivacyWarning, match="Nothing is protected"):
        assert not claims(run, results).protected
    assert not stored(run).protected


def test_of_single_results_nobody_knows_what_their_trials_were_given(tmp_path):
    """So their configs count as not compared, whatever these say of themselves."""
    run = start("ldp_trainable", tmp_path)
    results = runs(run, 2)
    guarantee = claims(run, [trial for trial in results])
    assert not guarantee.protected
    assert "give all results" in guarantee.details()
    assert claims(run).protected


# What passed by, and what was never looked at ----------------------------------------------------

RELEASING = [name for name in SEARCHERS if name != "DPFTSDESearch"]
"""Those with a release a trial."""


@pytest.mark.parametrize("name", [name for name in RELEASING if name != "ldp_trainable"])
def test_what_passed_by_while_the_vault_was_away_is_known_to_everybody(name, tmp_path):
    """Also where the driver that saw it, and saved nothing since, has ended."""
    run = start(name, tmp_path)
    runs(run, 2)
    away = VaultError("The vault does not answer.")
    with refusing(run.search, "record", away):
        try:
            results = runs(run, 1, shows_more)
        except VaultError:  # which ends an experiment with a callback
            results = Grid(run.experiment.trials)
    assert not stored(run).protected
    assert NEVER_COMPARED in stored(run).reasons
    assert not claims(run).protected
    with pytest.warns(PrivacyWarning, match="other names"):
        claims(run, results)
    assert "results hold values under other names" in str(stored(run))


@pytest.mark.parametrize("interrupted", [False, True])
@pytest.mark.parametrize("name", RELEASING)
def test_a_trial_that_was_told_and_never_compared_is_a_reason_to_claim_nothing(
    name, interrupted, tmp_path
):
    run = start(name, tmp_path)
    runs(run, 2)
    assert claims(run).protected
    search, trial = getattr(run, "experiment", run.search), f"{name}-last"
    if isinstance(search, Experiment):
        search.begin(trial)
    config = {"x": 0.5} if isinstance(search, Experiment) else search.suggest(trial)
    with in_session(trial, lambda _row: None):
        shown = sent(run.trainable)(sent(config))
    for claim in (stored(run), claims(run) if name != "ldp_trainable" else stored(run)):
        assert NEVER_COMPARED in claim.reasons
    metrics = {**shown, "trial_id": trial, "training_iteration": 1, "config": config}
    whole = Trial(trial, config, metrics, [metrics])
    results = Grid([Trial(trial, config) if interrupted else whole])
    if name == "ldp_trainable":
        run.results += results
    assert claims(run, results).protected, claims(run, results)
    assert stored(run).protected
    assert claims(run).protected


@pytest.mark.parametrize("name", [name for name in RELEASING if name != "ldp_trainable"])
def test_the_end_of_a_trial_is_when_it_has_been_compared(name, tmp_path):
    """Stopped by a scheduler, or failed after its release: nothing more is shown of it then."""
    run = start(name, tmp_path)
    runs(run, 1)

    def fails(private):
        def wrapper(config):
            private(config)
            raise KeyError("x")

        return wrapper

    assert runs(run, 1, fails)[-1].error is not None
    assert claims(run).protected, claims(run)
    assert stored(run).protected


# A vault that was set back -----------------------------------------------------------------------


def joined(name, folder):
    """Another driver's search of the same run, once it is at its vault."""
    run = start(name, folder)
    run.prefix = "joined"
    runs(run, 1)
    return run


@pytest.mark.parametrize("name", SEARCHERS)
def test_a_search_that_has_seen_nothing_says_so_where_it_joins_a_run_with_releases(
    name, tmp_path, local_hosts
):
    """The vault may be an older backup; only who saw the later releases could tell."""
    path, backup = tmp_path / "vault.db", tmp_path / "backup.db"
    first = start(name, tmp_path)
    runs(first, 2)
    shutil.copy(path, backup)
    runs(first, 1)
    del first
    local_hosts.end_driver()
    local_hosts.forget()
    shutil.copy(backup, path)
    with pytest.warns(PrivacyWarning, match=r"holds releases.*Tuner\.restore"):
        again = joined(name, tmp_path)
    for claim in (claims(again), stored(again)):
        assert any("seen nothing of this run" in note for note in claim.notes)


@pytest.mark.parametrize("name", SEARCHERS)
def test_the_first_search_of_a_run_and_one_in_the_same_cluster_say_nothing(name, tmp_path):
    first = start(name, tmp_path)
    runs(first, 2)
    assert not any("seen nothing" in note for note in stored(joined(name, tmp_path)).notes)
