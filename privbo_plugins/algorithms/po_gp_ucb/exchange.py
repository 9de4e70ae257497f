"""Requests and answers as files, for a curator and a modeler that share nothing else.

A request lists rows by number; an answer file lists outcomes by row. Both are JSON, name the
released table by its digest, and replace an older file at once.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, BinaryIO

from privbo_plugins.algorithms.po_gp_ucb.files import replace_file

_LARGEST = 2**26
"""Bytes that a file of the other side may have."""

_REQUEST, _ANSWERS = "privbo-request-1", "privbo-answers-1"


@dataclass(frozen=True)
class Seen:
    """What an answer file remembers of one run in the curator's vault. Public, all of it.

    Attributes:
        n: Releases that the vault held.
        digest: Of all of them.
        places: Where the vault has lain.
    """

    n: int = 0
    digest: str = ""
    places: tuple[str, ...] = ()

    @classmethod
    def of(cls, n: Any, digest: Any, places: Any) -> Seen:
        """What a file says.

        Raises:
            ValueError: If it says something else.
        """
        texts = isinstance(places, list) and all(isinstance(text, str) for text in places)
        if type(n) is not int or not 0 <= n < 2**63 or not isinstance(digest, str) or not texts:
            raise ValueError("This is no record of what a vault has shown.")
        return cls(n, digest, tuple(places))


def write_request(path: str | Path, table: str, rows: Iterable[int]) -> None:
    """Writes which rows a modeler asks for.

    Args:
        path: Where to.
        table: Digest of the released table, ``table.certificate.digest``.
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
    seen: Mapping[str, Seen] | None = None,
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


def read_seen(path: str | Path, table: str) -> dict[str, Seen]:
    """What an answer file remembers of the curator's vault, by run.

    Args:
        path: The file; one that is not there, or of an older version, remembers nothing.
        table: Digest of the released table.

    Raises:
        ValueError: If it is no answer file for this table, or what it remembers was changed.
    """
    found = _read(path, _ANSWERS, table) or {}
    try:
        return {run: Seen.of(**known) for run, known in found.get("vault", {}).items()}
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


def write_json(path: str | Path, content: Mapping[str, Any], *, private: bool = False) -> None:
    """Replaces a JSON file at once; see :func:`replace_file` for who may read it."""
    text = json.dumps(content, indent=1) + "\n"
    replace_file(Path(path), lambda file: _write(file, text.encode()), private=private)


def _write(file: BinaryIO, text: bytes) -> None:
    file.write(text)


def _read(path: str | Path, kind: str, table: str) -> dict[str, Any] | None:
    source = Path(path)
    if not source.exists():
        return None
    if not source.is_file() or source.stat().st_size > _LARGEST:
        raise ValueError(f"{source} must be a plain file of at most {_LARGEST} bytes.")
    try:
        found = json.loads(source.read_text())
    except (ValueError, RecursionError, MemoryError):
        found = None
    if not isinstance(found, dict) or found.get("format") != kind:
        raise ValueError(f"{source} is no {kind} file.")
    if found.get("table") != table:
        raise ValueError(
            f"{source} belongs to another released table. Ask the other side which one it uses."
        )
    return found
