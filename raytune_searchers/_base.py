"""Lifecycle of a private searcher: Tune's hooks on one side, a vault's host on the other.

Order of Tune's calls: building a ``Tuner`` pickles the searcher; ``set_search_properties`` when it
is fitted; then ``suggest``, ``on_trial_result`` (not if a scheduler stops the trial) and
``on_trial_complete`` for every trial, and ``save`` now and then. ``Tuner.restore`` unpickles the
searcher, sets its properties again and calls ``restore`` with the last file that ``save`` wrote,
if there was one: what the driver knew after that is lost, what the vault knows is not.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from numbers import Real
from pathlib import Path
from typing import Any, Self

import numpy as np
import ray
import ray.cloudpickle as cloudpickle
from numpy.typing import NDArray
from ray.tune.result import DEFAULT_METRIC, SHOULD_CHECKPOINT, TRIAL_ID
from ray.tune.search import Searcher

from privbo_plugins.algorithms.dp_gibo import GIBOConfig, Plan, make_plan
from privbo_plugins.errors import PrivacyError, PrivacyWarning, UtilityWarning, VaultError
from privbo_plugins.privacy.guarantee import Guarantee
from privbo_plugins.privacy.noise import NoiseSource
from privbo_plugins.session import SET_BACK
from privbo_plugins.visualization import History, write_report
from raytune_searchers import _host
from raytune_searchers._arguments import (
    OURS,
    check_target,
    checked_handle,
    checked_limit,
    checked_points,
    checked_run,
    identify,
    private_url,
)
from raytune_searchers._space import TuneSpace, holds_placeholder, to_space
from raytune_searchers._trainable import Trainable, flat, make_private

Array = NDArray[np.float64]

_WRAP = (
    "Wrap the trainable: tune.Tuner(search.private(trainable), ...) with a function that returns "
    "one value per validation record."
)

_NOTE = (
    "whoever can run code on the cluster, or read the vault's database, can read the raw losses "
    "that the vault holds"
)

_FINISHED = str(Searcher.FINISHED)

_FAILED_NOTE = (
    "trials failed; what a private function raises is withheld, but not what is raised or logged "
    "around it"
)

_OF_THIS_PROCESS = (
    "_anchor",
    "_channel",
    "_here",
    "_failed_in_a_row",
    "_broken",
    "_suggesting",
    "_reconcile",
)
"""What :meth:`PrivateSearch._attach` makes anew and no pickle holds."""

_HOPELESS = 10
"""So many failures in a row end the search: without num_samples nothing else would."""


class PrivateSearch(Searcher):  # type: ignore[misc]  # Ray has no types
    """Base of the searchers that tune on per-record values under central privacy.

    Args:
        config: Settings of the engine's algorithm.
        metric: Under which name trials report; None takes ``TuneConfig``'s.
        mode: "min" or "max"; None takes ``TuneConfig``'s.
        search_space: Tune domains, nested or not; None takes the Tuner's ``param_space``.
        points_to_evaluate: Configurations to evaluate first.
        max_concurrent: The most trials that may be out at once; None for no limit.
        fill_idle: Hand out points beyond a batch instead of waiting for it.
        seed: Drives candidates, never noise.
        vault: None for the memory of an actor, or a database URL.
        run: Name of the run in the vault.
        noise: Test injection only; a run with it is reported as unprotected.

    Raises:
        ValueError: For an argument outside its range, or a vault URL with a password.
        VaultError: If the vault's database cannot be opened.
    """

    def __init__(
        self,
        config: GIBOConfig,
        *,
        metric: str | None = None,
        mode: str | None = None,
        search_space: Mapping[str, Any] | None = None,
        points_to_evaluate: Sequence[Mapping[str, Any]] | None = None,
        max_concurrent: int | None = None,
        fill_idle: bool = False,
        seed: int | None = None,
        vault: str | None = None,
        run: str | None = None,
        noise: NoiseSource | None = None,
    ) -> None:
        check_target(type(self).__name__, metric, mode)
        super().__init__(metric=metric, mode=mode)
        self._metric: str | None = metric
        self._mode: str | None = mode
        self._config, self._seed = config, seed
        self._param_space: dict[str, Any] = dict(search_space or {})
        self._space: TuneSpace | None = to_space(self._param_space)
        if search_space is not None and self._space is None:
            raise ValueError("search_space must hold at least one parameter that varies.")
        self._points = checked_points(points_to_evaluate)
        self._limit, self._fill_idle = checked_limit(max_concurrent), bool(fill_idle)
        self._handle = checked_handle(vault)
        self._run = checked_run(run, self._handle)
        self._vault_id = None if self._handle is None else identify(self._handle)
        self._num_samples = -1
        self._live: dict[str, Array] = {}
        self._released = 0
        self._unaudited = False
        self._exposed: set[str] = set()
        self._last: dict[str, Any] | None = None
        self._attach(may_begin=True, noise=noise)

    @property
    def _trials_given(self) -> bool:
        return self._config.n_trials is not None or self._config.n_steps is not None

    # State ----------------------------------------------------------------------------------

    @property
    def _actor_name(self) -> str:
        where = "memory" if self._vault_id is None or self._handle is None else self._vault_id[:8]
        return f"{where}/{self._run}"

    def _attach(self, *, may_begin: bool = False, noise: NoiseSource | None = None) -> None:
        """What belongs to this process and is never pickled."""
        self._anchor = _host.anchor(self._actor_name, may_begin=may_begin, noise=noise)
        self._channel: _host.Channel | None = None
        self._here: set[str] = set()
        self._failed_in_a_row = 0
        self._broken: str | None = None
        self._suggesting = self._reconcile = False

    def __getstate__(self) -> dict[str, Any]:
        """A handle, public settings and released state: no vault contents and no noise source."""
        state = self.__dict__.copy()
        for name in _OF_THIS_PROCESS:
            del state[name]
        return state

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        self._attach()

    def get_state(self) -> dict[str, Any]:
        """As :meth:`__getstate__`."""
        return self.__getstate__()

    def set_state(self, state: dict[str, Any]) -> None:
        """Takes what :meth:`get_state` gave, of this or an earlier process."""
        anchor = self.__dict__.get(
            "_anchor"
        )  # keeps an embedded vault alive while the anchor is looked up
        self.__setstate__(state)
        del anchor

    def save(self, checkpoint_path: str) -> None:
        """Writes the public state; Tune calls it now and then."""
        if self._channel is not None:
            try:
                self._last = self._channel.call("report", self._unaudited)
            except (VaultError, PrivacyError):  # the last one stays, and says so when it is read
                pass
        Path(checkpoint_path).write_bytes(cloudpickle.dumps(self.get_state()))

    def restore(self, checkpoint_path: str) -> None:
        """Reads what :meth:`save` wrote; what the vault knows beyond it always wins."""
        self.set_state(cloudpickle.loads(Path(checkpoint_path).read_bytes()))

    @classmethod
    def from_experiment(cls, path: str | Path) -> Self:
        """The search of an earlier experiment, to restore or to read it.

        Args:
            path: The experiment's local folder, as for ``Tuner.restore``.

        Returns:
            A search of the same run: ``Tuner.restore(path, search.private(trainable))`` goes on
            with it, and ``search.guarantee()`` reads its ledger.

        Raises:
            ValueError: If the folder holds no private search of this class.
        """
        folder = Path(path)
        found = cls.__new__(cls)
        if sorted(folder.glob(cls.CKPT_FILE_TMPL.format("*"))):
            try:
                found.restore_from_dir(str(folder))
                return found
            except (TypeError, AttributeError, KeyError):  # another searcher's file
                pass
        if (folder / "tuner.pkl").exists():
            state = cloudpickle.loads((folder / "tuner.pkl").read_bytes())
            search = state["_tune_config"].search_alg
            search = getattr(search, "searcher", search)
            if isinstance(search, cls):
                return search
        raise ValueError(
            f"{folder} holds no experiment of {cls.__name__}: give the folder that Tuner.restore "
            "takes."
        )

    # Tune's hooks ---------------------------------------------------------------------------

    def set_search_properties(
        self, metric: str | None, mode: str | None, config: dict[str, Any], **spec: Any
    ) -> bool:
        """Takes what the Tuner knows; False if it holds another space than the search's own."""
        check_target(type(self).__name__, metric, mode)
        space = to_space(config)
        if None not in (space, self._space) and space.public != self._space.public:  # type: ignore[union-attr]
            return False
        self._metric, self._mode = metric or self._metric, mode or self._mode
        if self._metric is None and self._mode is not None:
            self._metric = DEFAULT_METRIC
        self._param_space = {**self._param_space, **config}
        self._space = space or self._space
        self._num_samples = int(spec.get("num_samples") or -1)
        self._live.clear()  # of an earlier fit, which may have dropped them; restore knows better
        self._here.clear()
        self._channel, self._suggesting = None, False
        return True

    def _planned(self, space: TuneSpace) -> GIBOConfig:
        """Settings that fit the number of trials that Tune will run, where none were given."""
        config, num_samples = self._config, self._num_samples
        if num_samples < 0 or self._trials_given:
            return config
        try:
            fitting = replace(config, n_trials=num_samples)
            make_plan(fitting, space.space, 1000)
        except ValueError:
            warnings.warn(
                f"num_samples={num_samples} is less than the smallest plan over "
                f"{len(space.space)} parameters: the run will end before it. num_samples=-1 "
                "runs until the plan is used up.",
                UtilityWarning,
                stacklevel=2,
            )
            return config
        return fitting

    def set_max_concurrency(self, max_concurrent: int) -> bool:
        """Takes the limit of ``max_concurrent_trials`` or a ``ConcurrencyLimiter``."""
        self._limit = checked_limit(max_concurrent)
        return True

    def suggest(self, trial_id: str) -> dict[str, Any] | str | None:
        """The next configuration, ``FINISHED``, or None while a batch or the limit is out.

        Raises:
            RuntimeError: If metric, mode or search space are not known.
            VaultError: If the vault is gone.
        """
        if self._broken is not None:
            raise VaultError(self._broken)
        if not self._suggesting:  # once a fit, and never by those who only read
            self._suggesting = self._reconcile = True
        space = self._ready()
        if trial_id in self._live:
            return space.suggestion(self._live[trial_id])
        if self._failed_in_a_row >= _HOPELESS:
            return _FINISHED
        if self._limit is not None and len(self._here) >= self._limit:
            return None
        answer, x = self._next(trial_id, space)
        if x is None:
            return _FINISHED if answer == "finished" else None
        self._live[trial_id] = x
        self._here.add(trial_id)
        return space.suggestion(x)

    def _next(self, trial_id: str, space: TuneSpace) -> tuple[str, Array | None]:
        if self._points and not self._call("finished"):
            x = space.checked_point(self._points[0])
            self._call("place", trial_id, x)
            del self._points[0]
            return "ask", x
        answer, x = self._call("ask", trial_id, self._fill_idle)
        if answer == "wait" and not self._here:  # only for trials that a restore may have dropped
            answer, x = self._call("ask", trial_id, True)
        return answer, x

    def on_trial_result(self, trial_id: str, result: dict[str, Any]) -> None:
        """Looks at what was reported: what nobody vouched for or released unprotects the run."""
        if trial_id in self._live:
            self._here.add(trial_id)
        if self._shows(result):
            self._unless_broken(self._audit, trial_id, result)

    def on_trial_complete(
        self, trial_id: str, result: dict[str, Any] | None = None, error: bool = False
    ) -> None:
        """Looks at what is shown of a trial, and gives its slot back if it was never told."""
        x = self._live.pop(trial_id, None)
        self._here.discard(trial_id)
        self._count_failure(error)
        self._unless_broken(self._complete, trial_id, x, result or {}, error)

    def _unless_broken(self, step: Callable[..., Any], *args: Any) -> None:
        """Carries a step out; if the vault fails, the next suggestion says so.

        Tune would wrap what is raised here into an error of its own, trial by trial.
        """
        try:
            step(*args)
        except VaultError as error:
            self._broken = str(error)
            self._unaudited |= any(isinstance(a, Mapping) and self._shows(a) for a in args)

    def _shows(self, result: Mapping[str, Any]) -> bool:
        """Whether a result holds anything that a release or a declaration must account for."""
        return _shown(result, self._metric) is not None or bool(self._foreign(result))

    def _audit(self, trial_id: str, result: Mapping[str, Any]) -> _host.Verdict:
        verdict: _host.Verdict = self._call("verdict", trial_id)
        self._see(verdict.released)
        self._audit_keys(result, verdict)
        self._audit_value(_shown(result, self._metric), verdict)
        return verdict

    def _complete(
        self, trial_id: str, x: Array | None, result: Mapping[str, Any], error: bool
    ) -> None:
        verdict = self._audit(trial_id, result)
        value = _shown(result, self._metric)
        if verdict.published is None and not verdict.entered and isinstance(value, Real):
            self._take_plain(trial_id, x, result, float(value))
        elif verdict.published is None:
            self._call("fail", trial_id)
        if error and verdict.entered:
            self._call("note", _FAILED_NOTE)
        self._issue_warnings()

    def _see(self, released: int) -> None:
        """The ledger only grows; a vault that shows less was set back under way."""
        if released < self._released:
            raise VaultError(SET_BACK)
        self._released = released

    def _count_failure(self, error: bool) -> None:
        self._failed_in_a_row = self._failed_in_a_row + 1 if error else 0
        if self._failed_in_a_row == _HOPELESS:
            warnings.warn(
                f"{_HOPELESS} trials failed one after another, so the search ends. Ray shows how "
                "in error.txt of each; what a private trainable raises is withheld there: call "
                "the function itself with one config to see it.",
                UtilityWarning,
                stacklevel=2,
            )

    def _take_plain(
        self, trial_id: str, x: Array | None, result: Mapping[str, Any], value: float
    ) -> None:
        if x is None:
            x = self._told_point(result)
        if x is None or not math.isfinite(value):
            self._call("fail", trial_id)
        else:
            self._call("tell_plain", trial_id, x, value)

    def _told_point(self, result: Mapping[str, Any]) -> Array | None:
        """Where a trial was that this search did not suggest: one that Tune made anew."""
        space = self._ready()
        try:
            return space.encode_flat({name: result[f"config/{name}"] for name in space.space})
        except (KeyError, ValueError):
            return None

    def add_evaluated_point(self, *_args: Any, **_kwargs: Any) -> None:
        """Refused: a value from elsewhere is not a release of this run."""
        raise PrivacyError(
            f"{type(self).__name__} learns from its own releases only; a value from elsewhere has "
            "no noise and no charge. Have the point evaluated: points_to_evaluate=[...]."
        )

    def _audit_keys(self, result: Mapping[str, Any] | None, verdict: _host.Verdict) -> None:
        for name in self._foreign(result or {}):
            if f"report_public({name})" not in verdict.vouched:
                self._expose("results hold values under other names than the search's metric")
                return

    def _foreign(self, result: Mapping[str, Any]) -> set[str]:
        """Names in a result that neither Tune nor a release accounts for."""
        foreign = {name for name in result if name != self._metric} - OURS
        foreign -= {name for name in foreign if self._of_config(name)}
        if not isinstance(result.get(SHOULD_CHECKPOINT, False), bool):
            foreign.add(SHOULD_CHECKPOINT)
        if result.get("checkpoint_dir_name") is not None:
            foreign.add("checkpoint")
        return foreign

    def _of_config(self, name: str) -> bool:
        """Tune repeats the config in every result, flattened or not."""
        first, *rest = name.split("/")
        return first == "config" and (not rest or rest[0] in self._param_space)

    def _audit_value(self, value: Any, verdict: _host.Verdict) -> None:
        if value is None:
            return
        if verdict.published is not None and not _same(value, verdict.published):
            self._expose("a trial reported another value than was released")
        elif verdict.published is None and verdict.entered:
            self._expose("a trial reported a value that was not released")
        elif verdict.published is None:
            self._expose("trials returned plain floats instead of per-record losses", _WRAP)

    def _expose(self, reason: str, fix: str = "") -> None:
        known = reason in self._exposed
        self._exposed.add(reason)  # remembered here too: the vault may be gone, or go
        try:
            self._call("mark_unprotected", reason)
        except VaultError as error:
            self._broken = str(error)
        if not known:
            text = f"Nothing is protected: {reason}. {fix}".strip()
            warnings.warn(text, PrivacyWarning, stacklevel=2)

    # The vault ------------------------------------------------------------------------------

    def _ready(self) -> TuneSpace:
        """The space, once everything is known that a run needs.

        Raises:
            RuntimeError: If something is not.
            VaultError: If the run's vault was in memory and is gone.
        """
        if self._handle is None:
            _host.check_alive(self._anchor)
        if self._space is None:
            raise RuntimeError(
                f"{type(self).__name__} has no search space: pass param_space= to the Tuner, or "
                "search_space= to the search, with at least one Tune domain such as "
                "tune.uniform(0, 1)."
            )
        if self._metric is None or self._mode is None:
            raise RuntimeError(
                f"{type(self).__name__} needs metric= and mode= (here or in TuneConfig), got "
                f"metric={self._metric!r} and mode={self._mode!r}."
            )
        return self._space

    def _call(self, operation: str, *args: Any) -> Any:
        return self._open().call(operation, *args)

    def _open(self) -> _host.Channel:
        if self._handle is not None and not ray.is_initialized():
            self._channel = None  # what is left is the database
        if self._channel is None:
            self._channel = self._connect()
        if self._reconcile:
            self._reconcile = False
            self._channel.call("give_back", frozenset(self._live))
        return self._channel

    def _connect(self) -> _host.Channel:
        space = self._ready()
        settings = _host.RunSettings(
            self._run,
            self._planned(space),
            self._mode == "max",
            self._seed,
            str(self._metric),
            space.public,
            cloudpickle.dumps(space),
            not self._trials_given,
            self._vault_id,
            self._released,
        )
        url = None if self._handle is None else private_url(self._handle)
        if url is not None and not ray.is_initialized():
            channel = _host.local_channel(settings, url)
        else:
            channel = _host.driver_channel(self._anchor, settings, url)
        try:
            vault_id, reasons = channel.call("join", settings)
            if self._vault_id not in (None, vault_id):
                raise VaultError(_host.LOST)
        except VaultError:
            if self._handle is not None:
                self._anchor.end()  # another database may stand behind the handle next time
            raise
        if reasons and self._last is None:
            self._issue("PrivacyWarning", f"Nothing is protected: {'; '.join(reasons)}.")
        self._vault_id = vault_id
        channel.call("note", _NOTE)
        return channel

    def _issue_warnings(self) -> None:
        for kind, text in self._call("told_warnings"):
            self._issue(kind, text)

    @staticmethod
    def _issue(kind: str, text: str) -> None:
        category = PrivacyWarning if kind == "PrivacyWarning" else UtilityWarning
        warnings.warn(text, category, stacklevel=3)

    # What the user writes and reads ---------------------------------------------------------

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

    def plan(self, param_space: Mapping[str, Any], n_records: int) -> Plan:
        """What a run over this space and so many records would do and cost.

        Args:
            param_space: Tune domains.
            n_records: Number of validation records.

        Returns:
            The plan; printing it shows trials, releases and noise.

        Warns:
            UtilityWarning: If the noise is likely to drown the signal.
        """
        space = to_space(param_space)
        if space is None:
            raise ValueError("param_space must hold at least one parameter that varies.")
        plan = make_plan(self._config, space.space, n_records)
        plan.warn_if_drowned()
        return plan

    def _report(self) -> dict[str, Any]:
        """The vault's public report, or the last one that was saved if the vault has ended."""
        try:
            for reason in self._exposed:  # the vault may have failed when it was first told
                self._call("mark_unprotected", reason)
            self._last = self._call("report", self._unaudited)
        except VaultError:
            if self._last is None:
                raise
            return {**self._last, "guarantee": self._as_far_as_known(self._last["guarantee"])}
        self._see(self._last["released"])
        return self._last

    def _as_far_as_known(self, guarantee: Guarantee) -> Guarantee:
        """The last saved guarantee of a vault that has ended, and what was seen since."""
        note = "the vault has ended; this is what it showed at the search's last checkpoint"
        reasons = sorted(self._exposed | set(guarantee.reasons))
        if self._unaudited:
            reasons.append("the vault ended before every result was compared with it")
        notes = (*guarantee.notes, note)
        return replace(guarantee, notes=notes, protected=not reasons, reasons=tuple(reasons))

    def recommend(self, param_space: Mapping[str, Any] | None = None) -> dict[str, Any]:
        """The config that the releases recommend: theta_T, not the best noisy trial.

        Args:
            param_space: The Tuner's own, needed only where constants or choices are objects
                (functions, classes): Tune hides them from searchers.

        Returns:
            A config as a trial gets it, constants included.

        Raises:
            ValueError: If nothing has been released yet, or objects are hidden.
        """
        x = self._report()["recommendation"]
        if x is None:
            raise ValueError("There is nothing to recommend yet: nothing has been released.")
        known, own = self._space, dict(self._param_space if param_space is None else param_space)
        space = known if param_space is None else to_space(own)
        if space is None or known is None or space.space.names != known.space.names:
            raise ValueError("param_space is not the one that this search was run with.")
        config = _merged(own, space.suggestion(x))
        if holds_placeholder(config):
            raise ValueError(
                "The search space holds objects that Tune hides from searchers: pass it again, "
                "search.recommend(param_space)."
            )
        return config

    def guarantee(self, results: Iterable[Any] = ()) -> Guarantee:
        """What may be claimed for this run.

        Args:
            results: The ``ResultGrid`` of ``Tuner.fit``, to compare what it holds with the ledger
                once more; what passed through this search was compared on the way.
        """
        report, stored = self._report(), list(results)
        for result in stored:
            self._audit_stored(dict(result.metrics or {}), report)
        self._unaudited = self._unaudited and not stored
        return self._report()["guarantee"]  # type: ignore[no-any-return]

    def _audit_stored(self, metrics: dict[str, Any], report: Mapping[str, Any]) -> None:
        trial = metrics.get(TRIAL_ID)
        mark = f"/{trial}"
        vouched = frozenset(v.removesuffix(mark) for v in report["vouched"] if v.endswith(mark))
        published = report["published"].get(trial)
        verdict = _host.Verdict(published, True, vouched, self._released)
        self._audit_keys(flat(metrics), verdict)
        self._audit_value(_shown(metrics, self._metric), verdict)

    @property
    def finished(self) -> bool:
        """Whether the plan is used up."""
        return bool(self._report()["finished"])

    def history(self) -> History:
        """What the run has published, for :mod:`privbo_plugins.visualization`."""
        return self._report()["history"]  # type: ignore[no-any-return]

    def report(self, path: str | Path, results: Iterable[Any] = ()) -> Path:
        """Writes an HTML page with the guarantee, the recommendation and three pictures.

        Args:
            path: Where to write.
            results: As for :meth:`guarantee`.

        Returns:
            The path written.

        Raises:
            ImportError: If plotly is not installed (the ``viz`` extra).
        """
        guarantee = self.guarantee(results)
        return write_report(
            path,
            self.history(),
            guarantee,
            self.recommend(),
            title=f"Private tuning report: {self._run}",
        )

    def purge(self) -> None:
        """Deletes every raw loss of the run from the vault; ledger and releases stay."""
        self._call("purge")

    def close(self) -> None:
        """Ends the vault's actor; a vault in memory is gone then, one in a database is not.

        The last report is kept, so that ``guarantee``, ``recommend`` and ``report`` still work.
        """
        try:
            self._report()
        except VaultError:  # it has ended before
            pass
        self._anchor.end()
        self._channel = None


def _shown(result: Mapping[str, Any], metric: str | None) -> Any:
    """What a result shows under the metric; None for nothing, or the NaN of public reports."""
    value = result.get(str(metric))
    return None if value is None or _is_nan(value) else value


def _is_nan(value: Any) -> bool:
    return isinstance(value, Real) and math.isnan(value)


def _same(told: Any, published: float) -> bool:
    same = isinstance(told, Real) and float(told) == published
    return same or (_is_nan(told) and math.isnan(published))


def _merged(param_space: Mapping[str, Any], values: Mapping[str, Any]) -> dict[str, Any]:
    """The config of a trial: constants of the space, and what was suggested."""
    merged = dict(param_space)
    for name, value in values.items():
        inner = merged.get(name)
        both = isinstance(inner, Mapping) and isinstance(value, Mapping)
        merged[name] = _merged(inner, value) if both else value  # type: ignore[arg-type]
    return merged
