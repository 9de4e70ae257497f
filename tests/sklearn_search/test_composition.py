"""What all fits of one search amount to, against the vaults' ledgers read with SQL."""

from __future__ import annotations

import math
import re
import warnings
from contextlib import nullcontext, suppress

import optuna
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from scipy.stats import uniform

from privbo_plugins.errors import PrivacyWarning
from privbo_plugins.privacy.figures import not_below
from tests.inside import LEDGER
from tests.optuna_samplers.runs import rows
from tests.sklearn_search.problems import Ends, classes, lasting, make_search, whole_budget

pytestmark = pytest.mark.filterwarnings("ignore::privbo_plugins.errors.UtilityWarning")


def search_in(folder, **more):
    vault = f"sqlite:///{folder / 'private.db'}"
    given = {"vault": vault, "training_mu": 0.25, "n_trials": 6} | more
    return make_search(Ends(), {"a": uniform(0, 1)}, **given)


def kept(storage):
    """Settings of a study that is gone on with."""
    return {"storage": storage, "study_name": "kept", "load_if_exists": True, "mu": 1.0}


OF_MEMORY = {"storage": None, "study_name": "a", "load_if_exists": False}
STEPS = {
    "new": lambda _: (OF_MEMORY | {"mu": 1.0}, 0, RuntimeError),
    "new, smaller": lambda _: (OF_MEMORY | {"mu": 0.5}, 0, RuntimeError),
    "named alike": lambda _: (OF_MEMORY | {"load_if_exists": True, "mu": 2.0}, 0, RuntimeError),
    "raises": lambda _: (OF_MEMORY | {"mu": 1.0}, 3, RuntimeError),
    "is interrupted": lambda _: (OF_MEMORY | {"mu": 1.0}, 3, KeyboardInterrupt),
    "resumed": lambda own: (kept(own), 0, RuntimeError),
    "resumed and interrupted": lambda own: (kept(own), 2, KeyboardInterrupt),
    "refused": lambda own: (kept(own) | {"mu": 0.1}, 0, RuntimeError),
}
"""Of each kind of fit its settings, and at which fit of the estimator it ends how."""


def spent(folder, payer):
    """Root of the sum of squares that all ledgers hold, and of how many runs."""
    asked = f"SELECT run, mu FROM {LEDGER} WHERE population = '{payer}'"
    told = [row for vault in folder.glob("*.db") for row in rows(vault, asked)]
    return math.sqrt(sum(float(mu) ** 2 for _, mu in told)), len({run for run, _ in told})


def shown(search, who):
    """What the guarantee says that a record's mu is at most, of all fits."""
    claim = search.guarantee_
    for note in claim.notes:
        if found := re.search(
            rf"for a (?:validation )?{who} that is in all of them (\S+)-GDP", note
        ):
            return float(found[1])
    if who == "record":
        return claim.mu
    ((mu, _, most),) = claim.trainings
    return mu * math.sqrt(most)


def headline(search, who):
    """And what it claims before all notes."""
    claim = search.guarantee_
    return min(claim.mu, claim.mu_spent) if who == "record" else claim.training_most


@pytest.mark.slow
@example(steps=["new", "new"])  # both unnamed in storage
@example(steps=["resumed", "refused", "resumed"])
@example(steps=["new", "raises"])
@example(steps=["new", "is interrupted", "resumed and interrupted", "resumed"])
@settings(max_examples=8)
@given(steps=st.lists(st.sampled_from(list(STEPS)), min_size=2, max_size=5))
def test_no_figure_of_several_fits_is_below_what_the_ledger_holds(tmp_path_factory, steps):
    X, y = classes(60)
    folder, last = tmp_path_factory.mktemp("fits"), {"record": 0.0, "training record": 0.0}
    with warnings.catch_warnings(action="ignore"):
        search, storage = search_in(folder), optuna.storages.InMemoryStorage()
        for place, step in enumerate(steps):
            changed, Ends.left, Ends.raised = STEPS[step](storage)
            vault = folder / ("kept.db" if changed["storage"] else f"{place}.db")
            may_end = suppress(ValueError, RuntimeError, KeyboardInterrupt)
            with nullcontext() if changed["storage"] is None and not Ends.left else may_end:
                search.set_params(**changed, vault=f"sqlite:///{vault}").fit(X, y)
            if "guarantee_" not in vars(search):
                continue
            for who, payer in (("record", "validation"), ("training record", "training")):
                own, _ = spent(folder, payer)
                assert shown(search, who) >= own * (1 - 1e-12) > 0
                assert headline(search, who) >= own * (1 - 1e-12)
                assert shown(search, who) >= last[who], "no later fit lowers it"
                last[who] = shown(search, who)


def test_a_run_that_goes_on_is_counted_once(tmp_path):
    X, y = classes(60)
    search = search_in(tmp_path, **kept(optuna.storages.InMemoryStorage()))
    Ends.left, Ends.raised = 3, KeyboardInterrupt
    with pytest.raises(KeyboardInterrupt):
        search.fit(X, y)
    with warnings.catch_warnings(action="error", category=PrivacyWarning):
        search.fit(X, y)
        search.fit(X, y)
    assert not any("in all of them" in note for note in search.guarantee_.notes)
    assert spent(tmp_path, "validation") == (pytest.approx(search.guarantee_.mu_spent), 1)
    assert whole_budget(search) == pytest.approx(1.0)


@pytest.mark.parametrize("budget", [{"mu": 1.0}, {"mu": None, "epsilon": 4.38, "delta": 1e-5}])
def test_two_fits_of_one_name_in_memory_are_two_runs(budget):
    X, y = classes(60)
    Ends.left = 0
    same = {"study_name": "a", "load_if_exists": True}
    search = make_search(Ends(), {"a": uniform(0, 1)}, **same, **budget)
    search.fit(X, y)
    with pytest.warns(PrivacyWarning, match=r"made 2 runs.* 1\.4\d+-GDP at most together"):
        search.fit(X, y)
    claim, one = search.guarantee_, search._found.guarantee
    assert claim.mu == claim.mu_spent == pytest.approx(one.mu * math.sqrt(2))
    assert f"{not_below(claim.mu, 4)}-GDP" in str(claim.notes)
    assert f"mu = {not_below(claim.mu, 4)} in all" in " ".join(str(claim).split())
    assert "as asked for" not in str(claim)


@pytest.mark.parametrize("lasts", [True, False], ids=["a stored study", "in memory"])
def test_an_interruption_says_in_one_sentence_what_is_spent_and_how_to_go_on(lasts, tmp_path):
    X, y = classes(60)
    storage = optuna.storages.InMemoryStorage()
    search = search_in(tmp_path, **(kept(storage) if lasts else {}))
    Ends.left, Ends.raised = 3, KeyboardInterrupt
    with pytest.raises(KeyboardInterrupt, match="spent mu = 1 at most") as told:
        search.fit(X, y)
    assert ("calling fit again goes on" in str(told.value)) == lasts
    assert ("load_if_exists=True" in str(told.value)) != lasts
    assert len(told.traceback) == 2, "the user's line, and fit itself"


def test_a_fit_that_spends_anew_in_a_vault_with_other_runs_says_so(tmp_path):
    (X, y), kept = classes(), lasting(tmp_path, loss="zero_one")
    alone = {name: kept[name] for name in ("vault", "loss")}
    make_search(**alone).fit(X, y)
    with pytest.warns(PrivacyWarning, match=r"the vault holds 1 other runs: .*squares of mu"):
        make_search(**alone).fit(X, y)
    for _ in range(2):  # one that goes on with its own says nothing
        make_search(**kept).fit(X, y)
