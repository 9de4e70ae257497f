"""Lifecycle of every search: Tune's hooks, and the public state that it pickles.

Order of Tune's calls: building a ``Tuner`` pickles the searcher; ``set_search_properties`` when it
is fitted with a ``param_space``; then ``suggest``, ``on_trial_result`` (not if a scheduler stops
the trial) and ``on_trial_complete`` for every trial, and ``save`` now and then. ``Tuner.restore``
unpickles the searcher, sets its properties again and calls ``restore`` with the last file that
``save`` wrote, if there was one: what the driver knew after that is lost.
"""

from __future__ import annotations

import abc
import weakref
from collections.abc import Collection, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any, ClassVar, Self

import numpy as np
import ray
import ray.cloudpickle as cloudpickle
from numpy.typing import NDArray
from ray.tune.result import DEFAULT_METRIC
from ray.tune.search import Searcher

from privbo_plugins.errors import ForeignValueError, PrivacyError, UtilityWarning, VaultError, warn
from privbo_plugins.privacy.source import NoiseSource
from privbo_plugins.sessions.scheduler import HOPELESS, EarlyStop
from privbo_plugins.settings import integer
from raytune_searchers._arguments import check_target, checked_points
from raytune_searchers._audit import Row, given_to
from raytune_searchers._run import ComparedRun, Reported
from raytune_searchers._settings import SearchSettings
from raytune_searchers._space import TuneSpace, domains_of, holds_placeholder, to_space

Array = NDArray[np.float64]

FINISHED = str(Searcher.FINISHED)


_USED_UP = (
    "The plan of this search is used up, so no trial is run. Take search.recommend(); another "
    "search has a budget of its own, which adds to this one's."
)

_STOPPED = (
    "A scheduler, or stop= of RunConfig, that ends trials at or before their last report leaves "
    "nothing to release: a trial's value exists when its function returns. Let the scheduler's "
    "max_t be more than the number of a trial's reports, or leave the scheduler out."
)


ON_TUNE = (
    "  On Ray Tune: give tune.TuneConfig(max_concurrent_trials=...) the number of trials\n"
    "  that can run at once; without it Tune starts them one after another."
)
"""What a plan says of its host."""


_OF_THIS_PROCESS: weakref.WeakSet[TuneSearch] = weakref.WeakSet()
"""All searches that somebody still holds."""


def who_suggested(trial_id: str) -> str | None:
    """Name of the class of this package whose search has suggested a trial, if any."""
    found = (
        type(search).__name__ for search in list(_OF_THIS_PROCESS) if trial_id in search._live
    )
    return next(found, None)


def _no_point(answer: str, first: bool) -> str | None:
    """Returns what Tune gets where there is no point; a fit that begins with none says why."""
    if answer == "finished" and first:
        warn(_USED_UP, UtilityWarning)
    return FINISHED if answer == "finished" else None


class TuneSearch(ComparedRun, Reported, Searcher):  # type: ignore[misc]  # Ray has no types
    """Base of all searchers: Tune's hooks, and a run whose results they compare with its ledger.

    Args:
        given: What every searcher has that keeps a ledger.

    Raises:
        ValueError: For an argument outside its range, or a vault URL with a password.
        VaultError: If the vault's database cannot be opened.
    """

    _OF_THIS_PROCESS = "_here _paused _patience _suggesting _reconcile"

    _most_failures = HOPELESS
    """So many failures in a row end the search: without num_samples nothing else would."""

    _SEE_WHY: ClassVar[str] = (
        "Ray shows how in error.txt of each; what a private trainable raises is withheld there: "
        "to see it, call the bare function, which protects nothing: trainable(results[0].config)."
    )
    """Where to look if trials fail."""

    def __init__(self, given: SearchSettings) -> None:
        check_target(type(self).__name__, given.metric, given.mode)
        super().__init__(metric=given.metric, mode=given.mode)
        self._seed = given.seed
        self._param_space: dict[str, Any] = dict(given.search_space or {})
        self._space: TuneSpace | None = to_space(self._param_space)
        if given.search_space is not None and self._space is None:
            raise ValueError(
                "search_space must hold at least one parameter that varies: tune.uniform(0, 1)."
            )
        self._points = checked_points(given.points_to_evaluate)
        self._limit = given.max_concurrent
        self._live: dict[str, Array] = {}
        self._start(given.vault, given.run_name, given.noise)

    @abc.abstractmethod
    def _next(self, trial_id: str, space: TuneSpace) -> tuple[str, Array | None]:
        """("ask", point), ("wait", None) or ("finished", None)."""

    @abc.abstractmethod
    def _complete(self, trial_id: str, x: Array | None, result: Row, error: bool) -> bool:
        """Looks at the end of a trial; whether it has shown what it was run for."""

    # State ----------------------------------------------------------------------------------

    def _attach(self, *, may_begin: bool = False, noise: NoiseSource | None = None) -> None:
        super()._attach(may_begin=may_begin, noise=noise)
        self._suggesting = self._reconcile = False
        _OF_THIS_PROCESS.add(self)
        self._here: set[str] = set()
        self._paused: set[str] = set()
        self._patience = EarlyStop(self._most_failures)

    def get_state(self) -> dict[str, Any]:
        """As :meth:`__getstate__`."""
        return self.__getstate__()

    def set_state(self, state: dict[str, Any]) -> None:
        """Takes what :meth:`get_state` gave, of this or an earlier process."""
        self.__setstate__(state)

    def save(self, checkpoint_path: str) -> None:
        """Writes the public state; Tune calls it now and then.

        Raises:
            VaultError: If the vault was in memory and is gone, while trials are out: Tune asks for
                no suggestion any more once all its trials have begun.
        """
        with suppress(VaultError, PrivacyError):  # the last one stays, and says so when it is read
            self._keep(Path(checkpoint_path).parent)
        Path(checkpoint_path).write_bytes(cloudpickle.dumps(self.get_state()))
        if self._here and self._suggesting:
            self._check_lives()

    def restore(self, checkpoint_path: str) -> None:
        """Reads what :meth:`save` wrote; what the vault knows beyond it always wins."""
        self._take_up(Path(checkpoint_path))
        with suppress(VaultError):  # a later call says that it is gone
            self._begin()

    def _take_up(self, path: Path) -> None:
        """Reads a saved search; no fit goes on with it yet."""
        self.set_state(cloudpickle.loads(path.read_bytes()))
        self._kept = path.parent, 0

    def _begin(self) -> None:
        """Has the host begin: trials that a restored experiment resumes ask for nothing."""
        known = None not in (self._metric, self._mode, self._space)
        if known and self._HOST is not None and ray.is_initialized():
            self._open()

    @classmethod
    def from_experiment(cls, path: str | Path) -> Self:
        """The search of an earlier experiment, to restore or to read it.

        Args:
            path: The experiment's local folder, as for ``Tuner.restore``.

        Returns:
            A search of the same run: ``Tuner.restore(path, trainable)`` goes on with it, with
            the trainable that it was run with (``search.private(...)`` where the search has
            that), and ``search.guarantee()`` says what may be claimed.

        Raises:
            ValueError: If the folder holds no search of this class.
        """
        folder = Path(path)
        saved = sorted(folder.glob(cls.CKPT_FILE_TMPL.format("*")))
        if saved:
            with suppress(TypeError, AttributeError, KeyError):  # another searcher's file
                found = cls.__new__(cls)
                found._take_up(saved[-1])
                return found
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
        if space is None and self._space is None and domains_of(config):
            raise ValueError(
                "Nothing in param_space varies: every domain has a single value. Give at least "
                "one of them two values or a range, such as tune.uniform(0, 1)."
            )
        if None not in (space, self._space) and space.public != self._space.public:  # type: ignore[union-attr]
            return False
        self._metric, self._mode = metric or self._metric, mode or self._mode
        if self._metric is None and self._mode is not None:
            self._metric = DEFAULT_METRIC
        self._param_space = {**self._param_space, **config}
        self._space = space or self._space
        self._begin_fit(_spec)
        return True

    def _begin_fit(self, _spec: Mapping[str, Any]) -> None:
        """Forgets trials of an earlier fit, which may have dropped them; restore knows better."""
        self._live.clear()
        self._here.clear()
        self._paused.clear()
        self._broken = self._channel = None
        self._suggesting = False

    def set_max_concurrency(self, max_concurrent: int) -> bool:
        """Takes the limit of ``max_concurrent_trials`` or a ``ConcurrencyLimiter``."""
        integer(1).check("max_concurrent", max_concurrent)
        self._limit = max_concurrent
        return True

    def suggest(self, trial_id: str) -> dict[str, Any] | str | None:
        """The next configuration, ``FINISHED``, or None while a batch or the limit is out.

        Raises:
            RuntimeError: If metric, mode or search space are not known.
            VaultError: If the vault is gone.
        """
        if self._broken is not None:
            raise self._broken
        first = not self._suggesting
        if first:  # once a fit, and never by those who only read
            self._suggesting = self._reconcile = True
        elif self._here:
            self._check_lives()
        space = self._ready()
        if trial_id in self._live:
            return self._suggestion(trial_id)
        if self._patience.over:
            return FINISHED
        if self._limit is not None and len(self._running()) >= self._limit:
            return None
        answer, x = self._next(trial_id, space)
        if x is None:
            return _no_point(answer, first and not self._live)  # resumed trials run on
        self._live[trial_id] = x
        self._here.add(trial_id)
        return self._suggestion(trial_id)

    def _suggestion(self, trial_id: str) -> dict[str, Any]:
        """Returns the suggestion that Tune gets for a trial that is out."""
        return self._ready().suggestion(self._live[trial_id])

    def _configs(self, trial_id: str) -> list[Row]:
        """Flattened configs that a trial was given, as far as they are known here."""
        if trial_id not in self._live:
            return []
        return [given_to(merged(self._param_space, self._suggestion(trial_id)))]

    def _running(self) -> Collection[str]:
        """Trials that are out and not paused."""
        return self._here - self._paused

    def on_pause(self, trial_id: str) -> None:
        """A trial was paused by ``HyperBandForBOHB``: it makes room for another one."""
        self._paused.add(trial_id)

    def on_unpause(self, trial_id: str) -> None:
        """A paused trial may go on; it counts as running again."""
        self._paused.discard(trial_id)

    def on_trial_result(self, trial_id: str, result: dict[str, Any]) -> None:
        """Compares a report: what was neither released nor declared unprotects the run."""
        if trial_id in self._live:
            self._here.add(trial_id)
        self._look(trial_id, result)

    def on_trial_complete(
        self, trial_id: str, result: dict[str, Any] | None = None, error: bool = False
    ) -> None:
        """Looks at what is shown of a trial, and gives its slot back if it was never told."""
        self._look_at_end(trial_id, dict(result or {}), error, self._end_trial)

    def _end_trial(self, trial_id: str, result: Row, error: bool) -> None:
        x = self._live.pop(trial_id, None)
        self._here.discard(trial_id)
        self._paused.discard(trial_id)
        learnt = self._complete(trial_id, x, result, error)
        why = self._patience.count(failed=error, learnt=learnt)
        if why is not None:
            see = self._SEE_WHY if error else _STOPPED
            warn(f"{why}, so the search ends. {see}", UtilityWarning)

    def add_evaluated_point(self, *_args: Any, **_kwargs: Any) -> None:
        """Refused: a value from elsewhere is not a release of this run."""
        raise ForeignValueError(
            f"{type(self).__name__} learns from its own releases only; a value from elsewhere has "
            "no noise and no charge. Have the point evaluated: points_to_evaluate=[...]."
        )

    def _told_point(self, result: Mapping[str, Any]) -> Array | None:
        """Returns the point of a trial that Tune made anew, not suggested by this search."""
        space = self._ready()
        try:
            return space.encode_flat({name: result[f"config/{name}"] for name in space.space})
        except (KeyError, ValueError):
            return None


def config_at(
    known: TuneSpace | None,
    param_space: Mapping[str, Any],
    x: Array,
    given: Mapping[str, Any] | None = None,
) -> dict[str, Any]:
    """A config as a trial gets it, constants included.

    Args:
        known: The space of the run.
        param_space: The Tuner's, as far as Tune has shown it.
        x: The point, shape (D,).
        given: The Tuner's own, where it holds objects.

    Raises:
        ValueError: If it is of another run, or holds objects that Tune has hidden.
    """
    own = dict(param_space if given is None else given)
    space = known if given is None else to_space(own)
    if space is None or known is None or space.space.names != known.space.names:
        raise ValueError("param_space is not the one that this search was run with.")
    return filled(own, space.suggestion(x))


def filled(param_space: Mapping[str, Any], values: Mapping[str, Any]) -> dict[str, Any]:
    """A param_space with what was suggested in its place.

    Raises:
        ValueError: If it holds objects that Tune has hidden.
    """
    config = merged(param_space, values)
    if holds_placeholder(config):
        raise ValueError(
            "The search space holds objects that Tune hides from searchers: pass it again, "
            "search.recommend(param_space)."
        )
    return config


def merged(param_space: Mapping[str, Any], values: Mapping[str, Any]) -> dict[str, Any]:
    """The config of a trial: constants of the space, and what was suggested."""
    config = dict(param_space)
    for name, value in values.items():
        inner = config.get(name)
        both = isinstance(inner, Mapping) and isinstance(value, Mapping)
        config[name] = merged(inner, value) if both else value  # type: ignore[arg-type]
    return config
