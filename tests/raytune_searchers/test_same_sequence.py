"""Optuna, Ray Tune and any loop propose the same points, and show the same values."""

import numpy as np
import optuna
import pytest
from optuna.distributions import CategoricalDistribution, FloatDistribution, IntDistribution
from ray import tune

from examples.any_loop import PrivateLoop
from optuna_samplers import DPGIBOSampler
from privbo_plugins.algorithms.dp_gibo import GIBOConfig
from privbo_plugins.errors import PrivacyWarning
from privbo_plugins.privacy.noise import InsecureNoise
from privbo_plugins.spaces import Categorical, Float, Int, Space
from raytune_searchers import DPGIBOSearch
from tests.raytune_searchers.hosts import evaluation
from tests.raytune_searchers.runs import RECORDS, SETTINGS

KINDS = {"far": 0.4, "near": 0.0, "middle": 0.2}

SPACE = {
    "y": (FloatDistribution(-2.0, 2.0), tune.uniform(-2.0, 2.0), Float(-2.0, 2.0)),
    "lr": (
        FloatDistribution(1e-4, 1e-1, log=True), tune.loguniform(1e-4, 1e-1),
        Float(1e-4, 1e-1, log=True),
    ),
    "k": (IntDistribution(1, 6), tune.randint(1, 7), Int(1, 6)),
    "kind": (
        CategoricalDistribution(tuple(KINDS)), tune.choice(list(KINDS)), Categorical(tuple(KINDS))
    ),
}  # fmt: skip
"""Each parameter for Optuna, for Ray Tune and for the engine."""

DESCENT = {name: value for name, value in SETTINGS.items() if name not in ("metric", "mode")} | {
    "mu": 1.0, "n_starts": 3, "n_steps": 3,
}  # fmt: skip

CASES = {
    "descent": (DESCENT, ["y", "lr", "k"], 3 + 3 * 4 + 3, 1e-12),
    "a search by values": ({"mu": 60.0, "seed": 3, "n_trials": 30}, ["y", "lr"], 30, 1e-6),
    "choices": ({"mu": 60.0, "seed": 3, "n_trials": 40}, ["kind", "y"], 40, 1e-6),
}
"""Settings, parameters, the most trials of the plan, and how far sums may differ in rounding."""


def losses(y, lr=1e-3, k=4, kind="near"):
    distance = (y / 4 + 0.5 - RECORDS) ** 2 + (np.log10(lr) / 3 + 1) ** 2 / 4 + abs(k - 4) / 20
    return np.asarray(np.clip(distance + KINDS[kind], 0.0, 1.0))


def suggested(trial, name, known):
    if isinstance(known, CategoricalDistribution):
        return trial.suggest_categorical(name, known.choices)
    suggest = trial.suggest_int if isinstance(known, IntDistribution) else trial.suggest_float
    return suggest(name, known.low, known.high, log=known.log)


def in_a_loop(settings, space, outcome, *, maximize):
    """(points, values, recommendation) of a loop of ours, where ``seed`` is no algorithm's."""
    own = {name: value for name, value in settings.items() if name != "seed"}
    more = {"seed": settings["seed"], "maximize": maximize, "noise": InsecureNoise(5)}
    with pytest.warns(PrivacyWarning, match="the noise came from a test"):
        loop = PrivateLoop(GIBOConfig(**own), Space(space), **more)
    points, values = [], []
    while not loop.finished:
        key, params = loop.ask()
        points.append(params)
        values.append(loop.tell(key, outcome(**params)))
    return points, values, loop.recommend()


@pytest.mark.usefixtures("local_hosts")
@pytest.mark.parametrize(
    ("case", "direction"), [*((case, "minimize") for case in CASES), ("descent", "maximize")]
)
def test_one_algorithm_in_all_hosts(case, direction):
    optuna.logging.set_verbosity(optuna.logging.ERROR)
    settings, names, most, rel = CASES[case]
    maximize = direction == "maximize"
    in_optuna, in_tune, in_engine = ({name: SPACE[name][i] for name in names} for i in range(3))
    sampler = DPGIBOSampler(**settings, search_space=in_optuna, noise=InsecureNoise(5))
    study = optuna.create_study(sampler=sampler, direction=direction)

    def outcome(**params):
        return 1 - losses(**params) if maximize else losses(**params)

    def objective(trial):
        return outcome(
            **{name: suggested(trial, name, known) for name, known in in_optuna.items()}
        )

    search = DPGIBOSearch(**settings, metric="loss", mode=direction[:3], noise=InsecureNoise(5))
    assert search.set_search_properties(None, None, in_tune, num_samples=-1)
    with pytest.warns(PrivacyWarning, match="the noise came from a test"):
        study.optimize(sampler.private(objective))
    with pytest.warns(PrivacyWarning, match="the noise came from a test"):
        trials = evaluation(search, search.private(lambda config: outcome(**config)))
    plan = sampler.plan(in_optuna, len(RECORDS))
    assert len(study.trials) == len(trials) == plan.n_trials <= most
    assert (plan.n_searched > 0) == (case != "descent")
    for theirs, ours in zip(study.trials, trials, strict=True):
        numbers = {name: value for name, value in theirs.params.items() if name != "kind"}
        assert {name: ours.config[name] for name in numbers} == pytest.approx(numbers, rel=rel)
        assert ours.config.get("kind") == theirs.params.get("kind")
        assert ours.metrics["loss"] == pytest.approx(theirs.value, rel=rel)
    for name in {"k", "kind"} & set(names):
        assert len({trial.config[name] for trial in trials}) > 1
    looped = in_a_loop(settings, in_engine, outcome, maximize=maximize)
    of_study = [trial.params for trial in study.trials], [trial.value for trial in study.trials]
    assert looped == (*of_study, sampler.recommend(study))
    found, best = search.recommend(), sampler.recommend(study)
    assert (
        found.pop("kind", None) == best.pop("kind", None) == ("near" if "kind" in names else None)
    )
    assert found == pytest.approx(best, rel=rel)
    for guarantee in (search.guarantee(), sampler.guarantee(study)):
        assert guarantee.mu_spent == pytest.approx(settings["mu"])
    search.close()
