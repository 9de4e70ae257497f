"""What a private objective may see and do, and what of its failures may be told."""

from __future__ import annotations

import builtins
from collections.abc import Callable
from typing import Any

import optuna
from optuna.exceptions import TrialPruned

from privbo_plugins.errors import ObjectiveFailedError, PrivacyError, VaultError

_PASSED_ON = frozenset(
    {
        "suggest_float",
        "suggest_int",
        "suggest_categorical",
        "suggest_uniform",
        "suggest_loguniform",
        "suggest_discrete_uniform",
        "number",
        "params",
        "distributions",
        "datetime_start",
        "relative_params",
        "user_attrs",
        "constraints",
    }
)

_WHY = {
    "report": "intermediate values are stored and drawn by the dashboard",
    "should_prune": "a decision that depends on validation records tells something of them",
    "set_user_attr": "user attributes are stored and shown by the dashboard",
    "set_constraint": "constraint values are stored and shown by the dashboard",
    "study": "through the study everything in its storage can be written",
    "storage": "through the storage everything can be written",
}


class GuardedTrialError(PrivacyError):
    """A private objective tried something that would bypass the guarantee."""

    def __init__(self, operation: str) -> None:
        self.operation = operation if operation in _WHY else "storage"
        super().__init__(
            f"trial.{self.operation} is closed to a private objective: "
            f"{_WHY[self.operation]}. If what you pass is public (it depends on no validation "
            f"record), say so: trial.{self.operation}(..., public=True)."
            if self.operation not in ("study", "storage")
            else f"trial.{self.operation} is closed to a private objective: "
            f"{_WHY[self.operation]}."
        )


class GuardedTrial:
    """A trial whose ``suggest_*`` methods pass through and whose outputs are closed.

    ``report``, ``should_prune``, ``set_user_attr`` and ``set_constraint`` need ``public=True``:
    the caller then vouches that the value depends on no validation record, and the guarantee
    reports that this was declared.

    Args:
        trial: Optuna's trial.
        declare: Called with the name of an operation whenever a caller vouches for it.
    """

    def __init__(self, trial: optuna.Trial, declare: Callable[[str], None]) -> None:
        self._trial = trial
        self._declare = declare
        self.suggest_error: BaseException | None = None

    def __getattr__(self, name: str) -> Any:
        if name.startswith("suggest_") and name in _PASSED_ON:
            return self._suggesting(getattr(self._trial, name))
        if name in _PASSED_ON:
            return getattr(self._trial, name)
        if name.startswith("__"):
            raise AttributeError(name)
        raise GuardedTrialError(name if name in _WHY else "storage")

    def _suggesting(self, suggest: Callable[..., Any]) -> Callable[..., Any]:
        """Remembers what a suggestion raised: it names parameters and ranges, which are public."""

        def wrapped(*args: Any, **kwargs: Any) -> Any:
            try:
                return suggest(*args, **kwargs)
            except Exception as error:
                self.suggest_error = error
                raise

        return wrapped

    def __repr__(self) -> str:
        return f"GuardedTrial(number={self._trial.number})"

    def _vouched(self, operation: str, public: bool) -> None:
        if public is not True:
            raise GuardedTrialError(operation)
        self._declare(operation)

    def report(self, value: float, step: int, *, public: bool = False) -> None:
        """Reports an intermediate value that depends on no validation record."""
        self._vouched("report", public)
        self._trial.report(value, step)

    def should_prune(self, *, public: bool = False) -> bool:
        """Asks the pruner, which sees public intermediate values only."""
        self._vouched("should_prune", public)
        return self._trial.should_prune()

    def set_user_attr(self, key: str, value: Any, *, public: bool = False) -> None:
        """Stores an attribute that depends on no validation record."""
        self._vouched("set_user_attr", public)
        self._trial.set_user_attr(key, value)

    def set_constraint(self, key: str, value: Any, *, public: bool = False) -> None:
        """Stores a constraint value that depends on no validation record."""
        self._vouched("set_constraint", public)
        self._trial.set_constraint(key, value)


_LOSSES, _PRUNED, _INTERRUPTED, _EXIT, _GUARD, _FAILED = range(6)


def attempt(objective: Callable[[Any], Any], trial: GuardedTrial) -> tuple[Any, Any]:
    """(result, None), or (None, the exception to raise instead of what the objective raised).

    The original exception, its text, its traceback and the frames it holds are dropped here;
    the new one is raised by the caller outside of any ``except`` block, so that neither
    ``__context__`` nor a log handler that prints local variables can reach them.
    """
    try:
        return objective(trial), None
    except TrialPruned:
        return None, TrialPruned("The objective pruned this trial.")
    except GuardedTrialError as error:
        return None, GuardedTrialError(str(error.operation))
    except KeyboardInterrupt:
        return None, KeyboardInterrupt()
    except SystemExit as error:
        return None, SystemExit(error.code if isinstance(error.code, int) else 1)
    except BaseException as error:
        if error is trial.suggest_error:
            return None, _suggest_failed(error)
        return None, _withheld(public_name(error))


def _suggest_failed(error: BaseException) -> Exception:
    for kind in (VaultError, PrivacyError):
        if isinstance(error, kind):
            return kind(str(error))
    return ValueError(f"A suggestion failed: {error}")


def public_name(error: BaseException) -> str:
    """The type's name if Python itself defines it; others might carry data."""
    kind = type(error)
    return kind.__name__ if getattr(builtins, kind.__name__, None) is kind else "an exception"


def _withheld(name: str) -> ObjectiveFailedError:
    return ObjectiveFailedError(
        f"The private objective raised {name}. Its message and traceback are withheld, because "
        "exception texts quote data and Optuna logs them; call the objective directly, outside "
        "the study, to see them."
    )
