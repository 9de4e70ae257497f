"""Databases and other files as text, and back."""

from __future__ import annotations

import base64
import os
import sqlite3
import zlib
from contextlib import closing
from pathlib import Path
from typing import Any

Rows = dict[str, list[tuple[Any, ...]]]


def contents(path: Path) -> Rows:
    """Every row of a SQLite file, by table."""
    with closing(sqlite3.connect(path)) as database:
        tables = database.execute("SELECT name FROM sqlite_master WHERE type = 'table'").fetchall()
        return {
            name: sorted(database.execute(f'SELECT * FROM "{name}"').fetchall(), key=repr)
            for (name,) in tables
        }


def keep(folder: Path, target: Path) -> None:
    """Writes the databases and other files of a folder as text.

    Raises:
        ValueError: If a database would not come back as it is.
    """
    target.mkdir(parents=True, exist_ok=True)
    for path in sorted(folder.iterdir()):
        if path.suffix == ".db":
            with closing(sqlite3.connect(path)) as database:
                lines = "".join(f"{line}\n" for line in database.iterdump())
            (target / f"{path.name}.sql").write_text(lines)
        elif path.suffix == ".json":
            (target / path.name).write_text(path.read_text())
        else:
            coded = base64.encodebytes(zlib.compress(path.read_bytes(), 9)).decode()
            (target / f"{path.name}.b64").write_text(coded)
    _check(folder, target)


def _check(folder: Path, target: Path) -> None:
    for path in sorted(folder.glob("*.db")):
        with closing(sqlite3.connect(":memory:")) as database:
            database.executescript((target / f"{path.name}.sql").read_text())
            lines = list(database.iterdump())
        with closing(sqlite3.connect(path)) as database:
            if lines != list(database.iterdump()):
                raise ValueError(f"{path.name} does not come back as it is.")


def restore(source: Path, folder: Path) -> None:
    """The files as they were, for their owner alone."""
    folder.mkdir(parents=True, exist_ok=True)
    for path in sorted(source.iterdir()):
        made = folder / path.stem
        if path.suffix == ".sql":
            os.close(os.open(made, os.O_CREAT | os.O_EXCL | os.O_RDWR, 0o600))
            with closing(sqlite3.connect(made)) as database:
                database.executescript(path.read_text())
        elif path.suffix == ".json":
            (folder / path.name).write_text(path.read_text())
        elif path.suffix == ".b64":
            made.write_bytes(zlib.decompress(base64.decodebytes(path.read_bytes())))
