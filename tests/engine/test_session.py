"""Whole runs: what is charged, published, replayed, kept and refused."""

import json
import math
from collections import Counter

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from numpy.testing import assert_allclose

from privbo_plugins.algorithms.dp_gibo import DPGIBO, GIBOConfig
from privbo_plugins.algorithms.protocols import Release
from privbo_plugins.errors import BudgetExceededError, PrivacyError, SpaceChangedError
from privbo_plugins.models.estimates import Estimator
from privbo_plugins.models.kernels import RBF
from privbo_plugins.privacy.figures import not_below
from privbo_plugins.privacy.noise import InsecureNoise, SecureNoise
from privbo_plugins.spaces import Categorical, Float, Space
from privbo_plugins.store.vault import open_vault
from tests.inside import algorithm_in, draws_through, n_compared, unspent

from .helpers import cube, decoded, in_threads, open_session, quadratic, run_session, tell

pytestmark = pytest.mark.filterwarnings("ignore::privbo_plugins.errors.UtilityWarning")
N = 40


def config(**more):
    return GIBOConfig(
        **{"mu": 1.0, "n_steps": 3, "n_starts": 2, "clipping_norm": 0.5, "value_share": 0.3,
           "lengthscale": 0.3, "noise_ratio": 0.01, "step_size": 0.15} | more
    )  # fmt: skip


def spent(session):
    return math.sqrt(math.fsum(c.mu**2 for c in session.ledger() if c.population == "validation"))


def keys(session):
    return [(c.kind, c.key) for c in session.ledger()]


def check_books(session):
    """Every release charged once, every charge released once, all within the budget."""
    released = [(r.kind, r.key) for r in session.releases()]
    charged = Counter(keys(session))
    assert max(charged.values(), default=0) <= 1
    assert Counter(released) == charged
    assert spent(session) <= session.config.mu * (1 + 1e-9)


# A whole run --------------------------------------------------------------------------------


def test_a_whole_run_finds_the_minimum_and_spends_exactly_its_budget():
    losses, best = quadratic(3000, 2, 0)
    session = open_session(config(mu=8.0, n_steps=12, n_starts=3), cube(2))
    values = run_session(session, losses)
    assert session.plan.n_trials == 3 + 12 * 3 + 3
    compared = n_compared(session.releases())
    assert len(values) == 3 + 12 * 3 + compared
    assert session.finished
    assert spent(session) ** 2 + unspent(session.plan, compared) == pytest.approx(64.0, rel=1e-9)
    check_books(session)
    assert_allclose(decoded(cube(2), session.recommendation()), best, atol=0.1)
    assert values[-1] == pytest.approx(losses(best).mean(), abs=0.05)
    before = keys(session)
    for i in range(3):  # trials after the end are answered and cost nothing
        assert tell(session, f"late{i}", losses) == pytest.approx(losses(best).mean(), abs=0.05)
    assert keys(session) == before
    assert not session.guarantee().protected
    assert "test source" in session.guarantee().details()


def test_released_values_are_the_clipped_mean_plus_the_planned_noise():
    """The exact statistic is known here, so the noise that was added shows: 5 sd, alarm 1e-5."""
    losses, _ = quadratic(N, 2, 0)
    session = open_session(config(n_steps=30, loss_bound=0.02), cube(2))
    exact = []
    while not session.finished:
        x = session.ask(f"t{len(exact)}").x
        session.tell(f"t{len(exact)}", cube(2).decode(x), cube(2), losses(x))
        exact.append(np.clip(losses(x), 0, 0.02).mean())
    values = [r.values[0] for r in session.releases() if r.kind == "value"]
    noise = (np.array(values) - exact) / session.plan.value_noise
    # The plan's own noise: (C/n) sqrt(M) / mu_v, and mu_v² is .3 of .93.
    expected = 0.02 / N * math.sqrt(len(values) / 0.279)
    assert session.plan.value_noise == pytest.approx(expected, rel=1e-5)
    assert 0.6 < noise.std() < 1.4
    assert abs(noise.mean()) < 5 / math.sqrt(len(values))


def test_gradients_carry_the_published_formula_of_noise():
    session = open_session(config(n_steps=7, mu=0.6), cube(2))
    run_session(session, quadratic(N, 2, 0)[0])
    gradients = [c for c in session.ledger() if c.kind == "gradient"]
    assert len(gradients) == 7
    for c in gradients:
        assert c.sensitivity == pytest.approx(2 * 0.5 / N)
        assert c.scale == pytest.approx(
            2 * 0.5 * math.sqrt(7) / (N * 0.6 * math.sqrt(0.651)), rel=1e-5
        )


# Replay -------------------------------------------------------------------------------------


def test_a_trial_told_again_gets_its_point_and_release_again_and_costs_nothing():
    losses, _ = quadratic(N, 2, 0)
    session = open_session(config(), cube(2), noise=SecureNoise())
    for i in range(6):
        point = session.ask(f"t{i}").x
        assert np.array_equal(session.ask(f"t{i}").x, point)
        value = tell(session, f"t{i}", losses)
        before, releases = keys(session), len(session.releases())
        assert np.array_equal(session.ask(f"t{i}").x, point)
        params = cube(2).decode(point)
        for other in (losses(np.zeros(2)), np.full(N, np.nan), losses(np.ones(2)) + 5):
            again = session.tell(f"t{i}", params, cube(2), other)[0]
            assert again == value
            with pytest.raises(PrivacyError, match="a release at other parameters"):
                session.tell(f"t{i}", {"x00": 0.1, "x01": 0.2}, cube(2), other)
        assert keys(session) == before
        assert len(session.releases()) == releases


def in_turn(*functions):
    """Each call goes to the next function."""
    rest = iter(functions)
    return lambda *given: next(rest)(*given)


def test_an_interrupted_release_is_made_anew_and_charged_once():
    losses, _ = quadratic(N, 2, 0)
    session = open_session(config(), cube(2), noise=SecureNoise())
    for i in range(4):
        tell(session, f"t{i}", losses)
    x = session.ask("t4").x

    def pass_by(draw, value):
        return draw(value)

    def crash(draw, value):
        raise KeyboardInterrupt

    before = keys(session)
    for broken in (crash, in_turn(pass_by, crash)):  # the value, and then the step after it
        with draws_through(broken), pytest.raises(KeyboardInterrupt):
            session.tell("t4", cube(2).decode(x), cube(2), losses(x))
    assert len(keys(session)) == len(before) + 1
    session.ask("t5")  # any worker makes the overdue release
    assert ("gradient", "0") in keys(session)
    check_books(session)


# What is refused ----------------------------------------------------------------------------


def test_a_refused_first_vector_does_not_fix_the_number_of_records():
    session = open_session(config(), cube(1))
    with pytest.raises(ValueError, match="shape"):
        session.tell("a", {"x00": 0.5}, cube(1), np.ones((3, 3)))
    with pytest.raises(KeyError):
        session.tell("a", {"other": 0.5}, cube(1), np.ones(7))
    assert session.plan is None
    tell(session, "a", quadratic(N, 1, 0)[0])
    assert session.plan.n_records == N


def test_another_space_is_refused():
    session = open_session(config(), cube(1))
    losses, _ = quadratic(N, 1, 0)
    tell(session, "a", losses)
    wider = Space({"x00": Float(0.0, 2.0)})
    with pytest.raises(SpaceChangedError):
        session.tell("b", {"x00": 0.5}, wider, np.ones(N))
    with pytest.raises(SpaceChangedError):
        session.set_space(wider)
    assert len(session.ledger()) == 1
    late = open_session(config(), vault=session.run.vault)
    with pytest.raises(SpaceChangedError):
        late.set_space(wider)


@pytest.mark.parametrize(
    ("change", "told"),
    [({"mu": 2.0}, "mu=1.0 then and 2.0 now"), ({"n_steps": 9}, "n_steps"),
     ({"clipping_norm": math.inf, "mu": math.inf}, "mu"), ({"memory": 3}, "memory")],
)  # fmt: skip
def test_a_run_cannot_be_joined_with_other_settings(change, told):
    vault = open_vault()
    open_session(config(), vault=vault)
    with pytest.raises(ValueError, match=told):
        open_session(config(**change), vault=vault)
    with pytest.raises(ValueError, match="direction"):
        open_session(config(), vault=vault, maximize=True)
    assert open_session(config(), vault=vault, seed=99).seed == 0
    assert open_session(config(**change), vault=vault, host_key="another").config.mu > 0


def test_plain_floats_never_mix_with_private_runs():
    private, plain = (open_session(config(), cube(1), noise=SecureNoise()) for _ in range(2))
    tell(private, "a", quadratic(N, 1, 0)[0])
    for session in (private, plain):
        session.ask("b")
        session.tell_plain("b", {"x00": 0.5}, cube(1), 0.123)
        assert not session.guarantee().protected
        assert session.guarantee().epsilon_at(1e-5) == math.inf
    with pytest.raises(PrivacyError, match="started with plain floats"):
        plain.tell("c", {"x00": 0.5}, cube(1), np.ones(N))
    assert "b" not in private.published()


def test_a_ledger_that_is_already_full_refuses_before_anything_is_drawn():
    from privbo_plugins.privacy.ledger import Charge

    drawn = []

    class Watched(InsecureNoise):
        def add_gaussian(self, value, scale):
            drawn.append(value)
            return super().add_gaussian(value, scale)

    session = open_session(config(), cube(1), noise=Watched(0))
    with session.run.vault.transaction(session.run.run_id) as tx:
        tx.charge(Charge("value", "elsewhere", 1.0, 1.0, 1.0))
    x = session.ask("a").x
    with pytest.raises(BudgetExceededError):
        session.tell("a", cube(1).decode(x), cube(1), np.ones(N))
    assert drawn == []
    assert session.releases() == []
    assert "a" not in session.published()
    assert session.plan is None


# Slots --------------------------------------------------------------------------------------


def test_failed_trials_give_their_slots_back():
    session = open_session(config(n_starts=3), cube(1))
    points = {t: session.ask(t) for t in "abc"}
    session.fail("b")
    session.run.note("a remark")
    assert session.ask("d").slot == points["b"].slot
    assert np.array_equal(session.ask("d").x, points["b"].x)
    assert session.ask("b").slot == 3
    tell(session, "a", quadratic(N, 1, 0)[0])
    for trial in "ac":
        session.fail(trial)
    assert "a" in session.published()
    notes = session.guarantee().notes
    assert "a remark" in notes
    assert "failed or were pruned" in " ".join(notes)


def test_extra_trials_beyond_a_batch_inform_the_step_and_cost_nothing():
    losses, _ = quadratic(N, 2, 0)
    session = open_session(config(n_starts=0), cube(2))
    proposals = [session.ask(f"t{i}") for i in range(5)]
    assert [p.slot for p in proposals] == [0, 1, 2, 3, 4]
    assert len({p.x.tobytes() for p in proposals}) == 5
    for i in (3, 4, 0):
        tell(session, f"t{i}", losses)
    assert ("gradient", "0") in keys(session)
    late = session.tell("t1", cube(2).decode(proposals[1].x), cube(2), losses(proposals[1].x))
    assert late.carried
    released = {r.key: r.values[0] for r in session.releases() if r.kind == "value"}
    assert "t1" not in released
    points = [session.releases()[i].meta["x"] for i in range(3)]
    told = list(zip(points, [released[t] for t in ("t3", "t4", "t0")], strict=True))
    sigma = session.plan.value_noise
    estimator = Estimator(cube(2), (0.0, 1.0), sigma, maximize=False)
    assert late[0] == estimator.at(proposals[1].x, told)  # earlier releases only
    assert session.published()["t1"].draw is None
    assert session.run.held_losses() == []
    check_books(session)


def test_trials_that_nobody_asked_for_carry_values():
    losses, _ = quadratic(N, 2, 0)
    session = open_session(config(n_starts=1), cube(2))
    tell(session, "start", losses)
    for i in range(4):
        params = {"x00": 0.1 * i, "x01": 0.2}
        told = session.tell(f"own{i}", params, cube(2), losses(np.array([0.1 * i, 0.2])))
        assert (told.label, told.carried) == ("outside", True)
        assert math.isfinite(told.value)
    assert session.run.held_losses() == []
    run_session(session, losses)
    check_books(session)
    assert spent(session) == pytest.approx(1.0)


@pytest.mark.parametrize("name", ["final", "0", "gradient", "x" * 100, "é∞"])
def test_no_name_of_a_trial_can_get_in_the_way_of_the_run(name):
    losses, _ = quadratic(N, 1, 0)
    session = open_session(config(), cube(1))
    tell(session, name, losses)
    run_session(session, losses, limit=60)
    assert session.finished
    check_books(session)


# Interleavings ------------------------------------------------------------------------------

actions = st.lists(
    st.tuples(
        st.integers(0, 2),
        st.sampled_from(["ask", "tell", "tell", "tell", "fail", "again", "own", "join"]),
        st.integers(0, 30),
    ),
    min_size=20,
    max_size=120,
)


class Workers:
    """Several sessions of one run, and what each trial was first told."""

    def __init__(self, sessions, settings_of_run, space):
        self.vault = open_vault()
        self.config, self.space = settings_of_run, space
        self.sessions = [self.join(i) for i in range(sessions)]
        self.losses, _ = quadratic(N, len(space), 0)
        self.first = {}
        self.out = []

    def join(self, seed):
        return open_session(
            self.config, self.space, vault=self.vault, noise=InsecureNoise(seed), seed=seed
        )

    def act(self, index, action, pick):
        session = self.sessions[index % len(self.sessions)]
        getattr(self, action)(session, pick)

    def join_again(self, session, pick):
        self.sessions[self.sessions.index(session)] = self.join(pick)

    def ask(self, session, pick):
        trial = f"t{len(self.out)}"
        self.out.append(trial)
        proposal = session.ask(trial)
        latecomer = self.join(0)  # knows nothing but what is stored
        latecomer.refresh()
        assert algorithm_in(latecomer).phase == (proposal.role, proposal.step)
        return trial

    def tell(self, session, pick):
        open_trials = [t for t in self.out if t not in self.first]
        trial = open_trials[pick % len(open_trials)] if open_trials else self.ask(session, pick)
        self.first[trial] = tell(session, trial, self.losses)

    def fail(self, session, pick):
        if self.out:
            session.fail(self.out[pick % len(self.out)])

    def again(self, session, pick):
        if self.first:
            trial = list(self.first)[pick % len(self.first)]
            other = np.random.default_rng(pick).normal(size=N)
            params = self.space.decode(session.ask(trial).x)
            value = session.tell(trial, params, self.space, other).value
            assert value == self.first[trial]

    def own(self, session, pick):
        trial = f"own{len(self.first)}-{pick}"
        x = self.space.uniform(1, np.random.default_rng(pick))[0]
        losses = self.losses(x)
        self.first[trial] = session.tell(trial, self.space.decode(x), self.space, losses)[0]

    def check(self):
        states = []
        for session in self.sessions:
            session.refresh()
            check_books(session)
            states.append(json.dumps(algorithm_in(session).state_dict()))
        assert len(set(states)) == 1
        assert {t: told.value for t, told in self.sessions[0].published().items()} == self.first


CHOICES = Space({"a": Categorical((0, 1, 2)), "b": Categorical(("y", "n")), "x": Float(0.0, 1.0)})
RUNS = [
    *((config(n_steps=2, **more), cube(2)) for more in (
        {}, {"memory": -1}, {"memory": 2}, {"clipping_norm": "adaptive"},
        {"value_share": 0.0, "n_starts": 0},
    )),
    (GIBOConfig(mu=60.0, n_trials=16), cube(2)), (GIBOConfig(mu=3.0, n_trials=16), CHOICES),
]  # fmt: skip
"""Descent with each kind of release, and what is planned of descent, values and choices."""


@settings(max_examples=25)
@given(sessions=st.integers(1, 3), script=actions, run=st.sampled_from(RUNS))
@example(sessions=2, script=[(i, "tell", 7 * i) for i in range(40)], run=RUNS[-1])
def test_the_budget_holds_whatever_happens(sessions, script, run):
    workers = Workers(sessions, *run)
    for step, (index, action, pick) in enumerate(script):
        workers.act(index, "join_again" if action == "join" else action, pick)
        if step % 10 == 0:
            workers.check()
    workers.check()


@pytest.mark.parametrize("where", ["one-session", "a-session-each", "file"])
def test_threads_share_one_budget(where, path):
    vault = open_vault(f"sqlite:///{path}" if where == "file" else None)
    losses, _ = quadratic(N, 2, 0)
    sessions = [
        open_session(config(n_steps=4), cube(2), vault=vault, noise=InsecureNoise(i))
        for i in range(3)
    ]

    def work(index):
        session = sessions[0 if where == "one-session" else index]
        for i in range(15):
            tell(session, f"w{index}-{i}", losses)

    assert in_threads(3, work) == []
    first = sessions[0]
    first.refresh()
    assert first.finished
    check_books(first)
    left = unspent(first.plan, n_compared(first.releases()))
    assert spent(first) ** 2 + left == pytest.approx(1.0)
    assert len(first.published()) == 45


# Extensions ---------------------------------------------------------------------------------


def test_declared_training_is_added_up_apart_from_the_budget():
    losses, _ = quadratic(N, 1, 0)
    session = open_session(config(training_mu=0.5), cube(1), noise=SecureNoise())
    for i in range(4):
        session.charge_training(f"t{i}/first")
        tell(session, f"t{i}", losses)
    session.charge_training("t3/second")  # a retry trains again and pays again
    training = [c for c in session.ledger() if c.population == "training"]
    assert [c.mu for c in training] == [0.5] * 5
    assert spent(session) <= 1.0
    told = session.guarantee()
    assert told.protected
    assert "5 trainings declared 0.5-GDP each compose to 1.119-GDP" in told.details()
    free = open_session(config(), cube(1))
    free.charge_training("a")
    assert free.ledger() == []
    unplanned = open_session(config(training_mu=0.5), cube(1))
    for i in range(100):
        unplanned.charge_training(f"t0/{i}")
    with pytest.raises(BudgetExceededError, match="100 trainings were charged"):
        unplanned.charge_training("t0/more")


def test_trainings_end_with_three_for_each_planned_trial_as_the_plan_says():
    losses, _ = quadratic(N, 1, 0)
    session = open_session(config(training_mu=0.5), cube(1), noise=SecureNoise())
    session.charge_training("t0/first")
    tell(session, "t0", losses)
    plan = session.plan
    assert plan.training_total == pytest.approx(0.5 * math.sqrt(plan.n_trials))
    assert f"{plan.n_trials} trainings" in str(plan)
    assert plan.to_dict()["training_mu"] == 0.5
    most = 3 * plan.n_trials
    for i in range(1, most):
        session.charge_training(f"t1/{i}")
    with pytest.raises(BudgetExceededError, match=f"{most} trainings were charged"):
        session.charge_training("t1/more")
    session.charge_training("t1/1")  # charged before: nothing is added
    charged = math.hypot(*[c.mu for c in session.ledger() if c.population == "training"])
    assert charged == pytest.approx(0.5 * math.sqrt(most))
    assert f"after {most} ({not_below(charged, 4)}-GDP) the run ends" in str(plan)
    tell(session, "t1", losses)  # what was trained before can still be told
    assert session.guarantee().protected


def test_an_adaptive_norm_stays_in_budget_and_follows_the_gradients():
    """Gradients are about .02 long: the norm must come down from 1 without overspending."""
    losses, _ = quadratic(2000, 2, 0)
    session = open_session(
        config(clipping_norm="adaptive", n_steps=10, n_starts=0, mu=5.0), cube(2)
    )
    run_session(session, lambda x: 0.1 * losses(x))
    check_books(session)
    assert spent(session) == pytest.approx(5.0)
    kinds = Counter(kind for kind, _ in keys(session))
    assert (kinds["norm"], kinds["gradient"]) == (10, 10)
    gradients = [c for c in session.ledger() if c.kind == "gradient"]
    by_step = sorted(gradients, key=lambda c: int(c.key))
    assert by_step[0].sensitivity == pytest.approx(2 * 1.0 / 2000)
    assert by_step[-1].sensitivity < 0.5 * by_step[0].sensitivity
    for c in by_step:
        assert c.scale * c.mu >= c.sensitivity


@pytest.mark.parametrize(("fraction", "end"), [(1e3, 1e-100), (-1e3, 1e100)])
def test_an_adaptive_norm_never_leaves_the_range_that_norms_may_have(fraction, end):
    """Noise may say for ever that all records lie within, or none."""
    algorithm = DPGIBO(GIBOConfig(mu=1.0, clipping_norm="adaptive"), cube(1), seed=0)
    assert algorithm.state.B == 1.0
    for t in range(400):
        algorithm.observe(Release("norm", str(t), (fraction,), {"step": t}))
        assert 1e-100 <= algorithm.state.B <= 1e100 * (1 + 1e-9)
    assert algorithm.state.B == pytest.approx(end)


@pytest.mark.parametrize(("memory", "kept"), [(0, 0), (1, 1), (4, 4), (-1, None)])
def test_only_remembered_points_keep_their_losses(memory, kept):
    losses, _ = quadratic(N, 2, 0)
    session, i = open_session(config(n_starts=1, n_steps=4, memory=memory), cube(2)), 0
    while not session.finished:
        tell(session, f"t{i}", losses)
        i += 1
        steps_done = sum(kind == "gradient" for kind, _ in keys(session))
        if (i - 1) % 3 == 0:  # a step has just been released
            expected = 3 * steps_done if kept is None else min(kept, 3 * steps_done)
            expected = 0 if steps_done == 4 else expected  # nothing reads them any more
            assert len(session.run.held_losses()) == expected
    session.purge()
    assert session.run.held_losses() == []
    check_books(session)


@pytest.mark.parametrize("more", [{}, {"clipping_norm": "adaptive"}, {"memory": -1}])
def test_maximising_equals_minimising_the_negative_with_the_same_noise(more):
    """Values are mirrored, so only their noise differs; one start leaves the path alone."""
    losses, _ = quadratic(N, 2, 0)
    low = open_session(config(n_starts=1, loss_bound=(0.0, 1.0), **more), cube(2))
    high = open_session(config(n_starts=1, loss_bound=(-1.0, 0.0), **more), cube(2), maximize=True)
    run_session(low, losses)
    run_session(high, lambda x: -losses(x))
    one, two = low.releases(), high.releases()
    for a, b in zip(one, two, strict=True):
        if a.kind in ("gradient", "norm"):
            assert_allclose(a.values, b.values, atol=1e-9)
    ways = [run.history().path[:4] for run in (low, high)]
    assert_allclose(ways[0], ways[1], atol=1e-9)


def test_maximising_picks_the_best_start():
    losses, _ = quadratic(N, 2, 0)
    for maximize, sign in ((False, 1.0), (True, -1.0)):
        bound = (-1.0, 1.0)
        session = open_session(
            config(n_starts=6, mu=1e6, loss_bound=bound), cube(2), maximize=maximize
        )
        tried = {}
        for i in range(6):
            x = session.ask(f"s{i}").x
            tried[tuple(x)] = losses(x).mean()
            tell(session, f"s{i}", lambda z, sign=sign: sign * losses(z))
        assert tuple(decoded(cube(2), session.recommendation())) == min(tried, key=tried.get)


def plain_gibo(losses, theta, points, scale, lam, eta):
    """GIBO by hand: dense regression of the mean loss at the given designs, plain descent."""
    kernel, path = RBF(scale), [theta]
    for X in points:
        y = np.array([losses(x).mean() for x in X])
        y = y - y.mean()
        c = X.mean(0)  # a simplex is centred at the point it informs
        g = kernel.jacobian(X, c).T @ np.linalg.solve(kernel.k(X, X) + lam * np.eye(len(X)), y)
        path.append(np.clip(path[-1] - eta * g, 0.0, 1.0))
    return np.array(path)


def test_without_privacy_the_run_is_plain_gibo():
    losses, _ = quadratic(N, 2, 0)
    session = open_session(
        config(mu=math.inf, n_starts=1, n_steps=6, clipping_norm=math.inf, step_rule="sgd",
               step_size=0.8, value_share=0.2), cube(2)
    )  # fmt: skip
    points = {}
    i = 0
    while not session.finished:
        proposal = session.ask(f"t{i}")
        if proposal.role == "step":
            points.setdefault(proposal.step, []).append(proposal.x)
        value = tell(session, f"t{i}", losses)
        assert value == pytest.approx(losses(proposal.x).mean(), rel=1e-12)
        i += 1
    designs = [np.array(points[t]) for t in range(6)]
    path = plain_gibo(losses, np.full(2, 0.5), designs, 0.3, 0.01, 0.8)
    assert_allclose([decoded(cube(2), c) for c in session.history().centres], path, atol=1e-9)
    assert not session.guarantee().protected


@pytest.mark.parametrize("mu", [1e9, math.inf])
@pytest.mark.parametrize(("maximize", "worst"), [(False, -10.0), (True, -30.0)])
def test_a_range_away_from_zero_is_published_in_the_users_units(mu, maximize, worst):
    """The noise is too small to see: what is published is the clipped mean itself."""
    norm = math.inf if math.isinf(mu) else 0.5
    own = config(mu=mu, loss_bound=(-30.0, -10.0), clipping_norm=norm)
    for y, mean in ((np.linspace(-29.0, -11.0, N), -20.0), (np.full(N, np.nan), worst)):
        session = open_session(own, cube(1), maximize=maximize)
        values = run_session(session, lambda _, y=y: y)
        assert values == pytest.approx([mean] * len(values), abs=1e-3)


def test_a_point_that_keeps_failing_is_replaced_after_two_failures():
    session = open_session(GIBOConfig(mu=1), cube(1))
    points = []
    for i in range(4):
        points.append(session.ask(f"t{i}").x)
        if i < 3:
            session.fail(f"t{i}")
    assert np.array_equal(points[0], points[1])
    assert not np.array_equal(points[0], points[2])
    assert np.array_equal(points[2], points[3])


def test_a_host_that_can_wait_is_handed_no_more_than_the_plan():
    session = open_session(GIBOConfig(mu=1, n_starts=3), cube(1))
    asked = [session.ask_planned(f"t{i}") for i in range(5)]
    assert [p is None for p in asked] == [False, False, False, True, True]
    session.fail("t1")
    retried = session.ask_planned("t9")
    assert retried.slot == 1


def test_a_placed_trial_counts_as_a_start_and_is_told_like_any_other():
    session = open_session(GIBOConfig(mu=1, n_starts=2), cube(1))
    space = cube(1)
    session.place("mine", np.array([0.25]))
    assert session.enter("mine")[0] is None
    handed = session.enter("mine")[1]
    assert handed[0] == 0.25
    assert session.ask_planned("a") is not None
    assert session.ask_planned("b") is None  # the placed one takes the second place
    told = session.tell("mine", space.decode([0.25]), space, np.full(50, 0.5))
    assert told.label == "start"
    assert session.enter("mine")[0] == told.value
    assert session.run.entered("mine")
    assert not session.run.entered("other")


def test_slots_of_trials_that_the_host_forgot_are_given_back():
    session = open_session(GIBOConfig(mu=1), cube(1))
    first, second = session.ask("a").x, session.ask("b").x
    assert session.run.give_back({"b"}) == ["a"]
    assert np.array_equal(session.ask("c").x, first)
    assert np.array_equal(session.ask("b").x, second)
