"""Who a reward is from, as the plain data that a ledger keeps."""

from __future__ import annotations

from typing import Any

import numpy as np

User = str | bytes | int
"""What may name a user."""


def user_name(user: Any) -> User:
    """A user's name as plain data: one name is one user, whatever subclass it comes in.

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
    raise ValueError("A user's name must be a string, bytes or an integer.")
