"""How good private tuning is, beside the published algorithm and private random search.

Three problems (:mod:`benchmarks.problems`), ten seeds, four arms: the default sampler, the
``paper`` preset (random start, B = 3, at mu = 1), the same preset started at the centre (how much
of the difference is the start?), and random search whose best trial is chosen by a private
argmin at the same mu and with as many trials as the default made. Reported is the excess of the
true mean validation loss of the recommendation over a non-private optimum. A seed drives
candidates; privacy noise is the operating system's, so figures vary from run to run.

    python -m benchmarks.quality [--seeds 10] [--jobs 2] [--problems svc-digits ...]
"""

from __future__ import annotations

import argparse
import json
import platform
import time
import warnings
from collections.abc import Iterable
from concurrent.futures import ProcessPoolExecutor
from dataclasses import asdict, dataclass
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import optuna
from optuna.distributions import FloatDistribution
from tqdm import tqdm

from benchmarks.baselines import noisy_argmin, random_points
from benchmarks.problems import PROBLEMS, Problem
from optuna_samplers import DPGIBOSampler
from privbo_plugins.errors import UtilityWarning
from privbo_plugins.privacy.mechanisms import mean_of_clipped_values
from privbo_plugins.spaces import Float, Space

RESULTS = Path(__file__).parent / "results"
MUS = (1.0, 0.3, 0.1)


@dataclass(frozen=True)
class Task:
    """One run."""

    problem: str
    arm: str
    mu: float
    seed: int


@dataclass(frozen=True)
class Outcome:
    """What one run reached."""

    problem: str
    arm: str
    mu: float
    seed: int
    loss: float
    excess: float
    n_trials: int
    seconds: float


@cache
def make(name: str) -> Problem:
    """The problem of a name, built once a process."""
    return PROBLEMS[name]()


def run(task: Task) -> Outcome:
    """Runs one arm once."""
    optuna.logging.set_verbosity(optuna.logging.ERROR)
    warnings.simplefilter("ignore", UtilityWarning)  # mu = .1 drowns on purpose
    problem, start = make(task.problem), time.perf_counter()
    if task.arm == "random":
        params, n_trials = _random_search(problem, task)
    else:
        params, n_trials = _sampler_run(problem, task)
    loss = problem.true_mean(params)
    return Outcome(
        **asdict(task),
        loss=loss,
        excess=loss - problem.optimum(),
        n_trials=n_trials,
        seconds=time.perf_counter() - start,
    )


def _sampler_run(problem: Problem, task: Task) -> tuple[dict[str, Any], int]:
    space = distributions(problem)
    sampler = _sampler(task, space)

    def objective(trial: Any) -> Any:
        return problem.losses(
            {n: trial.suggest_float(n, d.low, d.high, log=d.log) for n, d in space.items()}
        )

    study = optuna.create_study(sampler=sampler)
    study.optimize(sampler.private(objective))
    return sampler.recommend(study), len(study.get_trials(deepcopy=False))


def _sampler(task: Task, space: dict[str, FloatDistribution]) -> DPGIBOSampler:
    if task.arm == "default":
        return DPGIBOSampler(task.mu, search_space=space, seed=task.seed)
    return DPGIBOSampler.paper(
        task.mu, search_space=space, seed=task.seed, random_start=task.arm == "paper"
    )


def _random_search(problem: Problem, task: Task) -> tuple[dict[str, Any], int]:
    plan = DPGIBOSampler(task.mu).plan(distributions(problem), problem.n_records)
    space = Space({n: Float(low, high, log) for n, (low, high, log) in problem.ranges.items()})
    points = random_points(space, plan.n_trials, np.random.default_rng(task.seed))
    vectors = (problem.losses(space.decode(x)) for x in points)
    means = [mean_of_clipped_values([y[:, None]], 0.0, 1.0, 1.0)[0] for y in vectors]
    best = noisy_argmin(np.array(means), 1.0 / problem.n_records, task.mu)
    return space.decode(points[best]), plan.n_trials


def distributions(problem: Problem) -> dict[str, FloatDistribution]:
    """The problem's parameters for Optuna."""
    return {
        n: FloatDistribution(low, high, log=log) for n, (low, high, log) in problem.ranges.items()
    }


def tasks(problems: Iterable[str], n_seeds: int) -> list[Task]:
    """Every run of the benchmark; the defaults were chosen on other seeds."""
    arms = [("default", mu) for mu in MUS] + [("paper", 1.0), ("paper-centre", 1.0)]
    arms += [("random", mu) for mu in MUS]
    return [
        Task(problem, arm, mu, seed)
        for problem in problems
        for arm, mu in arms
        for seed in range(100, 100 + n_seeds)
    ]


def summarise(outcomes: list[Outcome]) -> list[dict[str, Any]]:
    """Median, mean and worst excess of each arm."""
    groups: dict[tuple[str, str, float], list[Outcome]] = {}
    for outcome in outcomes:
        groups.setdefault((outcome.problem, outcome.arm, outcome.mu), []).append(outcome)
    rows = []
    for (problem, arm, mu), group in groups.items():
        excess = np.array([o.excess for o in group])
        rows.append(
            {
                "problem": problem,
                "arm": arm,
                "mu": mu,
                "seeds": len(group),
                "trials": float(np.median([o.n_trials for o in group])),
                "median_loss": float(np.median([o.loss for o in group])),
                "worst_loss": float(max(o.loss for o in group)),
                "median_excess": float(np.median(excess)),
                "mean_excess": float(excess.mean()),
                "se_excess": float(excess.std() / np.sqrt(max(1, len(group) - 1))),
                "worst_excess": float(excess.max()),
            }
        )
    return rows


def table(rows: list[dict[str, Any]], optima: dict[str, float]) -> str:
    """The summary as text."""
    columns = ("trials", "median", "mean", "worst")
    lines = [f"{'problem':<16}{'arm':<13}{'mu':>5}" + "".join(f"{c:>9}" for c in columns)]
    for row in rows:
        lines.append(
            f"{row['problem']:<16}{row['arm']:<13}{row['mu']:>5g}{row['trials']:>9.0f}"
            f"{row['median_excess']:>9.4f}{row['mean_excess']:>9.4f}{row['worst_excess']:>9.4f}"
        )
    known = ", ".join(f"{name} {value:.4f}" for name, value in optima.items())
    return "\n".join([*lines, f"excess true loss over the non-private optimum ({known})"])


def picture(outcomes: list[Outcome], path: Path) -> None:
    """Box plots of the excess, one panel a problem."""
    import matplotlib as mpl

    mpl.use("Agg")
    import matplotlib.pyplot as plt

    problems = list(dict.fromkeys(o.problem for o in outcomes))
    figure, axes = plt.subplots(1, len(problems), figsize=(5 * len(problems), 4.2), squeeze=False)
    for axis, problem in zip(axes[0], problems, strict=True):
        groups: dict[str, list[float]] = {}
        for o in outcomes:
            if o.problem == problem:
                groups.setdefault(f"{o.arm}\nmu={o.mu:g}", []).append(max(o.excess, 1e-5))
        axis.boxplot(list(groups.values()), tick_labels=list(groups), whis=(0, 100))
        axis.set_yscale("log")
        axis.set_title(problem)
        axis.tick_params(axis="x", labelsize=7)
    axes[0][0].set_ylabel("excess true validation loss")
    figure.tight_layout()
    figure.savefig(path, dpi=120)


def written(
    outcomes: list[Outcome], problems: Iterable[str], folder: Path, name: str
) -> dict[str, Any]:
    """Prints the table of a benchmark, and writes its JSON and its picture."""
    rows, optima = summarise(outcomes), {problem: make(problem).optimum() for problem in problems}
    print(table(rows, optima))
    record = {
        "python": platform.python_version(),
        "optima": optima,
        "summary": rows,
        "runs": [asdict(o) for o in outcomes],
    }
    folder.mkdir(parents=True, exist_ok=True)
    (folder / f"{name}.json").write_text(json.dumps(record, indent=1))
    picture(outcomes, folder / f"{name}.png")
    return record


def main() -> None:
    """Runs everything and writes JSON and a picture."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n", 1)[0])
    parser.add_argument("--seeds", type=int, default=10)
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument("--problems", nargs="+", default=list(PROBLEMS), choices=list(PROBLEMS))
    parser.add_argument("--out", type=Path, default=RESULTS)
    arguments = parser.parse_args()
    todo = tasks(arguments.problems, arguments.seeds)
    with ProcessPoolExecutor(arguments.jobs) as pool:
        outcomes = list(tqdm(pool.map(run, todo), total=len(todo), desc="runs"))
    written(outcomes, arguments.problems, arguments.out, "quality")


if __name__ == "__main__":
    main()
