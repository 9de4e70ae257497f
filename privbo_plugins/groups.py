"""Persons, or other units, whose rows count together as one entry of a vector.

Which rows are one person's is private, and so are ids and how many rows there are: no message
here tells any of it, and :class:`Groups` stays in the memory of the process that it was given to.
Public are the number of persons, as the number of records is, and how rows become an entry.

Notation:

    ======  ===========================================================  ============
    symbol  meaning                                                      shape
    ======  ===========================================================  ============
    m       rows                                                         integer
    n       persons                                                      integer
    of      the entry that each row counts in                            (m,)
    ======  ===========================================================  ============
"""

from __future__ import annotations

import hashlib
import math
import re
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from privbo_plugins.convert import as_labels, as_losses, fingerprint, index_of
from privbo_plugins.errors import NotLossesError, PrivacyWarning, warn
from privbo_plugins.privacy.words import RECORD, as_row, plural
from privbo_plugins.settings import POSITIVE, evolve, one_of

Array = NDArray[np.float64]

PERSON = "person"
"""The unit where groups are given and the user names no other."""

_OF_PERSONS = re.compile(
    "(?i)^(patient|person|subject|participant|customer|client|user|member|household|employee)s?"
    "([ _.-]?(id|nr|no|num|number|key|code))?$|^(pid|mrn|ssn)$"
)

_INTEGER = re.compile("0|-?[1-9][0-9]{0,17}")
"""Texts that are the same id as the number: one odd id makes texts of all in a file's column."""

_NO_IDS = (
    "groups must list the id of each row's person, in the order of the rows: numbers or texts, "
    "shape (n_rows,), as df['patient'] of a pandas table."
)

_ONE_PERSON = (
    "groups must name two persons at least, and they name one. Numbers and texts are ids; rows "
    "with any other entry (missing, a date) count as one person together. Nothing was charged."
)

_OTHER_ROWS = (
    "groups must have one id for each loss, in their order, and this vector has another length. "
    "Return one loss a row, NaN for a row that cannot be scored. Nothing was stored or charged."
)


_OTHER_INDEX = (
    "The losses and groups have another pandas index each, and rows are matched by their place: "
    "return losses in the order of groups, and losses.to_numpy() if places agree. Nothing was "
    "stored or charged."
)


_BESIDE_SCORES = (
    "Where each {} has one row, ignore this: warnings.filterwarnings('ignore', "
    "message='unit=|The table'). Else leave scores out, or tune by one score in blocks: in "
    "PrivateSearch protect='all', n_blocks= and fit(groups=)."
)

_BY_IDS = "groups=ids, or record_ids= of what losses.by_group returns,"


class Unit(NamedTuple):
    """What one entry of a run's vectors is; public, and stored with the run.

    Attributes:
        word: One of them, as texts name it.
        per_group: How rows become an entry: mean or sum; None for one row an entry.
        rows: What rows are clipped to before, where they are grouped.
        cap: The most that the rows of one entry add up to.
        records_in_blocks: How they are dealt into blocks, where an entry is a block's score:
            their number, that of blocks, and the seed.
    """

    word: str = RECORD
    per_group: str | None = None
    rows: Sequence[float] | None = None
    cap: float | None = None
    records_in_blocks: Sequence[int] | None = None

    @property
    def entry(self) -> str:
        """Names the unit that one entry of a vector is."""
        return "block" if self.records_in_blocks else f"validation {self.word}"

    @property
    def told(self) -> dict[str, Any]:
        """Lists the settings that it was made of, by their names."""
        known = {"unit": self.word, "records_in_blocks": self.records_in_blocks}
        if self.per_group is None:
            return known | {"groups": "not given"}
        rule = {"per_group": self.per_group, "group_bound": self.cap, "loss_bound": self.rows}
        return known | {"groups": "given", **rule}

    @property
    def entries(self) -> str:
        """Names the entries of a vector in a plan."""
        return plural("block" if self.records_in_blocks else self.word)

    @classmethod
    def of(cls, given: Any, config: Any, way: str = _BY_IDS) -> tuple[Unit, Any]:
        """The unit that settings name, and the algorithm's settings for it.

        Args:
            given: :class:`privbo_plugins.privacy.settings.RecordSettings`.
            config: Settings of the algorithm.
            way: How rows of one unit are protected there, for a warning where nothing says which
                they are; empty where the word is that of rows already, or is not known yet.

        Raises:
            ValueError: If the settings do not go together.
        """
        dealt = None
        grouped = given.groups is not None or given.records_in_blocks is not None
        if grouped and getattr(config, "scores", None) is not None:
            raise ValueError(
                "scores= (in PrivateSearch scoring=) are of records: for persons with several "
                "rows return one loss each without scores=, or tune by one score in blocks: in "
                "PrivateSearch protect='all', n_blocks= and fit(groups=)."
            )
        if given.records_in_blocks is not None:
            dealt = [int(number) for number in given.records_in_blocks]  # as JSON gives it back
            labels = None if given.record_ids is None else fingerprint(given.record_ids)
            if given.groups is not None or (labels and int(labels.partition(":")[0]) != dealt[1]):
                raise ValueError(
                    "Where each entry is a block's score, rows and persons are dealt before: give "
                    "groups= to in_blocks, and leave groups= and record_ids= out here."
                )
        if dealt is not None and config.training_mu is not None:
            raise ValueError(
                "training_mu= says what trainings cost, and in blocks they cost nothing more: "
                "leave it out."
            )
        if given.groups is None and (given.per_group, given.group_bound) == ("mean", None):
            word, whole = given.unit, dealt[3:] if dealt else given.record_ids is not None
            if way and not whole:
                scored = getattr(config, "scores", None) is not None
                word = unit_of_rows(word, (), "" if scored else way)
            return cls(word or RECORD, records_in_blocks=dealt), config
        if given.groups is None or given.record_ids is not None:
            raise ValueError(
                "groups= stands in place of record_ids=: leave record_ids= out. And per_group= "
                "and group_bound= say how rows of groups= count: they need it."
            )
        rows = getattr(config, "value_range", (0.0, 1.0))
        unit = cls.of_rows(given.unit or PERSON, rows, given.per_group, given.group_bound)
        return unit, config if unit.cap is None else evolve(config, loss_bound=unit.cap)

    @classmethod
    def of_rows(cls, word: str, rows: Any, per_group: str, group_bound: float | None) -> Unit:
        """The unit whose rows become an entry by a rule.

        Args:
            word: One of them.
            rows: (low, high) that rows are clipped to.
            per_group: "mean" or "sum".
            group_bound: Of a sum.

        Raises:
            ValueError: If these do not go together.
        """
        one_of("mean", "sum").check("per_group", per_group)
        summed = per_group == "sum"
        if summed:
            POSITIVE.check("group_bound, which per_group='sum' needs,", group_bound)
        if summed != (group_bound is not None) or (summed and rows[0] != 0.0):
            raise ValueError(
                "group_bound= is the most that one person's rows add up to, for per_group='sum' "
                "of rows in [0, C], of which none takes from a sum; a mean needs none. Got "
                f"group_bound={group_bound} for a {per_group} of rows in {tuple(rows)}."
            )
        return cls(word, per_group, [float(end) for end in rows], group_bound)


class Groups:
    """Which rows belong to one person; private.

    Entries stand in the order of the ids: numbers first, then texts. So neither the order of
    rows nor their number decides which entry is whose.

    Args:
        ids: Of each row's person, shape (m,). Missing ones are one person.

    Attributes:
        n: Number of persons; public.
        of: The entry of each row, shape (m,).
        labels: Fingerprint of the persons, in the order of their entries.

    Raises:
        ValueError: If they are no vector of ids, or name one person alone.

    Example:
        >>> Groups(["b", "a", "b"]).of.tolist(), Groups([30, 7, 30]).n
        ([1, 0, 1], 2)
    """

    def __init__(self, ids: Any) -> None:
        labels = as_labels(ids)
        if labels is None or labels.ndim != 1 or not labels.size:
            raise ValueError(_NO_IDS)
        found, of = labels, np.arange(len(labels))
        if labels.dtype.kind in "biufSU":
            found, of = np.unique(labels, return_inverse=True)
        keys = [_key(label) for label in found.tolist()]
        known = sorted(set(keys))
        if len(known) < 2:
            raise ValueError(_ONE_PERSON)
        place = {key: i for i, key in enumerate(known)}
        self.n = len(known)
        self.of = np.array([place[key] for key in keys], dtype=np.intp)[of]
        self._sizes = np.bincount(self.of)
        self._names = [f"{kind}:{_text(value)}" for kind, value in known]
        self.labels = fingerprint(self._names)
        self._index = index_of(ids)

    def ranks(self, seed: int) -> NDArray[np.intp]:
        """Shuffles the persons by a hash of their ids alone; the rank of each entry, shape (n,).

        Args:
            seed: Another one shuffles anew.
        """
        salted = [f"{seed}/{name}".encode(errors="surrogatepass") for name in self._names]
        order = np.argsort([hashlib.sha256(text).hexdigest() for text in salted])
        return np.argsort(order)

    @property
    def of_rows(self) -> str:
        """Fingerprint of whose each row is, in the order of the rows."""
        return fingerprint([self._names[entry] for entry in self.of])

    def shared_with(self, other: Groups) -> bool:
        """Checks whether any person is in both."""
        return not set(self._names).isdisjoint(other._names)

    def first(self, k: int) -> NDArray[np.bool_]:
        """Marks the first k rows of each person, by their places; shape (m,)."""
        order = np.argsort(self.of, kind="stable")
        rank = np.empty(len(order), dtype=np.intp)
        rank[order] = np.arange(len(order)) - np.repeat(
            np.cumsum(self._sizes) - self._sizes, self._sizes
        )
        return np.asarray(rank < k)

    def at(self, rows: NDArray[np.intp]) -> Groups:
        """The persons of some rows."""
        return Groups([self._names[entry] for entry in self.of[rows]])

    def entries(self, losses: Any, unit: Unit, worst: float, index: str | None = None) -> Array:
        """One value a person, shape (n,): of its rows, each clipped before.

        Each sum is of one person's rows alone, so no other person's rows move it by a bit.

        Args:
            losses: One value a row, shape (m,).
            unit: How rows become an entry.
            worst: What NaN and infinities count as.
            index: Fingerprint of the losses' own labels, where they have lost them on the way.

        Raises:
            NotLossesError: If there is another number of rows than ids, or both have labels and
                these differ; no text tells either.
        """
        y, index = as_losses(losses), index or index_of(losses)
        if None not in (index, self._index) and index != self._index:
            raise NotLossesError(_OTHER_INDEX)
        if len(y) != len(self.of):
            raise NotLossesError(_OTHER_ROWS)
        low, high = unit.rows or (0.0, 1.0)
        y[~np.isfinite(y)] = worst  # of the copy that converting has made
        np.clip(y, low, high, out=y)
        total = np.bincount(self.of, weights=y, minlength=self.n)
        if unit.per_group == "sum":
            return np.asarray(np.minimum(total, unit.cap or math.inf))
        return np.asarray(np.clip(total / self._sizes, low, high))


def names_of(X: Any) -> list[Any]:
    """Lists the names of a table's index and columns; none of what is no table, as a list of rows.

    Args:
        X: The table.
    """
    return [*getattr(getattr(X, "index", None), "names", ()), *getattr(X, "columns", ())]


def unit_of_rows(unit: str | None, names: Sequence[Any], way: str) -> str | None:
    """Names what each row is where nothing says which rows are one person's, and warns of it.

    Names are public, and whether ids repeat is not: the warning looks at names alone.

    Args:
        unit: What the user calls one of those who are protected; None for the default.
        names: Those of the table.
        way: How all rows of one are protected there; empty beside scores, where none are.

    Returns:
        The unit; a row of it where it is no word for rows.
    """
    found = next((name for name in names if _OF_PERSONS.search(str(name))), None)
    row = unit and as_row(unit)
    if found is not None or row != unit:
        one = unit if unit and row != unit else PERSON
        told = f"unit={one!r} is a name, and groups no rows"
        if found is not None:
            told = f"The table's {found!r} reads like the id of a person"
        instead = f"{way} protects {plural(one)} whole, also where each has one row."
        instead = instead if way else _BESIDE_SCORES.format(one)
        warn(
            f"{told}: each row is protected for itself, and k rows of one {one} at k times mu. "
            f"{instead}",
            PrivacyWarning,
        )
    return row


def whose(given: Any) -> tuple[Groups | None, str | None]:
    """The persons that settings name, if any, and the fingerprint of persons or records.

    Args:
        given: :class:`privbo_plugins.privacy.settings.RecordSettings`.

    Raises:
        ValueError: If either names none.
    """
    if given.groups is None:
        return None, None if given.record_ids is None else fingerprint(given.record_ids)
    groups = given.groups if isinstance(given.groups, Groups) else Groups(given.groups)
    return groups, groups.labels


def _key(label: Any) -> tuple[int, Any]:
    """Numbers, then texts, then bytes, in their order; all that is missing is one key."""
    if isinstance(label, str):
        return (0, int(label)) if _INTEGER.fullmatch(label) else (1, label)
    if isinstance(label, bytes):
        return 2, label
    if label is None or label != label or label in (math.inf, -math.inf):
        return 3, ""
    return 0, int(label) if label == int(label) else label


def _text(value: Any) -> str:
    if isinstance(value, int):
        return hex(value)  # a decimal text may be too long for Python
    return value.hex() if isinstance(value, bytes | float) else str(value)
