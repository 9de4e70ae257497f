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
Evaluations = list[tuple[Array, float]]

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
    before: Callable[[list[Evaluations], list[Evaluations]], None] = lambda own, shared: None,
) -> tuple[list[Evaluations], list[int]]:
    """Evaluations; ``before`` each round's end sees each agent's own and what it may know.

    Returns what each agent may know at last, and the rounds in which they met.
    """
    noise = np.random.default_rng(2)
    own: list[Evaluations] = [[] for _ in range(N)]
    fresh: list[Evaluations] = [[] for _ in range(N)]
    common: Evaluations = []
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


def dense(kernel: Kernel, evaluations: Evaluations) -> tuple[Array, Array]:
    """Eq. 3 and 4, solved at once."""
    X, Y = np.array([x for x, _ in evaluations]), np.array([y for _, y in evaluations])
    K = kernel.k(X, X) + LAM * np.eye(len(X))
    kU = kernel.k(X, U)
    mu = kU.T @ linalg.solve(K, Y, assume_a="pos")
    s2 = np.diag(kernel.k(U, U) - kU.T @ linalg.solve(K, kU, assume_a="pos"))
    return mu, s2


def same(
    team: Team, n: int, kernel: Kernel, evaluations: Evaluations, tolerance: float = 1e-8
) -> None:
    mu, s2 = team.posterior(n)
    expected_mu, expected_s2 = dense(kernel, evaluations)
    np.testing.assert_allclose(mu, expected_mu, rtol=tolerance, atol=tolerance)
    np.testing.assert_allclose(s2, expected_s2, rtol=tolerance, atol=tolerance)


def log_det(kernel: Kernel, evaluations: Evaluations) -> float:
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


def test_the_next_evaluation_is_the_largest_bound_of_the_dense_solve() -> None:
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

    def check(own: list[Evaluations], known: list[Evaluations]) -> None:
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


def test_shared_evaluations_cost_their_coordinates_and_reward_once_each_way() -> None:
    team = make("exact", D=math.inf)
    evaluation(team, 4)
    assert team.communication.per_agent == 0.0
    team = make("exact", D=5.0)
    _, met = evaluation(team, 20)
    assert team.communication.up == team.communication.down == 3 * (met[-1] + 1) * 3
    assert team.communication.per_agent == (met[-1] + 1) * 3 * (1 + 3)


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
    for t in range(3):  # the prior variance over LAM is 20 per evaluation
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
    """The prior variance over LAM is 20: of first evaluations, a share of 20 q is kept."""
    sent = []
    for seed in range(400):
        team = make("approx", D=0.0, q=0.015, N=1, rng=np.random.default_rng(seed))
        team.tell(0, U[0], 1.0)
        team.end_round()
        sent.append(team.communication.up > 0)
    assert abs(np.mean(sent) - 0.3) < 4 * math.sqrt(0.3 * 0.7 / 400)


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
