"""Which method for d parameters, n records and privacy mu: a map of measurements.

Arms, each with the same guarantee for the validation records, n of them, losses in [0, 1]:

- ``dp-gibo``: ``DPGIBOSampler`` with its defaults.
- ``means-tpe``, ``means-cma``, ``means-gp``: ``private_objective`` with TPESampler, CmaEsSampler
  or GPSampler, and its ``recommend``. As many trials as the first arm plans, but at most 300, and
  with GPSampler 75; TPESampler suggests 2400 numbers at most (75 trials where that were fewer):
  its time grows with both. GPSampler needs torch and is not run without; it is measured at two
  values of n mu, with at most 2 parameters and fewer seeds.
- ``random-argmin``: as many uniform points as the first arm plans, of which one private argmin is
  released (:mod:`benchmarks.baselines.private_selection`). Neither it nor the next two show
  anything of a trial, and none of them is offered by the package.
- ``random-selection``: uniform points in a random, geometric number, whose mean is the first arm's
  number of trials; each has a noisy value, and only the best is released (Papernot and Steinke
  2022, Theorem 2). It gets the epsilon of mu-GDP at delta = 1e-5.
- ``dp-hypo``: the same, but points follow a Gaussian process of earlier noisy values, within
  bounds whose cost is charged (:mod:`benchmarks.baselines.dp_hypo`). The same epsilon.

What is measured is the excess of the true mean loss at what is recommended over the least one,
found without privacy (L-BFGS-B from many starts, or all points of a grid). Problems are those of
:mod:`benchmarks.map_problems`.

From 32 parameters on, ``private_objective`` is measured with 100 trials at most and at three
values of n mu, and ``dp-hypo`` is not; with 8 and 15, real problems have seven values of n mu.

The noise of the arms that the package offers is a function of n mu alone, and so is DP-GIBO's
plan. So a problem's records stand for a population of which n have been drawn in its own
proportions, and cells with one n mu are one run. The others know n and mu apart. Neither host nor
vault stands around these runs and numpy draws their noise: they protect nothing. Seeds are
paired: all arms of a seed tune the same instance.

    python -m benchmarks.map [--only bowl-1 ...] [--arms dp-gibo ...] [--kept runs.jsonl]
        [--write-table]

Takes about an hour and a half on one core, and some minutes more for tables of real problems.
Runs of parts and arms that are not asked for stay in the JSON. ``--kept`` keeps finished runs,
which are not made again; ``--write-table`` also writes the table that ``Plan.advice`` reads.
"""

from __future__ import annotations

import argparse
import json
import math
import platform
import warnings
from collections import defaultdict
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from benchmarks.baselines import dp_hypo
from benchmarks.baselines.private_selection import (
    DELTA,
    bounded_range_from_gdp,
    geometric_gamma,
    selection_mu,
)
from benchmarks.map_problems import PARTS, Instance, instance
from benchmarks.simulation import followed
from benchmarks.tasks import Row, Task, carried_out
from privbo_plugins.algorithms.dp_gibo import DPGIBO, GIBOConfig, Plan, make_plan
from privbo_plugins.algorithms.protocols import Release
from privbo_plugins.privacy.accountant import gdp_epsilon
from privbo_plugins.spaces import Float, Space

Array = NDArray[np.float64]

RESULTS = Path(__file__).parent / "results"
TABLE = Path(__file__).parents[1] / "privbo_plugins" / "algorithms" / "dp_gibo" / "measured.json"

NS = (300, 1000, 10_000, 100_000)
MUS = (0.1, 0.3, 1.0, 3.0)
CELLS = tuple((n, mu) for n in NS for mu in MUS)
LEVELS = tuple(sorted({round(n * mu) for n, mu in CELLS}))
"""Values of n mu."""

FEW_LEVELS = (100, 3000, 100_000)
MANY = 32
"""Parameters from which on ``private_objective`` is measured at the few levels only."""

REAL_LEVELS = (30, 90, 300, 900, 3000, 100_000, 300_000)
"""Where it is measured on real problems with eight parameters and more."""

GP_LEVELS = (90, 3000)
GP_SEEDS = 3
GP_MOST = 2
"""What of means-gp is measured: values of n mu, seeds, and the most parameters."""

SHIPPED = ("dp-gibo", "means-tpe", "means-cma", "means-gp")
"""Arms that know n mu only, and that the package offers."""

ARMS = (*SHIPPED, "random-argmin", "random-selection", "dp-hypo")

AS_GOOD = 0.001
"""Excess, in widths of the range of losses, by which two methods count as equally good."""

_MOST_TRIALS = 300
_MOST_OF_MANY = 100
_MOST_OF_GP = 75
_MOST_OF_TPE = 2400
_FEWEST_OF_TPE = 75


# Arms -------------------------------------------------------------------------------------------


def _space(d: int) -> Space:
    return Space({f"x{j:02d}": Float(0.0, 1.0) for j in range(d)})


def _plan(problem: Instance, level: float, config: GIBOConfig | None = None) -> Plan:
    """The plan of n mu = level: the same for all n."""
    config = config or GIBOConfig(mu=level / problem.n_records)
    return make_plan(config, _space(problem.d), problem.n_records)


def gibo(problem: Instance, level: float, seed: int) -> tuple[Array, int]:
    """DP-GIBO's recommendation (d,), and its number of trials."""
    config = GIBOConfig(mu=level / problem.n_records)
    plan, space = _plan(problem, level, config), _space(problem.d)
    algorithm = DPGIBO(config, space, seed=seed, plan=plan)
    return followed(algorithm, problem.losses, seed), plan.n_trials


def means(problem: Instance, level: float, seed: int, arm: str) -> tuple[Array, int]:
    """What ``private_objective`` recommends with a sampler of Optuna, and the trials."""
    import optuna

    from privbo_plugins.algorithms.released_means import MeansConfig, ReleasedMeans
    from privbo_plugins.algorithms.released_means.plan import make_plan as make_means_plan

    most = _MOST_TRIALS if problem.d < MANY else _MOST_OF_MANY
    n_trials = min(_plan(problem, level).n_trials, most)
    if arm == "means-gp":
        n_trials = min(n_trials, _MOST_OF_GP)
        sampler: Any = optuna.samplers.GPSampler(seed=seed)
    elif arm == "means-tpe":
        n_trials = min(n_trials, max(_MOST_OF_TPE // problem.d, _FEWEST_OF_TPE))
        sampler = optuna.samplers.TPESampler(seed=seed)
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


@cache
def _known(part: str, seed: int) -> tuple[Instance, float]:
    """An instance and its least mean loss."""
    problem = instance(part, seed)
    return problem, problem.least()


def _counts(rng: np.random.Generator, n_trials: int) -> dict[tuple[int, float], int]:
    """Geometric numbers of candidates by cell."""
    gamma = geometric_gamma(n_trials)
    return {cell: int(rng.geometric(gamma)) for cell in CELLS}


@cache
def random_search(part: str, seed: int) -> dict[str, dict[str, float]]:
    """Excess of both random arms by cell, all on one sequence of uniform points."""
    problem, least = _known(part, seed)
    rng, n_trials = np.random.default_rng([seed, 3]), _plan(problem, LEVELS[-1]).n_trials
    counts = _counts(rng, n_trials)
    U = np.random.default_rng([seed, 7]).random((max(n_trials, *counts.values()), problem.d))
    exact = _mean_of(problem, U)
    found: dict[str, dict[str, float]] = {"random-argmin": {}, "random-selection": {}}
    for (n, mu), K in counts.items():
        scale = 2.0 / (n * bounded_range_from_gdp(mu))
        noisy = exact[:n_trials] - scale * rng.gumbel(size=n_trials)
        found["random-argmin"][_key(n, mu)] = float(exact[noisy.argmin()] - least)
        noisy = exact[:K] + rng.standard_normal(K) / (n * selection_mu(mu, n_trials, DELTA))
        found["random-selection"][_key(n, mu)] = float(exact[noisy.argmin()] - least)
    return found


def hypo(part: str, seed: int) -> dict[str, float]:
    """Excess of DP-HyPO by cell; numbers of candidates as in :func:`random_search`."""
    problem, least = _known(part, seed)
    n_trials = _plan(problem, LEVELS[-1]).n_trials
    found = {}
    for (n, mu), K in _counts(np.random.default_rng([seed, 3]), n_trials).items():
        rng = np.random.default_rng([seed, 5, n, round(10 * mu)])
        bounds = dp_hypo.density_bounds(gdp_epsilon(mu, DELTA))
        scale = 1.0 / (n * selection_mu(mu, n_trials, DELTA, *bounds))
        u = dp_hypo.search(lambda U: _mean_of(problem, U), problem.d, K, scale, bounds, rng)
        found[_key(n, mu)] = float(_mean_of(problem, u[None])[0] - least)
    return found


def _key(n: int, mu: float) -> str:
    return f"{n},{mu:g}"


def levels_of(arm: str, part: str) -> tuple[int, ...]:
    """Values of n mu at which an arm is measured."""
    d = d_of(part)
    if arm == "means-gp":
        return GP_LEVELS
    if d >= MANY and arm in ("means-tpe", "means-cma"):
        return FEW_LEVELS
    return REAL_LEVELS if part.startswith("digits") and arm.startswith("means") else LEVELS


def _by_level(part: str, seed: int, arm: str) -> tuple[dict[str, float], int]:
    """Excess by cell of an arm that knows n mu alone, and its number of trials."""
    problem, least = _known(part, seed)
    found, n_trials = {}, 0
    for level in levels_of(arm, part):
        u, n_trials = (
            gibo(problem, level, seed) if arm == "dp-gibo" else means(problem, level, seed, arm)
        )
        found[level] = float(problem.losses(u[None]).mean()) - least
    excess = {_key(n, mu): found[round(n * mu)] for n, mu in CELLS if round(n * mu) in found}
    return excess, n_trials


def run(task: Task) -> Row:
    """One arm and seed of a part: the excess in every cell."""
    import optuna

    optuna.logging.set_verbosity(optuna.logging.ERROR)
    warnings.simplefilter("ignore")  # CmaEsSampler calls itself experimental
    part, own = task
    arm, seed = own["arm"], own["seed"]
    if arm in SHIPPED:
        excess, n_trials = _by_level(part, seed, arm)
    else:
        excess = hypo(part, seed) if arm == "dp-hypo" else random_search(part, seed)[arm]
        n_trials = _plan(_known(part, seed)[0], LEVELS[-1]).n_trials
    rounded = {key: round(x, 6) for key, x in excess.items()}
    return {"part": part, "seed": seed, "arm": arm, "trials": n_trials, "excess": rounded}


def merged(kept: list[Row], rows: list[Row]) -> list[Row]:
    """Runs by part and seed with all their arms, of which new rows replace old ones."""
    found = {
        (row["part"], row["seed"]): {
            **row, "trials": dict(row["trials"]), "excess": dict(row["excess"])
        }
        for row in kept
    }  # fmt: skip
    for row in rows:
        key = {"part": row["part"], "seed": row["seed"]}
        own = found.setdefault((row["part"], row["seed"]), key | {"trials": {}, "excess": {}})
        own["trials"][row["arm"]] = row["trials"]
        own["excess"][row["arm"]] = row["excess"]
    order = list(PARTS)
    return sorted(found.values(), key=lambda row: (order.index(row["part"]), row["seed"]))


# Summary ----------------------------------------------------------------------------------------


def summarise(rows: list[Row]) -> list[dict[str, Any]]:
    """One entry a part, cell and arm: mean excess, and the paired difference to DP-GIBO."""
    return [
        _entry(of, n, mu, arm)
        for part in dict.fromkeys(row["part"] for row in rows)
        for of in [[row for row in rows if row["part"] == part]]
        for n, mu in CELLS
        for arm in ARMS
        if any(_key(n, mu) in row["excess"].get(arm, {}) for row in of)
    ]


def _entry(rows: list[Row], n: int, mu: float, arm: str) -> dict[str, Any]:
    rows = [row for row in rows if _key(n, mu) in row["excess"].get(arm, {})]
    own, first = (
        np.array([row["excess"][a][_key(n, mu)] for row in rows]) for a in (arm, ARMS[0])
    )
    return {
        "part": rows[0]["part"],
        "d": d_of(rows[0]["part"]),
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
    above it. The best comes first. A method is left out where it was not measured on all
    problems. Means-gp has few seeds: its mean is that of DP-GIBO plus the paired difference, and
    it comes last, so that luck takes nobody's place.
    """
    cells: dict[tuple[int, int], dict[str, dict[str, float]]] = defaultdict(dict)
    for e in summary:
        if e["arm"] in SHIPPED:
            of = cells[e["d"], round(e["n"] * e["mu"])]
            own = e["excess"]
            if e["arm"] != ARMS[0]:
                own = of[ARMS[0]][e["part"]] + e["difference"]
            of.setdefault(e["arm"], {})[e["part"]] = own
    found: dict[int, dict[int, tuple[str, ...]]] = defaultdict(dict)
    for (d, level), arms in sorted(cells.items()):
        everywhere = {arm: of for arm, of in arms.items() if set(of) == parts_of(d)}
        if set(everywhere) >= set(SHIPPED) - {"means-gp"}:
            found[d][level] = _as_good(everywhere)
    return dict(found)


def d_of(part: str) -> int:
    """Number of parameters."""
    return int(part.split("-")[1])


def parts_of(d: int) -> set[str]:
    """The problems with d parameters."""
    return {part for part in PARTS if d_of(part) == d}


def _as_good(arms: dict[str, dict[str, float]]) -> tuple[str, ...]:
    means = {arm: float(np.mean(list(of.values()))) for arm, of in arms.items()}
    best = min((arm for arm in means if arm != "means-gp"), key=lambda arm: means[arm])
    worst = {arm: max(of[part] - arms[best][part] for part in of) for arm, of in arms.items()}
    good = [
        arm for arm in means if means[arm] <= means[best] + AS_GOOD and worst[arm] <= 5 * AS_GOOD
    ]
    return tuple(sorted(good, key=lambda arm: (arm == "means-gp", means[arm])))


def written_table(found: dict[int, dict[int, tuple[str, ...]]]) -> str:
    """The file that ships :func:`advice`: a line for each d and n mu."""
    levels = {
        d: ",\n".join(f'  "{level}": {json.dumps(arms)}' for level, arms in of.items())
        for d, of in found.items()
    }
    return "{\n" + ",\n".join(f' "{d}": {{\n{of}\n }}' for d, of in levels.items()) + "\n}\n"


def tasks(part: str, arm: str) -> list[Task]:
    """The runs of an arm on a part."""
    seeds = PARTS[part]
    if arm == "dp-hypo" and d_of(part) >= MANY:
        seeds = 0
    if arm == "means-gp":
        seeds = GP_SEEDS if d_of(part) <= GP_MOST else 0
    return [(part, {"seed": 500 + s, "arm": arm}) for s in range(seeds)]


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
    """Runs what is asked for, keeps the rest, and writes JSON and a picture."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n", 1)[0])
    parser.add_argument("--only", nargs="+", default=list(PARTS), choices=list(PARTS))
    parser.add_argument("--arms", nargs="+", default=list(ARMS), choices=list(ARMS))
    parser.add_argument("--kept", type=Path)
    parser.add_argument("--out", type=Path, default=RESULTS)
    parser.add_argument("--write-table", action="store_true")
    given = parser.parse_args()
    if "means-gp" in given.arms and find_spec("torch") is None:
        given.arms.remove("means-gp")
        print("means-gp: not run: torch is not installed. Its measured cells are kept.")
    rows: list[Row] = []
    for part in given.only:
        todo = [task for arm in given.arms for task in tasks(part, arm)]
        rows += carried_out(todo, run, jobs=1, kept=given.kept)
    given.out.mkdir(parents=True, exist_ok=True)
    path = given.out / "map.json"
    kept = json.loads(path.read_text())["runs"] if path.exists() else []
    runs = merged(kept, rows)
    summary = summarise(runs)
    print(table(summary))
    record = {"python": platform.python_version(), "summary": summary, "runs": runs}
    path.write_text(json.dumps(record, indent=1))
    picture(summary, given.out / "map.png")
    if given.write_table:
        TABLE.write_text(written_table(advice(summary)))


if __name__ == "__main__":
    main()
