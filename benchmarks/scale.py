"""What a trial costs after a thousand, ten thousand and a hundred thousand others.

``python -m benchmarks.scale`` runs trials one after another and measures windows of them: CPU and
wall time of a trial, bytes that the searcher saves, bytes of what it holds, and the largest
resident memory of the process so far.

Parts, each of which can be run alone (``--part``; a part that is run again replaces its figures):

- ``dp_gibo``: DPGIBOSearch through Tune's hooks and the operations of its host, without Ray's
  processes and folders, in steps of three trials, saved after every hundredth. The run grows in
  memory; at each mark its vault is copied into a SQLite file (and into the database that
  ``--postgresql`` names), and a window of trials runs on the copy.
- ``rewards``: LDPGPUCBSearch and the users' ledger in the same way, with a model that only keeps
  what it is told: Gaussian processes have a cost of their own.
- ``optuna``: DPGIBOSampler in an in-memory study, and RandomSampler, which shows what Optuna's
  own reading and copying costs.

``--write`` keeps the figures in ``benchmarks/results/scale.json`` and draws ``scale.png``.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import resource
import tempfile
import time
import uuid
import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")

import numpy as np
import ray.cloudpickle as cloudpickle
from numpy.typing import NDArray
from ray import tune
from tqdm import tqdm

from privbo_plugins.algorithms.protocols import Evaluation
from privbo_plugins.store.release import draw_reward
from raytune_searchers import DPGIBOSearch, LDPGPUCBSearch
from raytune_searchers._channel import Channel

RESULTS = Path(__file__).parent / "results" / "scale.json"

SPACE = {"x": tune.uniform(0.0, 1.0), "y": tune.uniform(0.0, 1.0)}
N_RECORDS = 200
SAVED_EVERY = 100
WINDOW = 300
MARKS = (1_000, 10_000, 100_000)
OPTUNA_MARKS = (1_000, 10_000)

Array = NDArray[np.float64]
Trial = Callable[[Any, str], None]


class Clock:
    """CPU and wall milliseconds of a trial."""

    def __init__(self) -> None:
        self._cpu, self._wall = time.process_time(), time.perf_counter()

    def of(self, trials: int) -> dict[str, float]:
        """Since it was made."""
        cpu, wall = time.process_time() - self._cpu, time.perf_counter() - self._wall
        return {
            "cpu_ms": round(cpu / trials * 1e3, 3),
            "wall_ms": round(wall / trials * 1e3, 3),
        }


# Searchers without Ray --------------------------------------------------------------------------


class _Near:
    """A searcher whose host is an object of this process."""

    _channel: Channel | None
    host: Any = None

    def _open(self) -> Channel:
        if self._channel is None:
            self._channel = self.joined(None)
        return self._channel

    def joined(self, url: str | None) -> Channel:
        """A channel to a new host over a vault."""
        search: Any = self
        settings = search._settings()
        host = search._HOST(settings, url)
        channel: Channel = Channel(host.name, host.call)
        vault_id, _ = channel.call("join", settings)
        search._vault_id, search.host = vault_id, host
        return channel

    _OF_THIS_PROCESS = "host"


class NearDPGIBO(_Near, DPGIBOSearch):
    """DP-GIBO."""


class NearRewards(_Near, LDPGPUCBSearch):
    """Rewards, with a model that only keeps what it is told."""

    def _learned(self, _space: Any) -> Any:
        if self._model is None:
            model: Any = _Kept(self._scheduler)
            self._model = model
        return self._model


class _Kept:
    """In the place of a transcript and of its algorithm."""

    def __init__(self, state: Mapping[str, Any]) -> None:
        self.algorithm, self._evaluations = self, list(state["evaluations"])
        self._rng = np.random.default_rng(0)

    def next(self, *_: Any, **__: Any) -> Evaluation:
        return Evaluation(self._rng.random(2))

    def tell(self, _trial: str, evaluation: Evaluation, value: float) -> None:
        self._evaluations.append((evaluation.x.tolist(), value))

    def state_dict(self) -> dict[str, Any]:
        return {"evaluations": list(self._evaluations)}


def trial_on_records(losses: Array) -> Trial:
    """A trial from its suggestion to its end; the trainable's side too."""

    def run(search: Any, trial: str) -> None:
        config = search.suggest(trial)
        channel = search._open()
        entry = channel.call("enter", trial, uuid.uuid4().hex)
        x = np.asarray(entry.details[1])
        value = channel.call_sealed("tell", trial, (losses, None), x)
        _ended(search, trial, config, value)

    return run


def trial_on_rewards(search: Any, trial: str) -> None:
    """The same of one user's reward."""
    config = search.suggest(trial)
    channel = search._open()
    channel.call_sealed("enter", trial, None)
    _, token = channel.call_sealed("charge", trial, None)
    drawn = draw_reward(search.mechanism, 0.5, 0.0, None)
    value = channel.call("store", trial, token, drawn)
    _ended(search, trial, config, value)


def _ended(search: Any, trial: str, config: Mapping[str, Any], value: float) -> None:
    own = {"trial_id": trial, "training_iteration": 1}
    result = {search.metric: value, **own, **{f"config/{n}": v for n, v in config.items()}}
    search.on_trial_result(trial, result)
    search.on_trial_complete(trial, result)


# Windows ----------------------------------------------------------------------------------------


def window(search: Any, run: Trial, first: int, n: int, folder: Path) -> dict[str, Any]:
    """Figures of n trials, saves included."""
    clock = Clock()
    for i in range(first, first + n):
        run(search, f"t{i:07d}")
        if i % SAVED_EVERY == 0:
            search.save_to_dir(str(folder), "s")
    figures: dict[str, Any] = clock.of(n)
    search.save_to_dir(str(folder), "s")
    figures["saved_bytes"] = (folder / "searcher-state-s.pkl").stat().st_size
    figures["held_bytes"] = len(cloudpickle.dumps(_held(search)))
    figures["rss_mb"] = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024
    return figures


def _held(search: Any) -> dict[str, Any]:
    """Everything that the driver's object holds; not the host, which is elsewhere in truth."""
    ours = {"_channel", "_anchor", "host"}
    return {name: value for name, value in vars(search).items() if name not in ours}


@contextmanager
def on_a_copy(search: Any, url: str) -> Iterator[None]:
    """Over a copy of its vault; afterwards the search is what it was."""
    import sqlalchemy as sa

    from privbo_plugins.store import tables

    source = search.host._session.run.vault._engine
    engine = sa.create_engine(url)
    if engine.url.get_backend_name() == "sqlite":
        Path(str(engine.url.database)).touch(0o600)
    tables.metadata.drop_all(engine)
    tables.metadata.create_all(engine)
    with source.connect() as there, engine.begin() as here:
        for table in tables.metadata.sorted_tables:
            for rows in there.execute(sa.select(table)).mappings().partitions(5_000):
                here.execute(sa.insert(table), [dict(row) for row in rows])
    engine.dispose()
    kept = {name: getattr(search, name) for name in ("_channel", "host", "_known")}
    search._channel = search.joined(url)
    try:
        yield
    finally:
        vars(search).update(kept)


def grown(
    search: Any, run: Trial, marks: tuple[int, ...], databases: Mapping[str, str]
) -> dict[str, Any]:
    """Windows at each mark: of the vault in memory, and of copies of it in databases."""
    found: dict[str, Any] = {name: {} for name in ("memory", *databases)}
    search.set_search_properties(None, None, SPACE, num_samples=-1)
    bar = tqdm(total=marks[-1] + WINDOW, desc=type(search).__name__)
    done = 0
    with tempfile.TemporaryDirectory() as name:
        for mark in marks:
            while done < mark:
                n = min(SAVED_EVERY, mark - done)
                window(search, run, done + 1, n, Path(name))
                done += n
                bar.update(n)
            for database, url in databases.items():
                with on_a_copy(search, url.format(folder=name, mark=mark)):
                    window(search, run, 10**6, 20, Path(name))  # the first ones open things
                    figures = window(search, run, 2 * 10**6, WINDOW, Path(name))
                    found[database][mark] = figures
            found["memory"][mark] = window(search, run, done + 1, WINDOW, Path(name))
            done += WINDOW
            bar.update(WINDOW)
    return found


def dp_gibo(marks: tuple[int, ...], postgresql: str | None) -> dict[str, Any]:
    """DP-GIBO with its vault in memory and in databases."""
    databases = {"sqlite": "sqlite:///{folder}/v{mark}.db"}
    databases |= {} if postgresql is None else {"postgresql": postgresql}
    search = NearDPGIBO(mu=1.0, metric="loss", mode="min", n_steps=marks[-1], seed=1)
    losses = np.random.default_rng(0).random(N_RECORDS)
    return grown(search, trial_on_records(losses), marks, databases)


def rewards(marks: tuple[int, ...], _postgresql: str | None) -> dict[str, Any]:
    """The users' ledger, without a model."""
    search = NearRewards(1.0, value_range=(0.0, 1.0), metric="reward", mode="max", seed=1)
    return grown(search, trial_on_rewards, marks[:2], {"sqlite": "sqlite:///{folder}/v{mark}.db"})


def optuna_samplers(_marks: tuple[int, ...], _postgresql: str | None) -> dict[str, Any]:
    """DP-GIBO and random search in a study in memory."""
    import optuna

    from optuna_samplers import DPGIBOSampler

    optuna.logging.set_verbosity(optuna.logging.WARNING)
    losses = np.random.default_rng(0).random(N_RECORDS)
    float_ = optuna.distributions.FloatDistribution(0.0, 1.0)
    private = DPGIBOSampler(
        mu=1.0, n_steps=OPTUNA_MARKS[-1], seed=1, search_space={"x": float_, "y": float_}
    )

    def suggested(trial: Any) -> float:
        return float(trial.suggest_float("x", 0.0, 1.0) + trial.suggest_float("y", 0.0, 1.0))

    def vector(trial: Any) -> Array:
        suggested(trial)
        return losses

    arms: dict[str, tuple[Any, Callable[[Any], Any]]] = {
        "random": (optuna.samplers.RandomSampler(seed=1), suggested),
        "dp_gibo": (private, private.private(vector)),
    }
    return {name: _study(name, *arm) for name, arm in arms.items()}


def _study(name: str, sampler: Any, objective: Callable[[Any], Any]) -> dict[int, Any]:
    import optuna

    study, found, done = optuna.create_study(sampler=sampler), {}, 0
    bar = tqdm(total=OPTUNA_MARKS[-1] + WINDOW, desc=f"optuna, {name}")
    for mark in OPTUNA_MARKS:
        while done < mark:
            study.optimize(objective, n_trials=100)
            done += 100
            bar.update(100)
        clock = Clock()
        study.optimize(objective, n_trials=WINDOW)
        found[mark] = clock.of(WINDOW)
        done += WINDOW
        bar.update(WINDOW)
    return found


PARTS = {"dp_gibo": dp_gibo, "rewards": rewards, "optuna": optuna_samplers}


def draw(result: Mapping[str, Any]) -> None:
    """CPU time of a trial by the number of trials before it."""
    import matplotlib as mpl

    mpl.use("Agg")
    import matplotlib.pyplot as plt

    figure, axes = plt.subplots(figsize=(6, 4))
    for part, arms in result["parts"].items():
        for arm, windows in arms.items():
            marks = [int(mark) for mark in windows]
            times = [of["cpu_ms"] for of in windows.values()]
            axes.plot(marks, times, marker="o", label=f"{part}, {arm}")
    axes.set(xscale="log", yscale="log", xlabel="trials before", ylabel="CPU ms a trial")
    axes.legend(fontsize=7)
    figure.tight_layout()
    figure.savefig(RESULTS.with_suffix(".png"), dpi=120)


def main() -> None:
    """Runs the parts that are asked for."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--part", choices=PARTS, action="append", help="all of them by default")
    parser.add_argument("--most", type=int, default=MARKS[-1], help="no mark beyond it")
    parser.add_argument(
        "--postgresql", help="URL (postgresql+psycopg://) of a database to overwrite"
    )
    parser.add_argument("--write", action="store_true", help=f"keep the figures in {RESULTS}")
    arguments = parser.parse_args()
    warnings.simplefilter("ignore")  # noise that drowns the signal of 200 records is no matter
    marks = tuple(mark for mark in MARKS if mark <= arguments.most)
    result = json.loads(RESULTS.read_text()) if RESULTS.exists() else {"parts": {}}
    for part in arguments.part or PARTS:
        began = os.getloadavg()[0]
        found = PARTS[part](marks, arguments.postgresql)
        result["parts"][part] = json.loads(json.dumps(found))
        result.setdefault("load", {})[part] = [round(began, 1), round(os.getloadavg()[0], 1)]
        result["machine"] = f"{os.cpu_count()} CPUs, Python {platform.python_version()}"
        print(json.dumps({part: found}, indent=2))
        if arguments.write:
            RESULTS.write_text(json.dumps(result, indent=2) + "\n")
            draw(result)


if __name__ == "__main__":
    main()
