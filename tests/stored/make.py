"""Writes what a released version leaves half-finished; run it inside a checkout of that version.

    $ git clone . ../released && git -C ../released checkout f74a28c
    $ cp -r tests/stored ../released/tests/
    $ cd ../released && python -m tests.stored.make ../privbo-plugins/tests/stored/v0_1

What is written differs each time, for its noise is the operating system's. ``facts.json`` says
what was true when the version stopped. A later version gets a folder of its own, and what its
programs wrote differently goes into a second ``scripts.py``; a folder that is there is never
written again, for nobody can make the files that users have today once more.
"""

from __future__ import annotations

import json
import math
import os
import pickle
import shutil
import sys
import tempfile
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import optuna

import privbo_plugins
from privbo_plugins.algorithms.po_gp_ucb import ReleasedTable
from tests.stored import scripts
from tests.stored.files import keep

FIGURES = (
    "mu", "mu_spent", "n_releases", "n_records", "epsilon", "delta", "epsilon_spent", "n_released",
    "epsilon_evaluation", "delta_evaluation", "epsilon_most", "delta_most", "n_evaluations",
    "most_evaluations", "neighbor_distance", "n_answers",
)  # fmt: skip
"""Of all guarantees; none may ever say less than it did."""


def said(guarantee: Any) -> dict[str, float]:
    """What a guarantee claims, in numbers."""
    known = {name: getattr(guarantee, name, None) for name in FIGURES}
    if known["mu"] is not None:
        known |= {"epsilon": guarantee.epsilon(1e-5), "delta": None}  # a figure for each delta
    numbers = {name: float(value) for name, value in known.items() if value is not None}
    if not guarantee.protected or not all(map(math.isfinite, numbers.values())):
        raise ValueError(f"This run is not protected: {guarantee}")
    return numbers


def values_of(study: optuna.Study) -> dict[str, Any]:
    """Parameters and values of the trials that are over."""
    return {
        str(trial.number): [trial.params, trial.value]
        for trial in study.get_trials(states=(optuna.trial.TrialState.COMPLETE,))
    }


def tuned(folder: Path, program: Callable[..., scripts.Tuning]) -> dict[str, Any]:
    """Some trials, and one that was released when its worker died."""
    run = program(folder)
    run.study.optimize(run.private, n_trials=scripts.HALF)
    (folder / "pickled.pkl").write_bytes(pickle.dumps((run.study.sampler, run.private)))
    lost = run.study.ask()
    release = run.private(lost)
    return {
        "trials": values_of(run.study),
        "lost": [lost.number, lost.params, release],
        "guarantee": said(run.guarantee()),
        "next": next_of(folder, program),
    }


def next_of(folder: Path, program: Callable[..., scripts.Tuning]) -> dict[str, Any]:
    """Where the version itself would have gone next; its own files stay as they are."""
    with tempfile.TemporaryDirectory() as copy:
        shutil.copytree(folder, copy, dirs_exist_ok=True)
        os.environ |= scripts.places(Path(copy))
        run = program(Path(copy))
        trial = run.study.ask()
        run.private(trial)
        os.environ |= scripts.places(folder)
        return dict(trial.params)


def outsourced(folder: Path, *, private: bool) -> dict[str, Any]:
    """A table, some answers, and one that was given when the curator died."""
    holder = scripts.curator(folder, private=private)
    table = holder.release()
    table.save(folder / "table.npz")
    study = scripts.modeler(folder)
    for _ in range(scripts.HALF):
        scripts.question_and_answer(study, holder)
    lost, row = scripts.ask_row(study)
    return {
        "lost": [lost.number, row, holder.evaluate(row)],
        "trials": values_of(study),
        "answers": {str(row): y for row, y in holder.answers().items()},
        "table": table.Z.tolist(),
        "guarantee": said(holder.guarantee()),
        "of the study": said(study.sampler.guarantee(study)),
    }


def exchanged(folder: Path) -> dict[str, Any]:
    """Files of a curator and a modeler."""
    codes = [scripts.release_files(folder), scripts.answer_files(folder, [1, 2, 3])]
    table = ReleasedTable.load(folder / "table.npz")
    return {
        "codes": codes,
        "table": table.Z.tolist(),
        "answers": scripts.told(folder),
        "guarantee": said(table.certificate.guarantee(3)),
    }


def federated(folder: Path, kind: str) -> dict[str, Any]:
    """One round."""
    server = scripts.server(folder, scripts.federation_config(kind))
    studies = scripts.agents(folder, server)
    scripts.federate(studies, 1)
    return {
        "broadcasts": [broadcast.weights.tolist() for broadcast in server.broadcasts()],
        "digests": server.digests(),
        "trials": [values_of(study) for study in studies],
        "guarantee": said(server.guarantee()),
    }


def remembered(folder: Path) -> dict[str, Any]:
    """What an agent on Ray remembers."""
    history = scripts.history(folder)
    for number, x in enumerate((0.25, 0.5, 0.75)):
        point = scripts.SPACE.encode({"x": x, "rate": 0.1, "depth": 3, "kind": "b"})
        history.append(number, point, math.nan if number == 1 else x)
    X, values = history.read()
    return {"X": X.tolist(), "values": values.tolist(), "n_trials": history.n_trials}


def searched(folder: Path, name: str) -> dict[str, Any]:
    """Some trials of an experiment on Ray Tune, and what its search had saved by then."""
    import ray
    from ray import tune

    from tests.stored import searches

    ray.init(num_cpus=2, include_dashboard=False, log_to_driver=False, logging_level="ERROR")
    try:
        search = searches.SEARCHES[name]()
        with tempfile.TemporaryDirectory() as experiments:
            results = tune.Tuner(
                searches.trainable_of(search),
                param_space=searches.LINE if name in searches.TUNED else {},
                tune_config=tune.TuneConfig(
                    search_alg=search, num_samples=searches.N_TRIALS.get(name, 3)
                ),
                run_config=tune.RunConfig(storage_path=experiments, name="run", verbose=0),
            ).fit()
            (saved,) = Path(experiments, "run").glob("searcher-state-*.pkl")
            shutil.copy(saved, folder / "searcher-state-2026.pkl")
            metric = str(search.metric)
            return {
                "trials": {one.metrics["trial_id"]: one.metrics[metric] for one in results},
                "guarantee": said(search.guarantee(results)),
            }
    finally:
        ray.shutdown()


RAY = "ray_records", "ray_gp_ucb", "ray_moma_gp_ucb", "ray_duets", "ray_rows", "ray_federation"

MAKERS: dict[str, Callable[[Path], dict[str, Any]]] = {
    **{
        name: lambda folder, program=program: tuned(folder, program)  # type: ignore[misc]
        for name, program in scripts.TUNING.items()
    },
    "rows": lambda folder: outsourced(folder, private=True),
    "rows_plain": lambda folder: outsourced(folder, private=False),
    "files": exchanged,
    "federation": lambda folder: federated(folder, "prior"),
    "federation_explore": lambda folder: federated(folder, "explore"),
    "agent": remembered,
    **{
        name: lambda folder, name=name: searched(folder, name)  # type: ignore[misc]
        for name in RAY
    },
}


def main(target: Path, only: list[str]) -> None:
    """Makes all that is not there."""
    warnings.simplefilter("ignore")
    optuna.logging.set_verbosity(optuna.logging.ERROR)
    print(f"with the code in {privbo_plugins.__path__[0]}")
    for name, maker in MAKERS.items():
        if (target / name).exists() or (only and name not in only):
            continue
        with tempfile.TemporaryDirectory() as made:
            folder = Path(made)
            os.environ |= scripts.places(folder)
            facts = maker(folder)
            (folder / "facts.json").write_text(json.dumps(facts, indent=1))
            keep(folder, target / name)
        print(name)


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2:])
