"""Files that go from one side to the other: written whole, and not for more eyes than needed."""

from __future__ import annotations

import errno
import os
import secrets
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import BinaryIO

_NEW = os.O_CREAT | os.O_EXCL | os.O_WRONLY | getattr(os, "O_NOFOLLOW", 0)

_HELD = getattr(os, "O_PATH", os.O_RDONLY) | getattr(os, "O_DIRECTORY", 0)
"""A directory need not be readable to be written to."""


def replace_file(target: Path, write: Callable[[BinaryIO], None], *, private: bool) -> None:
    """Replaces a file at once: a reader sees the old one or the new one.

    Whoever may write the directory can give any name in it to another file. So the new file is
    written through the descriptor that its creation gave, never by its name, and the directory is
    held open meanwhile.

    Args:
        target: Where to.
        write: Fills an empty file.
        private: Whether it is for its owner alone (mode 0600). Otherwise the umask decides who
            else may read it, but nobody who could not read the file that it replaces.

    Raises:
        OSError: If it cannot be written, or its name was given to another file meanwhile.
    """
    mode = (0o600 if private else 0o666) & (_mode_of(target) | 0o600)
    with _directory(target) as (folder, place):
        beside = str(place / f".{secrets.token_hex(8)}{target.suffix}")
        opened = os.open(beside, _NEW, mode, dir_fd=folder)
        try:
            with open(opened, "wb") as file:
                write(file)
                file.flush()
                os.fsync(file.fileno())
                _check_name(beside, folder, file.fileno(), target)
            os.replace(beside, place / target.name, src_dir_fd=folder, dst_dir_fd=folder)
        except BaseException:
            with suppress(FileNotFoundError):
                os.unlink(beside, dir_fd=folder)
            raise


@contextmanager
def _directory(target: Path) -> Iterator[tuple[int | None, Path]]:
    """A target's directory held open and its path from there; or its path, where none is held."""
    if not {os.open, os.rename, os.stat, os.unlink} <= os.supports_dir_fd:
        yield None, target.parent
        return
    folder = os.open(target.parent, _HELD)
    try:
        yield folder, Path()
    finally:
        os.close(folder)


def _check_name(name: str, folder: int | None, opened: int, target: Path) -> None:
    """That a name still belongs to the file that was created under it."""
    named, written = os.stat(name, dir_fd=folder, follow_symlinks=False), os.fstat(opened)
    if not os.path.samestat(named, written):
        raise OSError(
            errno.EBUSY,
            "Another file was put at this path while the new one was being written: write into "
            "a directory that only you can write to, and hand out a copy",
            str(target),
        )


def _mode_of(target: Path) -> int:
    """Permissions of what is replaced; all of them if there is nothing."""
    try:
        return target.stat().st_mode & 0o777
    except FileNotFoundError:
        return 0o777
