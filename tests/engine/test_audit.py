"""Empirical audits: no release may tell neighbours apart better than it claims.

A mechanism is run many times on two data sets that differ in one record. A threshold on the most
telling score is chosen on half the runs; Clopper-Pearson bounds on the other half turn its error
rates into a lower bound on mu. With confidence .9999 a correct mechanism is accused once in 10**4
audits (seven audits of correct code here: false alarm 7e-4 at most, and far less in truth, since
the threshold's true rates would have to lie on the boundary).

Of a claim of 2, 600 runs show 1.30 with standard deviation .12 and the power checks ask for .6;
4000 runs, a soak, show 1.72 with standard deviation .055 and the checks ask for 1.4 (false alarm
1e-8 each). Half the noise is a true mu of 4, of which 600 runs show 2.84 with standard deviation
.14: they miss it once in 10**8. Of 3.4, which is composition forgotten, they show 2.43, and its
mutants have seeds and 500 runs, as before; 4000 runs accuse, all but once in 10**6, from 2.7 on.

Mutants are built here, never in the engine, and every one of them must be found out. Those that
do not break the noise itself draw it from a seed, so that nothing about them is random.
"""

import dataclasses
import functools
import math

import numpy as np
import pytest

from privbo_plugins.algorithms import registry
from privbo_plugins.algorithms.dp_gibo import DPGIBO, GIBOConfig, batches, make_plan
from privbo_plugins.algorithms.protocols import Release
from privbo_plugins.algorithms.released_means import MeansConfig
from privbo_plugins.errors import BudgetExceededError
from privbo_plugins.privacy.mechanisms import gaussian_scale
from privbo_plugins.privacy.noise import InsecureNoise, SecureNoise
from privbo_plugins.sessions.reader import Published
from privbo_plugins.sessions.records import Session
from privbo_plugins.store.vault import open_vault
from tests.inside import algorithm_in, noise_of, weights_of_a_step
from tests.sixth import SixthConfig

from .auditing import audited_mu
from .helpers import cube, run_session, start

pytestmark = pytest.mark.filterwarnings("ignore::privbo_plugins.errors.UtilityWarning")
RUNS, SOAK_RUNS = 600, 4000
"""Runs on each of the two data sets, for correct code."""

MUTANT_RUNS = 500
CLAIM = 2.0
POWER = {RUNS: 0.3, SOAK_RUNS: 0.7}
"""Shares of the claim that an audit must show."""

each_size = pytest.mark.parametrize(
    "runs", [RUNS, pytest.param(SOAK_RUNS, marks=pytest.mark.soak)]
)
N = 20


@each_size
@pytest.mark.parametrize("mu", [0.0, 1.0, 2.0, 3.0])
def test_the_audit_itself_is_sound_and_has_power(mu, runs):
    """On Gaussian shifts of known size, with fixed seeds; 50 audits each, none may accuse."""
    rng = np.random.default_rng(int(mu))
    bounds = []
    for _ in range(50):
        scores = rng.standard_normal((2, runs))
        bounds.append(audited_mu(scores[0].tolist(), (scores[1] + mu).tolist()))
    assert max(bounds) <= mu
    if mu >= 2:
        assert min(bounds) >= POWER[runs] * mu


# Releases of the engine ---------------------------------------------------------------------


class HalfNoise(SecureNoise):
    """Mutant: noise of half the scale."""

    def add_gaussian(self, value, scale):
        return super().add_gaussian(value, scale / 2)


class SeededNoise:
    """Mutant: every run starts from the same seed."""

    def add_gaussian(self, value, scale):
        return InsecureNoise(0).add_gaussian(value, scale)


def unclipped_mean(blocks, B):
    """Mutant: forgets to clip."""
    return np.vstack(list(blocks)).mean(0)


def mean_clipped_by_coordinate(blocks, B):
    """Mutant: bounds each coordinate instead of the norm."""
    return np.clip(np.vstack(list(blocks)), -B, B).mean(0)


def gradient_query(norm=0.5):
    """The gradient release of one step, and losses that differ in one record, at the worst.

    That record's gradient is 1.5 (1, 1, 1, 1) on one side and its opposite on the other.
    """
    config = GIBOConfig(
        mu=CLAIM, n_steps=1, n_starts=0, clipping_norm=norm, value_share=0.0, lengthscale=0.3,
        noise_ratio=0.01, step_size=0.1,
    )  # fmt: skip
    engine = start(config, cube(4), N)
    X = [engine.propose(slot).x for slot in range(5)]
    Y = np.random.default_rng(0).uniform(size=(N, 5))
    (query,) = engine.step_queries(list("abcde"), X)
    W = weights_of_a_step(engine, np.array(X))
    Y[0] = 1.5 * np.ones(4) @ np.linalg.pinv(W)
    other = Y.copy()
    other[0] = -Y[0]
    return query, Y, other


def audit_query(query, Y, other, noise, runs):
    exact = [query.exact([data]) for data in (Y, other)]
    direction = exact[1] - exact[0]
    scale = gaussian_scale(query.sensitivity, query.mu)
    scores = [
        [float(direction @ noise.add_gaussian(value, scale)) for _ in range(runs)]
        for value in exact
    ]
    return audited_mu(*scores)


def comparison_query():
    """The comparison that ends a run, and a record whose differences are all clipped."""
    mu = CLAIM * WHOLE.mu / whole_plan().mu_comparison
    engine = start(GIBOConfig.from_dict(WHOLE.to_dict() | {"mu": mu}), cube(1), N)
    run = Adversary(engine, 0, InsecureNoise(0))
    run.watch()
    Y = np.full((N, len(run.last.trials)), 0.5)
    Y[0] = np.linspace(0.0, 1.0, Y.shape[1])
    other = Y.copy()
    other[0] = 1.0 - Y[0]
    return run.last, Y, other


@each_size
@pytest.mark.parametrize(
    ("made", "sensitivity"),
    # B = .0126 n mu / (2 sqrt(d)), a figure of public quantities, where it is planned.
    [(gradient_query, 1.0 / N), (functools.partial(gradient_query, None), 0.0126 * CLAIM / 2),
     (comparison_query, 0.2 / N)],
    ids=["gradient", "planned", "comparison"],
)  # fmt: skip
def test_a_release_of_several_points_is_as_private_as_it_claims(made, sensitivity, runs):
    query, Y, other = made()
    assert query.mu == pytest.approx(CLAIM)
    assert query.sensitivity == pytest.approx(sensitivity, rel=1e-5)
    # tight: of 20000 audits of such a release the least showed .36 of the claim
    moved = query.exact([Y]) - query.exact([other])
    assert np.linalg.norm(moved) == pytest.approx(sensitivity, rel=1e-5)
    bound = audit_query(query, Y, other, SecureNoise(), runs)
    assert POWER[runs] * CLAIM <= bound <= CLAIM


def test_the_audit_flags_a_planned_norm_that_only_the_noise_knows(monkeypatch):
    """Gradients clipped to 1, as before norms were planned."""
    clip = batches.mean_of_clipped_rows
    monkeypatch.setattr(batches, "mean_of_clipped_rows", lambda blocks, _: clip(blocks, 1.0))
    query, Y, other = gradient_query(None)
    assert audit_query(query, Y, other, InsecureNoise(0), RUNS) > CLAIM


@pytest.mark.parametrize("noise", [HalfNoise(), SeededNoise()], ids=["half", "seeded"])
def test_the_audit_flags_a_broken_noise_source(noise):
    query, Y, other = gradient_query()
    assert audit_query(query, Y, other, noise, RUNS) > CLAIM


@pytest.mark.parametrize("mutant", [unclipped_mean, mean_clipped_by_coordinate])
def test_the_audit_flags_broken_clipping(mutant, monkeypatch):
    monkeypatch.setattr(batches, "mean_of_clipped_rows", mutant)
    query, Y, other = gradient_query()
    assert audit_query(query, Y, other, InsecureNoise(0), RUNS) > CLAIM


# Values, through a session ------------------------------------------------------------------


class Redrawing(Session):
    """Mutant: a trial that is told again gets fresh noise instead of its stored release."""

    def _record(self, tx, trial, params, y, enqueued=None):
        row = tx.trial(trial)
        query = self._known().algorithm.value_query(trial, "start", -1, np.zeros(1))
        if row is None or row.state != "done" or query is None:
            return super()._record(tx, trial, params, y, enqueued)
        scale = gaussian_scale(query.sensitivity, query.mu)
        noisy = noise_of(self).add_gaussian(query.exact([y[:, None]]), scale)
        return Published(float(noisy[0]) + query.offset, "start", -1), False


def audit_values(kind, noise, runs, tells, combine):
    """Every trial is one run of the value release; whoever retries sees all its answers."""
    losses = np.full((2, 10), 0.5)
    losses[:, 0] = [-7.0, np.nan]  # clipped to 0, and the constant 1 for what is no number
    scores = ([], [])
    for i in range(2 * runs):
        if i % PER_SESSION == 0:
            session = value_session(kind, noise)
        data = i % 2
        told = [session.tell(str(i), {"x00": 0.5}, cube(1), losses[data])[0] for _ in range(tells)]
        # shown beside what is told, which is made of draws alone
        drawn = session.published([str(i)])[str(i)].draw
        draw = told[0] if drawn is None else drawn
        scores[data].append(combine([draw if value == told[0] else value for value in told]))
    assert session.plan.mu_value == pytest.approx(CLAIM)
    return audited_mu(*scores)


PER_SESSION = 200


def value_session(kind, noise):
    """A session with room for many start points, each of which costs CLAIM."""
    starts = PER_SESSION + 1
    config = functools.partial(
        GIBOConfig, n_steps=1, batch_size=1, n_starts=starts, clipping_norm=1.0, value_share=0.5,
        lengthscale=0.3, noise_ratio=0.01, step_size=0.1,
    )  # fmt: skip
    likely = CLAIM * math.sqrt(2 * starts)  # near enough that values name a third point alike
    config = config(mu=CLAIM * likely / make_plan(config(mu=likely), cube(1), N).mu_value)
    session = kind.open(open_vault(), "run", config, maximize=False, seed=0, noise=noise)
    session.set_space(cube(1))
    return session


@pytest.mark.slow
@each_size
def test_the_value_release_is_as_private_as_it_claims_however_often_it_is_asked_for(runs):
    """Four times: fresh draws would have a true mu of 4."""
    bound = audit_values(Session, SecureNoise(), runs, 4, np.mean)
    assert POWER[runs] * CLAIM <= bound <= CLAIM


@pytest.mark.slow
@pytest.mark.parametrize(("combine", "runs"), [(np.mean, 300), (min, 600)], ids=["mean", "best"])
def test_the_audit_flags_a_fresh_draw_on_retry(combine, runs):
    """Best of five: the least of five draws, or their mean, tells more than one.

    The mean has a true mu of 4.5, of which 300 runs show more than the claim.
    """
    assert audit_values(Redrawing, InsecureNoise(0), runs, 5, combine) > CLAIM


@pytest.mark.slow
@pytest.mark.parametrize(
    ("noise", "runs"), [(HalfNoise(), RUNS), (SeededNoise(), 200)], ids=["half", "seeded"]
)
def test_the_audit_flags_a_broken_noise_source_behind_values(noise, runs):
    assert audit_values(Session, noise, runs, 1, np.mean) > CLAIM


# Whole runs ---------------------------------------------------------------------------------

STEPS = 2
WHOLE = GIBOConfig(
    mu=CLAIM, n_steps=STEPS, n_starts=0, batch_size=2, clipping_norm=0.5, value_share=0.3,
    lengthscale=0.3, noise_ratio=0.01, step_size=0.1,
)  # fmt: skip


@functools.cache
def whole_plan():
    return make_plan(WHOLE, cube(1), N)


def losses_of(data, x):
    """The first record's loss rises steeply, or falls: every release differs the most it can."""
    y = (x[0] - np.linspace(0.2, 0.8, N)) ** 2
    y[0] = (1 - 2 * data) * (50.0 * (x[0] - 0.5) + 25.1)
    return y


class Adversary:
    """Adds up the log-likelihood ratio of everything that a run publishes."""

    def __init__(self, engine, data, noise):
        self.engine, self.data, self.noise = engine, data, noise
        self.ratio = 0.0

    def see(self, query, points):
        self.last = query
        tables = [np.column_stack([losses_of(s, x) for x in points]) for s in (0, 1)]
        null, other = exact = [query.exact([Y]) for Y in tables]
        scale = gaussian_scale(query.sensitivity, query.mu)
        noisy = self.noise.add_gaussian(exact[self.data], scale)
        self.ratio += float((noisy - (null + other) / 2) @ (other - null)) / scale**2
        published = tuple((noisy + query.offset).tolist())
        self.engine.observe(Release(query.kind, query.key, published, query.meta))

    def watch(self):
        engine = self.engine
        while not engine.finished:
            (role, step), points = engine.phase, {}
            for slot in range(engine.batch_capacity if isinstance(engine, DPGIBO) else 1):
                trial = f"{role}{step}/{slot}"
                points[trial] = engine.propose(slot).x
                query = engine.value_query(trial, role, step, points[trial])
                self.see(query, [points[trial]])
            for query in engine.step_queries(list(points), list(points.values())):
                self.see(query, [points[trial] for trial in query.trials])
        return self.ratio


def audit_runs(plan, noise, runs, config=WHOLE):
    make = functools.partial(registry.algorithm_of(config), config, cube(1), plan=plan)
    scores = [
        [Adversary(make(seed=0, maximize=False), data, noise).watch() for _ in range(runs)]
        for data in (0, 1)
    ]
    return audited_mu(*scores)


@pytest.mark.slow
@each_size
def test_a_whole_run_is_as_private_as_it_claims(runs):
    """Two gradients, all values and the comparison, each chosen after seeing the earlier ones."""
    bound = audit_runs(whole_plan(), SecureNoise(), runs)
    assert POWER[runs] * CLAIM <= bound <= CLAIM


@pytest.mark.slow
def test_the_audit_flags_forgotten_composition_over_steps():
    """All of it together has a true mu of 3.4."""
    plan = whole_plan()
    each = dataclasses.replace(
        plan,
        mu_gradient=plan.mu_gradient * math.sqrt(plan.n_steps),
        mu_value=plan.mu_value * math.sqrt(plan.n_values),
    )
    assert audit_runs(each, InsecureNoise(0), MUTANT_RUNS) > CLAIM


BY_VALUES = [SixthConfig(CLAIM, n_trials=5), MeansConfig(CLAIM, n_trials=5)]
"""Algorithms that release one value a trial; of the first the product has never heard."""

each_of_values = pytest.mark.parametrize("config", BY_VALUES, ids=lambda c: c.algorithm)


@pytest.mark.slow
@each_size
@each_of_values
def test_a_whole_run_of_released_values_is_as_private_as_it_claims(runs, config):
    plan = registry.algorithm_of(config).make_plan(config, cube(1), N)
    assert plan.value_noise == pytest.approx(math.sqrt(5) / (N * CLAIM), rel=1e-5)
    bound = audit_runs(plan, SecureNoise(), runs, config)
    assert POWER[runs] * CLAIM <= bound <= CLAIM


@pytest.mark.slow
@each_of_values
def test_the_audit_flags_released_values_that_forgot_to_compose(config):
    """All of it together has a true mu of 4.5, of which 300 runs show more than the claim."""
    plan = registry.algorithm_of(config).make_plan(config, cube(1), N)
    each = dataclasses.replace(plan, mu_value=CLAIM)
    assert audit_runs(each, InsecureNoise(0), 300, config) > CLAIM


def test_the_ledger_stops_a_plan_that_forgot_to_compose():
    session = Session.open(open_vault(), "run", WHOLE, maximize=False, seed=0, noise=SecureNoise())
    session.set_space(cube(1))
    first = session.ask("first").x
    session.tell("first", cube(1).decode(first), cube(1), losses_of(0, first))
    engine = algorithm_in(session)
    plan = engine.plan
    engine.plan = dataclasses.replace(plan, mu_gradient=plan.mu_gradient * math.sqrt(plan.n_steps))
    with pytest.raises(BudgetExceededError):
        run_session(session, lambda x: losses_of(0, x))
    assert sum(c.mu**2 for c in session.ledger()) <= CLAIM**2 * (1 + 1e-9)
