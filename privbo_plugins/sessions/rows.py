"""The curator's side: one release of the table, and one answer per row.

Everything here runs where the rows may be. What leaves is the released table with its
manifest, and answers; the vault holds these two and the ledger, never a row.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from privbo_plugins import sanitize
from privbo_plugins.algorithms.po_gp_ucb.arguments import (
    Outcomes,
    answer_mechanism,
    check_choice,
    checked_bound,
    checked_columns,
    checked_distance,
    checked_outcomes,
    checked_row,
    checked_rows,
    worst_outcome,
)
from privbo_plugins.algorithms.po_gp_ucb.claims import answer_settings, total_delta
from privbo_plugins.algorithms.po_gp_ucb.gaussian import (
    checked_scaling,
    count_beyond,
    noise_scale,
    public_projection,
    rows_within,
    sensitivity,
)
from privbo_plugins.algorithms.po_gp_ucb.projection import (
    centred,
    largest_r,
    smallest_singular_value,
    transform,
)
from privbo_plugins.algorithms.po_gp_ucb.table import (
    MEMORY,
    ReleasedTable,
    TableManifest,
    sealed,
)
from privbo_plugins.convert import as_reward
from privbo_plugins.errors import (
    ObjectiveFailedError,
    PrivacyError,
    PrivacyWarning,
    VaultError,
)
from privbo_plugins.privacy.accountant import gdp_mu
from privbo_plugins.privacy.guarantee import OutsourcedGuarantee
from privbo_plugins.privacy.ledger import Charge
from privbo_plugins.privacy.mechanisms import check_share
from privbo_plugins.privacy.source import NoiseSource
from privbo_plugins.sessions.rewards import RewardSession
from privbo_plugins.sessions.settings import MECHANISMS, ON_EXCESS, CuratorSettings
from privbo_plugins.settings import takes
from privbo_plugins.store.release import PAYLOADS, TEST_NOISE, Order, Outlet, Shelf
from privbo_plugins.store.run import (
    OtherSettingsError,
    Run,
    begin_or_join,
    stored_settings,
)
from privbo_plugins.store.vault import UNPROTECTED, Transaction, Vault, open_vault

Array = NDArray[np.float64]

TABLE, ANSWER = "table", "answer"
"""Kinds of releases."""

ROWS = "rows"
"""Who pays: each row of the table."""

NOT_PRIVATE = (
    "the published random projection keeps every column of the released table in the column space "
    "of the secret one, so one look tells almost any two neighbouring tables apart, and whoever "
    "knows a few rows can compute what was released of all others; it preserves distances and "
    "nothing else"
)

_NUMBERS_AT_ONCE = 2**14
"""Numbers in one draw of noise: the memory that the noise library needs stays small."""

_SYSTEM = "OpenDP's cryptographic generator, seeded from the operating system's entropy"

Progress = Callable[[int, int], None]


def _no_progress(_done: int, _of: int) -> None:
    pass


_SAME = (
    "mechanism", "on_excess", "r", "epsilon", "delta", "neighbor_distance", "norm_bound",
    "projection_seed",
)  # fmt: skip
"""Settings that a resumed curator takes as they are."""


_PREFIX, _ANSWERS = "outsourced:", "outcomes:"
"""Of the runs that release a table, and of those that hold its randomised answers."""

_COLUMN = "outcome column"
"""Mark that ties a run's answers to one column."""

TIED = (
    "answers are tied to one column of the data, by its name, which is none of the table's; what "
    "stands under that name is not checked, nor are answers that were told before it was tied"
)

NOT_TIED = (
    "answers are tied to no column whose name could be compared with the table's: nothing keeps "
    "them from being entries of the table"
)


def _shown_already(column: str, run_name: str) -> str:
    return (
        f"Column {column!r} is answered as it is by the release {run_name!r} of this vault, so it "
        "can no longer be protected. Leave it out, or keep other people's rows in another vault."
    )


def _of_others(others: int) -> tuple[str, ...]:
    if others < 1:
        return ()
    return (
        f"the vault holds {others} other releases: for people whose rows are in several of them, "
        "the privacy losses add up",
    )


@dataclass(frozen=True)
class _Other:
    """What another run of the vault has released.

    Attributes:
        name: Name of the run.
        shown: Columns that its answers give as they are.
        hidden: Columns that its table, or its randomised answers, protect.
    """

    name: str
    shown: frozenset[str]
    hidden: frozenset[str]


def _others(tx: Transaction, own: str) -> list[_Other]:
    """All other runs of the vault that release a table."""
    keys, run_id = tx.hosts(), tx.run_id
    try:
        return [
            _other(tx, key) for key in keys if key.startswith(_PREFIX) and key != f"{_PREFIX}{own}"
        ]
    finally:
        tx.run_id = run_id


def _other(tx: Transaction, host_key: str) -> _Other:
    tx.run_id = tx.run_of_host(host_key) or ""
    found = tx.run()
    settings = {} if found is None else found[1]
    tied = frozenset(tx.marks(_COLUMN))
    names = (settings.get("scaling") or {}).get("columns") or ()
    released = _names_of(names) if tx.released(TABLE, "0") is not None else frozenset()
    as_they_are = settings.get("outcomes") is None
    return _Other(
        name=host_key.removeprefix(_PREFIX),
        shown=tied if as_they_are else frozenset(),
        hidden=released if as_they_are else released | tied,
    )


def table_of(host_key: str) -> str | None:
    """The release that a run of a vault makes, by the name that its host gave it."""
    return host_key.removeprefix(_PREFIX) if host_key.startswith(_PREFIX) else None


def holds_answers(host_key: str) -> bool:
    """Whether a run of a vault holds the randomised answers of another one."""
    return host_key.startswith(_ANSWERS)


def answers_of(host_key: str) -> str:
    """The run that holds a table's randomised answers, by the name of the table's own."""
    return f"{_ANSWERS}{table_of(host_key) or host_key}"


def _names_of(columns: Sequence[str]) -> frozenset[str]:
    """Of a table's columns; one of choices, "sex=F", is made of a column of the data."""
    return frozenset({*columns, *(name.partition("=")[0] for name in columns)})


def _checked_column(name: str | None) -> str | None:
    if name is None or (isinstance(name, str) and 0 < len(name) <= 512):
        return name
    raise ValueError("outcome_column must be a column's name of 1 to 512 characters, or None.")


def _settings_of(vault: str, run_name: str) -> dict[str, Any]:
    known = stored_settings(open_vault(vault, create=False), f"{_PREFIX}{run_name}")
    if known is None:
        raise VaultError(
            f"The vault holds no release named {run_name!r}. Release the table first."
        )
    return known


class _Tables(Shelf[tuple[Array, TableManifest]]):
    """A table's numbers are too many for a line of text: they stand apart, in blocks."""

    def get(self, tx: Transaction, kind: str, key: str) -> tuple[Array, TableManifest] | None:
        payload = tx.released(kind, key)
        if payload is None:
            return None
        manifest = TableManifest.from_dict(payload)
        return tx.table(kind).reshape(manifest.n, manifest.r), manifest

    def put(
        self, tx: Transaction, kind: str, key: str, payload: tuple[Array, TableManifest]
    ) -> None:
        Z, manifest = payload
        tx.put_table(kind, Z)
        tx.release(kind, key, manifest.to_dict())


_TABLES = _Tables()


class Curator:
    """Holds the rows; releases a private table once, and answers what a row's outcome is.

    {settings}

    Raises:
        ValueError: For every argument outside its range; no text quotes an entry of the table.
        PrivacyError: With ``on_excess="refuse"``, if a row lies outside; if ``outcome_column`` is
            another than the run is tied to, or one of ``columns``, or of what another run of the
            vault protects, while answers are given as they are.
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
        self._X = checked_rows(given.X, given.columns, given.bounds)
        self.n, self.d = self._X.shape
        self._has_rows = True
        self._take_mechanism(given)
        self._take_outcomes(given)
        self._vault: Vault = open_vault(given.vault)
        self._name = given.run_name
        self._run = self._joined()
        with self._run.transaction() as tx:
            self._check_column(tx)
        self._outlet = Outlet(self._run, given.noise)
        self._answers = self._answering(given.noise)
        if self.mechanism == "projection":
            warnings.warn(f"Nothing is protected: {NOT_PRIVATE}.", PrivacyWarning, stacklevel=3)

    def _take_mechanism(self, given: CuratorSettings) -> None:
        """How the table is released."""
        check_choice("mechanism", given.mechanism, MECHANISMS)
        check_choice("on_excess", given.on_excess, ON_EXCESS)
        self.mechanism, self._on_excess = given.mechanism, given.on_excess
        self.epsilon, self.delta = float(given.epsilon), float(given.delta)
        self.mu = gdp_mu(self.epsilon, self.delta)  # refuses what lies outside
        check_share(self.mu)
        self._scaling = checked_scaling(given.bounds, self.d)
        self.neighbor_distance = checked_distance(given.neighbor_distance)
        self.norm_bound = checked_bound(given.norm_bound, self._scaling, self.neighbor_distance)
        self._columns = checked_columns(given.columns, self.d)
        self._seed = int(given.projection_seed)
        self._r = self._checked_r(given.r)
        if self._on_excess == "refuse":
            self._refuse_excess()

    def _take_outcomes(self, given: CuratorSettings) -> None:
        """What rows are asked for, and how it is answered."""
        self._outcomes = checked_outcomes(given.outcomes, self.n)
        self._outcome_column = _checked_column(given.outcome_column)
        self._private_answers = answer_mechanism(
            given.outcome_epsilon, given.outcome_range, given.outcome_mechanism,
            given.outcome_delta,
        )  # fmt: skip
        if self._total_delta >= 1:
            raise ValueError("delta and outcome_delta must add up to less than 1.")
        self._worst = worst_outcome(self._private_answers, given.maximize)

    def __reduce__(self) -> Any:
        raise PrivacyError(
            "A curator is not pickled: it holds the rows. Give the modeler the released table."
        )

    def __repr__(self) -> str:
        shown = f"n={self.n}, d={self.d}, mechanism={self.mechanism!r}, run_name={self._name!r}"
        return f"Curator({shown})"

    def _checked_r(self, r: int | None) -> int | None:
        if r is None:
            return self.d if self.mechanism == "gaussian" else None
        if not isinstance(r, int | np.integer) or isinstance(r, bool):
            raise ValueError(f"r must be an integer >= 1, got {r!r}.")
        if self.mechanism == "gaussian":
            public_projection(self.d, r, self._seed)
        elif r < 1:
            raise ValueError(f"r must be an integer >= 1, got {r!r}.")
        return int(r)

    def _refuse_excess(self) -> None:
        beyond = count_beyond(self._X, self._scaling, self.norm_bound)
        if beyond:
            raise PrivacyError(
                "Some row lies outside the public bounds or the norm bound "
                f"{self.norm_bound:g}, or holds an entry that is no number. Nothing was released. "
                "Give wider public bounds, or on_excess='clip'."
            )

    # The vault --------------------------------------------------------------------------------

    def _settings(self) -> dict[str, Any]:
        """What a release is made with; n and the settings are public."""
        return {
            "mechanism": self.mechanism, "n": self.n, "d": self.d, "r": self._r,
            "epsilon": self.epsilon, "delta": self.delta,
            "neighbor_distance": self.neighbor_distance, "norm_bound": self.norm_bound,
            "on_excess": self._on_excess, "scaling": self._public_scaling(),
            "projection_seed": self._seed,
            "outcomes": answer_settings(self._private_answers),
        }  # fmt: skip

    @classmethod
    def resume(
        cls,
        X: ArrayLike | None = None,
        *,
        vault: str,
        run_name: str = "table",
        outcomes: Outcomes | None = None,
        outcome_column: str | None = None,
        maximize: bool = True,
    ) -> Curator:
        """The curator of an earlier release, with the settings that its vault holds.

        Args:
            X: The same rows; None for a curator that only answers and reports.
            vault: Where the release was made.
            run_name: Its name there.
            outcomes: As for :class:`Curator`.
            outcome_column: As for :class:`Curator`.
            maximize: As for :class:`Curator`.

        Raises:
            PrivacyError: If answers must not come from ``outcome_column``.
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
                maximize=maximize,
                vault=vault,
                run_name=run_name,
            )
        made._has_rows = X is not None
        return made

    def _public_scaling(self) -> dict[str, Any] | None:
        scaling = self._scaling
        if scaling is None and self._columns is None:
            return None
        return {
            "columns": None if self._columns is None else list(self._columns),
            "low": None if scaling is None else list(scaling.low),
            "high": None if scaling is None else list(scaling.high),
        }

    def _joined(self) -> Run:
        try:
            return begin_or_join(self._vault, f"{_PREFIX}{self._name}", self._settings())
        except OtherSettingsError:
            raise VaultError(
                f"The vault holds a release named {self._name!r} of a table of another size or "
                "with other settings. Use the same, or another run_name= for another table: the "
                "privacy losses add up for people who are in both."
            ) from None

    def _answering(self, noise: NoiseSource | None) -> RewardSession | None:
        if self._private_answers is None:
            return None
        return RewardSession(
            self._private_answers, self._vault, f"{_ANSWERS}{self._name}", noise=noise
        )

    @property
    def runs(self) -> tuple[Run, ...]:
        """The run of the table and, if answers are randomised, theirs.

        Whoever shows what they release can remember it: ``run.guarded_by(rollback_guard)``.
        """
        return (self._run,) if self._answers is None else (self._run, self._answers.run)

    # The table --------------------------------------------------------------------------------

    def release(self, progress: Progress = _no_progress) -> ReleasedTable:
        """The released table: charged, drawn and stored in one transaction, then replayed.

        Args:
            progress: Called with (rows done, rows) while noise is drawn.

        Raises:
            PrivacyError: If this curator was resumed without its rows before any release, or
                another run of the vault answers a column of the table as it is.
            VaultError: If the vault refuses; nothing is released then.
        """
        reasons = self._run.marks(UNPROTECTED)
        order = Order(
            TABLE, "0", self._charge, lambda noise: self._draw(noise, reasons, progress), _TABLES
        )
        with self._run.transaction() as tx:
            return ReleasedTable(*self._outlet.release(tx, order))

    def _charge(self, tx: Transaction) -> None:
        if not self._has_rows:
            raise PrivacyError("This curator was resumed without X: it cannot release.")
        self._charge_rows(tx)
        self._check_table(tx)  # after the charge, which has locked the vault

    def _charge_rows(self, tx: Transaction) -> None:
        if self.mechanism == "projection":
            tx.charge(Charge(TABLE, "0", math.inf, math.inf, 0.0, ROWS))
            tx.mark(UNPROTECTED, NOT_PRIVATE)
            return
        _, delta_2, sigma = self._noise_of_rows()
        tx.charge(Charge(TABLE, "0", self.mu, delta_2, sigma, ROWS))

    def _noise_of_rows(self) -> tuple[Array, float, float]:
        """Public matrix, sensitivity and standard deviation."""
        P = public_projection(self.d, self._r or self.d, self._seed)
        delta_2 = sensitivity(self.neighbor_distance, self.norm_bound, P)
        return P, delta_2, noise_scale(delta_2, self.mu)

    def _draw(
        self, noise: NoiseSource, reasons: tuple[str, ...], progress: Progress
    ) -> tuple[Array, TableManifest]:
        if self.mechanism == "projection":
            return self._projected(noise, reasons)
        P, delta_2, sigma = self._noise_of_rows()
        exact = rows_within(self._X, self._scaling, self.norm_bound) @ P
        Z = _with_noise(exact, sigma, noise, progress)
        seeded = {"kind": "seeded", "seed": self._seed}
        return Z, self._manifest(
            Z, reasons, mu=self.mu, sensitivity=delta_2, noise_sd=sigma,
            projection={"kind": "identity"} if self._r == self.d else seeded,
        )  # fmt: skip

    def _projected(
        self, noise: NoiseSource, reasons: tuple[str, ...]
    ) -> tuple[Array, TableManifest]:
        rows = rows_within(self._X, self._scaling, self.norm_bound)
        r = self._r or self._published_r(rows)
        M = noise.add_gaussian(np.zeros(self.d * r), 1.0).reshape(self.d, r)
        Z, raised = transform(rows, M, self.epsilon, self.delta)
        return Z, self._manifest(
            Z, (NOT_PRIVATE, *reasons), mu=None, sensitivity=None, noise_sd=0.0,
            projection={"kind": "secret", "singular_values_raised": raised},
        )  # fmt: skip

    def _published_r(self, rows: Array) -> int:
        found = largest_r(smallest_singular_value(centred(rows)), self.epsilon, self.delta)
        return found or self.d

    def _manifest(self, Z: Array, reasons: tuple[str, ...], **how: Any) -> TableManifest:
        manifest = TableManifest(
            mechanism=self.mechanism, n=self.n, d=self.d, r=int(Z.shape[1]),
            epsilon=self.epsilon, delta=self.delta, neighbor_distance=self.neighbor_distance,
            norm_bound=self.norm_bound, on_excess=self._on_excess, scaling=self._public_scaling(),
            noise=TEST_NOISE if self._outlet.uses_test_noise else _SYSTEM,
            protected=not reasons, reasons=tuple(dict.fromkeys(reasons)),
            outcomes=answer_settings(self._private_answers),
            ledger={
                "vault": self._vault.vault_id, "run": self._name,
                "store": MEMORY if self._vault.in_memory else "database",
            }, **how,
        )  # fmt: skip
        return sealed(Z, manifest).manifest

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
        y = self._outcome(row)
        if self._answers is not None:
            with self._run.transaction() as tx:
                self._tie_column(tx)
            payer = f"row {row} of {self._name}"  # not a user of that number in another run
            return self._answers.release(str(row), y, payer, self._worst)
        if not math.isfinite(y):
            raise PrivacyError(f"Row {row} has no finite outcome, so there is no answer.")
        order = Order(ANSWER, str(row), self._tie_column, lambda _noise: {"y": y}, PAYLOADS)
        with self._run.transaction() as tx:
            return float(self._outlet.release(tx, order)["y"])

    def _tie_column(self, tx: Transaction) -> None:
        """All that an answer as it is costs: there is nothing that a ledger could count."""
        self._check_column(tx)
        if self._outcome_column is not None:
            tx.mark(_COLUMN, self._outcome_column)
            self._check_other_answers(tx, self._outcome_column)  # the mark has locked the vault

    def _check_column(self, tx: Transaction) -> None:
        """Each column told as it is would be another one that nothing protects.

        Raises:
            PrivacyError: If answers come from another column than before, or would tell entries
                of the table.
        """
        name, tied = self._outcome_column, tx.marks(_COLUMN)
        if name is None:
            return
        if tied and tied != (name,):
            raise PrivacyError(
                f"Answers of {self._name!r} come from column {tied[0]!r}, not from {name!r}: one "
                "release answers for one column. Release a table under another name for another "
                "column: the privacy losses add up."
            )
        if self._private_answers is None and name in _names_of(self._columns or ()):
            raise PrivacyError(
                f"Column {name!r} is in the released table, and answers are given as they are: "
                "they would reveal the entries that the table protects. Name another column, "
                "or release a table with outcome_epsilon and outcome_range."
            )
        self._check_other_answers(tx, name)

    def _check_other_answers(self, tx: Transaction, name: str) -> None:
        """One run must not tell as it is what another one protects, of the same rows maybe.

        Raises:
            PrivacyError: If answers from this column would.
        """
        for other in _others(tx, self._name):
            if self._private_answers is None and name in other.hidden:
                raise PrivacyError(
                    f"Column {name!r} is protected by the release {other.name!r} of this vault, "
                    f"and answers of {self._name!r} are given as they are: they would tell the "
                    "very entries. Name another column, release a table with outcome_epsilon and "
                    "outcome_range, or keep other people's rows in another vault."
                )
            if self._private_answers is not None and name in other.shown:
                raise PrivacyError(_shown_already(name, other.name))

    def _check_table(self, tx: Transaction) -> None:
        """That no run answers a column of the table as it is.

        Raises:
            PrivacyError: If one does.
        """
        for name, other in self._shown_elsewhere(tx):
            raise PrivacyError(_shown_already(name, other))

    def _shown_elsewhere(self, tx: Transaction) -> list[tuple[str, str]]:
        """Columns of this table that other runs answer as they are, each with the run's name."""
        own = _names_of(self._columns or ())
        return [
            (name, other.name)
            for other in _others(tx, self._name)
            for name in sorted(own & other.shown)
        ]

    def _outcome(self, row: int) -> float:
        given = self._outcomes
        if not callable(given):
            return float(given[row])  # type: ignore[index]  # evaluate() has refused None
        y, failure = sanitize.call(lambda: as_reward(given(row)))
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
        """What may be claimed of everything released of one row so far: table and answer."""
        with self._run.transaction() as tx:
            reasons, released = tx.marks(UNPROTECTED), tx.released(TABLE, "0")
            tied = bool(tx.marks(_COLUMN)) and self._columns is not None
            others = sum(key.startswith(_PREFIX) for key in tx.hosts()) - 1
            shown = [_shown_already(*found) for found in self._shown_elsewhere(tx)]
        reasons = (*reasons, *shown)  # by a version that did not compare runs
        if self.mechanism == "projection":
            reasons = tuple(dict.fromkeys((NOT_PRIVATE, *reasons)))
        if released is None:
            return OutsourcedGuarantee(
                False, self.mechanism, math.inf, self._total_delta, self.neighbor_distance,
                self.n, reasons=reasons or ("nothing has been released yet",),
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

    @property
    def _total_delta(self) -> float:
        return total_delta(self.delta, self._private_answers)


def _with_noise(exact: Array, sigma: float, noise: NoiseSource, progress: Progress) -> Array:
    Z, step = np.empty_like(exact), max(1, _NUMBERS_AT_ONCE // exact.shape[1])
    for start in range(0, len(Z), step):
        rows = exact[start : start + step]
        Z[start : start + step] = noise.add_gaussian(rows.ravel(), sigma).reshape(rows.shape)
        progress(min(start + step, len(Z)), len(Z))
    return Z
