"""The trials of a search as an experiment of Ray Tune's.

Workers get the records through Ray's object store: on a cluster nobody else can bring them there.
They belong to an actor that ends with the search, and are gone with it; what
``tune.with_parameters`` is given stays in the store until Ray is shut down.
"""

from __future__ import annotations

import copy
import dataclasses
import functools
import math
import uuid
from collections.abc import Mapping, Sequence
from typing import Any

import ray
from ray import tune
from ray.tune.search import SearchAlgorithm, Searcher

from privbo_plugins.errors import ObjectiveFailedError, paid_for
from privbo_plugins.scores.score import sd_of
from privbo_plugins.spaces import Categorical, Dimension, Float
from raytune_searchers import DPGIBOSearch, private_trainable
from sklearn_search._found import Found
from sklearn_search._records import Task

_NOTE = (
    "the records travelled to the trials through Ray's object store, which whoever can run code "
    "on the cluster can read, and which may spill to disk"
)

_FAILED = (
    "A trial failed: the estimator could not be fitted, or records could not be scored, or its "
    "process died. What it said is withheld, because exception texts quote data and Ray "
    "stores them; fit a clone of the estimator by yourself to see it, or run the search with "
    "backend='optuna', which shows what happens while training."
)

_RELEASE = "privbo_release"


class Holder:
    """Owns the records of one search in Ray's object store, as long as it lives.

    Args:
        task: What a trial does.
    """

    def __init__(self, task: Task) -> None:
        self._task = ray.put(task)

    def task(self) -> list[Any]:
        """Returns the reference to the task in a list, because Ray would fetch a bare one."""
        return [self._task]


def trial_losses(config: dict[str, Any], *, holder: str) -> Any:
    """One loss a validation record, in a trial's process.

    Args:
        config: The trial's.
        holder: Name of the actor that owns the records.
    """
    (task,) = ray.get(ray.get_actor(holder).task.remote())
    return ray.get(task).losses(config)


def search(given: Any, task: Task, config: Any, planned: int, begin: Any) -> Found:
    """Runs the trials of a plan.

    Args:
        given: The search's settings.
        task: What a trial does.
        config: The algorithm's settings by name.
        planned: Trials that the plan has.
        begin: Takes the name of the run before anything is spent.

    Raises:
        ValueError: If it shall go on with an earlier study, ``sampler`` is no searcher of Tune's,
            or the space has steps that Tune has not.
        ObjectiveFailedError: If a trial failed.
    """
    _check(given)
    space = {name: domain(name, dim) for name, dim in task.parameters.dimensions.items()}
    name = f"sklearn-search-{uuid.uuid4().hex}"
    trainable = functools.partial(trial_losses, holder=name)
    verbs, private, own, tuned = _private(given, task, config, planned, space, trainable)
    begin(name)
    holder = ray.remote(num_cpus=0)(Holder).options(name=name).remote(task)
    try:
        results = tune.Tuner(
            private,
            param_space=space,
            tune_config=tune.TuneConfig(
                **tuned,
                max_concurrent_trials=_at_once(given.n_jobs),
                time_budget_s=given.timeout,
                reuse_actors=True,
            ),
            run_config=tune.RunConfig(
                name=given.study_name,
                storage_path=None if given.storage is None else str(given.storage),
                verbose=given.verbose,
                callbacks=[*own, *(given.callbacks or ())],
                failure_config=tune.FailureConfig(fail_fast=True),
            ),
        ).fit()
        if results.errors:
            raise ObjectiveFailedError(_FAILED)
        names = [score.name for score in config.get("scores", ())]
        found = _found(given, results, verbs, space, names, task)
        verbs.purge()  # an experiment is never gone on with
        return found
    finally:
        ray.kill(holder)
        verbs.close()


def _private(
    given: Any, task: Task, config: Any, planned: int, space: Mapping[str, Any], trainable: Any
) -> tuple[Any, Any, list[Any], dict[str, Any]]:
    """Makes what has the verbs, what Tune runs, its callbacks, and settings of Tune's."""
    mode = "max" if task.sign > 0 else "min"
    kept = {"seed": given.seed, "vault": given.vault, "metric": "loss", "mode": mode, **task.whose}
    if given.method == "dp-gibo":
        verbs = DPGIBOSearch(**config, **kept)
        return verbs, verbs.private(trainable), [], {"search_alg": verbs, "num_samples": -1}
    private = private_trainable(trainable, param_space=space, **config, **kept)
    tuned = {"search_alg": copy.deepcopy(given.sampler), "num_samples": planned}
    return private, private, [private.callback], tuned | {"metric": private._metric, "mode": mode}


def _check(given: Any) -> None:
    if given.load_if_exists:
        raise ValueError(
            "load_if_exists= goes on with a study of Optuna's; backend='ray' begins an experiment "
            "each time. To restore one, use raytune_searchers.DPGIBOSearch itself."
        )
    if not all(isinstance(one, tune.Callback) for one in given.callbacks or ()):
        raise ValueError("callbacks= of backend='ray' are ray.tune.Callback's: no study is there.")
    if given.sampler is not None and not isinstance(given.sampler, Searcher | SearchAlgorithm):
        raise ValueError(
            f"With backend='ray', sampler= takes a searcher of Ray Tune's, got a "
            f"{type(given.sampler).__name__}: ray.tune.search.optuna.OptunaSearch(sampler=...) "
            "makes one of Optuna's samplers."
        )


def _at_once(n_jobs: int | None) -> int:
    if n_jobs != -1:
        return n_jobs or 1
    if not ray.is_initialized():
        ray.init()  # as Tune would
    return max(1, int(ray.cluster_resources().get("CPU", 1)))


@paid_for()
def _found(
    given: Any, results: Any, verbs: Any, space: Mapping[str, Any], names: Sequence[str],
    task: Task,
) -> Found:  # fmt: skip
    drawn = given.method == "dp-gibo" and given.mu != math.inf  # what stands beside an estimate
    metric = verbs._metric
    shown = [(r.config, r.metrics) for r in results if r.error is None and metric in r.metrics]
    trials = [
        (
            config, told[metric], told.get(_RELEASE, math.nan if drawn else told[metric]),
            {name: (told[name], told[sd_of(name)]) for name in names},
        )
        for config, told in shown
    ]  # fmt: skip
    recommended = verbs.recommend(dict(space))
    if given.refit or task.last:
        verbs._call("charge_training", f"refit/{uuid.uuid4().hex}")
    last = task.released_last(recommended, lambda *told: verbs.release_score(*told))
    known = verbs.guarantee(results)
    claim = dataclasses.replace(known, notes=(*known.notes, _NOTE))
    more = {"results_": results}, verbs.history(), verbs.status()
    return Found(recommended, claim, trials, *more, last)


def domain(name: str, dim: Dimension) -> Any:
    if isinstance(dim, Categorical):
        return tune.choice(list(dim.choices))
    if isinstance(dim, Float):
        if dim.step is None:
            return (tune.loguniform if dim.log else tune.uniform)(dim.low, dim.high)
        _check_step(name, dim)
        return (tune.qloguniform if dim.log else tune.quniform)(dim.low, dim.high, dim.step)
    if dim.step == 1:
        return (tune.lograndint if dim.log else tune.randint)(dim.low, dim.high + 1)
    _check_step(name, dim)
    return (tune.qlograndint if dim.log else tune.qrandint)(dim.low, dim.high, dim.step)


def _check_step(name: str, dim: Any) -> None:
    """Tune's steps are multiples of the step itself, Optuna's begin at the lower end."""
    if not math.isclose(dim.low / dim.step, round(dim.low / dim.step), abs_tol=1e-9):
        raise ValueError(
            f"param_distributions[{name!r}] begins at {dim.low}, which is no multiple of its step "
            f"{dim.step}, as Ray Tune needs it. Let it begin at a multiple, list its values, or "
            "take backend='optuna'."
        )
