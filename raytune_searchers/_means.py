"""Any searcher, centrally private: a trainable whose clipped noisy mean is all that it reports.

The experiment keeps its own searcher, scheduler and loggers, which see releases only. The vault's
host is begun by the driver: when the trainable is wrapped, if Ray is running then, else when Tune
first pickles it, before any trial starts. A worker never begins one.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import ray

from privbo_plugins.algorithms.released_means import MeansConfig
from privbo_plugins.plots import History
from privbo_plugins.privacy.guarantee import Guarantee
from privbo_plugins.privacy.settings import NoiseSettings
from privbo_plugins.privacy.source import NoiseSource
from privbo_plugins.settings import again, called_with, part, setting, settings
from raytune_searchers._base import PrivateSearch, TunePlan
from raytune_searchers._settings import SearchSettings, TuneSettings
from raytune_searchers._trainable import Trainable
from raytune_searchers.hosts.base import in_worker
from raytune_searchers.hosts.losses import RunSettings

_NOT_COMPARED = (
    "what the trainable reported was not compared with the ledger: give the results to guarantee"
)


class _Means(PrivateSearch):
    """The driver's way to the run's host; it suggests nothing."""

    _SUGGESTS = False
    _WRAP = "Give tune.Tuner the trainable that private_trainable returned, as it is."

    def _settings(self) -> RunSettings:
        return replace(super()._settings(), ends=True)


class MeansRun:
    """What :func:`private_trainable` keeps of its run; pickled beside the trainable.

    Args:
        search: The way to the run's host.
    """

    def __init__(self, search: PrivateSearch) -> None:
        self._search = search
        self._begin()

    def __getstate__(self) -> dict[str, Any]:
        """A handle and public settings; Tune pickles trainables before it starts any trial."""
        self._begin()
        return self.__dict__.copy()

    def _begin(self) -> None:
        if ray.is_initialized() and not in_worker():
            self._search.guarantee()

    @property
    def plan(self) -> Callable[[int], TunePlan]:
        """``plan(n_records)``: what a run would release, with a warning if that says nothing."""
        return functools.partial(self._search.plan, self._search._param_space)

    def recommend(self, param_space: Mapping[str, Any] | None = None) -> dict[str, Any]:
        """The config with the best posterior mean over everything released.

        It need not be any trial's: ``get_best_result`` gives the luckiest one.

        Args:
            param_space: Needed where constants or choices are objects.

        Raises:
            ValueError: If nothing has been released yet, or objects are hidden.
        """
        return self._search.recommend(param_space)

    def guarantee(self, results: Iterable[Any] = ()) -> Guarantee:
        """What may be claimed for everything that the trainable has reported.

        Args:
            results: The ``ResultGrid`` of ``Tuner.fit``, whose values are compared with the
                ledger's; nothing else has looked at them.
        """
        stored = list(results)
        found = self._search.guarantee(stored)
        return found if stored else replace(found, notes=(*found.notes, _NOT_COMPARED))

    def finished(self) -> bool:
        """Whether the budget is spent."""
        return self._search.finished()

    def history(self) -> History:
        """What the run has published, for :mod:`privbo_plugins.plots`."""
        return self._search.history()

    def summary(self) -> dict[str, Any]:
        """Where the run stands, JSON-ready: see :func:`privbo_plugins.standing.standing`."""
        return self._search.summary()

    def report(self, path: str | Path, results: Iterable[Any] = ()) -> Path:
        """Writes an HTML page, as searchers do."""
        return self._search.report(path, results)

    def close(self) -> None:
        """Ends the vault's actor; a vault in memory is gone then, one in a database is not."""
        self._search.close()


@settings(eq=False)
class _Settings(MeansConfig):
    """Arguments of :func:`private_trainable`."""

    trainable: Trainable = setting(
        "From a config to a vector of shape (n_records,): losses to minimise or scores to "
        "maximise, by ``mode``. Entry i must belong to the same record in every trial and on "
        "every worker; NaN for a record that cannot be scored counts as the worst.",
        kw_only=False,
    )
    param_space: Mapping[str, Any] = setting(
        "The Tuner's own; which config is recommended is found in it."
    )
    mu: float = again(MeansConfig, "mu", default=dataclasses.MISSING)
    metric: str = setting("Under which name the release is reported.", default="loss")
    mode: str = setting('"min" for losses, "max" for scores.', default="min")
    seed: int | None = again(TuneSettings, "seed", default=None)
    vault: str | None = again(SearchSettings, "vault", default=None)
    run_name: str | None = again(SearchSettings, "run_name", default=None)
    noise: NoiseSource | None = again(NoiseSettings, "noise", default=None)


@called_with(_Settings)
def private_trainable(given: _Settings) -> Any:
    """Makes any searcher centrally private: each trial's clipped mean is released with noise.

    The vector goes to the vault, where it is forgotten with its release; what Tune stores and
    shows is mu-GDP for the validation records (replace-one), whatever its searcher and scheduler
    make of it. N releases share mu, so each carries noise of loss_bound sqrt(N) / (n mu). Give
    ``num_samples=N`` to the Tuner: a trial that begins once they are made is refused.

    Call it in the driver. After ``Tuner.restore`` in a new process give the same ``vault=`` and
    ``run_name=`` again.

    {settings}

    Returns:
        A trainable for ``tune.Tuner`` with the attribute ``run`` (:class:`MeansRun`), which has
        ``guarantee(results)`` and ``recommend()``.

    Raises:
        ValueError: For every argument outside its range.
        VaultError: If the vault's database cannot be opened for writing.

    Example:
        >>> from ray import tune
        >>> space = {"x": tune.uniform(0, 1)}
        >>> private = private_trainable(
        ...     lambda config: [config["x"], config["x"] ** 2],
        ...     param_space=space, mu=1, n_trials=30,
        ... )
        >>> print(private.run.plan(n_records=5000))
        Plan of released means: 30 trials, n=5000 records, mu=1 in total
          each trial's clipped mean is released with noise of sd 0.0011 (mu=0.183)
          On Ray Tune: give tune.TuneConfig(max_concurrent_trials=...) the number of trials
          that can run at once; without it Tune starts them one after another.
        >>> # results = tune.Tuner(private, param_space=space, ...).fit()
        >>> # print(private.run.guarantee(results))
    """
    if given.metric is None or given.mode is None:
        raise ValueError("private_trainable needs a metric and a mode of its own.")
    search = _Means(
        part(given, MeansConfig),
        metric=given.metric,
        mode=given.mode,
        search_space=given.param_space,
        seed=given.seed,
        vault=given.vault,
        run_name=given.run_name,
        noise=given.noise,
    )
    private: Any = search.private(given.trainable)
    # Pickled as it is: by its name a worker would import its module, and wrap it once more there.
    private.__qualname__ = f"private_trainable.<locals>.{private.__name__}"
    private.run = MeansRun(search)
    return private
