"""Names of other tools: every constructor answers each with why not, and what instead."""

import copy
import inspect
import pickle

import optuna
import pytest
from ray import tune
from ray.tune.schedulers import ASHAScheduler
from ray.tune.search.bayesopt import BayesOptSearch
from ray.tune.search.hyperopt import HyperOptSearch
from ray.tune.search.optuna import OptunaSearch
from sklearn import model_selection
from sklearn.experimental import enable_halving_search_cv  # noqa: F401  # makes two classes
from sklearn.metrics import get_scorer_names

import optuna_samplers
import raytune_searchers
import sklearn_search
from optuna_samplers import DPGIBOSampler, FederatedServer, FederationConfig
from privbo_plugins.algorithms.dp_gibo import GIBOConfig
from privbo_plugins.foreign import words
from privbo_plugins.scores import SCORES
from privbo_plugins.sessions.rows import Curator
from tests.contracts.test_settings import CLASSES

CONSTRUCTORS = [
    *CLASSES, Curator, FederatedServer, FederationConfig, GIBOConfig, sklearn_search.PrivateSearch,
    optuna_samplers.private_objective, optuna_samplers.ldp_objective,
    raytune_searchers.private_trainable, raytune_searchers.ldp_trainable,
]  # fmt: skip

BY_HAND = {
    "BayesSearchCV": "search_spaces optimizer_kwargs n_iter scoring fit_params n_jobs n_points "
    "iid refit cv verbose pre_dispatch random_state error_score return_train_score",
    "gp_minimize": "dimensions base_estimator n_calls n_random_starts n_initial_points acq_func "
    "acq_optimizer x0 random_state verbose callback kappa xi n_jobs",
    "OptunaSearchCV": "estimator param_distributions cv enable_pruning error_score max_iter "
    "n_jobs n_trials random_state refit return_train_score scoring study subsample timeout "
    "verbose callbacks",
    "TuneSearchCV": "early_stopping n_trials scoring n_jobs refit cv verbose random_state "
    "error_score return_train_score local_dir name max_iters search_optimization use_gpu loggers "
    "pipeline_auto_early_stop stopper time_budget_s mode",
}
"""Keywords of tools that are not installed here."""

ASKED = [
    model_selection.GridSearchCV, model_selection.RandomizedSearchCV,
    model_selection.HalvingGridSearchCV, model_selection.HalvingRandomSearchCV,
    optuna.samplers.TPESampler, optuna.samplers.CmaEsSampler, optuna.samplers.GPSampler,
    optuna.samplers.QMCSampler, optuna.samplers.NSGAIISampler, optuna.samplers.GridSampler,
    optuna.create_study, optuna.Study.optimize, tune.TuneConfig, ASHAScheduler, OptunaSearch,
    HyperOptSearch, BayesOptSearch,
]  # fmt: skip


def keywords(call):
    parameters = inspect.signature(call).parameters.values()
    return {p.name for p in parameters if p.kind not in (p.VAR_KEYWORD, p.VAR_POSITIONAL)}


@pytest.mark.parametrize(
    "make", CONSTRUCTORS, ids=lambda make: f"{make.__module__}.{make.__name__}"
)
def test_every_constructor_answers_every_word_of_the_table(make):
    known = keywords(make)
    for word, entry in words("settings").items():
        if word in known:
            continue
        with pytest.raises(TypeError) as refused:
            make(**{word: 1})
        here = [name for name in entry.get("here", ()) if name in known]
        end = f"here it is {here[0]}=." if here else f"{entry['why']}. {entry['instead']}."
        assert str(refused.value) == f"{make.__name__} has no setting {word!r}: {end}"


def test_a_word_that_the_table_lacks_is_answered_with_the_nearest():
    for call in (lambda: FederationConfig(n_agent=3), lambda: DPGIBOSampler(1, loss_bond=2)):
        with pytest.raises(TypeError, match=r"; did you mean '(n_agents|loss_bound)'\?"):
            call()


OF_OTHERS = {
    **{call.__name__: keywords(call) - {"self"} for call in ASKED},
    **{name: text.split() for name, text in BY_HAND.items()},
}


@pytest.mark.parametrize("tool", OF_OTHERS)
def test_each_keyword_of_another_tool_has_an_answer(tool):
    """Also where it is a setting of some constructor: another one has it not."""
    ours = keywords(sklearn_search.PrivateSearch) & keywords(DPGIBOSampler)
    assert {w for w in OF_OTHERS[tool] if w not in words("settings")} <= ours | {"metrics"}


def test_each_score_of_scikit_learn_is_released_or_has_an_answer_or_a_loss():
    assert set(get_scorer_names()) <= {*words("scores"), *SCORES}
    answered = {word for word, entry in words("scores").items() if "why" in entry}
    assert not answered & {*SCORES}


@pytest.mark.parametrize("kind", ["settings", "attributes", "scores"])
def test_a_word_has_one_answer_of_one_form(kind):
    for word, entry in words(kind).items():
        assert entry.keys() <= {"words", "here", "why", "instead", "loss"}
        alone = [entry["loss"]] if "loss" in entry else entry.get("here", ())
        told = [entry["why"], entry["instead"]] if "why" in entry else alone
        assert told
        assert kind != "scores" or {*entry.get("here", ())} <= {*SCORES}
        assert not any(text.endswith((".", " ")) for text in told), word
        assert kind == "scores" or len(told) == 2


def test_what_an_answer_names_exists():
    """A name that it says is ours is some constructor's, or some search's attribute."""
    settings = set().union(*map(keywords, CONSTRUCTORS))
    for entry in words("settings").values():
        assert set(entry.get("here", ())) <= settings
    text = inspect.getdoc(sklearn_search.PrivateSearch) or ""
    for entry in words("attributes").values():
        assert all(f"    {name}: " in text for name in entry.get("here", ()))


def test_a_sampler_answers_attributes_of_searches_and_stays_whole():
    sampler = DPGIBOSampler(mu=1)
    for word, entry in words("attributes").items():
        with pytest.raises(AttributeError) as refused:
            getattr(sampler, word)
        assert entry["why"] in str(refused.value)
    with pytest.raises(AttributeError, match=r"has no attribute 'best'$"):
        sampler.best  # noqa: B018
    for again in (copy.copy(sampler), pickle.loads(pickle.dumps(sampler))):
        assert not hasattr(again, "best_params_")
