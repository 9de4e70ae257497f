"""Every system on every host as a run with the same verbs: tests say a behaviour once for all.

:data:`SYSTEMS` says what a system is made of, :func:`begin` begins a run of it::

    run = begin("rewards", "ray", folder)
    run.trials(3)
    assert run.ask("status")["releases"] == 3

On Optuna a run is a study; on Ray Tune a search driven through Tune's hooks, its hosts in this
process. All that objectives return comes from :attr:`Run.own`, whose scanner finds it again.
"""

from __future__ import annotations

import json
import math
import pickle
import warnings
from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import numpy as np
import optuna
from optuna.distributions import FloatDistribution
from optuna.samplers import RandomSampler

import optuna_samplers
from optuna_samplers import ldp_objective
from privbo_plugins.algorithms.released_means import MeansConfig
from privbo_plugins.blocks import in_blocks
from privbo_plugins.convert import BlockScores
from privbo_plugins.errors import UtilityWarning
from privbo_plugins.scores import PerRecord, Score, predictions
from privbo_plugins.sessions.rows import Curator
from tests.leaks.secrets import N_RECORDS, Secrets
from tests.optuna_samplers.runs import RECORDS, of_blocks
from tests.sixth import SixthConfig

HOSTS = ("optuna", "ray")
IDS = [f"person-{(7 * i) % 11:04x}-of-many" for i in range(N_RECORDS)]
"""Of eleven persons, some of whom have several of the rows that an objective returns."""

N_ROWS = 12

_NOW = []
"""The run whose trial is under way: what travels by pickle finds its secrets here."""


@dataclass(frozen=True)
class System:
    """One system.

    Attributes:
        name: Of its classes, without ``Sampler`` and ``Search``; "" for any sampler.
        settings: Of both classes.
        counted: What its status counts.
        size: Of a vector of losses; None for single numbers.
        whole: Trials after which the plan is used up; None where there is none.
        spare: Trials of the plan that its releases may make needless.
    """

    name: str
    settings: dict[str, Any] = field(default_factory=dict)
    counted: str = "trials"
    size: int | None = None
    whole: int | None = None
    spare: int = 0

    def ends(self, done):
        """Tells if so many trials use up the plan."""
        return self.whole - self.spare <= done <= self.whole

    @property
    def named(self):
        """What ``private`` is told of a user, where there is a ledger of users."""
        return {"user_id": lambda _: "Jane"} if "user_budget" in self.settings else {}


def _rewards(name):
    own = {"n_trials": 4, "user_budget": 5.0, "mechanism": "laplace", "value_range": (0, 1)}
    return System(name, own | {"epsilon": 0.5}, whole=4)


def _targets(told):
    return told.y_true


def _halves(told):
    return np.asarray(told.y_true, dtype=float) / 2


def _mean(m, s):
    return m[0]


TWO_SCORES = tuple(
    Score(name, PerRecord(function), _mean, greater_is_better=False)
    for name, function in (("least", _targets), ("half", _halves))
)
"""Of two statistics, which share a release."""

ANY = ("any sampler", "scores")
"""Systems under a sampler or searcher of the host's."""

SYSTEMS = {
    "records": System(
        "DPGIBO", {"mu": 1.0, "n_starts": 2, "n_steps": 2}, size=N_RECORDS, whole=9, spare=1
    ),
    "persons": System(
        "DPGIBO", {"mu": 1.0, "n_starts": 2, "n_steps": 2, "groups": IDS}, size=N_RECORDS,
        whole=8,
    ),
    "blocks": System(
        "DPGIBO",
        {
            "mu": 1.0, "n_starts": 2, "n_steps": 2,
            "records_in_blocks": (3 * N_RECORDS, N_RECORDS, 0),
        },
        size=N_RECORDS, whole=9, spare=1,
    ),
    "outside": System("Private", {"config": SixthConfig(1.0, 14)}, size=N_RECORDS, whole=14),
    "any sampler": System("", {"mu": 1.0, "n_trials": 14}, size=N_RECORDS, whole=14),
    "scores": System(
        "",
        {
            "mu": 1.0, "n_trials": 14, "scores": TWO_SCORES, "constraints": {"half": 1.0},
            "feasible_with": 0.5,
        },
        size=N_RECORDS, whole=14,
    ),
    "any sampler, local": System("", {"epsilon": 1.0, "value_range": (0, 1)}),
    "rewards": _rewards("LDPGPUCB"),
    "rewards, t": _rewards("LDPTGPUCB"),
    "rewards, ata": _rewards("LDPATAGPUCB"),
    "rewards, moma": _rewards("LDPMoMAGPUCB"),
    "duets": System(
        "DUETS",
        {
            "n_agents": 2, "epsilon": 1.0, "n_trials": 7, "discretisation": 64,
            "mechanism": "laplace", "value_range": (0, 1),
        },
        whole=8,
    ),
    "rows": System("POGPUCB", counted="answers"),
    "federation": System("DPFTSDE", counted="rounds", whole=2),
}  # fmt: skip

EVERYWHERE = [(name, host) for name in SYSTEMS if name != "any sampler, local" for host in HOSTS]
"""All runs that there are; an objective with a ledger of rewards tells its guarantee alone."""


@dataclass(frozen=True)
class Hosted:
    """A system on a study that hides what an objective returns, as its users set it up.

    Attributes:
        sampler: The study's.
        private: Makes an objective private.
        size: As the system's.
    """

    sampler: Any
    private: Callable[..., Any]
    size: int | None

    @property
    def named(self):
        """What ``private`` is told besides where evaluations are charged to a user."""
        return {} if self.size else {"user_id": "Jane"}

    def outcome(self, x):
        """What a good objective returns at a point of the unit interval."""
        return squared_distances(x) if self.size else float(x)

    def objective(self, trial):
        """Of one parameter ``x``."""
        return self.outcome(trial.suggest_float("x", 0.0, 1.0))

    def study(self, **settings):
        """A study with its sampler."""
        return optuna.create_study(sampler=self.sampler, **settings)

    def begun(self, n_trials=0, objective=None):
        """(private objective, a study with some trials of it)."""
        private, study = self.private(objective or self.objective), self.study()
        if n_trials:
            study.optimize(private, n_trials=n_trials)
        return private, study

    def owner(self, private):
        """Who tells the guarantee: an objective that keeps a ledger, or the sampler."""
        return private if hasattr(private, "guarantee") else self.sampler


def in_their_blocks(scores):
    """The same scores, each computed in a block of three records."""
    score = in_blocks(lambda table, places: table[places].max(), 3 * len(scores), len(scores))
    table = np.empty(3 * len(scores))
    for own, value in zip(score.places(), scores, strict=True):
        table[own] = value
    return score(table)


def squared_distances(x):
    """A loss a record."""
    return np.asarray((x - RECORDS) ** 2)


def hosted(key, **more):
    """A system on a study; a plan of rewards has no end, and nobody need be named.

    Args:
        key: Of :data:`STUDIES`.
        more: Settings of the sampler or of the objective.
    """
    system = SYSTEMS[key]
    endless = (
        {} if system.size else dict.fromkeys({"n_trials", "user_budget"} & {*system.settings})
    )
    own = system.settings | endless | more
    if "groups" in own:
        own["groups"] = np.resize(own["groups"], len(RECORDS))
    if "records_in_blocks" in own:
        own["records_in_blocks"] = (3 * len(RECORDS), len(RECORDS), 0)
    if key == "any sampler, local":
        return Hosted(RandomSampler(seed=0), partial(ldp_objective, **own), system.size)
    own = {"seed": 3} | own
    if key != "any sampler":
        kind = getattr(optuna_samplers, f"{system.name}Sampler")
        sampler = kind(**own)
        deal = own.get("records_in_blocks")
        private = sampler.private if deal is None else of_blocks(sampler.private, deal)
        return Hosted(sampler, private, system.size)
    # As private_objective does it, for several objectives of one run.
    config = MeansConfig(mu=own.pop("mu"), n_trials=own.pop("n_trials"))
    run, sampler = optuna_samplers.PrivateSampler(config, **own), RandomSampler(seed=0)
    sampler.guarantee, sampler.finished = run.guarantee, run.finished
    return Hosted(sampler, run.private, system.size)


STUDIES = (
    "records",
    "persons",
    "blocks",
    "outside",
    "any sampler",
    "any sampler, local",
    "rewards",
    "duets",
)

ON_STUDIES = {key: partial(hosted, key) for key in STUDIES}
"""To each system that hides what an objective returns, made of its settings."""


class Run(ABC):
    """One run of one system on one host.

    Args:
        system: Of :data:`SYSTEMS`.
        folder: An empty one.
        vault: The URL of the vault; None keeps it in memory.
        more: Settings of the class.

    Attributes:
        own: The secrets that objectives return.
        done: Trials that have completed.
        errors: Of all trials that have failed.
        loud: Whether warnings of little use are heard; few trials bring many.
    """

    def __init__(self, system, folder, vault, more):
        self.key, self.system, self.folder = system, SYSTEMS[system], folder
        self.own = Secrets(size=self.system.size)
        for i in self.system.settings.get("groups", ()):
            self.own.scanner.add_text("id", i)
        self.vault = {} if vault is None else {"vault": vault}
        self.more = more
        self.done = 0
        self.errors = []
        self.loud = False
        self.curator = None
        self.y = np.round(np.linspace(0, 1, N_ROWS), 3)

    # What an objective does -----------------------------------------------------------------

    def returned(self, config):
        """What an evaluation gives: losses, a reward, or an answer."""
        if self.key == "rows":
            return self.curator.evaluate(config["row"])
        if self.key == "federation" and config["x"] not in (0.0, 1.0):  # bounds are public
            self.own.add_raw(f"point {self.own.calls}", config["x"])
        found = self.own.vector() if self.system.size else self.own.reward()
        return in_their_blocks(found) if self.key == "blocks" else found

    def outcome(self, config):
        """The same as an objective returns it."""
        found, deal = self.returned(config), self.system.settings.get("records_in_blocks")
        if deal and isinstance(found, np.ndarray) and found.shape == (deal[1],):
            return BlockScores.of(found.astype(float), deal)
        return predictions(found) if self.key == "scores" else found

    def _wrapped(self, by, function):
        """Made private, where the system has a privacy of its own for what is returned."""
        if self.more.get("epsilon") == math.inf or not hasattr(by, "private"):
            return function
        return by.private(function, **self.system.named)

    def _table(self):
        X = self.own.vector(2 * N_ROWS).reshape(N_ROWS, 2)
        self.own.add_raw("scaled X", X - 0.5)  # as the mechanism sees it
        bounds = [(0, 1)] * 2
        self.curator = Curator(X, epsilon=4.0, delta=1e-6, bounds=bounds, outcomes=self.y)
        self.table = self.curator.release()
        self.own.scanner.allow(np.abs(self.table.Z).ravel().tolist())
        return self.table

    # The verbs ------------------------------------------------------------------------------

    def trials(self, n, *, plain=False, fails=False, caught=False):
        """Runs so many trials, or as many as the plan has left; values as the host shows them.

        Args:
            n: How many.
            plain: Whether the objective is not wrapped.
            fails: Whether it raises, and quotes a secret.
            caught: Whether the loop goes on after an error, as it always does on Ray.
        """
        _NOW[:] = [self]
        with warnings.catch_warnings():
            if not self.loud:
                warnings.simplefilter("ignore", UtilityWarning)
            kind = "plain" if plain else "fails" if fails else "private"
            shown = self._trials(n, kind, caught or fails)
        self.done += sum(value is not None for value in shown)
        return shown

    @abstractmethod
    def _trials(self, n, kind, caught): ...

    @property
    @abstractmethod
    def points(self):
        """The configuration of each trial."""

    @abstractmethod
    def ask(self, verb, *more):
        """What the sampler, the search or the objective answers to a verb."""

    @abstractmethod
    def reopen(self):
        """Goes on as another process does that knows the host's storage and the vault."""

    def page(self):
        """The report, in which no secret may be."""
        path = self.folder / "report.html"
        with warnings.catch_warnings(action="ignore"):
            assert self.ask("report", path) == path
        page = path.read_text()
        assert self.own.hits("report", page.encode()) == []
        return page


# Optuna -----------------------------------------------------------------------------------------


class OnOptuna(Run):
    """A study."""

    def __init__(self, *run):
        super().__init__(*run)
        self.server = None
        self._begin()
        name = self.own.token if self.key == "federation" else "digits"
        direction = "maximize" if self.system.size is None else "minimize"
        self.study = optuna.create_study(
            study_name=name, direction=direction, sampler=self.sampler
        )

    def _begin(self):
        """Makes sampler and objective."""
        own = {"seed": 0} | self.system.settings | self.vault | self.more
        if self.key in ANY:
            self.sampler = optuna.samplers.RandomSampler(seed=0)
            self.private = optuna_samplers.private_objective(self.objective, **own)
            self.told = self.private
            return
        if self.key == "any sampler, local":
            self.sampler = optuna.samplers.RandomSampler(seed=0)
            own = self.system.settings | self.vault | self.more
            self.private = self.told = ldp_objective(self.objective, **own)
            return
        kind = getattr(optuna_samplers, f"{self.system.name}Sampler")
        if self.key == "federation":
            config = optuna_samplers.FederationConfig(n_agents=1, epsilon=4.0, n_rounds=2)
            self.server = optuna_samplers.FederatedServer(config, **self.vault)
            self.sampler = kind(self.server.connect(0), seed=0)
        elif self.key == "rows":
            self.sampler = kind(self._table(), seed=0)
        else:
            space = {"search_space": {"x": FloatDistribution(0, 1)}}
            self.sampler = kind(**(space | own))
        self.private, self.told = self._wrapped(self.sampler, self.objective), self.sampler

    def objective(self, trial):
        if self.key == "rows":
            return self.outcome({"row": trial.suggest_int("row", 0, N_ROWS - 1)})
        return self.outcome({"x": trial.suggest_float("x", 0, 1)})

    def _fails(self, trial):
        raise ValueError(f"{self.own.token} {self.objective(trial)}")

    def _trials(self, n, kind, caught):
        before = len(self.study.trials)
        chosen = {"private": self.private, "plain": self.objective}.get(kind)
        if chosen is None:
            chosen = self._wrapped(self.sampler, self._fails)

        def noted(trial):
            try:
                return chosen(trial)
            except Exception as error:
                self.errors.append(error)
                raise

        self.study.optimize(noted, n_trials=n, catch=(Exception,) if caught else ())
        return [trial.value for trial in self.study.trials[before:]]

    @property
    def points(self):
        return [trial.params for trial in self.study.trials]

    def ask(self, verb, *more):
        """Samplers know nothing but what the study and the vault hold."""
        return getattr(self.told, verb)(self.study, *more)

    def reopen(self):
        self._begin()
        self.study.sampler = self.sampler


# Ray Tune ---------------------------------------------------------------------------------------


def _now(config):
    return _NOW[0].outcome(config)


def _now_plain(config):
    return {_NOW[0].metric: _now(config)}


def _now_fails(config):
    raise ValueError(f"{_NOW[0].own.token} {_now(config)}")


def _now_agent(agent, config):
    return _now(config)


class OnRay(Run):
    """A search, driven through Tune's hooks.

    Attributes:
        results: What a ``ResultGrid`` would show.
    """

    metric, prefix = "shown", "after"

    def __init__(self, *run):
        import raytune_searchers
        from tests.raytune_searchers.hosts import Grid
        from tests.raytune_searchers.runs import LINE

        super().__init__(*run)
        self.results = Grid()
        host = {"metric": self.metric, "mode": "min" if self.system.size else "max", "seed": 1}
        own = self.system.settings | self.vault | self.more
        if self.key.startswith(ANY):
            self._begin_trainable(own)
            return
        kind = getattr(raytune_searchers, f"{self.system.name}Search")
        if self.key == "federation":
            from tests.raytune_searchers.federated_scenes import make_search

            agents = ["oslo", "bergen", "bodo", "hamar"]
            self.search = make_search(**({"agents": agents} | self.vault | self.more))
        elif self.key == "rows":
            self.search = kind(self._table(), **host)
        else:
            self.search = kind(**({"search_space": LINE} | host | own))
        self._wrap()

    def _begin_trainable(self, own):
        """Of a searcher of Tune's own; what tells of the run is the trainable."""
        from ray.tune.search.optuna import OptunaSearch

        from raytune_searchers import ldp_trainable, private_trainable
        from tests.raytune_searchers.means_scenes import Experiment
        from tests.raytune_searchers.runs import LINE

        if self.key == "any sampler, local":
            self.search = OptunaSearch(seed=1)
            assert self.search.set_search_properties(self.metric, "max", dict(LINE))
            self.trainable = ldp_trainable(_now, metric=self.metric, **own)
            return
        if "scores" in own:
            self.metric = own["scores"][0].name
        self.trainable = private_trainable(_now, param_space=LINE, metric=self.metric, **own)
        self.search, self.experiment = self.trainable, Experiment(self.trainable.callback)

    def _wrap(self):
        function = {"federation": _now_agent, "rows": _now_plain}.get(self.key, _now)
        self.trainable = self._wrapped(self.search, function)

    def _trials(self, n, kind, caught):
        from tests.raytune_searchers.hosts import evaluation

        if self.key in ANY:
            run = self.experiment.run
            names = range(len(self.results), len(self.results) + n)
            new = [run(self.trainable, f"t{i}", x=(i % 7 + 1) / 9) for i in names]
        else:
            trainable = {"private": self.trainable, "plain": _now_plain}.get(kind)
            if trainable is None:
                trainable = self._wrapped(self.search, _now_fails)
            new = evaluation(self.search, trainable, n, name=f"{self.prefix} {len(self.results)} ")
        self.results += new
        self.errors += [trial.error for trial in new if trial.error is not None]
        return [trial.metrics.get(self.metric) for trial in new]

    @property
    def points(self):
        return [trial.config for trial in self.results]

    def ask(self, verb, *more):
        """A search knows its run, and a trainable what results show."""
        if self.key == "any sampler, local":
            return getattr(self.trainable, verb)(*(more or (self.results,)))
        return getattr(self.search, verb)(*more)

    def reopen(self):
        self.search = pickle.loads(pickle.dumps(self.search))
        self._wrap()


def begin(system, host, folder, *, vault=False, **more):
    """Begins a run.

    Args:
        system: Of :data:`SYSTEMS`.
        host: Of :data:`HOSTS`.
        folder: An empty one.
        vault: Whether the vault is a file.
        more: Settings of the class.
    """
    kinds = {"optuna": OnOptuna, "ray": OnRay}
    return kinds[host](system, folder, f"sqlite:///{folder}/vault.db" if vault else None, more)


def status(run):
    """What a run says of itself, once it has gone through JSON and no secret was found in it."""
    told = run.ask("status")
    text = json.dumps(told, allow_nan=False)
    assert run.own.hits("status", text.encode()) == []
    assert json.loads(text) == told
    return dict(told)
