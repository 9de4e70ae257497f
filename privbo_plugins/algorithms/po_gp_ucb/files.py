"""Files that go from one side to the other: written whole, and not for more eyes than needed."""

from __future__ import annotations

import os
import secrets
from collections.abc import Callable
from pathlib import Path


def replace_file(target: Path, write: Callable[[Path], None], *, private: bool) -> None:
    """Replaces a file at once: a reader sees the old one or the new one.

    Args:
        target: Where to.
        write: Fills an empty file in the same directory, with the same ending.
        private: Whether it is for its owner alone (mode 0600). Otherwise the umask decides who
            else may read it, but nobody who could not read the file that it replaces.
    """
    beside = target.with_name(f".{secrets.token_hex(8)}{target.suffix}")
    mode = (0o600 if private else 0o666) & (_mode_of(target) | 0o600)
    os.close(os.open(beside, os.O_CREAT | os.O_EXCL | os.O_WRONLY, mode))
    try:
        write(beside)
        os.replace(beside, target)
    except BaseException:
        beside.unlink(missing_ok=True)
        raise


def _mode_of(target: Path) -> int:
    """Permissions of what is replaced; all of them if there is nothing."""
    try:
        return target.stat().st_mode & 0o777
    except FileNotFoundError:
        return 0o777
