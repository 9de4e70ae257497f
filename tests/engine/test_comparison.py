"""The last release of a run: which of the finalists is clearly better than the incumbent."""

import math

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from privbo_plugins.algorithms.dp_gibo import GIBOConfig, make_plan
from privbo_plugins.algorithms.dp_gibo.finalists import mean_of_clipped_differences
from privbo_plugins.algorithms.protocols import START, START_STEP, Release
from privbo_plugins.privacy.mechanisms import SENSITIVITY_SLACK
from privbo_plugins.privacy.noise import InsecureNoise
from privbo_plugins.sessions.records import Session
from privbo_plugins.store.vault import open_vault

from .helpers import cube, open_session, quadratic, start, tell

pytestmark = pytest.mark.filterwarnings("ignore::privbo_plugins.errors.UtilityWarning")
HOSTILE = st.sampled_from([0.0, 1.0, -1e3, 1e308, np.nan, np.inf, -np.inf]) | st.floats()


@given(
    k=st.integers(2, 9), where=st.integers(0, 6), seed=st.integers(0, 10**6), data=st.data(),
    sign=st.sampled_from([1.0, -1.0]), bounds=st.sampled_from([(0.0, 1.0), (-3.0, 2.0)]),
)  # fmt: skip
def test_one_record_moves_the_comparison_by_no_more_than_its_sensitivity(
    k, where, seed, data, sign, bounds
):
    rng, (low, high) = np.random.default_rng(seed), bounds
    Y = rng.uniform(low - 1, high + 1, (7, k))
    other = Y.copy()
    other[where] = data.draw(hnp.arrays(float, k, elements=HOSTILE))
    clipped = {"low": low, "high": high, "worst": high if sign > 0 else low}
    B = 0.1 * (high - low)
    one, two = (mean_of_clipped_differences([data], clipped, sign, B) for data in (Y, other))
    assert one.shape == two.shape == (k - 1,)
    assert np.linalg.norm(one - two) <= 2 * B / 7 * SENSITIVITY_SLACK


def test_the_comparison_by_hand():
    """A NaN counts as the worst loss; .3 better counts as .1."""
    Y = np.array([[0.5, 0.2], [0.4, 0.38], [0.9, np.nan]])
    clipped = {"low": 0.0, "high": 1.0, "worst": 1.0}
    mean = mean_of_clipped_differences([Y[:2], Y[2:]], clipped, 1.0, 0.1)
    assert mean == pytest.approx([(0.1 + 0.02 - 0.1) / 3], abs=1e-9)
    mirrored = {"low": 0.0, "high": 1.0, "worst": 0.0}
    scores = mean_of_clipped_differences([1 - Y], mirrored, -1.0, 0.1)
    assert scores == pytest.approx(mean, abs=1e-9)


def test_others_are_compared_with_the_second_point_and_rows_are_as_long_as_the_clip():
    """Losses .9, .5, .44, .42: gains .1 (of .4), .06, .08; those are sqrt(.02) long."""
    clipped = {"low": 0.0, "high": 1.0, "worst": 1.0}
    row = np.array([[0.9, 0.5, 0.44, 0.42]])
    gains = mean_of_clipped_differences([row], clipped, 1.0, 0.1)
    assert gains == pytest.approx(np.array([0.1, 0.06, 0.08]) * 0.1 / math.sqrt(0.02), abs=1e-9)
    short = mean_of_clipped_differences([row], clipped, 1.0, 0.5)
    assert short == pytest.approx([0.4, 0.06, 0.08], abs=1e-9)


def at_the_end(gains, n=1000, mu=1.0, incumbent=True, **own):
    named = {"incumbent": dict.fromkeys(cube(2), 0.5)} if incumbent else {}
    algorithm = start(GIBOConfig(mu=mu, n_starts=1, n_steps=1, **named, **own), cube(2), n)
    algorithm.state.theta, algorithm.state.step = [0.9, 0.9], 1
    points = [[0.5, 0.5], [0.9, 0.9], [0.1, 0.1], [0.1, 0.2]]
    algorithm.state.finalists = points[: len(gains) + 1]
    algorithm.state.gains = list(gains)
    return algorithm


@pytest.mark.parametrize(
    ("gains", "best"),
    [([0.0], 0), ([-1.0], 0), ([1.5], 0), ([1.7], 1), ([9.0], 1), ([3.0, 1.0], 1),
     ([3.0, 2.0], 2), ([0.0, 3.0], 2), ([-3.0, 3.0], 0), ([-3.0, -1.0], 0), ([1.0, 1.5], 0),
     ([3.0, 1.0, 2.0], 3), ([3.0, 2.2, 2.0], 2), ([0.5, 1.0, 1.7], 0), ([0.7, 1.0, 1.7], 3)],
)  # fmt: skip
@pytest.mark.parametrize("maximize", [False, True])
def test_the_incumbent_is_left_for_what_is_clearly_better(gains, best, maximize):
    """Gains in standard deviations of the noise; with few records a harmless loss is nothing."""
    sd = at_the_end([0.0], n=10).plan.comparison_noise
    algorithm = at_the_end([gain * sd for gain in gains], n=10)
    algorithm.maximize = maximize
    assert algorithm.recommendation().tolist() == algorithm.state.finalists[best]
    told = algorithm.comparison
    assert (told.left, told.incumbent) == (best > 0, [0.5, 0.5])
    assert told.lead == pytest.approx((gains[0] + (gains[best - 1] if best > 1 else 0.0)) * sd)
    assert (told.sd, told.clip) == (pytest.approx(sd * (2 if best > 1 else 1) ** 0.5), 0.1)


@pytest.mark.parametrize(
    ("gains", "best", "words"),
    [([1.5], 1, "The recommendation is 0.0"), ([-1.6], 1, "the middle of the ranges is better"),
     ([-1.7], 0, "The middle of the ranges is recommended, 0.0"), ([-4.0, 1.7], 2, "No release"),
     ([-4.1, 1.7], 0, "than another point"), ([-8.0, 1.0, 9.0], 3, "The recommendation")],
)  # fmt: skip
def test_a_middle_that_nobody_named_is_left_unless_it_is_clearly_better(gains, best, words):
    """By more than 1.64 standard deviations, of one gain or of two."""
    sd = at_the_end([0.0], n=100).plan.comparison_noise
    algorithm = at_the_end([gain * sd for gain in gains], n=100, incumbent=False)
    assert algorithm.recommendation().tolist() == algorithm.state.finalists[best]
    assert (algorithm.comparison.left, algorithm.comparison.middle) == (best > 0, True)
    assert words in str(algorithm.comparison)


def test_with_much_privacy_budget_a_small_lead_is_enough_and_none_never_is():
    """Where the noise is below a hundredth of the clip, a lead of one sd harms little."""
    sd = at_the_end([0.0], n=10**5).plan.comparison_noise
    assert 1.64 * sd < 0.001
    assert at_the_end([0.1 * sd], n=10**5).comparison.left
    assert not at_the_end([-0.1 * sd], n=10**5).comparison.left


@pytest.mark.parametrize("mu", [0.1, 1.0, math.inf])
@pytest.mark.parametrize("workers", [1, 2, 5])
def test_a_run_ends_with_one_comparison_however_many_work_on_it(workers, mu):
    losses, _ = quadratic(40, 2, 0)
    session = open_session(GIBOConfig(mu=mu, n_steps=2, n_starts=2), cube(2))
    out, i = [], 0
    while not session.finished:
        while len(out) < workers:
            out.append((f"t{i}", session.ask(f"t{i}").x))
            i += 1
        trial, x = out.pop(i % len(out))  # a point that is out twice may be told twice
        session.tell(trial, cube(2).decode(x), cube(2), losses(x))
    kinds = [release.kind for release in session.releases()]
    assert kinds.count("comparison") == 1
    assert kinds[-1] == "comparison"
    assert session.run.held_losses() == []
    spent = math.fsum(charge.mu**2 for charge in session.ledger())
    assert spent <= mu**2 * (1 + 1e-9)


def test_a_worker_that_settles_after_another_one_has_ended_the_run_changes_nothing():
    losses, _ = quadratic(40, 2, 0)
    session, i = open_session(GIBOConfig(mu=1.0, n_steps=1, n_starts=1), cube(2)), 0
    while not session.finished:
        x = session.ask(f"t{i}").x
        session.tell(f"t{i}", cube(2).decode(x), cube(2), losses(x))
        i += 1
    shown = session.published()
    session._settle()
    assert session.published() == shown
    assert len(shown) == session.plan.n_trials
    with session.run.transaction() as tx:
        assert {row.state for row in tx.trials()} == {"done"}


def ended(lost, mu=1.0):
    """A run in which trials at a finalist always fail, and the points tried in the end."""
    losses, _ = quadratic(40, 2, 0)
    session = open_session(GIBOConfig(mu=mu, n_steps=1, n_starts=1), cube(2))
    tried = []
    for i in range(40):
        if session.finished:
            return session, tried
        proposal = session.ask(f"t{i}")
        if proposal.role == "final":
            tried.append(proposal.x)
        if proposal.role == "final" and proposal.slot % 3 == lost:
            session.fail(f"t{i}")
        else:
            session.tell(f"t{i}", cube(2).decode(proposal.x), cube(2), losses(proposal.x))
    raise AssertionError("the run has no end")


@pytest.mark.parametrize("lost", [0, 1, 2])
def test_a_finalist_that_always_fails_is_given_up_and_the_others_are_compared(lost):
    session, tried = ended(lost)
    assert [release.kind for release in session.releases()].count("comparison") == 1
    assert session.run.held_losses() == []
    assert len(tried) <= 6
    if lost == 0:  # the incumbent: nothing is said of it, and it is not recommended
        assert session.comparison() is None
        assert not np.allclose(session.recommended_point()[0], 0.5)


def test_a_point_of_the_hosts_in_the_incumbents_place_is_not_called_the_incumbent():
    losses, _ = quadratic(40, 2, 0)
    session, i = open_session(GIBOConfig(mu=1.0, n_steps=1, n_starts=1), cube(2)), 0
    while not session.finished:
        proposal = session.ask(f"t{i}")
        x = proposal.x
        if proposal.role == "final" and np.allclose(x, 0.5):
            x = np.array([0.21, 0.21])
        session.tell(f"t{i}", cube(2).decode(x), cube(2), losses(x))
        i += 1
    assert session.comparison() is None
    assert not np.allclose(session.recommended_point()[0], 0.21)


@example(d=15, mu=0.1, n=700)
@example(d=4, mu=1.0, n=1000)
@example(d=4, mu=1.0, n=1200)
@given(d=st.integers(1, 20), mu=st.floats(0.05, 3.0), n=st.integers(50, 10**4))
@settings(max_examples=40)
def test_the_comparison_costs_seven_hundredths_of_the_budget_or_fifteen_after_a_search(d, mu, n):
    plan = make_plan(GIBOConfig(mu=mu), cube(d), n)
    share = 0.15 if plan.n_searched else 0.07
    assert plan.mu_comparison**2 == pytest.approx(share * mu**2)
    assert plan.comparison_noise == pytest.approx(2 * 0.1 / (n * plan.mu_comparison), rel=1e-5)


def test_what_never_releases_values_compares_nothing():
    plan = make_plan(GIBOConfig(mu=1.0, value_share=0.0), cube(2), 100)
    assert (plan.n_last, plan.mu_comparison, plan.n_values) == (0, 0.0, 0)


# The end of a search by values ------------------------------------------------------------------


def searched(losses, workers=1, between=lambda session, told: None):
    """A run of 16 searched trials to its end, and the number of trials that it took.

    Args:
        losses: Of a point.
        workers: Trials at once.
        between: Called after each trial with the session and the number of those told.
    """
    session, out, told = open_session(GIBOConfig(mu=60.0, n_trials=16), cube(2)), [], 0
    while not session.finished:
        while len(out) < workers:
            name = f"t{told}-{len(out)}"
            out.append((name, session.ask(name).x))
        trial, x = out.pop(told % len(out))
        session.tell(trial, cube(2).decode(x), cube(2), losses(x))
        told += 1
        between(session, told)
        assert told < 40
    return session, told


def at_middle(x):
    return np.full(40, 0.1 + ((x - 0.5) ** 2).sum())


@pytest.mark.parametrize("workers", [1, 2, 5])
@pytest.mark.parametrize("losses", [quadratic(40, 2, 0)[0], at_middle])
def test_a_search_compares_points_that_it_has_evaluated_and_takes_no_trial_more(losses, workers):
    """Also where the incumbent is the best, and both points are one trial."""
    held = []
    session, told = searched(
        losses, workers, lambda session, _: held.append(len(session.run.held_losses()))
    )
    assert (session.plan.n_last, told) == (0, session.plan.n_trials)
    (last,) = [release for release in session.releases() if release.kind == "comparison"]
    released = {tuple(r.meta["x"]) for r in session.releases() if r.kind == "value"}
    assert {tuple(x) for x in last.meta["points"]} <= released
    assert tuple(last.meta["points"][0]) == (0.5, 0.5)
    assert 2 <= max(held) <= 10
    assert held[-1] == 0
    assert {told.label for told in session.published().values()} == {"start"}
    assert math.fsum(charge.mu**2 for charge in session.ledger()) == pytest.approx(60.0**2)


def test_a_search_whose_losses_were_purged_evaluates_its_last_points_again():
    shown = {}

    def purge(session, told):
        shown.update({name: one for name, one in session.published().items() if name not in shown})
        if told == 15:
            session.purge()

    session, told = searched(quadratic(40, 2, 0)[0], between=purge)
    assert 16 < told <= 16 + 9
    assert session.published() == shown
    assert [release.kind for release in session.releases()].count("comparison") == 1
    assert session.run.held_losses() == []


@pytest.mark.parametrize("retold", [False, True])
def test_a_search_that_is_interrupted_before_its_comparison_makes_it_later(monkeypatch, retold):
    monkeypatch.setattr(Session, "_settle", lambda self: None)
    losses, vault = quadratic(40, 2, 0)[0], open_vault()
    config = GIBOConfig(mu=60.0, n_trials=16)
    session = open_session(config, cube(2), vault=vault)
    for i in range(16):
        tell(session, f"t{i}", losses)
    assert not session.finished
    monkeypatch.undo()
    again = open_session(config, cube(2), vault=vault)
    shown = again.published()["t15"]
    if retold:
        assert (
            again.tell("t15", cube(2).decode(again.enter("t15")[1]), cube(2), np.ones(40)) == shown
        )
    else:
        again.ask("t16")
    assert again.finished
    assert again.run.held_losses() == []
    assert again.published()["t15"] == shown


def test_of_a_search_losses_are_kept_of_the_incumbent_and_the_best_alone():
    algorithm = start(GIBOConfig(mu=60.0, n_trials=16), cube(2), 40)

    def release(i, value, x=None):
        x = [i / 16, 0.25] if x is None else x
        return Release("value", f"t{i}", (value,), {"role": START, "x": x})

    for i in range(8):
        algorithm.observe(release(i, 0.1 * i))
    assert algorithm.wants_losses(START, START_STEP, release(9, 0.65))
    assert not algorithm.wants_losses(START, START_STEP, release(9, 0.75))
    assert algorithm.wants_losses(START, START_STEP, release(9, 0.75, [0.5, 0.5]))
    assert algorithm.wants_losses(START, START_STEP)


class Coarse(InsecureNoise):
    """Noise of three values, so that releases are often equal."""

    def add_gaussian(self, value, scale):
        return np.round(
            value + np.random.default_rng(self.integer(99)).choice([-0.1, 0.0, 0.1]), 2
        )


@pytest.mark.parametrize("seed", range(8))
def test_points_that_are_compared_in_the_end_have_their_losses(seed):
    """Values are often equal, points repeat, trials fail, and several are out at once."""
    rng, space = np.random.default_rng(seed), cube(1 + seed % 2)
    config = GIBOConfig(mu=60.0, n_trials=16 + seed)
    run = open_session(config, space, seed=seed, noise=Coarse(seed), maximize=seed > 3)
    for i in range(60):
        asked = run.ask(f"t{i}")
        again = asked.role == START and rng.random() < 0.5
        x = np.full(len(space), rng.choice([0.0, 0.5, 1.0])) if again else asked.x
        if rng.random() < 0.1:
            run.fail(f"t{i}")
            continue
        run.tell(f"t{i}", space.decode(x), space, np.tile([0.2, 0.4], 10))
        run.refresh()
        algorithm = run._known().algorithm
        if algorithm.phase[0] == START:
            assert {t for t, _ in algorithm.state.remembered} <= set(run.run.held_losses())
        if run.finished:
            break
    assert run.finished
    assert "comparison" in {release.kind for release in run.releases()}
