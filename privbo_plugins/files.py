"""Files beside a vault: written whole, not for more eyes than needed, and read with care."""

from __future__ import annotations

import errno
import json
import os
import secrets
import stat
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, BinaryIO

from privbo_plugins.errors import PrivacyError, VaultError

_NEW = os.O_CREAT | os.O_EXCL | os.O_WRONLY | getattr(os, "O_NOFOLLOW", 0)

_HELD = getattr(os, "O_PATH", os.O_RDONLY) | getattr(os, "O_DIRECTORY", 0)
"""A directory need not be readable to be written to."""

_LARGEST = 2**26
"""Bytes that a file with JSON may have."""


@dataclass(frozen=True)
class LogHead:
    """The end of a vault's log, as its owner or a host remembers it. Public, all of it.

    Attributes:
        n: Number of lines.
        digest: Of all of them; empty before the first.
        places: Where the vault has lain, as far as that is remembered beside it.
    """

    n: int = 0
    digest: str = ""
    places: tuple[str, ...] = field(default=(), compare=False)

    @classmethod
    def of(cls, n: Any, digest: Any, places: Any) -> LogHead:
        """Parses the content of a file.

        Raises:
            ValueError: If it says something else.
        """
        texts = isinstance(places, list) and all(isinstance(text, str) for text in places)
        known = type(n) is int and 0 <= n < 2**63 and isinstance(digest, str)
        if not (known and texts and (n == 0) == (digest == "")):
            raise ValueError("This is no record of what a vault has shown.")
        return cls(n, digest, tuple(places))

    @classmethod
    def shown(cls, pair: Any, places: Any) -> LogHead:
        """Parses what a host shows: a pair (n, digest), or None before anything was shown.

        Args:
            pair: As the host keeps it, or as bytes of JSON.
            places: Where the vault has lain.

        Raises:
            VaultError: If it shows something else.
        """
        with suppress(TypeError, ValueError, RecursionError):
            shown = json.loads(pair) if isinstance(pair, bytes) else pair
            n, digest = (0, "") if pair is None else shown
            return cls.of(n, digest, places)
        raise VaultError(
            "What is shown of this run's vault (privbo:head, privbo:place) has been changed, so a "
            "backup could not be told from it. Nothing was drawn: start a new run."
        )


def check_no_link(path: Path) -> None:
    """Checks that a file is reached by its own path.

    A replaced link leaves the file behind it as it was, and a link that is followed may lead to
    any file of this user's. So neither is done.

    Raises:
        OSError: If the path is a symbolic link; folders on the way to it may be some.
    """
    if path.is_symlink():
        raise OSError(
            errno.ELOOP, "It is a symbolic link: give the path of the file itself", str(path)
        )


def replace_file(target: Path, write: Callable[[BinaryIO], object], *, private: bool) -> None:
    """Replaces a file at once: a reader sees the old one or the new one.

    A user who may write the directory can give any name in it to another file. So the new file is
    written through the descriptor that its creation gave, never by its name, and the directory is
    held open meanwhile.

    Args:
        target: Where to.
        write: Fills an empty file.
        private: Whether it is for its owner alone (mode 0600). Otherwise the umask decides who
            else may read it, but no user who could not read the file that it replaces.

    Raises:
        OSError: If it cannot be written, is a symbolic link, or its name was given to another file
            meanwhile.
    """
    check_no_link(target)
    if target.is_dir():
        what = "It is a folder: give the path of a file in it"
        raise IsADirectoryError(errno.EISDIR, what, str(target))
    if not target.parent.exists():
        what = "There is no such folder: create it, or give another path"
        raise FileNotFoundError(errno.ENOENT, what, str(target.parent))
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
    _settle(target.parent)


def _settle(folder: Path) -> None:
    """Writes a directory to the disk: a power loss would bring the older file back, or none."""
    with suppress(OSError):  # one that cannot be read, or a system that has no such thing
        held = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(held)
        finally:
            os.close(held)


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
    """Checks that a name still belongs to the file that was created under it."""
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


def check_unchangeable(path: Path) -> None:
    """Refuses a file or folder that other users can change, or replace from a folder above it.

    Raises:
        OSError: If it cannot be looked at.
        PrivacyError: If they can.
    """
    own, named = path.resolve(), path.parent.resolve()
    for place in {own, *own.parents, named, *named.parents}:  # a link may lie elsewhere
        facts = place.stat()
        sticky = stat.S_ISDIR(facts.st_mode) and facts.st_mode & stat.S_ISVTX
        shared = facts.st_mode & 0o022 and not sticky
        if shared or facts.st_uid not in (0, os.geteuid()):
            raise PrivacyError(
                f"Other users can write into {place}, and so change or replace what lies there. "
                "Give a place into which this user alone can write (chmod go-w)."
            )


def write_json(path: str | Path, content: Mapping[str, Any], *, private: bool = False) -> None:
    """Replaces a JSON file at once; see :func:`replace_file` for who may read it."""
    write_text(Path(path), json.dumps(content, indent=1) + "\n", private=private)


def write_text(target: Path, text: str, *, private: bool) -> None:
    """Replaces a text file at once; see :func:`replace_file` for who may read it."""
    replace_file(target, lambda file: file.write(text.encode()), private=private)


def read_json(path: str | Path, kind: str) -> dict[str, Any]:
    """The fields of a JSON file.

    Args:
        path: The file.
        kind: What it says of itself as "format".

    Raises:
        ValueError: If it is no such file; the text quotes nothing of it.
        OSError: If it cannot be read, or is a symbolic link.
    """
    source = Path(path)
    check_no_link(source)
    if not source.is_file() or source.stat().st_size > _LARGEST:
        raise ValueError(f"{source} must be a plain file of at most {_LARGEST} bytes.")
    try:
        found = json.loads(source.read_text())
    except (ValueError, RecursionError, MemoryError):
        found = None  # raised below: the parser's own error holds the text
    if not isinstance(found, dict) or found.get("format") != kind:
        raise ValueError(f"{source} is no {kind} file.")
    return found


def variable(name: str) -> str:
    """Reads an environment variable; an empty text if it is not set."""
    try:
        return os.environ.get(name, "")
    except ValueError:  # no system could hold this name
        return ""
