"""A study as the guard of its run: it remembers how far the releases had come."""

from __future__ import annotations

import weakref
from typing import Any

from optuna.study import Study

from optuna_samplers._study import HEAD_ATTR, PLACE_ATTR
from privbo_plugins.errors import VaultError
from privbo_plugins.files import LogHead
from privbo_plugins.store.run import Run


class StudyRollbackGuard:
    """Reads and writes the attributes of one study, which all its workers share.

    Args:
        study: The study; only its storage is remembered, and not kept alive.
        run: The run that it shows.
    """

    def __init__(self, study: Study, run: Run) -> None:
        self._storage = weakref.ref(study._storage)
        self._study = study._study_id
        self._head = f"{HEAD_ATTR}:{run.run_id[:8]}"
        self._place = f"{PLACE_ATTR}:{run.run_id[:8]}:"

    def _opened(self) -> Any:
        storage = self._storage()
        if storage is None:
            raise VaultError("The study of this run no longer exists; nothing can be released.")
        return storage

    def _attrs(self) -> dict[str, Any]:
        return dict(self._opened().get_study_user_attrs(self._study))

    def head(self) -> LogHead:
        """The furthest head that any worker has shown."""
        shown = self._attrs().get(self._head)
        return LogHead() if shown is None else LogHead(int(shown[0]), str(shown[1]))

    def places(self) -> list[str]:
        """Returns the places of the vaults of all workers, past ones included."""
        return [value for name, value in self._attrs().items() if name.startswith(self._place)]

    def show(self, head: LogHead) -> None:
        """Remembers a head."""
        self._opened().set_study_user_attr(self._study, self._head, [head.n, head.digest])

    def show_place(self, place: str) -> None:
        """Remembers a place."""
        self._opened().set_study_user_attr(self._study, self._place + place[:8], place)


def guard(study: Study, run: Run) -> None:
    """Has a study remember how far a run has come; no backup of a vault in memory is restored."""
    if not run.vault.in_memory:
        run.guarded_by(StudyRollbackGuard(study, run))
