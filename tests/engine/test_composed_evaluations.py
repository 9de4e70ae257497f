"""What one user's evaluations cost together: in one run, in several, and without a ledger.

Oracles: the product of small discrete mechanisms, written out; the privacy profile of two normal
distributions; dp-accounting, asked without the engine's accountant.
"""

import itertools
import math

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from scipy import optimize

from privbo_plugins.errors import BudgetExceededError
from privbo_plugins.privacy.accountant import Cost, evaluations_delta, evaluations_epsilon
from privbo_plugins.privacy.local import make_mechanism
from privbo_plugins.privacy.noise import SecureNoise
from privbo_plugins.sessions.rewards import RewardSession
from privbo_plugins.store.vault import open_vault
from tests.inside import pseudonym

from .oracles import gaussian_delta, gaussian_epsilon, gaussian_mu


def leaky_coin(epsilon, delta):
    """Both probabilities of each outcome: the input itself, or randomised response of it."""
    truth = (1 - delta) / (1 + math.exp(-epsilon))
    return [(delta, 0.0), (0.0, delta), (truth, 1 - delta - truth), (1 - delta - truth, truth)]


def delta_of(mechanisms, epsilon):
    """Hockey-stick divergence of the product, outcome by outcome."""
    total = 0.0
    for outcome in itertools.product(*mechanisms):
        p, q = (math.prod(column) for column in zip(*outcome, strict=True))
        total += max(0.0, p - math.exp(epsilon) * q)
    return total


COSTS = st.tuples(st.sampled_from([0.1, 0.5, 1.3, 2.0]), st.sampled_from([0.0, 1e-3, 0.05, 0.2]))


@settings(max_examples=40)
@given(costs=st.lists(COSTS, min_size=1, max_size=4))
@example(costs=[(0.5, 0.05)] * 4)
@example(costs=[(0.1, 0.0), (0.5, 0.2), (0.5, 0.2)])
def test_pairs_of_which_nothing_else_is_known_compose_as_leaky_coins(costs):
    evaluations = {}
    for cost in costs:
        evaluations[Cost(*cost)] = evaluations.get(Cost(*cost), 0) + 1
    delta = evaluations_delta(evaluations)
    assert delta == pytest.approx(sum(delta for _, delta in costs))
    for at in (delta, 0.3 + 0.7 * delta):
        if at >= 1:
            continue
        epsilon = evaluations_epsilon(evaluations, at)
        assert epsilon <= sum(epsilon for epsilon, _ in costs) + 1e-12
        coins = [leaky_coin(*cost) for cost in costs]
        assert delta_of(coins, epsilon) <= at * (1 + 1e-9) + 1e-12


def test_a_delta_below_what_leaks_is_paid_for_by_no_epsilon():
    assert evaluations_epsilon({Cost(1.0, 0.01): 4}, 0.02) == math.inf
    assert evaluations_epsilon({Cost(1.0, 0.5): 4}, 2.0) == math.inf  # delta 2 says nothing


@pytest.mark.parametrize("counts", [(1, 0, 0), (0, 3, 0), (2, 3, 1), (1, 1, 7)])
def test_gaussian_evaluations_are_known_at_every_delta(counts):
    costs = [(1.0, 0.05), (0.3, 1e-4), (2.0, 1e-6)]
    evaluations = {Cost(*c, gaussian=True): k for c, k in zip(costs, counts, strict=True) if k}
    mu = math.sqrt(sum(k * gaussian_mu(*c) ** 2 for c, k in zip(costs, counts, strict=True)))
    for delta in (1e-6, 0.01):
        exact = gaussian_epsilon(mu, delta)
        assert (
            exact * (1 - 1e-7)
            <= evaluations_epsilon(evaluations, delta)
            <= exact * (1 + 1e-6) + 1e-8
        )
    assert evaluations_delta(evaluations) == max(
        delta for _, delta in costs if Cost(_, delta, True) in evaluations
    )


@settings(max_examples=30)
@given(
    epsilon=st.sampled_from([0.5, 1.0, 3.0]),
    small=st.sampled_from([1e-3, 0.05]),
    share=st.floats(0.01, 0.999),
    delta=st.sampled_from([1e-6, 1e-4, 0.01]),
)
@example(epsilon=1.0, small=1e-3, share=0.9, delta=1e-5)
def test_what_leaks_of_some_evaluations_is_no_delta_of_the_gaussian_ones(
    epsilon, small, share, delta
):
    """A coin that tells everything with probability d: delta(e) is at least d + (1 - d) G(e).

    G is the normal distributions' profile. So epsilon is no less than theirs at
    (delta - d) / (1 - d), and no more than theirs at delta - d with the coin's own added.
    """
    d, mu = share * delta, gaussian_mu(epsilon, 1e-5)
    told = evaluations_epsilon({Cost(epsilon, 1e-5, gaussian=True): 1, Cost(small, d): 1}, delta)
    assert gaussian_epsilon(mu, (delta - d) / (1 - d)) * (1 - 1e-6) <= told
    assert told <= gaussian_epsilon(mu, delta - d) * (1 + 1e-6) + small


# Over the runs of a vault -----------------------------------------------------------------------


def gaussian(epsilon, delta):
    return make_mechanism(epsilon, bound=1.0, mechanism="gaussian", delta=delta)


def evaluated(vault, run, mechanism, evaluations):
    curator = RewardSession(mechanism, vault, run, noise=SecureNoise())
    for trial in range(evaluations):
        curator.release(f"{run}/{trial}", 0.25, "Jane", -1.0)
    return curator


def claimed(curator, **how):
    return curator.guarantee(1, users_named=True, **how)


def test_a_user_s_gaussian_evaluations_in_several_runs_are_claimed_at_a_true_pair():
    """Epsilons added and deltas dropped gave (1.04, .05) for what costs 2.29 there."""
    vault = open_vault()
    for run in range(4):
        evaluated(vault, f"run {run}", gaussian(0.01, 0.2), 1)
    guarantee = claimed(evaluated(vault, "last", gaussian(1.0, 0.05), 1))
    mu = math.sqrt(4 * gaussian_mu(0.01, 0.2) ** 2 + gaussian_mu(1.0, 0.05) ** 2)
    assert guarantee.delta_most == 0.05
    assert gaussian_epsilon(mu, 0.05) > 2.0
    assert guarantee.epsilon >= gaussian_epsilon(mu, 0.05) * (1 - 1e-7)
    assert gaussian_delta(mu, guarantee.epsilon) <= guarantee.delta_most * (1 + 1e-8)
    assert guarantee.most_evaluations == 5


def test_a_pure_run_after_gaussian_ones_claims_no_delta_of_zero():
    vault = open_vault()
    for run in range(3):
        evaluated(vault, f"run {run}", gaussian(0.5, 0.01), 1)
    guarantee = claimed(evaluated(vault, "pure", make_mechanism(0.5, bound=1.0), 2))
    assert guarantee.delta_most == 0.01
    mu = gaussian_mu(0.5, 0.01) * math.sqrt(3)
    # The pure evaluations at their worst, as two coins beside the Gaussian ones.
    coins = [
        (math.prod(ps), math.prod(qs))
        for ps, qs in (
            zip(*pair, strict=True)
            for pair in itertools.product(leaky_coin(0.5, 0.0)[2:], repeat=2)
        )
    ]
    delta = sum(
        p * gaussian_delta(mu, max(guarantee.epsilon - math.log(p / q), 0)) for p, q in coins
    )
    assert delta <= guarantee.delta_most
    assert "at delta = 0.01" in guarantee.details()


def test_the_claimed_delta_covers_every_user_of_the_run():
    """Joe paid more epsilon without any delta; Jane's evaluations need one."""
    vault = open_vault()
    evaluated(vault, "one", gaussian(0.1, 0.01), 1)
    curator = evaluated(vault, "two", make_mechanism(0.5, bound=1.0), 1)
    for trial in range(5):
        curator.release(str(trial), 0.25, "Joe", -1.0)
    guarantee = claimed(curator)
    assert (guarantee.most_evaluations, guarantee.delta_most) == (5, 0.01)
    coins = [leaky_coin(0.5, 0.0)] * 5
    least = optimize.brentq(lambda e: delta_of(coins, e) - 0.01, 0.0, 2.5, xtol=1e-12)
    assert least <= guarantee.epsilon <= least + 1e-6 < 2.5


def test_evaluations_that_no_ledger_knows_are_composed_with_their_delta():
    curator = evaluated(open_vault(), "run", gaussian(1.0, 0.05), 1)
    guarantee = claimed(curator, unknown_evaluations=8)
    exact = gaussian_epsilon(3 * gaussian_mu(1.0, 0.05), 0.05)
    assert guarantee.delta_most == 0.05
    assert exact * (1 - 1e-7) <= guarantee.epsilon <= exact * (1 + 1e-6)
    assert guarantee.most_evaluations == 9
    unknown_only = RewardSession(gaussian(1.0, 0.05), open_vault(), "run")
    assert claimed(unknown_only, unknown_evaluations=9).epsilon == pytest.approx(exact, rel=1e-6)


def test_unknown_evaluations_may_make_somebody_else_the_one_who_paid_most():
    """One Gaussian evaluation of epsilon 4 costs more than a pure one of 3.5; many cost less."""
    vault = open_vault()
    pure = make_mechanism(1.0, bound=1.0)
    other = RewardSession(gaussian(4.0, 1e-6), vault, "other")
    other.release("0", 0.25, "Jane", -1.0)
    curator = RewardSession(pure, vault, "run")
    curator.release("0", 0.25, "Jane", -1.0)
    guarantee = claimed(curator, unknown_evaluations=3)
    assert guarantee.epsilon >= evaluations_epsilon(
        {other.mechanism.evaluation: 1, pure.evaluation: 4}, 1e-6
    )


def test_a_budget_is_spent_in_true_epsilons_over_several_runs():
    """Four evaluations of (.01, .2) elsewhere use up a budget of 2 at delta .05 on their own."""
    vault = open_vault()
    for run in range(4):
        evaluated(vault, f"run {run}", gaussian(0.01, 0.2), 1)
    curator = RewardSession(gaussian(1.0, 0.05), vault, "last", user_budget=2.0, user_delta=0.05)
    with pytest.raises(BudgetExceededError, match=r"user_budget=2 at delta=0\.05"):
        curator.check("0", "Jane")
    with pytest.raises(BudgetExceededError):
        curator.release("0", 0.25, "Jane", -1.0)
    assert curator.evaluations() == {}
    curator.release("0", 0.25, "Joe", -1.0)


def test_whoever_is_within_the_budget_is_claimed_within_it():
    vault = open_vault()
    evaluated(vault, "elsewhere", gaussian(0.5, 1e-4), 2)
    curator = RewardSession(
        make_mechanism(0.5, bound=1.0), vault, "run", user_budget=3.0, user_delta=1e-4
    )
    for trial in range(100):
        try:
            curator.release(str(trial), 0.25, "Jane", -1.0)
        except BudgetExceededError:
            break
    assert 3 < trial < 99
    assert 2.5 < claimed(curator).epsilon <= 3.0 * (1 + 1e-9)


def test_evaluations_of_a_mechanism_that_this_version_does_not_know_leak_what_they_may():
    """Stored by a later version, say: only their pair counts, and their deltas add up."""
    vault = open_vault()
    curator = evaluated(vault, "run", make_mechanism(0.5, bound=1.0), 1)
    person = pseudonym(curator, "0", "Jane")
    with vault.transaction("f" * 32) as tx:
        tx.new_run("later", {"mechanism": "unheard of"})
        for trial in range(3):
            tx.charge_evaluation(str(trial), person, 0.2, 0.01)
    guarantee = claimed(curator)
    assert guarantee.delta_most == pytest.approx(0.03)
    assert guarantee.epsilon == pytest.approx(1.1, abs=0.01)
