"""Budgets and epsilons against dp-accounting, trade-off functions and limits."""

import math

import mpmath
import numpy as np
import pytest
from dp_accounting.pld import privacy_loss_distribution as pld
from hypothesis import example, given, settings
from hypothesis import strategies as st
from scipy.stats import norm

from privbo_plugins.errors import BudgetExceededError
from privbo_plugins.privacy.accountant import (
    GaussianEvent,
    PureEvent,
    compose_epsilon,
    gdp_delta,
    gdp_epsilon,
    gdp_from_pure,
    gdp_mu,
)
from privbo_plugins.privacy.ledger import Charge, check_budget


def exact_delta(mu, epsilon):
    """With sixty digits."""
    with mpmath.workdps(60):
        m, e = mpmath.mpf(mu), mpmath.mpf(epsilon)
        upper, lower = (mpmath.erfc((e / m - s * m / 2) / mpmath.sqrt(2)) / 2 for s in (1, -1))
        return upper - mpmath.exp(e) * lower


@settings(max_examples=300)
@given(log_epsilon=st.floats(-15, 2), log_delta=st.floats(-18, -0.01))
@example(log_epsilon=-6.0, log_delta=-15.0)
@example(log_epsilon=-10.15625, log_delta=-18.0)
@example(log_epsilon=-9.0, log_delta=-17.0)
def test_mu_never_exceeds_its_delta(log_epsilon, log_delta):
    epsilon, delta = 10.0**log_epsilon, 10.0**log_delta
    mu = gdp_mu(epsilon, delta)
    assert exact_delta(mu, epsilon) <= delta
    if epsilon >= 1e-6:  # below, the terms cancel, and mu is rounded down farther
        assert exact_delta(mu * (1 + 1e-5), epsilon) > delta


@settings(max_examples=300)
@given(log_mu=st.floats(-18, 1.5), log_delta=st.floats(-18, -0.01))
@example(log_mu=-17.0, log_delta=-18.0)
@example(log_mu=-16.0, log_delta=-17.0)
def test_epsilon_never_exceeds_its_delta(log_mu, log_delta):
    mu, delta = 10.0**log_mu, 10.0**log_delta
    epsilon = gdp_epsilon(mu, delta)
    exact = exact_delta(mu, epsilon)
    assert exact <= delta
    assert gdp_delta(mu, epsilon) == pytest.approx(float(exact), rel=1e-6, abs=1e-12)
    assert epsilon > 0 or exact_delta(mu, 0.0) <= delta


@pytest.mark.parametrize("mu", [0.2, 1.0, 3.0])
def test_epsilon_against_dp_accounting(mu):
    """The library's pessimistic discretisation lies just above the closed form."""
    theirs = pld.from_gaussian_mechanism(1 / mu, value_discretization_interval=1e-4)
    for delta in (1e-3, 1e-6, 1e-9):
        assert gdp_epsilon(mu, delta) == pytest.approx(
            theirs.get_epsilon_for_delta(delta), rel=2e-3, abs=2e-4
        )


def test_limits_of_delta_and_epsilon():
    assert gdp_delta(0.0, 0.0) == 0.0
    assert gdp_delta(math.inf, 5.0) == 1.0
    assert gdp_delta(1e-3, 100.0) == 0.0
    assert gdp_epsilon(math.inf, 1e-5) == math.inf
    assert gdp_epsilon(0.0, 1e-5) == 0.0
    assert gdp_epsilon(0.1, 0.5) == 0.0
    for delta in (0.0, 1.0, -0.1, math.nan):
        with pytest.raises(ValueError, match="delta must lie in"):
            gdp_epsilon(1.0, delta)
    with pytest.raises(ValueError, match="at least one event"):
        compose_epsilon([], 1e-5)
    for events in ([PureEvent(1.0)], [GaussianEvent(1.0)]):
        with pytest.raises(ValueError, match="delta must lie in"):
            compose_epsilon(events, 0.0)


@pytest.mark.parametrize("epsilon", [0.01, 0.1, 0.5, 1.0, 3.0, 8.0])
def test_pure_privacy_as_gaussian_is_sound_and_tight(epsilon):
    """The Gaussian trade-off curve lies under that of randomised response and touches it."""
    alpha = np.concatenate([np.logspace(-12, -1, 2000), np.linspace(0.1, 1, 4001)])
    kink = 1 / (1 + math.exp(epsilon))
    alpha = np.append(alpha, kink)
    pure = np.maximum.reduce([
        np.zeros_like(alpha),
        1 - math.exp(epsilon) * alpha,
        math.exp(-epsilon) * (1 - alpha),
    ])  # fmt: skip
    mu = gdp_from_pure(epsilon)
    gaussian = norm.cdf(norm.isf(alpha) - mu)
    assert np.all(gaussian <= pure + 1e-12)
    tighter = norm.cdf(norm.isf(alpha) - 0.999 * mu)
    assert np.any(tighter > pure)


# The ledger's rule --------------------------------------------------------------------------


def charge(mu):
    return Charge("value", "7", mu, 0.1, 0.1 / mu if mu else 0.0)


def test_a_charge_that_fits_passes_and_one_that_does_not_is_refused():
    check_budget(1.0, 0.0, charge(1.0))
    check_budget(1.0, 0.75, charge(0.5))
    check_budget(math.inf, 1e12, charge(1e6))
    check_budget(math.inf, 0.0, charge(math.inf))
    with pytest.raises(BudgetExceededError, match=r"value/7 needs mu=0.5, but .* mu=1 "):
        check_budget(1.0, 0.76, charge(0.5))
    for mu in (math.nan, math.inf):
        with pytest.raises(BudgetExceededError):
            check_budget(1.0, 0.0, charge(mu))


@given(budget=st.floats(1e-6, 1e3), shares=st.lists(st.floats(0.01, 1), min_size=1, max_size=300))
def test_an_even_plan_passes_at_the_float_edge_and_nothing_more_does(budget, shares):
    """Rounding of the sum must not refuse the last planned release, nor admit a real excess."""
    total, spent = math.fsum(shares), 0.0
    for share in shares:
        mu = budget * math.sqrt(share / total)
        check_budget(budget, spent, charge(mu))
        spent += mu**2
    assert spent <= budget**2 * (1 + 1e-8)
    with pytest.raises(BudgetExceededError):
        check_budget(budget, spent, charge(budget * 1e-3))


def test_more_outcomes_than_are_told_apart_cost_little_more():
    """Beyond some number they count as Gaussian, and never as the plain sum."""
    few, many = (compose_epsilon({PureEvent(0.001): k}, 1e-6) for k in (2**16 - 1, 2**16))
    assert few <= many <= 1.3 * few
