"""Per-record losses: an algorithm, and the statistics of the vault's losses that it may release.

The session says which statistics are to be released and what they cost;
:mod:`privbo_plugins.store.release` releases them. Only a committed release is ever handed to a
host. After a crash the next call finds either the committed release, and replays it, or no trace
of the transaction at all, and makes it anew.
"""

from __future__ import annotations

import hmac
import math
import secrets
import threading
import warnings
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np
from numpy.typing import NDArray

from privbo_plugins.algorithms.protocols import (
    ATTEMPTS,
    FINAL,
    OUTSIDE,
    OUTSIDE_STEP,
    START,
    STEP,
    CentralAlgorithm,
    CentralConfig,
    CentralPlan,
    Proposal,
    Query,
    Release,
)
from privbo_plugins.algorithms.registry import algorithm_of, entry_of
from privbo_plugins.convert import as_losses, index_of
from privbo_plugins.errors import (
    ANOTHER_POINT,
    BudgetExceededError,
    PrivacyError,
    SpaceChangedError,
    UtilityWarning,
    VaultError,
)
from privbo_plugins.plots import History
from privbo_plugins.privacy.guarantee import Guarantee
from privbo_plugins.privacy.ledger import TRAINING, VALIDATION, Charge, check_budget
from privbo_plugins.privacy.mechanisms import gaussian_scale
from privbo_plugins.privacy.source import NoiseSource
from privbo_plugins.privacy.words import texts_of
from privbo_plugins.sessions.clipping_warning import end_of, said_of
from privbo_plugins.spaces import Space
from privbo_plugins.status import of_records
from privbo_plugins.store.release import PAYLOADS, Order, Outlet
from privbo_plugins.store.run import Head, RollbackGuard, Run, Total, begin_or_join
from privbo_plugins.store.run import stored_settings as settings_in
from privbo_plugins.store.vault import BLOCK, NOTE, UNPROTECTED, Transaction, TrialRow, Vault

Array = NDArray[np.float64]

_CLAIMED, _ENTERED = "claimed", "entered"
PRIVATE, PLAIN = "private", "plain"
_VOUCHED_FOR = "vouched"
_KEY_OF_LABELS, _LABELS, _INDEX = "key of labels", "labels of records", "index of losses"
_UNPLANNED_TRAININGS = 100
"""So many trainings are charged before the first vector of losses has made a plan."""
_SAME = 1e-9
"""Encoded parameters that are so near are the same."""
_ENOUGH_FAILURES = 2
"""Where so many trials of a step failed, no further one is tried: another point takes over."""
_VOUCHED = "the caller declared values given to {} public"


class Session:
    """One run of one algorithm.

    Built by :meth:`open`. All methods are safe to call from several threads, and several
    processes may hold sessions of the same run over one vault.

    Args:
        run: The run.
        config: Settings of the algorithm.
        seed: Drives designs; stored with the run.
        maximize: Whether per-record values are scores.
        noise: Test injection; None is secure.
    """

    def __init__(
        self,
        run: Run,
        config: CentralConfig,
        *,
        seed: int,
        maximize: bool,
        noise: NoiseSource | None = None,
    ) -> None:
        self.run, self.config = run, config
        self._kind = algorithm_of(config)
        self.seed, self.maximize = seed, maximize
        self._outlet = Outlet(run, noise)
        self._lock = threading.RLock()
        self._space: Space | None = None
        self._algorithm: CentralAlgorithm | None = None
        self._mode: str | None = None
        self._n_records: int | None = None
        self._seq = 0
        self._plain_over = False
        self._fresh: list[Release] = []
        self._constants: dict[str, Any] | None = None
        self._labels: str | None = None
        self._values: list[float] = []
        self._ends_told = False

    # Opening --------------------------------------------------------------------------------

    @classmethod
    def open(
        cls,
        vault: Vault,
        host_key: str,
        config: CentralConfig,
        *,
        maximize: bool,
        seed: int | None = None,
        run_id: str | None = None,
        noise: NoiseSource | None = None,
    ) -> Session:
        """Starts a run, or joins one that another process or an earlier one started.

        Args:
            vault: The private store.
            host_key: What the host calls the run, unique in the vault.
            config: Settings; must equal those the run started with.
            maximize: Direction; must equal the one the run started with.
            seed: For a new run; None draws one. A run that exists keeps its own.
            run_id: The identity that the host's own storage remembers, if any.
            noise: Test injection; the default is secure.

        Raises:
            VaultError: If the host remembers a run that this vault does not hold.
            ValueError: If the settings differ from those the run started with.
        """
        settings = {
            "algorithm": entry_of(config).name,
            "config": config.to_dict(),
            "maximize": maximize,
        }
        run = begin_or_join(
            vault,
            host_key,
            settings,
            same=lambda stored: _check_same_settings(stored, settings),
            fresh={"seed": secrets.randbits(32) if seed is None else int(seed)},
            run_id=run_id,
        )
        own_seed = int(run.settings["seed"])
        return cls(run, config, seed=own_seed, maximize=maximize, noise=noise)

    @staticmethod
    def stored_settings(vault: Vault, host_key: str) -> dict[str, Any] | None:
        """The settings that the run of a host key was started with; None if there is none."""
        return settings_in(vault, host_key)

    @property
    def run_id(self) -> str:
        """The run's identity in its vault."""
        return self.run.run_id

    @property
    def begun_here(self) -> bool:
        """True in the one session that started the run."""
        return self.run.begun_here

    def guarded_by(self, rollback_guard: RollbackGuard) -> None:
        """Names the guard that shows the run's releases, and compares the vault with it.

        Raises:
            VaultError: If the vault was restored from an older backup, or is a copy.
        """
        with self._lock:
            self.run.guarded_by(rollback_guard)

    def head(self) -> Head:
        """The end of the chain of releases."""
        with self._lock:
            return self.run.head()

    @contextmanager
    def _transaction(self) -> Iterator[Transaction]:
        """A transaction; its releases are learnt once it is committed.

        What it fixed in memory is forgotten with it if it fails.
        """
        space, mode = self._space, self._mode
        self._fresh = []
        try:
            with self.run.transaction() as tx:
                yield tx
            for release in self._fresh:
                self._learn(self._seq + 1, release)
        except BaseException:
            if space is not self._space or mode != self._mode:
                self._space, self._mode, self._n_records, self._seq = space, None, None, 0
                self._algorithm = None if space is None else self._without_plan(space)
            raise

    def _without_plan(self, space: Space) -> CentralAlgorithm:
        return self._kind(self.config, space, seed=self.seed, maximize=self.maximize)

    # Space and plan -------------------------------------------------------------------------

    @property
    def space(self) -> Space | None:
        """The search space, once known."""
        return self._space

    @property
    def n_records(self) -> int | None:
        """How many records each vector tells of, once known."""
        return self._n_records

    def fits(self, space: Space) -> bool:
        """Whether a space is the one the run was started in (True if none is fixed yet)."""
        with self._lock, self._transaction() as tx:
            frozen = self._frozen(tx)
        return frozen is None or frozen["space"] == space.to_dict()

    def fixed(self) -> tuple[dict[str, Any] | None, dict[str, Any] | None]:
        """Descriptions of the parameters that vary, and of those that do not, by name.

        None where the run has not fixed them yet.
        """
        with self._lock:
            space = None if self._space is None else self._space.to_dict()
            if space is None or self._constants is None:
                with self._transaction() as tx:
                    frozen = self._frozen(tx) or {}
                space = frozen.get("space") if space is None else space
                self._constants = frozen.get("constants")
            return space, self._constants

    def set_space(self, space: Space) -> None:
        """Fixes the search space.

        Raises:
            SpaceChangedError: If it differs from the run's.
        """
        with self._lock:
            if self._space is not None:
                if self._space != space:
                    raise SpaceChangedError(_space_changed(self._space, space))
                return
            with self._transaction() as tx:
                self._adopt(space, tx)

    def _adopt(self, space: Space, tx: Transaction) -> None:
        frozen = self._frozen(tx)
        if frozen is not None and frozen["space"] != space.to_dict():
            raise SpaceChangedError(_space_changed(None, space))
        self._space = space
        self._algorithm = self._without_plan(space)
        self._sync(tx)

    def _frozen(self, tx: Transaction) -> dict[str, Any] | None:
        run = tx.run()
        if run is None:
            raise VaultError("The vault no longer holds this run.")
        return run[2]

    def _freeze(self, tx: Transaction, space: Space, mode: str, n_records: int) -> None:
        """The first vector fixes n, and with it the plan."""
        if self._space is None:
            self._adopt(space, tx)
        if self._mode is None:
            facts = {"space": space.to_dict(), "mode": mode, "n_records": n_records}
            self._make_algorithm(mode, n_records)  # raises before anything is written
            tx.freeze(facts)

    def _freeze_constants(self, tx: Transaction, constants: Mapping[str, Any] | None) -> None:
        """The first trial that reports constants fixes them; older versions fixed none."""
        if constants is None or self._constants is not None:
            return
        frozen = self._frozen(tx)
        if frozen is not None and "constants" not in frozen:
            tx.freeze(frozen | {"constants": dict(constants)})

    def _make_algorithm(self, mode: str, n_records: int) -> None:
        space = self._known_space()
        config = self.config if mode == PRIVATE else self.config.plain()
        plan = self._kind.make_plan(config, space, n_records)
        self._algorithm = self._kind(
            config, space, seed=self.seed, maximize=self.maximize, plan=plan
        )
        self._mode, self._n_records, self._seq, self._values = mode, n_records, 0, []

    def _sync(self, tx: Transaction) -> None:
        """Brings the algorithm up to the committed releases."""
        if self._space is None:
            return  # a resumed run whose host has not told the space yet: nothing to learn with
        if self._mode is None:
            frozen = self._frozen(tx)
            if frozen is not None:
                if frozen["space"] != self._space.to_dict():
                    raise SpaceChangedError(_space_changed(None, self._space))
                self._make_algorithm(frozen["mode"], frozen["n_records"])
        self.run.follow(tx)
        for seq, kind, key, payload in tx.releases_after(self._seq):
            self._learn(seq, _release_of(kind, key, payload))
        self._count_plain(tx)

    def _count_plain(self, tx: Transaction) -> None:
        """A run of plain floats has no plan, but ends after as many trials as were asked for."""
        limit = self.config.n_trials
        if self._mode == PLAIN and limit is not None:
            self._plain_over = tx.told() >= limit

    def _learn(self, seq: int, release: Release) -> None:
        self._known_algorithm().observe(release)
        self._seq = seq
        if release.kind in ("value", FINAL):
            self._values.append(release.values[0])

    def _known_space(self) -> Space:
        if self._space is None:
            raise PrivacyError("The search space is not known yet.")
        return self._space

    def _known_algorithm(self) -> CentralAlgorithm:
        if self._algorithm is None:
            raise PrivacyError("The search space is not known yet.")
        return self._algorithm

    @property
    def plan(self) -> CentralPlan | None:
        """The plan, once the number of records is known; None for a plain-float run."""
        if self._mode != PRIVATE or self._algorithm is None:
            return None
        plan: CentralPlan | None = self._algorithm.plan
        return plan

    @property
    def plain(self) -> bool:
        """Whether this is a run of plain floats, for which nothing is claimed."""
        return self._mode == PLAIN

    @property
    def finished(self) -> bool:
        """True once the plan of a private run is used up (as of the last ask or tell).

        A run of plain floats is over after ``n_trials``, if they were given.
        """
        if self._mode == PLAIN:
            return self._plain_over
        return self._mode == PRIVATE and self._known_algorithm().finished

    @property
    def released(self) -> int:
        """Number of releases that this session knows of; it never falls."""
        return self._seq

    def refresh(self) -> None:
        """Reads what other workers have released."""
        with self._lock, self._transaction() as tx:
            self._sync(tx)

    # Asking ---------------------------------------------------------------------------------

    def ask(self, trial: str) -> Proposal:
        """A point for a trial; the same one if the trial asks again.

        Raises:
            PrivacyError: If the search space is not known yet.
            VaultError: If the vault fails.
        """
        proposal = self._ask(trial, beyond=True)
        if proposal is None:
            raise PrivacyError("The run had no point to propose.")
        return proposal

    def ask_planned(self, trial: str) -> Proposal | None:
        """As :meth:`ask`, but None while every place of the current step is taken.

        For hosts that can wait: the plan then needs no more trials than it says.
        """
        return self._ask(trial, beyond=False)

    def _ask(self, trial: str, *, beyond: bool) -> Proposal | None:
        with self._lock:
            while True:
                with self._transaction() as tx:
                    self._sync(tx)
                    row = tx.trial(trial)
                    if row is not None and row.state != "failed":
                        return Proposal(row.role, row.step, row.slot, row.x)
                    rows = tx.step_trials(self._known_algorithm().phase[1])
                    if not self._complete(rows):
                        if not beyond and not self._has_room(rows):
                            return None
                        if row is not None:  # the host runs a failed trial again under its name
                            tx.forget(trial)
                        return self._assign(tx, trial, rows)
                self._settle()

    def _has_room(self, rows: Iterable[tuple[str, int, str]]) -> bool:
        taken = sum(state in ("out", "done") for _, _, state in rows)
        return taken < self._known_algorithm().batch_capacity

    def _complete(self, rows: Iterable[tuple[str, int, str]]) -> bool:
        """Whether the current step can be released (after a crash, by any worker)."""
        algorithm = self._known_algorithm()
        if algorithm.phase[0] != STEP or algorithm.plan is None:
            return False
        return algorithm.ready(sum(state == "done" for _, _, state in rows))

    def _assign(
        self, tx: Transaction, trial: str, rows: Iterable[tuple[str, int, str]]
    ) -> Proposal:
        rows = list(rows)
        taken = {slot for _, slot, state in rows if state in ("out", "done")}
        failed = Counter(slot for _, slot, state in rows if state == "failed")
        taken |= {slot for slot, times in failed.items() if times >= _ENOUGH_FAILURES}
        slot = next(i for i in range(len(taken) + 1) if i not in taken)
        proposal = self._propose(tx, slot, rows)
        tx.new_trial(trial, proposal.role, proposal.step, proposal.slot, proposal.x)
        return proposal

    def _propose(
        self, tx: Transaction, slot: int, rows: Iterable[tuple[str, int, str]]
    ) -> Proposal:
        points: dict[str, list[Array]] = {"out": [], "failed": []}
        for trial, _, state in rows:
            row = tx.trial(trial) if state in points else None
            if row is not None:
                points[state].append(row.x)
        return self._known_algorithm().propose(slot, points["out"], points["failed"])

    def place(self, trial: str, x: Array) -> None:
        """Enters a trial at a point that the host chose, shape (D,), before it is told.

        It counts as a start while the start is open, and as outside the plan afterwards.
        """
        with self._lock, self._transaction() as tx:
            self._sync(tx)
            if tx.trial(trial) is None:
                self._unasked(tx, trial, self._known_space().snap(x))

    def fail(self, trial: str) -> None:
        """Gives the slot of a trial back that failed or was pruned."""
        with self._lock, self._transaction() as tx:
            self._sync(tx)
            tx.fail(trial)

    # Telling --------------------------------------------------------------------------------

    def tell(
        self,
        trial: str,
        params: Mapping[str, Any],
        space: Space,
        losses: Any,
        constants: Mapping[str, Any] | None = None,
        index: str | None = None,
    ) -> tuple[float, str]:
        """Takes a trial's per-record losses and returns what may be published of them.

        A trial that has been told before gets its stored release again, whatever is told now.

        Args:
            trial: The trial's key.
            params: The parameters it really evaluated.
            space: The space it really evaluated in.
            losses: One value a record, shape (n_records,).
            constants: Descriptions of the parameters that do not vary, JSON-ready; the run's
                first ones are kept (see :meth:`fixed`). None if the host stores none.
            index: Fingerprint of the losses' own labels
                (:func:`privbo_plugins.convert.index_of`), where they have lost them on the way.

        Returns:
            The value to publish, and what it is: the trial's role and step, with ", carried"
            where the plan has no release left for this trial and earlier releases stand in.

        Raises:
            ValueError: If the vector is not usable; nothing is stored or charged then.
            SpaceChangedError: If the trial was evaluated in another space.
            BudgetExceededError: If the release does not fit the budget; nothing is drawn.
            VaultError: If the vault fails; nothing is kept.
        """
        y, index = as_losses(losses), index or index_of(losses)
        with self._lock:
            began = self._mode is not None
            with self._transaction() as tx:
                self._admit(tx, space, y, constants)
                self._check_labels(tx, len(y), index)
                value, label, due = self._record(tx, trial, params, y)
            if due:
                self._settle()
            plan = self.plan
            if not began and plan is not None:
                plan.warn_if_noise_dominates()
            self._warn_if_at_an_end()
            return value, label

    def _warn_if_at_an_end(self) -> None:
        """Says once that released values cannot be told from an end of their range."""
        value_range = getattr(self.config, "value_range", None)
        if self._ends_told or self.plan is None or value_range is None:
            return
        noise = self.plan.value_noise
        end = end_of(self._values, noise, value_range, maximize=self.maximize)
        if end is not None:
            self._ends_told = True
            text = said_of(end, len(self._values), value_range)
            warnings.warn(text, UtilityWarning, stacklevel=3)

    def _admit(
        self, tx: Transaction, space: Space, y: Array, constants: Mapping[str, Any] | None
    ) -> None:
        """Refuses losses that do not fit the run; the first ones decide what it is."""
        self._sync(tx)
        self._check_space(space)
        if self._mode is None and self._frozen(tx) is None:
            _check_first(y)
        self._freeze(tx, space, PRIVATE, len(y))
        self._freeze_constants(tx, constants)
        self._check_private()

    def expect_records(self, labels: str | None) -> None:
        """Says whose losses this process tells, in which order.

        Clipping bounds what one record does to a release only as long as entry i of every vector
        is that record's.

        Args:
            labels: Their :func:`privbo_plugins.convert.fingerprint`; None says nothing.

        Raises:
            ValueError: If the run's records are others, or in another order.
        """
        with self._lock, self._transaction() as tx:
            self._compare_labels(tx, _LABELS, labels)
            self._labels = labels

    def _check_labels(self, tx: Transaction, n_records: int, index: str | None) -> None:
        """Refuses losses of other records; the first ones decide."""
        for kind, labels in ((_LABELS, self._labels), (_INDEX, index)):
            if labels is not None and int(labels.partition(":")[0]) != n_records:
                raise ValueError(_OTHER_NUMBER.format(n_records, labels.partition(":")[0]))
            if not self._compare_labels(tx, kind, labels) and labels is not None:
                tx.mark(kind, self._keyed(tx, labels))

    def _compare_labels(self, tx: Transaction, kind: str, labels: str | None) -> bool:
        """Whether the run knows labels of a kind, which are then the same.

        Raises:
            ValueError: If they are not.
        """
        known = () if labels is None else tx.marks(kind)
        if known and labels is not None and known != (self._keyed(tx, labels),):
            raise ValueError(_OTHER_RECORDS)
        return bool(known)

    @staticmethod
    def _keyed(tx: Transaction, labels: str) -> str:
        """A digest that says nothing to whoever has not got the vault."""
        if not tx.any_mark(_KEY_OF_LABELS):
            tx.mark(_KEY_OF_LABELS, secrets.token_hex(32))
        return hmac.digest(tx.marks(_KEY_OF_LABELS)[0].encode(), labels.encode(), "sha256").hex()

    def tell_plain(
        self, trial: str, params: Mapping[str, Any], space: Space, value: float
    ) -> None:
        """Takes the plain float of an unprotected trial: the search goes on without any claim.

        A trial of a private run that returns a plain float is marked and otherwise ignored.
        """
        with self._lock:
            # In a transaction of its own: whatever fails below, the mark stays.
            self.mark_unprotected("trials returned plain floats instead of per-record losses")
            with self._transaction() as tx:
                self._sync(tx)
                same = self._space is None or self._space == space
                if same and self._mode != PRIVATE:
                    self._freeze(tx, space, PLAIN, 1)
                if not same or self._mode == PRIVATE:
                    tx.fail(trial)
                    return
                _, _, due = self._record(tx, trial, params, np.array([float(value)]))
                self._count_plain(tx)
            if due:
                self._settle()

    def _check_space(self, space: Space) -> None:
        if self._space is not None and self._space != space:
            raise SpaceChangedError(_space_changed(self._space, space))

    def _check_private(self) -> None:
        if self._mode == PLAIN:
            raise PrivacyError(
                "This run started with plain floats and is unprotected; per-record losses cannot "
                "make it private. Start a new study for them."
            )

    def _record(
        self, tx: Transaction, trial: str, params: Mapping[str, Any], y: Array
    ) -> tuple[float, str, bool]:
        """Value to publish, what it is, and whether the current step is complete now."""
        if len(y) != self._n_records:
            raise ValueError(
                f"Every trial must return one value for each of the same {self._n_records} "
                "validation records, in the same order; this vector has another length. Return "
                "NaN for a record that cannot be scored instead of dropping it. Nothing was "
                "stored or charged."
            )
        row = tx.trial(trial)
        if row is not None and not self._shows(row, params):
            raise PrivacyError(ANOTHER_POINT)
        if row is not None and row.state == "done":
            return _published(row.value), _label(row.role, row.step, False), False
        algorithm = self._known_algorithm()
        x = self._known_space().encode(params)
        role, step = self._unasked(tx, trial, x) if row is None else (row.role, row.step)
        query = algorithm.value_query(trial, role, step, x)
        release = None if query is None else self._release(tx, query, _blocks_of(y))
        if row is not None and row.value is not None:  # told, and its losses purged under way
            value = row.value
        else:
            value = algorithm.shown_value(release, role, step, x)
        wanted = algorithm.wants_losses(role, step)
        if wanted:
            tx.put_losses(trial, y)
        tx.finish(trial, x, value)
        due = wanted and self._complete(tx.step_trials(step))
        return value, _label(role, step, query is None), due

    def _shows(self, row: TrialRow, params: Mapping[str, Any]) -> bool:
        """Whether parameters are those that a trial was told at, if it was told."""
        if row.value is None or self._space is None:
            return True
        try:
            x = self._space.encode(params)
        except (KeyError, ValueError):  # one is missing, or a choice is none
            return False
        return np.allclose(x, row.x, rtol=0.0, atol=_SAME)

    def _unasked(self, tx: Transaction, trial: str, x: Array) -> tuple[str, int]:
        """Role of a trial that the host chose: a start while the start is open, else outside."""
        role, step = self._known_algorithm().phase
        if role != START:
            role, step = OUTSIDE, OUTSIDE_STEP
        slot = len(tx.step_trials(step)) + 10**6  # clear of the slots that are handed out
        tx.new_trial(trial, role, step, slot, x)
        return role, step

    # Releasing ------------------------------------------------------------------------------

    def _settle(self) -> None:
        """Releases the current step if its batch is complete, and deletes what it used."""
        with self._transaction() as tx:
            self._sync(tx)
            algorithm = self._known_algorithm()
            role, step = algorithm.phase
            if role != STEP or self._n_records is None:
                return
            trials, X = tx.done_points(step)
            held = set(tx.held())
            gone = [t for t in trials if t not in held]
            for trial in gone:  # purged under way: their slots are evaluated again
                tx.reopen(trial)
            queries = [] if gone else algorithm.step_queries(trials, X, held)
            for query in queries:
                self._release(tx, query, tx.blocks(query.trials, self._n_records))
            if queries:
                keep = {t for t, _ in algorithm.remembered_after(queries[-1])}
                tx.drop_losses([t for t in queries[-1].trials if t not in keep])

    def _release(self, tx: Transaction, query: Query, blocks: Iterable[Array]) -> Release:
        """What a query releases; or what it released before."""
        fresh = tx.released(query.kind, query.key) is None
        scale = gaussian_scale(query.sensitivity, query.mu)
        order = Order(
            query.kind,
            query.key,
            charge=lambda tx: self._charge(tx, query, scale),
            draw=lambda noise: self._draw(query, blocks, scale, noise),
            shelf=PAYLOADS,
        )
        release = _release_of(query.kind, query.key, self._outlet.release(tx, order))
        if fresh:
            self._fresh.append(release)
        return release

    def _charge(self, tx: Transaction, query: Query, scale: float) -> None:
        if self._mode != PRIVATE:
            return
        charge = Charge(query.kind, query.key, query.mu, query.sensitivity, scale)
        check_budget(self.config.mu, self.run.spent.of(tx, VALIDATION).mu2, charge)
        tx.charge(charge)
        if math.isinf(query.mu):
            tx.mark_unprotected("mu is infinite, so no noise is added")

    def _draw(
        self, query: Query, blocks: Iterable[Array], scale: float, noise: NoiseSource
    ) -> dict[str, Any]:
        with np.errstate(all="ignore"):  # a warning would tell that some record is extreme
            exact = query.statistic(blocks)
        private = self._mode == PRIVATE and not math.isinf(query.mu)
        noisy = (noise.add_gaussian(exact, scale) if private else exact) + query.offset
        return {"values": noisy.tolist(), "meta": dict(query.meta)}

    def charge_training(self, attempt: str) -> None:
        """Charges one training to the training records, before it happens.

        Args:
            attempt: Names this training and no other: every retry of a trial trains anew. Saying
                it again charges nothing.

        Raises:
            BudgetExceededError: If as many were charged as the plan allows; nothing is then.
        """
        mu = self.config.training_mu
        if mu is None:
            return
        with self._lock, self._transaction() as tx:
            if tx.charged(TRAINING, attempt):
                return
            self._sync(tx)
            most = most_trainings(self.plan)
            if self.run.spent.of(tx, TRAINING).mu2 > (most - 0.5) * mu**2:
                raise BudgetExceededError(
                    f"{most} trainings were charged to the training records, as many as the plan "
                    f"allows: {ATTEMPTS} for each of its trials, models that are fitted at the "
                    "end included. Trials end without a release, or models are fitted, too often; "
                    "start a new run once that is mended. Nothing was charged."
                )
            tx.charge(Charge(TRAINING, attempt, mu, 0.0, 0.0, TRAINING))

    def enter(self, trial: str) -> tuple[float | None, Array | None]:
        """Records that a trial runs in the private channel.

        Returns:
            Its stored value if it was told before, and the point it was handed, if any.
        """
        with self._lock, self._transaction() as tx:
            tx.mark(_ENTERED, trial)
            row = tx.trial(trial)
        return (None, None) if row is None else (row.value, row.x)

    def entered(self, trial: str) -> bool:
        """Whether :meth:`enter` was called for a trial."""
        with self._lock, self._transaction() as tx:
            return tx.has_mark(_ENTERED, trial)

    def anybody_entered(self) -> bool:
        """Whether :meth:`enter` was called for any trial."""
        with self._lock, self._transaction() as tx:
            return tx.any_mark(_ENTERED)

    def give_back(self, living: Collection[str]) -> list[str]:
        """Gives back the slots of trials that the host no longer knows; returns their keys.

        Args:
            living: Trials that are still expected to tell.
        """
        with self._lock, self._transaction() as tx:
            lost = [trial for trial in tx.out() if trial not in living]
            for trial in lost:
                tx.fail(trial)
        return lost

    def claim(self) -> None:
        """Records that the host has remembered the run."""
        with self._lock, self._transaction() as tx:
            tx.mark(_CLAIMED, "by the host")

    def claimed(self) -> bool:
        """Whether :meth:`claim` was called by anyone."""
        with self._lock, self._transaction() as tx:
            return tx.any_mark(_CLAIMED)

    # Looking --------------------------------------------------------------------------------

    def mark_unprotected(self, reason: str) -> None:
        """Records for ever that nothing may be claimed for this run."""
        with self._lock, self._transaction() as tx:
            tx.mark_unprotected(reason)

    def note(self, text: str) -> None:
        """Records a fact that the guarantee reports."""
        with self._lock, self._transaction() as tx:
            tx.mark(NOTE, text)

    def vouch(self, operation: str, trial: str) -> None:
        """Records that the caller declared what an operation of a trial was given public."""
        with self._lock, self._transaction() as tx:
            tx.mark(NOTE, _VOUCHED.format(operation))
            tx.mark(_VOUCHED_FOR, f"{operation}/{trial}")

    def vouched_of(self, trial: str) -> frozenset[str]:
        """Operations of one trial whose values were declared public; looks through all marks."""
        mark = f"/{trial}"
        with self._lock, self._transaction() as tx:
            told = tx.marks_ending(_VOUCHED_FOR, mark)
        return frozenset(text.removesuffix(mark) for text in told)

    def vouched_among(self, marks: Iterable[str]) -> frozenset[str]:
        """Those of some operations, as operation/trial, that were declared public."""
        with self._lock, self._transaction() as tx:
            return tx.those_marked(_VOUCHED_FOR, marks)

    def vouched(self) -> frozenset[str]:
        """What was declared public, as operation/trial."""
        with self._lock, self._transaction() as tx:
            return frozenset(tx.marks(_VOUCHED_FOR))

    def published_value(self, trial: str) -> float | None:
        """What a trial may show in the host's storage; None if it was never told."""
        with self._lock, self._transaction() as tx:
            row = tx.trial(trial)
        return None if row is None else row.value

    def drawn(self, trial: str) -> float | None:
        """The noisy draw behind a trial's published value, where that is an estimate.

        None where the trial has no release of its own, or publishes it as it is.
        """
        return self.drawn_of([trial]).get(trial)

    def all_drawn(self) -> dict[str, float]:
        """:meth:`drawn` of every trial that has one."""
        with self._lock, self._transaction() as tx:
            shown, rows = tx.published(), tx.releases_after(0)
        draws = {
            told["meta"].get("trial", key): float(told["values"][0])
            for _, kind, key, told in rows
            if kind == "value" or "trial" in told["meta"]
        }
        return {t: draw for t, draw in draws.items() if t in shown and shown[t][2] != draw}

    def drawn_of(self, trials: Iterable[str]) -> dict[str, float]:
        """:meth:`drawn` of those of some trials that have one."""
        found = {}
        with self._lock, self._transaction() as tx:
            last = tx.released(FINAL, FINAL) or {"meta": {}}
            for trial in trials:
                row, own = tx.trial(trial), tx.released("value", trial)
                if own is None and last["meta"].get("trial") == trial:
                    own = last
                if own is not None and row is not None and own["values"][0] != row.value:
                    found[trial] = float(own["values"][0])
        return found

    def told_elsewhere(self, params: Mapping[str, Mapping[str, Any]]) -> list[str]:
        """Those of some trials, given by their parameters, that were told at others."""
        with self._lock, self._transaction() as tx:
            rows = {trial: tx.trial(trial) for trial in params}
        told = {trial: row for trial, row in rows.items() if row is not None}
        return [trial for trial, row in told.items() if not self._shows(row, params[trial])]

    def published_of(self, trials: Iterable[str]) -> dict[str, tuple[str, int, float]]:
        """(role, step, published value) of those of some trials that were told."""
        with self._lock, self._transaction() as tx:
            rows = {trial: tx.trial(trial) for trial in trials}
        told = {trial: row for trial, row in rows.items() if row is not None}
        return {t: (r.role, r.step, r.value) for t, r in told.items() if r.value is not None}

    def n_told(self) -> int:
        """Number of trials that were told."""
        with self._lock, self._transaction() as tx:
            return tx.told()

    def published(self) -> dict[str, tuple[str, int, float]]:
        """(role, step, published value) of every trial that was told."""
        with self._lock, self._transaction() as tx:
            return tx.published()

    def ledger(self) -> list[Charge]:
        """Every charge so far."""
        with self._lock, self._transaction() as tx:
            return tx.charges()

    def releases(self) -> list[Release]:
        """Every release so far, in order."""
        with self._lock, self._transaction() as tx:
            rows = tx.releases_after(0)
        return [_release_of(kind, key, payload) for _, kind, key, payload in rows]

    def held_losses(self) -> list[str]:
        """Trials whose raw losses the vault still holds."""
        with self._lock, self._transaction() as tx:
            return tx.held()

    def purge(self) -> None:
        """Deletes every raw loss of the run; ledger and releases stay."""
        with self._lock, self._transaction() as tx:
            tx.purge()

    def recommendation(self) -> dict[str, Any]:
        """Parameters that the releases so far recommend.

        Raises:
            ValueError: If nothing has been released yet.
        """
        return self._known_space().decode(self.recommended_point())

    def recommended_point(self) -> Array:
        """The same as a point, shape (D,).

        Raises:
            ValueError: If nothing has been released yet.
        """
        with self._lock:
            self.refresh()
            return self._known_algorithm().recommendation()

    def history(self) -> History:
        """Everything the run has released, for pictures; plain floats are no releases."""
        with self._lock:
            self.refresh()
            releases = self.releases()
            mu = {(c.kind, c.key): c.mu for c in self.ledger()}
            squares = np.cumsum([mu.get((r.kind, r.key), 0.0) ** 2 for r in releases])
            values = [r for r in releases if r.kind in ("value", "final") and not self.plain]
            space, path = self._known_space(), self._known_algorithm().path
            return History(
                values=[(r.meta["role"], r.meta["step"], r.values[0]) for r in values],
                value_noise=0.0 if self.plan is None else self.plan.value_noise,
                names=space.names,
                path=np.array(path),
                centres=[space.decode(x) for x in path],
                spent=np.sqrt(squares).tolist(),
                budget=self.config.mu,
                **self._told_where(values),
            )

    def _told_where(self, values: Sequence[Release]) -> dict[str, Any]:
        """Where values were released and what is recommended, as points of a model."""
        if not values or not all("x" in release.meta for release in values):
            return {}  # an older version stored none
        points = np.array([release.meta["x"] for release in values], dtype=float)
        aim = self._known_algorithm().recommendation()[None]
        embed = self._known_space().embed
        return {"places": embed(points), "aim": embed(aim)[0]}

    def status(self, guarantee: Guarantee) -> dict[str, Any]:
        """Where the run stands, JSON-ready (:func:`privbo_plugins.status.status`).

        Args:
            guarantee: What the host allows to claim.
        """
        with self._lock:
            self.refresh()
            return of_records(
                guarantee, self.plan, self.n_told(),
                finished=self.finished, recommendation=self._recommends(),
            )  # fmt: skip

    def _recommends(self) -> bool:
        try:
            self._known_algorithm().recommendation()
        except (PrivacyError, ValueError):  # nothing has been released yet
            return False
        return True

    def guarantee(self, reasons: Sequence[str] = (), *, failed: int = 0) -> Guarantee:
        """What may be claimed for this run, from the ledger and the marks.

        Args:
            reasons: Why the host says that nothing may be claimed at the moment.
            failed: Failed and pruned trials that the host knows of; the vault may know fewer.
        """
        with self._lock, self._transaction() as tx:
            self._sync(tx)
            validation, training = (self.run.spent.of(tx, who) for who in (VALIDATION, TRAINING))
            reasons = [*tx.marks(UNPROTECTED), *reasons]
            notes, failed = list(tx.marks(NOTE)), max(failed, tx.count("failed"))
            frozen = self._frozen(tx) or {"mode": None, "n_records": None}
        if math.isinf(self.config.mu) and not reasons:
            reasons.append("mu is infinite, so no noise is added")
        if failed:
            notes.append(
                f"{failed} trial(s) failed or were pruned; whether a trial does so is not covered"
            )
        words = self._kind.words(self.config, self.plan)
        return Guarantee(
            protected=not reasons,
            mechanism=(
                "Gaussian noise (OpenDP's cryptographic generator, seeded from the operating "
                f"system's entropy) on {words.statistics}; every release is post-processed only"
            ),
            neighbours="replace-one (two data sets that differ in one validation record)",
            population="validation records",
            n_records=frozen["n_records"] if frozen["mode"] == PRIVATE else None,
            mu=self.config.mu,
            mu_spent=math.sqrt(validation.mu2),
            n_releases=validation.n,
            parameters={**getattr(self.config, "asked", {}), **words.parameters},
            not_covered=(*texts_of("records")["not_covered"], *words.not_covered),
            reasons=tuple(reasons),
            notes=tuple(notes),
            trainings=_trainings(training, self.config, self.plan),
        )


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


def _release_of(kind: str, key: str, payload: Mapping[str, Any]) -> Release:
    return Release(kind, key, tuple(payload["values"]), payload["meta"])


def most_trainings(plan: CentralPlan | None) -> int:
    """How many trainings a run may charge: a trial that ends without a release trains again."""
    return _UNPLANNED_TRAININGS if plan is None else ATTEMPTS * plan.n_trials


def _trainings(
    training: Total, config: CentralConfig, plan: CentralPlan | None
) -> tuple[tuple[float, int, float], ...]:
    """The declared cost of one training, how many were charged, and how many can be."""
    if config.training_mu is None:
        return ()
    most = math.inf if plan is None else max(most_trainings(plan), training.n)
    return ((config.training_mu, training.n, float(most)),)


def _check_first(y: Array) -> None:
    if len(y) == 1:
        raise ValueError(
            "The first vector has one entry, so there would be one validation record: this looks "
            "like an average. Return one value per validation record, before averaging. Nothing "
            "was stored or charged."
        )


def _published(value: float | None) -> float:
    return math.nan if value is None else value


def _label(role: str, step: int, carried: bool) -> str:
    place = role if step < 0 else f"{role} {step}"
    return f"{place}, carried" if carried else place


def _blocks_of(y: Array) -> Iterable[Array]:
    for start in range(0, len(y), BLOCK):
        yield y[start : start + BLOCK, None]


def _space_changed(old: Space | None, new: Space) -> str:
    known = "" if old is None else f" over {', '.join(old.names)}"
    return (
        f"The search space of a private study{known} is fixed by its first trial (or by "
        f"search_space=); this trial evaluated another one over {', '.join(new.names)}. Every "
        "trial must suggest the same parameters with the same ranges: one that applies to some "
        "choices only is suggested always and used where it applies. Nothing was stored or "
        "charged; start a new study for a new space (on the same records its mu adds to this "
        "one's: squares add up)."
    )


def _check_same_settings(stored: Mapping[str, Any], given: Mapping[str, Any]) -> None:
    every = {**given["config"], **stored["config"]}  # a later version may have stored more
    differing = [k for k in every if stored["config"].get(k) != given["config"].get(k)]
    if stored["algorithm"] != given["algorithm"]:
        differing.append("algorithm")
    if stored["maximize"] != given["maximize"]:
        differing.append("direction")
    if differing:
        told = ", ".join(
            f"{k}={stored['config'].get(k)!r} then and {given['config'].get(k)!r} now"
            if k in every
            else k
            for k in differing
        )
        raise ValueError(
            f"This run was started with other settings ({told}). A budget cannot change under "
            "way: use the same settings, or start a new study (on the same records its mu adds to "
            "this one's: squares add up)."
        )
