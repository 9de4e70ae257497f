"""Per-record losses: an algorithm, and the statistics of the vault's losses that it may release.

The session says which statistics are to be released and what they cost;
:mod:`privbo_plugins.store.release` releases them. Only a committed release is ever handed to a
host. After a crash the next call finds either the committed release, and replays it, or no trace
of the transaction at all, and makes it anew.
"""

from __future__ import annotations

import math
import secrets
import threading
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, NamedTuple

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
    VaultError,
)
from privbo_plugins.plots import History
from privbo_plugins.privacy.guarantee import Guarantee
from privbo_plugins.privacy.ledger import TRAINING, VALIDATION, Charge, check_budget
from privbo_plugins.privacy.mechanisms import gaussian_scale
from privbo_plugins.privacy.source import NoiseSource
from privbo_plugins.privacy.words import texts_of
from privbo_plugins.sessions.clipping_warning import warn_at_an_end
from privbo_plugins.sessions.record_labels import RecordLabels
from privbo_plugins.spaces import Space
from privbo_plugins.status import status
from privbo_plugins.store.release import PAYLOADS, Order, Outlet
from privbo_plugins.store.run import ENTERED, Run, Total, begin_or_join
from privbo_plugins.store.transaction import BLOCK, NOTE, UNPROTECTED, Transaction, TrialRow
from privbo_plugins.store.vault import Vault

Array = NDArray[np.float64]

PRIVATE, PLAIN = "private", "plain"
_UNPLANNED_TRAININGS = 100
"""So many trainings are charged before the first vector of losses has made a plan."""
_SAME = 1e-9
"""Encoded parameters that are so near are the same."""
_ENOUGH_FAILURES = 2
"""Where so many trials of a step failed, no further one is tried: another point takes over."""


class Published(NamedTuple):
    """What a trial may show.

    Attributes:
        value: The release, or an estimate from all releases.
        role: What the trial was for.
        step: Its step; negative where it belongs to none.
        draw: The noisy draw behind a value that is an estimate; None where there is none.
        carried: Whether the plan has no release for this trial, and earlier ones stand in.
    """

    value: float
    role: str
    step: int
    draw: float | None = None
    carried: bool = False

    @property
    def label(self) -> str:
        """Role and step, as hosts show them."""
        return self.role if self.step < 0 else f"{self.role} {self.step}"


@dataclass
class _Learnt:
    """An algorithm, and how far it has followed the run's releases.

    Attributes:
        space: Where it searches.
        algorithm: Has a plan once the first vector has fixed the number of records.
        mode: :data:`PRIVATE` or :data:`PLAIN`; None before the first vector.
        n_records: Length of every vector; None likewise.
        seq: Number of the last release that it has observed.
        values: Released values, in order.
        over: Whether a run of plain floats, which has no plan, had as many trials as were asked.
    """

    space: Space
    algorithm: CentralAlgorithm
    mode: str | None = None
    n_records: int | None = None
    seq: int = 0
    values: list[float] = field(default_factory=list)
    over: bool = False

    def observe(self, seq: int, release: Release) -> None:
        """Learns one release."""
        self.algorithm.observe(release)
        self.seq = seq
        if release.kind in ("value", FINAL):
            self.values.append(release.values[0])

    def complete(self, rows: Iterable[TrialRow]) -> bool:
        """Checks whether the current step can be released (after a crash, by any worker)."""
        algorithm = self.algorithm
        if algorithm.phase[0] != STEP or algorithm.plan is None:
            return False
        return algorithm.ready(sum(row.state == "done" for row in rows))

    def at(self, row: TrialRow, params: Mapping[str, Any]) -> bool:
        """Checks whether parameters are those of a trial with a value."""
        if row.value is None:
            return True
        try:
            x = self.space.encode(params)
        except (KeyError, ValueError):  # one is missing, or a choice is none
            return False
        return np.allclose(x, row.x, rtol=0.0, atol=_SAME)


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
        self._learnt: _Learnt | None = None
        self._fresh: list[Release] = []
        self._constants: dict[str, Any] | None = None
        self.labels = RecordLabels(run)
        self._end_shown = False

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

    @contextmanager
    def _transaction(self) -> Iterator[Transaction]:
        """A transaction of one thread; its releases are learnt once it is committed.

        What it fixed in memory is forgotten with it if it fails.
        """
        with self._lock:
            before, self._fresh = self._learnt, []
            try:
                with self.run.transaction() as tx:
                    yield tx
                for release in self._fresh:
                    self._known().observe(self._known().seq + 1, release)
            except BaseException:
                self._learnt = before
                raise

    # Space and plan -------------------------------------------------------------------------

    @property
    def space(self) -> Space | None:
        """The search space, once known."""
        return None if self._learnt is None else self._learnt.space

    @property
    def n_records(self) -> int | None:
        """Length of each vector, once known."""
        return None if self._learnt is None else self._learnt.n_records

    @property
    def plan(self) -> CentralPlan | None:
        """The plan, once the number of records is known; None for a plain-float run."""
        if self._learnt is None or self._learnt.mode != PRIVATE:
            return None
        plan: CentralPlan | None = self._learnt.algorithm.plan
        return plan

    @property
    def plain(self) -> bool:
        """Checks whether this is a run of plain floats, for which nothing is claimed."""
        return self._learnt is not None and self._learnt.mode == PLAIN

    @property
    def finished(self) -> bool:
        """True once the plan of a private run is used up (as of the last ask or tell).

        A run of plain floats is over after ``n_trials``, if they were given.
        """
        known = self._learnt
        if known is None or known.mode is None:
            return False
        return known.over if self.plain else known.algorithm.finished

    def fixed(self) -> tuple[dict[str, Any] | None, dict[str, Any] | None]:
        """Descriptions of the parameters that vary, and of those that do not, by name.

        None where the run has not fixed them yet.
        """
        with self._lock:
            space = None if self.space is None else self.space.to_dict()
            if space is None or self._constants is None:
                with self._transaction() as tx:
                    frozen = _frozen(tx) or {}
                space = frozen.get("space") if space is None else space
                self._constants = frozen.get("constants")
            return space, self._constants

    def set_space(self, space: Space) -> None:
        """Fixes the search space.

        Raises:
            SpaceChangedError: If it differs from the run's.
        """
        with self._lock:
            if self._learnt is None:
                with self._transaction() as tx:
                    self._begin(space)
                    self._sync(tx)
            elif self._learnt.space != space:
                raise SpaceChangedError(_space_changed(self._learnt.space, space))

    def refresh(self) -> None:
        """Reads what other workers have released."""
        with self._transaction() as tx:
            self._sync(tx)

    def _begin(self, space: Space, mode: str | None = None, n_records: int = 0) -> None:
        """Makes an algorithm that knows nothing yet; with a plan if the first vector is known."""
        how: dict[str, Any] = {"seed": self.seed, "maximize": self.maximize}
        if mode is None:
            self._learnt = _Learnt(space, self._kind(self.config, space, **how))
            return
        config = self.config if mode == PRIVATE else self.config.plain()
        plan = self._kind.make_plan(config, space, n_records)
        self._learnt = _Learnt(space, self._kind(config, space, **how, plan=plan), mode, n_records)

    def _sync(self, tx: Transaction) -> None:
        """Brings the algorithm up to the committed releases."""
        if self._learnt is None:
            return  # a resumed run whose host has not told the space yet: nothing to learn with
        frozen = _frozen(tx) if self._learnt.mode is None else None
        if frozen is not None:
            if frozen["space"] != self._learnt.space.to_dict():
                raise SpaceChangedError(_space_changed(None, self._learnt.space))
            self._begin(self._learnt.space, frozen["mode"], frozen["n_records"])
        self.run.follow(tx)
        for seq, kind, key, payload in tx.releases_after(self._learnt.seq):
            self._learnt.observe(seq, _release_of(kind, key, payload))
        if self.plain:
            self._learnt.over = tx.told() >= (self.config.n_trials or math.inf)

    def _known(self) -> _Learnt:
        if self._learnt is None:
            raise PrivacyError("The search space is not known yet.")
        return self._learnt

    # Asking ---------------------------------------------------------------------------------

    def ask(self, trial: str) -> Proposal:
        """A point for a trial; the same one if the trial asks again.

        Raises:
            PrivacyError: If the search space is not known yet.
            VaultError: If the vault fails.
        """
        proposal = self.ask_planned(trial, beyond=True)
        if proposal is None:
            raise PrivacyError("The run had no point to propose.")
        return proposal

    def ask_planned(self, trial: str, *, beyond: bool = False) -> Proposal | None:
        """As :meth:`ask`, but None while every place of the current step is taken.

        For hosts that can wait: the plan then needs no more trials than it says.

        Args:
            trial: The trial's key.
            beyond: Whether a trial that the plan has no place for gets a point as well.
        """
        with self._lock:
            while True:
                with self._transaction() as tx:
                    self._sync(tx)
                    known, row = self._known(), tx.trial(trial)
                    if row is not None and row.state != "failed":
                        return Proposal(row.role, row.step, row.slot, row.x)
                    rows = tx.trials(step=known.algorithm.phase[1])
                    if not known.complete(rows):
                        taken = sum(row.state in ("out", "done") for row in rows)
                        if not beyond and taken >= known.algorithm.batch_capacity:
                            return None
                        if row is not None:  # the host runs a failed trial again under its name
                            tx.forget(trial)
                        return self._assign(tx, trial, rows)
                self._settle()

    def _assign(self, tx: Transaction, trial: str, rows: Sequence[TrialRow]) -> Proposal:
        """Hands the first open slot of the current step to a trial."""
        taken = {row.slot for row in rows if row.state in ("out", "done")}
        failed = Counter(row.slot for row in rows if row.state == "failed")
        taken |= {slot for slot, times in failed.items() if times >= _ENOUGH_FAILURES}
        slot = next(i for i in range(len(taken) + 1) if i not in taken)
        others = [row for row in rows if row.trial != trial]
        points = {s: [row.x for row in others if row.state == s] for s in ("out", "failed")}
        proposal = self._known().algorithm.propose(slot, points["out"], points["failed"])
        tx.new_trial(trial, proposal.role, proposal.step, proposal.slot, proposal.x)
        return proposal

    def place(self, trial: str, x: Array) -> None:
        """Enters a trial at a point that the host chose, shape (D,), before its losses are known.

        It counts as a start while the start is open, and as outside the plan afterwards.
        """
        with self._transaction() as tx:
            self._sync(tx)
            if tx.trial(trial) is None:
                self._unasked(tx, trial, self._known().space.snap(x))

    def _unasked(self, tx: Transaction, trial: str, x: Array) -> tuple[str, int]:
        """Role of a trial that the host chose: a start while the start is open, else outside."""
        role, step = self._known().algorithm.phase
        if role != START:
            role, step = OUTSIDE, OUTSIDE_STEP
        slot = tx.count(step=step) + 10**6  # clear of the slots that are handed out
        tx.new_trial(trial, role, step, slot, x)
        return role, step

    def fail(self, trial: str) -> None:
        """Gives the slot of a trial back that failed or was pruned."""
        with self._transaction() as tx:
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
    ) -> Published:
        """Takes a trial's per-record losses and returns what may be published of them.

        A trial that has a stored release gets it again; new losses are not looked at.

        Args:
            trial: The trial's key.
            params: The parameters it really evaluated.
            space: The space it really evaluated in.
            losses: One value a record, shape (n_records,).
            constants: Descriptions of the parameters that do not vary, JSON-ready; the run's
                first ones are kept (see :meth:`fixed`). None if the host stores none.
            index: Fingerprint of the losses' own labels
                (:func:`privbo_plugins.convert.index_of`), where they have lost them on the way.

        Raises:
            ValueError: If the vector is not usable; nothing is stored or charged then.
            SpaceChangedError: If the trial was evaluated in another space.
            BudgetExceededError: If the release does not fit the budget; nothing is drawn.
            VaultError: If the vault fails; nothing is kept.
        """
        y, index = as_losses(losses), index or index_of(losses)
        with self._lock:
            began = self.plan is not None
            with self._transaction() as tx:
                self._admit(tx, space, PRIVATE, len(y), constants)
                if self.plain:
                    raise PrivacyError(_STARTED_PLAIN)
                self.labels.check(tx, len(y), index)
                told, due = self._record(tx, trial, params, y)
            if due:
                self._settle()
            if not began and self.plan is not None:
                self.plan.warn_if_noise_dominates()
            if not self._end_shown and self.plan is not None:
                self._end_shown = warn_at_an_end(
                    self._known().values, self.plan.value_noise, self.config, self.maximize
                )
            return told

    def tell_plain(
        self, trial: str, params: Mapping[str, Any], space: Space, value: float
    ) -> None:
        """Takes the plain float of an unprotected trial: the search goes on without any claim.

        A trial of a private run that returns a plain float is marked and otherwise ignored.
        """
        with self._lock:
            # In a transaction of its own: if anything fails below, the mark stays.
            self.run.mark_unprotected("trials returned plain floats instead of per-record losses")
            with self._transaction() as tx:
                same = self.space is None or self.space == space
                if same:
                    self._admit(tx, space, PLAIN, 1)
                if not same or not self.plain:
                    tx.fail(trial)
                    return
                _, due = self._record(tx, trial, params, np.array([float(value)]))
                self._known().over = tx.told() >= (self.config.n_trials or math.inf)
            if due:
                self._settle()

    def _admit(
        self,
        tx: Transaction,
        space: Space,
        mode: str,
        n_records: int,
        constants: Mapping[str, Any] | None = None,
    ) -> None:
        """Refuses another space than the run's; the first vector fixes n, and with it the plan.

        The first trial that reports constants fixes them.
        """
        self._sync(tx)
        if self._learnt is None:
            self._begin(space)
            self._sync(tx)
        elif self._learnt.space != space:
            raise SpaceChangedError(_space_changed(self._learnt.space, space))
        if self._known().mode is None:
            if mode == PRIVATE and n_records == 1:
                raise ValueError(_AVERAGE)
            self._begin(space, mode, n_records)  # raises before anything is written
            tx.freeze({"space": space.to_dict(), "mode": mode, "n_records": n_records})
        if constants is not None and self._constants is None:
            frozen = _frozen(tx) or {}
            if "constants" not in frozen:
                tx.freeze({**frozen, "constants": dict(constants)})

    def _record(
        self, tx: Transaction, trial: str, params: Mapping[str, Any], y: Array
    ) -> tuple[Published, bool]:
        """Releases and stores a trial; also tells whether the current step is complete now."""
        known = self._known()
        if len(y) != known.n_records:
            raise ValueError(_OTHER_LENGTH.format(known.n_records))
        row = tx.trial(trial)
        if row is not None and not known.at(row, params):
            raise PrivacyError(ANOTHER_POINT)
        if row is not None and row.state == "done":
            return _shown(tx, row), False
        algorithm, x = known.algorithm, known.space.encode(params)
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
        due = wanted and known.complete(tx.trials(step=step))
        own = release is not None and release.meta.get("trial", release.key) == trial
        draw = release.values[0] if release is not None and own else None
        carried = query is None
        return Published(value, role, step, None if draw == value else draw, carried), due

    # Releasing ------------------------------------------------------------------------------

    def _settle(self) -> None:
        """Releases the current step if its batch is complete, and deletes what it used."""
        with self._transaction() as tx:
            self._sync(tx)
            known = self._known()
            role, step = known.algorithm.phase
            if role != STEP or known.n_records is None:
                return
            done = [row for row in tx.trials(step=step) if row.state == "done"]
            held = set(tx.held())
            gone = [row.trial for row in done if row.trial not in held]
            for trial in gone:  # purged under way: their slots are evaluated again
                tx.reopen(trial)
            trials, X = [row.trial for row in done], [row.x for row in done]
            queries = [] if gone else known.algorithm.step_queries(trials, X, held)
            for query in queries:
                self._release(tx, query, tx.blocks(query.trials, known.n_records))
            if queries:
                keep = {t for t, _ in known.algorithm.remembered_after(queries[-1])}
                tx.drop_losses([t for t in queries[-1].trials if t not in keep])

    def _release(self, tx: Transaction, query: Query, blocks: Iterable[Array]) -> Release:
        """Returns what a query releases; or what it released before."""
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
        if self.plain:
            return
        charge = Charge(query.kind, query.key, query.mu, query.sensitivity, scale)
        check_budget(self.config.mu, self.run.spent.of(tx, VALIDATION).mu2, charge)
        tx.charge(charge)
        if math.isinf(query.mu):
            tx.mark(UNPROTECTED, "mu is infinite, so no noise is added")

    def _draw(
        self, query: Query, blocks: Iterable[Array], scale: float, noise: NoiseSource
    ) -> dict[str, Any]:
        with np.errstate(all="ignore"):  # a warning would tell that some record is extreme
            exact = query.statistic(blocks)
        private = not self.plain and not math.isinf(query.mu)
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
        with self._transaction() as tx:
            if tx.charged(TRAINING, attempt):
                return
            self._sync(tx)
            most = _most_trainings(self.plan)
            if self.run.spent.of(tx, TRAINING).mu2 > (most - 0.5) * mu**2:
                raise BudgetExceededError(
                    f"{most} trainings were charged to the training records, as many as the plan "
                    f"allows: {ATTEMPTS} for each of its trials, models that are fitted at the "
                    "end included. Trials end without a release, or models are fitted, too often; "
                    "start a new run once that is mended. Nothing was charged."
                )
            tx.charge(Charge(TRAINING, attempt, mu, 0.0, 0.0, TRAINING))

    def purge(self) -> None:
        """Deletes every raw loss of the run; ledger and releases stay."""
        with self._transaction() as tx:
            tx.drop_losses()

    # Looking --------------------------------------------------------------------------------

    def enter(self, trial: str) -> tuple[float | None, Array | None]:
        """Records that a trial runs in the private channel.

        Returns:
            Its stored value, if it has one, and the point that it was handed, if any.
        """
        with self._transaction() as tx:
            tx.mark(ENTERED, trial)
            row = tx.trial(trial)
        return (None, None) if row is None else (row.value, row.x)

    def published(self, trials: Iterable[str] | None = None) -> dict[str, Published]:
        """Returns what some trials may show in the host's storage; None for all with a value."""
        with self._transaction() as tx:
            if trials is not None:
                rows = [tx.trial(trial) for trial in trials]
                return {r.trial: _shown(tx, r) for r in rows if r and r.value is not None}
            draws = {
                told["meta"].get("trial", key): float(told["values"][0])
                for _, kind, key, told in tx.releases_after(0)
                if kind == "value" or "trial" in told["meta"]
            }
            return {
                row.trial: _with_draw(row, draws.get(row.trial))
                for row in tx.trials()
                if row.value is not None
            }

    def told_elsewhere(self, params: Mapping[str, Mapping[str, Any]]) -> list[str]:
        """Lists those of some trials, given by their parameters, that have a value at others."""
        with self._transaction() as tx:
            rows = [row for trial in params if (row := tx.trial(trial)) is not None]
        known = self._learnt
        return [r.trial for r in rows if known is not None and not known.at(r, params[r.trial])]

    def ledger(self) -> list[Charge]:
        """Every charge so far."""
        with self._transaction() as tx:
            return tx.charges()

    def releases(self) -> list[Release]:
        """Every release so far, in order."""
        with self._transaction() as tx:
            rows = tx.releases_after(0)
        return [_release_of(kind, key, payload) for _, kind, key, payload in rows]

    def recommendation(self) -> dict[str, Any]:
        """Parameters that the releases so far recommend.

        Raises:
            ValueError: If nothing has been released yet.
        """
        return self._known().space.decode(self.recommended_point())

    def recommended_point(self) -> Array:
        """The same as a point, shape (D,).

        Raises:
            ValueError: If nothing has been released yet.
        """
        with self._lock:
            self.refresh()
            return self._known().algorithm.recommendation()

    def history(self) -> History:
        """Everything the run has released, for pictures; plain floats are no releases."""
        with self._lock:
            self.refresh()
            releases, known = self.releases(), self._known()
            mu = {(c.kind, c.key): c.mu for c in self.ledger()}
            squares = np.cumsum([mu.get((r.kind, r.key), 0.0) ** 2 for r in releases])
            values = [r for r in releases if r.kind in ("value", FINAL) and not self.plain]
            space, path = known.space, known.algorithm.path
            places: dict[str, Any] = {}
            if values and all("x" in release.meta for release in values):
                points = np.array([release.meta["x"] for release in values], dtype=float)
                aim = space.embed(known.algorithm.recommendation()[None])[0]
                places = {"places": space.embed(points), "aim": aim}
            return History(
                values=[(r.meta["role"], r.meta["step"], r.values[0]) for r in values],
                value_noise=0.0 if self.plan is None else self.plan.value_noise,
                names=space.names,
                path=np.array(path),
                centres=[space.decode(x) for x in path],
                spent=np.sqrt(squares).tolist(),
                budget=self.config.mu,
                **places,
            )

    def status(self, guarantee: Guarantee) -> dict[str, Any]:
        """Returns where the run stands, JSON-ready (:func:`privbo_plugins.status.status`).

        Args:
            guarantee: What the host allows to claim.
        """
        try:
            self.recommended_point()
            recommends = True
        except (PrivacyError, ValueError):  # nothing has been released yet
            recommends = False
        planned = None if self.plan is None else self.plan.n_trials
        return status(
            guarantee,
            self.run.n_told(),
            planned,
            finished=self.finished,
            recommendation=recommends,
        )

    def guarantee(self, reasons: Sequence[str] = (), *, failed: int = 0) -> Guarantee:
        """Returns what may be claimed for this run, from the ledger and the marks.

        Args:
            reasons: Why the host says that nothing may be claimed at the moment.
            failed: Failed and pruned trials that the host knows of; the vault may know fewer.
        """
        with self._transaction() as tx:
            self._sync(tx)
            validation, training = (self.run.spent.of(tx, who) for who in (VALIDATION, TRAINING))
            reasons = [*tx.marks(UNPROTECTED), *reasons]
            notes, failed = list(tx.marks(NOTE)), max(failed, tx.count(state="failed"))
            frozen = _frozen(tx) or {"mode": None, "n_records": None}
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


_STARTED_PLAIN = (
    "This run started with plain floats and is unprotected; per-record losses cannot make it "
    "private. Start a new study for them."
)

_AVERAGE = (
    "The first vector has one entry, so there would be one validation record: this looks like an "
    "average. Return one value per validation record, before averaging. Nothing was stored or "
    "charged."
)

_OTHER_LENGTH = (
    "Every trial must return one value for each of the same {} validation records, in the same "
    "order; this vector has another length. Return NaN for a record that cannot be scored instead "
    "of dropping it. Nothing was stored or charged."
)


def _frozen(tx: Transaction) -> dict[str, Any] | None:
    """Returns what the run's first vector has fixed; None before it."""
    run = tx.run()
    if run is None:
        raise VaultError("The vault no longer holds this run.")
    return run[2]


def _release_of(kind: str, key: str, payload: Mapping[str, Any]) -> Release:
    return Release(kind, key, tuple(payload["values"]), payload["meta"])


def _shown(tx: Transaction, row: TrialRow) -> Published:
    """Returns what a trial that is done may show, with its own draw."""
    own = tx.released("value", row.trial)
    if own is None:
        last = tx.released(FINAL, FINAL)
        own = last if last is not None and last["meta"].get("trial") == row.trial else None
    return _with_draw(row, None if own is None else float(own["values"][0]))


def _with_draw(row: TrialRow, draw: float | None) -> Published:
    value = math.nan if row.value is None else row.value
    return Published(value, row.role, row.step, None if draw == value else draw)


def _most_trainings(plan: CentralPlan | None) -> int:
    """Limits the trainings of a run: a trial that ends without a release trains again."""
    return _UNPLANNED_TRAININGS if plan is None else ATTEMPTS * plan.n_trials


def _trainings(
    training: Total, config: CentralConfig, plan: CentralPlan | None
) -> tuple[tuple[float, int, float], ...]:
    """The declared cost of one training, how many were charged, and how many can be."""
    if config.training_mu is None:
        return ()
    most = math.inf if plan is None else max(_most_trainings(plan), training.n)
    return ((config.training_mu, training.n, float(most)),)


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
    then, now = ({**one["config"], "algorithm": one["algorithm"], "direction": one["maximize"]}
                 for one in (stored, given))  # fmt: skip
    differing = [name for name in {**now, **then} if then.get(name) != now.get(name)]
    if differing:
        told = ", ".join(
            f"{name}={then.get(name)!r} then and {now.get(name)!r} now"
            if name in stored["config"] or name in given["config"]
            else name
            for name in differing
        )
        raise ValueError(
            f"This run was started with other settings ({told}). A budget cannot change under "
            "way: use the same settings, or start a new study (on the same records its mu adds to "
            "this one's: squares add up)."
        )
