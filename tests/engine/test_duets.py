"""DUETS: posterior, settings, coins, and what a host sees of it."""

import hashlib
import hmac
import json
import math
import pickle
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.linalg import sqrtm
from scipy.optimize import minimize_scalar
from scipy.stats import chisquare, multivariate_normal

from privbo_plugins.algorithms.duets import (
    DUETS,
    Coins,
    DUETSConfig,
    FinitePoints,
    SpaceDomain,
    make_agents,
)
from privbo_plugins.algorithms.duets import posterior as sparse
from privbo_plugins.algorithms.duets.posterior import (
    Scale,
    SparsePosterior,
    Sums,
    fitted,
    solved,
    spanning,
    variance,
)
from privbo_plugins.algorithms.protocols import Evaluation
from privbo_plugins.models.kernels import RBF, Matern52
from privbo_plugins.models.nystrom import NystromEmbedding
from privbo_plugins.privacy.local import make_mechanism
from privbo_plugins.privacy.noise import InsecureNoise
from privbo_plugins.settings import evolve
from privbo_plugins.spaces import Categorical, Float, Int, Space

from .helpers import cube
from .oracles import conditioned

KERNELS = pytest.mark.parametrize("kernel", [RBF(0.3), Matern52(0.5)], ids=["rbf", "matern52"])
LINE = Space({"x": Float(0.0, 1.0)})
SPACES = {
    "line": LINE,
    "square": cube(2),
    "mixed": Space(
        {"a": Float(1e-3, 1.0, log=True), "b": Int(1, 9), "c": Categorical(("u", "v", "w"))}
    ),
    "one point": Space({"x": Int(3, 3)}),
    "choices": Space({"x": Categorical(("a", "b", None)), "y": Categorical((1, 2))}),
}
each_space = pytest.mark.parametrize("space", SPACES.values(), ids=SPACES.keys())


# Posterior: independent formulas ----------------------------------------------------------------


def dense(kernel, D, Y, X, lam):
    """Equations (3) and (4), inverted as they stand: mu and sigma² at X."""
    return conditioned(kernel.k(D, D), kernel.k(X, D), 1.0, Y, lam)


def data(n=14, d=2, seed=0):
    rng = np.random.default_rng(seed)
    D, X = rng.random((n, d)), rng.random((30, d))
    return D, np.sin(5 * D.sum(1)) + 0.2 * rng.standard_normal(n) + 3.0, X


def statistics(Z, Y):
    return Z.T @ Z, Z.sum(0), Sums(len(Y), Z.T @ Y, float(Y.sum()), float(Y @ Y))


@KERNELS
@pytest.mark.parametrize("lam", [1e-2, 0.3, 50.0])
def test_with_all_points_inducing_it_is_the_dense_posterior(kernel, lam):
    D, Y, X = data()
    scale = Scale(lam, 2.5, 3.0)
    inducing = NystromEmbedding(kernel.k, D)
    G, ones, sums = statistics(inducing.features(D), Y)
    posterior = SparsePosterior(inducing, solved(G, ones, sums, scale), scale, G)
    mean, s2 = dense(kernel, D, Y - 3.0, X, lam)
    mu, sigma = posterior.predict(X)
    np.testing.assert_allclose(mu, 3.0 + mean, atol=1e-6)
    np.testing.assert_allclose(posterior.mean(X), mu)
    np.testing.assert_allclose(sigma**2, 2.5**2 * s2, atol=1e-6)


@KERNELS
def test_with_few_inducing_points_it_is_equations_5_and_6(kernel):
    """With roots of matrices by scipy; (6), which carries 1/lam, on the scale of (4)."""
    D, Y, X = data(20)
    S, lam = D[:6], 0.2
    root = np.linalg.inv(np.real(sqrtm(kernel.k(S, S))))
    Z, z = kernel.k(D, S) @ root, kernel.k(X, S) @ root
    A = np.linalg.inv(lam * np.eye(6) + Z.T @ Z)
    inducing = NystromEmbedding(kernel.k, S)
    G, ones, sums = statistics(inducing.features(D), Y)
    posterior = SparsePosterior(inducing, solved(G, ones, sums, Scale(lam)), Scale(lam), G)
    mu, sigma = posterior.predict(X)
    np.testing.assert_allclose(inducing.features(X), z, atol=1e-8)
    np.testing.assert_allclose(mu, z @ A @ Z.T @ Y, atol=1e-8)
    np.testing.assert_allclose(sigma**2, 1.0 - np.diag(z @ Z.T @ Z @ A @ z.T), atol=1e-8)


@KERNELS
@pytest.mark.parametrize("lam", [1e-2, 1.0])
def test_variances_are_the_dense_ones(kernel, lam):
    D, Y, X = data(25)
    D = np.vstack([D, D[:5]])
    expected = dense(kernel, D, np.append(Y, Y[:5]), X, lam)[1]
    np.testing.assert_allclose(variance(kernel, D, X, lam), expected, atol=5e-5)


@KERNELS
def test_a_spanning_set_spans_every_point(kernel):
    D = np.random.default_rng(0).random((60, 2)).round(1)
    S = spanning(kernel, D)
    assert {*map(tuple, S)} <= {*map(tuple, D)}
    assert len(np.unique(S, axis=0)) == len(S) <= len(np.unique(D, axis=0))
    assert dense(kernel, S, np.zeros(len(S)), D, 1e-10)[1].max() <= 1.01e-3


@KERNELS
@pytest.mark.parametrize("seed", range(2))
@pytest.mark.parametrize("noise", [None, 0.04, 4.0])
@pytest.mark.parametrize("level", [None, 2.0])
def test_the_fit_has_the_largest_marginal_likelihood(kernel, seed, noise, level):
    """Brute force: the density of the rewards themselves, maximised over s where it is free."""
    D, Y, _ = data(20, seed=seed)
    Z = NystromEmbedding(kernel.k, D[:12]).features(D)
    G, ones, sums = statistics(Z, Y)
    scale = fitted(G, ones, sums, noise, level)
    c = Y.mean() if level is None else level
    assert scale.c == pytest.approx(c)

    def density(s2, lam):
        covariance = s2 * (Z @ Z.T + lam * np.eye(len(Y)))
        return float(multivariate_normal.logpdf(Y, np.full(len(Y), c), covariance))

    def best(lam):
        if noise is not None:
            return density(noise / lam, lam), noise / lam
        found = minimize_scalar(lambda u: -density(math.exp(u), lam), bounds=(-9, 9))
        return -float(found.fun), math.exp(found.x)

    lams = sparse._LAMS if noise is None else sparse._LARGE_LAMS
    likelihoods = [best(lam)[0] for lam in lams]
    assert scale.lam == lams[int(np.argmax(likelihoods))]
    assert scale.s**2 == pytest.approx(best(scale.lam)[1], rel=1e-3)


# Settings ---------------------------------------------------------------------------------------


def lengths(config, epochs=99):
    found = []
    previous, evaluated = 0, 0
    while len(found) < epochs and (previous := config.length(previous, evaluated)):
        found.append(previous)
        evaluated += previous
    return found


def test_lengths_of_epochs_are_the_papers():
    assert lengths(DUETSConfig.paper(10, 50)) == [2, 10, 22, 16]
    for T, T_1 in ((7, 1), (200, 3), (1000, 2)):
        expected = [T_1]
        while (left := T - sum(expected)) > 0:
            expected.append(min(math.floor(math.sqrt(T * expected[-1])), left))
        assert lengths(DUETSConfig.paper(4, T, first_epoch=T_1)) == expected
        assert sum(expected) == T


def test_lengths_double_and_end_at_the_horizon():
    assert lengths(DUETSConfig(first_epoch=3, n_trials=400)) == [3, 6, 12, 24, 5]
    assert lengths(DUETSConfig(7), epochs=6) == [2, 4, 8, 16, 32, 64]
    assert lengths(DUETSConfig(n_trials=8)) == lengths(DUETSConfig.paper(3, 1)) == [1]


@pytest.mark.parametrize(("n_agents", "first"), [(1, 2), (7, 2), (8, 1), (9, 1), (100, 1)])
def test_many_agents_begin_with_one_evaluation_each_unless_told_otherwise(n_agents, first):
    assert lengths(DUETSConfig(n_agents), epochs=3) == [first, 2 * first, 4 * first]
    assert lengths(DUETSConfig(n_agents, first_epoch=3), epochs=2) == [3, 6]
    assert lengths(DUETSConfig.paper(n_agents, 50))[0] == 2, "what is published stays so"
    explicit = DUETSConfig(n_agents, first_epoch=first)
    assert DUETSConfig(n_agents).to_dict() == explicit.to_dict(), "one run, however it was said"


def test_the_published_width_is_that_of_the_lemma():
    config = DUETSConfig.paper(10, 50, discretisation=1000)
    delta = 0.1 / (2 * 1000 * (math.log(math.log(10) * math.log(50)) + 4))
    # R² = lam, so that R sqrt(2 / lam ln(2 / delta')) has no lam.
    width = 1.0 + math.sqrt(2 * math.log(2 / delta))
    assert config.width(2) == config.width(40) == pytest.approx(width)
    narrow = evolve(config, variant="default", beta_scale=3.0)
    assert narrow.width(2) == pytest.approx(0.3 * width)
    assert DUETSConfig(beta=0.7, beta_scale=2.0).width(5) == pytest.approx(1.4)
    assert DUETSConfig().width(8) < DUETSConfig().width(10**6)
    assert math.isfinite(DUETSConfig(n_agents=1, n_trials=1).width(1))


@pytest.mark.parametrize(
    "bad",
    [
        {"n_agents": 1.5}, {"discretisation": 15}, {"lengthscale": math.nan},
        {"final": "other"},
        {"variant": "paper"}, {"p0": 2.0}, {"noise_ratio": 0.1},
        {"final": "best", "variant": "paper", "n_trials": 72},
        {"low": 0.0}, {"low": 1.0, "high": 1.0}, {"low": 2.0, "high": 1.0},
        {"low": -math.inf, "high": 1.0}, {"low": 0.0, "high": math.nan},
        {"low": None, "high": 1.0},
    ],
    ids=str,
)  # fmt: skip
def test_settings_outside_their_range_are_refused(bad):
    with pytest.raises(ValueError, match="range" if "low" in bad else next(iter(bad))):
        DUETSConfig(**bad)


def test_the_scale_of_unfitted_rewards_comes_from_their_range():
    noise = make_mechanism(1.0, bound=2.0, mechanism="laplace").noise
    for more, expected in (
        ({}, Scale(0.04)),
        ({"low": -1.0, "high": 5.0}, Scale(0.04, 3.0, 2.0)),
        ({"low": -2.0, "high": 2.0, "noise": noise}, Scale(noise.total_variance / 4, 2.0, 0.0)),
    ):
        scale = DUETS(DUETSConfig.paper(2, 9, **more), LINE).public_state.fixed_scale()
        assert (scale.lam, scale.s, scale.c) == pytest.approx(
            (expected.lam, expected.s, expected.c)
        )


# Coins ------------------------------------------------------------------------------------------


def test_private_coins_are_private():
    config = DUETSConfig.paper(3, 20)
    _, agents = make_agents(config, FinitePoints(np.eye(9)), key=3)
    with pytest.raises(KeyError):
        agents[0].public_state.points(1)
    with pytest.raises(KeyError):
        Coins.tossed(3, 3).known_to(2).draw(1, 1, 0, size=5)
    assert "own" not in repr(agents[0].public_state.coins)


WORD = 2**32


def state_of_the_source(words):
    """What words of ``SeedSequence.generate_state`` tell of its state: every step is undone."""
    state = {}
    for place, word in words.items():
        constant = 0x8B51F9DD * pow(0x58F38DED, place, WORD) % WORD
        mixed = word ^ (word >> 16)
        mixed = mixed * pow(constant * 0x58F38DED % WORD, -1, WORD) % WORD
        state[place % 4] = mixed ^ constant
    return state


def words_of_the_source(state, place):
    """A word of ``generate_state``, from the state."""
    constant = 0x8B51F9DD * pow(0x58F38DED, place, WORD) % WORD
    mixed = (state[place % 4] ^ constant) * (constant * 0x58F38DED % WORD) % WORD
    return mixed ^ (mixed >> 16)


def worked_out(known, n_agents):
    """Numbers behind other agents' coins, by whoever knows some and inverts their source."""
    seen = {0: known.public} | {agent + 1: number for agent, number in known.own.items()}
    words = {
        2 * i + half: (number >> 32 * half) % WORD for i, number in seen.items() for half in (0, 1)
    }
    state = state_of_the_source(words)
    found = {}
    for agent in set(range(n_agents)) - set(known.own):
        places = (2 * agent + 2, 2 * agent + 3)
        if all(place % 4 in state for place in places):
            low, high = (words_of_the_source(state, place) for place in places)
            found[agent] = low + WORD * high
    return found


def test_no_agent_works_out_anothers_coin():
    """The control is the same attack on coins that are no secret: it finds all of them."""
    key, N = 2**127 + 12345, 5
    shared = Coins.shared(key, N)
    control = Coins(shared.public, {0: shared.own[0]})
    assert worked_out(control, N) == {n: shared.own[n] for n in range(1, N)}
    assert worked_out(Coins(shared.public, {}), N) == {n: shared.own[n] for n in (1, 3)}

    config = DUETSConfig.paper(N, 20)
    server, agents = make_agents(config, FinitePoints(np.eye(40)), key)
    for agent in agents:
        mine = agent.public_state.coins
        assert set(mine.own) == {agent.number}
        for known in (mine, Coins(mine.public, {})):
            for other, number in worked_out(known, N).items():
                assert number % 2**64 != server.public_state.coins.own[other] % 2**64
                assert number != shared.own[other]
        whole = pickle.dumps(agent)  # what its process is sent
        for n, number in server.public_state.coins.own.items():
            assert (number.to_bytes(32, "little") in whole) == (n == agent.number)


def test_private_coins_are_keyed_hashes_of_agent_epoch_and_draw():
    def hashed(key, *message):
        secret = hashlib.sha256(f"{key:x}".encode()).digest()
        made = hmac.new(secret, "/".join(("privbo duets coins", *message)).encode(), "sha256")
        return int(made.hexdigest(), 16)

    key = 2**130 + 7
    coins = Coins.tossed(key, 3)
    assert coins.public == hashed(key, "public")
    assert dict(coins.own) == {n: hashed(key, "agent", str(n)) for n in range(3)}
    draw = np.random.default_rng(hashed(coins.own[2], "draw", "4", "11")).integers(1000)
    assert coins.draw(2, 4, 11, 1000) == draw


def test_one_of_coins_that_give_each_other_is_told_to_nobody():
    with pytest.raises(ValueError, match="gives the others"):
        Coins.shared(3, 2).known_to(0)
    for key in (-1, 0.5, None):
        with pytest.raises(ValueError, match="integer >= 0") as refused:
            Coins.tossed(key, 2)
        assert str(key) not in str(refused.value)


@pytest.mark.parametrize("toss", [Coins.tossed, Coins.shared], ids=["private", "shared"])
def test_draws_are_uniform(toss):
    """Seeded; each of the tests would fail for one seed in ten thousand."""
    coins = toss(11, 3)
    draws = np.array([coins.draws(n, j, 400, 10) for n in range(3) for j in range(1, 5)])
    for some in (draws, draws[:4], draws[:, ::2], draws[:, 0::7]):
        assert chisquare(np.bincount(some.ravel(), minlength=10)).pvalue > 1e-4
    # And independent: successive draws, agents and epochs.
    for one, two in (
        (draws[:, 1:], draws[:, :-1]),
        (draws[4:], draws[:-4]),
        (draws[1:], draws[:-1]),
    ):
        pairs = np.bincount((10 * one + two).ravel(), minlength=100)
        assert chisquare(pairs).pvalue > 1e-4


@pytest.mark.parametrize("toss", [Coins.tossed, Coins.shared], ids=["private", "shared"])
def test_keys_agents_and_epochs_have_coins_of_their_own(toss):
    seen = {
        tuple(toss(key, 2).draws(n, j, 8, 10**6))
        for key in range(3) for n in range(2) for j in range(1, 4)
    }  # fmt: skip
    assert len(seen) == 18
    coins = Coins.tossed(0, 1)
    assert coins.inducing(1).random() != coins.refinement(1).random()
    assert coins.inducing(1).random() != coins.inducing(2).random()
    assert coins.inducing(2).random() == coins.known_to(0).inducing(2).random()


# What a host sees -------------------------------------------------------------------------------

SMALL = DUETSConfig(n_agents=3, n_trials=42, discretisation=64)
PAPER = DUETSConfig.paper(3, 14, discretisation=64)
BOTH = pytest.mark.parametrize("config", [SMALL, PAPER], ids=["default", "paper"])


def bump(x):
    return float(np.exp(-(((x - 0.3) / 0.3) ** 2).sum()))


def evaluation(duets, n, f=bump, *, first=0):
    asked = []
    for key in range(first, first + n):
        one = duets.ask(key)
        asked.append((one.x.tobytes(), one.epoch, one.agent, one.draw))
        duets.tell(one, f(one.x))
    return asked


def draws_of(duets):
    return [duets.evaluation_of(slot) for slot in duets.slots()]


@BOTH
def test_asking_hands_out_every_draw_of_an_epoch_once(config):
    duets = DUETS(config, LINE, seed=2)
    out = []
    for key in range(6):
        one = duets.ask(key, out)
        assert one is not None
        out.append(one)
    assert [(p.epoch, p.agent, p.draw) for p in out] == duets.slots()
    for one in out:
        points = duets.agents[one.agent or 0].points
        assert np.array_equal(one.x, points[one.draw or 0])
    assert duets.ask(6, out, may_wait=True) is None
    spare = duets.ask(6, out)
    assert spare.epoch is spare.agent is spare.draw is None
    # A failed one, which is pending no longer, is asked for again at the same point.
    again = duets.ask(7, [*out[:3], *out[4:]])
    assert (again.epoch, again.agent, again.draw) == (out[3].epoch, out[3].agent, out[3].draw)
    assert np.array_equal(again.x, out[3].x)


@settings(max_examples=25)
@given(order=st.permutations(range(6)), paper=st.booleans())
def test_an_epoch_does_not_depend_on_who_was_fast(order, paper):
    digests = []
    for now in (order, range(6)):
        duets = DUETS(PAPER if paper else SMALL, LINE, seed=5)
        evaluations = draws_of(duets)
        for i in now:
            duets.tell(evaluations[i], bump(evaluations[i].x) + 0.1 * i)
        assert duets.epoch == 2
        digests.append(
            (
                duets.public_state.active.digest,
                duets.public_state.heard[0],
                duets.ask(0).x.tobytes(),
            )
        )
    assert digests[0] == digests[1]


def test_evaluations_that_are_no_draws_teach_the_recommendation_only():
    duets, plain = DUETS(SMALL, LINE), DUETS(SMALL, LINE)
    own = draws_of(duets)
    strangers = [
        Evaluation(np.array([0.9])),
        Evaluation(own[0].x, 2, 0, 0),
        Evaluation(own[0].x, 1, 3, 0),
        Evaluation(own[0].x, 1, -1, 0),
        Evaluation(own[0].x, 1, 0, 2),
        Evaluation(own[0].x, 1, None, 0),
        Evaluation(own[0].x + 1e-3, 1, 0, 0),
    ]
    for one in strangers:
        duets.tell(one, 50.0)
        assert len(duets.open_slots()) == 6
    for one in own:
        duets.tell(one, bump(one.x))
        plain.tell(one, bump(one.x))
    assert duets.public_state.heard == plain.public_state.heard
    assert len(duets.evaluations) == len(own) + len(strangers)


@BOTH
def test_spare_evaluations_are_points_that_nobody_has_evaluated(config):
    duets = DUETS(config, LINE)
    out = []
    evaluation(duets, 8)
    for key in range(30):
        one = duets.ask(key, out)
        assert one is not None
        out.append(one)
    spare = [p for p in out if p.epoch is None]
    assert len(spare) == 30 - len(duets.open_slots()) > 0
    evaluated = {p.x.tobytes() for p, _ in duets.evaluations}
    draws = {p.x.tobytes() for p in out if p.epoch is not None}
    assert len({p.x.tobytes() for p in spare}) == len(spare)
    assert not {p.x.tobytes() for p in spare} & (evaluated | draws)
    assert duets.public_state.active.contains(np.array([p.x for p in spare])).all()


@BOTH
@each_space
def test_a_run_finishes_after_n_t_evaluations(config, space):
    duets = DUETS(config, space)
    for key in range(3 * 14):
        assert not duets.public_state.finished
        evaluation(duets, 1, first=key)
    assert duets.public_state.finished
    assert [epoch.length for epoch in duets.history] == lengths(config)[:-1]
    assert duets.open_slots() == []
    reports = len(duets.public_state.heard)
    one = duets.ask(99, may_wait=True)
    assert one.epoch is None
    evaluation(duets, 3)
    assert len(duets.public_state.heard) == reports
    json.dumps(duets.status(), allow_nan=False)


@pytest.mark.parametrize("final", ["top", "best", "uniform"])
def test_the_last_epoch_evaluates_what_was_asked_for(final):
    if final == "uniform":
        config = DUETSConfig.paper(2, 10, discretisation=256)
    else:
        config = DUETSConfig(n_agents=2, n_trials=20, discretisation=256, final=final)
    duets = DUETS(config, LINE)
    evaluation(duets, 2 * (2 + 4))
    assert duets.public_state.last
    U = duets.public_state.active.U
    mean = duets.public_state.posterior.mean(U)
    X = np.array([one.x for one in draws_of(duets)])
    assert len(X) == 8
    if final == "uniform":
        own = [
            np.array([duets.public_state.coins.draw(n, 3, t, len(U)) for t in range(4)])
            for n in (0, 1)
        ]
        assert np.array_equal(X, U[np.stack(own, 1).ravel()])
    else:
        best = U[np.argsort(-mean, kind="stable")]
        expected = best[:8] if final == "top" else np.repeat(best[:1], 8, axis=0)
        assert np.array_equal(X, expected)


@pytest.mark.parametrize(("d", "config"), [
    (1, DUETSConfig(n_agents=4, n_trials=120, discretisation=256)),
    (2, DUETSConfig(n_agents=4, n_trials=120, discretisation=256)),
    (1, DUETSConfig.paper(4, 30, discretisation=256, beta=0.5)),
    (1, DUETSConfig(n_agents=1, n_trials=30, discretisation=256, kernel="matern52")),
], ids=["1-d", "2-d", "paper", "one agent"])  # fmt: skip
def test_the_best_point_of_a_smooth_function_is_found(d, config):
    """Seeded noise of a tenth of the function's height."""
    rng = np.random.default_rng(d)
    duets = DUETS(config, cube(d), seed=1)
    while not duets.public_state.finished:
        evaluation(duets, 1, lambda x: bump(x) + 0.1 * float(rng.standard_normal()))
    assert bump(duets.recommendation()) > 0.9
    assert duets.public_state.active.share < 0.8


@BOTH
def test_minimising_is_maximising_the_negative(config):
    up, down = DUETS(config, LINE), DUETS(config, LINE, maximize=False)
    assert evaluation(up, 42) == evaluation(down, 42, lambda x: -bump(x))
    assert up.public_state.heard == down.public_state.heard
    assert np.array_equal(up.recommendation(), down.recommendation())


@BOTH
def test_a_huge_width_keeps_everything(config):
    duets = DUETS(evolve(config, beta=1e6), LINE)
    whole = duets.public_state.active.digest
    evaluation(duets, 42)
    assert [epoch.share for epoch in duets.history] == [1.0, 1.0]
    assert duets.public_state.active.digest == whole


@BOTH
@pytest.mark.parametrize(
    "f",
    [lambda x: 0.7, lambda x: 5e-324, lambda x: 1e300 * (-1) ** int(50 * x[0]),
     lambda x: 1e9 + float(x[0])],
    ids=["0.7", "5e-324", "±1e300", "1e9 + x"],
)  # fmt: skip
def test_extreme_and_constant_rewards_leave_finite_numbers(config, f):
    """Warnings are errors here."""
    duets = DUETS(config, LINE)
    evaluation(duets, 42, f)
    assert duets.public_state.finished
    for broadcast in duets.public_state.heard:
        assert np.isfinite([*broadcast.v_bar, *broadcast.scale, broadcast.sigma_max or 0.0]).all()
    assert np.isfinite(duets.recommendation()).all()
    assert len(duets.public_state.active.U) >= 1


def test_a_finite_domain_need_not_be_snapped():
    """Hosts evaluate at snapped points; they count as the draws that they are."""
    space = Space({"x": Int(0, 10)})
    X = np.linspace(0.01, 0.99, 30)[:, None]
    duets = DUETS(SMALL, space, domain=FinitePoints(X))
    for key in range(6):
        one = duets.ask(key)
        seen = space.encode(space.decode(one.x))
        duets.tell(Evaluation(seen, one.epoch, one.agent, one.draw), bump(seen))
    assert duets.epoch == 2


@pytest.mark.parametrize("bad", [np.zeros(3), np.zeros((0, 2)), np.array([[np.nan]])], ids=str)
def test_a_finite_domain_is_a_finite_matrix(bad):
    with pytest.raises(ValueError, match="finite matrix"):
        FinitePoints(bad)


# Privatised rewards -----------------------------------------------------------------------------


def test_the_fit_takes_the_privatising_noise_as_known():
    local = make_mechanism(1.0, bound=1.0, mechanism="hybrid")
    config = DUETSConfig(
        n_agents=4, n_trials=80, discretisation=64, low=-1.0, high=1.0, noise=local.noise
    )
    duets, noise = DUETS(config, LINE), InsecureNoise(0)
    evaluation(duets, 40, lambda x: local.randomize(bump(x), noise, -1.0))
    assert len(duets.public_state.heard) == 2
    for broadcast in duets.public_state.heard:
        lam, s, *_ = broadcast.scale
        assert s**2 * lam == pytest.approx(local.noise.variance)


def test_uploads_are_a_function_of_the_privatised_rewards():
    """To the last bit, whatever the raw rewards are: both uploads, from their formulas."""
    local, noise = make_mechanism(1.0, bound=1.0), InsecureNoise(1)
    for lengthscale, kind in ((100.0, "projection"), (1e-3, "rewards")):
        config = DUETSConfig(
            n_agents=2,
            first_epoch=4,
            discretisation=64,
            lengthscale=lengthscale,
            noise=local.noise,
        )
        server, (agent, _) = make_agents(config, FinitePoints(np.linspace(0, 1, 50)[:, None]), 0)
        Y = np.array([local.randomize(y, noise, -1.0) for y in (0.1, -1.0, 1.0, 0.4)])
        for t in range(4):
            assert agent.tell(t, float(Y[t]))
        upload = agent.upload(None)
        assert upload.kind == kind
        if kind == "rewards":
            assert upload.numbers == tuple(Y)
        else:
            S = server.public_state.inducing.D
            assert len(S) == 1
            v = RBF(100.0).k(agent.points, S)[:, 0] @ Y
            assert upload.numbers == pytest.approx((v, Y.sum(), Y @ Y))


# Stratified draws -------------------------------------------------------------------------------


def test_one_draw_falls_into_each_cell_of_a_line():
    config = DUETSConfig(n_agents=4, first_epoch=8, discretisation=1024)
    public_state = make_agents(config, SpaceDomain(LINE), 5)[0].public_state
    X = np.sort(np.vstack([public_state.points(n) for n in range(4)])[:, 0])
    assert np.array_equal(np.floor(X * 32), np.arange(32))


def test_each_stratified_draw_is_uniform():
    """Chi-square over ten bins of the draw of one slot; 1 run in 10 000 fails by chance."""
    config = DUETSConfig(n_agents=3, first_epoch=2, discretisation=256)
    found = []
    for key in range(600):
        public_state = make_agents(config, SpaceDomain(LINE), key)[0].public_state
        found.append(float(public_state.points(1)[1, 0]))
    counts = np.histogram(found, bins=10, range=(0.0, 1.0))[0]
    assert chisquare(counts).pvalue > 1e-4


@settings(max_examples=25)
@given(
    st.lists(st.tuples(st.sampled_from("tgsor"), st.integers(0, 9)), max_size=30), st.booleans()
)
def test_a_transcript_with_draws_given_up_travels(steps, paper):
    """Told, given up, spare, another epoch's, and reported twice, in any order."""
    config = PAPER if paper else SMALL
    duets, last = DUETS(config, LINE, seed=2), None
    for key, (how, place) in enumerate(steps):
        slots = duets.open_slots()
        one = (
            duets.evaluation_of(slots[place % len(slots)])
            if slots
            else Evaluation(np.array([0.5]))
        )
        one = {"s": Evaluation(one.x), "o": replace(one, epoch=99), "r": last or one}.get(how, one)
        learn = duets.give_up if how == "g" or (how in "ro" and place % 2) else duets.tell
        learn(one, float(np.sin(key)))
        last = one
    again = DUETS(config, LINE, seed=2)
    again.load_state_dict(json.loads(json.dumps(duets.state_dict(), allow_nan=False)))
    assert again.state_dict() == duets.state_dict()
    assert again.public_state.digest == duets.public_state.digest
    assert again.open_slots() == duets.open_slots()
    assert again.history == duets.history
    assert again.communication == duets.communication
    assert len(duets.evaluations) + len(duets.lost) <= len(steps)
