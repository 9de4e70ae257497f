"""The population's mean as a prior: dense formulas, and federations drawn from that prior.

Everything is seeded, so nothing is random. Bounds of Monte-Carlo estimates are five of their
standard deviations, unless a test says more.
"""

import itertools
import math
import os
import threading

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.stats import multivariate_normal

from privbo_plugins.algorithms.dp_fts_de import (
    Agent,
    Broadcast,
    FederationConfig,
    PopulationPrior,
    make_model,
    population,
)
from privbo_plugins.algorithms.dp_fts_de.agent import shared_model
from privbo_plugins.algorithms.dp_fts_de.population import Belief, PopulationModel
from privbo_plugins.settings import evolve, fields_of
from privbo_plugins.spaces import Categorical, Float, Int, Space
from tests.worker import PATIENCE, script

from .helpers import cube, in_threads
from .oracles import points_of
from .scenes import fingerprint

PRIOR = PopulationPrior()
SURE = PopulationPrior(
    level=0.4, level_sd=0.1, shared_lengthscale=0.5, shared_sd=0.2, own_lengthscale=0.2,
    own_sd=0.1, noise_sd=0.05, doubt=0.0,
)  # fmt: skip
"""Agents share more than they own, and no doubt: the decoder is the best linear predictor."""

LINE = Space({"a": Int(0, 20)})
TABLE = Space({"a": Int(0, 9), "b": Float(0.1, 100.0, log=True, step=9.0), "c": Categorical("xy")})


def config_of(**changed):
    given = {"n_agents": 12, "z": 1.0, "n_rounds": 8, "n_startup": 3}
    return FederationConfig(**{**given, **changed})


def fresh_of(space, **changed):
    model = make_model(config_of(**changed), space)
    assert isinstance(model, PopulationModel)
    return model


_KEPT = {}
"""Models keep public things only, so that tests may share them."""


def model_of(space, **changed):
    model = kept(space, config_of(**changed))
    assert isinstance(model, PopulationModel)
    return model


def kept(space, config):
    key = repr([config, space])
    if key not in _KEPT:
        _KEPT[key] = make_model(config, space)
    return _KEPT[key]


def history(space, n, seed=0):
    rng = np.random.default_rng(seed)
    return space.uniform(n, rng), rng.uniform(0, 1, n)


def broadcasts_of(model, count, seed=0):
    """About as large as real ones."""
    rng, M = np.random.default_rng(seed), model.config.message_length
    return [
        Broadcast(t, model.clipping_norm(t) / 4 * rng.standard_normal((1, M)), np.full(1, 0.1))
        for t in range(1, count + 1)
    ]


# Formulas written out --------------------------------------------------------------------------


def squared_exponential(A, B, sd, length):
    """Entry by entry."""
    K = np.empty((len(A), len(B)))
    for i, a in enumerate(A):
        for j, b in enumerate(B):
            K[i, j] = sd**2 * math.exp(-float((a - b) @ (a - b)) / (2 * length**2))
    return K


def k_shared(prior, A, B):
    return squared_exponential(A, B, prior.shared_sd, prior.shared_lengthscale)


def k_own(prior, A, B):
    own = squared_exponential(A, B, prior.own_sd, prior.own_lengthscale)
    return np.asarray(own + prior.level_sd**2)


def k_after(belief, A, B):
    """k_m less what is known of it, plus what is the agent's own."""
    prior = belief.prior
    known = np.eye(len(belief.V)) - belief.V
    learnt = belief.phi(A) @ known @ belief.phi(B).T
    return np.asarray(k_shared(prior, A, B) - learnt + k_own(prior, A, B))


def mean_after(belief, A, told):
    mu = np.zeros(len(belief.V))
    for G, broadcast in zip(belief.gains, told, strict=True):
        mu += G @ broadcast.weights[0]
    return np.asarray(belief.prior.level + belief.phi(A) @ mu)


def moments(model, X, y, told, at):
    """Mean and variance at points (a, D), and log p(y), of one Gaussian process."""
    belief, s2 = model.belief(len(told)), model.config.prior.noise_sd**2
    Z, A = model.space.embed(X), model.space.embed(at)
    K, centre = k_after(belief, Z, Z) + s2 * np.eye(len(Z)), mean_after(belief, Z, told)
    inverse, k = np.linalg.inv(K), k_after(belief, A, Z)
    mean = mean_after(belief, A, told) + k @ inverse @ (y - centre)
    variance = np.array([k_after(belief, a[None], a[None])[0, 0] for a in A])
    variance -= (k @ inverse * k).sum(1)
    return mean, np.maximum(variance, 0), float(multivariate_normal.logpdf(y, centre, K))


def likeness(model, X, y, told):
    """Probability that broadcasts describe an agent: 4 to 1, less with points of its own.

    And less where the first broadcast looks like the mean of strangers.
    """
    if not told:
        return 0.0
    heard, alone = (moments(model, X, y, of, X)[2] for of in (told, []))
    shared, none = (
        multivariate_normal.logpdf(told[0].weights[0], cov=C)
        for C in model.belief(1).covariances[0]
    )
    odds = 4 * min(1.0, np.exp(shared - none)) * np.exp(heard - alone)
    odds /= np.exp(0.5) ** max(len(X) - 3, 0)
    return float(odds / (1 + odds))


def optimistic(model, X, y, told, at):
    """Dense UCB of the mixture at points (a, D); minus infinity where the agent was."""
    w, (mean, variance, _) = likeness(model, X, y, told), moments(model, X, y, told, at)
    mean_0, variance_0, _ = moments(model, X, y, [], at)
    mixed = w * mean + (1 - w) * mean_0
    second = w * (variance + mean**2) + (1 - w) * (variance_0 + mean_0**2)
    score = mixed + model.config.beta * np.sqrt(np.maximum(second - mixed**2, 0))
    score[[(np.abs(at_ - X).max(1) < 1e-9).any() for at_ in at]] = -np.inf
    return np.asarray(score)


# Where an agent goes ---------------------------------------------------------------------------


@pytest.mark.parametrize("told", [0, 1, 3])
@pytest.mark.parametrize("n", [1, 4, 15])
@pytest.mark.parametrize("space", [LINE, TABLE], ids=["line", "table"])
def test_on_a_grid_it_is_the_dense_argmax(space, n, told):
    for seed, beta in ((0, 2.0), (1, 0.3)):
        model = model_of(space, beta=beta)
        X, y = history(space, n, seed)
        received, points = broadcasts_of(model, told, seed), points_of(space)
        score = optimistic(model, X, y, received, points)
        x = model.propose(X, y, 1, received, np.random.default_rng(seed))
        (index,) = np.flatnonzero((np.abs(points - x) < 1e-12).all(1))
        assert score[index] >= score.max() - 1e-9


def test_an_agent_whose_data_contradict_the_broadcasts_goes_its_own_way():
    """And one whose data agree with them follows."""
    model = model_of(LINE, z=0.0, n_agents=20)
    points = points_of(LINE)
    hill = 0.65 + 0.1 * np.cos(4 * points[:, 0])
    message = model.message(points, hill, [], np.random.default_rng(0))
    told = [Broadcast(1, message[None], np.zeros(1))]
    few = points[[2, 7, 12, 17]]
    follows, leaves = 0.65 + 0.1 * np.cos(4 * few[:, 0]), 0.65 - 0.1 * np.cos(4 * few[:, 0])
    assert likeness(model, few, follows, told) > 0.7
    assert likeness(model, few, leaves, told) < 0.05
    gone = model.propose(few, leaves, 1, told, np.random.default_rng(0))
    alone = model.propose(few, leaves, 1, [], np.random.default_rng(0))
    np.testing.assert_allclose(gone, alone, atol=0.051)  # the next point of the line at most
    assert abs(model.propose(few, follows, 1, told, np.random.default_rng(0)) - alone).max() > 0.1


@pytest.mark.parametrize("space", [LINE, TABLE], ids=["line", "table"])
def test_it_goes_nowhere_twice_until_all_is_seen(space):
    model, all_points = model_of(space), points_of(space)
    X, y, rng = space.uniform(1, np.random.default_rng(0)), np.array([1.0]), np.random.default_rng
    for t in range(1, min(len(all_points), 40)):
        x = model.propose(X, y, t, broadcasts_of(model, min(t, 2)), rng(t))
        assert not (np.abs(X - x).max(1) < 1e-9).any()
        X, y = np.vstack([X, x]), np.append(y, 1.0 - 0.01 * t)
    if len(all_points) <= 40:
        again = model.propose(X, y, 99, [], rng(0))
        assert (np.abs(all_points - again).max(1) < 1e-9).any()


# What it sends ---------------------------------------------------------------------------------


@pytest.mark.parametrize("told", [0, 1, 4])
@pytest.mark.parametrize("n", [0, 1, 9])
@pytest.mark.parametrize("space", [LINE, TABLE, cube(3)], ids=["line", "table", "box"])
def test_a_message_is_the_centred_posterior_mean(space, n, told):
    model = model_of(space)
    X, y = history(space, n, n)
    received, belief = broadcasts_of(model, told), model.belief(told)
    Z, L = space.embed(X), space.embed(space.spread(16, 0))
    K = k_after(belief, Z, Z) + PRIOR.noise_sd**2 * np.eye(n)
    seen = k_after(belief, L, Z) @ np.linalg.inv(K) @ (y - mean_after(belief, Z, received))
    expected = (np.eye(16) - np.ones((16, 16)) / 16) @ seen
    v = model.message(X, y, received, np.random.default_rng(0))
    np.testing.assert_allclose(v, expected, atol=1e-9)
    assert v.sum() == pytest.approx(0, abs=1e-12)


# Features --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("space", "length"),
    [(cube(1), 0.1), (cube(2), 0.3), (cube(3), 0.8), (TABLE, 0.5)],
    ids=["line", "square", "cube", "table"],
)
def test_features_give_the_shared_kernel(space, length):
    """Never more than it, and all but a hundredth where lengths are as usual."""
    prior = evolve(PRIOR, shared_lengthscale=length)
    A = space.embed(space.uniform(40, np.random.default_rng(0)))
    belief = Belief(prior, space, 4, 0)
    phi = belief.phi(A)
    assert phi.shape == (40, len(belief.V))
    left = k_shared(prior, A, A) - phi @ phi.T
    assert np.linalg.eigvalsh(left).min() > -1e-7 * prior.shared_sd**2
    assert np.diag(left).max() < 0.01 * prior.shared_sd**2


# The decoder, on federations drawn from the prior ----------------------------------------------


class Drawn:
    """Federations on 21 points of a line: m, then agents with c_n, g_n and random designs.

    Args:
        prior: What they are drawn from.
        runs: Number of federations.
        seed: Of the draws.
    """

    points = np.arange(21.0)[:, None] / 20

    def __init__(self, prior, runs, seed=0):
        self.prior, self.rng = prior, np.random.default_rng(seed)
        own = squared_exponential(self.points, self.points, prior.own_sd, prior.own_lengthscale)
        self._own = np.linalg.cholesky(own + 1e-12 * np.eye(21))
        self.k_m = k_shared(prior, self.points, self.points)
        self._root = np.linalg.cholesky(self.k_m + 1e-12 * np.eye(21))
        self.m = self.rng.standard_normal((runs, 21)) @ self._root.T

    def agents(self, n, N, *, alike=True):
        """Designs as indices of points, and values: shapes (runs, N, n).

        Agents who are not alike have an m each.
        """
        shape = (len(self.m), N, n)
        X = np.rint(self.rng.random(shape) * 20).astype(int)
        g = self.rng.standard_normal((len(self.m), N, 21)) @ self._own.T
        m = self.m[:, None]
        if not alike:
            m = self.rng.standard_normal((len(self.m), N, 21)) @ self._root.T
        f = m + g + self.prior.level_sd * self.rng.standard_normal((*shape[:2], 1))
        y = np.take_along_axis(f, X, 2) + self.prior.noise_sd * self.rng.standard_normal(shape)
        return X, y + self.prior.level

    def messages(self, X, y, belief, expected):
        """v_n by the dense formula, shape (runs, N, M); ``expected`` of shape (runs, 21)."""
        K = k_after(belief, self.points, self.points)
        kL = k_after(belief, belief.L, self.points)
        kL = (kL - kL.mean(0)).T  # (21, M)
        gram = K[X[..., :, None], X[..., None, :]]
        gram = gram + self.prior.noise_sd**2 * np.eye(X.shape[2])
        centred = y - np.take_along_axis(
            np.broadcast_to(expected[:, None], (*X.shape[:2], 21)), X, 2
        )
        alpha = np.linalg.solve(gram, centred[..., None])[..., 0]
        return np.asarray(np.einsum("rni,rnim->rnm", alpha, kL[X]))

    def broadcast(self, v, q, noise):
        """(1/qN) sum over the chosen, plus noise; shape (runs, M)."""
        chosen = self.rng.random(v.shape[:2]) < q
        total = np.einsum("rnm,rn->rm", v, chosen) / (q * v.shape[1])
        return np.asarray(total + noise * self.rng.standard_normal(total.shape))


def means(belief, told):
    """:meth:`Belief.mean` of many runs at the 21 points, shape (runs, 21)."""
    phi = belief.phi(Drawn.points)
    return np.array([belief.mean(phi, list(Bs)) for Bs in zip(*told, strict=True)])


SETTINGS = [
    pytest.param(4, 1.0, 0.0, 3, id="no noise"),
    pytest.param(10, 1.0, 1.0, 2, id="noise"),
    pytest.param(6, 0.4, 0.7, 4, id="sampled"),
]


@pytest.mark.parametrize(("N", "q", "z", "n"), SETTINGS)
def test_the_decoder_is_the_best_linear_predictor(monkeypatch, N, q, z, n):
    """3000 federations: residuals know nothing of B, and are as large as the belief says.

    Averages over designs have their own error, at most 2 % here (1500 designs instead of 64).
    """
    monkeypatch.setattr(population, "_DESIGNS", 1500)
    R, M = 3000, 9
    first = Belief(SURE, LINE, M, seed=0)
    noise = z / (q * N)
    belief = first.after(n, noise, q, N)
    drawn = Drawn(SURE, R)
    X, y = drawn.agents(n, N)
    v = drawn.messages(X, y, first, np.full((R, 21), SURE.level))
    B = drawn.broadcast(v, q, noise * belief.norms[0])
    predicted = means(belief, [B]) - SURE.level
    left = drawn.m - predicted
    # what the belief says, and what is left
    phi = belief.phi(drawn.points)
    said = np.diag(phi @ belief.V @ phi.T)
    assert said.min() < 0.75 * SURE.shared_sd**2  # it does learn
    ratio = (left**2).mean(0) / said
    assert np.abs(ratio - 1).max() < 5 * math.sqrt(2 / R) + 0.02
    # orthogonality to B, in units of standard errors
    cross = left.T @ B / R
    error = np.sqrt((left**2).T @ (B**2) / R / R)
    assert np.abs(cross / error).max() < 5.5
    # ordinary least squares of m on B, fitted to the same runs, does hardly better
    fitted, *_ = np.linalg.lstsq(B, drawn.m, rcond=None)
    best = ((drawn.m - B @ fitted) ** 2).mean(0)
    assert ((left**2).mean(0) / best).max() < 1.02


@pytest.mark.parametrize("alike", [True, False], ids=["alike", "strangers"])
@pytest.mark.parametrize(("N", "q", "z", "n"), SETTINGS)
def test_a_broadcast_varies_as_the_belief_says(monkeypatch, N, q, z, n, alike):
    """C and C_0 against 3000 federations each, and 2 % for the averages over designs."""
    monkeypatch.setattr(population, "_DESIGNS", 1500)
    R, M = 3000, 9
    first = Belief(SURE, LINE, M, seed=0)
    belief = first.after(n, z / (q * N), q, N)
    drawn = Drawn(SURE, R)
    X, y = drawn.agents(n, N, alike=alike)
    v = drawn.messages(X, y, first, np.full((R, 21), SURE.level))
    B = drawn.broadcast(v, q, z / (q * N) * belief.norms[0])
    said = belief.covariances[0][0 if alike else 1]
    products = B[:, :, None] * B[:, None, :]
    error = products.std(0) / math.sqrt(R)
    size = np.sqrt(np.diag(said))
    assert (abs(products.mean(0) - said) < 5 * error + 0.02 * np.outer(size, size)).all()


def follow(prior, M, rounds, *, R, N, z):
    """What is left of m after each round, and what the belief says: mean squares, shape (21,).

    Args:
        prior: What federations are drawn from, and what agents assume.
        M: Length of a message.
        rounds: Points that each agent has, one number a round.
        R: Federations.
        N: Agents.
        z: Noise multiplier.
    """
    drawn, belief, told = Drawn(prior, R, seed=1), Belief(prior, LINE, M, seed=0), []
    expected = np.full((R, 21), prior.level)
    left, said = [], []
    for n in rounds:
        X, y = drawn.agents(n, N)
        later = belief.after(n, z / N, 1.0, N)
        v = drawn.messages(X, y, belief, expected)
        told.append(drawn.broadcast(v, 1.0, z / N * later.norms[-1]))
        belief, expected = later, means(later, told)
        phi = belief.phi(drawn.points)
        left.append(((drawn.m + prior.level - expected) ** 2).mean(0))
        said.append(np.diag(phi @ belief.V @ phi.T))
    return left, said


def test_a_second_round_of_other_agents(monkeypatch):
    """The belief updates itself: its residuals are what it says after each of two rounds.

    Averages over 1500 designs have an error of about 2 %, of which there are two here.
    """
    monkeypatch.setattr(population, "_DESIGNS", 1500)
    left, said = follow(SURE, 9, (2, 3), R=3000, N=8, z=0.5)
    for one, two in zip(left, said, strict=True):
        assert np.abs(one / two - 1).max() < 5 * math.sqrt(2 / 3000) + 0.04
    assert left[1].mean() < 0.95 * left[0].mean()


@pytest.mark.parametrize("n", [1, 3, 8])
def test_the_clipping_norm_is_the_root_mean_square_of_messages(n):
    """4000 agents of the prior; the norm itself averages 64 designs."""
    config = config_of(prior=SURE, n_startup=n, n_features=9)
    model = make_model(config, LINE)
    drawn = Drawn(SURE, 4000, seed=n)
    X, y = drawn.agents(n, 1)
    first = Belief(SURE, LINE, 9, seed=0)
    v = drawn.messages(X, y, first, np.full((4000, 21), SURE.level))[:, 0]
    squares = (v**2).sum(1)
    design = np.array([np.trace(w @ k @ w.T) for w, k in _operators(first, X[:300, 0])])
    error = math.sqrt(squares.var() / 4000 + design.var() / 64)
    assert abs(model.clipping_norm(1) ** 2 - squares.mean()) < 5 * error
    assert 5 * error < 0.4 * squares.mean()


def _operators(belief, X):
    """A_X and the covariance of values, one pair a design."""
    K = k_after(belief, Drawn.points, Drawn.points)
    kL = k_after(belief, belief.L, Drawn.points)
    kL = kL - kL.mean(0)
    s2 = belief.prior.noise_sd**2
    grams = [K[np.ix_(x, x)] + s2 * np.eye(len(x)) for x in X]
    return [(kL[:, x] @ np.linalg.inv(k), k) for x, k in zip(X, grams, strict=True)]


# Limits ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("doubt", [0.0, 0.2, 0.9])
def test_doubt_keeps_a_share_of_the_prior(doubt):
    unsure = evolve(SURE, doubt=doubt)
    one, sure = (Belief(p, cube(2), 9, 0).after(3, 0.1, 1.0, 9) for p in (unsure, SURE))
    np.testing.assert_allclose(one.V, (1 - doubt) * sure.V + doubt * np.eye(len(one.V)), atol=1e-9)
    np.testing.assert_allclose(one.gains[0], sure.gains[0], atol=1e-12)
    assert one.norms == sure.norms
    two = one.after(4, 0.1, 1.0, 9)
    assert np.linalg.eigvalsh(two.V).min() > doubt - 1e-9
    assert np.linalg.eigvalsh(two.V).max() < 1 + 1e-9


# It is public ----------------------------------------------------------------------------------


@pytest.mark.slow
def test_another_process_believes_the_same(tmp_path):
    """Whatever the seed of its hashes."""
    told, file = config_of(q=0.7).to_dict(), tmp_path / "fingerprint"
    begun = script(
        "tests.engine.scenes:believe",
        {"config": told, "space": TABLE.to_dict(), "file": str(file)},
        env=os.environ | {"PYTHONHASHSEED": "77"},
    )
    assert begun.wait(PATIENCE) == 0
    assert file.read_text() == fingerprint(model_of(TABLE, q=0.7).belief(3))


class Queue:
    """A lock that tells when so many threads have come to it."""

    def __init__(self, threads):
        self._lock, self._number, self._threads = threading.Lock(), itertools.count(1), threads
        self.all_came = threading.Event()

    def __enter__(self):
        if next(self._number) == self._threads:
            self.all_came.set()
        self._lock.acquire()

    def __exit__(self, *_):
        self._lock.release()


def test_threads_share_a_model(monkeypatch):
    """A server and agents of a process do (:func:`shared_model`), each on its own thread.

    The first update lasts until all of them have asked; there are two for all of them.
    """
    updates, original = [], Belief.after

    def long(self, *rest):
        updates.append(queue.all_came.wait(PATIENCE))
        return original(self, *rest)

    monkeypatch.setattr(Belief, "after", long)
    model = shared_model(config_of(), LINE)
    assert shared_model(config_of(), LINE) is model
    model._lock = queue = Queue(4)
    assert in_threads(4, lambda _: model.belief(2)) == []
    assert updates == [True, True]
    assert [len(model.belief(j).gains) for j in range(3)] == [0, 1, 2]
    monkeypatch.undo()
    assert fingerprint(model.belief(2)) == fingerprint(fresh_of(LINE).belief(2))


# A contract of both models ---------------------------------------------------------------------

SPACES = {
    "floats": cube(3),
    "ints": Space({"a": Int(0, 30), "b": Int(-4, 9, step=3)}),
    "logs": Space({"a": Float(1e-6, 10.0, log=True), "b": Int(1, 300, log=True)}),
    "mixed": Space(
        {
            "a": Float(0.0, 1.0), "b": Categorical(("rbf", None, 3)), "c": Int(1, 64, log=True),
            "d": Float(0.0, 2.0, step=0.25),
        }
    ),
    "constants": Space({"a": Float(2.0, 2.0), "b": Int(0, 4), "c": Categorical(("only",))}),
    "choices": Space({"a": Categorical("xyz"), "b": Categorical((1, 2))}),
}  # fmt: skip
each_model = pytest.mark.parametrize("kind", ["prior", "explore"])
each_space = pytest.mark.parametrize("space", SPACES.values(), ids=SPACES.keys())
EXTREME = [math.nan, math.inf, -math.inf, 1e308, -1e308, 5e-324, 0.0, -0.25]


def make(kind, space, **changed):
    return kept(space, config_of(population=kind, value_range=(-1.0, 1.0), **changed))


@each_model
@each_space
@pytest.mark.parametrize("maximize", [True, False], ids=["max", "min"])
def test_shapes_and_points(kind, space, maximize):
    model = make(kind, space)
    agent = Agent(model, 2, maximize=maximize, seed=1)
    assert model.clipping_norm(1) > 0
    for count, n in ((0, 1), (1, 3), (4, 8)):
        X = np.array([agent.start_point(i) for i in range(n)])
        assert X.shape == (n, len(space))
        values, received = np.linspace(-0.9, 0.7, n), broadcasts_of(model, count)
        v = agent.message(X, values, count + 1, received)
        x = agent.propose(X, values, count + 1, received)
        assert v.shape == (model.config.message_length,)
        assert np.isfinite(v).all()
        assert x.shape == (len(space),)
        assert x.dtype == np.float64
        for point in (x, *X):
            np.testing.assert_allclose(space.snap(point), point, atol=1e-9)
            for value, dim in zip(space.decode(point).values(), space.values(), strict=True):
                if isinstance(dim, Categorical):
                    assert value in dim.choices
                else:
                    assert dim.low <= value <= dim.high


@each_model
@each_space
def test_extreme_values(kind, space):
    model = make(kind, space)
    X = space.uniform(len(EXTREME), np.random.default_rng(0))
    for values in (np.array(EXTREME), np.full(len(EXTREME), math.nan)):
        for maximize in (True, False):
            agent = Agent(model, 1, maximize=maximize)
            received = broadcasts_of(model, 1)
            assert np.isfinite(agent.message(X, values, 1, received)).all()
            for t in (1, 50):
                x = agent.propose(X, values, t, received)
                np.testing.assert_allclose(space.snap(x), x, atol=1e-9)


@each_model
@each_space
def test_everything_is_a_function_of_seed_number_and_round(kind, space):
    used = make(kind, space)
    X, y = history(space, 5)
    received = broadcasts_of(used, 2)

    def results(model, order):
        found = {}
        for seed, number, t in order:
            agent = Agent(model, number, seed=seed)
            for have in ([], received):
                v, x = agent.message(X, y, t, have), agent.propose(X, y, t, have)
                found[seed, number, t, len(have)] = v.tobytes() + x.tobytes()
        return found

    order = [(0, 0, 1), (0, 0, 7), (0, 3, 1), (1, 0, 1)]
    assert results(used, order) == results(make_model(used.config, space), order[::-1])


@each_model
@each_space
def test_minimising_is_maximising_the_negated_values(kind, space):
    """Eighths, so that mirroring them is exact."""
    model = make(kind, space)
    X, _ = history(space, 6)
    values = np.array([-8, -3, 0, 1, 5, 7]) / 8
    up, down = Agent(model, 2, maximize=True), Agent(model, 2, maximize=False)
    for t, count in itertools.product((1, 6), (0, 2)):
        have = broadcasts_of(model, count)
        assert (
            up.message(X, values, t, have).tobytes() == down.message(X, -values, t, have).tobytes()
        )
        assert (
            up.propose(X, values, t, have).tobytes() == down.propose(X, -values, t, have).tobytes()
        )


# Assumptions -----------------------------------------------------------------------------------


@pytest.mark.parametrize("field", list(fields_of(PopulationPrior)))
@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf, None, "0.1", 1e7, -1e7])
def test_senseless_assumptions_are_refused(field, value):
    with pytest.raises(ValueError, match=field):
        PopulationPrior(**{field: value})


@pytest.mark.slow
@settings(max_examples=8)
@given(
    level_sd=st.floats(1e-4, 10),
    shared_sd=st.floats(1e-4, 10),
    own_sd=st.floats(1e-4, 10),
    noise_sd=st.floats(1e-4, 10),
    shared_lengthscale=st.floats(0.05, 20),
    own_lengthscale=st.floats(0.05, 20),
    doubt=st.floats(0, 0.99),
    z=st.sampled_from([0.0, 0.5, 50.0]),
)
def test_any_sensible_prior_works(z, **assumed):
    model = fresh_of(LINE, prior=PopulationPrior(**assumed), z=z, n_features=9)
    X, y = history(LINE, 8)
    received = broadcasts_of(model, 3)
    assert np.isfinite(model.message(X, y, received, np.random.default_rng(0))).all()
    x = model.propose(X, y, 1, received, np.random.default_rng(0))
    np.testing.assert_allclose(LINE.snap(x), x, atol=1e-12)
    V = model.belief(3).V
    assert np.linalg.eigvalsh((V + V.T) / 2).min() > -1e-6
    assert np.linalg.eigvalsh((V + V.T) / 2).max() < 1 + 1e-6
