"""Any searcher, centrally private: a trainable whose clipped noisy mean is all that it reports.

The experiment keeps its own searcher, scheduler and loggers, which see releases only. No searcher
of ours would see what else is shown on the way: a callback compares every row with the ledger, by
what every searcher does it with for its own trials. It tells the run's host which trials it looks
at before their functions run, and the host admits no others.

Order of Tune's calls: building a ``Tuner`` pickles the callback; ``set_state`` when an experiment
is restored, with what ``get_state`` gave last; ``setup``; then ``on_step_begin`` before anything
begins, ``on_trial_start`` before a trial's function does, and ``on_trial_result`` once searcher
and scheduler know of a row, in the order of the callbacks: loggers before it know too.
"""

from __future__ import annotations

import copy
import sys
import weakref
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

import ray
import ray.cloudpickle as cloudpickle
from ray import tune

from privbo_plugins.algorithms.protocols import CentralPlan
from privbo_plugins.algorithms.released_means import MeansConfig
from privbo_plugins.convert import index_of
from privbo_plugins.errors import PrivacyError, VaultError
from privbo_plugins.groups import Unit, whose
from privbo_plugins.privacy.settings import RecordSettings
from privbo_plugins.sanitize import retelling
from privbo_plugins.scores.score import (
    ScoreFacts,
    check_directions,
    lack_of,
    one_score,
    rows_of,
    sd_of,
)
from privbo_plugins.settings import again, called_with, evolve, part, setting, settings
from privbo_plugins.shown import TrialRecord, flat
from privbo_plugins.spaces import varying
from raytune_searchers._arguments import check_target
from raytune_searchers._audit import OURS, REPEATED, Row, given_to
from raytune_searchers._base import LossesRun, hosted
from raytune_searchers._channel import MEANS, RELEASE
from raytune_searchers._search import who_suggested
from raytune_searchers._settings import SearchSettings, TrainableSettings, TuneSettings
from raytune_searchers._space import to_space
from raytune_searchers._trainable import Trainable, copied, make_private

_OWN_SEARCH = (
    "{0} was given to TuneConfig as search_alg, beside private_trainable: both would keep a "
    "ledger of their own, and nothing could be claimed for the search. Either wrap the trainable "
    "by the search, tune.Tuner(search.private(trainable), ...), without private_trainable; or "
    "keep private_trainable with a searcher of Ray Tune, or none. Nothing was evaluated."
)

_OTHER_LEDGER = (
    "This experiment holds values that the ledger of this private_trainable has not released: it "
    "was run with another one. Going on would spend mu a second time on the same records. Give "
    "Tuner.restore the trainable that the experiment was begun with, or in a new process "
    "private_trainable(..., vault=, run_name=) with the same vault and name, and the callbacks in "
    "the same order. A vault in memory ended with its driver: what was begun with it cannot go on."
)


@settings(eq=False)
class _Settings(TrainableSettings, RecordSettings, MeansConfig):
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
    mu: float = again(MeansConfig, "mu", default=None)
    incumbent: Mapping[str, Any] | None = again(
        MeansConfig, "incumbent", default=None,
        more="It is evaluated if the searcher has it as points_to_evaluate, too; otherwise the "
        "model of all releases says what it is worth.",
    )  # fmt: skip
    metric: str = setting(
        "Under which name the release is reported; with scores= it is the first one's.",
        default="loss",
    )
    mode: str = setting('"min" for losses, "max" for scores.', default="min")
    seed: int | None = again(TuneSettings, "seed", default=None)
    vault: str | Path | None = again(SearchSettings, "vault", default=None)


_SEEN = ("_run", "_vault_id", "_known")
"""Whose run it is, and what a callback has seen of it."""


def _metric_of(given: _Settings) -> str:
    """The name that results have for the release, after those of scores were checked.

    Raises:
        ValueError: If a score has no name of its own in results, or the first another direction.
    """
    check_directions(given.scores, {"max": "MAXIMIZE", "min": "MINIMIZE"}[given.mode])
    names, taken = [score.name for score in given.scores or ()], OURS | {RELEASE, "config"}
    for name in (*names, *map(sd_of, names), *map(lack_of, given.constraints or ())):
        if name in taken or "/" in name:
            raise ValueError(
                f"Results hold something else under {name!r}: call a score otherwise."
            )
        taken |= {name}
    if names and given.metric not in ("loss", names[0]):
        raise ValueError(
            f"metric= is the first of scores=, {names[0]!r}, got {given.metric!r}: put the score "
            "that trials are compared by first, or leave metric= out."
        )
    return names[0] if names else given.metric


class PrivateTrainable(LossesRun):
    """A trainable for any searcher; made by :func:`private_trainable`.

    In the driver it is the run, with which a callback compares. All callbacks of a process that
    have one run have this one, also those that Tune unpickles at a restore.

    Args:
        given: Arguments of :func:`private_trainable`.
    """

    _WRAP = "Give tune.Tuner the trainable that private_trainable returned, as it is."
    _WATCHED = True
    _OF_THIS_PROCESS = "_here _cut_short _begun _private __name__"

    def __init__(self, given: _Settings) -> None:
        check_target("private_trainable", given.metric, given.mode)
        self._metric, self._mode, self._seed = _metric_of(given), given.mode, given.seed
        self._param_space = dict(given.param_space)
        self._space = varying(to_space(self._param_space), "param_space")
        self._unit, self._config = Unit.of(given, part(given, MeansConfig))
        hosted(self._config, self._space)  # raises where the incumbent lies outside
        self._groups, self._labels = whose(given)
        self._start(given.vault, given.run_name, given.noise)
        self._private: Any = make_private(
            given.trainable, self._actor_name, "private_trainable", MEANS
        )
        self.__name__ = str(self._private.__name__)

    def __reduce__(self) -> tuple[Any, ...]:
        """A trial gets the function alone, and imports nothing of a driver's."""
        return copy.copy, (self._private,)

    def __getstate__(self) -> dict[str, Any]:
        """As of every run; of scores their facts: functions of the user's may hold records."""
        scores = getattr(self._config, "scores", None) or ()
        facts = [ScoreFacts(**score.facts()) for score in scores] or None
        return super().__getstate__() | {"_config": evolve(self._config, scores=facts)}

    def _attach(self, **more: Any) -> None:
        super()._attach(**more)
        self._here: set[str] = set()
        self._cut_short: set[str] = set()
        self._begun: dict[str, list[Row]] = {}
        _HERE[self._actor_name] = self

    # What was seen --------------------------------------------------------------------------

    def seen(self) -> dict[str, Any]:
        """Returns the run's identity and what the callback saw of it; all of it public."""
        with suppress(VaultError, PrivacyError):  # the last one stays, and says so when it is read
            self._keep(None)
        state = self.__getstate__()
        return {name: state[name] for name in _SEEN}

    def go_on_from(self, seen: Mapping[str, Any]) -> None:
        """Learns what a callback had seen, of this process or an earlier one.

        Raises:
            VaultError: If it was another run, or another vault.
        """
        vaults = {self._vault_id, seen.get("_vault_id")} - {None}
        if seen.get("_run") != self._run or len(vaults) > 1:
            raise VaultError(_OTHER_LEDGER)
        self._known.learn(seen["_known"])
        self._vault_id = seen["_vault_id"] or self._vault_id

    # Comparing ------------------------------------------------------------------------------

    def begin(self) -> None:
        """Has the host begin, before any trial does.

        Raises:
            VaultError: If it lay in memory and is gone.
            ValueError: If the run was begun with other settings.
        """
        self._here.clear()
        self._begun.clear()
        self._broken = self._channel = None
        self._open()

    def check(self) -> None:
        """Checks that every row can still be compared.

        Raises:
            VaultError: If not.
        """
        if self._broken is not None:
            raise self._broken
        self._check_lives()

    def begin_trial(self, trial_id: str, config: Mapping[str, Any]) -> None:
        """Tells the host that a trial's rows will be compared.

        Raises:
            ValueError: If its config is not one of the run's space, or is suggested by a
                search that makes trials private itself.
        """
        own = who_suggested(trial_id)
        if own is not None:
            raise ValueError(_OWN_SEARCH.format(own))
        unknown = sorted(set(config) - {*self._param_space, REPEATED})
        if unknown:
            raise ValueError(
                f"The Tuner's param_space has {', '.join(map(repr, unknown))}, and the one that "
                "private_trainable was given has not: give both the same, constants included."
            )
        self._here.add(trial_id)
        self._begun.setdefault(trial_id, []).append(copied(dict(given_to(config))))
        job = str(ray.get_runtime_context().get_job_id())
        self._unless_broken(self._call, "watch", trial_id, job)

    def _configs(self, trial_id: str) -> list[Row]:
        """Several, where a scheduler has changed it on the way."""
        return self._begun.get(trial_id, [])

    def _end_trial(self, trial_id: str, result: Row, error: bool) -> None:
        self._complete(trial_id, None, result, error)

    def end_trial(self, trial_id: str, result: dict[str, Any], *, error: bool = False) -> None:
        """Looks at the end of a trial, whose rows are not compared from now on."""
        self._look_at_end(trial_id, result, error, self._end_trial)
        self._here.discard(trial_id)
        self._unless_broken(self._call, "unwatch", trial_id)

    def look_back(self, trial_id: str, result: Row) -> None:
        """Looks at what a restored experiment shows of a trial.

        Raises:
            VaultError: If another ledger has released it.
        """
        shown = self._read(trial_id, result)
        if not shown:
            return
        record: TrialRecord = self._call("record", trial_id)
        if not record.entered and shown.value is not None:
            raise VaultError(_OTHER_LEDGER)
        self._look(trial_id, result)

    def end(self, left: Mapping[str, dict[str, Any]], *, broken: bool) -> None:
        """Looks at what trials show that the experiment ends without their end.

        Args:
            left: Last rows of all trials.
            broken: Whether an error ends it, perhaps of a callback that has shown a row which
                this one was not told of: then these trials count as not compared.
        """
        if broken:
            self._cut_short |= self._here
        for trial_id in sorted(self._here):
            self.end_trial(trial_id, left.get(trial_id, {}))
        with suppress(VaultError):  # what was known before stays, and says so when it is read
            self._report()

    def _see_whole(self, trial_id: str) -> None:
        if trial_id not in self._cut_short:
            super()._see_whole(trial_id)

    # What the user reads --------------------------------------------------------------------

    @property
    def callback(self) -> ComparingCallback:
        """For ``tune.RunConfig(callbacks=[...])``: compares every row of one experiment.

        No trial runs without it.
        """
        return ComparingCallback(self)

    def __call__(self, config: dict[str, Any], **parameters: Any) -> Any:
        """One trial, as Tune runs it: the released value under the metric."""
        return self._private(config, **parameters)

    @retelling
    def release_score(self, score: Any, predictions: Any) -> tuple[float, float]:
        """Releases one score of the model that was chosen, out of ``final_share``; or replays it.

        Args:
            score: One of :mod:`privbo_plugins.scores`, or a name: of one of the run's, if any.
            predictions: :func:`privbo_plugins.scores.predictions` of the same validation records.

        Returns:
            The estimate, and the standard deviation that noise gives it.

        Raises:
            ValueError: If nothing is kept for it, or these are other records.
            BudgetExceededError: If another score was released instead.
        """
        made = one_score(score, getattr(self._config, "scores", None))
        rows = rows_of([made], predictions)
        secret = cloudpickle.dumps(made), rows, index_of(predictions.y_true)
        channel = self._open()
        return channel.call_sealed("release_score", self._run, secret)  # type: ignore[no-any-return]

    def plan(self, n_records: int, **time: Any) -> CentralPlan:  # type: ignore[override]
        """Says what a run would release over so many records, with a warning if that says nothing.

        Args:
            n_records: Number of validation records.
            **time: ``seconds_per_trial`` and ``n_workers``, as every search's plan takes them.
        """
        return super().plan(self._param_space, n_records, **time)


_HERE: weakref.WeakValueDictionary[str, PrivateTrainable] = weakref.WeakValueDictionary()
"""What this process knows of each run."""


def _joined(name: str, state: dict[str, Any]) -> ComparingCallback:
    """A callback that comes by pickle, for what this process knows of its run, if anything."""
    found = _HERE.get(name)
    if found is not None:
        found.go_on_from(state)
        return ComparingCallback(found)
    made = PrivateTrainable.__new__(PrivateTrainable)
    made.__setstate__(state)
    return ComparingCallback(made)


class ComparingCallback(tune.Callback):  # type: ignore[misc]  # Ray has no types
    """Compares every row of an experiment with the ledger of its run.

    Args:
        run: What compares.
    """

    def __init__(self, run: PrivateTrainable) -> None:
        self._run = run
        self._looked_back = self._taken = False
        self._refused: str | None = None

    def __reduce__(self) -> tuple[Any, ...]:
        return _joined, (self._run._actor_name, self._run.__getstate__())

    def get_state(self) -> dict[str, Any]:
        """Returns the run's identity and what the callback saw of it."""
        return self._run.seen()

    def set_state(self, state: dict[str, Any]) -> None:
        """Takes what :meth:`get_state` gave before the experiment was restored.

        Of what is raised here Tune writes a line, and begins the experiment anew: :meth:`setup`
        raises it.
        """
        self._taken = True
        try:
            self._run.go_on_from(state)
        except VaultError as error:
            self._refused = str(error)

    def setup(self, **_info: Any) -> None:
        """Has the host of the run begin.

        Raises:
            VaultError: If it lay in memory and is gone, or the experiment was run with another
                ledger.
        """
        refused, self._refused, self._looked_back = self._refused, None, False
        if refused is not None:
            raise VaultError(refused)
        self._run.begin()

    def on_step_begin(self, *, trials: list[Any], **_info: Any) -> None:
        """Ends an experiment of which not every row can be compared.

        Raises:
            VaultError: If the vault is gone, or the experiment holds another ledger's values.
        """
        if not self._looked_back:
            if trials and not self._taken:  # Tune keeps states by the callbacks' places
                raise VaultError(_OTHER_LEDGER)
            for trial in trials:
                self._run.look_back(trial.trial_id, flat(trial.last_result))
            self._looked_back, self._taken = True, False
        self._run.check()

    def on_trial_start(self, *, trial: Any, **_info: Any) -> None:
        """Tells the host which trial is looked at; its function has not begun."""
        self._run.begin_trial(trial.trial_id, trial.config)

    def on_trial_result(self, *, trial: Any, result: dict[str, Any], **_info: Any) -> None:
        """Compares a row."""
        self._run._look(trial.trial_id, flat(result))

    def on_trial_complete(self, *, trial: Any, **_info: Any) -> None:
        """Compares what is left of a trial that has ended or was stopped."""
        self._run.end_trial(trial.trial_id, flat(trial.last_result))

    def on_trial_error(self, *, trial: Any, **_info: Any) -> None:
        """Compares what is left of a trial that has failed."""
        self._run.end_trial(trial.trial_id, flat(trial.last_result), error=True)

    def on_experiment_end(self, *, trials: list[Any], **_info: Any) -> None:
        """Looks at trials that were out when the experiment ended."""
        left = {trial.trial_id: flat(trial.last_result) for trial in trials}
        self._run.end(left, broken=sys.exc_info()[0] is not None)


@called_with(_Settings)
def private_trainable(given: _Settings) -> PrivateTrainable:
    """Makes any searcher centrally private: each trial's clipped mean is released with noise.

    The vector goes to the vault, where it is forgotten with its release; what Tune stores and
    shows is mu-GDP for the validation records (replace-one), and so is all that its searcher and
    scheduler make of it. N releases share mu, so each carries noise of loss_bound sqrt(N) /
    (n mu). Give ``num_samples=N`` to the Tuner: a trial that begins once they are made is refused.

    Give ``tune.RunConfig(callbacks=[private.callback])`` too: it compares every row with the
    ledger. The host refuses a trial without the callback before the function runs.

    Call it in the driver. After ``Tuner.restore`` in a new process give the same ``vault=`` and
    ``run_name=`` again.

    {settings}

    Returns:
        A trainable for ``tune.Tuner`` (:class:`PrivateTrainable`) with ``callback``,
        ``guarantee()`` and ``recommend()``.

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
        >>> print(private.plan(n_records=5000))
        Plan of released means: 30 trials, n=5000 records, mu=1 in total
          each trial's clipped mean is released with noise of sd 0.0011 (mu=0.183)
          On Ray Tune: give tune.TuneConfig(max_concurrent_trials=...) the number of trials
          that can run at once; without it Tune starts them one after another.
        >>> # run_config = tune.RunConfig(callbacks=[private.callback])
        >>> # tune.Tuner(private, param_space=space, run_config=run_config, ...).fit()
        >>> # print(private.guarantee())
    """
    if given.metric is None or given.mode is None:
        raise ValueError("private_trainable needs a metric and a mode of its own.")
    return PrivateTrainable(given)
