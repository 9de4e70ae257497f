"""How good DP-GIBO's planned settings are where the budget is low, beside the first rules.

Each run is made twice, planned by the present rules of descent and by the first ones (25 steps of
d + 1 trials, B = 1, length-scale .35), on the same instance with the same seed: ten instances of
each regression problem that chose nothing and fourteen harder ones, two seeds on each, and ten
seeds (five at 64 parameters) on the instances of
:mod:`benchmarks.quality`. The algorithm is the engine's own, but no host, vault or ledger stands
around it, and numpy draws the noise, so these runs protect nothing. Kernel matrices are in single
precision while a run goes on, and the classifier's parameters on a grid of 81 by 81; the
recommendation is judged as it is.

    python -m benchmarks.low_budget [--only fresh-15 ...] [--kept runs.jsonl]

Takes about 22 minutes on one core with ``OMP_NUM_THREADS=1``. ``--kept`` keeps finished runs,
which are not made again.
"""

from __future__ import annotations

import argparse
import json
import platform
import warnings
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.linalg import cho_factor, cho_solve

from benchmarks.problems import ArdKernelRidge, Problem, SvcDigits, digits_ard, gp_ard
from benchmarks.simulation import followed
from benchmarks.tasks import Row, Task, carried_out
from privbo_plugins.algorithms.dp_gibo import DPGIBO, GIBOConfig, make_plan
from privbo_plugins.spaces import Float, Space

Array = NDArray[np.float64]
Losses = Callable[[Array], Array]

RESULTS = Path(__file__).parent / "results"
MUS = (1.0, 0.3, 0.1)
PLANNINGS: dict[int, dict[str, float | int]] = {
    1: {"n_steps": 25, "clipping_norm": 1.0, "lengthscale": 0.35, "step_size": 1 / 25},
    2: {},
}
"""Settings of the first rules and of the present ones, by the number that results call them."""

_DEEPEST = -50.0
"""Least exponent in single precision: what lies below is zero, but slows products down."""

_CELLS = 80
"""The classifier is trained once for each point of a grid so fine; the judged one is exact."""


@dataclass(frozen=True)
class Part:
    """Runs of one kind.

    Attributes:
        make: Problem of an instance's number.
        instances: Their numbers.
        seeds: Runs on each.
        bars: Largest median excess wanted, by mu; as a share of the first rules' if ``halved``.
        halved: Whether bars are shares.
        tails: A share of the runs and the largest excess wanted in it, by mu; where given, no run
            may end worse than the middle of the ranges by more than .01 either.
    """

    make: Callable[[int], Problem]
    instances: tuple[int, ...]
    seeds: int
    bars: dict[float, float]
    halved: bool = False
    tails: dict[float, tuple[float, float]] = field(default_factory=dict)


FRESH = tuple(range(101, 111))
"""Instances on which nothing was chosen; exploratory runs used 11 to 16, and 2 and 3."""

HARDER = (
    (2, 0.05, 300), (3, 0.15, 300), (5, 0.1, 300), (5, 0.05, 200), (7, 0.05, 300),
    (4, 0.1, 200), (6, 0.1, 250),
)  # fmt: skip
"""Relevant inputs, noise of the targets and training records of harder instances."""

_TAILS = {0.3: (1.0, 0.01), 0.1: (0.9, 0.03)}

_HARM = 0.01
"""Loss on the middle of the ranges from which a run counts as worse."""


def harder(instance: int) -> ArdKernelRidge:
    """An instance of 15 length-scales with other data than those that defaults were chosen on."""
    relevant, noise, n_train = HARDER[instance % len(HARDER)]
    return gp_ard(instance, n_train, relevant=relevant, noise=noise)


PARTS = {
    "fresh-15": Part(gp_ard, FRESH, 2, {1.0: 0.001, 0.3: 0.002, 0.1: 0.015}, tails=_TAILS),
    "hard-15": Part(harder, tuple(range(203, 217)), 2, {0.3: 0.002, 0.1: 0.015}, tails=_TAILS),
    "quality-svc": Part(lambda _: SvcDigits(), (0,), 10, dict.fromkeys(MUS, 1.0), halved=True),
    "quality-15": Part(gp_ard, (1,), 10, dict.fromkeys(MUS, 1.0), halved=True),
    "fresh-64": Part(digits_ard, FRESH, 2, {0.3: 0.5, 0.1: 0.5}, halved=True),
    "quality-64": Part(digits_ard, (1,), 5, dict.fromkeys(MUS, 1.0), halved=True),
}


@cache
def problem_of(part: str, instance: int) -> Problem:
    """An instance, built once a process."""
    return PARTS[part].make(instance)


def unit_losses(problem: Problem) -> Losses:
    """Losses at points of the unit cube, quickly."""
    if not isinstance(problem, ArdKernelRidge):
        return lambda u: _on_a_grid(problem, *np.round(u * _CELLS))
    known = problem
    data = [np.asarray(a, np.float32) for a in (known._X, known._V, known._Y, known._S)]
    X, V, Y, S = data
    Z, m = np.vstack([X, V]), len(X)

    def losses(u: Array) -> Array:
        inverse = np.exp(known._half_width * (1.0 - 2.0 * u)).astype(np.float32)
        scaled = Z * inverse
        half = np.float32(0.5) * (scaled * scaled).sum(1)
        K = scaled @ scaled[:m].T - half[:, None] - half[None, :m]
        np.exp(np.clip(K, np.float32(_DEEPEST), np.float32(0.0)), out=K)
        A = K[:m].copy()
        A[np.diag_indices(m)] += np.float32(known._ridge)
        alpha = cho_solve(cho_factor(A, lower=True, check_finite=False), Y, check_finite=False)
        E = S - K[m:] @ alpha
        return np.asarray(known._scale * (E * E).sum(1), dtype=float)

    return losses


@cache
def _on_a_grid(problem: Problem, *cell: float) -> Array:
    return problem.losses(problem.decode(np.array(cell) / _CELLS))


def simulated(problem: Problem, config: GIBOConfig, seed: int) -> tuple[Array, int]:
    """The recommendation of one run, (d,), and its number of planned trials."""
    space = Space({f"x{j:02d}": Float(0.0, 1.0) for j in range(problem.d)})
    plan = make_plan(config, space, problem.n_records)
    algorithm, losses = DPGIBO(config, space, seed=seed, plan=plan), unit_losses(problem)
    u = followed(algorithm, lambda U: np.column_stack([losses(x) for x in U]), seed)
    return u, plan.n_trials


def run(task: Task) -> Row:
    """One run."""
    part, own = task
    warnings.simplefilter("ignore")
    problem = problem_of(part, own["instance"])
    planned: dict[str, Any] = PLANNINGS[own["planning"]]
    config = GIBOConfig(mu=own["mu"], n_starts=16, **planned)  # descent anyway
    u, n_trials = simulated(problem, config, own["seed"])
    excess, middle = (
        problem.true_mean(problem.decode(x)) - problem.optimum()
        for x in (u, np.full(problem.d, 0.5))
    )
    return {"part": part, **own, "excess": excess, "middle": middle, "trials": n_trials}


def tasks(part: str) -> list[Task]:
    """The runs of a part; those of an instance follow each other."""
    own = PARTS[part]
    mus = [mu for mu in MUS if mu in own.bars]
    return [
        (part, {"instance": i, "seed": 1000 * s + i, "mu": mu, "planning": planning})
        for i in own.instances
        for s in range(own.seeds)
        for mu in mus
        for planning in PLANNINGS
    ]


def summarise(rows: list[Row]) -> list[dict[str, Any]]:
    """One cell a part and mu: medians, their standard errors, and the paired difference."""
    cells = dict.fromkeys((row["part"], row["mu"]) for row in rows)
    return [_cell([r for r in rows if (r["part"], r["mu"]) == key]) for key in cells]


def _cell(rows: list[Row]) -> dict[str, Any]:
    part, mu = rows[0]["part"], rows[0]["mu"]
    first, second = (
        np.array([r["excess"] for r in rows if r["planning"] == planning])
        for planning in PLANNINGS
    )
    own, difference = PARTS[part], second - first
    bar = own.bars[mu] * (float(np.median(first)) if own.halved else 1.0)
    share, most = own.tails.get(mu, (1.0, np.inf))
    middle = np.array([r["middle"] for r in rows if r["planning"] == max(PLANNINGS)])
    worse = int((second > middle + _HARM).sum())
    met = np.median(second) <= bar and np.quantile(second, share) <= most
    return {
        "part": part,
        "mu": mu,
        "runs": len(second),
        "trials": max(r["trials"] for r in rows if r["planning"] == max(PLANNINGS)),
        "median_before": float(np.median(first)),
        "se_before": _error_of_median(first),
        "median": float(np.median(second)),
        "se": _error_of_median(second),
        "worst_before": float(first.max()),
        "worst": float(second.max()),
        "difference": float(difference.mean()),
        "se_difference": float(difference.std(ddof=1) / np.sqrt(len(difference))),
        "nine_in_ten": float(np.quantile(second, 0.9)),
        "worse_than_middle": worse,
        "bar": bar,
        "met": bool(met and (worse == 0 or not own.tails)),
    }


def _error_of_median(x: Array) -> float:
    """Bootstrap standard error, with a fixed seed."""
    drawn = np.random.default_rng(0).choice(x, (2000, len(x)))
    return float(np.median(drawn, axis=1).std())


def table(cells: list[dict[str, Any]]) -> str:
    """The summary as text."""
    lines = [
        f"{'part':<13}{'mu':>5}{'runs':>6}{'trials':>8}  {'first rules':>16}  {'now':>16}"
        f"{'9 in 10':>9}{'worst':>8}{'harmed':>8}  {'paired difference':>18}{'bar':>8}"
    ]
    lines += [
        f"{c['part']:<13}{c['mu']:>5g}{c['runs']:>6}{c['trials']:>8}"
        f"  {c['median_before']:>7.4f} +- {c['se_before']:.4f}"
        f"  {c['median']:>6.4f} +- {c['se']:.4f}"
        f"{c['nine_in_ten']:>9.4f}{c['worst']:>8.4f}{c['worse_than_middle']:>8}"
        f"  {c['difference']:>8.4f} +- {c['se_difference']:.4f}{c['bar']:>8.4f}"
        f" {'met' if c['met'] else 'missed'}"
        for c in cells
    ]
    return "\n".join(lines)


def picture(rows: list[Row], path: Path) -> None:
    """Each run as a point, by the first rules against now; below the diagonal is better."""
    import matplotlib as mpl

    mpl.use("Agg")
    import matplotlib.pyplot as plt

    parts = list(dict.fromkeys(row["part"] for row in rows))
    figure, axes = plt.subplots(1, len(parts), figsize=(4 * len(parts), 4), squeeze=False)
    for axis, part in zip(axes[0], parts, strict=True):
        for mu in MUS:
            first, second = (
                [r["excess"] for r in rows if (r["part"], r["mu"], r["planning"]) == (part, mu, p)]
                for p in PLANNINGS
            )
            floor = 1e-4
            axis.scatter(
                np.maximum(first, floor), np.maximum(second, floor), s=12, label=f"mu = {mu:g}"
            )
        ends = [1e-4, 1.0]
        axis.plot(ends, ends, color="grey", linewidth=0.8)
        axis.set(xscale="log", yscale="log", title=part, xlabel="excess, planned as in 0.1")
    axes[0][0].set_ylabel("excess, planned now")
    axes[0][0].legend(fontsize=8)
    figure.tight_layout()
    figure.savefig(path, dpi=120)
    plt.close(figure)


def main() -> None:
    """Runs everything and writes JSON and a picture."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n", 1)[0])
    parser.add_argument("--only", nargs="+", default=list(PARTS), choices=list(PARTS))
    parser.add_argument("--kept", type=Path)
    parser.add_argument("--out", type=Path, default=RESULTS)
    given = parser.parse_args()
    rows: list[Row] = []
    for part in given.only:
        rows += carried_out(tasks(part), run, jobs=1, kept=given.kept)
        print(table(summarise([row for row in rows if row["part"] == part])), flush=True)
    given.out.mkdir(parents=True, exist_ok=True)
    summary = summarise(rows)
    record = {"python": platform.python_version(), "summary": summary, "runs": rows}
    (given.out / "low_budget.json").write_text(json.dumps(record, indent=1))
    picture(rows, given.out / "low_budget.png")
    print(table(summary))


if __name__ == "__main__":
    main()
