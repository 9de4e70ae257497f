"""What trials of DP-GIBO show: the posterior mean, by dense conditioning and by quadrature."""

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.stats import multivariate_normal

from privbo_plugins.errors import VaultError
from privbo_plugins.models.estimates import CAUTION, FITTED, WINDOW, Estimator, mean_within
from privbo_plugins.privacy.noise import InsecureNoise
from privbo_plugins.store.transaction import Transaction
from tests.inside import algorithm_in

from .helpers import cube, open_session, quadratic, run_session, tell
from .test_session import config

pytestmark = pytest.mark.filterwarnings("ignore::privbo_plugins.errors.UtilityWarning")

# The oracle: Matern-5/2 by hand, dense solves, densities added up on a grid ----------------------


def covariance(A, B, length):
    r = math.sqrt(5) * np.linalg.norm(A[:, None] - B[None], axis=2) / length
    return (1 + r + r**2 / 3) * np.exp(-r)


def likelihood(X, y, sigma, length, a):
    K = a * covariance(X, X, length) + sigma**2 * np.eye(len(y))
    weights = np.linalg.solve(K, np.ones(len(y)))
    return float(multivariate_normal(np.full(len(y), weights @ y / weights.sum()), K).logpdf(y))


def candidates(X, y, sigma):
    lengths = np.geomspace(0.08, 3.0, 10) * math.sqrt(X.shape[1] / 2)
    spread = max(float(y.std()), sigma)
    return [(ell, (s * spread) ** 2) for ell in lengths for s in np.geomspace(0.1, 10, 9)]


def fitted(X, y, sigma):
    among = candidates(X, y, sigma)
    return max(among, key=lambda pair: likelihood(X, y, sigma, *pair))


def conditioned(X, y, x, sigma, length, a):
    """The constant is one more Gaussian unknown, of which next to nothing is known."""
    vague = 1e5 * a + 1e5 * sigma**2
    every = np.vstack([X, x])
    joint = a * covariance(every, every, length) + vague
    K = joint[:-1, :-1] + sigma**2 * np.eye(len(y))
    w = np.linalg.solve(K, joint[:-1, -1])
    centre = y.mean()
    return float(centre + w @ (y - centre)), math.sqrt(float(joint[-1, -1] - w @ joint[:-1, -1]))


def within(f, s):
    u = np.linspace(0, 1, 100_001)
    logs = -0.5 * ((u - f) / s) ** 2
    weights = np.exp(logs - logs.max())
    return float(np.average(u, weights=weights))


def oracle(x, told, sigma, bounds, maximize):
    low, width = bounds[0], bounds[1] - bounds[0]
    X = np.array([at for at, _ in told])
    y, s2 = (np.array([v for _, v in told]) - low) / width, sigma / width
    n = len(y) - 1
    n = len(y) if n < 8 else 2 ** int(math.log2(n))
    ell, a = fitted(X[max(n - FITTED, 0) : n], y[max(n - FITTED, 0) : n], s2)
    first = max(0, (len(y) - 1) // 64 * 64 + 64 - WINDOW)
    f, s = conditioned(X[first:], y[first:], np.array([x]), s2, ell, a)
    worse = within(f, s) + (-1 if maximize else 1) * CAUTION * s
    return low + width * min(max(worse, 0.0), 1.0)


@settings(max_examples=20)
@given(
    m=st.one_of(st.integers(1, 70), st.integers(180, 330)),
    d=st.integers(1, 3),
    seed=st.integers(0, 10**6),
    maximize=st.booleans(),
    sigma=st.sampled_from([0.02, 0.1, 0.5]),
    own=st.booleans(),
)
def test_the_estimate_is_the_conditional_mean_within_the_range_and_a_little_worse(
    m, d, seed, maximize, sigma, own
):
    rng = np.random.default_rng(seed)
    X = rng.uniform(size=(m, d))
    bounds = (-1.0, 2.0)
    y = ((X - 0.4) ** 2).sum(axis=1) - 1 + sigma * rng.standard_normal(m)
    told = list(zip(X.tolist(), y.tolist(), strict=True))
    x = X[-1] if own else rng.uniform(size=d)
    found = Estimator(cube(d), bounds, sigma, maximize=maximize).at(x, told)
    assert found == pytest.approx(oracle(x, told, sigma, bounds, maximize), abs=2e-4)


@given(f=st.floats(-3, 4), log_s=st.floats(-4, 3))
def test_the_mean_within_the_range_is_that_of_the_density(f, log_s):
    s = 10**log_s
    assert mean_within(f, s) == pytest.approx(within(f, s), abs=1e-5)


def test_values_that_differ_at_one_point_by_more_than_their_noise_stay_what_they_are():
    """As those of trainings that differ, beside a release with hardly any noise."""
    estimator = Estimator(cube(1), (0.0, 1.0), 1e-6, maximize=False)
    told = [([0.5], k / 100) for k in range(15)]
    for k, own in enumerate(told):
        assert estimator.at([0.5], told[:k], own) == pytest.approx(k / 100, abs=1e-5)
    carried = estimator.at([0.5], told)
    assert carried == pytest.approx(0.07, abs=0.01)


# In a run ---------------------------------------------------------------------------------------


def told_of(session):
    values = [r for r in session.releases() if r.kind == "value"]
    return [(r.meta["x"], r.values[0]) for r in values]


@pytest.mark.parametrize("maximize", [False, True])
def test_each_trial_publishes_the_estimate_of_its_moment(maximize):
    losses, _ = quadratic(40, 2, 0)
    session = open_session(config(), cube(2), maximize=maximize)
    values = run_session(session, losses)
    told, sigma = told_of(session), session.plan.value_noise
    assert len(told) == len(values)
    for k, value in enumerate(values):
        expected = oracle(told[k][0], told[: k + 1], sigma, (0.0, 1.0), maximize)
        assert value == pytest.approx(expected, abs=2e-4)


def test_the_algorithm_steps_by_draws_and_never_by_estimates():
    """With estimates in place of the draws these starts would tie; with the draws one wins."""
    session = open_session(config(n_starts=3, mu=0.5), cube(2))
    run_session(session, quadratic(40, 2, 0)[0])
    state = algorithm_in(session).state_dict()
    drawn = [r.values[0] for r in session.releases() if r.kind == "value"]
    assert [value for _, value in state["starts"]] == drawn[:3]
    assert state["step_values"]["0"] == drawn[3:6]


def test_a_long_run_reads_the_latest_values_only():
    rng = np.random.default_rng(0)
    X = rng.uniform(size=(3 * WINDOW, 1)).tolist()
    told = [(x, 0.2 + 0.01 * rng.standard_normal()) for x in X]
    other = [(x, 0.9) for x, _ in told[:WINDOW]] + told[WINDOW:]
    here, there = (Estimator(cube(1), (0.0, 1.0), 0.01, maximize=False) for _ in range(2))
    assert here.at(told[-1][0], told) == there.at(told[-1][0], other)


def test_what_a_failed_transaction_has_drawn_leaves_no_trace_in_later_estimates(monkeypatch):
    """The number is that of a process which has seen one draw only."""
    losses, _ = quadratic(40, 2, 0)
    session = open_session(config(n_starts=12), cube(2), noise=InsecureNoise(0))
    for i in range(9):
        tell(session, f"t{i}", losses)

    def refused(*_):
        raise VaultError("refused")

    with monkeypatch.context() as patched:
        patched.setattr(Transaction, "finish", refused)
        with pytest.raises(VaultError):
            tell(session, "t9", losses)
    values = [tell(session, f"t{i}", losses) for i in range(9, 22)]
    told = told_of(session)
    sigma = session.plan.value_noise
    fresh = Estimator(cube(2), (0.0, 1.0), sigma, maximize=False)
    again = [fresh.at(told[k][0], told[: k + 1]) for k in range(9, 22)]
    assert values == again


def test_a_trial_whose_losses_were_purged_keeps_its_number_when_it_is_told_again():
    losses, _ = quadratic(40, 2, 0)
    session = open_session(config(n_starts=1), cube(2))
    values = {f"t{i}": tell(session, f"t{i}", losses) for i in range(3)}
    session.purge()
    tell(session, "t3", losses)  # completes the batch: the purged ones are opened again
    session.refresh()
    for trial in ("t1", "t2"):
        x = session.ask(trial).x
        session.tell(trial, cube(2).decode(x), cube(2), losses(x))
        assert session.published()[trial].value == values[trial]
