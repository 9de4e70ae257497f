"""Searchers that tune on per-record values under central privacy, before a vault's host."""

from __future__ import annotations

import logging
import math
import sys
from collections.abc import Iterable, Mapping
from numbers import Real
from typing import Any, ClassVar

import numpy as np
import ray.cloudpickle as cloudpickle
from numpy.typing import NDArray
from ray.tune.result import TIME_TOTAL_S

from privbo_plugins.algorithms.protocols import CentralConfig, CentralPlan
from privbo_plugins.algorithms.registry import algorithm_of, entry_of, planned
from privbo_plugins.errors import UtilityWarning, warn
from privbo_plugins.groups import Groups, Unit, whose
from privbo_plugins.plots import History, Report
from privbo_plugins.privacy.guarantee import Guarantee
from privbo_plugins.privacy.settings import RecordSettings
from privbo_plugins.reports import records_report
from privbo_plugins.settings import evolve, setting, settings, takes
from privbo_plugins.spaces import varying
from privbo_plugins.status import status
from raytune_searchers._audit import Row, stored_in, value_in
from raytune_searchers._channel import Channel
from raytune_searchers._run import ComparedRun, Reported, detail
from raytune_searchers._search import ON_TUNE, TuneSearch, config_at
from raytune_searchers._settings import SearchSettings
from raytune_searchers._space import TuneSpace, to_space
from raytune_searchers._trainable import Trainable, make_private
from raytune_searchers.hosts.base import WARNINGS
from raytune_searchers.hosts.losses import LossHost, RunSettings

Array = NDArray[np.float64]

_logger = logging.getLogger("ray.tune.privbo")
"""Ours; its lines are shown and hidden with Tune's."""

_NOTE = (
    "users who can run code on the cluster, or read the vault's database, can read the raw losses "
    "that the vault holds"
)

_FAILED_NOTE = (
    "trials failed; what a private function raises is withheld, but not what is raised or logged "
    "around it"
)


@settings(eq=False)
class PrivateRunSettings(SearchSettings, RecordSettings):
    """What a searcher has that tunes on per-record losses."""


@settings(eq=False)
class PrivateSearchSettings(PrivateRunSettings):
    """Keywords of :class:`PrivateSearch`."""

    config: CentralConfig = setting(
        "Settings of the algorithm, which say what algorithm it is.",
        kw_only=False,
    )


class LossesRun(ComparedRun, Reported):
    """A run on per-record losses before a vault's host, and what users read of it."""

    _HOST = LossHost
    _PLAIN = "trials returned plain floats instead of per-record losses"
    _OF_THIS_PROCESS = "_labels _groups _told"  # nothing of the records
    _WATCHED: ClassVar[bool] = False
    """Whether trials run only while somebody of ours compares what is shown of them."""

    _config: CentralConfig
    _seed: int | None
    _labels: str | None = None
    """Fingerprint of the records' labels."""
    _groups: Groups | None = None
    """The persons that rows belong to."""
    _told = b""
    """Key of the host that knows them."""
    _unit: Unit = Unit()
    _limit: int | None = None
    """The most trials at once; None if it is not known."""

    # The vault ------------------------------------------------------------------------------

    def _planned(self, space: TuneSpace) -> CentralConfig:  # noqa: ARG002
        """Settings for the number of trials that will run."""
        return self._config

    def _settings(self) -> RunSettings:
        space = self._ready()
        return RunSettings(
            run=self._run,
            maximize=self._mode == "max",
            config=hosted(self._planned(space), space),
            seed=self._seed,
            metric=str(self._metric),
            space=space.public,
            choices=cloudpickle.dumps(space),
            adopt_trials=not self._config.trials_given,
            watched=self._WATCHED,
            unit=self._unit,
        )

    def _connect(self) -> Channel:
        channel, self._told = super()._connect(), b""
        channel.call("note", _NOTE)
        self._tell_whose(channel)
        return channel

    def _tell_whose(self, channel: Channel) -> None:
        """Tells the host whose losses it gets, once more if it was begun again."""
        if self._labels is not None and (key := channel.call("public_key")) != self._told:
            channel.call_sealed("expect_records", self._run, (self._labels, self._groups))
            self._told = key

    def _call(self, operation: str, *args: Any) -> Any:
        if operation in ("ask", "watch"):  # before a trial begins
            self._tell_whose(self._open())
        return super()._call(operation, *args)

    def _complete(self, trial_id: str, x: Array | None, result: Row, error: bool) -> bool:
        """Compares the end of a trial; whether it has shown what it was run for."""
        record = self._audit(trial_id, result)
        value, learnt = value_in(result, self._metric), record.published is not None
        if not learnt and not record.entered and isinstance(value, Real):
            learnt = self._take_plain(trial_id, x, result, float(value))
        if not learnt:
            self._call("fail", trial_id)
        if error and record.entered:
            self._call("note", _FAILED_NOTE)
        for kind, text in self._call("told_warnings"):
            warn(text, WARNINGS[kind])
        if record.published is not None:
            self._tell_time(result.get(TIME_TOTAL_S))
        return learnt

    def _take_plain(self, trial_id: str, x: Array | None, result: Row, value: float) -> bool:  # noqa: ARG002
        """Learns a plain float of a trial that never ran privately, if it can."""
        return False

    def _tell_time(self, seconds: Any) -> None:
        """Logs how long the plan will take, once, if that is long."""
        if isinstance(seconds, Real):
            n_trials = lambda: int(self._report()["plan"].n_trials)  # noqa: E731
            if text := self._pace.count(float(seconds), n_trials):
                _logger.info(text)

    # What the user reads --------------------------------------------------------------------

    def plan(
        self, param_space: Mapping[str, Any], n_records: int,
        *, seconds_per_trial: float | None = None, n_workers: int | None = None,
    ) -> CentralPlan:  # fmt: skip
        """Says what a run over this space and so many records would do and cost.

        Args:
            param_space: Tune domains.
            n_records: Number of validation records; of persons or blocks, where entries are those.
            seconds_per_trial: How long a trial takes, if you know it: then the plan says how long
                the run does.
            n_workers: Trials that run at once; None for ``max_concurrent=``, or 1.

        Returns:
            The plan; printing it shows trials, releases, noise and time.

        Warns:
            UtilityWarning: If the noise is likely to drown the signal.
        """
        space = varying(to_space(param_space), "param_space")
        made: CentralPlan = planned(
            hosted(self._config, space), space.public, n_records, self._unit
        )
        at_once = self._limit or 1 if n_workers is None else n_workers
        return made.presented(seconds_per_trial, at_once, ON_TUNE)

    def recommend(self, param_space: Mapping[str, Any] | None = None) -> dict[str, Any]:
        """The config that the algorithm recommends, from the releases alone.

        Args:
            param_space: The Tuner's own, needed only where constants or choices are objects
                (functions, classes): Tune hides them from searchers.

        Returns:
            A config as a trial gets it, constants included.

        Raises:
            ValueError: If nothing has been released yet, or objects are hidden.

        Warns:
            UtilityWarning: If no trial is seen to keep all constraints.
        """
        report = self._report()
        x = report["recommendation"]
        if x is None:
            raise ValueError("There is nothing to recommend yet: nothing has been released.")
        if report["shortfall"]:
            warn(report["shortfall"], UtilityWarning)
        return config_at(self._space, self._param_space, x, param_space)

    def guarantee(self, results: Iterable[Any] = ()) -> Guarantee:
        """Claims what the ledger of this run allows.

        Args:
            results: The ``ResultGrid`` of ``Tuner.fit``, to compare what it holds with the ledger
                once more; what passed through this search was compared on the way.
        """
        return self._checked_report(stored_in(results))["guarantee"]  # type: ignore[no-any-return]

    def finished(self) -> bool:
        """Tells whether the plan is used up."""
        return bool(self._report()["finished"])

    def history(self) -> History:
        """Returns what the run has published, for :mod:`privbo_plugins.plots`."""
        return detail(self._report(), "history")  # type: ignore[no-any-return]

    def status(self) -> dict[str, Any]:
        """Tells where the run stands, JSON-ready: see :func:`privbo_plugins.status.status`."""
        report = self._report()
        planned = None if report["plan"] is None else report["plan"].n_trials
        return status(
            report["guarantee"], report["done"], planned,
            finished=report["finished"], recommendation=report["recommendation"] is not None,
            comparison=report["comparison"],
        )  # fmt: skip

    def _page(self, results: Iterable[Any]) -> Report:
        guarantee = self.guarantee(results)
        title = f"Private tuning report: {self._run}"
        return records_report(title, guarantee, self.history(), self.recommend())

    def purge(self) -> None:
        """Deletes every raw loss of the run from the vault; ledger and releases stay."""
        self._call("purge")


def hosted(config: CentralConfig, space: TuneSpace | None) -> CentralConfig:
    """Settings as a run's host knows them: it sees descriptions instead of choices.

    Raises:
        ValueError: If the incumbent is no point of the space.
    """
    given = getattr(config, "incumbent", None)  # which other packages' settings need not have
    if space is None or given is None:
        return config
    return evolve(config, incumbent=space.incumbent(given))


class PrivateSearch(LossesRun, TuneSearch):
    """Base of the searchers that tune on per-record values under central privacy.

    It runs any algorithm of that kind in the registry: ``PrivateSearch(config)`` is a searcher.
    Trials and the vault's host run in other processes, which must be able to import it.

    {settings}

    Raises:
        ValueError: For an argument outside its range, a vault URL with a password, or settings of
            an algorithm that is not registered.
        VaultError: If the vault's database cannot be opened.
    """

    _announced: tuple[str, ...] = ()
    _WRAP = (
        "Wrap the trainable: tune.Tuner(search.private(trainable), ...) with a function that "
        "returns one value per validation record."
    )

    @takes(PrivateSearchSettings)
    def __init__(self, given: PrivateSearchSettings) -> None:
        entry_of(given.config)  # raises before a vault is opened
        super().__init__(given)
        self._unit, self._config = Unit.of(given, given.config)
        hosted(self._config, self._space)  # raises where the incumbent lies outside
        self._groups, self._labels = whose(given)
        self._num_samples = -1

    # Tune's hooks ---------------------------------------------------------------------------

    def _begin_fit(self, _spec: Mapping[str, Any]) -> None:
        super()._begin_fit(_spec)
        self._num_samples = int(_spec.get("num_samples") or -1)

    def _begin(self) -> None:
        """As of every search, once there is a run: its plan needs the Tuner's num_samples."""
        if self._live or self._known.report is not None:
            super()._begin()

    def _planned(self, space: TuneSpace) -> CentralConfig:
        """Settings that fit the number of trials that Tune will run, where none were given."""
        config, num_samples = self._config, self._num_samples
        if not 0 <= num_samples < sys.maxsize:  # which is Tune's word for -1
            return config
        try:
            fitting = config if config.trials_given else config.with_trials(num_samples)
            plan = algorithm_of(config).make_plan(fitting, space.space, 1000)
        except ValueError:
            self._announce(
                f"num_samples={num_samples} is less than the smallest plan over "
                f"{len(space.space)} parameters: the run will end before it. num_samples=-1 "
                "runs until the plan is used up."
            )
            return config
        if plan.n_trials < num_samples:
            self._announce(
                f"Of num_samples={num_samples} trials {plan.n_trials} will run: they make whole "
                "steps of the plan, and then the budget is spent and the search ends."
            )
        return fitting

    def _announce(self, text: str) -> None:
        """Says, once a search, how its plan and Tune's number of trials differ."""
        if text not in self._announced:
            self._announced = (*self._announced, text)
            warn(text, UtilityWarning)

    def _next(self, trial_id: str, space: TuneSpace) -> tuple[str, Array | None]:
        if self._reconcile:
            self._reconcile = False
            self._call("give_back", frozenset(self._live))
        if self._points and not self._call("finished"):
            x = space.checked_point(self._points[0])
            self._call("place", trial_id, x)
            del self._points[0]
            return "ask", x
        # Where none of them runs here, a restore may have dropped the trials that hold the places.
        return self._call("ask", trial_id, not self._here)  # type: ignore[no-any-return]

    def _take_plain(self, trial_id: str, x: Array | None, result: Row, value: float) -> bool:
        if x is None:
            x = self._told_point(result)
        usable = x is not None and math.isfinite(value)
        if usable:
            self._call("tell_plain", trial_id, x, value)
        return usable

    def private(self, trainable: Trainable) -> Trainable:
        """Wraps a function trainable that returns one value per validation record.

        Args:
            trainable: From a config to a vector of shape (n_records,): losses to minimise or
                scores to maximise, by the search's mode. Entry i must belong to the same record
                in every trial and on every worker; return NaN for a record that cannot be
                scored. Load the records inside the function: what it captures, Ray keeps in the
                cluster's memory, where any process can read it.

        Returns:
            A trainable for ``tune.Tuner`` that reports the released value under the search's
            metric, and nothing else. The vector itself goes to the vault.

        Raises:
            ValueError: If it is a class, a generator or no function.
        """
        return make_private(trainable, self._actor_name)
