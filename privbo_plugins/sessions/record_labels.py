"""Binds every vector of a run to the same records in the same order.

Clipping bounds what one record does to a release only as long as entry i of every vector is that
record's. The vault holds keyed digests of the labels, which say nothing without the vault.
"""

from __future__ import annotations

import hmac
import secrets

from privbo_plugins.errors import PrivacyWarning, warn
from privbo_plugins.store.run import Run
from privbo_plugins.store.transaction import Transaction

_KEY, _LABELS, _INDEX = "key of labels", "labels of records", "index of losses"
"""Kinds of marks: the key of the digests, labels that a host gave, and the vectors' own."""

_OTHER_NUMBER = (
    "The losses are of {} records, and {} records are named (record_ids=, or the losses' own "
    "index). Give one label per validation record, in the order of the losses. Nothing was "
    "stored or charged."
)

_OTHER_RECORDS = (
    "The records of these losses are others than the run's, or in another order (record_ids=, or "
    "the index of the pandas Series that the objective returns). What is promised holds only if "
    "entry i belongs to the same record in every trial: switch shuffling off, or sort the losses "
    "by record (losses.sort_index()). For other records start a new study; on those that both "
    "have in common the mu of both add up (squares add up). Nothing was stored or charged."
)

_NOT_NAMED = (
    "The run knows which records its losses are of, and this process names none: nothing compares "
    "their order any more. Give the same record_ids= again."
)


class RecordLabels:
    """Fingerprints of records, as this process names them, compared with the run's.

    Args:
        run: The run.
    """

    def __init__(self, run: Run) -> None:
        self._run = run
        self._expected: str | None = None
        self._unnamed = False

    def expect(self, labels: str | None) -> None:
        """Names the records of all vectors that this process tells, in order.

        Args:
            labels: Their :func:`privbo_plugins.convert.fingerprint`; None names none.

        Raises:
            ValueError: If the run's records are others, or in another order.
        """
        with self._run.transaction() as tx:
            _known(tx, _LABELS, labels, _OTHER_RECORDS)
            self._unnamed = labels is None and tx.has_mark(_LABELS)
        self._expected = labels

    def check(self, tx: Transaction, n_records: int, index: str | None, n_rows: int) -> None:
        """Refuses a vector of other records; the first vector decides.

        Args:
            tx: Of the vector.
            n_records: Its length.
            index: Fingerprint of its own labels, if it has any.
            n_rows: Length of what has these; more, where several rows are one person's.

        Raises:
            ValueError: If its records are others, or in another order.

        Warns:
            PrivacyWarning: If this process names no records, and the run does.
        """
        if self._unnamed:
            warn(_NOT_NAMED, PrivacyWarning)
            self._unnamed = False
        for kind, labels, n in ((_LABELS, self._expected, n_records), (_INDEX, index, n_rows)):
            if labels is None:
                continue
            number = labels.partition(":")[0]
            if int(number) != n:
                private = n_rows != n_records  # how many rows persons have no text may tell
                raise ValueError(_OTHER_RECORDS if private else _OTHER_NUMBER.format(n, number))
            bind(tx, kind, labels, _OTHER_RECORDS)


def bind(tx: Transaction, kind: str, labels: str, otherwise: str) -> None:
    """Binds a run to labels: the first ones decide.

    Args:
        tx: Of the run.
        kind: What the labels are of.
        labels: Their :func:`privbo_plugins.convert.fingerprint`.
        otherwise: What the error says.

    Raises:
        ValueError: If the run is bound to others.
    """
    if not _known(tx, kind, labels, otherwise):
        tx.mark(kind, _keyed(tx, labels))


def _known(tx: Transaction, kind: str, labels: str | None, otherwise: str) -> bool:
    known = () if labels is None else tx.marks(kind)
    if known and labels is not None and known != (_keyed(tx, labels),):
        raise ValueError(otherwise)
    return bool(known)


def _keyed(tx: Transaction, labels: str) -> str:
    if not tx.has_mark(_KEY):
        tx.mark(_KEY, secrets.token_hex(32))
    return hmac.digest(tx.marks(_KEY)[0].encode(), labels.encode(), "sha256").hex()
