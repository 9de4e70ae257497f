"""Per-record losses: an algorithm, and the statistics of the vault's losses that it may release.

The session says which statistics are to be released and what they cost;
:mod:`privbo_plugins.store.release` releases them. Only a committed release is ever handed to a
host. After a crash the next call finds either the committed release, and replays it, or no trace
of the transaction at all, and makes it anew.
"""

from __future__ import annotations

import math
import secrets
from collections.abc import Iterable, Mapping
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from privbo_plugins.algorithms.protocols import (
    ATTEMPTS,
    FINAL,
    LAST_SCORE,
    START,
    START_STEP,
    CentralConfig,
    Proposal,
    Query,
    Release,
)
from privbo_plugins.algorithms.registry import entry_of, warn_of_asked
from privbo_plugins.convert import as_losses, deal_of, index_of
from privbo_plugins.errors import (
    ANOTHER_POINT,
    BudgetExceededError,
    PrivacyError,
    UtilityWarning,
    paid_for,
    warn,
)
from privbo_plugins.groups import Groups, Unit
from privbo_plugins.privacy.ledger import TRAINING, VALIDATION, Charge, check_budget
from privbo_plugins.privacy.mechanisms import gaussian_scale
from privbo_plugins.privacy.source import NoiseSource
from privbo_plugins.privacy.words import ROW, as_row, plural
from privbo_plugins.scores.score import Score, checked_rows, rows_of
from privbo_plugins.sessions import places
from privbo_plugins.sessions.clipping_warning import warn_at_an_end, warn_of_scores
from privbo_plugins.sessions.reader import (
    ENQUEUED,
    NO_NOISE,
    PLAIN,
    PRIVATE,
    Learnt,
    LossReader,
    Published,
    most_trainings,
    own_release,
    published_of,
    release_of,
    shown,
)
from privbo_plugins.sessions.record_labels import RecordLabels
from privbo_plugins.sessions.run_settings import differing
from privbo_plugins.spaces import Space
from privbo_plugins.store.log import UNPROTECTED
from privbo_plugins.store.release import Order, Outlet
from privbo_plugins.store.run import ENTERED, Run, begin_or_join
from privbo_plugins.store.transaction import BLOCK, Transaction
from privbo_plugins.store.vault import Vault

Array = NDArray[np.float64]


class Session(LossReader):
    """One run of one algorithm.

    Built by :meth:`open`. All methods are safe to call from several threads, and several
    processes may hold sessions of the same run over one vault.

    Args:
        run: The run.
        config: Settings of the algorithm.
        seed: Drives designs; stored with the run.
        maximize: Whether per-record values are scores.
        noise: Test injection; None is secure.

    Attributes:
        groups: The persons that rows of this process belong to; None where an entry is a row.
    """

    groups: Groups | None = None

    def __init__(
        self,
        run: Run,
        config: CentralConfig,
        *,
        seed: int,
        maximize: bool,
        noise: NoiseSource | None = None,
    ) -> None:
        super().__init__(run, config, seed=seed, maximize=maximize)
        self._outlet = Outlet(run, noise)
        self.labels = RecordLabels(run)
        self._end_shown = self._noise_shown = False

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
        unit: Unit | None = None,
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
            unit: What one entry of a vector is; None for a record.

        Raises:
            VaultError: If the host remembers a run that this vault does not hold.
            ValueError: If the settings differ from those the run started with.
        """
        settings = {
            "algorithm": entry_of(config).name,
            "config": config.to_dict(),
            "maximize": maximize,
            "unit": (unit or Unit())._asdict(),
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
                    if self._complete(tx):
                        continue
                    algorithm, row = self._known().algorithm, tx.trial(trial)
                    if row is not None and row.state != "failed":
                        return Proposal(row.role, row.step, row.slot, row.x)
                    rows, again = places.of_the_step(tx, algorithm), row is not None
                    if not places.complete(algorithm, rows):
                        return places.assign(
                            tx, trial, algorithm, rows, beyond=beyond, again=again
                        )
                self._settle()

    def open_places(self) -> int:
        """Counts the places of the current step that no trial has: the host may run so many."""
        with self._transaction() as tx:
            algorithm = self._known().algorithm
            return places.open_in(algorithm, places.of_the_step(tx, algorithm))

    def place(self, trial: str, x: Array) -> None:
        """Enters a trial at a point that the host chose, shape (D,), before its losses are known.

        It counts as a start while the start is open, and as outside the plan afterwards.
        """
        with self._transaction() as tx:
            if tx.trial(trial) is None:
                known = self._known()
                places.enter(tx, trial, known.algorithm, known.space.snap(x))

    def enter(self, trial: str) -> tuple[float | None, Array | None]:
        """Records that a trial runs in the private channel.

        Returns:
            Its stored value, if it has one, and the point that it was handed, if any.
        """
        with self.run.transaction() as tx:
            tx.mark(ENTERED, trial)
            row = tx.trial(trial)
        return (None, None) if row is None else (row.value, row.x)

    def fail(self, trial: str) -> None:
        """Gives the slot of a trial back that failed or was pruned."""
        with self._transaction() as tx:
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
        enqueued: int | None = None,
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
            enqueued: The trial's place among those that the user had evaluated; None for none of
                them, and for one that :meth:`place` has entered, which knows its own.

        Raises:
            ValueError: If the vector is not usable; nothing is stored or charged then.
            SpaceChangedError: If the trial was evaluated in another space.
            BudgetExceededError: If the release does not fit the budget; nothing is drawn.
            VaultError: If the vault fails; nothing is kept.
        """
        rows, index = self._read(losses, index)
        y = self._entries(rows, index)
        with self._lock:
            recorded: tuple[Published, bool] | None = None
            while recorded is None:
                with self._transaction() as tx:
                    self._admit(tx, space, PRIVATE, len(y), constants)
                    self.labels.check(tx, len(y), index, len(rows))
                    if not self._complete(tx):
                        recorded = self._record(tx, trial, params, y, enqueued)
            told, due = recorded
            if due:
                self._settle()
            self._look_at_ends(told)
            return told

    def _read(self, told: Any, index: str | None) -> tuple[Array, str | None]:
        """One loss a record, or with scores one row, and the fingerprint of its labels."""
        scores = getattr(self.config, "scores", None)
        if scores is None:
            y, index = as_losses(told), index or index_of(told)
            dealt = self.unit.records_in_blocks
            if deal_of(index) != dealt or (dealt and len(y) != dealt[1]):
                raise ValueError(_OTHER_DEAL)
            return y, index
        return _rows_of(scores, told, index)

    def _entries(self, rows: Array, index: str | None = None) -> Array:
        """One value a record, or a person, of the rows' values.

        Raises:
            ValueError: If this process does not know the persons, or rows and ids do not fit.
        """
        unit = self.unit
        if unit.rows is None:
            return rows
        if self.groups is None:
            raise ValueError(_NO_GROUPS)
        return self.groups.entries(rows, unit, unit.rows[0 if self.maximize else 1], index)

    @paid_for()
    def _look_at_ends(self, told: Published) -> None:
        """Warns once where losses seem to lie at an end of their range: in a long run seldom.

        Likewise of a score with much noise, or with settings that are not those of the records.
        """
        plan, known, scores = self.plan, self._learnt, getattr(self.config, "scores", None)
        values = () if known is None else known.values
        seldom = len(values) & (len(values) - 1) == 0
        if scores and told.scores and known is not None and seldom and not self._noise_shown:
            means: Any = known.algorithm
            self._noise_shown = warn_of_scores(told.scores, scores, means.doubts())
        looks = len(values) % (1 << max(len(values).bit_length() - 4, 0)) == 0
        if plan is not None and known is not None and looks and not self._end_shown:
            noise = known.algorithm.value_noise
            self._end_shown = warn_at_an_end(values, noise, self.config, self.maximize)

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
                same = self.space in (None, space)
                if same:
                    self._admit(tx, space, PLAIN, 1)
                if not same or not self.plain:
                    tx.fail(trial)
                    return
                recorded = self._record(tx, trial, params, np.array([float(value)]))
                due = recorded is not None and recorded[1]
                self._known().count_plain(tx.told(), self.config.n_trials or math.inf)
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
        self._learn_over(tx, space)
        if self._known().mode is None:
            if mode == PRIVATE and n_records == 1:
                raise ValueError(_AVERAGE.format(self.unit.entry))
            self._begin(space, mode, n_records)  # raises before anything is written
            if self.plan is not None:  # likewise: a filter may make errors of warnings
                warn_of_asked(self.config, n_records, self.unit)
                self.plan.warn_if_noise_dominates()
            tx.freeze({"space": space.to_dict(), "mode": mode, "n_records": n_records})
        if constants is not None and self._constants is None:
            if "constants" not in tx.frozen():
                tx.freeze({"constants": dict(constants)})
        if mode == PRIVATE and self.plain:
            raise PrivacyError(_STARTED_PLAIN)

    def _record(
        self, tx: Transaction, trial: str, params: Mapping[str, Any], y: Array,
        enqueued: int | None = None,
    ) -> tuple[Published, bool] | None:  # fmt: skip
        """Releases and stores a trial; also tells whether the current step is complete now.

        None where it has only drawn: commit, and call it again.
        """
        known = self._known()
        self._check_length(y)
        row = tx.trial(trial)
        if row is not None and not known.at(row, params):
            raise PrivacyError(ANOTHER_POINT)
        algorithm, x = known.algorithm, known.space.encode(params)
        if row is not None and row.state == "done":  # also after a crash before the comparison
            ends = algorithm.phase[0] == FINAL and not algorithm.finished
            return shown(row, own_release(tx, row)), ends
        if row is None:
            role, step = places.enter(tx, trial, algorithm, x)
        else:
            role, step = row.role, row.step
            enqueued = row.slot if row.slot >= places.CLEAR else enqueued
        query = algorithm.value_query(trial, role, step, x)
        if query is not None and enqueued is not None and role == START:
            query = replace(query, meta={**query.meta, "x": x.tolist(), ENQUEUED: enqueued})
        release = None if query is None else self._release(tx, query, _in_blocks(y))
        if release is None and query is not None:
            return None
        if row is not None and row.value is not None:  # told, and its losses purged under way
            value, release = row.value, release or own_release(tx, row)
        else:
            value = algorithm.shown_value(release, role, step, x)
        now = FINAL if role == START and step >= 0 else role  # it may have moved to the end
        wanted = algorithm.wants_losses(now, step, None if enqueued is not None else release)
        if wanted:
            tx.put_losses(trial, y)
            _forget_starts(tx, algorithm, query if now == START else None)
        tx.finish(trial, x, value)
        own = release if release is not None and release.key == trial else None
        told = published_of(value, role, step, own)._replace(carried=release is None)
        return told, (wanted or now == START) and _may_be_complete(known, tx, now)

    def _check_length(self, rows: Array) -> None:
        n = self._known().n_records
        if len(rows) != n:
            raise ValueError(_OTHER_LENGTH.format(n, plural(self.unit.entry)))

    # Releasing ------------------------------------------------------------------------------

    def _settle(self) -> None:
        """Releases the current step if its batch is complete, and deletes what it used."""
        with self._transaction() as tx:
            known = self._known()
            waiting = known.algorithm.phase[0] == START
            if waiting or known.algorithm.finished or known.n_records is None:
                return  # also where another worker has just settled the last step
            rows = places.of_the_step(tx, known.algorithm)
            done = [row for row in rows if row.state == "done"]
            held = set(tx.held())
            gone = [row.trial for row in done if row.trial not in held]
            for trial in gone:  # purged under way: their slots are evaluated again
                tx.reopen(trial)
            trials, X = [row.trial for row in done], [row.x for row in done]
            ready = not gone and places.complete(known.algorithm, rows)
            queries = known.algorithm.step_queries(trials, X, held) if ready else []
            for query in queries:
                self._release(tx, query, tx.blocks(query.trials, known.n_records))
            if queries:
                keep = set(known.algorithm.remembered_after(queries[-1]))
                # also those of a point that was evaluated twice and compared once
                tx.drop_losses(sorted(held - keep) if held & keep else None)

    def refresh(self) -> None:
        """Reads what other workers have released, and releases what trials have drawn."""
        with self._transaction() as tx:
            self._complete(tx)

    def _complete(self, tx: Transaction) -> bool:
        """Releases what trials have drawn, also those whose attempts have ended: it is paid for.

        No losses are needed. Do nothing else then before the transaction is over: the algorithm
        observes the releases with its end.
        """
        known, scores = self._learnt, getattr(self.config, "scores", None) or ()
        if known is None or not any(getattr(score, "own_code", False) for score in scores):
            return False
        trials = [key for kind, key in tx.standing() if kind == "value"]
        for trial in trials:
            meta = tx.drawn("value", trial)["meta"]
            x = np.array(meta["x"])
            query: Any = known.algorithm.value_query(trial, meta["role"], meta["step"], x)
            self._release(tx, query, ())
            tx.finish(trial, x, self._fresh[-1].value)
        return bool(trials)

    def _release(self, tx: Transaction, query: Query, blocks: Iterable[Array]) -> Release | None:
        """Returns what a query releases; or what it released before.

        None where it has only drawn what a user's own code sees first: commit, and ask again.
        """
        before, scale = tx.head(), gaussian_scale(query.sensitivity, query.mu)
        order = Order(query.kind, query.key, lambda tx: self._charge(tx, query, scale))
        payload = self._outlet.release(
            tx, order, lambda noise: self._draw(query, blocks, scale, noise),
            ahead=query.ahead,
        )  # fmt: skip
        if query.ahead:
            if tx.head() != before:
                return None
            charged = replace(order, charge=lambda _: None)
            made = partial(_with_derived, query.derived, payload)
            payload = self._outlet.release(tx, charged, made)
        release = release_of(query.kind, query.key, payload)
        if tx.head() != before:
            self._fresh.append(release)
        return release

    def _charge(self, tx: Transaction, query: Query, scale: float) -> None:
        if self.plain:
            return
        charge = Charge(query.kind, query.key, query.mu, query.sensitivity, scale)
        check_budget(self.config.mu, self.run.spent.of(tx, VALIDATION).mu2, charge)
        tx.charge(charge)
        if math.isinf(query.mu):
            tx.mark(UNPROTECTED, NO_NOISE)

    def _draw(
        self, query: Query, blocks: Iterable[Array], scale: float, noise: NoiseSource
    ) -> dict[str, Any]:
        with np.errstate(all="ignore"):  # a warning would tell that some record is extreme
            exact = query.statistic(blocks, **query.settings)
        private = not self.plain and not math.isinf(query.mu)
        noisy = (noise.add_gaussian(exact, scale) if private else exact) + query.offset
        payload = {"values": noisy.tolist(), "meta": dict(query.meta)}
        return payload if query.ahead else _with_derived(query.derived, payload)

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
            most = most_trainings(self.plan)
            if self.run.spent.of(tx, TRAINING).mu2 > (most - 0.5) * mu**2:
                raise BudgetExceededError(
                    f"{most} trainings were charged to the training records, as many as the plan "
                    f"allows: {ATTEMPTS} for each of its trials, models that are fitted at the "
                    "end included. Trials end without a release, or models are fitted, too often; "
                    "start a new run once that is mended. Nothing was charged."
                )
            tx.charge(Charge(TRAINING, attempt, mu, 0.0, 0.0, TRAINING))

    def release_score(
        self, score: Score, told: Any, index: str | None = None
    ) -> tuple[float, float]:
        """Releases one score of the chosen model, out of what trials have left for it; or replays.

        Args:
            score: Any; one is charged in a run, once.
            told: Predictions of the validation records, in the order of the trials', or rows.
            index: Fingerprint of their labels, where they have lost them on the way.

        Returns:
            The estimate, and the standard deviation that noise gives it.

        Raises:
            ValueError: If nothing is kept for it, or these are other records; nothing is charged.
            BudgetExceededError: If another score was released instead.
        """
        rows, index = _rows_of([score], told, index)
        release: Release | None = None
        while release is None:
            with self._lock, self._transaction() as tx:
                ask = getattr(self._known().algorithm, "final_query", None)
                if ask is None or self.unit.rows is not None or self.unit.records_in_blocks:
                    raise ValueError(
                        "A last score is one of records, of a run that releases means."
                    )
                query = ask(score)
                self._check_length(rows)
                self.labels.check(tx, len(rows), index, len(rows))
                known = tx.released(LAST_SCORE, LAST_SCORE) or tx.drawn(LAST_SCORE, LAST_SCORE)
                if known is not None and not query.meta.items() <= known["meta"].items():
                    raise BudgetExceededError(_OTHER_LAST.format(known["meta"]["name"]))
                before, release = tx.head(), self._release(tx, query, _in_blocks(rows))
                if tx.head() == before:
                    with paid_for():
                        warn(_SHOWN_AGAIN, UtilityWarning)
        value, sd = release.scores[score.name]
        return value, sd

    def purge(self) -> None:
        """Deletes every raw loss of the run; ledger and releases stay."""
        with self.run.transaction() as tx:
            tx.drop_losses()


_SHOWN_AGAIN = (
    "The last score of this run was released before, of the model of then, and is shown again: "
    "what was given now was not looked at."
)

_OTHER_LAST = (
    "{!r} was released as the last score of this run, which keeps a share for one: ask for it "
    "again with the same settings, or begin a run for another score. Nothing was charged."
)

_NO_GROUPS = (
    "This process does not know whose each row is: groups= is neither pickled nor stored. Give it "
    "to the sampler or search of this process, too. A search that Tuner.restore brings back in a "
    "new process has lost it: there, begin a run without groups=, whose trainable returns "
    "losses.by_group(losses, ids). Nothing was stored or charged."
)

_STARTED_PLAIN = (
    "This run started with plain floats and is unprotected; per-record losses cannot make it "
    "private. Start a new study for them."
)

_AVERAGE = (
    "The first vector has one entry, so there would be one {0}: this looks like an "
    "average. Return one value per {0}, before averaging. Nothing was stored or "
    "charged."
)

_OTHER_DEAL = (
    "A run of blocks takes the scores that its own score = in_blocks(...) returned, as they are; "
    "of others, or of what is made of them, a record might touch several entries. In another run "
    "a block would count as a record. Give **score.settings() to the sampler, search or wrapper, "
    "and return score(...); what is computed of scores belongs into the function. Nothing was "
    "stored or charged."
)

_OTHER_LENGTH = (
    "Every trial must return one value for each of the same {} {}, in the same "
    "order; this vector has another length. Return NaN for one that cannot be scored instead "
    "of dropping it. Nothing was stored or charged."
)


def _forget_starts(tx: Transaction, algorithm: Any, of_start: Query | None) -> None:
    """Deletes losses of the start that are needed no more after its query; None: it is over."""
    if of_start is not None:
        tx.drop_losses(sorted(set(tx.held()).difference(algorithm.remembered_after(of_start))))


def _may_be_complete(known: Learnt, tx: Transaction, role: str) -> bool:
    """Checks if the step is complete with a trial whose release is not observed yet."""
    if role == START:  # whose last trial may leave nothing to evaluate
        last = len(known.values) + 1 >= known.algorithm.batch_capacity
        return last and known.algorithm.wants_losses(role, START_STEP)
    return places.complete(known.algorithm, places.of_the_step(tx, known.algorithm))


def _rows_of(scores: Any, told: Any, index: str | None) -> tuple[Array, str | None]:
    """One row a record of scores' values, and the fingerprint of its labels."""
    rows = told if isinstance(told, np.ndarray) else rows_of(scores, told)
    return checked_rows(scores, rows), index or index_of(getattr(told, "y_true", None))


def _with_derived(derived: Any, drawn: Mapping[str, Any], *_noise: NoiseSource) -> dict[str, Any]:
    """Adds the public facts that are made of a draw, if any are."""
    more = {} if derived is None else derived(np.array(drawn["values"]))
    return {**drawn, "meta": {**drawn["meta"], **more}}


def _in_blocks(y: Array) -> list[Array]:
    """Rows of what records gave, (n,) or (n, m), in blocks (n_block, m)."""
    rows = y.reshape(len(y), -1)
    return [rows[start : start + BLOCK] for start in range(0, len(y), BLOCK)]


_OF_BUDGETS = ("mu", "training_mu", "n_trials", "n_steps", "value_share", "final_share")


def _check_same_settings(stored: Mapping[str, Any], given: Mapping[str, Any]) -> None:
    then, now = (
        {
            "algorithm": one["algorithm"],
            **one["config"],
            **Unit(**one.get("unit", {})).told,
            "direction": "maximize" if one["maximize"] else "minimize",
        }
        for one in (stored, given)
    )
    others = differing(then, now)
    if others:
        if as_row(then["unit"]) != as_row(now["unit"]):  # as they are given
            for one in (then, now):
                one["unit"] = one["unit"].removesuffix(f" {ROW}")
            others = differing(then, now) or others
        budget = any(then.get(name) != now.get(name) for name in _OF_BUDGETS)
        use = "A budget cannot change under way: use" if budget else "Use"
        raise ValueError(
            f"This run was started with other settings ({others}). {use} the same settings, or "
            "start a new study (on the same records its mu adds to this one's: squares add up)."
        )
