"""Cumulative regret under local privacy: mechanisms, algorithms, widths, and other samplers.

The LDP paper's stocks and synthetic problems (:mod:`benchmarks.reward_problems`). Regret is shown
as a fraction of the regret of a uniform choice, with its standard error over the seeds. Parts:

- ``raw``: the three heavy-tailed algorithms without privacy, beside the published reference code;
- ``published``: the same with the paper's Laplace mechanism and theory-ordered widths;
- ``widths``: the same with narrower widths;
- ``mechanisms``: plain GP-UCB with each mechanism and several widths: where the defaults are from;
- ``trust``: plain GP-UCB with the default mechanism, once with a constant width and the given
  covariance taken at its word, once as it is by default (width that falls, covariance weighed by
  evidence), on these problems and on two more kinds of arms that were left aside until the default
  was fixed;
- ``floor``: the default on six kinds of arms on which nothing was chosen, beside oracles that know
  how f came about;
- ``boxes``: the same as ``trust`` on boxes of two and four parameters;
- ``samplers``: Optuna samplers behind ``ldp_objective``;
- ``cost``: CPU time of an evaluation.

Noise is simulated from seeds, except in ``samplers``.

    python -m benchmarks.local_rewards [--parts raw published ...] [--jobs 2]
"""

from __future__ import annotations

import argparse
import functools
import json
import math
import platform
import time
import warnings
from collections.abc import Callable, Iterable
from concurrent.futures import ProcessPoolExecutor
from importlib.util import find_spec
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import optuna
from numpy.typing import NDArray
from tqdm import tqdm

from benchmarks.reward_problems import (
    DATA,
    FRESH,
    PROBLEMS,
    BoxProblem,
    KnownPrior,
    RewardProblem,
    available,
    box,
    grouped,
    stocks,
    synthetic,
    unrelated,
)
from optuna_samplers import LDPGPUCBSampler, ldp_objective
from privbo_plugins.algorithms.ldp_gp_ucb.config import UCBConfig
from privbo_plugins.algorithms.ldp_gp_ucb.ucb import RewardUCB
from privbo_plugins.algorithms.registry import REWARD, classes, entry
from privbo_plugins.models.reward_posterior import ArmsPosterior
from privbo_plugins.privacy.local import LocalMechanism, make_mechanism
from privbo_plugins.privacy.noise import InsecureNoise
from privbo_plugins.spaces import Float, Int, Space

RESULTS = Path(__file__).parent / "results"
EPSILONS = (0.5, 1.0, 2.0)
SEEDS = range(10)
HEAVY = ("tgp-ucb", "ata-gp-ucb", "moma-gp-ucb")
REFERENCE = {
    ("tgp-ucb", 1000): 468, ("ata-gp-ucb", 1000): 484, ("moma-gp-ucb", 1000): 240,
    ("tgp-ucb", 10000): 3862, ("ata-gp-ucb", 10000): 2596, ("moma-gp-ucb", 10000): 1681,
}  # fmt: skip
"""Cumulative regret of the reference code on the stocks, without privacy."""

Array = NDArray[np.float64]
Row = dict[str, Any]


# One run ------------------------------------------------------------------------------------


def evaluation(
    algorithm: RewardUCB, problem: RewardProblem, mechanism: LocalMechanism | None, T: int
) -> float:
    """Cumulative regret of T evaluations."""
    rng = np.random.default_rng([algorithm.seed, 11])
    noise = InsecureNoise(algorithm.seed)
    arms, best, regret = len(problem.f) - 1, float(problem.f.max()), 0.0
    for t in range(T):
        turn = algorithm.ask(t)
        assert turn is not None  # only those who may wait get None
        arm = round(float(turn.x[0]) * arms)
        reward = problem.draw(arm, rng)
        if mechanism is not None:
            reward = mechanism.randomize(reward, noise, mechanism.low)
        algorithm.tell(turn, reward)
        regret += best - float(problem.f[arm])
    return regret


def space_of(problem: RewardProblem) -> Space:
    """One integer: the number of the arm."""
    return Space({"arm": Int(0, len(problem.f) - 1)})


def run_raw(name: str, kind: str, T: int, seed: int) -> Row:
    """Without privacy; heavy-tailed noise on the synthetic problems."""
    problem = stocks() if name == "stocks" else synthetic(name, seed, heavy=True)
    R = problem.R if math.isfinite(problem.R) else 0.0
    config = UCBConfig(
        B=problem.B, R=R, second_moment=problem.v, noise_moment=problem.c,
        kernel_matrix=problem.K, n_trials=None if kind == "tgp-ucb" else T,
    )  # fmt: skip
    algorithm = entry(kind).load_algorithm()(config, space_of(problem), seed=seed)
    regret = evaluation(algorithm, problem, None, T)
    return {"regret": regret, "fraction": regret / (T * problem.uniform)}


def run_private(
    name: str, kind: str, epsilon: float, mechanism: str, symmetric: bool, scale: float, T: int,
    seed: int,
) -> Row:  # fmt: skip
    """With privacy: ``symmetric`` clips to ±(B + R), as the paper does."""
    problem = PROBLEMS[name](seed)
    bound = problem.B + problem.R
    own = (-bound, bound) if symmetric else problem.value_range
    made = make_mechanism(epsilon, value_range=own, mechanism=mechanism)
    exact: dict[str, Any] = {"B": problem.B, "R": problem.R} if kind in HEAVY else {}
    config = UCBConfig(
        low=made.low, high=made.high, noise=made.noise, kernel_matrix=problem.K,
        beta_scale=scale, n_trials=None if kind == "tgp-ucb" else T, **exact,
    )  # fmt: skip
    algorithm = entry(kind).load_algorithm()(config, space_of(problem), seed=seed)
    regret = evaluation(algorithm, problem, made, T)
    return {"regret": regret, "fraction": regret / (T * problem.uniform)}


def run_trust(name: str, trusting: bool, epsilon: float, T: int, seed: int) -> Row:
    """Plain GP-UCB; told that its noise is the rewards' own, it trusts what it is given."""
    problem = _problem(name, seed)
    made = make_mechanism(epsilon, value_range=problem.value_range)
    noise: dict[str, Any] = (
        {"noise_moment": made.total_variance} if trusting else {"noise": made.noise}
    )
    config = UCBConfig(
        low=made.low, high=made.high, n_trials=T,
        kernel_matrix=problem.K if isinstance(problem, RewardProblem) else None, **noise,
    )  # fmt: skip
    if isinstance(problem, RewardProblem):
        algorithm = entry("gp-ucb").load_algorithm()(config, space_of(problem), seed=seed)
        regret = evaluation(algorithm, problem, made, T)
    else:
        space = Space({f"x{i}": Float(0, 1) for i in range(problem.d)})
        algorithm = entry("gp-ucb").load_algorithm()(config, space, seed=seed)
        regret = evaluation_in_box(algorithm, problem, made, T)
    return {"regret": regret, "fraction": regret / (T * problem.uniform)}


def evaluation_in_box(
    algorithm: RewardUCB, problem: BoxProblem, mechanism: LocalMechanism, T: int
) -> float:
    """Cumulative regret of T evaluations of a continuum."""
    rng, noise = np.random.default_rng([algorithm.seed, 11]), InsecureNoise(algorithm.seed)
    regret = 0.0
    for t in range(T):
        turn = algorithm.ask(t)
        assert turn is not None  # only those who may wait get None
        reward = mechanism.randomize(problem.draw(turn.x, rng), noise, mechanism.low)
        algorithm.tell(turn, reward)
        regret += problem.best - float(problem.f(turn.x[None])[0])
    return regret


def run_floor(name: str, rule: str, epsilon: float, T: int, seed: int) -> Row:
    """The default with the covariance that it is given, or an oracle with the true prior."""
    known = FRESH[name](seed)
    problem = known.problem
    made = make_mechanism(epsilon, value_range=problem.value_range)
    if rule == "default":
        config = UCBConfig(
            low=made.low, high=made.high, n_trials=T, kernel_matrix=problem.K, noise=made.noise
        )
        algorithm = entry("gp-ucb").load_algorithm()(config, space_of(problem), seed=seed)
        regret = evaluation(algorithm, problem, made, T)
    else:
        regret = evaluation_by_oracle(known, ORACLES[rule], made, T, seed)
    return {"regret": regret, "fraction": regret / (T * problem.uniform)}


def evaluation_by_oracle(
    known: KnownPrior, rule: Oracle, mechanism: LocalMechanism, T: int, seed: int
) -> float:
    """Cumulative regret of T evaluations whose posterior has the prior that f was drawn from."""
    problem, regret = known.problem, 0.0
    rng, noise = np.random.default_rng([seed, 11]), InsecureNoise(seed)
    model = ArmsPosterior(known.covariance, mechanism.total_variance)
    for t in range(T):
        arm = int(np.argmax(rule(model, known.mean + model.mu, T - t, rng)))
        reward = mechanism.randomize(problem.draw(arm, rng), noise, mechanism.low)
        model.tell(np.array([float(arm)]), reward - float(known.mean[arm]))
        regret += float(problem.f.max() - problem.f[arm])
    return regret


def _shrinking(model: ArmsPosterior, mean: Array, left: int, _: np.random.Generator) -> Array:
    """beta² = ln(1 + left sigma² / lam): nothing is explored that can no longer be used."""
    variance = np.maximum(np.diag(model.C), 0.0)
    return np.asarray(mean + np.sqrt(variance * np.log1p(left * variance / model.lam)))


def _sampled(
    model: ArmsPosterior, mean: Array, _: int, rng: np.random.Generator, *, part: float = 1.0
) -> Array:
    """Thompson sampling; ``part`` narrows the posterior."""
    root = np.linalg.cholesky(model.C + 1e-6 * model.C.max() * np.eye(len(mean)))
    return np.asarray(mean + part * root @ rng.standard_normal(len(mean)))


def _eliminating(model: ArmsPosterior, mean: Array, *_: Any) -> Array:
    """The least known of all arms whose interval reaches the highest lower end."""
    sigma = np.sqrt(np.maximum(np.diag(model.C), 0.0))
    return np.where(mean + 0.6 * sigma >= (mean - 0.6 * sigma).max(), sigma, -1.0)


Oracle = Callable[[ArmsPosterior, Array, int, np.random.Generator], Array]

ORACLES: dict[str, Oracle] = {
    "width that shrinks": _shrinking,
    "Thompson": _sampled,
    "Thompson, narrowed": functools.partial(_sampled, part=0.6),
    "elimination": _eliminating,
}
"""Scores of all arms, of which the best is evaluated."""

ASIDE: dict[str, Callable[[int], RewardProblem]] = {"unrelated": unrelated, "grouped": grouped}
"""Arms on which nothing was chosen."""

BOXES: dict[str, Callable[[int], BoxProblem]] = {
    "box, d = 2": functools.partial(box, 2),
    "box, d = 4": functools.partial(box, 4),
}


def _problem(name: str, seed: int) -> RewardProblem | BoxProblem:
    return BOXES[name](seed) if name in BOXES else {**PROBLEMS, **ASIDE}[name](seed)


def run_sampler(name: str, kind: str, T: int, seed: int) -> Row:
    """An Optuna sampler at epsilon = 1, default mechanism, noise from the system."""
    optuna.logging.set_verbosity(optuna.logging.ERROR)
    problem, rng = PROBLEMS[name](seed), np.random.default_rng([seed, 11])
    sampler = SAMPLERS[kind](problem, T, seed)
    study = optuna.create_study(direction="maximize", sampler=sampler)
    last = len(problem.f) - 1
    objective = ldp_objective(
        lambda trial: problem.draw(trial.suggest_int("arm", 0, last), rng),
        epsilon=1.0, value_range=problem.value_range,
    )  # fmt: skip
    begun = time.process_time()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # optuna's notes on experimental samplers
        study.optimize(objective, n_trials=T)
    regret = sum(float(problem.f.max() - problem.f[t.params["arm"]]) for t in study.trials)
    return {
        "regret": regret,
        "fraction": regret / (T * problem.uniform),
        "ms_per_trial": 1e3 * (time.process_time() - begun) / T,
    }


SAMPLERS: dict[str, Callable[[RewardProblem, int, int], Any]] = {
    "LDPGPUCBSampler": lambda p, T, seed: LDPGPUCBSampler(
        1.0, value_range=p.value_range, kernel_matrix=p.K, n_trials=T, seed=seed
    ),
    "TPESampler": lambda p, T, seed: optuna.samplers.TPESampler(seed=seed),  # noqa: ARG005
    "CmaEsSampler": lambda p, T, seed: optuna.samplers.CmaEsSampler(seed=seed),  # noqa: ARG005
    "GPSampler": lambda p, T, seed: optuna.samplers.GPSampler(  # noqa: ARG005
        seed=seed, deterministic_objective=False
    ),
    "RandomSampler": lambda p, T, seed: optuna.samplers.RandomSampler(seed=seed),  # noqa: ARG005
}


NEEDS = {"CmaEsSampler": "cmaes", "GPSampler": "torch"}
"""Packages that Optuna leaves to its users to install."""


def run_cost(kind: str, where: str, seed: int) -> Row:
    """CPU milliseconds per ask and tell, around the 10^2th, 10^3th, 10^4th and last evaluation."""
    mechanism = make_mechanism(1.0, value_range=(0.0, 1.0))
    box, arms = where == "box", np.arange(30)
    config = UCBConfig(
        low=0.0, high=1.0, noise=mechanism.noise, n_trials=10**4 if box else 10**5,
        kernel_matrix=None if box else np.exp(-(((arms[:, None] - arms) / 6) ** 2)),
    )  # fmt: skip
    dims = {"a": Float(0, 1), "b": Float(0, 1)} if box else {"arm": Int(0, 29)}
    algorithm = entry(kind).load_algorithm()(config, Space(dict(dims)), seed=seed)
    row: Row = {}
    noise, begun = InsecureNoise(seed), time.process_time()
    T = 10**4 if box else 10**5
    at = {n: n // 10 for n in (10**2, 10**3, 10**4, T)}
    for t in range(T):
        start = time.process_time()
        turn = algorithm.ask(t)
        assert turn is not None
        centre = 0.3 if box else 0.7
        reward = math.exp(-float(((turn.x - centre) ** 2).sum()) / 0.1)
        algorithm.tell(turn, mechanism.randomize(reward, noise, 0.0))
        for n, width in at.items():
            if n - width <= t < n:
                row[f"ms_at_{n}"] = (
                    row.get(f"ms_at_{n}", 0.0) + 1e3 * (time.process_time() - start) / width
                )
    return {**row, "seconds": time.process_time() - begun}


# The parts ----------------------------------------------------------------------------------

Task = tuple[str, Callable[..., Row], dict[str, Any]]


def raw() -> Iterable[dict[str, Any]]:
    """Without privacy."""
    names = ("stocks", "rbf", "matern52") if "stocks" in available() else ("rbf", "matern52")
    for name, kind, seed in product(names, HEAVY, SEEDS):
        for T in (1000, 10000) if name == "stocks" else (1000,):
            yield {"name": name, "kind": kind, "T": T, "seed": seed}


def published() -> Iterable[dict[str, Any]]:
    """The paper's setting: Laplace at ±(B + R), theory-ordered widths."""
    for name, kind, epsilon, seed in product(available(), HEAVY, EPSILONS, SEEDS):
        yield _private(name, kind, epsilon, "laplace", True, 1.0, 3000, seed)
    for name, epsilon, seed in product(available(), EPSILONS, SEEDS):
        yield _private(name, "gp-ucb", epsilon, "laplace", True, 1.0, 3000, seed)
    if "stocks" in available():
        for kind, seed in product(HEAVY, SEEDS):
            yield _private("stocks", kind, 1.0, "laplace", True, 1.0, 10000, seed)


def widths() -> Iterable[dict[str, Any]]:
    """The same at epsilon = 1 with narrower widths, and with the better mechanism."""
    for name, kind, scale, seed in product(available(), HEAVY, (0.1, 0.01), range(5)):
        yield _private(name, kind, 1.0, "laplace", True, scale, 3000, seed)
        yield _private(name, kind, 1.0, "duchi", False, scale, 3000, seed)


def mechanisms() -> Iterable[dict[str, Any]]:
    """Plain GP-UCB."""
    kinds = ("laplace", "duchi", "piecewise", "hybrid")
    for name, epsilon, mechanism, scale, seed in product(
        available(), EPSILONS, kinds, (0.5, 1.0, 2.0), SEEDS
    ):
        yield _private(name, "gp-ucb", epsilon, mechanism, False, scale, 3000, seed)


def samplers() -> Iterable[dict[str, Any]]:
    """Optuna's samplers; GPSampler for the short horizon only, it takes seconds a trial later."""
    names = [name for name in ("stocks", "rbf") if name in available()]
    kinds = [kind for kind in SAMPLERS if find_spec(NEEDS.get(kind, "optuna")) is not None]
    for kind in SAMPLERS.keys() - kinds:
        print(f"{kind} needs {NEEDS[kind]}, which is not installed: it is left out.")
    for name, kind in product(names, kinds):
        for seed in range(10 if kind == "LDPGPUCBSampler" else 5):
            yield {"name": name, "kind": kind, "T": 200, "seed": seed}
            if kind != "GPSampler":
                yield {"name": name, "kind": kind, "T": 3000, "seed": seed}


def trust() -> Iterable[dict[str, Any]]:
    """On seeds that chose nothing."""
    for name, seed, trusting in product([*available(), *ASIDE], range(5000, 5020), (True, False)):
        for epsilon, T in ((1.0, 300), (1.0, 3000), (2.0, 3000)):
            yield _trust(name, trusting, epsilon, T, seed)


def floor() -> Iterable[dict[str, Any]]:
    """On seeds that chose nothing."""
    names = [name for name in FRESH if name not in DATA or DATA[name].exists()]
    for name, seed, rule in product(names, range(5000, 5040), ("default", *ORACLES)):
        yield {"name": name, "rule": rule, "epsilon": 1.0, "T": 3000, "seed": seed}


def boxes() -> Iterable[dict[str, Any]]:
    """The same where an evaluation takes longer."""
    for name, seed, trusting in product(BOXES, range(5000, 5006), (True, False)):
        yield _trust(name, trusting, 2.0, 300, seed)


def _trust(*values: Any) -> dict[str, Any]:
    return dict(zip(("name", "trusting", "epsilon", "T", "seed"), values, strict=True))


def cost() -> Iterable[dict[str, Any]]:
    """CPU time."""
    for kind, where in product(classes(REWARD), ("arms", "box")):
        yield {"kind": kind, "where": where, "seed": 0}


def _private(*values: Any) -> dict[str, Any]:
    names = ("name", "kind", "epsilon", "mechanism", "symmetric", "scale", "T", "seed")
    return dict(zip(names, values, strict=True))


PARTS: dict[str, tuple[Callable[[], Iterable[dict[str, Any]]], Callable[..., Row]]] = {
    "raw": (raw, run_raw),
    "published": (published, run_private),
    "widths": (widths, run_private),
    "mechanisms": (mechanisms, run_private),
    "trust": (trust, run_trust),
    "boxes": (boxes, run_trust),
    "floor": (floor, run_floor),
    "samplers": (samplers, run_sampler),
    "cost": (cost, run_cost),
}


def carry_out(task: tuple[str, dict[str, Any]]) -> Row:
    """One task of a part."""
    part, arguments = task
    return {**arguments, **PARTS[part][1](**arguments)}


def summarised(rows: list[Row]) -> list[Row]:
    """Mean and standard error over the seeds of each setting."""
    groups: dict[str, list[Row]] = {}
    keys = ("regret", "fraction", "ms_per_trial")
    for row in rows:
        setting = {k: v for k, v in row.items() if k not in (*keys, "seed")}
        groups.setdefault(json.dumps(setting), []).append(row)
    return [{**json.loads(setting), **_mean(group, keys)} for setting, group in groups.items()]


def _mean(group: list[Row], keys: Iterable[str]) -> Row:
    summary: Row = {"seeds": len(group)}
    for key in keys:
        values = np.array([row[key] for row in group if key in row])
        if len(values):
            summary[key] = round(float(values.mean()), 4)
            summary[f"{key}_se"] = round(float(values.std(ddof=1) / math.sqrt(len(values))), 4)
    return summary


def show(part: str, rows: list[Row]) -> None:
    """The table of one part."""
    print(f"\n{part}")
    for row in rows:
        told = {k: (f"{v:.3g}" if isinstance(v, float) else v) for k, v in row.items()}
        reference = REFERENCE.get((row.get("kind", ""), row.get("T", 0)))
        if part == "raw" and row["name"] == "stocks" and reference is not None:
            told["reference"] = reference
        print("  " + ", ".join(f"{k}={v}" for k, v in told.items()))


def draw(results: dict[str, Any], path: Path) -> None:
    """One panel a part: regret as a fraction of a uniform choice's, with standard errors."""
    import matplotlib as mpl

    mpl.use("Agg")
    import matplotlib.pyplot as plt

    panels = {
        "as published, eps = 1, T = 3000": [
            (f"{r['name']}\n{r['kind']}", r)
            for r in results.get("published", [])
            if r["epsilon"] == 1.0 and r["T"] == 3000
        ],
        "plain GP-UCB, true range, eps = 1, T = 3000": [
            (f"{r['name']}\n{r['mechanism']}", r)
            for r in results.get("mechanisms", [])
            if r["epsilon"] == 1.0 and r["scale"] == 1.0
        ],
        "Optuna samplers behind ldp_objective, eps = 1": [
            (f"{r['name']}\n{r['kind'].removesuffix('Sampler')}\nT={r['T']}", r)
            for r in results.get("samplers", [])
        ],
    }
    figure, axes = plt.subplots(len(panels), 1, figsize=(13, 12))
    for axis, (title, bars) in zip(axes, panels.items(), strict=True):
        heights, errors = ([r[key] for _, r in bars] for key in ("fraction", "fraction_se"))
        axis.bar(range(len(bars)), heights, yerr=errors, capsize=3, color="#4477aa")
        axis.set_xticks(range(len(bars)), [label for label, _ in bars], fontsize=6.5)
        axis.axhline(1.0, color="#bb5566", linewidth=1)
        axis.set_title(title, fontsize=10)
        axis.set_ylabel("regret / uniform choice")
    figure.tight_layout()
    figure.savefig(path, dpi=110)


def main() -> None:
    """Runs the parts that are asked for and keeps the results of the others."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--parts", nargs="+", choices=PARTS, default=list(PARTS))
    parser.add_argument("--jobs", type=int, default=2)
    given = parser.parse_args()
    for path in DATA.values():
        if not path.exists():
            print(f"{path.name} is not there: its problems are left out.")
    path = RESULTS / "local_rewards.json"
    results = json.loads(path.read_text()) if path.exists() else {}
    for part in given.parts:
        tasks = [(part, arguments) for arguments in PARTS[part][0]()]
        jobs = 1 if part == "cost" else given.jobs
        with ProcessPoolExecutor(jobs) as pool:
            done = list(tqdm(pool.map(carry_out, tasks), total=len(tasks), desc=part))
        results[part] = done if part == "cost" else summarised(done)
        results["machine"] = {"python": platform.python_version(), "numpy": np.__version__}
        path.write_text(json.dumps(results, indent=1) + "\n")
        show(part, results[part])
    draw(results, path.with_suffix(".png"))


if __name__ == "__main__":
    main()
