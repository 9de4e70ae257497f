"""Requests and answers as files, for a curator and a modeler that share nothing else.

A request lists rows by number; an answer file lists outcomes by row. Both are JSON, name the
released table by its digest, and replace an older file at once.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

from privbo_plugins.files import LogHead, read_json, write_json

_REQUEST, _ANSWERS = "privbo-request-1", "privbo-answers-1"


def write_request(path: str | Path, table: str, rows: Iterable[int]) -> None:
    """Writes which rows a modeler asks for.

    Args:
        path: Where to.
        table: Digest of the released table, ``table.manifest.digest``.
        rows: Their numbers.
    """
    listed = list(dict.fromkeys(int(row) for row in rows))
    write_json(path, {"format": _REQUEST, "table": table, "rows": listed})


def read_request(path: str | Path, table: str, n: int) -> list[int]:
    """Which rows a modeler asks for.

    Args:
        path: The file; one that is not there asks for nothing.
        table: Digest of the released table.
        n: Number of its rows.

    Raises:
        ValueError: If it is no request for this table, or asks for rows that are none.
    """
    found = _read(path, _REQUEST, table)
    if found is None:
        return []
    rows = found.get("rows")
    if not isinstance(rows, list) or not all(type(r) is int and 0 <= r < n for r in rows):
        raise ValueError(f"{path} must list rows as integers from 0 to {n - 1}.")
    return list(dict.fromkeys(rows))


def write_answers(
    path: str | Path,
    table: str,
    answers: Mapping[int, float],
    guarantee: Mapping[str, Any],
    seen: Mapping[str, LogHead] | None = None,
) -> None:
    """Writes all outcomes told so far, and what may be claimed of them.

    The file is for its owner alone unless the guarantee says that outcomes are randomised.

    Args:
        path: Where to.
        table: Digest of the released table.
        answers: Outcomes by row.
        guarantee: ``curator.guarantee().to_dict()``.
        seen: What the file remembers of the curator's vault, by run; None for nothing.
    """
    told = {str(row): float(y) for row, y in sorted(answers.items())}
    content = {"format": _ANSWERS, "table": table, "answers": told, "guarantee": dict(guarantee)}
    if seen:
        content["vault"] = {run: asdict(known) for run, known in seen.items()}
    private = guarantee.get("outcomes") is None or not guarantee.get("protected")
    write_json(path, content, private=private)


def read_seen(path: str | Path, table: str) -> dict[str, LogHead]:
    """Reads what an answer file remembers of the curator's vault, by run.

    Args:
        path: The file; one that is not there, or was written without a vault, remembers nothing.
        table: Digest of the released table.

    Raises:
        ValueError: If it is no answer file for this table, or what it remembers was changed.
    """
    found = _read(path, _ANSWERS, table) or {}
    try:
        return {run: LogHead.of(**known) for run, known in found.get("vault", {}).items()}
    except (TypeError, ValueError, AttributeError):
        raise ValueError(
            f"{path} was changed since it was written: its record of the vault is unreadable. "
            "Move it away, and put back the file as it was."
        ) from None


def read_answers(path: str | Path, table: str) -> dict[int, float]:
    """Outcomes told so far, by row.

    Args:
        path: The file; one that is not there tells nothing.
        table: Digest of the released table.

    Raises:
        ValueError: If it is no answer file for this table, or holds what is no number.
    """
    found = _read(path, _ANSWERS, table)
    if found is None:
        return {}
    try:
        told = {int(row): float(y) for row, y in found["answers"].items()}
    except (KeyError, TypeError, ValueError, AttributeError, OverflowError):
        told = {-1: math.nan}
    if any(row < 0 or not math.isfinite(y) for row, y in told.items()):
        raise ValueError(f"{path} must hold one finite outcome a row.")
    return told


def _read(path: str | Path, kind: str, table: str) -> dict[str, Any] | None:
    if not Path(path).exists():
        return None
    found = read_json(path, kind)
    if found.get("table") != table:
        raise ValueError(
            f"{path} belongs to another released table. Ask the other side which one it uses."
        )
    return found
