"""What a plan of privatised evaluations says, and that it is true."""

import math

import numpy as np
import pytest

from privbo_plugins.algorithms.ldp_gp_ucb.config import UCBConfig
from privbo_plugins.algorithms.reward_plan import make_reward_plan
from privbo_plugins.errors import UtilityWarning
from privbo_plugins.privacy.local import make_mechanism
from privbo_plugins.privacy.noise import InsecureNoise


def config(epsilon, low=0.0, high=2.0):
    mechanism = make_mechanism(epsilon, value_range=(low, high))
    return UCBConfig(low=low, high=high, noise=mechanism.noise)


def test_the_interval_covers_the_mean_as_often_as_it_says():
    # Fewer than 450 of 500 means covered has a probability below 1e-5; the seed is fixed.
    mechanism, noise = make_mechanism(1.0, value_range=(0.0, 2.0)), InsecureNoise(0)
    plan = make_reward_plan(config(1.0), 100)
    means = [
        np.mean([mechanism.randomize(1.0, noise, 0.0) for _ in range(100)]) for _ in range(500)
    ]
    covered = sum(abs(mean - 1.0) <= plan.known_to(100) for mean in means)
    assert 450 <= covered <= 490  # the worst reward; not wider than it must be


def test_numbers_in_the_text():
    plan = make_reward_plan(config(1.0), 400)
    assert plan.width == 2.0
    assert math.isclose(plan.known_to(400), 1.96 * plan.sd / 20)
    assert f"{plan.known_to(40):.2g} each" in str(plan)


def test_it_warns_where_nothing_can_be_learnt():
    with pytest.warns(UtilityWarning, match=r"Ask at least \d+ users, take a larger epsilon"):
        make_reward_plan(config(0.1), 20).warn_if_noise_dominates()
    make_reward_plan(config(2.0), 1000).warn_if_noise_dominates()


def test_raw_rewards_have_at_most_the_variance_of_their_range():
    assert make_reward_plan(UCBConfig(low=0.0, high=2.0), 10).sd == 1.0


@pytest.mark.parametrize("n", [0, -3, float("nan")])
def test_a_plan_needs_evaluations(n):
    with pytest.raises(ValueError, match="at least one evaluation, got"):
        make_reward_plan(config(1.0), n)


def test_a_plan_needs_a_range():
    raw = UCBConfig(B=1.0, second_moment=1.0, noise_moment=1.0)
    with pytest.raises(ValueError, match="range"):
        make_reward_plan(raw, 10)
