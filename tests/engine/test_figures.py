"""Figures of claims: what randomised responses compose to, and an attacker's best chance.

Oracles: products of small mechanisms outcome by outcome, in exact fractions; SciPy's binomial and
normal distributions; dp-accounting, asked without the engine's accountant.
"""

import ast
import itertools
import json
import math
import re
from collections import Counter
from decimal import Decimal
from fractions import Fraction
from importlib import import_module
from pathlib import Path

import numpy as np
import pytest
from dp_accounting.pld import privacy_loss_distribution as pld
from hypothesis import example, given, settings
from hypothesis import strategies as st
from scipy import optimize, stats

from privbo_plugins.algorithms.dp_fts_de.config import FederationConfig
from privbo_plugins.algorithms.dp_gibo import GIBOConfig
from privbo_plugins.algorithms.released_means import MeansConfig
from privbo_plugins.errors import BudgetExceededError
from privbo_plugins.privacy.accountant import (
    ApproximateEvent,
    Cost,
    GaussianEvent,
    PureEvent,
    compose_delta,
    compose_epsilon,
    evaluations_epsilon,
    gdp_epsilon,
)
from privbo_plugins.privacy.figures import not_above, not_below, two_decimals
from privbo_plugins.privacy.guarantee import Guarantee, OutsourcedGuarantee
from privbo_plugins.privacy.local import make_mechanism
from privbo_plugins.privacy.mechanisms import gaussian_scale
from privbo_plugins.privacy.statement import guess, percent
from privbo_plugins.sessions import broadcasts
from privbo_plugins.sessions.rewards import RewardSession, check_user_budget, local_guarantee
from privbo_plugins.sessions.rows import Curator
from privbo_plugins.spaces import Float, Space
from privbo_plugins.store.vault import open_vault

from .oracles import gaussian_delta, gaussian_mu

EPSILONS = [0.1, 0.25, 0.5, 1.3, 2.0]


def responses_delta(epsilons, epsilon):
    """Of randomised responses, each series of answers written out."""
    total = 0.0
    for honest in itertools.product((True, False), repeat=len(epsilons)):
        signs = [1 if one else -1 for one in honest]
        loss = math.fsum(sign * e for sign, e in zip(signs, epsilons, strict=True))
        weight = math.prod(
            1 / (1 + math.exp(-sign * e)) for sign, e in zip(signs, epsilons, strict=True)
        )
        total += weight * max(0.0, -math.expm1(epsilon - loss)) if loss > epsilon else 0.0
    return total


def binomial_delta(epsilon, k, at):
    honest = np.arange(k + 1)
    loss = epsilon * (2 * honest - k)
    weights = stats.binom.pmf(honest, k, 1 / (1 + math.exp(-epsilon)))
    return float(np.sum(weights[loss > at] * -np.expm1(at - loss[loss > at])))


# Randomised responses ---------------------------------------------------------------------------


@given(
    epsilons=st.lists(st.sampled_from(EPSILONS), min_size=1, max_size=9),
    log_delta=st.floats(-9, -0.1),
)
@example(epsilons=[0.1] * 9, log_delta=-9.0)
@example(epsilons=[2.0, 0.1], log_delta=-0.1)
def test_pure_releases_compose_as_randomised_responses_of_several_epsilons(epsilons, log_delta):
    """No less than the product written out asks for, and no more than a hair above."""
    delta = 10.0**log_delta
    found = compose_epsilon([PureEvent(e) for e in epsilons], delta)
    assert responses_delta(epsilons, found) <= delta
    assert found <= math.fsum(epsilons) + 1e-12
    if found > 1e-6:
        assert responses_delta(epsilons, found * (1 - 1e-6) - 1e-8) > delta
    for at in (0.0, 0.3, found):
        exact = responses_delta(epsilons, at)
        at_most = compose_delta([PureEvent(e) for e in epsilons], at)
        assert exact <= at_most <= exact * (1 + 1e-8) + 1e-12


@pytest.mark.parametrize(("epsilon", "k"), [(0.1, 100), (0.5, 30), (1.0, 1), (0.01, 5000)])
@pytest.mark.parametrize("delta", [1e-9, 1e-6, 0.01])
def test_many_pure_evaluations_cost_what_the_binomial_says(epsilon, k, delta):
    found = evaluations_epsilon({Cost(epsilon): k}, delta)
    assert binomial_delta(epsilon, k, found) <= delta * (1 + 1e-12)
    least = optimize.brentq(lambda e: binomial_delta(epsilon, k, e) - delta, 0.0, k * epsilon)
    assert least * (1 - 1e-9) <= found <= min(k * epsilon, least * (1 + 1e-6) + 1e-8)


@pytest.mark.parametrize("mu", [0.2, 1.5])
@pytest.mark.parametrize("epsilons", [[0.5], [1.3] * 3, [0.1] * 4 + [2.0]])
def test_responses_beside_a_gaussian_release_by_integrals(mu, epsilons):
    """Hockey-stick divergence of the joint density, summed over answers and integrated over x."""
    events = [GaussianEvent(mu), *(PureEvent(e) for e in epsilons)]
    x = np.linspace(-12, 12 + mu, 40001)
    for at in (0.0, 0.7):
        exact = 0.0
        for signs in itertools.product((1, -1), repeat=len(epsilons)):
            p = math.prod(1 / (1 + math.exp(-s * e)) for s, e in zip(signs, epsilons, strict=True))
            q = math.prod(1 / (1 + math.exp(s * e)) for s, e in zip(signs, epsilons, strict=True))
            above = p * stats.norm.pdf(x, mu) - math.exp(at) * q * stats.norm.pdf(x)
            exact += float(np.trapezoid(np.maximum(above, 0.0), x))
        found = compose_delta(events, at)
        assert exact - 1e-6 <= found <= exact + 1e-6


def test_what_leaks_beside_other_releases_is_composed_exactly():
    """Joint outcomes written out: all is told, or a response; the other is a response alone."""
    leak, epsilon, other, at = 0.05, 0.5, 1.3, 0.4
    rest = responses_delta([epsilon, other], at)
    assert compose_delta([ApproximateEvent(epsilon, leak), PureEvent(other)], at) == pytest.approx(
        leak + (1 - leak) * rest, rel=1e-8
    )


def test_too_many_kinds_to_be_told_apart_are_still_bounded():
    """A dozen epsilons, some hundred of each: no less than dp-accounting's optimistic figure."""
    events = {PureEvent(0.01 + j / 300): 60 for j in range(6)}
    total = None
    for event, k in events.items():
        truth = 1 / (1 + math.exp(-event.epsilon))
        one = pld.from_randomized_response(
            2 * (1 - truth), 2, pessimistic_estimate=False, value_discretization_interval=1e-4
        ).self_compose(k)
        total = one if total is None else total.compose(one)
    least = total.get_epsilon_for_delta(1e-6)
    found = compose_epsilon(events, 1e-6)
    assert least <= found <= 1.3 * least
    assert found < math.fsum(k * event.epsilon for event, k in events.items())


@given(
    paid=st.lists(
        st.tuples(
            st.sampled_from([0.1, 0.3, 1.0]),
            st.sampled_from([0.0, 1e-3, 0.1]),
            st.booleans(),
            st.integers(1, 30),
        ),
        min_size=1,
        max_size=3,
    ),
    more=st.tuples(
        st.sampled_from([0.05, 0.1, 0.7]), st.sampled_from([0.0, 1e-6, 0.1]), st.booleans()
    ),
    delta=st.sampled_from([0.0, 1e-6, 1e-3, 0.2]),
)
@example(paid=[(0.1, 0.0, False, 30)], more=(0.1, 0.1, True), delta=0.0)
@example(paid=[(0.1, 0.0, False, 30)], more=(0.1, 0.1, True), delta=0.1)
def test_one_more_evaluation_never_costs_less_than_nothing(paid, more, delta):
    evaluations = Counter()
    for epsilon, at, gaussian, k in paid:
        evaluations[Cost(epsilon, at, gaussian and at > 0)] += k
    epsilon, at, gaussian = more
    further = evaluations + Counter([Cost(epsilon, at, gaussian and at > 0)])
    before = evaluations_epsilon(evaluations, delta)
    after = evaluations_epsilon(further, delta)
    assert after >= before * (1 - 1e-9) or before == math.inf == after


# Budgets of users -------------------------------------------------------------------------------


def allowed(vault, budget, delta, most=150):
    """How many evaluations of epsilon .1 Jane may still have."""
    session = RewardSession(
        make_mechanism(0.1, bound=1.0), vault, "run", user_budget=budget, user_delta=delta
    )
    for trial in range(most):
        try:
            session.release(str(trial), 0.25, "Jane", -1.0)
        except BudgetExceededError:
            return trial
    return most


def elsewhere(vault, epsilon, delta):
    mechanism = make_mechanism(
        epsilon, bound=1.0, mechanism="gaussian" if delta else "duchi", delta=delta
    )
    RewardSession(mechanism, vault, "elsewhere").release("0", 0.25, "Jane", -1.0)


@pytest.mark.parametrize("delta", [0.0, 1e-6, 0.01])
@pytest.mark.parametrize(("epsilon", "at"), [(0.1, None), (0.1, 0.1), (0.01, 0.3), (1.0, 1e-7)])
def test_nothing_that_is_paid_elsewhere_enlarges_what_a_budget_allows(epsilon, at, delta):
    alone, vault = allowed(open_vault(), 1.0, delta), open_vault()
    elsewhere(vault, epsilon, at)
    assert allowed(vault, 1.0, delta) < alone


def test_a_budget_at_a_delta_allows_what_composes_below_it():
    k = allowed(open_vault(), 3.0, 1e-6)
    assert binomial_delta(0.1, k, 3.0) <= 1e-6 < binomial_delta(0.1, k + 1, 3.0)
    assert k > 30


def test_a_mechanism_with_a_delta_needs_a_delta_of_the_budget():
    gaussian = make_mechanism(0.5, bound=1.0, mechanism="gaussian", delta=1e-5)
    with pytest.raises(ValueError, match=r"Give user_delta=, for example 1e-05"):
        check_user_budget(gaussian, 2.0)
    check_user_budget(gaussian, 2.0, 1e-5)
    check_user_budget(gaussian, None)
    for delta in (-0.1, 1.0, math.nan):
        with pytest.raises(ValueError, match=r"user_delta must lie in \[0, 1\)"):
            check_user_budget(gaussian, 2.0, delta)


def test_a_guarantee_of_users_tells_what_their_evaluations_compose_to_at_any_delta():
    vault = open_vault()
    session = RewardSession(make_mechanism(0.1, bound=1.0), vault, "run")
    for trial in range(100):
        session.release(str(trial), 0.25, "Jane", -1.0)
    session.release("joe", 0.25, "Joe", -1.0)
    guarantee = session.guarantee(101, users_named=True)
    assert (guarantee.epsilon, guarantee.delta_most) == (pytest.approx(10.0), 0.0)
    assert round(guarantee.epsilon_at(1e-6), 2) == 4.77
    exact = 0.5 + binomial_delta(0.1, 100, 0.0) / 2
    assert exact <= guarantee.best_guess <= exact + 1e-8
    assert "composed" not in guarantee.to_dict()
    later = RewardSession(make_mechanism(0.1, bound=1.0), vault, "told", user_delta=1e-6)
    later.release("0", 0.25, "Jane", -1.0)
    told = later.guarantee(1, users_named=True)
    assert (told.most_evaluations, told.delta_most) == (101, 1e-6)
    assert "101 evaluations: epsilon = 4.82 at delta = 1e-06" in told.details().replace(
        "\n" + 18 * " ", " "
    )


# An attacker's best chance ----------------------------------------------------------------------


def test_the_chance_against_a_released_table_is_that_of_its_mu():
    """(e^epsilon + delta) / (1 + e^epsilon) gave 98 % at epsilon 4, where 68 % is true."""
    X = np.random.default_rng(0).uniform(size=(20, 2))
    how = {"epsilon": 4.0, "delta": 1e-6, "bounds": [(0, 1)] * 2}
    guarantee = Curator(X, **how).release().guarantee()
    mu = gaussian_mu(4.0, 1e-6)
    assert guarantee.best_guess == pytest.approx(stats.norm.cdf(mu / 2), rel=1e-7)
    answered = Curator(X, **how, outcome_epsilon=1.0, outcome_range=(0, 1)).release().guarantee()
    x = np.linspace(-12, 13, 40001)
    honest = 1 / (1 + math.exp(-1.0))
    apart = sum(
        np.trapezoid(np.maximum(p * stats.norm.pdf(x, mu) - (1 - p) * stats.norm.pdf(x), 0), x)
        for p in (honest, 1 - honest)
    )
    assert answered.best_guess == pytest.approx(0.5 + apart / 2, abs=1e-6)
    assert answered.best_guess < honest + (1 - honest) * stats.norm.cdf(mu / 2)


@pytest.mark.parametrize(("q", "z", "rounds"), [(1.0, 2.0, 3), (0.35, 1.0, 4), (0.1, 1.5, 10)])
def test_the_chance_against_a_federation_is_half_the_total_variation_of_its_rounds(q, z, rounds):
    config = FederationConfig(20, n_rounds=rounds, q=q, z=z, delta=1e-3)
    claim = broadcasts.claim(config, 0, (), (), held=False)
    # Losses of a round at random points, whose products are compared in both worlds.
    rng, n = np.random.default_rng(0), 400_000
    loss = np.zeros(n)
    for _ in range(rounds):
        x = z * rng.standard_normal(n) + (rng.random(n) < q)
        loss += np.log1p(q * np.expm1((2 * x - 1) / (2 * z * z)))
    simulated = float(np.maximum(0.0, -np.expm1(-loss)).mean())
    assert claim.best_guess == pytest.approx(0.5 + simulated / 2, abs=2e-3)
    assert claim.best_guess < (math.exp(claim.epsilon) + 1e-3) / (1 + math.exp(claim.epsilon))
    if q == 1:
        assert claim.best_guess >= stats.norm.cdf(math.sqrt(rounds) / z / 2)


@given(st.floats(0.0, 1.0))
def test_a_chance_is_rounded_up(apart):
    assert Fraction(guess(apart)) >= (1 + Fraction(apart)) / 2 or guess(apart) == 1.0
    assert guess(apart) <= 0.5 + apart / 2 + 2e-16


# What was asked for, and what is shown of it ----------------------------------------------------

ASKED = st.tuples(
    st.decimals("0.05", "20", places=3).map(float), st.sampled_from([1e-9, 1e-5, 2.5e-4, 0.01])
)
"""An epsilon and a delta as people give them."""

KINDS = {
    "dp-gibo": lambda **pair: GIBOConfig(**pair),
    "released means": lambda **pair: MeansConfig(n_trials=7, **pair),
}
"""Settings that take epsilon and delta in place of mu: every host's keywords are these."""


def shown(text):
    """Every epsilon in a text."""
    return [float(found) for found in re.findall(r"epsilon = ([0-9.]+[0-9])", text)]


def claim_of(config):
    return Guarantee(
        True, "m", "n", "p", 300, config.mu, config.mu, 9, parameters={**config.asked}
    )


@pytest.mark.parametrize("kind", KINDS)
@given(asked=ASKED)
@example(asked=(4.0, 1e-5))
@example(asked=(4.005, 1e-5))
@example(asked=(1.0, 1e-9))
def test_whoever_was_allowed_an_epsilon_reads_no_larger_one(kind, asked):
    """Epsilon 4 at 1e-5 was shown as 4.01, and at another delta first."""
    epsilon, delta = asked
    config = KINDS[kind](epsilon=epsilon, delta=delta)
    claim = claim_of(config)
    assert claim.epsilon == claim.epsilon_at(delta) == epsilon
    first = claim.figures()["epsilons"][0]
    assert first == {"delta": delta, "epsilon": epsilon}
    assert shown(str(claim))
    for text in (str(claim), claim.lasting, str(two_decimals(claim.epsilon))):
        assert all(found == epsilon for found in shown(text))
    (row, *_) = [text for what, text in claim.statement().folded if what.startswith("Epsilon")]
    assert float(row) == epsilon
    assert gaussian_delta(config.mu, epsilon) <= delta * (1 + 1e-9)
    assert gdp_epsilon(config.mu * (1 + 1e-5), delta) > epsilon


@pytest.mark.parametrize("kind", KINDS)
def test_settings_remember_the_pair_and_stay_what_they_are(kind):
    config = KINDS[kind](epsilon=4, delta=1e-5)
    assert config.asked == {"epsilon": 4.0, "delta": 1e-5}
    assert type(config).from_dict(json.loads(json.dumps(config.to_dict()))) == config
    with pytest.raises(ValueError, match="no settings for"):
        type(config).from_dict(config.to_dict() | {"unknown": 1})
    assert config.with_trials(30).mu == config.mu
    assert config.plain().asked == {}
    for wrong in ({"mu": 1.0}, {"mu": config.mu * 0.999}):
        with pytest.raises(ValueError, match="say the same thing"):
            KINDS[kind](epsilon=4, delta=1e-5, **wrong)


@settings(max_examples=40)
@given(asked=ASKED)
@example(asked=(4.005, 1e-5))
def test_a_table_and_a_reward_show_the_pair_that_was_asked_for(asked):
    epsilon, delta = asked
    table = OutsourcedGuarantee(True, "gaussian", epsilon, delta, 0.5, 9)
    assert shown(str(table)) == [epsilon]
    assert f"at delta = {delta:g}, for the table" in str(table)
    gaussian = make_mechanism(epsilon, bound=1.0, mechanism="gaussian", delta=delta)
    text = str(local_guarantee(gaussian, 1, 1, users_named=True))
    assert f"epsilon = {epsilon:g} at delta = {delta:g} in each evaluation" in text
    assert set(shown(text)) == {epsilon}


# Figures in words -------------------------------------------------------------------------------

FIGURE = st.floats(1e-12, 1e6) | st.decimals("0.001", "99", places=4).map(float)


@given(FIGURE, st.integers(1, 8))
@example(1.00049, 4)
@example(math.nextafter(1.13, 2), 3)
@example(math.nextafter(0.29, 1), 2)
def test_no_figure_in_words_is_below_the_value(value, digits):
    exact = Decimal(repr(value))
    assert Decimal(two_decimals(value)) >= exact
    assert Decimal(not_below(value, digits)) >= exact
    assert Decimal(not_above(value, digits)) <= exact
    apart = Decimal(not_below(value, digits)) - Decimal(not_above(value, digits))
    assert apart <= Decimal(10) ** (1 - digits) * exact * Decimal("1.000001")
    assert Decimal(percent(value).removesuffix(" %")) >= Decimal(repr(100 * value))
    assert Decimal(two_decimals(value)) <= exact * Decimal("1.1") + Decimal("1e-12") or (
        Decimal(two_decimals(value)) - exact < Decimal("0.01")
    )
    if len(exact.normalize().as_tuple().digits) <= 8:
        assert Decimal(not_below(value, digits)) == Decimal(two_decimals(value)) == exact


_NAMES = re.compile(r"(^|_)(mu|mu2|epsilon|delta|budget|spent|chance|guess|rho)($|_)")


def test_no_text_of_the_product_rounds_a_privacy_figure_by_itself():
    """One module does; a format like ``:.3g`` rounds to the nearest number, and so down."""
    found = []
    for package in ("privbo_plugins", "optuna_samplers", "raytune_searchers", "sklearn_search"):
        for path in (Path(__file__).parents[2] / package).rglob("*.py"):
            for node in ast.walk(ast.parse(path.read_text())):
                if isinstance(node, ast.FormattedValue) and node.format_spec is not None:
                    parts = list(ast.walk(node.value))
                    names = [part.id for part in parts if isinstance(part, ast.Name)]
                    names += [part.attr for part in parts if isinstance(part, ast.Attribute)]
                    names += [str(p.value) for p in parts if isinstance(p, ast.Constant)]
                    if any(map(_NAMES.search, names)):
                        found.append(f"{path.name}: {ast.unparse(node)}")
    # Names a tenth of a delta, at which epsilon is then computed.
    assert {text for text in found if ":.12g" not in text} == set()


# Mu that noise cannot keep ----------------------------------------------------------------------


def _run(config):
    module = "dp_gibo" if isinstance(config, GIBOConfig) else "released_means"
    plan = import_module(f"privbo_plugins.algorithms.{module}.plan")
    return plan.make_plan(config, Space({"x": Float(0, 1)}), 1000)


X2 = np.zeros((3, 2))

TOO_SMALL = {
    "budget of dp-gibo": lambda mu: GIBOConfig(mu),
    "budget of released means": lambda mu: MeansConfig(mu, n_trials=1),
    "share of released means": lambda mu: MeansConfig(mu * 10, n_trials=100),
    "training": lambda mu: MeansConfig(1.0, n_trials=1, training_mu=mu),
    "share of a gradient": lambda mu: _run(GIBOConfig(mu * 4, n_steps=20, batch_size=2)),
    "share of a value": lambda mu: _run(GIBOConfig(1.0, n_steps=1, value_share=mu**2)),
    "share of a norm": lambda mu: _run(
        GIBOConfig(mu * 5, n_steps=4, clipping_norm="adaptive", value_share=0.0)
    ),
    "pair of dp-gibo": lambda mu: GIBOConfig(epsilon=mu / 100, delta=mu / 100),
    "pair of a table": lambda mu: Curator(X2, epsilon=mu / 100, delta=mu / 100, norm_bound=1.0),
    "pair of a reward": lambda mu: make_mechanism(
        1e-6, bound=1.0, mechanism="gaussian", delta=1e-300 * mu / mu
    ),
    "noise itself": lambda mu: gaussian_scale(1.0, mu),
}


@pytest.mark.parametrize("comes_in", TOO_SMALL)
def test_a_mu_that_the_grid_of_the_noise_cannot_keep_is_refused(comes_in):
    """The grid is 2^-60 deviations wide, the slack of the sensitivity 2^-20 of it."""
    if comes_in != "pair of a reward":
        with pytest.raises(ValueError, match="1e-09"):
            TOO_SMALL[comes_in](0.9e-9)
        TOO_SMALL[comes_in](1e-3)
        assert 1e6**0.5 * 2.0**-60 / 1e-9 < 2.0**-20  # a million columns still fit
    else:
        assert make_mechanism(1e-6, bound=1.0, mechanism="gaussian", delta=1e-300).mu >= 1e-9
