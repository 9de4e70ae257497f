"""Which method for d parameters, n records and privacy mu: a map of measurements.

Arms, each with the same guarantee for the validation records, n of them, losses in [0, 1]:

- ``dp-gibo``: ``DPGIBOSampler`` with its defaults.
- ``means-tpe``, ``means-cma``: ``private_objective`` with TPESampler or CmaEsSampler, and its
  ``recommend``. As many trials as the first arm plans, but at most 300, and TPESampler suggests
  2400 numbers at most (75 trials where that were fewer): its time grows with both.
- ``random-argmin``: as many uniform points as the first arm plans, of which one private argmin is
  released (:mod:`benchmarks.baselines.private_selection`). Neither it nor the next one shows
  anything of a trial, and neither is offered by the package.
- ``random-selection``: uniform points in a random, geometric number, whose mean is the first arm's
  number of trials; each has a noisy value, and only the best is released (Papernot and Steinke
  2022, Theorem 2). It gets the epsilon of mu-GDP at delta = 1e-5.

What is measured is the excess of the true mean loss at what is recommended over the least one,
found without privacy (L-BFGS-B from many starts, or all cells of a grid). Problems: smooth bowls
(:class:`Bowl`) everywhere, and with two parameters a support vector classifier and a kernel ridge.

From 32 parameters on, ``private_objective`` is measured with 100 trials at most and at three
values of n mu.

The noise of the first three arms is a function of n mu alone, and so is DP-GIBO's plan. So a
problem's records stand for a population of which n have been drawn in its own proportions, and
cells with one n mu are one run. The others know n and mu apart. Neither host nor vault stands
around these runs and numpy draws their noise: they protect nothing. Seeds are paired: all arms of
a seed tune the same instance. GPSampler is no arm: it needs torch.

    python -m benchmarks.map [--only bowl-1 ...] [--kept runs.jsonl] [--write-table]

Takes about 25 minutes on one core. ``--kept`` keeps finished runs, which are not made again;
``--write-table`` also writes the table that ``Plan.advice`` reads.
"""

from __future__ import annotations

import argparse
import json
import math
import platform
import warnings
from collections import defaultdict
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import minimize

from benchmarks.baselines.private_selection import (
    DELTA,
    bounded_range_from_gdp,
    geometric_gamma,
    selection_mu,
)
from benchmarks.tasks import Row, Task, carried_out
from privbo_plugins.algorithms.dp_gibo import DPGIBO, GIBOConfig, Plan, make_plan
from privbo_plugins.algorithms.protocols import FINAL, START, Query, Release
from privbo_plugins.privacy.mechanisms import gaussian_scale
from privbo_plugins.spaces import Float, Space

Array = NDArray[np.float64]

RESULTS = Path(__file__).parent / "results"
TABLE = Path(__file__).parents[1] / "privbo_plugins" / "algorithms" / "dp_gibo" / "measured.py"

DS = (1, 2, 4, 8, 15, 32, 64)
NS = (300, 1000, 10_000, 100_000)
MUS = (0.1, 0.3, 1.0, 3.0)
CELLS = tuple((n, mu) for n in NS for mu in MUS)
LEVELS = tuple(sorted({round(n * mu) for n, mu in CELLS}))
"""Values of n mu."""

FEW_LEVELS = (100, 3000, 100_000)
MANY = 32
"""Parameters from which on ``private_objective`` is measured at the few levels only."""

ARMS = ("dp-gibo", "means-tpe", "means-cma", "random-argmin", "random-selection")
SHIPPED = ARMS[:3]
"""Arms that know n mu only, and that the package offers."""

AS_GOOD = 0.001
"""Excess, in widths of the range of losses, by which two methods count as equally good."""

_MOST_TRIALS = 300
_MOST_OF_MANY = 100
_MOST_OF_TPE = 2400
_FEWEST_OF_TPE = 75


# Problems ---------------------------------------------------------------------------------------


class Instance(Protocol):
    """Losses in [0, 1] over the unit cube."""

    @property
    def d(self) -> int:
        """Number of parameters."""
        ...

    @property
    def n_records(self) -> int:
        """Records that are simulated."""
        ...

    def losses(self, U: Array) -> Array:
        """Of points (m, d), shape (n_records, m)."""
        ...

    def least(self) -> float:
        """The least mean loss."""
        ...


class Bowl:
    """A smooth bowl that flattens out far from its bottom; each record has its own.

    Record i loses a_i + (1 - a_i) r² / (1 + r²) with r² = Σ_j w_j (u_j - c_ij)². The weights are
    lognormal with standard deviation 1, so that few parameters matter more than the rest, and
    Σ w = 6: a random point has r² near 1, whatever d is. The records' bottoms scatter by .1 around
    one that is uniform on [.1, .9]^d, and a_i is uniform on [0, .2].

    Args:
        d: Number of parameters.
        seed: Seed of the instance.
        n_records: Records that are simulated.
    """

    def __init__(self, d: int, seed: int, n_records: int = 256) -> None:
        rng = np.random.default_rng([seed, d])
        w = np.exp(rng.standard_normal(d))
        self.d, self._w = d, 6.0 * w / w.sum()
        self._c = rng.uniform(0.1, 0.9, d) + 0.1 * rng.standard_normal((n_records, d))
        self._a = rng.uniform(0.0, 0.2, n_records)

    @property
    def n_records(self) -> int:
        """Records that are simulated."""
        return len(self._a)

    def losses(self, U: Array) -> Array:
        """Of points (m, d), shape (n_records, m)."""
        r2 = self._squares(U)
        a = self._a[:, None]
        return np.asarray(a + (1.0 - a) * r2 / (1.0 + r2))

    def _squares(self, U: Array) -> Array:
        root = np.sqrt(self._w)
        A, B = self._c * root, U * root
        square = (A * A).sum(1)[:, None] - 2.0 * A @ B.T + (B * B).sum(1)[None, :]
        return np.asarray(np.maximum(square, 0.0))

    def mean_and_gradient(self, u: Array) -> tuple[float, Array]:
        """Mean loss at u (d,) and its gradient."""
        r2 = self._squares(u[None])[:, 0]
        slope = (1.0 - self._a) / (1.0 + r2) ** 2 / len(r2)
        grad = 2.0 * self._w * (u * slope.sum() - slope @ self._c)
        return float(self.losses(u[None]).mean()), np.asarray(grad)

    def least(self) -> float:
        """The least mean loss in the cube, from several starts."""
        starts = [self._c.mean(0).clip(0, 1), *np.random.default_rng(0).random((4, self.d))]
        return min(
            float(
                minimize(
                    self.mean_and_gradient, x, jac=True, method="L-BFGS-B",
                    bounds=[(0.0, 1.0)] * self.d,
                ).fun
            )
            for x in starts
        )  # fmt: skip


@dataclass(frozen=True)
class Grid:
    """Two parameters, known on a grid; a point has the losses of its nearest cell.

    Attributes:
        table: Losses, shape (g, g, n_records).
    """

    table: Array
    d: int = 2

    @property
    def n_records(self) -> int:
        """Records that are simulated."""
        return int(self.table.shape[2])

    def losses(self, U: Array) -> Array:
        """Of points (m, 2), shape (n_records, m)."""
        i, j = np.round(U * (len(self.table) - 1)).astype(int).T
        return np.asarray(self.table[i, j].T)

    def least(self) -> float:
        """The least mean loss of a cell."""
        return float(self.table.mean(2).min())


@cache
def _svc() -> Grid:
    from sklearn.metrics.pairwise import rbf_kernel
    from sklearn.svm import SVC

    from benchmarks.problems import SvcDigits

    problem, axis = SvcDigits(), np.linspace(0, 1, 25)
    table = np.empty((25, 25, problem.n_records))
    for j, y in enumerate(axis):  # one kernel matrix for all C: problem.losses computes it anew
        gamma = problem.decode(np.array([0.0, y]))["gamma"]
        K, P = (rbf_kernel(A, problem._X, gamma) for A in (problem._X, problem._V))
        for i, x in enumerate(axis):
            C = problem.decode(np.array([x, y]))["C"]
            found = SVC(C=C, kernel="precomputed").fit(K, problem._y).predict(P)
            table[i, j] = found != problem._s
    return Grid(table)


def _ridge(seed: int) -> Grid:
    """Kernel ridge on diabetes, squared error over four variances of the targets, at most 1."""
    from benchmarks.heavy_tails import ridge_diabetes

    tuning, axis = ridge_diabetes(seed), np.linspace(0, 1, 49)
    outputs = np.array([[tuning.at(np.array([x, y]))[:, 0] for y in axis] for x in axis])
    errors = (outputs - tuning.targets) ** 2 / (2.0 * tuning.spread) ** 2
    return Grid(np.minimum(errors, 1.0))


def instance(part: str, seed: int) -> Instance:
    """The instance of a part and seed; the classifier has one."""
    if part == "svc-2":
        return _svc()
    if part == "ridge-2":
        return _ridge(seed)
    return Bowl(int(part.removeprefix("bowl-")), seed)


PARTS = {f"bowl-{d}": 20 if d <= 4 else 10 for d in DS} | {"svc-2": 20, "ridge-2": 20}
"""Parts, and how many seeds of each."""


# Arms -------------------------------------------------------------------------------------------


def _space(d: int) -> Space:
    return Space({f"x{j:02d}": Float(0.0, 1.0) for j in range(d)})


def _plan(problem: Instance, level: float, config: GIBOConfig | None = None) -> Plan:
    """The plan of n mu = level: the same for all n."""
    config = config or GIBOConfig(mu=level / problem.n_records)
    return make_plan(config, _space(problem.d), problem.n_records)


def gibo(problem: Instance, level: float, seed: int, planning: int = 2) -> tuple[Array, int]:
    """DP-GIBO's recommendation (d,), and its number of trials."""
    config = GIBOConfig(mu=level / problem.n_records, planning=planning)
    plan, space = _plan(problem, level, config), _space(problem.d)
    algorithm = DPGIBO(config, space, seed=seed, plan=plan)
    rng = np.random.default_rng([seed, 1])
    while algorithm.phase[0] != FINAL:
        role, step = algorithm.phase
        points = np.array([algorithm.propose(slot).x for slot in range(algorithm.room)])
        trials = [f"{step}/{slot}" for slot in range(len(points))]
        Y = problem.losses(points)
        if role == START:
            for trial, x, y in zip(trials, points, Y.T, strict=True):
                query = algorithm.value_query(trial, role, step, x)
                assert query is not None
                algorithm.observe(_released(query, y[:, None], rng))
        else:
            for query in algorithm.step_queries(trials, list(points)):
                algorithm.observe(_released(query, Y, rng))
    return algorithm.recommendation(), plan.n_trials


def _released(query: Query, Y: Array, rng: np.random.Generator) -> Release:
    exact = query.statistic([Y])
    noise = gaussian_scale(query.sensitivity, query.mu) * rng.standard_normal(exact.shape)
    return Release(query.kind, query.key, tuple(exact + noise + query.offset), query.meta)


def means(problem: Instance, level: float, seed: int, arm: str) -> tuple[Array, int]:
    """What ``private_objective`` recommends with a sampler of Optuna, and the trials."""
    import optuna

    from privbo_plugins.algorithms.released_means import MeansConfig, ReleasedMeans
    from privbo_plugins.algorithms.released_means.plan import make_plan as make_means_plan

    most = _MOST_TRIALS if problem.d < MANY else _MOST_OF_MANY
    n_trials = min(_plan(problem, level).n_trials, most)
    if arm == "means-tpe":
        n_trials = min(n_trials, max(_MOST_OF_TPE // problem.d, _FEWEST_OF_TPE))
        sampler: Any = optuna.samplers.TPESampler(seed=seed)
    else:
        sampler = optuna.samplers.CmaEsSampler(seed=seed)
    config, space = MeansConfig(level / problem.n_records, n_trials=n_trials), _space(problem.d)
    plan = make_means_plan(config, space, problem.n_records)
    learner = ReleasedMeans(config, space, seed=seed, plan=plan)
    asked: Any = {name: optuna.distributions.FloatDistribution(0.0, 1.0) for name in space}
    study, rng = optuna.create_study(sampler=sampler), np.random.default_rng([seed, 2])
    for number in range(n_trials):
        trial = study.ask(asked)
        x = np.array([trial.params[name] for name in space])
        value = float(problem.losses(x[None]).mean() + plan.value_noise * rng.standard_normal())
        study.tell(trial, value)
        learner.observe(Release("value", str(number), (value,), {"x": x.tolist()}))
    return learner.recommendation(), n_trials


def _mean_of(problem: Instance, U: Array) -> Array:
    """Mean losses of points, a block at a time, shape (m,)."""
    blocks = np.array_split(U, max(1, len(U) // 2000))
    return np.concatenate([problem.losses(block).mean(0) for block in blocks])


def random_search(problem: Instance, seed: int) -> dict[str, dict[str, float]]:
    """Excess of both random arms by cell, all on one sequence of uniform points."""
    rng, space = np.random.default_rng([seed, 3]), problem.d
    n_trials = _plan(problem, LEVELS[-1]).n_trials
    gamma = geometric_gamma(n_trials)
    counts = {cell: int(rng.geometric(gamma)) for cell in CELLS}
    U = np.random.default_rng([seed, 4]).random((max(n_trials, *counts.values()), space))
    exact, least = _mean_of(problem, U), problem.least()
    found: dict[str, dict[str, float]] = {"random-argmin": {}, "random-selection": {}}
    for (n, mu), K in counts.items():
        scale = 2.0 / (n * bounded_range_from_gdp(mu))
        noisy = exact[:n_trials] - scale * rng.gumbel(size=n_trials)
        found["random-argmin"][_key(n, mu)] = float(exact[noisy.argmin()] - least)
        noisy = exact[:K] + rng.standard_normal(K) / (n * selection_mu(mu, n_trials, DELTA))
        found["random-selection"][_key(n, mu)] = float(exact[noisy.argmin()] - least)
    return found


def _key(n: int, mu: float) -> str:
    return f"{n},{mu:g}"


def run(task: Task) -> Row:
    """One seed of one part: the excess of every arm in every cell."""
    import optuna

    optuna.logging.set_verbosity(optuna.logging.ERROR)
    warnings.simplefilter("ignore")  # CmaEsSampler calls itself experimental
    part, own = task
    problem = instance(part, own["seed"])
    least = problem.least()
    excess: dict[str, dict[str, float]] = random_search(problem, own["seed"])
    trials = {arm: float(_plan(problem, LEVELS[-1]).n_trials) for arm in ARMS}
    for arm in SHIPPED:
        found = {}
        few = arm != "dp-gibo" and problem.d >= MANY
        for level in FEW_LEVELS if few else LEVELS:
            if arm == "dp-gibo":
                u, trials[arm] = gibo(problem, level, own["seed"])
            else:
                u, trials[arm] = means(problem, level, own["seed"], arm)
            found[level] = float(problem.losses(u[None]).mean()) - least
        excess[arm] = {
            _key(n, mu): found[round(n * mu)] for n, mu in CELLS if round(n * mu) in found
        }
    rounded = {a: {k: round(x, 6) for k, x in of.items()} for a, of in excess.items()}
    return {"part": part, **own, "trials": trials, "excess": rounded}


# Summary ----------------------------------------------------------------------------------------


def summarise(rows: list[Row]) -> list[dict[str, Any]]:
    """One entry a part, cell and arm: mean excess, and the paired difference to DP-GIBO."""
    return [
        _entry(of, n, mu, arm)
        for part in dict.fromkeys(row["part"] for row in rows)
        for of in [[row for row in rows if row["part"] == part]]
        for n, mu in CELLS
        for arm in ARMS
        if _key(n, mu) in of[0]["excess"][arm]
    ]


def _entry(rows: list[Row], n: int, mu: float, arm: str) -> dict[str, Any]:
    own, first = (
        np.array([row["excess"][a][_key(n, mu)] for row in rows]) for a in (arm, ARMS[0])
    )
    return {
        "part": rows[0]["part"],
        "d": int(rows[0]["part"].split("-")[1]),
        "n": n,
        "mu": mu,
        "arm": arm,
        "seeds": len(rows),
        "trials": rows[0]["trials"][arm],
        "excess": round(float(own.mean()), 6),
        "se": round(_error(own), 6),
        "difference": round(float((own - first).mean()), 6),
        "se_difference": round(_error(own - first), 6),
    }


def _error(x: Array) -> float:
    return float(x.std(ddof=1) / math.sqrt(len(x))) if len(x) > 1 else math.nan


def advice(summary: list[dict[str, Any]]) -> dict[int, dict[int, tuple[str, ...]]]:
    """Which offered methods are as good as the best of them, by d and n mu.

    A method is as good if its mean excess over all runs of that d, each problem counting
    alike, is at most ``AS_GOOD`` above the least, and on no problem more than five times that
    above it. The best comes first.
    """
    cells: dict[tuple[int, int], dict[str, dict[str, float]]] = defaultdict(dict)
    for e in summary:
        if e["arm"] in SHIPPED:
            of = cells[e["d"], round(e["n"] * e["mu"])].setdefault(e["arm"], {})
            of[e["part"]] = e["excess"]
    found: dict[int, dict[int, tuple[str, ...]]] = defaultdict(dict)
    for (d, level), arms in sorted(cells.items()):
        if set(arms) == set(SHIPPED):
            found[d][level] = _as_good(arms)
    return dict(found)


def _as_good(arms: dict[str, dict[str, float]]) -> tuple[str, ...]:
    means = {arm: float(np.mean(list(of.values()))) for arm, of in arms.items()}
    best = min(means, key=lambda arm: means[arm])
    worst = {arm: max(of[part] - arms[best][part] for part in of) for arm, of in arms.items()}
    good = [
        arm for arm in means if means[arm] <= means[best] + AS_GOOD and worst[arm] <= 5 * AS_GOOD
    ]
    return tuple(sorted(good, key=lambda arm: means[arm]))


def written_table(found: dict[int, dict[int, tuple[str, ...]]]) -> str:
    """The source of the module that ships :func:`advice`."""
    lines = [
        '"""Methods as good as the best measured, the best first, by d and n mu.',
        "",
        "Written by ``python -m benchmarks.map --write-table``.",
        '"""',
        "",
        "AS_GOOD: dict[int, dict[int, tuple[str, ...]]] = {",
    ]
    for d, levels in found.items():
        lines.append(f"    {d}: {{")
        for level, arms in levels.items():
            told = ", ".join(f'"{arm}"' for arm in arms)
            lines.append(f"        {level}: ({told}{',' * (len(arms) == 1)}),")
        lines.append("    },")
    return "\n".join([*lines, "}", ""])


def tasks(part: str) -> list[Task]:
    """The runs of a part."""
    return [(part, {"seed": 500 + s}) for s in range(PARTS[part])]


def table(summary: list[dict[str, Any]]) -> str:
    """Mean excess by part and n mu, with standard errors; the smallest n of each n mu."""
    lines = [f"{'part':<9}{'n mu':>8}" + "".join(f"{arm:>20}" for arm in ARMS)]
    cells: dict[tuple[str, int], dict[str, dict[str, Any]]] = defaultdict(dict)
    for e in summary:
        cells[e["part"], round(e["n"] * e["mu"])].setdefault(e["arm"], e)
    for (part, level), arms in sorted(cells.items()):
        told = "".join(_told(arms.get(arm)) for arm in ARMS)
        lines.append(f"{part:<9}{level:>8}{told}")
    return "\n".join(lines)


def _told(entry: dict[str, Any] | None) -> str:
    known = "" if entry is None else f"{entry['excess']:.4f} +- {entry['se']:.4f}"
    return f"{known:>20}"


def picture(summary: list[dict[str, Any]], path: Path) -> None:
    """Mean excess over n mu, a panel a part; bars are standard errors."""
    import matplotlib as mpl

    mpl.use("Agg")
    import matplotlib.pyplot as plt

    parts = list(dict.fromkeys(e["part"] for e in summary))
    columns = min(3, len(parts))
    rows = math.ceil(len(parts) / columns)
    figure, axes = plt.subplots(rows, columns, figsize=(5 * columns, 4 * rows), squeeze=False)
    for axis, part in zip(axes.flat, parts, strict=False):
        for arm in ARMS:
            of = {
                round(e["n"] * e["mu"]): e for e in summary if (e["part"], e["arm"]) == (part, arm)
            }
            levels = sorted(of)
            axis.errorbar(
                levels,
                [max(of[level]["excess"], 1e-5) for level in levels],
                [of[level]["se"] for level in levels],
                label=arm,
                capsize=2,
            )
        axis.set(xscale="log", yscale="log", title=part, xlabel="n mu", ylim=(1e-5, 1.0))
    for axis in axes.flat[len(parts) :]:
        axis.axis("off")
    for row in axes:
        row[0].set_ylabel("excess true validation loss")
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
    parser.add_argument("--write-table", action="store_true")
    given = parser.parse_args()
    rows: list[Row] = []
    for part in given.only:
        rows += carried_out(tasks(part), run, jobs=1, kept=given.kept)
        print(table(summarise([row for row in rows if row["part"] == part])), flush=True)
    given.out.mkdir(parents=True, exist_ok=True)
    summary = summarise(rows)
    record = {"python": platform.python_version(), "summary": summary, "runs": rows}
    (given.out / "map.json").write_text(json.dumps(record, indent=1))
    picture(summary, given.out / "map.png")
    if given.write_table:
        TABLE.write_text(written_table(advice(summary)))


if __name__ == "__main__":
    main()
