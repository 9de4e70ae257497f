"""What does outsourcing cost? PO-GP-UCB beside GP-UCB on the true rows and beside random rows.

Every arm of a problem is run on the same seeds: function, start-up row and the noise's source are
the same, so differences are paired; they are shown with their standard errors over the runs. A
run's regret is that of the best row asked so far, in standard deviations of the outcome. Parts:

- ``thresholds``: the largest r of the published condition on the paper's grid;
- ``readings``: which reading of the paper's length-scale its regrets fit;
- ``paper``: the published transformation (which protects nothing) with the paper's settings, at
  all (epsilon, r) of its tables 1 to 3, beside the figures printed there;
- ``sound``: the sound mechanism on the same functions, for each way of taking its noise into
  account with known hyperparameters and the published width, and as shipped by default;
- ``oracle``: on the grid at l = 4.42, the default beside all of a row's variance in its bound, and
  beside an oracle that knows the rows' law and the kernel of f;
- ``nu``: the default for other neighbouring distances nu, up to the whole table's diameter;
- ``choices``: the default with one setting changed at a time;
- ``people``: the default on 20190 person-years of the RAND Health Insurance Experiment (of
  statsmodels), a row being one person's year;
- ``scale``: seconds and memory of a suggestion, and of a release, for up to 10^6 rows; the
  processor's seconds, so that other work on the machine does not count.

The paper draws one function and 50 starts; here each run has a function, a start and a secret
matrix of its own. The paper says l = 1.25 and that inputs are scaled to norm 25, not which comes
first. Both are run: l = 1.25 after scaling, and l = 4.42, which is 1.25 on a grid of width 10
before it. ``readings`` holds others.

Noise is simulated from seeds, but for the releases that are timed.

    python -m benchmarks.outsourced [--parts paper sound ...] [--jobs 2] [--runs 20]
"""

from __future__ import annotations

import argparse
import json
import math
import platform
import resource
import time
import warnings
from collections.abc import Callable, Iterable, Mapping
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from benchmarks.outsourced_oracle import Oracle
from benchmarks.outsourced_problems import (
    OUTCOME_VARIANCE,
    RADIUS,
    OutsourcedProblem,
    available,
    axis,
    grid,
    people,
    sampled,
)
from benchmarks.tasks import carried_out
from privbo_plugins.algorithms.po_gp_ucb import (
    POGPUCB,
    ReleasedTable,
    RowsConfig,
    row_space,
    rows_config,
)
from privbo_plugins.algorithms.po_gp_ucb.gaussian import noise_scale
from privbo_plugins.algorithms.po_gp_ucb.projection import largest_r, smallest_singular_value
from privbo_plugins.errors import PrivacyWarning
from privbo_plugins.privacy.accountant import gdp_mu
from privbo_plugins.privacy.noise import InsecureNoise
from privbo_plugins.sessions.rows import Curator

Array = NDArray[np.float64]
Row = dict[str, Any]

RESULTS = Path(__file__).parent / "results"

PRINTED: dict[float, dict[int, float]] = {
    1.1: {3: 0.073, 6: 0.038, 8: 0.018, 10: 0.014, 15: 0.118, 20: 0.137},
    1.3: {3: 0.091, 9: 0.009, 12: 0.019, 15: 0.008, 20: 0.127, 30: 0.134},
    1.5: {5: 0.05, 10: 0.021, 15: 0.003, 20: 0.002, 30: 0.094, 50: 0.142},
}
"""The paper's tables 1 to 3: ln epsilon to r to its S50."""

PRINTED_LARGEST = {1.1: 10, 1.3: 15, 1.5: 20}
"""ln epsilon to the largest r that the paper says its condition allows."""

PRINTED_NON_PRIVATE = 0.014 - 0.011
"""GP-UCB on the true rows, from the paper's difference to r = 10."""

DELTA = 1e-5
PEOPLE_DELTA = 1e-6
"""Below 1/n, and a tenth of that."""

WIDTH = float(np.ptp(axis()))
"""Of the scaled grid."""

STEPS = len(axis()) - 1
"""Of the grid, on an axis."""

SCALES = (1.25 * WIDTH / 10, 1.25)
"""The length-scale before and after scaling, in scaled units."""

T = 50
SHOWN = (1, 2, 5, 10, 15, 20, 25, 30, 40, 50, 60, 75, 100)
"""Numbers of asks after which regrets are kept."""

RUNS = {
    "paper": 50, "sound": 50, "oracle": 100, "readings": 20, "nu": 20, "choices": 20, "people": 20
}  # fmt: skip
"""Runs of each arm unless told otherwise; the other parts have one."""

RUNS_FITTED = 20
"""At most so many in ``sound`` where hyperparameters are fitted, which takes longer."""

Arms = Mapping[str, tuple[Row | None, Row | None]]
"""An arm's release and model; None for the true rows, and for rows drawn at random."""


def known(lengthscale: float, **more: Any) -> Row:
    """The modeler as published: hyperparameters given, published width."""
    return {
        "lengthscale": lengthscale, "signal_variance": 1.0, "noise_variance": OUTCOME_VARIANCE,
        "mean": 0.0, "beta_scale": 1.0, **more,
    }  # fmt: skip


# A run ----------------------------------------------------------------------------------------


@lru_cache(4)
def problem(name: str, seed: int) -> OutsourcedProblem:
    """A problem by name, "grid L" for a length-scale L or "people OUTCOME"."""
    kind, what = name.split()
    return people(what) if kind == "people" else sampled(float(what), seed)


def released(made: OutsourcedProblem, seed: int, settings: Mapping[str, Any]) -> ReleasedTable:
    """The curator's table, with noise from a seed."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", PrivacyWarning)
        curator = Curator(
            made.X, bounds=made.bounds, norm_bound=made.norm_bound, noise=InsecureNoise(seed),
            **settings,
        )  # fmt: skip
        return curator.release()


def asked(made: OutsourcedProblem, config: RowsConfig, seed: int, steps: int) -> list[int]:
    """The rows that a model asks for."""
    model = POGPUCB(config, row_space(len(made.y)), seed=seed)
    rows: list[int] = []
    for t in range(steps):
        evaluation = model.ask(t)
        assert evaluation is not None
        rows.append(model.row(evaluation.x))
        model.tell(evaluation, float(made.y[rows[-1]]))
    return rows


def asked_by_oracle(
    made: OutsourcedProblem, release: ReleasedTable, lengthscale: float, seed: int, steps: int
) -> list[int]:
    """The rows that one asks for who knows all but where the rows lie; the first as the model."""
    oracle = Oracle(release.Z, release.manifest.noise_sd, lengthscale, seed)
    rows = asked(made, rows_config(release), seed, 1)
    while len(rows) < steps:
        oracle.tell(rows[-1], float(made.y[rows[-1]]))
        rows.append(oracle.ask())
    return rows


def run(
    name: str, arm: str, seed: int, table: Row | None, model: Row | None, steps: int, group: str
) -> Row:
    """One arm on one problem: regret after some numbers of asks."""
    made = problem(name, seed)
    facts: Row = {}
    if model is None:
        rows = np.random.default_rng([seed, 5]).permutation(len(made.y))[:steps].tolist()
    elif table is None:
        rows = asked(made, RowsConfig(made.scaled, **model), seed, steps)
    else:
        release = released(made, seed, table)
        facts = _facts(release)
        if "oracle" in model:
            rows = asked_by_oracle(made, release, model["oracle"], seed, steps)
        else:
            rows = asked(made, rows_config(release, **model), seed, steps)
    lost = made.lost(rows)
    return {
        "problem": name, "arm": arm, "group": group, "seed": seed, "facts": facts,
        "lost": [round(float(lost[t - 1]), 5) for t in SHOWN if t <= steps],
    }  # fmt: skip


def _facts(release: ReleasedTable) -> Row:
    manifest = release.manifest
    raised = manifest.projection.get("singular_values_raised")
    return {"noise_sd": round(manifest.noise_sd, 4)} if raised is None else {"raised": raised}


def carry_out(task: tuple[str, Row]) -> Row:
    """One task of a part."""
    part, arguments = task
    return RUN[part](**arguments)


def _arms(name: str, arms: Arms, runs: int, steps: int = T) -> Iterable[Row]:
    """By seed first: a worker remembers the problem. An arm's group is what precedes its colon."""
    for seed in range(runs):
        for arm, (table, model) in arms.items():
            yield {
                "name": name, "arm": arm, "seed": seed, "table": table, "model": model,
                "steps": steps, "group": arm.partition(":")[0],
            }  # fmt: skip


# Parts of the paper ---------------------------------------------------------------------------


def thresholds(_runs: int) -> Iterable[Row]:
    """The paper's three epsilons."""
    yield from ({"log_epsilon": log} for log in PRINTED_LARGEST)


def run_threshold(log_epsilon: float) -> Row:
    """The published condition on the grid."""
    least = smallest_singular_value(grid())
    largest = largest_r(least, math.exp(log_epsilon), DELTA)
    return {
        "ln epsilon": log_epsilon, "sigma_min": round(least, 3), "largest r": largest,
        "largest r in the paper's table": max(r for r in PRINTED[log_epsilon] if r <= largest),
        "printed": PRINTED_LARGEST[log_epsilon],
    }  # fmt: skip


def projected(log_epsilon: float, r: int) -> Row:
    """The published transformation."""
    return {
        "mechanism": "projection", "epsilon": math.exp(log_epsilon), "delta": DELTA, "r": r
    }  # fmt: skip


def readings(runs: int) -> Iterable[Row]:
    """L = 1.25 on grids of several widths before scaling."""
    for width in (float(STEPS), WIDTH, 10.0, 5 * math.sqrt(2), 5.0, 1.0):
        scale = 1.25 * WIDTH / width
        arms: Arms = {
            "non-private": (None, known(scale)),
            "ln eps=1.1, r=3": (projected(1.1, 3), known(scale)),
            "ln eps=1.1, r=10": (projected(1.1, 10), known(scale)),
            "ln eps=1.1, r=20": (projected(1.1, 20), known(scale)),
        }
        yield from _arms(f"grid {scale:.4f}", arms, runs)


def paper(runs: int) -> Iterable[Row]:
    """All (epsilon, r) of tables 1 to 3."""
    for scale in SCALES:
        arms: dict[str, tuple[Row | None, Row | None]] = {
            "non-private": (None, known(scale)), "random": (None, None),
        }  # fmt: skip
        for log, regrets in PRINTED.items():
            for r in regrets:
                arms[f"ln eps={log}: r={r}"] = (projected(log, r), known(scale))
        yield from _arms(f"grid {scale:.4f}", arms, runs)


# Parts of the sound mechanism -----------------------------------------------------------------


def noised(epsilon: float, nu: float | None = 1.0, delta: float = DELTA) -> Row:
    """The sound release."""
    return {"epsilon": epsilon, "delta": delta, "neighbor_distance": nu}


def sound(runs: int) -> Iterable[Row]:
    """Epsilons and corrections, nu = 1."""
    for scale in SCALES:
        arms: dict[str, tuple[Row | None, Row | None]] = {
            "random": (None, None),
            "non-private, published": (None, known(scale)),
            "non-private, default": (None, {}),
        }
        for epsilon in (1.0, 2.0, 3.0, 5.0, 10.0):
            table = noised(epsilon)
            for correction in ("none", "kernel", "posterior"):
                model = known(scale, correction=correction)
                arms[f"eps={epsilon:g}: {correction}"] = (table, model)
            arms[f"eps={epsilon:g}: default"] = (table, {})
        fitted = [arm for arm, (_, model) in arms.items() if model == {}]
        for arguments in _arms(f"grid {scale:.4f}", arms, runs):
            if arguments["arm"] not in fitted or arguments["seed"] < RUNS_FITTED:
                yield arguments


def oracle(runs: int) -> Iterable[Row]:
    """What noise costs, and the least that it can cost."""
    arms: dict[str, tuple[Row | None, Row | None]] = {
        "random": (None, None), "non-private, default": (None, {}),
    }  # fmt: skip
    for epsilon in (2.0, 5.0):
        arms[f"eps={epsilon:g}: posterior"] = (noised(epsilon), {"correction": "posterior"})
        arms[f"eps={epsilon:g}: default"] = (noised(epsilon), {})
        arms[f"eps={epsilon:g}: oracle"] = (noised(epsilon), {"oracle": SCALES[0]})
    yield from _arms(f"grid {SCALES[0]:.4f}", arms, runs)


def nu(runs: int) -> Iterable[Row]:
    """Neighbouring distances at epsilon = 3; None protects a row whatever it is changed to."""
    arms: dict[str, tuple[Row | None, Row | None]] = {
        "random": (None, None), "non-private, default": (None, {}),
    }  # fmt: skip
    for distance in (0.5, 1.0, 2.5, 5.0, 10.0, None):
        arms[f"nu={2 * RADIUS if distance is None else distance:g}"] = (noised(3.0, distance), {})
    yield from _arms(f"grid {SCALES[0]:.4f}", arms, runs)


def choices(runs: int) -> Iterable[Row]:
    """The default with one setting changed, in settings where it beats random rows."""
    changed: dict[str, Row] = {
        "default": {}, "beta_scale=0.25": {"beta_scale": 0.25},
        "beta_scale=1": {"beta_scale": 1.0}, "kernel": {"correction": "kernel"},
        "none": {"correction": "none"}, "n_startup=5": {"n_startup": 5},
    }  # fmt: skip
    for name, table in (
        (f"grid {SCALES[0]:.4f}", noised(3.0)),
        (f"grid {SCALES[0]:.4f}", noised(10.0)),
        (f"grid {SCALES[1]:.4f}", noised(10.0)),
        ("people expected", noised(10.0, 1.0, PEOPLE_DELTA)),
    ):
        arms = {f"eps={table['epsilon']:g}: {arm}": (table, m) for arm, m in changed.items()}
        if available() or not name.startswith("people"):
            yield from _arms(name, arms, runs)


def people_part(runs: int) -> Iterable[Row]:
    """Both outcomes; nu = 1 is one column's full range, None the whole row."""
    if not available():
        return
    common: Arms = {"random": (None, None), "non-private, default": (None, {})}
    private: Arms = {
        f"nu={'row' if distance is None else 'column'}: eps={epsilon:g}": (
            noised(epsilon, distance, PEOPLE_DELTA), {}
        )
        for distance in (1.0, None)
        for epsilon in (1.0, 3.0, 10.0)
    }  # fmt: skip
    yield from _arms("people expected", {**common, **private}, runs, 100)
    one = "nu=column: eps=10"
    yield from _arms("people visits", {**common, one: private[one]}, runs, 100)


# Scale ----------------------------------------------------------------------------------------


def scale(_runs: int) -> Iterable[Row]:
    """Growing tables, each in a process of its own."""
    for what in ("suggestion", "release"):
        yield from ({"what": what, "n": n} for n in (10**4, 10**5, 10**6))


def run_scale(what: str, n: int) -> Row:
    """Seconds of the processor and memory, for random rows of eight columns."""
    rows = np.random.default_rng(0).standard_normal((n, 8))
    before = peak_mb()
    seconds = _suggestions(rows) if what == "suggestion" else _release(rows)
    return {
        "what": what, "n": n, "seconds": seconds, "table_mb": round(rows.nbytes / 1e6, 1),
        "beyond_table_mb": round(peak_mb() - before, 1),
    }  # fmt: skip


def peak_mb() -> float:
    """Most memory of this process so far, in 10^6 bytes."""
    status = Path("/proc/self/status")
    if status.exists():
        (line,) = [line for line in status.read_text().splitlines() if "VmHWM" in line]
        return float(line.split()[1]) * 1024 / 1e6
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024 / 1e6


def _suggestions(Z: Array) -> dict[str, float]:
    """Median seconds of a suggestion, hyperparameters given or fitted."""
    models = {"given": known(1.0, noise_variance=0.01), "fitted": {}}
    return {
        f"t={t}, {how}": round(
            float(
                np.median([_suggestion(Z, model, t, i) for i in range(max(1, 10**5 // len(Z)))])
            ),
            4,
        )
        for t in (10, 50)
        for how, model in models.items()
    }


def _suggestion(Z: Array, settings: Row, t: int, repeat: int) -> float:
    """Seconds of the suggestion after t outcomes."""
    model = POGPUCB(RowsConfig(Z, 1.0, n_startup=t, **settings), row_space(len(Z)), seed=repeat)
    for key in range(t):
        evaluation = model.ask(key)
        assert evaluation is not None
        model.tell(evaluation, float(Z[model.row(evaluation.x), 0]))
    started = time.process_time()
    model.ask(t)
    return time.process_time() - started


def _release(X: Array) -> dict[str, float]:
    """Seconds of a release with the operating system's entropy."""
    curator = Curator(X, epsilon=3.0, delta=1e-7, neighbor_distance=1.0)
    started = time.process_time()
    curator.release()
    return {"release": round(time.process_time() - started, 3)}


def exponents(rows: list[Row]) -> Row:
    """Slopes of ln seconds over ln n: 1 is linear."""
    found: Row = {}
    for what in ("suggestion", "release"):
        lines = [row for row in rows if row["what"] == what]
        sizes = np.log([row["n"] for row in lines])
        for key in lines[0]["seconds"]:
            times = np.log([row["seconds"][key] for row in lines])
            found[key] = round(float(np.polyfit(sizes, times, 1)[0]), 3)
    return found


PARTS: dict[str, Callable[[int], Iterable[Row]]] = {
    "thresholds": thresholds,
    "readings": readings,
    "paper": paper,
    "sound": sound,
    "oracle": oracle,
    "nu": nu,
    "choices": choices,
    "people": people_part,
    "scale": scale,
}
RUN: dict[str, Callable[..., Row]] = dict.fromkeys(PARTS, run) | {
    "thresholds": run_threshold,
    "scale": run_scale,
}


# Tables ---------------------------------------------------------------------------------------


def summarised(part: str, rows: list[Row]) -> list[Row]:
    """Means by arm, and paired differences within its group and from the references."""
    if RUN[part] is not run:
        return rows
    problems = dict.fromkeys(row["problem"] for row in rows)
    return [line for name in problems for line in _summary(part, name, rows)]


def _summary(part: str, name: str, rows: list[Row]) -> list[Row]:
    found = [row for row in rows if row["problem"] == name]
    lost: dict[str, list[list[float]]] = {}
    for row in found:
        lost.setdefault(row["arm"], []).append(row["lost"])
    curves = {arm: np.array(listed) for arm, listed in lost.items()}
    group = {row["arm"]: row["group"] for row in found}
    facts = {row["arm"]: row["facts"] for row in found}
    return [
        {
            "problem": name, "arm": arm, "runs": len(curve), **facts[arm],
            **_extra(part, name, arm), "lost": _at(curve),
            "better than": {
                other: dict(list(_at(_paired(curves[other], curve)).items())[-1:])
                for other in curves
                if other != arm and (group[other] == group[arm] or _reference(other))
            },
        }
        for arm, curve in curves.items()
    ]  # fmt: skip


def _paired(other: Array, curve: Array) -> Array:
    """Differences of the runs that both have; an arm's are in the order of its seeds."""
    runs = min(len(other), len(curve))
    return np.asarray(other[:runs] - curve[:runs])


def _reference(arm: str) -> bool:
    return arm.startswith(("random", "non-private"))


def _extra(part: str, name: str, arm: str) -> Row:
    """What else belongs to an arm of a part."""
    if part == "readings":
        return {"width": round(1.25 * WIDTH / float(name.split()[1]), 2)}
    if part == "paper":
        return _printed(arm)
    if part == "nu" and arm.startswith("nu="):
        return _nu_means(float(arm.removeprefix("nu=")))
    return {}


def _printed(arm: str) -> Row:
    """The paper's figure."""
    if not arm.startswith("ln eps="):
        return {"printed": round(PRINTED_NON_PRIVATE, 4)} if arm == "non-private" else {}
    log, r = (part.split("=")[1] for part in arm.split(": "))
    return {"printed": PRINTED[float(log)][int(r)]}


def _nu_means(distance: float) -> Row:
    """Nu in percent of the diameter, and the noise at three epsilons."""
    return {
        "percent of diameter": 100 * distance / (2 * RADIUS),
        "noise at": {
            f"eps={eps:g}": round(noise_scale(distance, gdp_mu(eps, DELTA)), 3)
            for eps in (1.0, 3.0, 10.0)
        },
    }


def _at(curves: Array) -> dict[str, list[float]]:
    """Mean and standard error after the asks that are shown."""
    spread = curves.std(0, ddof=1) if len(curves) > 1 else np.zeros(curves.shape[1])
    error = spread / math.sqrt(len(curves))
    return {
        str(t): [round(float(m), 4), round(float(e), 4)]
        for t, m, e in zip(SHOWN, curves.mean(0), error, strict=False)
    }


def show(rows: list[Row]) -> None:
    """One line an arm; a paired difference counts from two standard errors on."""
    for row in rows:
        if "lost" not in row:
            print("  " + ", ".join(f"{k}={v}" for k, v in row.items()))
            continue
        skipped = ("problem", "arm", "runs", "lost", "better than")
        told = ", ".join(f"{k}={v}" for k, v in row.items() if k not in skipped)
        print(f"  {row['problem']:16} {row['arm']:24} | {_told(row['lost'])} | {told}")
        better = (f"{other} {_at_end(gained)}" for other, gained in row["better than"].items())
        print(f"  {'':16} better at the end than: {'; '.join(better)}")


def _told(lost: Mapping[str, list[float]]) -> str:
    kept = [t for t in ("10", "50", "100") if t in lost]
    return " ".join(f"{t}: {lost[t][0]:.4f}±{lost[t][1]:.4f}" for t in kept)


def _at_end(gained: Mapping[str, list[float]]) -> str:
    mean, error = list(gained.values())[-1]
    return f"{mean:+.4f}±{error:.4f}"


# Pictures -------------------------------------------------------------------------------------


def picture(part: str, rows: list[Row]) -> None:
    """What the part varies against what it costs, a panel a problem."""
    import matplotlib as mpl

    mpl.use("Agg")
    import matplotlib.pyplot as plt

    draw = DRAW[part]
    problems = list(dict.fromkeys(row["problem"] for row in rows))
    figure, axes = plt.subplots(1, len(problems), figsize=(6 * len(problems), 4.4), squeeze=False)
    for panel, name in zip(axes[0], problems, strict=True):
        draw(panel, [row for row in rows if row["problem"] == name])
        panel.set_title(_title(name))
        panel.legend(fontsize=7)
    axes[0][0].set_ylabel("simple regret in deviations, +- one standard error")
    figure.tight_layout()
    figure.savefig(RESULTS / f"outsourced_{part}.png", dpi=110)
    plt.close(figure)


def _title(name: str) -> str:
    kind, what = name.split()
    return f"{kind}, l = {float(what):.3g}" if kind == "grid" else f"{kind}: {what} visits"


def _draw_sweep(panel: Any, rows: list[Row], label: str, group: bool) -> None:
    """S50 over a number in the arms' names: the group's, or the arm's within its group."""
    lines: dict[str, list[tuple[float, float, float]]] = {}
    for row in rows:
        mean, error = row["lost"][str(T)]
        if _reference(row["arm"]):
            panel.axhline(mean, ls=":", color="C7" if row["arm"] == "random" else "k", lw=1)
            panel.annotate(row["arm"], (0.01, mean), xycoords=("axes fraction", "data"), size=7)
            continue
        outer, _, inner = row["arm"].partition(": ")
        number, line = (outer, inner) if group else (inner or outer, outer if inner else "default")
        lines.setdefault(line, []).append((float(number.split("=")[1]), mean, error))
    for line, points in lines.items():
        x, y, e = zip(*points, strict=True)
        panel.errorbar(x, y, e, label=line, marker="o", ms=3, capsize=2, lw=1.2)
    panel.set(xlabel=label, xscale="log")


def _draw_paper(panel: Any, rows: list[Row]) -> None:
    kept = [row for row in rows if row["arm"] != "random"]
    _draw_sweep(panel, kept, "columns r of the released table", group=False)
    for i, regrets in enumerate(PRINTED.values()):
        panel.plot(*zip(*regrets.items(), strict=True), "x--", color=f"C{i}", lw=0.7, ms=5)
    panel.plot([], [], "kx--", lw=0.7, label="printed in the paper")
    panel.set_yscale("log")


def _draw_curves(panel: Any, rows: list[Row]) -> None:
    for row in rows:
        t = [int(key) for key in row["lost"]]
        mean, error = np.array(list(row["lost"].values())).T
        (line,) = panel.plot(t, mean, label=row["arm"], lw=1.4)
        panel.fill_between(t, mean - error, mean + error, color=line.get_color(), alpha=0.12)
    panel.set(xlabel="rows asked")


DRAW: dict[str, Callable[[Any, list[Row]], None]] = {
    "paper": _draw_paper,
    "sound": lambda panel, rows: _draw_sweep(panel, rows, "epsilon, nu = 1", group=True),
    "nu": lambda panel, rows: _draw_sweep(panel, rows, "nu, epsilon = 3", group=False),
    "people": _draw_curves,
}


def main() -> None:
    """Runs the parts that are asked for and keeps the results of the others."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--parts", nargs="+", choices=PARTS, default=list(PARTS))
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument("--runs", type=int, help="of each arm; by part if not given")
    parser.add_argument("--keep", type=Path, help="file of finished runs; they are not repeated")
    given = parser.parse_args()
    if not available():
        print("statsmodels is not installed: the problems with people are left out.")
    path = RESULTS / "outsourced.json"
    for part in given.parts:
        tasks = [(part, run) for run in PARTS[part](given.runs or RUNS.get(part, 1))]
        alone = part == "scale"
        rows = carried_out(tasks, carry_out, jobs=given.jobs, kept=given.keep, alone=alone)
        found = summarised(part, rows)
        results = json.loads(path.read_text()) if path.exists() else {}
        results[part] = [*found, {"exponents": exponents(rows)}] if part == "scale" else found
        results["machine"] = {"python": platform.python_version(), "numpy": np.__version__}
        path.write_text(json.dumps(results, indent=1) + "\n")
        if part in DRAW and found:
            picture(part, found)
        print(f"\n{part}")
        show(results[part])


if __name__ == "__main__":
    main()
