"""What people do wrong in their first hour: each is told by rule, value and fix, at their line."""

from __future__ import annotations

import logging
import re
import traceback
import warnings
from dataclasses import dataclass

import optuna
import pytest

from privbo_plugins.errors import (
    BudgetExceededError,
    NotARewardError,
    NotLossesError,
    ObjectiveFailedError,
    PrivacyError,
    PrivacyWarning,
    SpaceChangedError,
    UtilityWarning,
    VaultError,
)

pytestmark = pytest.mark.filterwarnings("ignore:.*:DeprecationWarning:ray.*")

BEGINNING = """
import numpy as np, optuna
from optuna.distributions import FloatDistribution
from optuna_samplers import *
records = np.random.default_rng(0).normal(0.7, 0.1, size=3000)
def losses(trial):
    return (trial.suggest_float("x", 0, 1) - records) ** 2
def begun(**settings):
    sampler = DPGIBOSampler(**{"mu": 1, "n_trials": 12} | settings)
    return sampler, optuna.create_study(sampler=sampler)
def one(trial):
    return trial.suggest_float("x", 0, 1)
"""
LOSSES = "sampler, study = begun()"
REWARDS = "study = optuna.create_study(direction='maximize'); " \
    "how = {'epsilon': 1, 'value_range': (0, 1)}"  # fmt: skip
ROWS = "from privbo_plugins.sessions.rows import Curator; rows = np.ones((5, 2)); " \
    "how = {'epsilon': 4, 'delta': 1e-6, 'bounds': [(0, 1), (0, 2)]}"  # fmt: skip
AGENTS = "server = FederatedServer(FederationConfig(n_agents=2, epsilon=1, delta=1e-5))"
SKLEARN = "import scipy; from sklearn.svm import SVC; from scipy.stats import loguniform; " \
    "from sklearn_search import PrivateSearch; X, y = np.eye(20), np.arange(20) % 2; " \
    "space, how = {'C': loguniform(1, 9)}, {'mu': 1, 'n_trials': 12}"  # fmt: skip
RAY = "import ray.tune as tune; from raytune_searchers import *; " \
    "search = DPGIBOSearch(mu=1, metric='loss', mode='min'); f = lambda config: [0.5]"  # fmt: skip


@dataclass(frozen=True)
class Mistake:
    """A program whose last line goes wrong, and what must be said of it.

    Attributes:
        name: What a user did.
        program: Its lines; the last one is the line that is pointed at.
        told: Class of an error or a warning; None for a line of the log.
        says: Patterns for the rule, the value, and the fix.
        released: Releases of the study in the end; None where none can be asked for.
    """

    name: str
    program: tuple[str, ...]
    told: type[BaseException] | None
    says: tuple[str, ...]
    released: int | None = 0


def case(name, told, says, *program, released=0):
    """One row of the table; patterns are separated by bars."""
    return Mistake(name, program, told, tuple(says.split(" | ")), released)


def returning(name, told, says, returned, released=0):
    """An objective that returns what it should not."""
    line = f"study.optimize(sampler.private(lambda t: {returned}), n_trials=2)"
    return case(name, told, says, LOSSES, line, released=released)


OF_LOSSES = [
    returning("a mean", NotLossesError, "one value per | single number | before averaging",
              "losses(t).mean()"),
    returning("nothing", NotLossesError, "one value per | something else | Return the vector",
              "one(t) and None"),
    returning("two results", NotLossesError, "one value per | a tuple | nothing beside it",
              "(losses(t), losses(t))"),
    returning("a dictionary", NotLossesError, "one value per | something else | Return the vector",
              "{'loss': losses(t)}"),
    returning("a column", NotLossesError, r"\(n_records,\) | 2 dimension | ravel",
              "losses(t)[:, None]"),
    returning("dropped records", ValueError, "same 90 | another length | NaN for",
              "losses(t)[: 90 - t.number]", released=1),
    returning("an exception", ObjectiveFailedError, "withheld | ValueError | the bare function",
              "float('Jane Doe') if one(t) else 0"),
    returning("no suggestion", ValueError, "nothing to tune | no parameter | suggest_float",
              "records"),
    returning("a constant alone", ValueError, "nothing to tune | no parameter | suggest_float",
              "records - t.suggest_float('x', 0.5, 0.5)"),
    returning("a report", PrivacyError, "closed | trial.report | public=True.*leave it out",
              "t.report(losses(t).mean(), 0)"),
    returning("another range later", SpaceChangedError, "fixed | 'x' | same ranges",
              "records - t.suggest_float('x', 0, 1 + t.number)", released=1),
    returning("a name twice", SpaceChangedError, "fixed | 'x' | same ranges",
              "records - t.suggest_float('x', 0, 2) - one(t)"),
    returning("a parameter less", SpaceChangedError, "fixed | another one over x | used where",
              "losses(t) + (0 if t.number else t.suggest_float('y', 0, 1))", released=1),
    returning("a conditional space", SpaceChangedError, "fixed | 'z' | used where",
              "records - t.suggest_float('xz'[t.number], 0, 1)", released=1),
    case("values out of bounds", UtilityWarning, "end of the | told apart | loss_bound=", LOSSES,
         "study.optimize(sampler.private(lambda t: 9 + losses(t)), n_trials=10)", released=10),
    case("no wrapper", PrivacyWarning, "Nothing is protected | plain floats | sampler.private",
         LOSSES, "study.optimize(lambda t: losses(t).mean(), n_trials=2)"),
    case("no wrapper, a vector", PrivacyWarning, "Nothing is | outside sampler | sampler.private",
         LOSSES, "study.optimize(losses, n_trials=1)"),
    case("a point outside", SpaceChangedError, "outside of its range | 'x' | Enqueue", LOSSES,
         "study.enqueue_trial({'x': 7.0})", "study.optimize(sampler.private(losses), n_trials=1)"),
    case("an end before the plan's", None, "ends before | 12 trials | Call it again", LOSSES,
         "study.optimize(sampler.private(losses), n_trials=1)", released=1),
    case("a plan that is used up", None, "used up | nothing new | recommend", LOSSES,
         "study.optimize(sampler.private(losses))", "study.optimize(sampler.private(losses))",
         released=13),
    case("too few trials", ValueError, "no room | n_trials=3 | at least 6",
         "sampler, study = begun(n_trials=3)", "study.optimize(sampler.private(losses))"),
    case("two objectives", ValueError, "one objective | 2 directions | direction=",
         "sampler = DPGIBOSampler(mu=1)",
         "study = optuna.create_study(sampler=sampler, directions=['minimize', 'maximize'])",
         "study.optimize(sampler.private(losses))", released=None),
    case("another mu", ValueError, "cannot change | mu=1.0 then and 2.0 now | same settings",
         "sampler, study = begun(vault='sqlite:///v.db')",
         "study.optimize(sampler.private(losses), n_trials=1)",
         "study.sampler = again = DPGIBOSampler(mu=2, n_trials=12, vault='sqlite:///v.db')",
         "study.optimize(again.private(losses), n_trials=1)", released=1),
    case("a vault that ended", VaultError, "ledger | another vault | vault='sqlite:///",
         LOSSES, "study.optimize(sampler.private(losses), n_trials=1)",
         "study.sampler = again = DPGIBOSampler(mu=1, n_trials=12)",
         "study.optimize(again.private(losses), n_trials=1)", released=1),
    case("a vault that is gone", VaultError, "refused | unable to open | where it was",
         "import os", "sampler, study = begun(vault='sqlite:///v.db')",
         "study.optimize(sampler.private(losses), n_trials=1)", "os.rename('v.db', 'away.db')",
         "study.optimize(sampler.private(losses), n_trials=1)", released=None),
    case("one database", VaultError, "same database | readers of the study | database of its own",
         "sampler = DPGIBOSampler(mu=1, vault='sqlite:///v.db')",
         "study = optuna.create_study(storage='sqlite:///v.db', sampler=sampler)",
         "study.optimize(sampler.private(losses))", released=None),
    case("another sampler's", ValueError, "Optuna's own | DPGIBOSampler | sampler.private",
         LOSSES, "study.optimize(private_objective(losses, mu=1, n_trials=6))"),
    case("recommend first", ValueError, "nothing to recommend | no trial", LOSSES,
         "sampler.recommend(study)"),
    case("report first", PrivacyError, "not known yet | search space | run a trial", LOSSES,
         "sampler.report(study, 'report.html')"),
    case("a report nowhere", FileNotFoundError, "no such folder | nowhere | create it", LOSSES,
         "study.optimize(sampler.private(losses), n_trials=1)",
         "sampler.report(study, 'nowhere/report.html')", released=1),
    case("a report for a folder", IsADirectoryError, "is a folder | '/ | path of a file", LOSSES,
         "study.optimize(sampler.private(losses), n_trials=1)",
         "sampler.report(study, '/')", released=1),
]  # fmt: skip

_NO_GROUPS = "unit='patient' is a name, and groups no rows | k rows of one patient | groups"

AT_ONCE = [
    ("equal choices", ValueError, "'x' lists | 1.0 and True are equal | as texts",
     "twice = optuna.distributions.CategoricalDistribution([1, True]); "
     "DPGIBOSampler(mu=1, search_space={'x': twice})"),
    ("no budget", ValueError, "how much privacy | mu=1", "DPGIBOSampler()"),
    ("no mu", ValueError, "mu must be | got 0 | number in", "DPGIBOSampler(mu=0)"),
    ("two budgets", ValueError, "say the same thing",
     "DPGIBOSampler(mu=1, epsilon=1, delta=1e-5)"),
    ("mu and a delta", ValueError, "say the same thing", "DPGIBOSampler(mu=1, delta=1e-5)"),
    ("no epsilon", ValueError, "epsilon= is missing", "DPGIBOSampler(delta=1e-5)"),
    ("epsilon as a text", ValueError, "epsilon must be | got '1'",
     "DPGIBOSampler(epsilon='1', delta=1e-5)"),
    ("an endless epsilon", ValueError, "epsilon must be a finite",
     "DPGIBOSampler(epsilon=np.inf, delta=0.1)"),
    ("no delta", ValueError, "delta= is missing | epsilon= | delta=1e-5",
     "DPGIBOSampler(epsilon=1)"),
    ("delta 0", ValueError, r"delta must be | got 0 | \(0, 1\)",
     "DPGIBOSampler(epsilon=1, delta=0)"),
    ("half a trial", ValueError, "n_trials must be | got 20.0 | integer",
     "DPGIBOSampler(mu=1, n_trials=20.0)"),
    ("a vault nowhere", VaultError, "cannot be created | no/v.db | Give a path",
     "DPGIBOSampler(mu=1, vault='sqlite:///no/v.db')"),
    ("ranges as pairs", ValueError, "'x' must be | a tuple | FloatDistribution",
     "DPGIBOSampler(mu=1, search_space={'x': (0, 1)})"),
    ("names alone", ValueError, "search_space' must be | a list | FloatDistribution",
     "DPGIBOSampler(mu=1, search_space=['x'])"),
    ("a name that groups no rows", PrivacyWarning, _NO_GROUPS,
     "DPGIBOSampler(mu=1, unit='patient')"),
    ("a name that groups no rows, wrapped", PrivacyWarning, _NO_GROUPS,
     "private_objective(losses, mu=1, n_trials=6, unit='patient')"),
    ("a name that groups no rows, scored", PrivacyWarning, "message='unit= | one score in blocks",
     "private_objective(losses, mu=1, n_trials=6, unit='patient', scores=['f1'])"),
    ("an address as others have it", VaultError, "'postgres' is | write postgresql:// and pip",
     "DPGIBOSampler(mu=1, vault='postgres://a:b@localhost/c')"),
    ("a name that groups no blocks", PrivacyWarning, _NO_GROUPS,
     "DPGIBOSampler(mu=1, unit='patient', records_in_blocks=(10, 3, 0))"),
    ("private twice", ValueError, "private already | as it is",
     "begun()[0].private(begun()[0].private(losses))"),
    ("a vector made private", ValueError, "function of a trial | a ndarray",
     "begun()[0].private(records)"),
    ("no number of trials", TypeError, "missing | n_trials", "private_objective(losses, mu=1)"),
]  # fmt: skip

OF_OTHERS = {
    REWARDS: [
        ("epsilon as a list", ValueError, "must be a number | a list",
         "ldp_objective(one, epsilon=[1], value_range=(0, 1))"),
        ("a range upside down", ValueError, "low < high | 1.*0",
         "ldp_objective(one, epsilon=1, value_range=(1, 0))"),
        ("no range", ValueError, "public | value_range=", "ldp_objective(one, epsilon=1)"),
        ("a vector as reward", NotARewardError, "one reward | several | DPGIBOSampler",
         "study.optimize(ldp_objective(losses, **how), n_trials=1)"),
        ("private twice", ValueError, "private already | as it is",
         "LDPGPUCBSampler(**how).private(ldp_objective(one, **how))"),
        ("a budget of nobody", ValueError, "user_budget= | needs user_id= | a name, or",
         "ldp_objective(one, **how, user_budget=3)"),
        ("no name", ValueError, "name must be | user_id= gave | a string",
         "study.optimize(ldp_objective(one, **how, user_id=lambda t: None), n_trials=1)"),
        ("a user asked too often", BudgetExceededError,
         "more than | user_budget=1, | another user.*catch=",
         "study.optimize(ldp_objective(one, **how, user_id='a', user_budget=1), n_trials=2)"),
        ("no wrapper", PrivacyWarning, "Nothing is protected | not privatised | sampler.private",
         "study.sampler = LDPGPUCBSampler(**how); study.optimize(one, n_trials=1)"),
    ],
    ROWS: [
        ("outcomes of others", ValueError, r"for each of the 5 | got .*\(3,\) | one number",
         "Curator(rows, **how, outcomes=np.ones(3))"),
        ("bounds of others", ValueError, r"one \(low, high\) | got \(1, 2\) | each of the 2",
         "Curator(rows, **how | {'bounds': [(0, 1)]})"),
        ("a row too many", ValueError, "row must be | got 5 | from 0 to 4",
         "Curator(rows, **how, outcomes=np.ones(5)).evaluate(5)"),
        ("a name that groups no rows", PrivacyWarning, _NO_GROUPS,
         "Curator(rows, **how, unit='patient')"),
        ("no file", FileNotFoundError, "no file | rows.npz", "POGPUCBSampler('rows.npz')"),
        ("another name for rows", None, "asked for no row | suggest_int.'row', 0, 4 | parameter=",
         "study = optuna.create_study(sampler=POGPUCBSampler(Curator(rows, **how).release())); "
         "study.optimize(lambda t: t.suggest_int('patient', 0, 4), n_trials=2)"),
    ],
    AGENTS: [
        ("a server for a link", ValueError, "link must be | FederatedServer | server.connect",
         "DPFTSDESampler(server)"),
        ("one objective for all", ValueError, "a list of | 0 studies and a function | one a study",
         "run_federated([], one, n_rounds=1)"),
        ("an agent too many", ValueError, "roster | 2 is none | numbered from 0",
         "server.connect(2)"),
    ],
    SKLEARN: [
        ("no labels", ValueError, "y", "PrivateSearch(SVC(), space, **how).fit(X)"),
        ("a class", TypeError, "instance | SVC", "PrivateSearch(SVC, space, **how).fit(X, y)"),
        ("nothing to tune", ValueError, "param_distributions must",
         "PrivateSearch(SVC(), {}, **how).fit(X, y)"),
        ("another parameter", ValueError, "no parameter | 'c' | get_params",
         "PrivateSearch(SVC(), {'c': space['C']}, **how).fit(X, y)"),
        ("a width below zero", ValueError, "'C' | no finite ends | width > 0",
         "PrivateSearch(SVC(), {'C': scipy.stats.uniform(9, -8)}, **how).fit(X, y)"),
        ("an incumbent outside", UtilityWarning, "C=20 | middle of all ranges | incumbent=",
         "PrivateSearch(SVC(C=20), space, **how).plan(n_records=9000)"),
        ("a name that groups no rows", PrivacyWarning, _NO_GROUPS,
         "PrivateSearch(SVC(), space, **how, unit='patient', loss='zero_one').fit(X, y)"),
        ("one choice for two", ValueError, "lists a choice twice",
         "PrivateSearch(SVC(), {'C': [1, 1]}, **how).fit(X, y)"),
    ],
    RAY: [
        ("Optuna's space", ValueError, "search_space must | tune.uniform",
         "DPGIBOSearch(mu=1, search_space={'x': FloatDistribution(0, 1)})"),
        ("private twice", ValueError, "private already | as it is",
         "search.private(search.private(f))"),
        ("a class", ValueError, "takes a function | class | report_public",
         "search.private(tune.Trainable)"),
        ("a name that groups no rows", PrivacyWarning, _NO_GROUPS,
         "DPGIBOSearch(mu=1, metric='loss', mode='min', unit='patient')"),
        ("a name that groups no rows, wrapped", PrivacyWarning, _NO_GROUPS,
         "private_trainable(f, param_space={'x': tune.uniform(0, 1)}, mu=1, n_trials=2, "
         "unit='patient')"),
        ("guarantee first", RuntimeError, "no search space yet | DPGIBOSearch | param_space=",
         "search.guarantee()"),
        ("a user's name for all to read", PrivacyWarning, "stores it | user_id= | lambda config",
         "ldp_trainable(f, epsilon=1, value_range=(0, 1), metric='r', mode='max', user_id='a')"),
    ],
}  # fmt: skip

MISTAKES = [
    *OF_LOSSES,
    *(case(name, told, says, line) for name, told, says, line in AT_ONCE),
    *(
        case(f"{name} {i}", told, says, before, line)
        for i, (before, cases) in enumerate(OF_OTHERS.items())
        for name, told, says, line in cases
    ),
]

_MOST_SENTENCES = 3


@pytest.mark.usefixtures("local_hosts")
@pytest.mark.parametrize("mistake", MISTAKES, ids=lambda m: m.name)
def test_a_mistake_is_told_at_the_users_line_with_its_fix(mistake, tmp_path, monkeypatch, caplog):
    source = BEGINNING + "\n".join(mistake.program) + "\n"
    path = tmp_path / "users.py"
    path.write_text(source)
    monkeypatch.chdir(tmp_path)
    own = {"__name__": "__main__"}
    error = None
    optuna.logging.enable_propagation()
    with warnings.catch_warnings(record=True) as caught, caplog.at_level("WARNING", "optuna"):
        warnings.simplefilter("always")
        try:
            exec(compile(source, str(path), "exec"), own)
        except Exception as raised:
            error = raised
    optuna.logging.disable_propagation()
    last = (str(path), source.count("\n"))
    if mistake.told is None:
        assert error is None
        said = [r.getMessage() for r in caplog.records if r.levelno == logging.WARNING]
    elif issubclass(mistake.told, Warning):
        told = [one for one in caught if issubclass(one.category, mistake.told)]
        said = [str(one.message) for one in told]
        assert {(one.filename, one.lineno) for one in told} == {last}
    else:
        assert isinstance(error, mistake.told)
        assert error.__cause__ is None
        assert error.__context__ is None or error.__suppress_context__
        frames = traceback.extract_tb(error.__traceback__)
        assert [(f.filename, f.lineno) for f in frames if f.filename == str(path)][-1] == last
        said = [str(error)]
    told_of_it = [text for text in said if all(re.search(p, text) for p in mistake.says)]
    assert told_of_it, said
    for text in told_of_it:
        assert len(re.findall(r"[.!?] [A-Z]", text)) < _MOST_SENTENCES, text
        assert not re.search(r"\d\.\d{5}|Jane", text), "no record is quoted"
    if "sampler" in own and mistake.released is not None:
        assert own["sampler"].guarantee(own["study"]).n_releases == mistake.released
