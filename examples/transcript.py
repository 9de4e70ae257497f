"""The storage of a loop that has none: a file of what anybody may see of a run.

What a study is for Optuna and an experiment for Ray Tune. It is also the ``Witness`` of the run's
vault (:mod:`privbo_plugins.store.run`): a vault that was set back, or is one of two copies, looks
healthy to itself, and is found out by what stands here.
"""

from __future__ import annotations

import json
import os
import uuid
from pathlib import Path
from typing import Any

from privbo_plugins.store.run import Head


class Transcript:
    """Which run it is, what was asked, and how far the run's releases had come.

    Args:
        path: The file; None for a run that ends with its process.
        settings: What a run that goes on must have been begun with, JSON-ready.

    Raises:
        ValueError: If the file is of a run with other settings.
    """

    def __init__(self, path: Path | str | None, settings: Any) -> None:
        self._path = None if path is None else Path(path)
        self._facts: dict[str, Any] = {"run": uuid.uuid4().hex, "settings": json.dumps(settings)}
        self._facts |= {"head": [0, ""], "places": [], "asked": {}}
        if self.facts["settings"] != json.dumps(settings):
            raise ValueError(
                "This transcript is of a run in another space or direction, or of another "
                "algorithm: give the settings that it was begun with, or another file."
            )
        self._write({})

    @property
    def facts(self) -> dict[str, Any]:
        """Read anew each time: whoever has another copy of the vault may have written them."""
        if self._path is not None and self._path.exists():
            return dict(json.loads(self._path.read_text()))
        return self._facts

    def _write(self, new: dict[str, Any]) -> None:
        self._facts = self.facts | new
        if self._path is not None:
            beside = self._path.with_name(f"{self._path.name}.new")
            with beside.open("w") as file:
                file.write(json.dumps(self._facts))
                file.flush()
                os.fsync(file.fileno())
            beside.replace(self._path)

    @property
    def run(self) -> str:
        """What the vault is to call the run."""
        return str(self.facts["run"])

    @property
    def asked(self) -> dict[str, Any]:
        """What was noted of each key, in the order in which they were handed out."""
        return dict(self.facts["asked"])

    def ask(self, key: str, noted: Any) -> None:
        """Notes that a key is handed out, before anybody acts on it."""
        self._write({"asked": self.asked | {key: noted}})

    # A witness ------------------------------------------------------------------------------

    def head(self) -> Head:
        """How far the releases had come."""
        return Head(*self.facts["head"])

    def places(self) -> list[str]:
        """Where the vault has lain."""
        return list(self.facts["places"])

    def show(self, head: Head) -> None:
        """Remembers a head."""
        self._write({"head": [head.n, head.digest]})

    def show_place(self, place: str) -> None:
        """Remembers a place."""
        self._write({"places": [*self.places(), place]})
