"""What a trial costs: the sampler's own CPU time, vault and ledger included.

Part 1 compares with TPESampler in the same process, and with the least that a private trial can
take: d = 5 and 20, 1000 records, 50 to 400 trials.
Part 2 is the size of the paper's SVM experiment (d = 103, n = 9000, b = 104, T = 20) with a
synthetic loss, so that only the sampler is timed. Part 3 takes a million records, d = 10 and 200
trials, and reports the peak memory.

    python -m benchmarks.cost [--parts 1 2 3]
"""

from __future__ import annotations

import argparse
import json
import platform
import resource
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np
import optuna
from optuna.distributions import FloatDistribution
from optuna.samplers import BaseSampler, TPESampler

from optuna_samplers import DPGIBOSampler
from optuna_samplers._losses import LossRun
from privbo_plugins.privacy.ledger import Charge
from privbo_plugins.privacy.mechanisms import mean_of_clipped_values
from privbo_plugins.privacy.source import NoiseSource
from privbo_plugins.store.release import Order, Outlet
from privbo_plugins.store.run import begin_or_join
from privbo_plugins.store.vault import open_vault

RESULTS = Path(__file__).parent / "results"
HOOKS = (
    "before_trial",
    "infer_relative_search_space",
    "sample_relative",
    "sample_independent",
    "after_trial",
)
REFERENCE_SECONDS_PER_STEP = {"authors, d=100": 6.3, "GIBO's own code, d=100, later steps": 1152.0}
"""Point selection alone, one thread, as measured for the published implementations."""


class Stopwatch:
    """Adds up the CPU time that some methods of one object take; nested calls count once."""

    def __init__(self, target: Any, names: tuple[str, ...]) -> None:
        self.seconds, self._depth = 0.0, 0
        for name in names:
            setattr(target, name, self.timed(getattr(target, name)))

    def timed(self, method: Callable[..., Any]) -> Callable[..., Any]:
        """A method, or one of another object, whose time counts."""

        def timed(*args: Any, **kwargs: Any) -> Any:
            self._depth += 1
            start = time.process_time()
            try:
                return method(*args, **kwargs)
            finally:
                self._depth -= 1
                if self._depth == 0:
                    self.seconds += time.process_time() - start

        return timed


class Least(BaseSampler):
    """Random points; one charge, one draw and one release a trial, in one transaction.

    It has neither plan nor search, checks no budget, audits nothing and shows draws: what it takes
    is a floor, and no sampler to use.

    Args:
        d: Number of parameters.
    """

    def __init__(self, d: int) -> None:
        self._space = {f"x{i}": FloatDistribution(0, 1) for i in range(d)}
        self._rng, self._run = np.random.default_rng(0), begin_or_join(open_vault(), "least", {})
        self._outlet = Outlet(self._run)

    def infer_relative_search_space(self, *_call: Any) -> Any:
        """The whole space."""
        return self._space

    def sample_relative(self, *_call: Any) -> dict[str, Any]:
        """A random point."""
        return dict(zip(self._space, self._rng.random(len(self._space)).tolist(), strict=True))

    def sample_independent(self, *_call: Any) -> Any:
        """Every parameter is in the space."""
        raise NotImplementedError

    def private(self, objective: Callable[[Any], Any]) -> Callable[[Any], float]:
        """Wraps an objective that returns losses."""
        return lambda trial: self.tell(str(trial.number), objective(trial))

    def tell(self, key: str, losses: Any) -> float:
        """Releases the mean of a trial's losses."""

        def draw(noise: NoiseSource) -> dict[str, Any]:
            exact = mean_of_clipped_values([losses[:, None]], 0.0, 1.0, 1.0)
            return {"values": noise.add_gaussian(exact, 0.1).tolist()}

        cost = Charge("value", key, 0.01, 0.001, 0.1)
        with self._run.transaction() as tx:
            told = self._outlet.release(tx, Order("value", key, lambda tx: tx.charge(cost)), draw)
        return float(told["values"][0])


def measure(sampler: BaseSampler, d: int, n_records: int, n_trials: int | None) -> dict[str, Any]:
    """Runs one study and returns CPU milliseconds a trial spent in the sampler."""
    noise = np.random.default_rng(0).normal(0, 0.05, n_records)
    private = isinstance(sampler, DPGIBOSampler | Least)

    def objective(trial: Any) -> Any:
        x = np.array([trial.suggest_float(f"x{i}", 0, 1) for i in range(d)])
        value = float(((x - 0.3) ** 2).mean())
        return value + noise if private else value

    watch = Stopwatch(sampler, (*HOOKS, "tell") if isinstance(sampler, Least) else HOOKS)
    study = optuna.create_study(sampler=sampler)
    function: Any = objective
    if isinstance(sampler, DPGIBOSampler | Least):
        function = sampler.private(objective)
    start = time.perf_counter()
    with mock.patch.object(LossRun, "tell", watch.timed(LossRun.tell)):
        study.optimize(function, n_trials=n_trials)
    count = len(study.get_trials(deepcopy=False))
    return {
        "trials": count,
        "sampler_seconds": watch.seconds,
        "ms_per_trial": 1e3 * watch.seconds / count,
        "wall_seconds": time.perf_counter() - start,
    }


def beside_tpe(repeats: int = 5) -> list[dict[str, Any]]:
    """The sampler's CPU time a trial: ours, a floor and TPE's in turn, the quickest of repeats.

    What else runs on the machine makes all of them slower, never quicker.
    """
    measure(DPGIBOSampler(mu=1, seed=0, n_steps=2), 2, 100, None)  # imports happen once
    rows = []
    for d in (5, 20):
        for n in (50, 100, 200, 400):
            ours, least, tpe = [], [], []
            for seed in range(repeats):
                K = min(10, n // 4)
                steps = max(1, (n - K - 1) // (d + 1))
                sampler = DPGIBOSampler(mu=1, seed=seed, n_starts=K, n_steps=steps)
                ours.append(measure(sampler, d, 1000, n)["ms_per_trial"])
                least.append(measure(Least(d), d, 1000, n)["ms_per_trial"])
                tpe.append(measure(TPESampler(seed=seed), d, 1000, n)["ms_per_trial"])
            row = {"d": d, "trials": n, "ours_ms": min(ours), "tpe_ms": min(tpe)}
            row["least_ms"] = min(least)
            row["ratio"] = row["ours_ms"] / row["tpe_ms"]
            rows.append({k: float(v) for k, v in row.items()})
            print(
                f"d={d:<3} {n:>4} trials: DP-GIBO {row['ours_ms']:.3f} ms, "
                f"least {row['least_ms']:.3f} ms, TPE "
                f"{row['tpe_ms']:.3f} ms a trial, ratio {row['ratio']:.2f}"
            )
    return rows


def large(which: str) -> dict[str, Any]:
    """One large run in a process of its own, so that its peak memory is its own."""
    command = [sys.executable, "-m", "benchmarks.cost", "--child", which]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    result: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return result


def child(which: str) -> dict[str, Any]:
    """The body of :func:`large`."""
    if which == "paper-svm":
        d, n, limit = 103, 9000, None
        sampler = DPGIBOSampler(
            mu=1,
            seed=0,
            n_steps=20,
            batch_size=104,
            search_space={f"x{i}": FloatDistribution(0, 1) for i in range(d)},
        )
    else:
        d, n, limit = 10, 10**6, 200
        sampler = DPGIBOSampler(mu=1, seed=0, n_steps=17, n_starts=12)
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    result = measure(sampler, d, n, limit)
    after = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    memory = {"rss_before_mib": before / 1024, "peak_mib": after / 1024}
    return result | memory | {"d": d, "n_records": n}


def main() -> None:
    """Runs the parts asked for and writes JSON."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n", 1)[0])
    parser.add_argument("--parts", nargs="+", type=int, default=[1, 2, 3], choices=[1, 2, 3])
    parser.add_argument("--out", type=Path, default=RESULTS)
    parser.add_argument("--child", choices=["paper-svm", "million"])
    arguments = parser.parse_args()
    optuna.logging.set_verbosity(optuna.logging.ERROR)
    if arguments.child:
        print(json.dumps(child(arguments.child)))
        return
    arguments.out.mkdir(parents=True, exist_ok=True)
    kept = arguments.out / "cost.json"
    record: dict[str, Any] = json.loads(kept.read_text()) if kept.exists() else {}
    record["python"] = platform.python_version()
    if 1 in arguments.parts:
        record["beside_tpe"] = beside_tpe()
    if 2 in arguments.parts:
        run = record["paper_svm"] = large("paper-svm") | {"reference": REFERENCE_SECONDS_PER_STEP}
        print(
            f"d=103, n=9000, b=104, T=20: {run['sampler_seconds']:.2f} s in the sampler over "
            f"{run['trials']} trials ({run['sampler_seconds'] / 20:.3f} s a step; the authors' "
            f"point selection alone 6.3 s a step), peak {run['peak_mib']:.0f} MiB"
        )
    if 3 in arguments.parts:
        run = record["million_records"] = large("million")
        print(
            f"n=10^6, d=10, {run['trials']} trials: {run['sampler_seconds']:.1f} s in the "
            f"sampler, peak {run['peak_mib']:.0f} MiB ({run['rss_before_mib']:.0f} before)"
        )
    kept.write_text(json.dumps(record, indent=1))


if __name__ == "__main__":
    main()
