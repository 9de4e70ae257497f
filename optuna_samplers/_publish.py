"""Shows a study in optuna-dashboard: a note, a mark on a trial, the report's pictures.

All of it comes from the report, so of releases and public facts. optuna-dashboard keeps notes and
pictures in the study's system attributes, as texts in parts; they are written here, because a
worker seldom has it installed. A note of ours ends with a digest of itself, and so does a picture;
a note without one, or with another, was edited by a user and stays as it is.
"""

from __future__ import annotations

import hashlib
import json
import math
import re
import threading
import time
from collections.abc import Callable, Mapping
from itertools import count, product, takewhile
from pathlib import Path
from typing import Any

from optuna.study import Study
from optuna.trial import FrozenTrial

from optuna_samplers._study import completed
from privbo_plugins.algorithms.protocols import Comparison
from privbo_plugins.drawing import Picture
from privbo_plugins.page import Report, Table
from privbo_plugins.privacy.claim import PrivacyGuarantee
from privbo_plugins.privacy.statement import as_markdown, template
from privbo_plugins.reports import COMPARED, WORTH

_PART = 30_000
"""Characters of a part of a picture: MySQL keeps 65,535 bytes of what JSON makes of them."""

_SHARE = 20
"""A callback waits so many times as long as its last call has taken."""

_ROWS = 20
"""Parameters that a note lists, at most."""

_NOTE, _PLOT = "dashboard:", "dashboard:plot_data:"
_NOTE_NAME = re.compile(rf"({_NOTE}(?:\d+:)?)note_(?:ver|str:\d+)")
_PICTURE_NAME = re.compile(rf"({_PLOT}privbo-.+:)\d+")
_SIGNATURE = "\n\n*Kept up to date by the sampler ({}), unless you edit it.*\n"
_META = ', "meta": "{}"}}}}'
"""How a signed picture ends: its layout comes last, and has the digest in a field of free use."""

_HEADING = re.compile(r"^### (?:Recommendation|Guarantee)$", re.M)
_RECOMMENDED = re.compile(
    r"(\| [^<]+ \|)?|There is none yet\.|\d+ more parameters: see the report\.|No trial was run "
    r"there\.|Trial \d+ was run there; its value stays as it was when the trial ended\.|"
    + "|".join(
        re.escape(str(Comparison([], 7.0, 7.0, left, clip, mid))).replace("7", r"[-+.e\d]+")
        for left, clip, mid in product((True, False), (7.0, math.inf), (True, False))
    )
)
"""A line of the recommendation in ``note.md``."""

MARK = "**Recommended** by the releases so far. The study's note says what it is worth."

EXPOSED = "They are **not** all private: see below why nothing is claimed."
"""What values are where nothing is claimed."""

clock = time.monotonic


class Pace:
    """Decides when a callback writes again, so that it costs little beside the trials."""

    def __init__(self) -> None:
        self._next = 0.0
        self._lock = threading.Lock()

    def due(self) -> bool:
        """Tells whether enough time has passed, and no other thread is writing."""
        return not self._lock.locked() and clock() >= self._next

    def timed(self, write: Callable[[], None]) -> None:
        """Writes, and waits the longer the longer that takes."""
        with self._lock:  # of two threads, parts of two pictures would stand as one
            begun = clock()
            try:
                write()
            finally:
                ended = clock()
                self._next = ended + _SHARE * (ended - begun)


def publish(
    study: Study, report: Report, values: str, recommended: Mapping[str, Any] | None
) -> None:
    """Writes note, mark and pictures, each where it has changed.

    Args:
        study: The whole study.
        report: Of the study.
        values: Meaning of its trials' values, in a sentence or two.
        recommended: The recommended parameters; None where there are none.
    """
    board = _Board(study)
    trial = None if recommended is None else _trial_at(study, recommended)
    board.write_note(None, _note(report, values, recommended, trial))
    for other in board.marked() - ({trial._trial_id} if trial is not None else set()):
        board.write_note(other, "")
    if trial is not None:
        board.write_note(trial._trial_id, MARK)
    for section in report.sections:
        if isinstance(section.content, Picture):
            board.write_picture(section.content)


def shown_by_others(study: Study) -> set[str]:
    """Names the attributes of optuna-dashboard's that were not written here."""
    return _Board(study).of_others()


def note_of(study: Study) -> str:
    """Returns the study's note, empty where there is none."""
    return _Board(study).read(f"{_NOTE}note_str:")


def shows_claim(note: str, values: str, claim: PrivacyGuarantee) -> bool | None:
    """Tells whether a note is as it is written of a claim, with any recommendation.

    Args:
        note: With its signature; None is returned for one that a user has edited.
        values: As for :func:`publish`.
        claim: What the vault lets claim.
    """
    wanted = _HEADING.split(_note(Report("", claim, []), values, None, None))
    shown = _HEADING.split(note[: -len(_signed(""))])
    same = [shown[0], *shown[2:]] == [wanted[0], *wanted[2:]]
    fits = same and all(map(_RECOMMENDED.fullmatch, shown[1].splitlines()))
    return fits if _is_ours(note) else None


def _trial_at(study: Study, recommended: Mapping[str, Any]) -> FrozenTrial | None:
    """Finds the last completed trial at the recommended parameters; often there is none."""
    trials = completed(study)
    return next((t for t in reversed(trials) if _same(t.params, recommended)), None)


def _same(params: Mapping[str, Any], others: Mapping[str, Any]) -> bool:
    """Compares parameters; a logarithmic one that was encoded and decoded is rounded."""
    return params.keys() == others.keys() and all(
        value == others[name]
        or (isinstance(value, float) and math.isclose(value, others[name], rel_tol=1e-9))
        for name, value in params.items()
    )


def _note(
    report: Report,
    values: str,
    recommended: Mapping[str, Any] | None,
    trial: FrozenTrial | None,
) -> str:
    """Writes the study's note (``note.md``), in which no text from outside is markup."""
    worth = next((s.content for s in report.sections if s.heading == WORTH), None)
    note = template(Path(__file__).with_name("note.md"), as_markdown, short=_short)
    return note.render(
        values=values,
        recommended=recommended,
        listed=list((recommended or {}).items())[:_ROWS],
        worth=worth.rows if isinstance(worth, Table) else (),
        compared=next((s.content for s in report.sections if s.heading == COMPARED), ""),
        trial=trial,
        guarantee=report.guarantee.statement(lasting=True),
    )


def _short(entry: Any) -> str:
    text = f"{entry:.4g}" if isinstance(entry, float) else str(entry)
    return text if len(text) <= 40 else f"{text[:37]}..."


# How optuna-dashboard stores it -----------------------------------------------------------------


class _Board:
    """Reads and writes optuna-dashboard's attributes of one study."""

    def __init__(self, study: Study) -> None:
        self._storage, self._id = study._storage, study._study_id
        self._known: dict[str, Any] = self._storage.get_study_system_attrs(self._id)

    def write_note(self, trial_id: int | None, text: str) -> None:
        """Writes a note on the study or a trial, unless a user has edited the one there."""
        stem = _NOTE if trial_id is None else f"{_NOTE}{trial_id}:"
        version = self._known.get(f"{stem}note_ver", 0)
        there = self.read(f"{stem}note_str:")
        first = str(self._known.get(f"{stem}note_str:0", ""))  # all of it, as it is written here
        body = _signed(text) if text else ""
        if there == body or not (_is_ours(there) or _is_ours(first)):
            return
        self._set(f"{stem}note_ver", version + 1)
        self._write(f"{stem}note_str:", [body])  # at once: half of it would be somebody else's

    def marked(self) -> set[int]:
        """Finds ids of trials that have a note of ours."""
        found = (re.fullmatch(r"dashboard:(\d+):note_str:0", name) for name in self._known)
        ids = (match[1] for match in found if match)
        return {int(i) for i in ids if _is_ours(self.read(f"{_NOTE}{i}:note_str:"))}

    def of_others(self) -> set[str]:
        """Names what stands on the dashboard's pages and is no note or picture of ours."""
        return {name for name in self._known if name.startswith(_NOTE) and not self._is_own(name)}

    def _is_own(self, name: str) -> bool:
        """Tells whether an attribute is the version or a part of something written here."""
        if note := _NOTE_NAME.fullmatch(name):
            stem, end = f"{note[1]}note_str:", _SIGNATURE
        elif picture := _PICTURE_NAME.fullmatch(name):
            stem, end = picture[1], _META
        else:
            return False
        parts, text = self._parts(stem), self.read(stem)
        version = self._known[name] if name.endswith("note_ver") else None
        counted = type(version) is int and (bool(parts) or version == 1)  # which is written first
        return (counted or name in parts) and bool(note or text) and _is_ours(text, end)

    def write_picture(self, picture: Picture) -> None:
        """Writes a picture, if it has changed, as ``privbo-`` and its headline's first words."""
        head, bracket, rest = picture.title.partition(" (")
        figure = picture.to_dict()
        if bracket:  # a plot there is narrow
            figure["layout"]["title"]["text"] = f"{head}<br><sub>({rest}</sub>"
        stem = f"{_PLOT}{'-'.join(('privbo', *head.lower().split()))}:"
        text = _signed(json.dumps(figure, allow_nan=False).removesuffix("}}"), _META)
        if self.read(stem) != text:
            self._write(stem, [text[i : i + _PART] for i in range(0, len(text), _PART)])

    def read(self, stem: str) -> str:
        return "".join(str(self._known[name]) for name in self._parts(stem))

    def _parts(self, stem: str) -> list[str]:
        return [*takewhile(self._known.__contains__, map(f"{stem}{{}}".format, count()))]

    def _write(self, stem: str, parts: list[str]) -> None:
        """Writes a text, and empties the parts that a longer one has left behind."""
        known = self._parts(stem)
        for i, part in enumerate([*parts, *[""] * (len(known) - len(parts))]):
            if self._known.get(f"{stem}{i}") != part:
                self._set(f"{stem}{i}", part)

    def _set(self, name: str, value: Any) -> None:
        self._storage.set_study_system_attr(self._id, name, value)
        self._known[name] = value


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()[:12]


def _signed(text: str, end: str = _SIGNATURE) -> str:
    return text + end.format(_digest(text))


def _is_ours(body: str, end: str = _SIGNATURE) -> bool:
    """Tells whether a note or a picture is as it was written here; an empty one is."""
    return not body or body == _signed(body[: -len(_signed("", end))], end)
