"""The one base of all samplers: what Optuna asks of any sampler.

Order of Optuna's calls for one trial: ``before_trial``, then lazily (at the first suggest that is
neither fixed nor single-valued) ``infer_relative_search_space`` and ``sample_relative``, then the
objective, then ``after_trial``. Enqueued trials may skip the middle; ``add_trial`` calls nothing.
"""

from __future__ import annotations

import abc
import secrets
import threading
import weakref
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, ClassVar, Generic, TypeVar

from optuna.distributions import BaseDistribution
from optuna.samplers import BaseSampler, RandomSampler
from optuna.search_space import IntersectionSearchSpace
from optuna.study import Study
from optuna.trial import FrozenTrial, TrialState

from optuna_samplers import _logs
from optuna_samplers._publish import Pace, publish
from optuna_samplers._settings import SpaceSettings
from optuna_samplers._space import shown_name, to_space
from optuna_samplers._study import (
    completed,
    refuse_multi_objective,
    refuse_optuna_search,
    refuse_search_cv,
    whole,
)
from privbo_plugins.errors import PrivacyWarning, SpaceChangedError, UtilityWarning, warn
from privbo_plugins.plots import Report
from privbo_plugins.privacy.claim import PrivacyGuarantee
from privbo_plugins.spaces import Space, varying

UNPROTECTED = "nothing is protected"
"""What an object says of a study once."""


@dataclass(eq=False)
class OfStudy:
    """What one sampler object keeps of one study; all of it can be found out again."""

    intersection: IntersectionSearchSpace = field(default_factory=IntersectionSearchSpace)
    pace: Pace = field(default_factory=Pace)
    said: set[str] = field(default_factory=set)

    def once(self, what: str) -> bool:
        """Tells whether something is to be said now: it was not before, and is from now on."""
        new = what not in self.said
        self.said.add(what)
        return new

    def warn(self, reason: str, fix: str = "") -> None:
        """Warns once that nothing is protected."""
        if self.once(UNPROTECTED):
            text = f"Nothing is protected: {reason}. {fix}".strip()
            warn(text, PrivacyWarning)


S = TypeVar("S", bound=OfStudy)
Values = Sequence[float] | None
Wanted = dict[str, BaseDistribution]


class Studies(abc.ABC, Generic[S]):
    """What one object keeps of studies.

    Args:
        given: Declares the search space, or leaves it open.

    Raises:
        ValueError: If a search space holds nothing that varies.
    """

    _OWN_STUDY: ClassVar[bool] = False
    """Whether a study stays with its owner, and may hold exact values."""

    def __init__(self, given: SpaceSettings) -> None:
        declared = given.search_space
        if declared is not None:
            varying(to_space(declared), "search_space")
        self._search_space = None if declared is None else dict(declared)
        self._reset()

    _OF_THIS_PROCESS: ClassVar[tuple[str, ...]] = ("_lock", "_states")
    """What no pickle holds; :meth:`_reset` makes it anew, or the class has another one."""

    @abc.abstractmethod
    def _new_state(self, study: Study) -> S:
        """Makes the state to keep of a study that this sampler has not seen yet."""

    # State ----------------------------------------------------------------------------------

    def _reset(self) -> None:
        self._lock = threading.RLock()
        self._states: weakref.WeakKeyDictionary[Any, dict[tuple[str, int], S]] = (
            weakref.WeakKeyDictionary()
        )

    def __getstate__(self) -> dict[str, Any]:
        """Handles and public settings: nothing of a vault, no noise source."""
        return {n: v for n, v in self.__dict__.items() if n not in self._OF_THIS_PROCESS}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        self._reset()

    def _state(self, study: Study) -> S:
        key = study.study_name, study._study_id
        with self._lock:
            of_storage = self._states.setdefault(study._storage, {})
            if key not in of_storage:
                of_storage[key] = self._new_state(study)
            return of_storage[key]

    def _forget(self, study: Study) -> None:
        with self._lock:
            self._states.get(study._storage, {}).pop((study.study_name, study._study_id), None)

    def _tunable(self, study: Study) -> Study:
        """The whole study, also where Optuna has passed a view of it.

        Raises:
            ValueError: If it has several objectives.
            PrivacyError: If OptunaSearchCV runs it, unless the study is its owner's secret anyway.
        """
        study = whole(study)
        refuse_multi_objective(study, type(self).__name__)
        if not self._OWN_STUDY:
            refuse_search_cv(type(self).__name__)
        return study

    def _common(self, study: Study) -> dict[str, BaseDistribution]:
        found = self._search_space
        if found is None:
            with self._lock:
                found = self._state(study).intersection.calculate(study)
        return {name: dist for name, dist in found.items() if not dist.single()}

    def _known_space(self, study: Study) -> Space | None:
        """The space of a study, once one is known."""
        relative = self._common(self._tunable(study))
        return to_space(relative) if relative else None


class ReportedStudies(Studies[S]):
    """What an object tells people of studies: status, report, note and pictures."""

    @abc.abstractmethod
    def status(self, study: Study) -> dict[str, Any]:
        """Tells where the run stands, JSON-ready: see :func:`privbo_plugins.status.status`."""

    @abc.abstractmethod
    def _page(self, study: Study) -> Report:
        """Makes the content of a study's report."""

    def report(self, study: Study, path: str | Path) -> Path:
        """Writes an HTML page: guarantee, recommendation, what has been released, in pictures.

        Of a federation it tells rounds and budget; an agent's own trials are the agent's secret.

        Args:
            study: The study.
            path: Where to write.

        Returns:
            The path written.

        Raises:
            ImportError: If the ``viz`` extra is not installed.
            FederationError: If a federation's server cannot be reached.
        """
        study = whole(study)
        return replace(self._page(study), status=self.status(study)).write(path)

    def _reported(self, make: Callable[..., Report], study: Study, **more: Any) -> Report:
        """Makes a report of the engine's from what all kinds of secrets have."""
        title = f"Private tuning report: {study.study_name}"
        told = self.recommend(study) if completed(study) else None
        claim, history = self.guarantee(study), self.history(study)
        return make(title, claim, history, recommendation=told, **more)

    @abc.abstractmethod
    def guarantee(self, study: Study) -> PrivacyGuarantee:
        """Claims what holds for a study."""

    @abc.abstractmethod
    def history(self, study: Study) -> Any:
        """Returns what the study has published."""

    @abc.abstractmethod
    def _values_are(self, study: Study, guarantee: PrivacyGuarantee) -> str:
        """Says in Markdown what the values of a study's trials are."""

    @abc.abstractmethod
    def recommend(self, study: Study) -> dict[str, Any]:
        """The recommended parameters."""

    def publish(self, study: Study, trial: FrozenTrial | None = None) -> None:
        """Shows in optuna-dashboard what the study's numbers are worth.

        The study gets a note (what the values are, recommendation, guarantee) and the report's
        pictures; the recommended trial, if one was run there, gets a note that says so. What has
        not changed is not written, and a note that somebody else wrote or edited is left alone.
        optuna-dashboard need not be installed here, nor plotly.

        As a callback it goes with the study: ``study.optimize(objective,
        callbacks=[sampler.publish])``. It then takes some 5 % of the time at most, and its own
        failure is a warning and no failure of a trial. The last trials of a plan are always
        shown; after a loop that ends before its plan does, call it once more.

        Args:
            study: The study.
            trial: What Optuna passes to callbacks.

        Raises:
            ValueError: If nothing has been released yet; not from a callback.
        """
        study = whole(study)
        own = self._state(study)
        if trial is None:
            own.pace.timed(lambda: self._publish(study))
            return
        try:
            if completed(study) and (own.pace.due() or self._ended(study)):
                own.pace.timed(lambda: self._publish(study))
        except Exception as error:
            if own.once("what optuna-dashboard shows is not up to date"):
                warn(
                    f"What optuna-dashboard shows is not up to date ({type(error).__name__}); "
                    "trials go on. Call publish(study) when the run is over.",
                    UtilityWarning,
                )

    def _ended(self, study: Study) -> bool:
        """Checks whether a plan is used up; a modeler of rows has none."""
        finished = getattr(self, "finished", None)
        return finished is not None and bool(finished(study))

    def _publish(self, study: Study) -> None:
        page = self._page(study)
        recommended = self.recommend(study) if completed(study) else None
        publish(study, page, self._values_are(study, page.guarantee), recommended)


class StudySampler(ReportedStudies[S], BaseSampler):
    """Base of all samplers.

    Args:
        given: What every sampler has; its seed drives candidates and draws, never noise.

    Raises:
        ValueError: If a search space holds nothing that varies.
    """

    def __init__(self, given: SpaceSettings) -> None:
        super().__init__(given)
        self._seed = secrets.randbits(32) if given.seed is None else int(given.seed)
        self._independent = RandomSampler(seed=self._seed % 2**32)  # the most that NumPy takes

    def reseed_rng(self) -> None:
        """New seeds for candidates and independent draws."""
        self._seed = secrets.randbits(32)
        self._independent.reseed_rng()

    def before_trial(self, study: Study, trial: FrozenTrial) -> None:
        """Refuses what cannot be tuned, and ends the trial then: Optuna would leave it running."""
        _logs.begin()
        try:
            whole_study = self._tunable(study)
            refuse_optuna_search(type(self).__name__)
            self._admit(whole_study, trial)
        except BaseException:
            with suppress(Exception):  # the storage may be what fails
                study._storage.set_trial_state_values(trial._trial_id, TrialState.FAIL)
            raise

    def _admit(self, study: Study, trial: FrozenTrial) -> None:
        """Does what comes before every trial; raises what refuses it."""

    def infer_relative_search_space(
        self, study: Study, trial: FrozenTrial
    ) -> dict[str, BaseDistribution]:
        """The declared space, or what all completed trials have in common."""
        return self._relative(self._tunable(study))

    def _relative(self, study: Study) -> dict[str, BaseDistribution]:
        return self._common(study)

    def sample_relative(
        self, study: Study, trial: FrozenTrial, search_space: dict[str, BaseDistribution]
    ) -> dict[str, Any]:
        """The next evaluation; nothing before the space is known."""
        study = self._tunable(study)
        return self._suggest(study, trial, search_space) if search_space else {}

    @abc.abstractmethod
    def _suggest(self, study: Study, trial: FrozenTrial, wanted: Wanted) -> dict[str, Any]:
        """Returns parameters of the next evaluation; {} for a random draw."""

    def sample_independent(
        self,
        study: Study,
        trial: FrozenTrial,
        param_name: str,
        param_distribution: BaseDistribution,
    ) -> Any:
        """A parameter before the space is known: a random draw, or an incumbent's; or a row.

        Raises:
            SpaceChangedError: If the parameter was declared with another range, or numbers other
                rows than a released table has.
            ValueError: If an incumbent lies outside the distribution.
        """
        study, declared = self._tunable(study), (self._search_space or {}).get(param_name)
        if declared not in (None, param_distribution) and not declared.single():
            raise SpaceChangedError(
                f"The objective suggests {shown_name(param_name)} with another range, "
                "scale or step than search_space= declares."
            )
        return self._draw(study, trial, param_name, param_distribution)

    def _draw(self, study: Study, trial: FrozenTrial, name: str, dist: BaseDistribution) -> Any:
        return self._independent.sample_independent(study, trial, name, dist)

    def after_trial(
        self,
        study: Study,
        trial: FrozenTrial,
        state: TrialState,
        values: Sequence[float] | None,
    ) -> None:
        """Looks at what is about to be stored; ends the loop where a plan is used up.

        What a failed trial returned is kept out of Optuna's log.
        """
        if state == TrialState.FAIL:
            _logs.withhold(trial.number)
        self._end(whole(study), trial, state, values)

    def _end(self, study: Study, trial: FrozenTrial, state: TrialState, values: Values) -> None:
        """Does what comes after every trial, before its state is stored."""


def constants_in(study: Study) -> dict[str, Any]:
    """Parameters with a single value, as completed trials have them."""
    constants: dict[str, Any] = {}
    for trial in completed(study):
        constants |= {n: trial.params[n] for n, d in trial.distributions.items() if d.single()}
    return constants
