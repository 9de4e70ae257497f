"""The curator's side: one release of the table, and one answer per row.

Everything here runs where the rows may be. What leaves is the released table with its
manifest, and answers; the vault holds these two and the ledger, never a row.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from privbo_plugins import sanitize
from privbo_plugins.algorithms.po_gp_ucb.table import (
    MEMORY,
    ReleasedTable,
    TableManifest,
    answer_settings,
    sealed,
    total_delta,
)
from privbo_plugins.convert import as_reward
from privbo_plugins.errors import (
    ObjectiveFailedError,
    PrivacyError,
    PrivacyWarning,
    VaultError,
    warn,
)
from privbo_plugins.privacy.figures import warn_of_delta
from privbo_plugins.privacy.guarantee import OutsourcedGuarantee
from privbo_plugins.privacy.local import LocalMechanism, make_mechanism
from privbo_plugins.privacy.source import NoiseSource
from privbo_plugins.privacy.words import plural
from privbo_plugins.sessions.columns import PREFIX, TABLE, AnsweredColumn
from privbo_plugins.sessions.record_labels import bind
from privbo_plugins.sessions.rewards import RewardSession
from privbo_plugins.sessions.settings import CuratorSettings
from privbo_plugins.sessions.tables import (
    NOT_PRIVATE,
    Outcomes,
    Progress,
    TableMechanism,
    checked_outcomes,
    checked_row,
    worst_outcome,
)
from privbo_plugins.settings import takes
from privbo_plugins.store.log import UNPROTECTED
from privbo_plugins.store.release import TEST_NOISE, Order, Outlet
from privbo_plugins.store.run import Run, begin_or_join, stored_settings
from privbo_plugins.store.transaction import Transaction
from privbo_plugins.store.vault import open_vault

Array = NDArray[np.float64]

ANSWER = "answer"
"""Kind of an answer's release, where it is given as it is."""

_SYSTEM = "OpenDP's cryptographic generator, seeded from the operating system's entropy"


_SAME = (
    "mechanism", "r", "epsilon", "delta", "neighbor_distance", "norm_bound",
    "unit", "rows_per_group",
)  # fmt: skip
"""Settings that a resumed curator takes as they are."""


_ANSWERS = "outcomes:"
"""Of the runs that hold a table's randomised answers."""

TIED = (
    "answers are tied to one column of the data, by its name, which is none of the table's; what "
    "stands under that name is not checked, nor are answers that were told before it was tied"
)

NOT_TIED = (
    "answers are tied to no column whose name could be compared with the table's: nothing keeps "
    "them from being entries of the table"
)


_OTHER_PERSONS = (
    "groups= names other persons than this run's, or the rows stand in another order: rows that "
    "did not count would be answered. Give the same ids for the same rows as before. Nothing was "
    "released or charged."
)


def _of_others(others: int) -> tuple[str, ...]:
    if others < 1:
        return ()
    return (
        f"the vault holds {others} other releases: for people whose rows are in several of them, "
        "the privacy losses add up",
    )


def table_of(host_key: str) -> str | None:
    """The release that a run of a vault makes, by the name that its host gave it."""
    return host_key.removeprefix(PREFIX) if host_key.startswith(PREFIX) else None


def holds_answers(host_key: str) -> bool:
    """Tells if a run of a vault holds the randomised answers of another one."""
    return host_key.startswith(_ANSWERS)


def answers_of(host_key: str) -> str:
    """The run that holds a table's randomised answers, by the name of the table's own."""
    return f"{_ANSWERS}{table_of(host_key) or host_key}"


def _settings_of(vault: str | Path, run_name: str) -> dict[str, Any]:
    known = stored_settings(open_vault(vault, create=False), f"{PREFIX}{run_name}")
    if known is None:
        raise VaultError(
            f"The vault holds no release named {run_name!r}. Release the table first."
        )
    return known


class Curator:
    """Holds the rows; releases a private table once, and answers what a row's outcome is.

    {settings}

    Raises:
        ValueError: For every argument outside its range, and for ``groups`` other than the run's;
            no text quotes an entry of the table.
        PrivacyError: If ``outcome_column`` is another than the run is tied to, or one of
            ``columns``, or of what another run of the vault protects, while answers are given as
            they are.
        VaultError: If the vault holds another release under this name.

    Source: Kharkovskii, Dai and Low, *Private Outsourced Bayesian Optimization*, Algorithm 1.

    Example:
        >>> X = np.random.default_rng(0).uniform(18, 90, size=(100, 2))
        >>> curator = Curator(X, epsilon=2.0, delta=1e-6, bounds=[(18, 90), (18, 90)])
        >>> table = curator.release()
        >>> table.Z.shape
        (100, 2)
        >>> bool((curator.release().Z == table.Z).all())  # replayed, not drawn again
        True
    """

    @takes(CuratorSettings)
    def __init__(self, given: CuratorSettings) -> None:
        self._table = TableMechanism(given)
        self.n, self.d, self.mechanism = self._table.n, self._table.d, self._table.name
        self._has_rows = True
        self._outcomes = checked_outcomes(given.outcomes, self.n)
        self._randomised = _answer_mechanism(given)
        k = self._table.rows_per_group or 1
        self._total_delta = total_delta(self._table.delta, self._randomised, k)
        if self._total_delta >= 1:
            raise ValueError(
                "delta and outcome_delta, of each row of a person, must add up to less than 1."
            )
        self._worst = worst_outcome(self._randomised, given.maximize)
        self._vault, self._name = open_vault(given.vault), given.run_name
        self._column = AnsweredColumn(
            given.outcome_column, self._name, self._table.columns, self._randomised is not None
        )
        self._run = self._joined()
        with self._run.transaction() as tx:
            self._column.check(tx)
            if self._table.groups is not None:
                bind(tx, "labels of rows", self._table.groups.of_rows, _OTHER_PERSONS)
        self._outlet = Outlet(self._run, given.noise)
        self._answers: RewardSession | None = None
        if self._randomised is not None:
            key = f"{_ANSWERS}{self._name}"
            self._answers = RewardSession(self._randomised, self._vault, key, noise=given.noise)
        warn_of_delta(self._total_delta, self.n, plural(self._table.unit))
        if not self._table.is_private:
            warn(f"Nothing is protected: {NOT_PRIVATE}.", PrivacyWarning)

    def __reduce__(self) -> Any:
        raise PrivacyError(
            "A curator is not pickled: it holds the rows. Give the modeler the released table."
        )

    def __repr__(self) -> str:
        shown = f"n={self.n}, d={self.d}, mechanism={self.mechanism!r}, run_name={self._name!r}"
        return f"Curator({shown})"

    # The vault --------------------------------------------------------------------------------

    @classmethod
    def resume(
        cls,
        X: ArrayLike | None = None,
        *,
        vault: str | Path,
        run_name: str = "table",
        outcomes: Outcomes | None = None,
        outcome_column: str | None = None,
        groups: Any = None,
        maximize: bool = True,
    ) -> Curator:
        """The curator of an earlier release, with the settings that its vault holds.

        Args:
            X: The same rows; None for a curator that only answers and reports.
            vault: Where the release was made.
            run_name: Its name there.
            outcomes: As for :class:`Curator`.
            outcome_column: As for :class:`Curator`.
            groups: The same persons, where the run has some: a release needs them, and so do
                answers that are randomised.
            maximize: As for :class:`Curator`.

        Raises:
            PrivacyError: If answers must not come from ``outcome_column``.
            ValueError: If ``groups`` are other persons than the run's.
            VaultError: If the vault holds no such release, or one of a table of another size.
        """
        known = _settings_of(vault, run_name)
        scaling = known["scaling"] or {}
        low, high = scaling.get("low"), scaling.get("high") or ()
        middle = np.zeros(known["d"]) if low is None else np.add(low, high) / 2
        with warnings.catch_warnings():  # the release has warned
            warnings.filterwarnings("ignore", "Nothing is protected", PrivacyWarning)
            made = cls(
                np.zeros((known["n"], 1)) + middle if X is None else X,
                **{name: known[name] for name in _SAME},
                **(known["outcomes"] or {}),
                bounds=None if low is None else list(zip(low, high, strict=True)),
                columns=scaling.get("columns"),
                outcomes=outcomes,
                outcome_column=outcome_column,
                groups=groups,
                maximize=maximize,
                vault=vault,
                run_name=run_name,
            )
        made._has_rows = X is not None
        return made

    def _joined(self) -> Run:
        settings = self._table.settings() | {"outcomes": answer_settings(self._randomised)}
        other = VaultError(
            f"The vault holds a release named {self._name!r} of a table of another size or with "
            "other settings. Use the same, or another run_name= for another table: the privacy "
            "losses add up for people who are in both."
        )
        return begin_or_join(self._vault, f"{PREFIX}{self._name}", settings, otherwise=other)

    @property
    def runs(self) -> tuple[Run, ...]:
        """The run of the table and, if answers are randomised, theirs.

        A host that shows their releases can remember them: ``run.guarded_by(rollback_guard)``.
        """
        return (self._run,) if self._answers is None else (self._run, self._answers.run)

    # The table --------------------------------------------------------------------------------

    @sanitize.retelling
    def release(self, progress: Progress = lambda _done, _of: None) -> ReleasedTable:
        """The released table: charged, drawn and stored in one transaction, then replayed.

        Args:
            progress: Called with (rows done, rows) while noise is drawn; what it raises is
                dropped, as it would take back the charge of what was drawn.

        Raises:
            PrivacyError: If this curator was resumed without its rows before any release, or
                another run of the vault answers a column of the table as it is.
            VaultError: If the vault refuses; nothing is released then.
        """
        reasons = self._run.marks(UNPROTECTED)

        def draw(noise: NoiseSource) -> dict[str, Any]:
            Z, how = self._table.draw(noise, progress)
            tx.put_table(TABLE, Z)  # too many numbers for a line of text
            return self._manifest(Z, reasons, how).to_dict()

        with self._run.transaction() as tx:
            released = self._outlet.release(tx, Order(TABLE, "0", self._charge), draw)
            manifest = TableManifest.from_dict(released)
            return ReleasedTable(tx.table(TABLE).reshape(manifest.n, manifest.r), manifest)

    def _charge(self, tx: Transaction) -> None:
        if not self._has_rows:
            raise PrivacyError("This curator was resumed without X: it cannot release.")
        self._check_groups()
        self._table.charge(tx)
        for why in self._column.shown_elsewhere(tx):  # the charge has locked the vault
            raise PrivacyError(why)

    def _check_groups(self) -> None:
        """Refuses an operation that needs the groups of a run, where this process has none.

        Raises:
            PrivacyError: If it has none.
        """
        if self._table.rows_per_group is not None and self._table.counts is None:
            raise PrivacyError(
                f"At most {self._table.rows_per_group} rows of one {self._table.unit} count, and "
                "this curator does not know whose each row is: give it groups= (--groups), the "
                "id of each row. Nothing was released or charged."
            )

    def _manifest(
        self, Z: Array, reasons: tuple[str, ...], how: Mapping[str, Any]
    ) -> TableManifest:
        if not self._table.is_private:
            reasons = (NOT_PRIVATE, *reasons)
        made = TableManifest(
            **self._table.public(), **how, r=int(Z.shape[1]),
            noise=TEST_NOISE if self._outlet.uses_test_noise else _SYSTEM,
            protected=not reasons, reasons=tuple(dict.fromkeys(reasons)),
            outcomes=answer_settings(self._randomised),
            ledger={
                "vault": self._vault.vault_id, "run": self._name,
                "store": MEMORY if self._vault.in_memory else "database",
            },
        )  # fmt: skip
        return sealed(Z, made).manifest

    # Answers ----------------------------------------------------------------------------------

    def evaluate(self, row: int) -> float:
        """The outcome of a row, privatised if so declared; answered once, then replayed.

        Args:
            row: Its number, 0 <= row < n.

        Raises:
            ValueError: If there is no such row, or no outcomes were given.
            PrivacyError: If an answer that is given as it is would not be a finite number, or
                the run is tied to another outcome column meanwhile.
            ObjectiveFailedError: If the function of outcomes fails; what it said is withheld.
                Where answers are randomised, a failure counts as the worst outcome instead.
        """
        number = checked_row(row, self.n)
        if self._outcomes is None:
            raise ValueError("This curator was given no outcomes=, so it can only release.")
        known = self._told(number)
        return self._tell(number) if known is None else known

    def _told(self, row: int) -> float | None:
        if self._answers is not None:
            return self._answers.replay(str(row))
        with self._run.transaction() as tx:
            payload = tx.released(ANSWER, str(row))
        return None if payload is None else float(payload["y"])

    def _tell(self, row: int) -> float:
        return self._answered(row, self._outcome(row))

    @sanitize.retelling
    def _answered(self, row: int, y: float) -> float:
        if self._answers is not None:
            with self._run.transaction() as tx:
                self._column.tie(tx)
            payer = f"row {row} of {self._name}"  # not a user of that number in another run
            return self._answers.release(str(row), y, payer, self._worst)
        if not math.isfinite(y):
            raise PrivacyError(f"Row {row} has no finite outcome, so there is no answer.")
        order = Order(ANSWER, str(row), self._column.tie)
        with self._run.transaction() as tx:
            return float(self._outlet.release(tx, order, lambda _noise: {"y": y})["y"])

    def _outcome(self, row: int) -> float:
        given, counts = self._outcomes, self._table.counts
        if self._answers is not None:
            self._check_groups()
            if counts is not None and not counts[row]:
                return math.nan  # which counts as the worst
        if not callable(given):
            return float(given[row])  # type: ignore[index]  # evaluate() has refused None
        y, failure = sanitize.call(lambda: as_reward(given(row)))
        if isinstance(failure, SystemExit):
            failure = sanitize.withheld("SystemExit")
        if failure is not None:
            if self._answers is not None and isinstance(failure, ObjectiveFailedError):
                return math.nan  # failing tells of the row as well: it counts as the worst
            raise failure
        return float(y)  # type: ignore[arg-type]

    def answers(self) -> dict[int, float]:
        """All answers given so far, by row."""
        if self._answers is not None:
            return {int(row): y for row, y in self._answers.evaluations().items()}
        with self._run.transaction() as tx:
            told = [(k, payload) for _, kind, k, payload in tx.releases_after(0) if kind == ANSWER]
        return {int(key): float(payload["y"]) for key, payload in told}

    # What may be claimed ----------------------------------------------------------------------

    def guarantee(self) -> OutsourcedGuarantee:
        """Makes the claim for everything released of one row so far: table and answer."""
        with self._run.transaction() as tx:
            reasons, released = tx.marks(UNPROTECTED), tx.released(TABLE, "0")
            tied = self._column.is_tied(tx)
            others = sum(key.startswith(PREFIX) for key in tx.hosts()) - 1
            reasons = (*reasons, *self._column.shown_elsewhere(tx))
        if not self._table.is_private:
            reasons = tuple(dict.fromkeys((NOT_PRIVATE, *reasons)))
        if released is None:
            return OutsourcedGuarantee(
                False, self.mechanism, math.inf, self._total_delta, self._table.neighbor_distance,
                self.n, reasons=reasons or ("nothing has been released yet",),
                unit=self._table.unit, rows_per_group=self._table.rows_per_group,
            )  # fmt: skip
        claimed = TableManifest.from_dict(released).guarantee(len(self.answers()))
        why = tuple(dict.fromkeys((*claimed.reasons, *reasons)))
        notes = (*claimed.notes, *_of_others(others))
        if claimed.n_answers and claimed.outcomes is None:
            notes += (TIED if tied else NOT_TIED,)
        epsilon = math.inf if why else claimed.epsilon
        return replace(claimed, protected=not why, epsilon=epsilon, reasons=why, notes=notes)

    @property
    def manifest(self) -> TableManifest | None:
        """The manifest of the release that the vault holds; None before there is one."""
        with self._run.transaction() as tx:
            released = tx.released(TABLE, "0")
        return None if released is None else TableManifest.from_dict(released)


def _answer_mechanism(given: CuratorSettings) -> LocalMechanism | None:
    """Makes the mechanism of answers; None gives them as they are.

    Raises:
        ValueError: If settings are given that do nothing, or lie outside their ranges.
    """
    name, delta = given.outcome_mechanism, given.outcome_delta
    if given.outcome_epsilon is None:
        if (given.outcome_range, name, delta) != (None, "laplace", None):
            raise ValueError(
                "outcome_range=, outcome_mechanism= and outcome_delta= do nothing without "
                "outcome_epsilon=: answers are then given as they are."
            )
        return None
    return make_mechanism(
        given.outcome_epsilon, value_range=given.outcome_range, mechanism=name, delta=delta
    )
