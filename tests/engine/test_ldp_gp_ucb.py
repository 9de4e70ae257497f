"""GP-UCB for privatised and heavy-tailed rewards against literal readings of Algorithms 1 to 4."""

import itertools
import math
from collections.abc import Callable

import numpy as np
import pytest
import scipy.special
import scipy.stats
from numpy.testing import assert_allclose
from scipy.linalg import sqrtm

from privbo_plugins.algorithms.ldp_gp_ucb.ata_gp_ucb import ATAGPUCB
from privbo_plugins.algorithms.ldp_gp_ucb.config import UCBConfig
from privbo_plugins.algorithms.ldp_gp_ucb.domain import Arms, Box, make_domain
from privbo_plugins.algorithms.ldp_gp_ucb.gp_ucb import GPUCB, WIDTH
from privbo_plugins.algorithms.ldp_gp_ucb.moma_gp_ucb import MoMAGPUCB
from privbo_plugins.algorithms.ldp_gp_ucb.tgp_ucb import TGPUCB
from privbo_plugins.algorithms.protocols import Evaluation
from privbo_plugins.models.kernels import RBF, Matern52
from privbo_plugins.privacy.local import make_mechanism
from privbo_plugins.privacy.noise import InsecureNoise
from privbo_plugins.privacy.reward_noise import RewardNoise, Tail
from privbo_plugins.settings import evolve
from privbo_plugins.spaces import Categorical, Float, Int, Space
from tests.inside import scores_of

from .oracles import conditioned

ALL = [GPUCB, TGPUCB, ATAGPUCB, MoMAGPUCB]
each_class = pytest.mark.parametrize("cls", ALL, ids=lambda cls: cls.name)
each_nystrom = pytest.mark.parametrize("cls", [ATAGPUCB, MoMAGPUCB], ids=lambda cls: cls.name)
SQUARE = Space({"a": Float(0.0, 1.0), "b": Float(0.0, 1.0)})


def row(n):
    return Space({"arm": Int(0, n - 1)})


def covariance(n, seed=0):
    """Well-conditioned correlated arms of variance 1."""
    A = np.random.default_rng(seed).standard_normal((n, n))
    K = A @ A.T / n + 0.5 * np.eye(n)
    d = np.sqrt(np.diag(K))
    return K / np.outer(d, d)


def number(algorithm, evaluation):
    return int(algorithm.domain.inputs(evaluation.x[None])[0, 0])


def evaluation_of(algorithm, arm, epoch=None):
    domain = algorithm.domain
    assert isinstance(domain, Arms)
    return Evaluation(domain.X[arm], epoch)


def everything(n):
    return np.arange(n, dtype=float)[:, None]


def sigma_of(algorithm, n):
    """What the upper confidence bounds of all arms hold besides the mean."""
    ucb = scores_of(algorithm, np.empty((0, 1)), everything(n))
    return np.asarray((ucb - algorithm.mean(everything(n))) / algorithm.beta)


def dense(K, arms, y, lam):
    """Equations (2) and (3) at all arms, a row each evaluation."""
    mean, variance = conditioned(K[np.ix_(arms, arms)], K[:, arms], np.diag(K), y, lam)
    return mean, np.sqrt(variance)


def heavy(n, seed):
    return np.random.default_rng(seed).standard_t(2.1, size=n)


# Algorithm 2 ----------------------------------------------------------------------------------


Of = Callable[..., float]


def raw(lam):
    """The published raw version: b_t = sqrt(v) t^{1/4}, beta_t = B + b_t sqrt(ln t)."""
    config = UCBConfig(low=-2, high=2, kernel_matrix=covariance(8), second_moment=0.4, lam=lam)

    def b(t):
        return math.sqrt(0.4) * t**0.25

    return config, b, lambda t, _: 1.0 + b(t) * math.sqrt(math.log(t)), heavy(60, 0), 5


def privatised():
    """Order-wise: b_t = B + R + L ln t, beta = B + b sqrt(ln t)."""
    mechanism = make_mechanism(2.0, bound=1.0, mechanism="laplace")
    L = mechanism.scale
    config = UCBConfig(low=-1, high=1, noise=mechanism.noise, kernel_matrix=covariance(8))

    def b(t):
        return 1.0 + L * math.log(t)

    noise = np.random.default_rng(1).laplace(0, 2 * L, 60)
    return config, b, lambda t, _: 0.5 + b(t) * math.sqrt(math.log(t)), noise, 2


def theorem(lam):
    """Lines 2, 4 and 5, L = 2 (B + R) / eps, with B = R; gamma_t of the points evaluated."""
    eps, delta, B, R = 1.0, 0.1, 0.5, 0.5
    mechanism = make_mechanism(eps, bound=B + R, mechanism="laplace")
    L = mechanism.scale
    assert pytest.approx(2 * (B + R) / eps, rel=1e-5) == L
    config = UCBConfig(low=-1, high=1, noise=mechanism.noise, kernel_matrix=covariance(8),
                       lam=lam, constants="theorem")  # fmt: skip

    def b(t):
        return B + R + L * math.log(t)

    def beta(t, gamma):
        K = B**2 + R**2 + 2 * L**2
        exploration = 2 * math.sqrt(2) * b(t) * math.sqrt(gamma + math.log(1 / delta))
        return B + (exploration + math.sqrt(K * (math.log(t) + 1))) / math.sqrt(lam)

    return config, b, beta, np.random.default_rng(2).laplace(0, L, 40), -1


@pytest.mark.parametrize(
    "made", [raw(1.0), raw(0.3), privatised(), theorem(1.0), theorem(2.0)], ids=range(5)
)
def test_rewards_follow_algorithm_two(made):
    """A dense reference compares every choice and posterior; rewards beyond b_t count as zero."""
    (config, b, beta, rewards, cut), N = made, 8
    algorithm, lam = TGPUCB(config, row(N)), config.lam
    K = np.asarray(config.kernel_matrix)
    arms = []
    seen = []
    for t, noise in enumerate(rewards, start=1):
        mu, sigma = dense(K, arms, seen, lam) if arms else (np.zeros(N), np.sqrt(np.diag(K)))
        gram = K[np.ix_(arms, arms)] / lam + np.eye(len(arms))
        gamma = 0.5 * np.linalg.slogdet(gram)[1]
        assert algorithm.gamma == pytest.approx(gamma, abs=1e-8)
        assert algorithm.beta == pytest.approx(beta(max(t - 1, 1), gamma), rel=1e-9)
        ucb = mu + beta(max(t - 1, 1), gamma) * sigma
        chosen = number(algorithm, algorithm.ask(t))
        assert ucb[chosen] >= ucb.max() - 1e-8
        reward = np.sin(chosen) + noise
        algorithm.tell(evaluation_of(algorithm, chosen), float(reward))
        arms.append(chosen)
        seen.append(reward if abs(reward) <= b(t) else 0.0)
        cut -= seen[-1] != reward
        assert_allclose(algorithm.mean(everything(N)), dense(K, arms, seen, lam)[0], atol=1e-8)
    assert cut < 0


def test_truncation_points_follow_the_moments_or_the_tail():
    """v^{1/(1+alpha)} t^{1/(2(1+alpha))}; B + R + radius (ln a t)^theta (after equation 5)."""
    for t, e in itertools.product((1, 9, 400), (0.3, 0.7, 1.0)):
        raw = TGPUCB(UCBConfig(low=-1, high=1, second_moment=3.0, alpha=e), row(2))
        assert raw.b(t) == pytest.approx(3.0 ** (1 / (1 + e)) * t ** (1 / (2 * (1 + e))))
        noise = RewardNoise(4.0, 5.0, Tail(3.0, e, a=2.0))
        private = TGPUCB(UCBConfig(low=-1, high=1, noise=noise), row(2))
        assert private.b(t) == pytest.approx(1.0 + 3.0 * math.log(2 * t) ** e)


# Algorithm 1 ----------------------------------------------------------------------------------


def literal_ata(K, arms, y, config):
    """One round of Algorithm 1: a row each evaluation, lines 6 to 13 as printed, b_t for b_tau."""
    D = sorted(set(arms))
    root = np.linalg.pinv(sqrtm(K[np.ix_(D, D)]).real)
    phi = K[:, D] @ root  # features of all arms
    m, t, lam, a = len(D), len(arms), config.lam, config.alpha
    V = lam * np.eye(m)
    for arm in arms:
        V += np.outer(phi[arm], phi[arm])
    inverse_root = np.linalg.inv(sqrtm(V).real)
    U = inverse_root @ phi[arms].T
    L = math.log((m + 1) * config.T)
    growth = t ** ((1 - a) / (2 * (1 + a)))
    if config.constants == "theorem":
        L = math.log(4 * m * config.T / 0.1)
    b = (config.v / L) ** (1 / (1 + a)) * growth
    r, cut = np.zeros(m), 0
    for i in range(m):
        for tau in range(t):
            if abs(U[i, tau] * y[tau]) <= b:
                r[i] += U[i, tau] * y[tau]
            else:
                cut += 1
    mu = phi @ inverse_root @ r
    Vinv = np.linalg.inv(V)
    sigma = np.sqrt([K[x, x] - phi[x] @ phi[x] + lam * phi[x] @ Vinv @ phi[x]
                     for x in range(len(K))])  # fmt: skip
    spread = config.v ** (1 / (1 + a)) * L ** (a / (1 + a)) * growth * math.sqrt(m)
    beta = config.norm + spread
    if config.constants == "theorem":
        bias = config.norm * (1 + 1 / math.sqrt(1 - config.accuracy))
        beta = bias + 4 * spread / math.sqrt(lam)
    return mu, sigma, beta, cut


@pytest.mark.parametrize(
    "more",
    [{}, {"lam": 0.4}, {"constants": "theorem", "lam": 2.0, "accuracy": 0.3}, {"alpha": 0.5},
     {"n_trials": 60}],
    ids=str,
)  # fmt: skip
def test_sixty_heavy_tailed_evaluations_follow_algorithm_one(more):
    K = covariance(8)
    config = UCBConfig(low=-2, high=2, kernel_matrix=K, second_moment=0.5, **more)
    algorithm, arms, seen, cut = ATAGPUCB(config, row(8)), [], [], 0
    ucb = np.ones(8)
    rng = np.random.default_rng(1)
    for t, noise in enumerate(heavy(60, 4)):
        chosen = number(algorithm, algorithm.ask(t))
        assert ucb[chosen] >= ucb.max() - 1e-6
        if rng.random() < 0.5:  # so that every arm is met, also where the width is small
            chosen = int(rng.integers(8))
        arms.append(chosen)
        seen.append(float(np.sin(chosen) + noise))
        algorithm.tell(evaluation_of(algorithm, chosen), seen[-1])
        mu, sigma, beta, removed = literal_ata(K, arms, seen, config)
        assert config.q * sigma[arms].min() ** 2 >= 1  # the dictionary is every arm evaluated
        assert_allclose(algorithm.mean(everything(8)), mu, atol=1e-7)
        assert_allclose(sigma_of(algorithm, 8), sigma, atol=1e-7)
        assert algorithm.beta == pytest.approx(beta, rel=1e-9)
        assert algorithm.m == len(set(arms))
        cut, ucb = cut + removed, mu + beta * sigma
    assert len(set(arms)) == 8
    assert cut > 20


def test_truncation_is_that_of_every_single_evaluation_whatever_the_dictionary():
    """On a box with repeats, where the dictionary is drawn only now and then."""
    rng = np.random.default_rng(3)
    X = rng.uniform(size=(60, 2))
    algorithm = ATAGPUCB(UCBConfig(low=-1, high=1, second_moment=0.5, accuracy=0.5), SQUARE)
    evaluated = []
    seen = []
    cut = 0
    for t in range(120):
        evaluated.append(X[t // 2 if t % 3 else rng.integers(60)])
        seen.append(float(rng.standard_t(2.1)))
        algorithm.tell(Evaluation(evaluated[-1]), seen[-1])
        mean = algorithm.mean(X) if t % 4 else None  # several evaluations may be taken in at once
        if mean is None:
            continue
        phi, Phi = (algorithm._embedding.features(Z) for Z in (X, np.array(evaluated)))
        root = np.linalg.inv(sqrtm(Phi.T @ Phi + np.eye(algorithm.m)).real)
        pieces = (root @ Phi.T) * np.array(seen)
        kept = np.abs(pieces) <= algorithm.b
        assert_allclose(mean, phi @ root @ np.where(kept, pieces, 0.0).sum(1), atol=1e-7)
        cut += int((~kept).sum())
    assert cut > 20
    assert algorithm.m < len(algorithm._N)


# Algorithm 3 ----------------------------------------------------------------------------------


def literal_median(Theta, V):
    """Line 11: r_j for every estimate."""
    r = []
    for j in range(Theta.shape[1]):
        gaps = [Theta[:, j] - Theta[:, s] for s in range(Theta.shape[1]) if s != j]
        r.append(float(np.median([math.sqrt(max(g @ V @ g, 0.0)) for g in gaps])))
    return r


def literal_moma(K, arms, Y, config):
    """Lines 7 to 14 of Algorithm 3 after n epochs, an epoch a row."""
    D, n, lam, a = sorted(set(arms)), len(arms), config.lam, config.alpha
    phi = K[:, D] @ np.linalg.pinv(sqrtm(K[np.ix_(D, D)]).real)
    m = len(D)
    V = phi[arms].T @ phi[arms] + lam * np.eye(m)
    Vinv = np.linalg.inv(V)
    Theta = np.zeros((m, config.k))
    for j in range(config.k):
        Theta[:, j] = Vinv @ sum(Y[i][j] * phi[arms[i]] for i in range(n))
    r = literal_median(Theta, V) if config.k > 1 else [0.0]
    mu = phi @ Theta[:, int(np.argmin(r))]
    sigma = np.sqrt(np.diag(K) - (phi * phi).sum(1) + lam * np.diag(phi @ Vinv @ phi.T))
    growth = n ** ((1 - a) / (2 * (1 + a)))
    if config.constants == "theorem":
        beta = config.norm * (1 + 1 / math.sqrt(1 - config.accuracy)) + 3 / math.sqrt(lam) * (
            (9 * m * config.c) ** (1 / (1 + a)) * growth
        )
    else:
        beta = config.norm + (m * config.c) ** (1 / (1 + a)) * growth
    return mu, sigma, beta


@pytest.mark.parametrize(
    "more",
    [{}, {"replays": 1}, {"lam": 0.4}, {"constants": "theorem", "lam": 2.0, "accuracy": 0.3},
     {"alpha": 0.5}, {"constants": "theorem", "alpha": 0.5}],
    ids=str,
)  # fmt: skip
def test_epochs_of_heavy_tailed_evaluations_follow_algorithm_three(more):
    K, rng = covariance(7), np.random.default_rng(7)
    options = {"replays": 5} | more
    config = UCBConfig(low=-2, high=2, kernel_matrix=K, noise_moment=0.7, **options)
    algorithm, arms, Y = MoMAGPUCB(config, row(7)), [], []
    ucb = np.ones(7)
    for n in range(20):
        rewards = []
        for j in range(config.k):
            evaluation = algorithm.ask(100 * n + j)
            assert evaluation.epoch == algorithm.n == n
            if j == 0:
                arm = number(algorithm, evaluation)
                assert ucb[arm] >= ucb.max() - 1e-6
                arm = int(rng.integers(7)) if rng.random() < 0.4 else arm
            else:
                assert number(algorithm, evaluation) == arm
            rewards.append(float(np.cos(arm) + rng.standard_t(2.1)))
            algorithm.tell(evaluation_of(algorithm, arm, n), rewards[-1])
        arms.append(arm)
        Y.append(rewards)
        mu, sigma, beta = literal_moma(K, arms, Y, config)
        assert config.q * sigma[arms].min() ** 2 >= 1
        assert_allclose(algorithm.mean(everything(7)), mu, atol=1e-7)
        assert_allclose(sigma_of(algorithm, 7), sigma, atol=1e-7)
        assert algorithm.beta == pytest.approx(beta, rel=1e-9)
        ucb = mu + beta * sigma
    assert algorithm.t == 20 * config.k


def moma(k=3, n=12, **more):
    return MoMAGPUCB(UCBConfig(low=-1, high=1, replays=k, **more), row(n))


def test_a_worker_may_be_told_to_wait_once_the_replays_are_out():
    algorithm = moma(3)
    first = algorithm.ask(0, may_wait=True)
    algorithm.tell(first, 0.1)
    assert algorithm.ask(1, [first], may_wait=True) is not None  # 1 told, 1 out
    assert algorithm.ask(2, [first, first], may_wait=True) is None  # 1 told, 2 out
    extra = algorithm.ask(2, [first, first])  # without leave to wait there is one more replay
    assert np.array_equal(extra.x, first.x)
    vanished = algorithm.ask(3, [first], may_wait=True)  # one of the two failed: replayed
    assert np.array_equal(vanished.x, first.x)
    for _ in range(2):
        algorithm.tell(first, 0.1)
    assert algorithm.n == 1
    late = algorithm.ask(4, [first], may_wait=True)  # evaluations of a past epoch hold nobody up
    assert late.epoch == 1


def test_workers_that_open_an_epoch_at_different_points_settle_on_the_fullest():
    """Rewards of other points, of past epochs and of none are not used."""
    algorithm = moma(3)
    one, two = evaluation_of(algorithm, 2, 0), evaluation_of(algorithm, 9, 0)
    follow = algorithm.ask(0, [one, two, two])
    assert follow is not None
    assert number(algorithm, follow) == 9
    algorithm.tell(one, 0.1)
    algorithm.tell(one, 0.2)
    follow = algorithm.ask(1, [two])
    assert follow is not None
    assert number(algorithm, follow) == 2
    algorithm.tell(two, -5.0)
    algorithm.tell(one, 0.3)
    assert algorithm.n == 1
    alone = moma(3)
    for value in (0.1, 0.2, 0.3):
        alone.tell(evaluation_of(alone, 2, 0), value)
    assert np.array_equal(algorithm.mean(everything(12)), alone.mean(everything(12)))
    nowhere = evaluation_of(algorithm, 5, None)
    for late in (two, one, nowhere) * 3:
        algorithm.tell(late, -5.0)
    assert algorithm.n == 1
    assert np.array_equal(algorithm.mean(everything(12)), alone.mean(everything(12)))
    evaluation = algorithm.ask(0, [nowhere, two], may_wait=True)
    assert evaluation.epoch == 1


# Formulas of the settings ---------------------------------------------------------------------


@pytest.mark.parametrize("T", [1, 2, 100, 10**5])
@pytest.mark.parametrize("accuracy", [0.1, 0.5])
def test_oversampling_and_replays(T, accuracy):
    """Order-wise, and those of Theorem 4."""
    given_ = {"n_trials": T, "accuracy": accuracy}
    order = UCBConfig(low=-1, high=1, **given_)
    assert order.q == pytest.approx(max(math.log(T), 1) / accuracy**2)
    assert order.k == max(math.ceil(math.log(T)), 1)
    theorem = UCBConfig(low=-1, high=1, constants="theorem", **given_)
    rho = (1 + accuracy) / (1 - accuracy)
    assert theorem.q == pytest.approx(6 * rho * math.log(4 * T / 0.1) / accuracy**2)
    assert theorem.k == math.ceil(24 * (1 + math.log(4 * T / 0.1)))
    assert UCBConfig(low=-1, high=1, constants="theorem", replays=7, **given_).k == 7
    published = UCBConfig(low=-1, high=1, constants="theorem", n_trials=1000)
    assert published.k == 279  # the number in the reference settings


def test_moments_are_derived_from_range_and_noise():
    noise = RewardNoise(3.0, 4.0, Tail(1.0, 1.0))
    config = UCBConfig(low=-1.0, high=4.0, noise=noise)
    assert (config.largest, config.norm, config.raw_noise) == (4.0, 2.0, 2.0)
    assert (config.v, config.c) == (4.0 + 4.0 + 3.0, 4.0 + 3.0)
    config = evolve(config, B=1.0)
    assert (config.norm, config.raw_noise, config.v) == (1.0, 3.0, 13.0)
    config = evolve(config, R=0.0, second_moment=9.0)
    assert (config.raw_noise, config.v, config.c) == (0.0, 9.0, 3.0)
    bare = UCBConfig(B=2.0, second_moment=7.0, noise_moment=3.0)
    assert (bare.norm, bare.v, bare.c, bare.T) == (2.0, 7.0, 3.0, 1000)
    # V = B² + R² + 8 (B + R)² / eps², c = R² + 8 (B + R)² / eps² (Theorem 2, Corollary 1)
    eps, B, R = 0.7, 0.6, 1.4
    laplace = make_mechanism(eps, bound=B + R, mechanism="laplace").noise
    config = UCBConfig(low=-B - R, high=B + R, noise=laplace, B=B)
    assert config.raw_noise == pytest.approx(R)
    assert config.v == pytest.approx(B**2 + R**2 + 8 * (B + R) ** 2 / eps**2, rel=1e-5)
    assert config.c == pytest.approx(R**2 + 8 * (B + R) ** 2 / eps**2, rel=1e-5)


def mixture(covariances, arms, y, lam):
    """Mean and deviation of a mixture of models, evidence by scipy's multivariate normal."""
    evidence = [
        scipy.stats.multivariate_normal.logpdf(
            y, cov=K[np.ix_(arms, arms)] + lam * np.eye(len(arms))
        )
        for K in covariances
    ]
    p = scipy.special.softmax(evidence)
    moments = [dense(K, arms, y, lam) for K in covariances]
    mean = sum(weight * mu for weight, (mu, _) in zip(p, moments, strict=True))
    second = sum(w * (sd**2 + mu**2) for w, (mu, sd) in zip(p, moments, strict=True))
    return np.asarray(mean), np.sqrt(second - mean**2)


def told_at_random(algorithm, n, seed):
    """Arms and rewards in [0, 9] that an algorithm has been told."""
    rng = np.random.default_rng(seed)
    arms, y = rng.integers(5, size=n).tolist(), rng.uniform(0, 9, n)
    for arm, reward in zip(arms, y, strict=True):
        algorithm.tell(evaluation_of(algorithm, arm), float(reward))
    return arms, y


def test_gp_ucb_of_private_rewards_weighs_the_covariance_by_evidence():
    mechanism = make_mechanism(1.0, value_range=(2.0, 6.0))
    config = UCBConfig(low=2.0, high=6.0, noise=mechanism.noise, kernel_matrix=covariance(5))
    algorithm = GPUCB(config, row(5))
    assert algorithm.lam == pytest.approx(mechanism.total_variance / 4)
    assert algorithm.beta == pytest.approx(WIDTH)
    arms, y = told_at_random(algorithm, 30, 0)
    K = covariance(5) / np.diag(covariance(5)).max()
    alone = np.diag(np.diag(K))
    mu, sigma = mixture([K, (K + alone) / 2, alone], arms, (y - 4) / 2, algorithm.lam)
    assert_allclose(algorithm.mean(everything(5)), mu, atol=1e-9)
    assert_allclose(sigma_of(algorithm, 5), sigma, atol=1e-9)
    ucb = mu + algorithm.beta * sigma
    assert number(algorithm, algorithm.ask(0)) == int(np.argmax(ucb))


def test_gp_ucb_of_plain_rewards_takes_covariance_and_noise_at_their_word():
    config = UCBConfig(low=2, high=6, noise_moment=3.0, kernel_matrix=covariance(5), n_trials=90)
    algorithm = GPUCB(config, row(5))
    width = algorithm.beta
    arms, y = told_at_random(algorithm, 30, 0)
    mu, sigma = dense(covariance(5), arms, (y - 4) / 2, 0.75)
    assert_allclose(algorithm.mean(everything(5)), mu, atol=1e-9)
    assert_allclose(sigma_of(algorithm, 5), sigma, atol=1e-9)
    assert algorithm.beta == width


def test_gp_ucbs_unit_comes_from_what_is_public():
    assert GPUCB(UCBConfig(low=2, high=6), row(2)).lam == 1.0
    assert GPUCB(UCBConfig(low=2, high=6, noise_moment=0.4), row(2)).lam == pytest.approx(0.1)
    both = UCBConfig(low=2, high=6, noise_moment=0.4, noise=RewardNoise(8.0, 9.0, Tail(1, 1)))
    assert GPUCB(both, row(2)).lam == pytest.approx(2.1)
    wide = UCBConfig(low=-1, high=1, n_trials=10**6, beta_scale=2.0)
    assert GPUCB(wide, row(2)).beta == pytest.approx(2 * WIDTH * math.sqrt(2))
    with pytest.raises(ValueError, match="takes its unit from the range"):
        GPUCB(UCBConfig(B=1.0, second_moment=2.0, noise_moment=1.0), row(2))


def test_the_width_of_private_rewards_falls_from_twice_to_once_by_the_middle_of_the_plan():
    noise = make_mechanism(1.0, value_range=(-1.0, 1.0)).noise
    algorithm = GPUCB(UCBConfig(low=-1, high=1, noise=noise, n_trials=1000), row(4))
    widths = []
    for t in range(1000):
        widths.append(algorithm.beta)
        algorithm.tell(evaluation_of(algorithm, t % 4, t), 0.0)
    assert widths[0] == pytest.approx(2 * WIDTH)
    assert widths[250] == pytest.approx(1.5 * WIDTH)
    assert widths[500:] == [pytest.approx(WIDTH)] * 500
    assert np.all(np.diff(widths) <= 0)


# What all have in common ------------------------------------------------------------------------


@each_class
@pytest.mark.parametrize("space", [row(9), SQUARE], ids=["arms", "box"])
def test_minimising_is_maximising_what_is_negated(cls, space):
    low, high = -0.5, 2.0
    noise = RewardNoise(1.0, 2.0, Tail(1.0, 1.0))
    up = cls(UCBConfig(low=-high, high=-low, noise=noise, replays=2), space)
    down = cls(UCBConfig(low=low, high=high, noise=noise, replays=2), space, maximize=False)
    rng = np.random.default_rng(0)
    for t in range(15):
        one, two = up.ask(t), down.ask(t)
        assert np.array_equal(one.x, two.x)
        reward = float(rng.normal(0.3, 2.0))
        up.tell(one, reward)
        down.tell(two, -reward)
    assert np.array_equal(up.recommendation(), down.recommendation())


@each_nystrom
def test_a_recommendation_in_between_changes_no_later_ask(cls):
    """Coins are tossed where q s2 < 1; each look after a reward tosses them."""
    config = UCBConfig(low=-1, high=1, replays=1, n_trials=2, accuracy=0.9,
                       kernel_matrix=covariance(8) * 0.9 + 0.1)  # fmt: skip
    looking, blind = cls(config, row(8)), cls(config, row(8))
    for n in range(30):
        for algorithm in (looking, blind):
            algorithm.tell(evaluation_of(algorithm, n % 8, n), 0.1 * n)
        looking.recommendation()
        looking.ask(n)
    assert np.array_equal(looking.mean(everything(8)), blind.mean(everything(8)))


@each_nystrom
@pytest.mark.parametrize("told", [1, 4])
def test_a_dictionary_that_came_out_empty_leaves_the_prior(cls, told):
    """A variance of 1e-6 and q = 1 / .81 leave an evaluation out, all but surely."""
    K = np.diag([1e-6, 1.0])
    config = UCBConfig(low=-1, high=1, kernel_matrix=K, accuracy=0.9, n_trials=2, replays=1)
    algorithm = cls(config, row(2))
    for n in range(told):
        algorithm.tell(evaluation_of(algorithm, 0, n), 0.5)
    evaluation = algorithm.ask(0)
    assert evaluation is not None
    assert number(algorithm, evaluation) == 1
    assert algorithm.m == 0
    assert np.array_equal(algorithm.mean(everything(2)), [0.0, 0.0])


@each_nystrom
def test_the_published_dictionary_is_drawn_after_every_evaluation(cls):
    """Fifty arms, against the printed lines; the control draws it now and then beyond 32."""
    n, rng = 50, np.random.default_rng(3)
    K = 0.5 * np.eye(n) + 0.5 * np.exp(-0.5 * (np.subtract.outer(range(n), range(n)) / 0.7) ** 2)
    config = UCBConfig(low=-2, high=2, kernel_matrix=K, second_moment=0.5, noise_moment=0.7,
                       replays=1, dictionary="paper")  # fmt: skip
    faithful, seldom = cls(config, row(n)), cls(evolve(config, dictionary="tenth"), row(n))
    arms, y = [int(arm) for arm in rng.permutation(n)[:46]], rng.standard_normal(46).tolist()
    for t, (arm, reward) in enumerate(zip(arms, y, strict=True)):
        for algorithm in (faithful, seldom):
            algorithm.tell(evaluation_of(algorithm, arm, t), reward)
        if t in (20, 33, 40, 45):
            told = arms[: t + 1], y[: t + 1]
            literal = literal_ata(K, *told, config)
            if cls is MoMAGPUCB:
                literal = literal_moma(K, told[0], [[reward] for reward in told[1]], config)
            mu, sigma = literal[:2]
            assert config.q * sigma[told[0]].min() ** 2 >= 1  # the dictionary is every arm told
            assert_allclose(faithful.mean(everything(n)), mu, atol=1e-7)
            assert_allclose(sigma_of(faithful, n), sigma, atol=1e-7)
            same = np.allclose(seldom.mean(everything(n)), mu, atol=1e-7)
            assert same == (t == 20)


@pytest.mark.parametrize("cls", [GPUCB, TGPUCB, ATAGPUCB], ids=lambda cls: cls.name)
def test_a_pending_evaluation_counts_as_one_told_its_own_mean(cls):
    """Up to the width, which grows with what was told: compared by sigma alone."""
    config = UCBConfig(low=-1, high=1, kernel_matrix=covariance(6))
    algorithm = cls(config, row(6))
    arms = [0, 1, 2, 3, 4, 5, 0, 0]
    for arm in arms:
        algorithm.tell(evaluation_of(algorithm, arm), 0.4)
    pending = np.array([[2.0], [2.0], [4.0]])
    ucb = [scores_of(algorithm, p, everything(6)) for p in (np.empty((0, 1)), pending)]
    lam = algorithm.lam if cls is GPUCB else config.lam
    sigma = [dense(covariance(6), told, np.zeros(len(told)), lam)[1]
             for told in (arms, [*arms, 2, 2, 4])]  # fmt: skip
    expected = algorithm.beta * (sigma[1] - sigma[0])
    assert_allclose(ucb[1] - ucb[0], expected, atol=1e-7)


# Domains ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("space", "rest"),
    [
        (row(4), "holds arm with 4 points"),
        (Space({"a": Int(0, 2), "b": Int(0, 0)}), "holds a, b with 3 points"),
        (Space({"a": Float(0.0, 1.0)}), "holds a with infinitely many points"),
    ],
    ids=["size", "two", "float"],
)
@pytest.mark.parametrize("option", ["kernel_matrix", "features"])
def test_arms_must_fit_the_space(space, rest, option):
    for cls in ALL:
        with pytest.raises(ValueError, match=f"need one integer parameter with 3 .*{rest}"):
            cls(UCBConfig(low=-1, high=1, **{option: np.eye(3)}), space)


def test_a_kernel_matrix_is_scaled_to_unit_variance_and_numbered_like_the_parameter():
    K = 4 * covariance(5) * np.outer([1, 1, 0.5, 1, 1], [1, 1, 0.5, 1, 1])
    domain = make_domain(UCBConfig(low=-1, high=1, kernel_matrix=K.tolist()), row(5))
    assert isinstance(domain, Arms)
    Z = domain.inputs(row(5).grid(5))
    assert np.array_equal(Z, everything(5))
    assert_allclose(domain.k(Z, Z), K / 4)
    assert_allclose(domain.k(Z[1:3], Z[4:]), K[1:3, 4:] / 4)
    assert_allclose(domain.prior(Z), [1, 1, 0.25, 1, 1])


@pytest.mark.parametrize("kernel", ["rbf", "matern52"])
def test_features_are_compared_by_the_kernel(kernel):
    F = np.random.default_rng(0).standard_normal((6, 3))
    config = UCBConfig(low=-1, high=1, features=F, kernel=kernel, lengthscale=0.8)
    domain, oracle = make_domain(config, row(6)), {"rbf": RBF, "matern52": Matern52}[kernel](0.8)
    assert_allclose(domain.k(everything(6), everything(6)), oracle.k(F, F))
    default = make_domain(UCBConfig(low=-1, high=1, features=F), row(6))
    expected = RBF(0.2 * math.sqrt(3)).k(F, F)
    assert_allclose(default.k(everything(6), everything(6)), expected)
    vector = make_domain(UCBConfig(low=-1, high=1, features=[0.0, 1.0]), row(2))
    assert_allclose(vector.k(everything(2), everything(2))[0, 1], math.exp(-12.5))


@pytest.mark.parametrize(
    ("space", "n"),
    [
        (row(400), 400), (Space({"a": Int(1, 4, log=True), "b": Categorical(("u", "v"))}), 8),
        (Space({"a": Float(0.0, 1.0, step=0.25), "b": Float(2.0, 2.0)}), 5), (row(401), None),
        (SQUARE, None),
    ],
    ids=["400", "mixed", "stepped", "401", "square"],
)  # fmt: skip
def test_small_finite_spaces_are_arms_and_others_boxes(space, n):
    domain = make_domain(UCBConfig(low=-1, high=1), space)
    if n is None:
        assert isinstance(domain, Box)
        return
    assert isinstance(domain, Arms)
    assert domain.X.shape == (n, len(space))
    Z = space.embed(domain.X)
    assert_allclose(domain.K, RBF(0.2 * math.sqrt(len(space))).k(Z, Z))


# Settings that make no sense --------------------------------------------------------------------


BARE = {"low": None, "high": None}
SENSELESS = [
    ({"low": 5.0}, "finite low < high, or neither"),
    ({"high": None}, "finite low < high, or neither"),
    ({"kernel_matrix": np.eye(2), "features": np.eye(2)}, "kernel_matrix= or features=, not"),
    ({"kernel_matrix": np.ones((2, 3))}, r"shape \(arms, arms\), got \(2, 3\)"),
    ({"kernel_matrix": np.empty((0, 0))}, r"shape \(arms, arms\), got \(0, 0\)"),
    ({"kernel_matrix": [[1.0, np.nan], [np.nan, 1.0]]}, "finite and symmetric"),
    ({"kernel_matrix": [[1.0, 0.5], [0.2, 1.0]]}, "finite and symmetric"),
    ({"kernel_matrix": [[1.0, 2.0], [2.0, 1.0]]}, "positive semi-definite"),
    ({"kernel_matrix": np.zeros((2, 2))}, "with a positive variance"),
    ({"features": [[1.0, np.nan]]}, r"finite with one row an arm, got .* shape \(1, 2\)"),
    ({"features": 3.0}, r"one row an arm, got .* shape \(\)"),
    *(({**BARE, **more}, "no unit: give bound= or value_range=, or B=") for more in (
        {}, {"B": 1.0}, {"B": 1.0, "second_moment": 1.0}, {"second_moment": 1.0, "noise_moment": 1}
    )),
]  # fmt: skip


@pytest.mark.parametrize(("more", "message"), SENSELESS, ids=lambda value: str(value)[:40])
def test_senseless_settings_are_refused_by_name(more, message):
    """Of settings taken together; ranges of single ones are those of their types."""
    with pytest.raises(ValueError, match=message):
        UCBConfig(**({"low": -1.0, "high": 1.0} | more))


# Learning, with fixed seeds ----------------------------------------------------------------------


def test_gp_ucb_on_privatised_rewards_beats_uniform_choice_by_a_wide_margin():
    """Ten arms, eps = 1, the default mechanism; a reward's noise is 2.7 times the best mean."""
    mechanism, T, space = make_mechanism(1.0, bound=1.0), 600, row(10)
    f = 0.8 * np.sin(6 * np.linspace(0, 1, 10))
    ratios = []
    for seed in range(6):
        noise = InsecureNoise(seed)
        config = UCBConfig(low=-1, high=1, noise=mechanism.noise, n_trials=T)
        algorithm, regret = GPUCB(config, space, seed=seed), 0.0
        for t in range(T):
            evaluation = algorithm.ask(t)
            assert evaluation is not None
            arm = number(algorithm, evaluation)
            regret += f.max() - f[arm]
            algorithm.tell(evaluation, mechanism.randomize(float(f[arm]), noise, worst=-1.0))
        ratios.append(regret / (T * (f.max() - f.mean())))
    assert np.mean(ratios) < 0.4
    assert max(ratios) < 1.0
