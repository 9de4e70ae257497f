"""Any sampler under central privacy, beside DP-GIBO: how good, and how good by luck.

Samplers of Optuna see the noisy mean of each trial (``private_objective``), as many trials as the
default of ``DPGIBOSampler`` plans, and the same budget. Reported is the excess of the true mean
validation loss over a non-private optimum, of what is recommended and of the luckiest trial
(``study.best_params``). Seeds drive candidates and are the same in all arms; privacy noise is the
operating system's, so figures vary from run to run.

    python -m benchmarks.any_sampler [--seeds 20] [--jobs 2] [--problems svc-digits] [--mus 1]
"""

from __future__ import annotations

import argparse
import time
import warnings
from concurrent.futures import ProcessPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

import optuna
from tqdm import tqdm

from benchmarks.problems import Problem
from benchmarks.quality import MUS, RESULTS, Outcome, Task, distributions, make, written
from benchmarks.quality import run as run_quality
from optuna_samplers import DPGIBOSampler, private_objective
from privbo_plugins.errors import UtilityWarning

SAMPLERS: dict[str, Any] = {
    "cma": lambda seed: optuna.samplers.CmaEsSampler(seed=seed),
    "tpe": lambda seed: optuna.samplers.TPESampler(seed=seed),
    "random": lambda seed: optuna.samplers.RandomSampler(seed=seed),
}

PROBLEMS = ("svc-digits", "gp-ard-15")


def run(task: Task) -> list[Outcome]:
    """One arm once: what is recommended and, of another sampler, the luckiest trial."""
    if task.arm not in SAMPLERS:
        return [run_quality(task)]
    optuna.logging.set_verbosity(optuna.logging.ERROR)
    warnings.simplefilter("ignore")  # mu = .1 drowns on purpose; samplers call things experimental
    problem, start = make(task.problem), time.perf_counter()
    study, recommended = _study(problem, task)
    seconds = time.perf_counter() - start
    found = {task.arm: recommended, f"{task.arm}-luckiest": study.best_params}
    losses = {arm: problem.true_mean(params) for arm, params in found.items()}
    return [
        Outcome(
            task.problem,
            arm,
            task.mu,
            task.seed,
            loss=loss,
            excess=loss - problem.optimum(),
            n_trials=len(study.get_trials(deepcopy=False)),
            seconds=seconds,
        )
        for arm, loss in losses.items()
    ]


def _study(problem: Problem, task: Task) -> tuple[optuna.Study, dict[str, Any]]:
    space = distributions(problem)
    n_trials = DPGIBOSampler(task.mu).plan(space, problem.n_records).n_trials

    def objective(trial: Any) -> Any:
        return problem.losses(
            {n: trial.suggest_float(n, d.low, d.high, log=d.log) for n, d in space.items()}
        )

    private = private_objective(objective, mu=task.mu, n_trials=n_trials, seed=task.seed)
    study = optuna.create_study(sampler=SAMPLERS[task.arm](task.seed))
    study.optimize(private)
    return study, private.recommend(study)


def tasks(problems: list[str], mus: list[float], n_seeds: int) -> list[Task]:
    """Every run; no default was chosen on these seeds."""
    return [
        Task(problem, arm, mu, seed)
        for problem in problems
        for mu in mus
        for arm in ("default", *SAMPLERS)
        for seed in range(200, 200 + n_seeds)
    ]


def main() -> None:
    """Runs everything and writes JSON and a picture."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n", 1)[0])
    parser.add_argument("--seeds", type=int, default=20)
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument("--problems", nargs="+", default=list(PROBLEMS), choices=PROBLEMS)
    parser.add_argument("--mus", type=float, nargs="+", default=list(MUS))
    parser.add_argument("--out", type=Path, default=RESULTS)
    arguments = parser.parse_args()
    warnings.simplefilter("ignore", UtilityWarning)
    todo = tasks(arguments.problems, arguments.mus, arguments.seeds)
    with ProcessPoolExecutor(arguments.jobs) as pool:
        done = list(tqdm(pool.map(run, todo), total=len(todo), desc="runs"))
    outcomes = [
        replace(o, arm="dp-gibo") if o.arm == "default" else o for row in done for o in row
    ]
    written(outcomes, arguments.problems, arguments.out, "any_sampler")


if __name__ == "__main__":
    main()
