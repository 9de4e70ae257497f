"""Distributed kernel UCB against dense Gaussian processes, determinants and counts by hand."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from scipy import linalg

from benchmarks.baselines.distributed_kernel_ucb import (
    ApproxDisKernelUCB,
    DisKernelUCB,
    NKernelUCB,
)
from benchmarks.distributed_problems import problem
from privbo_plugins.models.kernels import RBF, Kernel, Polynomial2

Array = NDArray[np.float64]
Team = NKernelUCB | DisKernelUCB | ApproxDisKernelUCB
Plays = list[tuple[Array, float]]

LAM = 0.05
U = np.random.default_rng(5).random((60, 2))
KERNELS = [RBF(0.3), Polynomial2()]


def make(kind: str, kernel: Kernel = KERNELS[0], N: int = 3, **changes: Any) -> Team:
    arguments: dict[str, Any] = {"beta": 1.0, "lam": LAM, "rng": np.random.default_rng(1)}
    if kind == "alone":
        return NKernelUCB(kernel, U, N, **arguments | changes)
    if kind == "exact":
        return DisKernelUCB(kernel, U, N, **{"D": 2.0} | arguments | changes)
    return ApproxDisKernelUCB(kernel, U, N, **{"D": 20.0, "q": 1.0} | arguments | changes)


def evaluation(
    team: Team,
    rounds: int,
    N: int = 3,
    before: Callable[[list[Plays], list[Plays]], None] = lambda own, shared: None,
) -> tuple[list[Plays], list[int]]:
    """Plays; ``before`` each round's end sees each agent's own plays and what it may know.

    Returns what each agent may know at last, and the rounds in which they met.
    """
    noise = np.random.default_rng(2)
    own: list[Plays] = [[] for _ in range(N)]
    fresh: list[Plays] = [[] for _ in range(N)]
    common: Plays = []
    met: list[int] = []
    for t in range(rounds):
        for n in range(N):
            x = team.ask(n)
            y = float(np.sin(5 * x[0]) + x[1] + 0.2 * noise.standard_normal())
            team.tell(n, x, y)
            own[n].append((x, y))
            fresh[n].append((x, y))
        before(own, [common + new for new in fresh])
        count = getattr(team, "n_synchronisations", 0)
        team.end_round()
        if getattr(team, "n_synchronisations", 0) > count:
            met.append(t)
            common = common + [pair for new in fresh for pair in new]
            fresh = [[] for _ in range(N)]
    return [common + new for new in fresh], met


def dense(kernel: Kernel, evaluations: Plays) -> tuple[Array, Array]:
    """Eq. 3 and 4, solved at once."""
    X, Y = np.array([x for x, _ in evaluations]), np.array([y for _, y in evaluations])
    K = kernel.k(X, X) + LAM * np.eye(len(X))
    kU = kernel.k(X, U)
    mu = kU.T @ linalg.solve(K, Y, assume_a="pos")
    s2 = np.diag(kernel.k(U, U) - kU.T @ linalg.solve(K, kU, assume_a="pos"))
    return mu, s2


def same(team: Team, n: int, kernel: Kernel, evaluations: Plays, tolerance: float = 1e-8) -> None:
    mu, s2 = team.posterior(n)
    expected_mu, expected_s2 = dense(kernel, evaluations)
    np.testing.assert_allclose(mu, expected_mu, rtol=tolerance, atol=tolerance)
    np.testing.assert_allclose(s2, expected_s2, rtol=tolerance, atol=tolerance)


def log_det(kernel: Kernel, evaluations: Plays) -> float:
    X = np.array([x for x, _ in evaluations]).reshape(-1, 2)
    return float(np.linalg.slogdet(np.eye(len(X)) + kernel.k(X, X) / LAM)[1])


@pytest.mark.parametrize("kernel", KERNELS)
@pytest.mark.parametrize("kind", ["alone", "exact"])
def test_an_agent_knows_what_a_dense_solve_of_its_data_says(kind: str, kernel: Kernel) -> None:
    team = make(kind, kernel)
    known, met = evaluation(team, 25)
    assert bool(met) == (kind == "exact")
    for n in range(3):
        same(team, n, kernel, known[n])


def test_it_still_does_after_many_meetings_and_repeated_plays() -> None:
    team = make("exact", D=0.0)
    known, met = evaluation(team, 150)
    assert met == list(range(150))
    assert len({x.tobytes() for x, _ in known[0]}) < len(known[0]) / 4
    for n in range(3):
        same(team, n, KERNELS[0], known[n])


def test_the_next_play_is_the_largest_bound_of_the_dense_solve() -> None:
    team = make("exact", beta=0.7)
    known, _ = evaluation(team, 12)
    for n in range(3):
        mu, s2 = dense(KERNELS[0], known[n])
        np.testing.assert_array_equal(team.ask(n), U[np.argmax(mu + 0.7 * np.sqrt(s2))])


@pytest.mark.parametrize("D", [0.5, 5.0, 30.0])
def test_agents_meet_when_a_determinant_says_so(D: float) -> None:
    team = make("exact", D=D)
    expected: list[int] = []
    last = [-1]
    baseline = [0.0]

    def check(own: list[Plays], known: list[Plays]) -> None:
        assert isinstance(team, DisKernelUCB)
        t = len(own[0]) - 1
        values = [(t - last[0]) * (log_det(KERNELS[0], of) - baseline[0]) for of in known]
        for n, value in enumerate(values):
            assert team.trigger(n) == pytest.approx(value, rel=1e-7, abs=1e-9)
        if max(values) > D:
            expected.append(t)
            last[0] = t
            everything = [pair for evaluations in own for pair in evaluations]
            baseline[0] = log_det(KERNELS[0], everything)

    _, met = evaluation(team, 30, before=check)
    assert met == expected
    assert 0 < len(met) < 30


def test_alone_nothing_is_sent() -> None:
    team = make("alone")
    evaluation(team, 10)
    assert (team.communication.up, team.communication.down) == (0, 0)


def test_shared_plays_cost_their_coordinates_and_reward_once_each_way() -> None:
    team = make("exact", D=math.inf)
    evaluation(team, 4)
    assert team.communication.per_agent == 0.0
    team = make("exact", D=5.0)
    _, met = evaluation(team, 20)
    assert team.communication.up == team.communication.down == 3 * (met[-1] + 1) * 3
    assert team.communication.per_agent == (met[-1] + 1) * 3 * (1 + 3)


def test_meeting_each_round_is_central_gp_ucb() -> None:
    team = make("exact", D=0.0)
    known, met = evaluation(team, 10)
    assert met == list(range(10))
    assert len(known[0]) == 30
    for n in range(3):
        same(team, n, KERNELS[0], known[n])
    posteriors = [team.posterior(n) for n in range(3)]
    np.testing.assert_array_equal(posteriors[0], posteriors[1])


def test_never_meeting_is_playing_alone() -> None:
    (apart, met), (alone, _) = (
        evaluation(make("exact", D=math.inf), 15),
        evaluation(make("alone"), 15),
    )
    assert met == []
    for mine, theirs in zip(apart, alone, strict=True):
        np.testing.assert_array_equal([x for x, _ in mine], [x for x, _ in theirs])


def test_a_dictionary_of_all_plays_is_exact() -> None:
    team = make("approx", D=0.0, q=1e6)
    known, met = evaluation(team, 12)
    assert met == list(range(12))
    for n in range(3):
        same(team, n, KERNELS[0], known[n], tolerance=1e-6)


def test_a_dictionary_that_spans_the_candidates_stays_exact_between_meetings() -> None:
    """The polynomial kernel has six features: six points in the dictionary span the rest."""
    team, kernel = make("approx", Polynomial2(), D=0.0, q=1e6), Polynomial2()
    shared = [(x, float(x[0])) for x in U[:9]]
    for i, (x, y) in enumerate(shared):
        team.tell(i % 3, x, y)
    team.end_round()
    for n in range(3):
        mine = [(x, float(x[1])) for x in U[10 * n + 10 : 10 * n + 15]]
        for x, y in mine + mine[:2]:
            team.tell(n, x, y)
        same(team, n, kernel, shared + mine + mine[:2], tolerance=1e-6)


def test_an_incomplete_dictionary_gives_equations_five_and_six() -> None:
    """With the features' covariance in place of the kernel's, plus what they do not span."""
    team = make("approx", D=0.0, q=1e6, N=1)
    first = U[:3]
    for x in first:
        team.tell(0, x, float(x[0]))
    team.end_round()
    for x in U[10:14]:  # these are outside the dictionary
        team.tell(0, x, float(x[0]))
    k = KERNELS[0].k
    root = linalg.sqrtm(linalg.inv(k(first, first))).real
    X = np.vstack([first, U[10:14]])
    Z, z = k(X, first) @ root, k(U, first) @ root
    V = LAM * np.eye(3) + Z.T @ Z
    mu = z @ linalg.solve(V, Z.T @ X[:, 0])
    s2 = 1.0 - np.einsum("ij,ij->i", z, (Z.T @ Z @ linalg.solve(V, z.T)).T)
    np.testing.assert_allclose(team.posterior(0)[0], mu, atol=1e-8)
    np.testing.assert_allclose(team.posterior(0)[1], s2, atol=1e-8)


def test_a_summary_is_asked_for_by_the_variance_of_the_last_meeting() -> None:
    team = make("approx", D=50.0, q=1e6)
    assert isinstance(team, ApproxDisKernelUCB)
    for t in range(3):  # the prior variance over LAM is 20 a play
        for n in range(3):
            assert team.trigger(n) == pytest.approx(20.0 * t)
            team.tell(n, U[10 * n + t], 1.0)
        team.end_round()
        assert team.n_synchronisations == int(t == 2)
    _, s2 = team.posterior(0)
    team.tell(0, U[40], 1.0)
    team.tell(0, U[41], 1.0)
    assert team.trigger(0) == pytest.approx((s2[40] + s2[41]) / LAM)
    assert team.trigger(1) == 0.0


def test_summaries_cost_their_points_and_statistics() -> None:
    team = make("approx", D=0.0, q=1e6)
    for x, n in zip(U[:3], range(3), strict=True):
        team.tell(n, x, 1.0)
    team.end_round()  # m = 3: a point each; 6 + 3 statistics; all points and the sums down
    assert team.communication.up == 3 * 2 + 3 * 9
    assert team.communication.down == 3 * 2 + 9
    for n in range(3):  # the same new point for all, and the old ones again
        team.tell(n, U[50], 1.0)
    team.end_round()  # m = 4: two points each; 10 + 4 statistics
    assert team.communication.up == 33 + 3 * 4 + 3 * 14
    assert team.communication.down == 15 + 4 * 2 + 14


def test_points_enter_the_dictionary_in_proportion_to_their_variance() -> None:
    """The prior variance over LAM is 20: of first plays, a share of 20 q is kept."""
    sent = []
    for seed in range(400):
        team = make("approx", D=0.0, q=0.015, N=1, rng=np.random.default_rng(seed))
        team.tell(0, U[0], 1.0)
        team.end_round()
        sent.append(team.communication.up > 0)
    assert abs(np.mean(sent) - 0.3) < 4 * math.sqrt(0.3 * 0.7 / 400)


def test_an_empty_dictionary_is_the_prior() -> None:
    team = make("approx", D=0.0, q=1e-12)
    evaluation(team, 3)
    mu, s2 = team.posterior(0)
    np.testing.assert_array_equal(mu, 0.0)
    np.testing.assert_allclose(s2, 1.0)
    assert team.communication.per_agent == 0.0


def test_equal_candidates_are_one() -> None:
    doubled = np.vstack([U[:5], U[:5]])
    rng = np.random.default_rng(0)
    team = NKernelUCB(RBF(0.3), doubled, 1, beta=1.0, lam=LAM, rng=rng)
    team.tell(0, doubled[7], 2.0)
    mu, s2 = team.posterior(0)
    np.testing.assert_allclose(mu[:5], mu[5:])
    np.testing.assert_allclose(s2[:5], s2[5:])


@pytest.mark.parametrize("kind", ["alone", "exact", "approx"])
@pytest.mark.parametrize(
    "bad",
    [
        {"N": 0},
        {"beta": -1.0},
        {"beta": math.nan},
        {"lam": 0.0},
        {"lam": math.inf},
    ],
)
def test_bad_arguments_are_named(kind: str, bad: dict[str, Any]) -> None:
    name = {"N": "n_agents"}.get(*[next(iter(bad))] * 2)
    with pytest.raises(ValueError, match=rf"^{name} must be .*got {next(iter(bad.values()))}; "):
        make(kind, **bad)


@pytest.mark.parametrize("kind", ["exact", "approx"])
@pytest.mark.parametrize("D", [-1.0, math.nan])
def test_bad_thresholds_are_named(kind: str, D: float) -> None:
    with pytest.raises(ValueError, match="D must be >= 0, got"):
        make(kind, D=D)


@pytest.mark.parametrize("q", [0.0, -1.0, math.inf, math.nan])
def test_bad_oversampling_is_named(q: float) -> None:
    with pytest.raises(ValueError, match="q must be finite and > 0, got"):
        make("approx", q=q)


@pytest.mark.parametrize("bad", [U[0], U[:0], np.full((3, 2), np.nan)])
def test_bad_candidates_are_named(bad: Array) -> None:
    with pytest.raises(ValueError, match="U must be finite, of shape"):
        NKernelUCB(RBF(), bad, 1, beta=1.0, lam=1.0, rng=np.random.default_rng(0))


@pytest.mark.parametrize("kind", ["alone", "exact", "approx"])
def test_bad_plays_are_named_and_change_nothing(kind: str) -> None:
    team = make(kind)
    before = team.posterior(0)
    for agent, x, y, words in [
        (3, U[0], 1.0, "agent must be in 0 to 2, got 3"),
        (-1, U[0], 1.0, "agent must be in 0 to 2, got -1"),
        (0, U[0] + 1e-9, 1.0, "x must be one of the candidates"),
        (0, U[0], math.nan, "y must be finite, got nan"),
    ]:
        with pytest.raises(ValueError, match=words):
            team.tell(agent, x, y)
    with pytest.raises(ValueError, match="agent must be in"):
        team.ask(3)
    np.testing.assert_array_equal(team.posterior(0), before)


@pytest.mark.parametrize("name", ["h1", "h2", "branin", "hartmann4", "hartmann4_raw"])
def test_no_point_exceeds_the_optimum_of_a_problem(name: str) -> None:
    on = problem(name, 3)
    X = on.uniform(20_000, np.random.default_rng(0))
    assert X.shape == (20_000, on.d)
    inside = np.linalg.norm(X, axis=1) <= 1.0 if on.in_ball else ((X >= 0) & (X <= 1)).all(1)
    assert inside.all()
    assert on.f(X).max() <= on.optimum


@pytest.mark.parametrize(
    ("name", "optimum"),
    [
        ("h1", 1.0),
        ("h2", 4.0),
        ("branin", -(0.397887 - 54.8104) / 51.9496),
        ("hartmann4", 3.134494),
        ("hartmann4_raw", 3.729840),
    ],
)
def test_optima_are_those_of_the_literature(name: str, optimum: float) -> None:
    assert problem(name, 0).optimum == pytest.approx(optimum, abs=5e-5)


def test_branin_at_its_known_minimisers() -> None:
    x = np.array([[5.0 - np.pi, 12.275], [5.0 + np.pi, 2.275], [14.42478, 2.475]]) / 15.0
    on = problem("branin", 0)
    np.testing.assert_allclose(on.f(x), on.optimum, atol=1e-5)


def test_uniform_in_the_ball_has_the_radii_of_the_volume() -> None:
    radii = np.linalg.norm(problem("h1", 0).uniform(20_000, np.random.default_rng(0)), axis=1)
    assert np.mean(radii**10 < 0.5) == pytest.approx(0.5, abs=0.015)
