"""Detects a rollback of the vault from the file of answers that a curator has written.

A vault that was restored from an older backup, or copied, looks intact and would draw again what
was already answered. The file that the modeler reads holds the answers. So it also remembers how
far the releases had come and where the vault has lain, and a vault that knows less draws nothing
for it.
"""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

from privbo_plugins.algorithms.po_gp_ucb.exchange import (
    read_answers,
    read_seen,
    write_answers,
)
from privbo_plugins.errors import SET_BACK, VaultError
from privbo_plugins.files import LogHead
from privbo_plugins.sessions.rows import Curator
from privbo_plugins.store.run import Run


class AnswerFile:
    """The file that one curator writes its answers to.

    Args:
        path: Where it is, or will be; a new one takes over what answer files of the same table
            in its directory remember.
        curator: Whose answers it tells; compared with the file before this returns.

    Raises:
        ValueError: If there is no answer file of the curator's table there, but something else.
        VaultError: If the curator's vault was restored from an older backup, or is a copy.
    """

    def __init__(self, path: Path, curator: Curator) -> None:
        manifest = curator.manifest
        if manifest is None:
            raise ValueError("The vault holds no released table: release it first.")
        self._path, self._curator, self._table = path, curator, manifest.digest
        self.shown: dict[str, LogHead] = {}
        """Heads by run, which are written with the answers that they cover."""
        self._stamp: tuple[int, ...] | None = None
        self._known: dict[str, LogHead] = {}
        told = curator.answers()
        self._check(path, told)
        if not path.exists():
            self._inherit(told)
        for run in curator.runs:
            run.guarded_by(_AnswerRollbackGuard(self, run))

    def write(self) -> int:
        """Writes all answers that the vault holds, if the file lacks one; how many they are."""
        told = self._curator.answers()
        self._check(self._path, told)
        seen = self.seen()
        known = {name: seen.get(name, LogHead()) for name in self.shown}
        ahead = {name: head for name, head in self.shown.items() if head.n > known[name].n}
        if not self._path.exists() or ahead or read_answers(self._path, self._table) != told:
            for name, head in ahead.items():
                seen[name] = replace(head, places=known[name].places)
            self._store(told, seen)
        return len(told)

    def _check(self, path: Path, told: Mapping[int, float]) -> None:
        """Checks that the vault holds every answer in a file.

        Raises:
            VaultError: If one is missing, or another one.
        """
        if any(told.get(row) != y for row, y in read_answers(path, self._table).items()):
            raise VaultError(
                f"{path.name} holds answers that this vault does not hold. {SET_BACK} Give "
                "the vault that they came from."
            )

    def _inherit(self, told: Mapping[int, float]) -> None:
        for beside in sorted(self._path.parent.glob("*.json")):
            with suppress(ValueError, OSError):  # something else, or of another table
                self._check(beside, told)
                for name, found in read_seen(beside, self._table).items():
                    known = self._known.get(name, LogHead())
                    places = tuple(dict.fromkeys((*known.places, *found.places)))
                    further = max(known, found, key=lambda seen: seen.n)
                    self._known[name] = replace(further, places=places)

    def show_place(self, name: str, place: str) -> None:
        """Writes a place at once: another copy must see it before it draws."""
        seen = self.seen()
        known = seen.get(name, LogHead())
        seen[name] = replace(known, places=(*known.places, place))
        self._store(read_answers(self._path, self._table), seen)

    def _store(self, told: Mapping[int, float], seen: Mapping[str, LogHead]) -> None:
        guarantee = self._curator.guarantee().to_dict()
        write_answers(self._path, self._table, told, guarantee, seen)

    # What guards read and write ----------------------------------------------------------

    def seen(self) -> dict[str, LogHead]:
        """Returns what the file remembers, by run; what it will take over, before it is there."""
        with suppress(FileNotFoundError):
            found = self._path.stat()
            stamp = (found.st_dev, found.st_ino, found.st_size, found.st_mtime_ns)
            if stamp != self._stamp:  # somebody has written it: another copy's curator, say
                self._known, self._stamp = read_seen(self._path, self._table), stamp
        return dict(self._known)


class _AnswerRollbackGuard:
    """One run's part of an answer file.

    Args:
        file: The file.
        run: The run.
    """

    def __init__(self, file: AnswerFile, run: Run) -> None:
        # Not the whole identity: with it, anybody could try out which values were released.
        self._file, self._name = file, run.run_id[:8]

    def head(self) -> LogHead:
        """The furthest head that was shown, and where the vault has lain."""
        known = self._file.seen().get(self._name, LogHead())
        further = max(known, self._file.shown.get(self._name, known), key=lambda head: head.n)
        return replace(further, places=known.places)

    def show(self, head: LogHead) -> None:
        """Remembers a head."""
        self._file.shown[self._name] = head

    def show_place(self, place: str) -> None:
        """Remembers a place."""
        self._file.show_place(self._name, place)
