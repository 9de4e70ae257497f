"""Who a reward is from: a name as plain data, and the one spelling that a ledger counts."""

from __future__ import annotations

import unicodedata
from typing import Any

import numpy as np

User = str | bytes | int
"""What may name a user."""


PLAIN = "trials returned values that were not privatised"
NOT_PRIVATE = "epsilon = infinity: rewards are not privatised"
"""Why nothing is claimed of a run on rewards."""

NO_NAME = "A user's name must be a string, bytes or an integer: user_id= gave something else."
"""The error for anything else."""


def user_name(user: Any) -> User:
    """A user's name as plain data: one name is one user, in every subclass.

    Raises:
        ValueError: If it is no string, bytes or integer.
    """
    kind = type(user)  # not isinstance, which would ask the object
    if issubclass(kind, str):
        return str.__str__(user)
    if issubclass(kind, bytes):
        return bytes(memoryview(user))
    if issubclass(kind, np.integer):
        return int(user)
    if issubclass(kind, int) and kind is not bool:
        return int.__int__(user)
    raise ValueError(NO_NAME)


def one_name(user: Any) -> str:
    """The one spelling of a user's name, under which a ledger counts.

    An integer is its decimal digits, bytes are the UTF-8 text they hold (or their hexadecimal
    digits after ``bytes:``); text is normalised (Unicode NFKC) and loses the whitespace around it.
    Upper and lower case differ, and so do ``7`` and ``"07"``.

    Raises:
        ValueError: If it is no string, bytes or integer.

    Example:
        >>> {one_name(name) for name in (7, "7", b"7", " 7 ", "\uff17")}
        {'7'}
    """
    return unicodedata.normalize("NFKC", _spelling(user)).strip()


def _spelling(user: Any) -> str:
    name = user_name(user)
    if isinstance(name, int):
        return f"{name:d}"
    try:
        return name if isinstance(name, str) else name.decode()
    except UnicodeDecodeError:
        return f"bytes:{name.hex()}"  # type: ignore[union-attr]


def check_named(user_budget: float | None, user_id: Any, source: str) -> None:
    """Raises ValueError for a budget of users whom nothing names.

    Args:
        user_budget: What one user may pay in all.
        user_id: Whose reward a trial is.
        source: What a function that names users gets.
    """
    if user_budget is not None and user_id is None:
        raise ValueError(
            "user_budget= limits what one user pays in all, so it needs user_id=: a name, or a "
            f"function from the {source} to the name of the user it asks."
        )
