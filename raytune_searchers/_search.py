"""Lifecycle of every search that stands before a host: Tune's hooks, and what results show.

Order of Tune's calls: building a ``Tuner`` pickles the searcher; ``set_search_properties`` when it
is fitted; then ``suggest``, ``on_trial_result`` (not if a scheduler stops the trial) and
``on_trial_complete`` for every trial, and ``save`` now and then. ``Tuner.restore`` unpickles the
searcher, sets its properties again and calls ``restore`` with the last file that ``save`` wrote,
if there was one: what the driver knew after that is lost, what the vault knows is not.
"""

from __future__ import annotations

import abc
import warnings
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, ClassVar, Self

import numpy as np
import ray
import ray.cloudpickle as cloudpickle
from numpy.typing import NDArray
from ray.tune.result import DEFAULT_METRIC
from ray.tune.search import Searcher

from privbo_plugins.errors import PrivacyError, PrivacyWarning, UtilityWarning, VaultError
from privbo_plugins.privacy.noise import NoiseSource
from privbo_plugins.session import SET_BACK
from raytune_searchers._actor import (
    Channel,
    Host,
    Settings,
    Verdict,
    actor_name,
    anchor,
    check_alive,
    connect,
)
from raytune_searchers._arguments import (
    check_target,
    checked_handle,
    checked_limit,
    checked_points,
    checked_run,
    identify,
    private_url,
)
from raytune_searchers._audit import complaints, flat, foreign, shown, stored_verdict
from raytune_searchers._space import TuneSpace, holds_placeholder, to_space

Array = NDArray[np.float64]

FINISHED = str(Searcher.FINISHED)

_OF_THIS_PROCESS = (
    "_anchor",
    "_channel",
    "_here",
    "_failed_in_a_row",
    "_broken",
    "_suggesting",
    "_reconcile",
)
"""What :meth:`HostedSearch._attach` makes anew and no pickle holds."""

_HOPELESS = 10
"""So many failures in a row end the search: without num_samples nothing else would."""


class HostedSearch(Searcher):  # type: ignore[misc]  # Ray has no types
    """Base of the searchers that keep a ledger in a host and compare every result with it.

    Args:
        metric: Under which name trials report; None takes ``TuneConfig``'s.
        mode: "min" or "max"; None takes ``TuneConfig``'s.
        search_space: Tune domains, nested or not; None takes the Tuner's ``param_space``.
        points_to_evaluate: Configurations to evaluate first.
        max_concurrent: The most trials that may be out at once; None for no limit.
        seed: Drives candidates, never noise.
        vault: None for the memory of an actor, or a database URL.
        run: Name of the run in the vault.
        noise: Test injection only; a run with it is reported as unprotected.

    Raises:
        ValueError: For an argument outside its range, or a vault URL with a password.
        VaultError: If the vault's database cannot be opened.
    """

    _HOST: ClassVar[type[Host]]
    _PLAIN: ClassVar[str]
    """What is said of a value that never passed through the host."""
    _WRAP: ClassVar[str]
    """And what to do about it."""

    def __init__(
        self,
        *,
        metric: str | None,
        mode: str | None,
        search_space: Mapping[str, Any] | None,
        points_to_evaluate: Sequence[Mapping[str, Any]] | None,
        max_concurrent: int | None,
        seed: int | None,
        vault: str | None,
        run: str | None,
        noise: NoiseSource | None,
    ) -> None:
        check_target(type(self).__name__, metric, mode)
        super().__init__(metric=metric, mode=mode)
        self._metric: str | None = metric
        self._mode: str | None = mode
        self._seed = seed
        self._param_space: dict[str, Any] = dict(search_space or {})
        self._space: TuneSpace | None = to_space(self._param_space)
        if search_space is not None and self._space is None:
            raise ValueError("search_space must hold at least one parameter that varies.")
        self._points = checked_points(points_to_evaluate)
        self._limit = checked_limit(max_concurrent)
        self._handle = checked_handle(vault)
        self._run = checked_run(run, self._handle)
        self._vault_id = None if self._handle is None else identify(self._handle)
        self._live: dict[str, Array] = {}
        self._released = 0
        self._unaudited = False
        self._exposed: set[str] = set()
        self._last: dict[str, Any] | None = None
        self._attach(may_begin=True, noise=noise)

    @abc.abstractmethod
    def _settings(self) -> Settings:
        """What the host must know of the run."""

    @abc.abstractmethod
    def _next(self, trial_id: str, space: TuneSpace) -> tuple[str, Array | None]:
        """("ask", point), ("wait", None) or ("finished", None)."""

    @abc.abstractmethod
    def _complete(
        self, trial_id: str, x: Array | None, result: Mapping[str, Any], error: bool
    ) -> None:
        """Looks at the end of a trial."""

    # State ----------------------------------------------------------------------------------

    @property
    def _actor_name(self) -> str:
        where = None if self._handle is None else self._vault_id
        return actor_name(self._HOST, where, self._run)

    def _attach(self, *, may_begin: bool = False, noise: NoiseSource | None = None) -> None:
        """What belongs to this process and is never pickled."""
        self._anchor = anchor(self._actor_name, self._HOST, may_begin=may_begin, noise=noise)
        self._channel: Channel | None = None
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
        self, metric: str | None, mode: str | None, config: dict[str, Any], **_spec: Any
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
        self._live.clear()  # of an earlier fit, which may have dropped them; restore knows better
        self._here.clear()
        self._channel, self._suggesting = None, False
        return True

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
            return FINISHED
        if self._limit is not None and len(self._here) >= self._limit:
            return None
        answer, x = self._next(trial_id, space)
        if x is None:
            return FINISHED if answer == "finished" else None
        self._live[trial_id] = x
        self._here.add(trial_id)
        return space.suggestion(x)

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
        told = shown(result, self._metric) is not None
        return told or bool(foreign(result, self._metric, self._param_space))

    def _audit(self, trial_id: str, result: Mapping[str, Any]) -> Verdict:
        verdict: Verdict = self._call("verdict", trial_id)
        self._see(verdict.released)
        self._compare(result, verdict)
        return verdict

    def _compare(self, result: Mapping[str, Any], verdict: Verdict) -> None:
        for reason in complaints(result, self._metric, self._param_space, verdict, self._PLAIN):
            self._expose(reason, self._WRAP if reason == self._PLAIN else "")

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
        self._check_alive()
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

    def _check_alive(self) -> None:
        if self._handle is None:
            check_alive(self._anchor)

    def _call(self, operation: str, *args: Any) -> Any:
        return self._open().call(operation, *args)

    def _open(self) -> Channel:
        if self._handle is not None and not ray.is_initialized():
            self._channel = None  # what is left is the database
        if self._channel is None:
            self._channel = self._connect()
        return self._channel

    def _connect(self) -> Channel:
        self._ready()
        settings = self._settings()
        url = None if self._handle is None else private_url(self._handle)
        channel, self._vault_id, reasons = connect(self._anchor, settings, url)
        if reasons and self._last is None:
            self._issue("PrivacyWarning", f"Nothing is protected: {'; '.join(reasons)}.")
        return channel

    @staticmethod
    def _issue(kind: str, text: str) -> None:
        category = PrivacyWarning if kind == "PrivacyWarning" else UtilityWarning
        warnings.warn(text, category, stacklevel=3)

    # What the user reads ---------------------------------------------------------------------

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

    def _as_far_as_known(self, guarantee: Any) -> Any:
        """The last saved guarantee of a vault that has ended, and what was seen since."""
        note = "the vault has ended; this is what it showed at the search's last checkpoint"
        reasons = sorted(self._exposed | set(guarantee.reasons))
        if self._unaudited:
            reasons.append("the vault ended before every result was compared with it")
        notes, kept = (*guarantee.notes, note), guarantee.protected and not reasons
        return replace(guarantee, notes=notes, protected=kept, reasons=tuple(reasons))

    def _config_at(self, x: Array, param_space: Mapping[str, Any] | None) -> dict[str, Any]:
        """A config as a trial gets it, constants included."""
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

    def _checked_report(self, results: Iterable[Any]) -> dict[str, Any]:
        """The report after comparing what a ``ResultGrid`` holds with it."""
        report, stored = self._report(), list(results)
        for result in stored:
            metrics = dict(result.metrics or {})
            self._compare(flat(metrics), stored_verdict(metrics, report))
        self._unaudited = self._unaudited and not stored
        return self._report()

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


def _merged(param_space: Mapping[str, Any], values: Mapping[str, Any]) -> dict[str, Any]:
    """The config of a trial: constants of the space, and what was suggested."""
    merged = dict(param_space)
    for name, value in values.items():
        inner = merged.get(name)
        both = isinstance(inner, Mapping) and isinstance(value, Mapping)
        merged[name] = _merged(inner, value) if both else value  # type: ignore[arg-type]
    return merged
