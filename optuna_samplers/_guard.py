"""What a private objective may see and do, and what of its failures may be told."""

from __future__ import annotations

import abc
from collections.abc import Callable
from functools import partial
from typing import Any

import optuna
from optuna.distributions import (
    BaseDistribution,
    CategoricalDistribution,
    FloatDistribution,
    IntDistribution,
)
from optuna.exceptions import TrialPruned
from optuna.study import StudyDirection

from optuna_samplers._audit import DECLARABLE, operation_on
from optuna_samplers._space import contains, shown_name
from privbo_plugins import sanitize
from privbo_plugins.errors import (
    BudgetExceededError,
    PrivacyError,
    SpaceChangedError,
    VaultError,
)
from privbo_plugins.sanitize import sanitized
from privbo_plugins.status import warn_of_minimised_scores

_SUGGESTED: dict[str, Callable[..., BaseDistribution]] = {
    "suggest_float": lambda low, high, *, step=None, log=False: FloatDistribution(
        low, high, log=log, step=step
    ),
    "suggest_int": lambda low, high, *, step=1, log=False: IntDistribution(
        low, high, log=log, step=step
    ),
    "suggest_categorical": lambda choices: CategoricalDistribution(choices),
    "suggest_uniform": lambda low, high: FloatDistribution(low, high),
    "suggest_loguniform": lambda low, high: FloatDistribution(low, high, log=True),
    "suggest_discrete_uniform": lambda low, high, q: FloatDistribution(low, high, step=q),
}
"""What a suggestion would write into the storage, beside the value."""

_OUT_OF_RANGE = (
    "The enqueued or fixed value of {} lies outside of its range; nothing was evaluated or "
    "released. Enqueue a value that lies in it."
)

_PASSED_ON = frozenset(
    {
        "number",
        "params",
        "distributions",
        "datetime_start",
        "user_attrs",
    }
)

_INSTEAD = {
    "relative_params": "Read trial.params.",
    "upload_artifact": (
        "Upload what is public outside of the objective, to the study: "
        "optuna.artifacts.upload_artifact(study_or_trial=study, ...)."
    ),
    "study": "What is public can be stored by trial.set_user_attr(..., public=True).",
    "storage": "What is public can be stored by trial.set_user_attr(..., public=True).",
}
"""What to do where no declaration helps."""

_ARTIFACTS = "optuna.artifacts"

_WHY = {
    "relative_params": "it is Optuna's own live dictionary",
    "constraints": "constraint values are stored and shown by the dashboard",
    "report": "intermediate values are stored and drawn by the dashboard",
    "should_prune": "a decision that depends on private records reveals something of them",
    "set_user_attr": "user attributes are stored and shown by the dashboard",
    "set_constraint": "constraint values are stored and shown by the dashboard",
    "set_user_attr(privbo:...)": "attributes of this name are the plugin's own",
    "upload_artifact": "files are listed in the study, and shown by the dashboard",
    "study": "through the study everything in its storage can be written",
    "storage": "through the storage, or another attribute, everything can be written",
}


class GuardedTrialError(PrivacyError):
    """A private objective tried something that would bypass the guarantee."""

    def __init__(self, operation: str) -> None:
        self.operation = operation if operation in _WHY else "storage"
        text = f"trial.{self.operation} is closed to a private objective: {_WHY[self.operation]}."
        if self.operation in DECLARABLE:
            text += (
                " If what you pass is public (it depends on no private record), say so: "
                f"trial.{self.operation}(..., public=True). Otherwise leave it out."
            )
        elif self.operation in _INSTEAD:
            text += f" {_INSTEAD[self.operation]}"
        super().__init__(text)


class GuardedTrial:
    """A trial whose ``suggest_*`` methods pass through and whose outputs are closed.

    ``report``, ``should_prune``, ``set_user_attr`` and ``set_constraint`` need ``public=True``:
    the caller then declares that the value depends on no private record, and the guarantee
    reports that this was declared.

    Args:
        trial: Optuna's trial.
        declare: Called whenever a caller declares an operation's data public, with its name and
            what it writes to, as in ``report(3)``.
        check: Called with the name and the distribution of a suggestion before anything of it is
            stored; raises what refuses it.
    """

    def __init__(
        self,
        trial: optuna.Trial,
        declare: Callable[[str], None],
        check: Callable[[str, BaseDistribution], None],
    ) -> None:
        self._trial = trial
        self._declare, self._check = declare, check
        self.suggest_error: BaseException | None = None
        self.suggestion = ""

    def __getattr__(self, name: str) -> Any:
        if name in _SUGGESTED:
            return self._suggesting(name, getattr(self._trial, name))
        if name in _PASSED_ON:
            return getattr(self._trial, name)
        if name.startswith("__"):
            raise AttributeError(name)
        raise GuardedTrialError(name if name in _WHY else "storage")

    def _suggesting(self, method: str, suggest: Callable[..., Any]) -> Callable[..., Any]:
        """Remembers which suggestion raised what, so that it is not taken for the objective's."""

        def wrapped(name: str, *args: Any, **kwargs: Any) -> Any:
            try:
                name = _text(name)
                distribution = _SUGGESTED[method](*args, **kwargs)
                self._check(name, distribution)
                value = suggest(name, *args, **kwargs)
                if not contains(distribution, value):
                    raise SpaceChangedError(_OUT_OF_RANGE.format(shown_name(name)))
                return value
            except Exception as error:
                self.suggest_error, self.suggestion = (
                    error,
                    (f"trial.{method}({shown_name(name)}, ...)"),
                )
                raise

        return wrapped

    def __repr__(self) -> str:
        return f"GuardedTrial(number={self._trial.number})"

    def _declared_public(self, operation: str, public: bool, place: object = None) -> None:
        if public is not True:
            raise GuardedTrialError(operation)
        self._declare(operation if place is None else operation_on(operation, place))

    def report(self, value: float, step: int, *, public: bool = False) -> None:
        """Reports an intermediate value that depends on no private record."""
        if public is True:
            step = int(step)
        self._declared_public("report", public, step)
        self._trial.report(value, step)

    def should_prune(self, *, public: bool = False) -> bool:
        """Asks the pruner, which sees public intermediate values only."""
        self._declared_public("should_prune", public)
        return self._trial.should_prune()

    def set_user_attr(self, key: str, value: Any, *, public: bool = False) -> None:
        """Stores an attribute that depends on no private record."""
        if _text(key).startswith("privbo:"):
            raise GuardedTrialError("set_user_attr(privbo:...)")
        self._declared_public("set_user_attr", public, _text(key))
        self._trial.set_user_attr(_text(key), value)

    def set_constraint(self, key: str, value: Any, *, public: bool = False) -> None:
        """Stores a constraint value that depends on no private record."""
        self._declared_public("set_constraint", public, _text(key))
        self._trial.set_constraint(_text(key), value)


def _text(name: object) -> str:
    """A name as a plain text: what is stored under it is looked for under it again.

    Raises:
        TypeError: If it is none.
    """
    if not isinstance(name, str):
        raise TypeError("Names of parameters, attributes and constraints are texts.")
    return str.__str__(name)


def _translated(trial: GuardedTrial, error: BaseException) -> BaseException | None:
    """Makes the exception to raise instead of what an objective raised; None to withhold it."""
    if isinstance(error, TrialPruned):
        return TrialPruned("The objective pruned this trial.")
    if isinstance(error, GuardedTrialError):
        return GuardedTrialError(str(error.operation))
    if error is trial.suggest_error:
        return _suggest_failed(error, trial.suggestion)
    return GuardedTrialError("upload_artifact") if _from_artifacts(error) else None


def _from_artifacts(error: BaseException) -> bool:
    """Checks whether Optuna has refused to upload a file for a trial that is none of its own."""
    if type(error) is not ValueError:  # another class runs code of its own when it is looked at
        return False
    trace = error.__traceback__
    while trace is not None and trace.tb_next is not None:
        trace = trace.tb_next
    module = None if trace is None else trace.tb_frame.f_globals.get("__name__")
    return str(module).startswith(_ARTIFACTS)


def _suggest_failed(error: BaseException, suggestion: str) -> BaseException:
    """The engine's own errors pass; Optuna's quote bounds, which may have come from the data."""
    if type(error) in (VaultError, PrivacyError, BudgetExceededError, SpaceChangedError):
        return sanitized(error)
    if isinstance(error, ImportError) and type(error) in (ImportError, ModuleNotFoundError):
        return ImportError(
            f"The sampler needs the package {shown_name(error.name or 'that it imports')}, "
            "which is not installed."
        )
    return ValueError(
        f"{suggestion} was refused: its name, range or choices make no sense (1, 1.0 and True are "
        "one choice), or differ from "
        "those of earlier trials (or from another call in this trial). Every trial must suggest "
        "the same parameters with the same ranges; the bounds are not repeated here, because "
        "Optuna logs this text. If they do: some of Optuna's own samplers serve one study only, "
        "so give this study a new one."
    )


# What an objective returns ----------------------------------------------------------------------


_OUTSIDE = (
    "A private objective runs inside a study, which counts its evaluations; it got a {}. Tune: "
    "study.optimize(private), where sampler.private(objective), private_objective(...) or "
    "ldp_objective(...) has made private. To try the bare function, which protects nothing: "
    "objective(optuna.trial.FixedTrial({{...}}))."
)


class Releasing(abc.ABC):
    """An objective that returns a release, and raises nothing that quotes data."""

    _objective: Callable[[Any], Any]
    _looked_at = False
    """Whether names and direction were compared."""

    def __call__(self, trial: optuna.Trial) -> Any:
        """Evaluates the objective on a guarded trial and returns the released value.

        Raises:
            ValueError: If it is not a trial of a study, which counts its evaluations.
        """
        if not isinstance(trial, optuna.Trial):
            raise ValueError(_OUTSIDE.format(type(trial).__name__))
        if not self._looked_at:
            self._looked_at = True
            name, study = getattr(self._objective, "__name__", ""), trial.study
            if study.directions == [StudyDirection.MINIMIZE]:
                warn_of_minimised_scores([name, *(study.metric_names or ())])
        value, error = self._evaluate(trial)
        if error is not None:
            raise error
        assert value is not None
        return [*value] if isinstance(value, list) else float(value)

    @abc.abstractmethod
    def _evaluate(self, trial: optuna.Trial) -> tuple[float | None, BaseException | None]:
        """(release, None), or (None, an error whose frames hold no private value)."""

    def __repr__(self) -> str:
        return f"{type(self).__name__}()"  # the objective's own repr may quote data


def check_objective(objective: Any, returned: str) -> None:
    """Checks that something can be a private objective.

    Args:
        objective: What the user gave.
        returned: What it should return.

    Raises:
        ValueError: If it is no function of a trial, or private already.
    """
    if isinstance(objective, Releasing):
        raise ValueError("This objective is private already: give it to study.optimize as it is.")
    if not callable(objective):
        raise ValueError(
            f"The objective must be a function of a trial that returns {returned}, got a "
            f"{type(objective).__name__}."
        )


def released(
    objective: Callable[[Any], Any], trial: GuardedTrial, release: Callable[[Any], float]
) -> tuple[float | None, BaseException | None]:
    """(what is released of an objective's result, None), or (None, an error without data)."""
    returned, error = sanitize.call(partial(objective, trial), partial(_translated, trial))
    if error is not None:
        return None, error
    return sanitize.call(partial(release, returned), sanitized)
