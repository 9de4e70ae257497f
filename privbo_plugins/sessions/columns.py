"""Which columns of the data the releases of one vault protect, and which they show as they are.

A column that one release answers as it is must be none that another one protects: the rows may be
the same people's.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from privbo_plugins.errors import PrivacyError
from privbo_plugins.store.transaction import Transaction

TABLE = "table"
"""Kind of a table's release."""

PREFIX = "outsourced:"
"""Of the runs that release a table."""

_TIED = "outcome column"
"""Mark that ties a run's answers to one column."""


@dataclass(frozen=True)
class _Shown:
    """What a run of the vault has released.

    Attributes:
        name: Name of the run.
        as_it_is: Columns that its answers give as they are.
        hidden: Columns that its table, or its randomised answers, protect.
    """

    name: str
    as_it_is: frozenset[str]
    hidden: frozenset[str]


@dataclass(frozen=True)
class AnsweredColumn:
    """The column of the data that a run's answers come from, beside those of its table.

    Attributes:
        name: Its name; None for answers that are tied to no column.
        run: Name of the run.
        columns: Names of the table's columns, if given.
        private: Whether answers are randomised.
    """

    name: str | None
    run: str
    columns: Sequence[str] | None
    private: bool

    def check(self, tx: Transaction) -> None:
        """Checks that answers tell no entry that a table protects: this one's, or another run's.

        Raises:
            PrivacyError: If they would, or answers came from another column before.
        """
        name, tied = self.name, tx.marks(_TIED)
        if name is None:
            return
        if tied and tied != (name,):
            raise PrivacyError(
                f"Answers of {self.run!r} come from column {tied[0]!r}, not from {name!r}: one "
                "release answers for one column. Release a table under another name for another "
                "column: the privacy losses add up."
            )
        if not self.private and name in _names_of(self.columns or ()):
            raise PrivacyError(
                f"Column {name!r} is in the released table, and answers are given as they are: "
                "they would reveal the entries that the table protects. Name another column, "
                "or release a table with outcome_epsilon and outcome_range."
            )
        self._check_others(tx, name)

    def _check_others(self, tx: Transaction, name: str) -> None:
        for other in self._others(tx):
            if not self.private and name in other.hidden:
                raise PrivacyError(
                    f"Column {name!r} is protected by the release {other.name!r} of this vault, "
                    f"and answers of {self.run!r} are given as they are: they would tell the "
                    "very entries. Name another column, release a table with outcome_epsilon and "
                    "outcome_range, or keep other people's rows in another vault."
                )
            if self.private and name in other.as_it_is:
                raise PrivacyError(_shown_already(name, other.name))

    def tie(self, tx: Transaction) -> None:
        """Ties the run's answers to the column; all that an answer as it is costs."""
        self.check(tx)
        if self.name is not None:
            tx.mark(_TIED, self.name)
            self._check_others(tx, self.name)  # the mark has locked the vault

    def is_tied(self, tx: Transaction) -> bool:
        """Tells if answers come from a column that could be compared with the table's."""
        return bool(tx.marks(_TIED)) and self.columns is not None

    def shown_elsewhere(self, tx: Transaction) -> list[str]:
        """Says which columns of this run's table other runs answer as they are."""
        own = _names_of(self.columns or ())
        return [
            _shown_already(name, other.name)
            for other in self._others(tx)
            for name in sorted(own & other.as_it_is)
        ]

    def _others(self, tx: Transaction) -> Iterator[_Shown]:
        """Looks at all other runs of the vault that release a table."""
        keys, run_id = tx.hosts(), tx.run_id
        try:
            for key in keys:
                if key.startswith(PREFIX) and key != f"{PREFIX}{self.run}":
                    tx.run_id = tx.run_of_host(key) or ""
                    yield _of_run(tx, key.removeprefix(PREFIX))
        finally:
            tx.run_id = run_id


def _of_run(tx: Transaction, name: str) -> _Shown:
    settings = tx.settings() or {}
    tied = frozenset(tx.marks(_TIED))
    names = (settings.get("scaling") or {}).get("columns") or ()
    released = _names_of(names) if tx.released(TABLE, "0") is not None else frozenset()
    if settings.get("outcomes") is None:
        return _Shown(name, tied, released)
    return _Shown(name, frozenset(), released | tied)


def _names_of(columns: Sequence[str]) -> frozenset[str]:
    """Of a table's columns; one of choices, "sex=F", is made of a column of the data."""
    return frozenset({*columns, *(name.partition("=")[0] for name in columns)})


def _shown_already(column: str, run_name: str) -> str:
    return (
        f"Column {column!r} is answered as it is by the release {run_name!r} of this vault, so it "
        "can no longer be protected. Leave it out, or keep other people's rows in another vault."
    )
