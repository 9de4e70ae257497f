"""A file as the guard of a run, for a host that has no storage of its own.

A vault that was restored from an older backup looks intact (:mod:`privbo_plugins.store.run`). What
a study is for Optuna, a file is for any other loop: it remembers how far the releases had come and
where the vault has lain, and a vault that knows less draws nothing.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

try:
    import fcntl
except ImportError:  # a system without it, where one process at a time may write
    fcntl = None  # type: ignore[assignment]

from privbo_plugins.errors import VaultError
from privbo_plugins.files import LogHead, read_json, write_json
from privbo_plugins.store.run import Run

_FORMAT = "privbo-guard-1"

_ELSE = "put the file back as it was, or start another run with another file."


@dataclass
class _Known:
    """What stands in the file.

    Attributes:
        run: The beginning of the run's identity.
        seen: How far its releases had come, and where its vault has lain.
        noted: What its host noted.
    """

    run: str
    seen: LogHead = field(default_factory=LogHead)
    noted: dict[str, Any] = field(default_factory=dict)


_NO_LINK = getattr(os, "O_NOFOLLOW", 0)  # Windows has none


class FileRollbackGuard:
    """Remembers in a file how far the releases of one run had come.

    The file is replaced as a whole by every release (mode 0600), and read anew by every look: a
    worker on another copy of the vault may have written it. It is begun for a run of which nothing
    has been charged yet. From then on a run without its file, or with a damaged one, is refused,
    because its vault could be an older backup.

    The guard cannot notice that vault and file were both restored from backups of the same time:
    keep the file out of the vault's backup. Nor does it notice that somebody sets the file back.

    Args:
        path: Where it is, or will be.
        run: The run that it guards; hand the guard to its ``guarded_by``.

    Raises:
        VaultError: If the file is missing though something was charged, is damaged, belongs to
            another run, or can be neither read nor written.

    Example:
        >>> import tempfile
        >>> from privbo_plugins.store.run import begin_or_join
        >>> from privbo_plugins.store.vault import open_vault
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     run = begin_or_join(open_vault(), "loop", {})
        ...     run.guarded_by(FileRollbackGuard(f"{folder}/guard.json", run))
        ...     FileRollbackGuard(f"{folder}/guard.json", run).head() == run.head()
        True
    """

    def __init__(self, path: str | Path, run: Run) -> None:
        self._path = Path(path).absolute()  # the process may change its directory
        # not all of a run's name: with it, anybody could try out which values were released
        self._run = run.run_id[:8]
        with self._alone():
            if not os.path.lexists(self._path) and not run.charged:
                self._write(_Known(self._run))
        self._read()

    # A guard ------------------------------------------------------------------------------

    def head(self) -> LogHead:
        """The furthest head that was shown, and where the vault has lain."""
        return self._read().seen

    def show(self, head: LogHead) -> None:
        """Remembers a head."""
        with self._changed() as known:
            known.seen = replace(known.seen, n=head.n, digest=head.digest)

    def show_place(self, place: str) -> None:
        """Remembers a place."""
        with self._changed() as known:
            known.seen = replace(known.seen, places=(*known.seen.places, place))

    # What else a host remembers -------------------------------------------------------------

    def note(self, name: str, fact: Any) -> None:
        """Remembers a public fact of the host's own, such as a point that it hands out.

        Args:
            name: Of the fact; what was noted under it before is replaced.
            fact: JSON-ready, and nothing that was measured: the file is as public as a study.
        """
        with self._changed() as known:
            known.noted[name] = fact

    def noted(self) -> dict[str, Any]:
        """Facts by name, in the order in which they were noted."""
        return self._read().noted

    # The file -------------------------------------------------------------------------------

    def _read(self) -> _Known:
        if not os.path.lexists(self._path):
            raise VaultError(
                f"The guard file {self._path} does not exist, and without it nobody can tell "
                "whether the vault of this run was restored from an older backup. Nothing was "
                f"drawn: {_ELSE}"
            )
        try:
            known = _understood(read_json(self._path, _FORMAT))
        except (KeyError, TypeError, ValueError):
            raise VaultError(
                f"The guard file {self._path} is damaged, or no guard file: it must be what "
                f"FileRollbackGuard has written, whole ({_FORMAT}). Nothing was drawn: {_ELSE}"
            ) from None
        except OSError as error:
            raise self._unusable("read", error) from None
        if known.run != self._run:
            raise VaultError(
                f"The guard file {self._path} is of another run than this one ({self._run}...): "
                "the vault is another one, or was lost and begun anew. Give the vault and the "
                "file of the same run."
            )
        return known

    def _write(self, known: _Known) -> None:
        fields = {"run": known.run, **asdict(known.seen), "noted": known.noted}
        try:
            write_json(self._path, {"format": _FORMAT, **fields}, private=True)
        except OSError as error:
            raise self._unusable("written", error) from None

    @contextmanager
    def _changed(self) -> Iterator[_Known]:
        """Yields what stands in the file, and writes it back as it is then."""
        with self._alone():
            known = self._read()
            yield known
            self._write(known)

    @contextmanager
    def _alone(self) -> Iterator[None]:
        """One writer at a time: what another has just shown must not be lost."""
        try:
            beside = self._path.with_name(f".{self._path.name}.lock")
            held = os.open(beside, os.O_CREAT | os.O_RDWR | _NO_LINK, 0o600)
        except OSError as error:
            raise self._unusable("written", error) from None
        try:
            if fcntl is not None:
                fcntl.flock(held, fcntl.LOCK_EX)
            yield
        finally:
            os.close(held)

    def _unusable(self, done: str, error: OSError) -> VaultError:
        return VaultError(
            f"The guard file {self._path} cannot be {done} ({error.strerror}), and without it "
            "nothing is drawn. Give the path of a plain file, in a directory that this user may "
            "read and write."
        )


def _understood(found: Mapping[str, Any]) -> _Known:
    """Reads a file's content; raises KeyError, TypeError or ValueError if it is another."""
    run, noted = found["run"], found["noted"]
    if not isinstance(run, str) or not isinstance(noted, dict):
        raise TypeError("This is no record of a run.")
    return _Known(run, LogHead.of(found["n"], found["digest"], found["places"]), noted)
