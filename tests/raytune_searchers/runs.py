"""Small private experiments that several test modules run."""

import numpy as np
from ray import tune

from raytune_searchers import DPGIBOSearch
from tests.inside import call_host, channel_of, tell

RECORDS = np.random.default_rng(11).uniform(0.4, 0.9, size=120)
"""The private validation records of most tests."""

SETTINGS = {
    "metric": "loss", "mode": "min", "n_starts": 2, "n_steps": 2, "seed": 3,
    "value_share": 0.2, "lengthscale": 0.25, "noise_ratio": 0.01, "step_rule": "adagrad-norm",
    "step_size": 0.15, "memory": 0,
}  # fmt: skip
"""Everything that a default could change."""

LINE = {"x": tune.uniform(0.0, 1.0)}
"""One parameter: with :data:`SETTINGS` a plan of 9 trials."""

PLANE = {"x": tune.uniform(0.0, 1.0), "n": {"y": tune.uniform(-2.0, 2.0)}, "c": 5}
"""Two parameters and a constant: a plan of 11 trials."""


def make_search(mu=1.0, **settings):
    """A short plan: two start points, two steps."""
    return DPGIBOSearch(mu, **(SETTINGS | settings))


def squares(config):
    """One parameter; a loss a record."""
    records = np.random.default_rng(11).uniform(0.4, 0.9, size=120)
    return np.asarray((config["x"] - records) ** 2)


def fit(*experiment, **settings):
    """Runs an experiment quietly and returns its ResultGrid; arguments as :func:`tuner`'s."""
    return tuner(*experiment, **settings).fit()


def tuner(
    search,
    trainable,
    folder,
    *,
    param_space=None,
    name="run",
    failure=None,
    callbacks=(),
    **tune_settings,
):
    """The Tuner of a quiet experiment."""
    settings = {"search_alg": search, "num_samples": -1, "reuse_actors": True} | tune_settings
    return tune.Tuner(
        trainable,
        param_space=LINE if param_space is None else param_space,
        tune_config=tune.TuneConfig(**settings),
        run_config=tune.RunConfig(
            storage_path=str(folder),
            name=name,
            verbose=0,
            failure_config=failure or tune.FailureConfig(),
            callbacks=list(callbacks),
        ),
    )


def begun(search):
    """As Tune begins a fit."""
    assert search.set_search_properties(None, None, dict(LINE), num_samples=-1)
    return search


def told(search, trial):
    """One whole trial, through the channels that the driver and the worker use."""
    config = search.suggest(trial)
    channel = channel_of(search)
    channel.call("enter", trial, "attempt")
    value = tell(channel, trial, np.array([config["x"]]), squares(config))
    search.on_trial_complete(trial, {"loss": value, "trial_id": trial})
    return value


def protected(search):
    """What the search says at the moment."""
    return search.guarantee().protected


def ledger(search):
    """Charges, releases and trials whose raw losses are still held."""
    charges, releases, held = call_host(search, "ledger")
    return charges, releases, held


def assert_sound(search, mu=1.0):
    """One charge a release, none twice, and never more than the budget."""
    charges, releases, _ = ledger(search)
    validation = [c for c in charges if c.population == "validation"]
    charged = sorted((c.kind, c.key) for c in validation)
    assert charged == sorted((r.kind, r.key) for r in releases)
    assert len(charged) == len(set(charged))
    assert sum(c.mu**2 for c in validation) <= mu**2 * (1 + 1e-9)


def absent(imported, unwanted):
    """Whether a process has imported none of these, nor a part of one."""
    found = [
        name for name in imported for one in unwanted if name == one or name.startswith(f"{one}.")
    ]
    assert not found, f"imported: {sorted(set(found))}"
    return True
