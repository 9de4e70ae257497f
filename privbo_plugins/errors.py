"""Errors and warnings of the engine.

No message in this module or built from it ever carries a private value: a rule, a public number
(a length, a budget, a name the user typed) and the way out, nothing else.
"""

from __future__ import annotations

import sys
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar

_NOT_THE_USERS = frozenset(
    "privbo_plugins optuna_samplers raytune_searchers sklearn_search optuna ray sklearn joblib "
    "concurrent contextlib functools threading".split()
)
"""Packages whose lines no warning points at."""

TOGETHER = "Runs on the same records add up: privbo label --run A B --data-label NAME, then claim "
TOGETHER += "them together with privbo certificate (or guarantee) --data-label NAME"

_PAID: ContextVar[bool] = ContextVar("paid", default=False)


class PrivacyWarning(UserWarning):
    """Nothing is protected, or less than the user may think.

    Issued where the host framework forbids raising; the run is marked at the same time, so
    that its guarantee says the same thing later.
    """


class UtilityWarning(UserWarning):
    """The guarantee stands, but the noise it costs is likely to drown the signal."""


def warn(text: str, category: type[Warning]) -> None:
    """Issues a warning that points at the user's line, through the hosts that called us.

    In a thread of a host no line is the user's: then it points at where the thread began.

    Args:
        text: What it says.
        category: Its class.

    Raises:
        Warning: If a filter makes an error of it, but not in :func:`paid_for`, where it is shown.
    """
    frame, level = sys._getframe(1), 2
    while frame.f_back and str(frame.f_globals.get("__name__")).split(".")[0] in _NOT_THE_USERS:
        frame, level = frame.f_back, level + 1
    try:
        warnings.warn(text, category, stacklevel=level)
    except category:
        if not _PAID.get():
            raise
        warnings.showwarning(text, category, frame.f_code.co_filename, frame.f_lineno)


@contextmanager
def paid_for() -> Iterator[None]:
    """Hands out a release that is paid for: no warning in here becomes an error."""
    before = _PAID.set(True)
    try:
        yield
    finally:
        _PAID.reset(before)


class PrivacyError(RuntimeError):
    """An operation was refused because the guarantee would not survive it."""


class ForeignValueError(PrivacyError, NotImplementedError):
    """A value from elsewhere was offered: it has neither noise nor a charge.

    Also a ``NotImplementedError``, which hosts expect of a searcher that takes no such values.
    """


class BudgetExceededError(PrivacyError):
    """A release would have exceeded the declared budget; nothing was drawn."""


class VaultError(RuntimeError):
    """The private store cannot be opened, written, or is not the one the run started with."""


class FederationError(RuntimeError):
    """The federation's server cannot be reached, or does not go on; an agent can, alone."""


class ObjectiveFailedError(RuntimeError):
    """The user's objective raised; its message and traceback were withheld.

    Exception texts quote data (``could not convert string to float: 'Jane Doe'``) and the hosts
    log them, so only the fact is passed on.
    """


class SpaceChangedError(ValueError):
    """A trial was evaluated in another search space than the run's, or than was declared."""


class NotARewardError(ValueError):
    """An objective returned something else than one number; the text never quotes it."""


class NotLossesError(ValueError):
    """An objective returned something else than a vector; the text never quotes it."""


NO_HANDLE = (
    "vault must be None, 'memory', a path with a dot or a slash in it such as 'private.db', a "
    "database URL such as 'sqlite:///private.db', or 'env:NAME' for one of these in an "
    "environment variable."
)
"""The error for what names no vault; it never repeats the text, which may hold a password."""

SET_BACK = (
    "The vault shows less than it did: it was restored from an older backup, and what was "
    "released since that backup is missing from its ledger. Nothing is released with it. Put its "
    "newest file back, and the run goes on; if that is lost, start another run: on the same "
    "records its privacy loss adds to this one's."
)
"""The error for a vault whose ledger is older than its guard remembers."""

ONE_SPACE = (
    "Suggest the same parameters with the same ranges, from public knowledge, in every trial: one "
    "that applies to some choices only is suggested always and used where it applies. For a new "
    "space start a new study; what it releases about the same records or users adds to this one's."
)
"""The fix for a trial of another search space."""

ANOTHER_POINT = (
    "Of a trial of this name the vault holds a release at other parameters: the study or "
    "experiment is a copy of one that goes on beside the same vault. Nothing was released. Go on "
    "with the original, or begin a new one."
)
"""The error in place of the release of another point."""
