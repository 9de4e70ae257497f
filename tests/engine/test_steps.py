"""Step rules against references written down by hand."""

import json
import math

import numpy as np
import pytest
from numpy.testing import assert_allclose

from privbo_plugins.algorithms.dp_gibo.steps import STEP_RULES, scheduled

GRADIENTS = np.random.default_rng(0).normal(size=(7, 3)) * [1.0, 0.1, 3.0]
ETA = 0.3


def run(name, gradients, eta=ETA):
    state, moves = [], []
    for g in gradients:
        state, delta = STEP_RULES[name](state, g, eta)
        moves.append(delta)
    return np.array(moves)


def by_hand_sgd():
    return [[-ETA * float(x) for x in g] for g in GRADIENTS]


def by_hand_adagrad():
    moves = []
    for t in range(len(GRADIENTS)):
        squares = [sum(float(GRADIENTS[s][j]) ** 2 for s in range(t + 1)) for j in range(3)]
        moves.append([-ETA * float(GRADIENTS[t][j]) / math.sqrt(squares[j]) for j in range(3)])
    return moves


def by_hand_adagrad_norm():
    moves = []
    for t in range(len(GRADIENTS)):
        total = sum(float(GRADIENTS[s][j]) ** 2 for s in range(t + 1) for j in range(3))
        scale = ETA * math.sqrt(3) / math.sqrt(total)
        moves.append([-scale * float(x) for x in GRADIENTS[t]])
    return moves


def by_hand_momentum():
    """The direction of the sum of all gradients, each older one at half the weight."""
    moves = []
    for t in range(len(GRADIENTS)):
        m = [sum(0.5 ** (t - s) * float(GRADIENTS[s][j]) for s in range(t + 1)) for j in range(3)]
        length = math.sqrt(sum(x * x for x in m))
        moves.append([-ETA * math.sqrt(3) * x / length for x in m])
    return moves


def test_only_the_momentum_rule_slows_down():
    assert [scheduled("momentum", 1.0, t, 4) for t in range(4)] == [1.0, 0.75, 0.5, 0.25]
    for name in set(STEP_RULES) - {"momentum"}:
        assert [scheduled(name, 1.0, t, 4) for t in range(4)] == [1.0] * 4


BY_HAND = {
    "momentum": by_hand_momentum, "sgd": by_hand_sgd, "adagrad": by_hand_adagrad,
    "adagrad-norm": by_hand_adagrad_norm,
}  # fmt: skip


@pytest.mark.parametrize("name", STEP_RULES)
def test_rule_against_its_reference(name):
    assert_allclose(run(name, GRADIENTS), BY_HAND[name](), rtol=1e-9)


@pytest.mark.parametrize("name", STEP_RULES)
def test_state_survives_json_after_every_step(name):
    state, moves = [], []
    for g in GRADIENTS:
        state, delta = STEP_RULES[name](json.loads(json.dumps(state)), g, ETA)
        moves.append(delta)
    assert np.array_equal(moves, run(name, GRADIENTS))


@pytest.mark.parametrize("name", STEP_RULES)
def test_a_zero_gradient_moves_nowhere_and_stays_finite(name):
    assert np.array_equal(run(name, np.zeros((3, 2))), np.zeros((3, 2)))
