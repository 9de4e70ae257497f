"""Empirical audits of what a DUETS agent sends: uploads are post-processing of private rewards.

One user's raw reward is the worst pair of neighbours, the low end of the range or the high one;
all other rewards are known to the attacker, who therefore sees in the upload what there is to see
of that one. The reward goes through the mechanism, the agent and the upload as in a run; the
attacker's score is computed from the upload's numbers alone, and ``test_local_audit``'s bounds on
epsilon apply to it. Sources are seeded: nothing here is random from run to run, the bounds hold
with confidence 1 - 1e-4 each. Mutants are built here, never in the engine, and every one of them
must be found out.
"""

from functools import cache

import numpy as np
import pytest

from privbo_plugins.algorithms.duets import Agent, DUETSConfig, FinitePoints, make_agents
from privbo_plugins.privacy.local import make_mechanism
from privbo_plugins.privacy.noise import InsecureNoise

from .auditing import audited_epsilon
from .test_local_audit import both_sides

RUNS = 1500
PAIR = (-1.0, 1.0)
OTHERS = (0.3, -0.2, 0.9)
EPSILON = 2.0
KINDS = ("projection", "rewards")
MECHANISMS = ("laplace", "duchi", "piecewise", "hybrid")

each_kind = pytest.mark.parametrize("kind", KINDS)


@cache
def public_state(kind, length=None):
    """Two agents with four rewards each, and projections of two numbers and two sums."""
    length = length or {"projection": 5.0, "rewards": 0.01}[kind]
    config = DUETSConfig(n_agents=2, n_trials=80, first_epoch=4, lengthscale=length)
    server, agents = make_agents(config, FinitePoints(np.linspace(0, 1, 60)[:, None]), key=4)
    public = agents[0].public_state
    known = [public.points(n) for n in range(2)]
    vars(public)["points"] = known.__getitem__  # tossed once, not every run
    return server, public


def upload(kind, ybar):
    """What agent 0 sends if its first reward was released as ``ybar``."""
    agent = Agent(0, public_state(kind)[1])
    for draw, y in enumerate((ybar, *OTHERS)):
        assert agent.tell(draw, y)
    sent = agent.upload(None)
    assert sent.kind == kind
    return sent


@cache
def weights(kind, length=None):
    """z_S at the four points, shape (4, m); where rewards are sent, they are themselves."""
    public = public_state(kind, length)[1]
    if kind == "rewards":
        return np.eye(4)
    return np.asarray(public.inducing.features(public.points(0)))


def seen(kind, sent):
    """The attacker's: takes off what others have added, and solves for the first reward."""
    Z = weights(kind)
    left = np.array(sent.numbers[: Z.shape[1]]) - Z[1:].T @ np.array(OTHERS)
    return float(np.round(left @ Z[0] / (Z[0] @ Z[0]), 9))


def through_the_agent(kind, release):
    return lambda y: seen(kind, upload(kind, release(y)))


def released(mechanism, noise):
    return lambda y: mechanism.randomize(y, noise, mechanism.low)


def mechanism_of(name, epsilon=EPSILON):
    return make_mechanism(epsilon, bound=1.0, mechanism=name)


def audit(kind, release, pair=PAIR, runs=RUNS):
    return audited_epsilon(*both_sides(through_the_agent(kind, release), pair, runs))


@each_kind
def test_the_attacker_sees_the_released_reward(kind):
    """The audit has power: the score is the released reward, to nine digits."""
    for ybar in (-7.25, 0.0, 0.1, 3.0):
        assert seen(kind, upload(kind, ybar)) == pytest.approx(ybar, abs=1e-6)


# Correct uploads --------------------------------------------------------------------------------


@each_kind
@pytest.mark.parametrize("name", MECHANISMS)
def test_uploads_are_as_private_as_the_rewards_in_them(kind, name):
    bound = audit(kind, released(mechanism_of(name), InsecureNoise(1)))
    assert 0.5 * EPSILON <= bound <= EPSILON


@each_kind
def test_a_draw_that_is_told_again_says_no_more(kind):
    """The first report stands, also if a careless host draws fresh noise for the second."""
    mechanism, noise = mechanism_of("laplace"), InsecureNoise(3)

    def draw(y):
        agent = Agent(0, public_state(kind)[1])
        for _ in range(5):
            agent.tell(0, mechanism.randomize(y, noise, -1.0))
        for t, other in enumerate(OTHERS):
            agent.tell(t + 1, other)
        uploads = [agent.upload(None) for _ in range(3)]
        assert uploads[0] == uploads[1] == uploads[2]
        return seen(kind, uploads[0])

    assert 0.5 * EPSILON <= audited_epsilon(*both_sides(draw, PAIR, 1200)) <= EPSILON


def test_the_sums_of_a_fit_say_no_more_than_the_rewards():
    """Sum and sum of squares go along; the attacker solves for the reward in each of them."""
    mechanism, noise = mechanism_of("laplace"), InsecureNoise(4)
    others = np.array(OTHERS)

    def scores(y):
        sent = upload("projection", mechanism.randomize(y, noise, -1.0))
        assert len(sent.numbers) == 4
        one, two = sent.numbers[-2] - others.sum(), sent.numbers[-1] - others @ others
        assert two == pytest.approx(one**2, abs=1e-6)
        return float(np.round(one, 9)), float(np.round(two, 9))

    low, high = (np.array([scores(y) for _ in range(RUNS)]) for y in PAIR)
    assert 0.5 * EPSILON <= audited_epsilon(low[:, 0], high[:, 0]) <= EPSILON
    assert audited_epsilon(low[:, 1], high[:, 1]) <= EPSILON


# Mutants ----------------------------------------------------------------------------------------


@each_kind
def test_the_audit_flags_rewards_that_are_not_privatised(kind):
    assert audit(kind, lambda y: y, runs=200) > EPSILON


class Overwriting(Agent):
    """Mutant: the last report of a draw stands, and all of them are uploaded."""

    def tell(self, draw, reward, epoch=None):
        self._rewards[self.public_state.j, draw] = float(reward)
        return True


@each_kind
def test_the_audit_flags_an_agent_that_lets_the_last_report_stand(kind):
    """Whoever sees its uploads between five reports sees five releases."""
    mechanism, noise = mechanism_of("laplace"), InsecureNoise(0)

    def draw(y):
        agent, scores = Overwriting(0, public_state(kind)[1]), []
        for t, other in enumerate(OTHERS):
            agent.tell(t + 1, other)
        for _ in range(5):
            agent.tell(0, mechanism.randomize(y, noise, -1.0))
            scores.append(seen(kind, agent.upload(None)))
        return float(np.mean(scores))

    assert audited_epsilon(*both_sides(draw, PAIR, 400)) > EPSILON


def noisy_projection(Z, scale, noise):
    """Raw rewards are projected, and every coordinate of v gets Laplace noise."""

    def draw(y):
        v = Z.T @ np.array([y, *OTHERS])
        return np.array([noise.add_laplace(float(x), scale) for x in v])

    return draw


def likelihood_score(Z, scale):
    """The log likelihood ratio of the two neighbours: the best that any attacker can do."""
    one, two = (Z.T @ np.array([y, *OTHERS]) for y in PAIR)
    return lambda v: float((np.abs(v - one).sum() - np.abs(v - two).sum()) / scale)


@pytest.mark.parametrize("correct", [True, False])
def test_the_audit_flags_noise_after_the_projection_for_one_coordinate_only(correct):
    """The L1 sensitivity of v is 2 |z|_1; for one coordinate it would be 2 |z|_inf."""
    Z = weights("projection", 0.3)
    assert 2 <= Z.shape[1]
    z = np.abs(Z[0])
    assert z.sum() > 1.8 * z.max()
    scale = 2 * (z.sum() if correct else z.max()) / EPSILON
    draw, score = noisy_projection(Z, scale, InsecureNoise(0)), likelihood_score(Z, scale)
    bound = audited_epsilon(*both_sides(lambda y: score(draw(y)), PAIR, RUNS))
    assert (bound <= EPSILON) == correct
    assert bound > 0.3 * EPSILON


@pytest.mark.parametrize("kind", KINDS)
def test_what_is_audited_is_what_the_server_takes(kind):
    server, _ = public_state(kind)
    assert server.receive(upload(kind, 0.5))
    assert 0 not in server.waiting_for
