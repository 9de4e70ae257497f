"""The file of a vault in SQLite: made for its owner alone, and refused where it lost something."""

from __future__ import annotations

import os
import stat
import time
from collections.abc import Iterator

from privbo_plugins.errors import PrivacyWarning, VaultError, warn

_PATIENCE = 10.0
"""Seconds in which the process that has created a file writes the tables into it."""


def prepare_file(path: str, create: bool) -> None:
    """Creates a file with mode 0600 before SQLite would with the umask's, or looks at it.

    Raises:
        VaultError: If it cannot be used.
    """
    try:
        path = path.removeprefix(os.path.join(os.getcwd(), ""))  # as far as the user typed it
        if not (create and _new_file(path)):
            _check_file(path)
    except OSError as error:
        raise VaultError(
            f"The vault file {path} cannot be created: {error.strerror}. Give a path in a "
            "directory that this user may write."
        ) from None


def _new_file(path: str) -> bool:
    """Checks whether there was no file and one was created, for its owner alone."""
    try:
        os.close(os.open(path, os.O_CREAT | os.O_EXCL | os.O_RDWR, 0o600))
    except FileExistsError:
        return False
    return True


def _check_file(path: str) -> None:
    """Looks at a file that is there, without opening it: closing it would drop SQLite's locks.

    Raises:
        VaultError: If it is no plain file, is somebody else's, or has lost its contents.
    """
    try:
        found = os.stat(path)
    except FileNotFoundError:
        text = _DANGLING.format(path) if os.path.islink(path) else _no_file(path)
        raise VaultError(text) from None
    if not stat.S_ISREG(found.st_mode):
        raise VaultError(f"The vault file {path} is no plain file. Give the path of one.")
    for doubt in _doubts(path, found):
        warn(doubt, PrivacyWarning)
    _check_written(path)


def _no_file(path: str) -> str:
    return (
        f"There is no vault file {path}, and none was made. Check the path; a vault that "
        "was moved or lost has to be put back, because nothing else holds its ledger."
    )


_DANGLING = (
    "The vault file {} is a link to a file that does not exist. Put the file back, or give the "
    "path of the file itself."
)


def _doubts(path: str, found: os.stat_result) -> Iterator[str]:
    """Returns what others may do with a file; whose it is can read it, and say who else may.

    Raises:
        VaultError: If it is neither this user's nor root's. Root is warned only: in a container
            it often works on files of the user outside.
    """
    owner = found.st_uid
    user = os.geteuid() if hasattr(os, "geteuid") else owner
    whose = f"The vault file {path} belongs to another user (uid {owner}, this is uid {user})"
    if owner not in (user, 0) and user != 0:
        raise VaultError(
            f"{whose}, who can read and change what must stay with this one. Run as its owner, "
            "have it chown'ed, or give a path of your own."
        )
    if owner not in (user, 0):
        yield f"{whose}, who can read and change it: chown it."
    if stat.S_IMODE(found.st_mode) & 0o077:
        yield f"The vault file {path} can be read by other users: chmod 600 it."


def _check_written(path: str) -> None:
    """An empty file had a ledger before it was cut, or somebody is just creating it."""
    deadline = time.monotonic() + _PATIENCE
    while os.stat(path).st_size <= 1:  # SQLite takes one byte for none, too
        if time.monotonic() > deadline:
            raise VaultError(
                f"The vault file {path} is empty: a ledger that it held is lost, and without it "
                "everything would be released anew. Put the file back; if it never was a vault, "
                "delete it."
            )
        time.sleep(0.02)
