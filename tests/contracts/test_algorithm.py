"""One contract for every algorithm that is listed: one part a way of learning.

The sixth, which a package other than the product might bring, is registered here and kept to it.
"""

import copy
import functools
import json
import math
import pickle
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import settings as settings_of_hypothesis
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from privbo_plugins.algorithms import registry
from privbo_plugins.algorithms.duets import DUETSConfig
from privbo_plugins.algorithms.ldp_gp_ucb.config import UCBConfig
from privbo_plugins.algorithms.po_gp_ucb import RowsConfig, modeler, row_space
from privbo_plugins.algorithms.protocols import START, Evaluation, Release
from privbo_plugins.privacy.local import make_mechanism
from privbo_plugins.privacy.mechanisms import SENSITIVITY_SLACK
from privbo_plugins.privacy.noise import InsecureNoise
from privbo_plugins.settings import evolve
from privbo_plugins.spaces import Categorical, Float, Int, Space
from tests import sixth
from tests.crosses import crossed
from tests.engine.helpers import answer

registry.register(sixth.ENTRY)
CENTRAL_ALGORITHMS = registry.classes(registry.CENTRAL)
REWARD_ALGORITHMS = registry.classes(registry.REWARD)
ROW_ALGORITHMS = registry.classes(registry.ROW)
DISTRIBUTED_ALGORITHMS = registry.classes(registry.DISTRIBUTED)
ALGORITHMS = CENTRAL_ALGORITHMS | REWARD_ALGORITHMS | ROW_ALGORITHMS | DISTRIBUTED_ALGORITHMS

N = 60
SPACE = Space(
    {
        "a": Float(0.0, 1.0), "b": Float(1e-3, 1e3, log=True), "c": Int(1, 9),
        "d": Categorical(("u", "v", "w")), "e": Float(-1.0, 1.0, step=0.1),
    }
)  # fmt: skip
NUMERIC = Space({"a": Float(0.0, 1.0), "b": Float(0.0, 2.0)})


PARTS = (CENTRAL_ALGORITHMS, REWARD_ALGORITHMS, ROW_ALGORITHMS, DISTRIBUTED_ALGORITHMS)


def test_every_paper_has_its_entry():
    """Five papers; the second has three algorithms and a plain one; and means for any sampler."""
    built_in = {"dp-gibo", "gp-ucb", "tgp-ucb", "ata-gp-ucb", "moma-gp-ucb", "po-gp-ucb",
                "dp-fts-de", "duets", "released-means"}  # fmt: skip
    assert {e.name for e in registry.entries()} == built_in | {sixth.NAME}


@pytest.mark.parametrize("name", ALGORITHMS)
def test_nothing_learnt_recommends_nothing_and_is_a_state(name):
    algorithm = make_any(name)
    with pytest.raises(ValueError, match="nothing to recommend yet"):
        algorithm.recommendation()
    assert json.loads(json.dumps(make_any(name).state_dict())) == algorithm.state_dict()


def make_any(name):
    """An algorithm of any part, that has learnt nothing."""
    makers = (make, make_ucb, make_rows, make_duets)
    return next(m for m, part in zip(makers, PARTS, strict=True) if name in part)(name)


# Algorithms that tune on per-record losses ------------------------------------------------------


SETTINGS = {
    "dp-gibo": {"mu": 1.0, "n_steps": 3, "n_starts": 4, "clipping_norm": 1.0, "value_share": 0.3,
                "lengthscale": 0.3, "noise_ratio": 0.01, "step_size": 0.2},
    "released-means": {"mu": 1.0, "n_trials": 9},
    sixth.NAME: {"mu": 1.0, "n_trials": 9},
}  # fmt: skip
"""Explicit settings of each, small enough for a quick run."""

VARIANTS = {
    "dp-gibo": [{}, {"memory": -1}, {"memory": 2}, {"clipping_norm": "adaptive"},
                {"as_published": True}, {"n_starts": 0},
                {"n_steps": None, "clipping_norm": None, "lengthscale": None, "n_trials": 60},
                {"kernel": "matern52", "step_rule": "adagrad"}],
    "released-means": [{}, {"n_trials": 1}, {"loss_bound": (-1.0, 2.0)}],
    sixth.NAME: [{}, {"n_trials": 1}],
}  # fmt: skip
"""What else of each is worth a run."""


def config_of(name, **more):
    return registry.entry(name).load_config()(**(SETTINGS[name] | more))


def make(name, space=SPACE, seed=0, *, n=N, maximize=False, **more):
    kind, config = CENTRAL_ALGORITHMS[name], config_of(name, **more)
    plan = kind.make_plan(config, space, n)
    return kind(config, space, seed=seed, maximize=maximize, plan=plan)


class Driver:
    """Runs a session: evaluates proposals, answers queries exactly or with test noise."""

    def __init__(self, algorithm, seed=0):
        self.algorithm = algorithm
        self.noise = InsecureNoise(seed)
        self.rng = np.random.default_rng(seed)
        self.losses = {}
        self.batch = []
        self.proposals = []
        self.released = []

    def trial(self):
        """One proposal, its value, and the step's releases if the batch is complete."""
        role, step = self.algorithm.phase
        if self.batch and not self.batch[0][0].startswith(f"{role}{step}/"):
            self.batch = []
        proposal = self.algorithm.propose(len(self.batch))
        name = f"{role}{step}/{len(self.batch)}"
        self.batch.append((name, proposal.x))
        self.proposals.append((proposal.role, proposal.step, proposal.slot, proposal.x.tobytes()))
        self.losses[name] = self.rng.uniform(size=N)
        query = self.algorithm.value_query(name, role, step, proposal.x)
        self.learn([] if query is None else [query])
        if role != START and self.algorithm.ready(range(len(self.batch))):
            names, X = zip(*self.batch, strict=True)
            self.learn(self.algorithm.step_queries(names, X))

    def learn(self, queries):
        for query in queries:
            Y = np.column_stack([self.losses[t] for t in query.trials])
            release = answer(query, Y, self.noise)
            meta = json.loads(json.dumps(release.meta))
            self.released.append(Release(release.kind, release.key, release.values, meta))
            self.algorithm.observe(self.released[-1])

    def run(self, trials=500):
        for _ in range(trials):
            if self.algorithm.finished:
                break
            self.trial()
        return self.proposals


each_algorithm = pytest.mark.parametrize("name", CENTRAL_ALGORITHMS)
each_variant = pytest.mark.parametrize(
    ("name", "more"), [(name, more) for name in CENTRAL_ALGORITHMS for more in VARIANTS[name]]
)


@each_variant
def test_settings_travel_in_json_and_are_those_of_their_entry(name, more):
    config = config_of(name, **more)
    again = type(config).from_dict(json.loads(json.dumps(config.to_dict())))
    assert again == pickle.loads(pickle.dumps(config)) == config
    assert registry.entry_of(again).name == name
    assert config.plain() == type(config).from_dict(
        json.loads(json.dumps(config.plain().to_dict()))
    )
    assert math.isinf(config.plain().mu)
    assert config.with_trials(31).n_trials == 31
    assert config.with_trials(31).trials_given
    assert config.with_trials(31).with_trials(config.n_trials) == config


@each_variant
def test_proposing_is_deterministic_and_changes_nothing(name, more):
    """Nor does a query of which nothing came, as of a transaction that was lost."""
    driver = Driver(make(name, **more))
    while not driver.algorithm.finished:
        before = json.dumps(driver.algorithm.state_dict())
        forwards = [driver.algorithm.propose(slot).x for slot in (0, 1, 7, 8)]
        backwards = [driver.algorithm.propose(slot).x for slot in (8, 7, 1, 0)]
        assert np.array_equal(forwards, backwards[::-1])
        point = driver.algorithm.propose(0)
        driver.algorithm.value_query("lost", point.role, point.step, point.x)
        assert json.dumps(driver.algorithm.state_dict()) == before
        driver.trial()


@each_variant
def test_an_algorithm_that_observes_stored_releases_goes_on_identically(name, more):
    for trials in (0, 3, 7, 12, 17):
        one, two = Driver(make(name, **more)), None
        one.run(trials)
        two = copy.copy(one)
        two.algorithm = make(name, **more)
        for release in one.released:
            two.algorithm.observe(release)
        two.noise, two.rng = copy.deepcopy(one.noise), copy.deepcopy(one.rng)
        two.losses, two.batch = dict(one.losses), list(one.batch)
        one.proposals, two.proposals, two.released = [], [], []
        assert one.run() == two.run()
        assert one.algorithm.state_dict() == two.algorithm.state_dict()


@each_algorithm
def test_unknown_releases_are_refused(name):
    algorithm = make(name)
    with pytest.raises(ValueError, match="knows no release of kind 'nonsense'"):
        algorithm.observe(Release("nonsense", "0", (0.0,), {}))


@each_variant
def test_proposals_lie_in_the_space_as_the_host_evaluates_them(name, more):
    driver = Driver(make(name, **more))
    for *_, raw in driver.run():
        x = np.frombuffer(raw)
        params = SPACE.decode(x)
        np.testing.assert_allclose(SPACE.encode(params), x, atol=1e-12)
        for parameter, dim in SPACE.items():
            if isinstance(dim, Categorical):
                assert params[parameter] in dim.choices
            else:
                assert dim.low <= params[parameter] <= dim.high


@each_algorithm
def test_the_seed_decides_the_proposals(name):
    runs = [Driver(make(name, NUMERIC, seed=seed)).run() for seed in (0, 0, 1)]
    assert runs[0] == runs[1]
    assert runs[0] != runs[2]


@each_variant
def test_a_run_finishes_after_its_plan_and_recommends_a_point(name, more):
    algorithm = make(name, **more)
    assert not algorithm.finished
    driver = Driver(algorithm)
    driver.run()
    assert algorithm.finished
    assert len(driver.proposals) == algorithm.plan.n_trials
    assert np.array(algorithm.path).shape == (len(algorithm.path), len(SPACE))
    assert len(algorithm.path) > 0
    x = algorithm.recommendation()
    assert np.array_equal(SPACE.snap(x), SPACE.snap(SPACE.snap(x)))
    assert np.all((x[SPACE.numeric] >= 0) & (x[SPACE.numeric] <= 1))


@each_variant
def test_a_run_costs_what_its_budget_allows_and_no_more(name, more):
    driver = Driver(make(name, **more))
    spent = []
    learn = driver.learn

    def counted(queries):
        spent.extend(query.mu**2 for query in queries)
        learn(queries)

    driver.learn = counted
    driver.run()
    assert sum(spent) == pytest.approx(1.0, rel=1e-9)


record = hnp.arrays(
    float, 3, elements=st.sampled_from([0.0, 1.0, -1e3, 1e6, 1e308, np.nan, np.inf]) | st.floats()
)


LOPSIDED = [
    *(("dp-gibo", more | {"n_starts": 0, "clipping_norm": "adaptive", "loss_bound": (0.5, 2.0)},
       {"gradient", "norm"}) for more in ({}, {"as_published": True})),
    ("released-means", {"loss_bound": (0.5, 2.0)}, set()),
    (sixth.NAME, {"low": 0.5, "high": 2.0}, set()),
]  # fmt: skip
"""Settings under which the first step releases something, and what it releases beside values."""


def test_every_algorithms_statistics_are_tried():
    assert {name for name, *_ in LOPSIDED} == set(CENTRAL_ALGORITHMS)


@pytest.mark.parametrize(("name", "more", "kinds"), LOPSIDED)
@settings_of_hypothesis(max_examples=60)
@given(new=record, where=st.integers(0, 4), seed=st.integers(0, 10**6), maximize=st.booleans())
@example(new=np.full(3, 1e6), where=0, seed=0, maximize=False)
def test_one_record_never_moves_a_statistic_more_than_its_sensitivity(
    name, new, where, seed, maximize, more, kinds
):
    """Through everything done to the losses, for points as lopsided as a host may make them."""
    engine, rng = make(name, NUMERIC, n=5, maximize=maximize, **more), np.random.default_rng(seed)
    X = list(rng.uniform(size=(3, 2)))
    Y = rng.uniform(size=(5, 3))
    other = Y.copy()
    other[where] = new
    queries = [(query, slice(None)) for query in engine.step_queries("abc", X)]
    value = engine.value_query("a", *engine.phase, X[0])
    assert value is not None
    assert {query.kind for query, _ in queries} == kinds
    for query, columns in [*queries, (value, slice(0, 1))]:
        one, two = (query.exact([data[:, columns]]) for data in (Y, other))
        assert np.linalg.norm(one - two) <= query.sensitivity * SENSITIVITY_SLACK


STEPWISE = {"dp-gibo": {"n_starts": 0, "value_share": 0.0}}
"""Settings of algorithms that release something of a whole step, and of nothing else."""


@pytest.mark.parametrize("name", STEPWISE)
@pytest.mark.parametrize("memory", [0, -1, 4])
def test_making_queries_changes_nothing_that_is_learnt_later(name, memory):
    """Queries that were never released (a lost transaction) leave no trace."""
    steps = STEPWISE[name] | {"memory": memory}
    plain, tried = make(name, NUMERIC, **steps), make(name, NUMERIC, **steps)
    rng, taken = np.random.default_rng(0), {}
    for t in range(2):
        slots = range(3)
        X = [plain.propose(slot).x for slot in slots]
        names = [f"{t}/{slot}" for slot in slots]
        taken |= {n: rng.uniform(size=N) for n in names}
        queries = []
        for algorithm in (plain, tried):
            (query,) = algorithm.step_queries(names, X)
            queries.append(query)
        tried.step_queries([f"lost{slot}" for slot in slots], [x * 0.9 for x in X])
        Y = np.column_stack([taken[n] for n in queries[0].trials])
        assert queries[0].trials == queries[1].trials
        released = [answer(query, Y) for query in queries]
        assert released[0].values == pytest.approx(released[1].values, abs=1e-9)
        for algorithm in (plain, tried):
            algorithm.observe(released[0])


# Algorithms that are asked for a point and told a number ---------------------------------------

PRIVATISED = make_mechanism(1.0, bound=1.0, mechanism="laplace").noise
SPACES = {
    "float": Space({"x": Float(-3.0, 7.1)}),
    "log float": Space({"x": Float(1e-5, 10.0, log=True)}),
    "stepped": Space({"x": Float(0.0, 1.0, step=0.1), "y": Float(0.0, 1.0, step=0.3)}),
    "int": Space({"x": Int(-4, 9)}),
    "log int": Space({"x": Int(1, 300, log=True), "y": Int(1, 3)}),
    "many ints": Space({"x": Int(0, 1000), "y": Int(1, 500, log=True)}),
    "one value": Space({"x": Int(3, 3)}),
    "constants": Space({"x": Float(2.0, 2.0), "y": Categorical(("only",)), "z": Int(0, 4)}),
    "mixed": SPACE,
}
TABLES = {
    "spread": np.random.default_rng(0).normal(size=(30, 2)),
    "alike": np.repeat(np.random.default_rng(1).normal(size=(5, 1)), 4, axis=0),
    "constant": np.ones((12, 3)),
    "one row": np.zeros((1, 2)),
}
AGENTS = {
    "default": DUETSConfig(n_agents=3, n_trials=27, discretisation=64),
    "endless": DUETSConfig(n_agents=2, discretisation=64),
    "private": DUETSConfig(
        n_agents=3, n_trials=27, discretisation=64, low=-1.0, high=1.0, noise=PRIVATISED
    ),
    "published": DUETSConfig.paper(3, 9, discretisation=64),
}


@pytest.fixture(scope="module", autouse=True)
def _fitted_once():
    """Hyperparameters of the same outcomes are fitted once: the search for them is dear.

    That it is a function of its arguments is tested with the modeler.
    """
    kept = {}
    fit = modeler.fit

    def fit_once(*arguments):
        key = pickle.dumps(arguments)
        if key not in kept:
            kept[key] = fit(*arguments)
        return kept[key]

    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(modeler, "fit", fit_once)
        yield


def make_ucb(name, space=SPACE, **more):
    how = {key: more.pop(key) for key in ("seed", "maximize") if key in more}
    options = {"low": -1.0, "high": 1.0, "noise": PRIVATISED, "replays": 2, "n_trials": 50} | more
    return REWARD_ALGORITHMS[name](UCBConfig(**options), space, **how)


def make_rows(name, Z=TABLES["spread"], **how):
    config = RowsConfig(Z, noise_sd=0.2, n_startup=2, repeats=how.pop("repeats", True))
    return ROW_ALGORITHMS[name](config, row_space(len(Z)), **how)


def make_duets(name, space=SPACE, config=AGENTS["default"], **how):
    return DISTRIBUTED_ALGORITHMS[name](config, space, **how)


ASKED = {
    **{f"{name}, {where}": functools.partial(make_ucb, name, space)
       for name in REWARD_ALGORITHMS for where, space in SPACES.items()},
    **{f"po-gp-ucb, {which}": functools.partial(make_rows, "po-gp-ucb", Z)
       for which, Z in TABLES.items()},
    "po-gp-ucb, each once": functools.partial(make_rows, "po-gp-ucb", repeats=False),
    **{f"duets, {which}, {where}": functools.partial(make_duets, "duets", space, config)
       for which, config in AGENTS.items() for where, space in SPACES.items()},
}  # fmt: skip
each_asked = pytest.mark.parametrize("make", ASKED.values(), ids=ASKED.keys())
asked_both_ways = pytest.mark.parametrize(
    ("system", "where", "maximize"),
    crossed(((*name.rsplit(", ", 1), up) for name in ASKED for up in (True, False)), axes=2),
)
PLAIN = {name: ASKED[name] for name in ASKED if name.endswith(("mixed", "spread"))}
each_plain = pytest.mark.parametrize("make", PLAIN.values(), ids=PLAIN.keys())
both_directions = pytest.mark.parametrize("maximize", [True, False], ids=["max", "min"])


def learn(algorithm, evaluations, seed=0, first=0):
    """Asks and tells through the parameters, as hosts do; what was asked."""
    rng, asked = np.random.default_rng([seed, first]), []
    for key in range(first, first + evaluations):
        evaluation = algorithm.ask(key)
        asked.append((evaluation.x.tobytes(), evaluation.epoch))
        params = algorithm.space.decode(evaluation.x)
        seen = replace(evaluation, x=algorithm.space.snap(algorithm.space.encode(params)))
        algorithm.tell(seen, float(rng.uniform(-1, 1) + rng.laplace(0.0, 2.0)))
    return asked


def test_every_algorithm_is_asked():
    asked = {name.partition(",")[0] for name in ASKED}
    assert asked | set(CENTRAL_ALGORITHMS) == set(ALGORITHMS)


@asked_both_ways
def test_evaluations_and_recommendations_are_points_that_hosts_evaluate(system, where, maximize):
    """Beyond the horizon of a run of agents too, or when each row has been evaluated."""
    algorithm = ASKED[f"{system}, {where}"](maximize=maximize)
    asked = [np.frombuffer(raw) for raw, _ in learn(algorithm, 30 if "duets" in system else 6)]
    space = algorithm.space
    for x in [*asked, algorithm.recommendation()]:
        assert x.shape == (len(space),)
        assert x.dtype == np.float64
        np.testing.assert_allclose(space.snap(x), x, atol=1e-9)
        for value, dim in zip(space.decode(x).values(), space.values(), strict=True):
            if isinstance(dim, Categorical):
                assert value in dim.choices
            else:
                assert dim.low <= value <= dim.high
    assert len(algorithm.evaluations) == len(asked)


@each_plain
@both_directions
def test_the_seed_decides_the_evaluations(make, maximize):
    runs = [learn(make(seed=seed, maximize=maximize), 12) for seed in (0, 0, 1)]
    assert runs[0] == runs[1]
    assert runs[0] != runs[2]


@each_asked
def test_asking_and_recommending_are_deterministic_and_learn_nothing(make):
    """Neither does a later ask see that there were others, nor does the state."""
    asking, silent = make(), make()
    rng = np.random.default_rng(0)
    for key in range(5):
        before = json.dumps(asking.state_dict())
        evaluation = asking.ask(key)
        out = [evaluation, asking.ask(1000 + key, [evaluation])]
        for pending in ([], out):
            for may_wait in (False, True):
                pair = [asking.ask(key + 1, pending, may_wait=may_wait) for _ in range(2)]
                assert repr(pair[0]) == repr(pair[1])
                assert may_wait or pair[0] is not None
        assert repr(asking.ask(key)) == repr(evaluation)
        if key:
            recommended = asking.recommendation()
            assert np.array_equal(asking.recommendation(), recommended)
        assert json.dumps(asking.state_dict()) == before
        value = float(rng.uniform(-3, 3))
        asking.tell(evaluation, value)
        silent.tell(evaluation, value)
    assert np.array_equal(asking.recommendation(), silent.recommendation())
    assert repr(asking.ask(99)) == repr(silent.ask(99))


@asked_both_ways
def test_a_transcript_travels_in_json_and_goes_on_identically(system, where, maximize):
    make, evaluations = ASKED[f"{system}, {where}"], 1 if maximize else 8
    one, two = make(maximize=maximize), make(maximize=maximize)
    learn(one, evaluations)
    two.load_state_dict(json.loads(json.dumps(one.state_dict(), allow_nan=False)))
    assert two.state_dict() == one.state_dict()
    assert len(two.evaluations) == len(one.evaluations) == evaluations
    assert np.array_equal(one.recommendation(), two.recommendation())
    assert learn(one, 5, first=evaluations) == learn(two, 5, first=evaluations)
    assert two.state_dict() == one.state_dict()


@each_plain
@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
def test_a_reward_that_is_no_number_is_refused_and_leaves_no_trace(make, value):
    algorithm = make()
    learn(algorithm, 5)
    before, evaluation = json.dumps(algorithm.state_dict()), algorithm.ask(7)
    with pytest.raises(ValueError, match=r"(reward|outcome) must be finite"):
        algorithm.tell(evaluation, value)
    assert json.dumps(algorithm.state_dict()) == before
    assert repr(algorithm.ask(7)) == repr(evaluation)


@each_plain
def test_values_that_are_told_are_all_that_is_read(make):
    """The state holds the evaluations told, and asking adds nothing to it."""
    algorithm = make()
    algorithm.ask(1, [algorithm.ask(0)])
    assert not any(algorithm.state_dict().values())
    learn(algorithm, 4)
    state = algorithm.state_dict()
    assert set(state) <= {"evaluations", "lost"}
    assert [len(x) for x, *_ in state["evaluations"]] == [len(algorithm.space)] * 4
    assert all(isinstance(value, float) for *_, value in state["evaluations"])


CHOICE = Space({"x": Categorical(("bad", "good"))})
BETTER = {
    **{name: functools.partial(make_ucb, name, CHOICE, replays=1, noise=None)
       for name in REWARD_ALGORITHMS},
    "po-gp-ucb": functools.partial(make_rows, "po-gp-ucb", np.array([[-5.0], [5.0]])),
    **{f"duets, {which}": functools.partial(
        make_duets, "duets", CHOICE, evolve(config, noise=None)
    ) for which, config in AGENTS.items()},
}  # fmt: skip


@pytest.mark.parametrize("make", BETTER.values(), ids=BETTER.keys())
@both_directions
def test_the_better_of_two_is_recommended(make, maximize):
    """Both are evaluated; the second one is better."""
    algorithm = make(maximize=maximize)
    for key in range(24):
        evaluation = algorithm.ask(key)
        if key < 12 and evaluation.agent is None:
            evaluation = replace(evaluation, x=np.array([float(key % 2)]))
        reward = 0.5 if evaluation.x[0] else -0.5
        algorithm.tell(evaluation, reward if maximize else -reward)
    assert {float(evaluation.x[0]) for evaluation, _ in algorithm.evaluations} == {0.0, 1.0}
    assert algorithm.recommendation().tolist() == [1.0]


@pytest.mark.parametrize("name", REWARD_ALGORITHMS)
def test_evaluations_of_others_off_the_grid_are_learnt_where_they_were_evaluated(name):
    """Points told need not have been asked for, nor snapped."""
    one, two = make_ucb(name), make_ucb(name)
    for epoch, x in enumerate(np.random.default_rng(0).uniform(size=(6, len(SPACE)))):
        for _ in range(2):
            one.tell(Evaluation(x, epoch), 0.3)
            two.tell(Evaluation(SPACE.snap(x), epoch), 0.3)
    assert np.array_equal(one.ask(0).x, two.ask(0).x)
    assert np.array_equal(one.recommendation(), two.recommendation())
