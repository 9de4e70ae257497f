"""Reads a run on per-record losses: its plan, what it has released, and what may be claimed.

Nothing is drawn or charged here. :class:`privbo_plugins.sessions.records.Session` does that.
"""

from __future__ import annotations

import math
import threading
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from privbo_plugins.algorithms.protocols import (
    ATTEMPTS,
    CORRELATIONS,
    LAST_SCORE,
    START,
    START_STEP,
    CentralAlgorithm,
    CentralConfig,
    CentralPlan,
    Comparison,
    Release,
)
from privbo_plugins.algorithms.registry import algorithm_of
from privbo_plugins.errors import (
    ONE_SPACE,
    PrivacyError,
    SpaceChangedError,
    UtilityWarning,
    warn,
)
from privbo_plugins.groups import Unit
from privbo_plugins.plots import History
from privbo_plugins.privacy.claim import SoFar
from privbo_plugins.privacy.figures import together
from privbo_plugins.privacy.guarantee import Guarantee
from privbo_plugins.privacy.ledger import TRAINING, VALIDATION, Charge
from privbo_plugins.privacy.words import as_row, of_unit, plural, texts_of
from privbo_plugins.scores.score import ScoreFacts, front, lack_of, sd_of
from privbo_plugins.spaces import Space, same_point
from privbo_plugins.status import status
from privbo_plugins.store.log import NOTE, UNPROTECTED
from privbo_plugins.store.run import Run, Total
from privbo_plugins.store.transaction import Transaction, TrialRow

Array = NDArray[np.float64]

PRIVATE, PLAIN = "private", "plain"

_UNPLANNED_TRAININGS = 100
"""So many trainings are charged before the first vector of losses has made a plan."""

RUNS_BESIDE = "runs beside"
"""Kind of marks: how many other runs the host's object has made in the vault, in six digits."""

OBJECTIVES = "objectives"
"""Kind of marks: how many objectives the host's study has, where it has several."""

ENQUEUED = "enqueued"
"""Public fact of a release: its trial's place among those that the user had evaluated."""

NO_NOISE = "mu is infinite, so no noise is added"


class Published(NamedTuple):
    """What a trial may show.

    Attributes:
        value: The release, or an estimate from all releases.
        role: What the trial was for.
        step: Its step; negative where it belongs to none.
        draw: The noisy draw behind a value that is an estimate; None where there is none.
        carried: Whether the plan has no release for this trial, and earlier ones stand in.
        scores: Estimate and standard deviation of each score by name, if the run has scores.
        lacks: What it lacks of each constraint by name, if the run has any; <= 0 keeps it.
    """

    value: float
    role: str
    step: int
    draw: float | None = None
    carried: bool = False
    scores: Mapping[str, Sequence[float]] = MappingProxyType({})
    lacks: Mapping[str, float] = MappingProxyType({})

    def values(self, n: int) -> list[float]:
        """Lists the values of n objectives: the value, and the scores after the first."""
        return [self.value, *[told[0] for told in self.scores.values()][1:]][:n]

    def beside(self, draw: str) -> dict[str, float]:
        """Lists what else was released, by name: other scores, deviations, lacks, and the draw.

        Args:
            draw: Name of the draw, where the value is an estimate of all releases.
        """
        found = {name: told[0] for name, told in [*self.scores.items()][1:]}
        found |= {sd_of(name): told[1] for name, told in self.scores.items()}
        found |= {lack_of(name): lack for name, lack in self.lacks.items()}
        return found if self.draw is None else found | {draw: self.draw}

    @property
    def label(self) -> str:
        """Role and step, as hosts show them."""
        return self.role if self.step < 0 else f"{self.role} {self.step}"


@dataclass
class Learnt:
    """An algorithm, and how far it has followed the run's releases.

    Attributes:
        space: Where it searches.
        algorithm: Has a plan once the first vector has fixed the number of records.
        mode: :data:`PRIVATE` or :data:`PLAIN`; None before the first vector.
        n_records: Length of every vector; None likewise.
        seq: Number of the log's last event that it has followed.
        values: Released values, in order.
        over: Whether a run of plain floats, which has no plan, had as many trials as were asked.
        told: Releases whose learning has begun.
    """

    space: Space
    algorithm: CentralAlgorithm
    mode: str | None = None
    n_records: int | None = None
    seq: int = 0
    values: list[float] = field(default_factory=list)
    over: bool = False
    told: int = 0

    def count_plain(self, told: int, most: float) -> None:
        """Ends a run of plain floats after its number of trials."""
        self.over = self.mode == PLAIN and told >= most

    def observe(self, release: Release) -> None:
        """Learns one release."""
        self.told += 1
        if ENQUEUED in release.meta:
            self.algorithm.nominate(release.meta["x"], release.meta[ENQUEUED])
        self.algorithm.observe(release)
        if release.kind == "value":
            self.values.append(release.value)

    def at(self, row: TrialRow, params: Mapping[str, Any]) -> bool:
        """Checks whether parameters are those of a trial with a value."""
        if row.value is None:
            return True
        try:
            x = self.space.encode(params)
        except (KeyError, ValueError):  # one is missing, or a choice is none
            return False
        return same_point(x, row.x)


class LossReader:
    """One run of one algorithm on per-record losses, as its vault holds it.

    All methods are safe to call from several threads and processes.

    Args:
        run: The run.
        config: Settings of the algorithm.
        seed: Drives designs; stored with the run.
        maximize: Whether per-record values are scores.

    Attributes:
        unit: What one entry of every vector is: a record, or what the run's user has named.
    """

    def __init__(self, run: Run, config: CentralConfig, *, seed: int, maximize: bool) -> None:
        self.run, self.config = run, config
        self.seed, self.maximize = seed, maximize
        self.unit = Unit(**run.settings.get("unit", {}))
        self._kind = algorithm_of(config)
        self._lock = threading.RLock()
        self._learnt: Learnt | None = None
        self._fresh: list[Release] = []
        self._constants: dict[str, Any] | None = None

    @contextmanager
    def _transaction(self) -> Iterator[Transaction]:
        """Yields a transaction of one thread, after the algorithm has followed the run.

        The algorithm observes the releases of the transaction once it is committed. If it fails,
        what it fixed in memory is forgotten with it.
        """
        with self._lock:
            before, self._fresh = self._learnt, []
            told = 0 if before is None else before.told
            try:
                with self.run.transaction() as tx:
                    self._follow(tx)
                    yield tx
                    seq = tx.head().n
                for release in self._fresh:
                    self._known().observe(release)
                if self._learnt is not None:
                    self._learnt.seq = seq
            except BaseException:
                self._forget(before, told)
                raise

    def _forget(self, before: Learnt | None, told: int) -> None:
        """Gives back what was known before a transaction that failed.

        An algorithm that has observed anything of it, or only a part, begins anew.
        """
        self._learnt = before
        if before is not None and before.told != told:
            self._begin(before.space, before.mode, before.n_records)

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
                with self.run.transaction() as tx:
                    frozen = tx.frozen()
                self._constants = frozen.get("constants")
                space = space or frozen.get("space")
            return space, self._constants

    def set_space(self, space: Space) -> None:
        """Fixes the search space.

        Raises:
            SpaceChangedError: If it differs from the run's.
        """
        with self._lock:
            if self.space is None:
                with self._transaction() as tx:
                    self._learn_over(tx, space)
            elif self.space != space:
                raise SpaceChangedError(space_changed(self.space, space))

    def refresh(self) -> None:
        """Reads what other workers have released."""
        with self._transaction():
            pass

    def _learn_over(self, tx: Transaction, space: Space) -> None:
        """Makes the algorithm for a space, and follows the run.

        Raises:
            SpaceChangedError: If the run's space is another.
        """
        if self._learnt is None:
            self._begin(space)
            self._follow(tx)
        elif self._learnt.space != space:
            raise SpaceChangedError(space_changed(self._learnt.space, space))

    def _begin(self, space: Space, mode: str | None = None, n_records: int | None = None) -> None:
        """Makes an algorithm that knows nothing yet; with a plan if the first vector is known."""
        config, plan = self.config if mode != PLAIN else self.config.plain(), None
        if n_records is not None:
            plan = self._kind.make_plan(config, space, n_records)
        algorithm = self._kind(config, space, seed=self.seed, maximize=self.maximize, plan=plan)
        self._learnt = Learnt(space, algorithm, mode, n_records)

    def _follow(self, tx: Transaction) -> None:
        """Brings the algorithm up to the committed releases."""
        if self._learnt is None:
            return  # a resumed run whose host has not told the space yet: nothing to learn with
        frozen = tx.frozen() if self._learnt.mode is None else {}
        if frozen:
            if frozen["space"] != self._learnt.space.to_dict():
                raise SpaceChangedError(space_changed(None, self._learnt.space))
            self._begin(self._learnt.space, frozen["mode"], frozen["n_records"])
        self.run.follow(tx)
        seq = tx.head().n
        if seq > self._learnt.seq:
            for _, kind, key, payload in tx.releases_after(self._learnt.seq):
                self._learnt.observe(release_of(kind, key, payload))
            self._learnt.seq = seq
        self._learnt.count_plain(tx.told() if self.plain else 0, self.config.n_trials or math.inf)

    def _known(self) -> Learnt:
        if self._learnt is None:
            raise PrivacyError("The search space is not known yet: run a trial first.")
        return self._learnt

    # What was released ----------------------------------------------------------------------

    def published(self, trials: Iterable[str] | None = None) -> dict[str, Published]:
        """Returns what some trials may show in the host's storage; None for all with a value."""
        with self.run.transaction() as tx:
            if trials is not None:
                rows = [row for trial in trials if (row := tx.trial(trial)) is not None]
                own = {row.trial: own_release(tx, row) for row in rows}
            else:
                rows = tx.trials()
                own = {
                    key: release_of(kind, key, told)
                    for _, kind, key, told in tx.releases_after(0)
                    if kind == "value"
                }
            return {r.trial: shown(r, own.get(r.trial)) for r in rows if r.value is not None}

    def told_elsewhere(self, params: Mapping[str, Mapping[str, Any]]) -> list[str]:
        """Lists those of some trials, given by their parameters, that have a value at others."""
        with self.run.transaction() as tx:
            rows = [row for trial in params if (row := tx.trial(trial)) is not None]
        known = self._learnt
        return [r.trial for r in rows if known is not None and not known.at(r, params[r.trial])]

    def ledger(self) -> list[Charge]:
        """Every charge so far."""
        with self.run.transaction() as tx:
            return tx.charges()

    def releases(self) -> list[Release]:
        """Every release so far, in order."""
        with self.run.transaction() as tx:
            rows = tx.releases_after(0)
        return [release_of(kind, key, payload) for _, kind, key, payload in rows]

    def recommendation(self) -> dict[str, Any]:
        """Parameters that the releases so far recommend.

        Raises:
            ValueError: If nothing has been released yet.

        Warns:
            UtilityWarning: If no trial is seen to keep all constraints.
        """
        x, shortfall = self.recommended_point()
        if shortfall:
            warn(shortfall, UtilityWarning)
        return self._known().space.decode(x)

    def recommended_point(self) -> tuple[Array, str]:
        """The same as a point, shape (D,), and what is to be warned of.

        Raises:
            ValueError: If nothing has been released yet.
        """
        with self._lock:
            self.refresh()
            algorithm = self._known().algorithm
            return algorithm.recommendation(), algorithm.shortfall

    def comparison(self) -> Comparison | None:
        """Compares recommendation and incumbent; plain floats are not compared.

        Raises:
            PrivacyError: If the search space is not known yet.
        """
        return None if self.plain else self._known().algorithm.comparison

    def history(self) -> History:
        """Everything the run has released, for pictures; plain floats are no releases."""
        with self._lock:
            self.refresh()
            objectives = self.run.marks(OBJECTIVES)
            releases, known = self.releases(), self._known()
            # also of a draw that is not released: it is paid for
            costs = [one.mu**2 for one in self.ledger() if one.population == VALIDATION]
            values = [r for r in releases if r.kind == "value" and not self.plain]
            space, path = known.space, known.algorithm.path
            scores = getattr(self.config, "scores", None) or ()
            compared = scores[: int(objectives[-1])] if objectives else scores
            more = scores_shown(scores, values, compared)
            last = [r.scores for r in releases if r.kind == LAST_SCORE]
            more["last"] = last[0] if last else {}
            if values and all("x" in release.meta for release in values):
                points = np.array([release.meta["x"] for release in values], dtype=float)
                aim = space.embed(known.algorithm.recommendation()[None])[0]
                more |= {"places": space.embed(points), "aim": aim}
            return History(
                values=[(r.meta["role"], r.meta["step"], r.value) for r in values],
                value_noise=known.algorithm.value_noise,
                names=space.names,
                path=np.array(path),
                centres=[space.decode(x) for x in path],
                spent=np.sqrt(np.cumsum(costs)).tolist(),
                budget=self.config.mu,
                comparison=self.comparison(),
                **more,
            )

    # What may be claimed --------------------------------------------------------------------

    def status(self, guarantee: Guarantee) -> dict[str, Any]:
        """Returns where the run stands, JSON-ready (:func:`privbo_plugins.status.status`).

        Args:
            guarantee: What the host allows to claim.
        """
        compared = None
        try:
            self.recommended_point()
            recommends, compared = True, self.comparison()
        except (PrivacyError, ValueError):  # nothing has been released yet
            recommends = False
        planned = None if self.plan is None else self.plan.n_trials
        return status(
            guarantee,
            self.run.n_told(),
            planned,
            finished=self.finished,
            recommendation=recommends,
            comparison=compared,
        )

    def guarantee(self, reasons: Sequence[str] = (), *, failed: int = 0) -> Guarantee:
        """Returns what may be claimed for this run, from the ledger and the marks.

        Args:
            reasons: Why the host says that nothing may be claimed at the moment.
            failed: Failed and pruned trials that the host knows of; the vault may know fewer.
        """
        with self._transaction() as tx:
            validation, training = (self.run.spent.of(tx, who) for who in (VALIDATION, TRAINING))
            reasons = [*tx.marks(UNPROTECTED), *reasons]
            notes, failed = list(tx.marks(NOTE)), max(failed, tx.count(state="failed"))
            frozen, beside = tx.frozen(), tx.marks(RUNS_BESIDE)
            notes += [SoFar(_WAITS)] * ((LAST_SCORE, LAST_SCORE) in tx.standing())
        unit, dealt = self.unit.word, self.unit.records_in_blocks
        notes += together([self.config.mu] * (1 + int(beside[-1]) if beside else 0), unit)
        if math.isinf(self.config.mu) and not reasons:
            reasons.append(NO_NOISE)
        if failed:
            notes.append(SoFar(_FAILED.format(failed)))
        words = self._kind.words(self.config, self.plan)
        statistics = of_unit(words.statistics, "block" if dealt else unit)
        neighbours, limits = _whom(self.unit)
        entries = frozen["n_records"] if frozen.get("mode") == PRIVATE else None
        parameters = {**words.parameters, **({"blocks": entries} if dealt and entries else {})}
        return Guarantee(
            protected=not reasons,
            mechanism=(
                "Gaussian noise (OpenDP's cryptographic generator, seeded from the operating "
                f"system's entropy) on {statistics}; every release is post-processed only"
            ),
            neighbours=neighbours,
            population=f"{plural(unit)}, of training and validation"
            if dealt
            else f"validation {plural(unit)}",
            n_records=dealt[0] if dealt else entries,
            mu=self.config.mu,
            mu_spent=math.sqrt(validation.mu2),
            n_releases=validation.n,
            parameters={**getattr(self.config, "asked", {}), **parameters},
            not_covered=(*limits["not_covered"], *words.not_covered),
            reasons=tuple(reasons),
            notes=tuple(notes),
            trainings=_trainings(training, self.config, self.plan),
            in_blocks=bool(dealt),
            unit=unit,
        )


def _whom(unit: Unit) -> tuple[str, Mapping[str, Any]]:
    """Names the neighbours that a unit has, and the limits and conditions of what is claimed."""
    word, dealt = unit.word, unit.records_in_blocks
    rows = ", under the same id" if dealt and word != as_row(word) else ""
    if unit.per_group is not None:
        rows = "'s rows, any number of them, under the same id"
    kinds = ["records_in_blocks" if dealt else "records_validated"]
    kinds += ["records_of_units"] * (word != as_row(word))
    those = f"{word}, of training or validation" if dealt else f"validation {word}"
    neighbours = f"replace-one (two data sets that differ in one {those}{rows})"
    return neighbours, texts_of("records", *kinds, unit=word)


_WAITS = "a last score was charged and drawn, and waits: release_score() of the same shows it"
_FAILED = "{} trial(s) failed or were pruned; whether a trial does so is not covered"


def release_of(kind: str, key: str, payload: Mapping[str, Any]) -> Release:
    """Reads a release as the vault stores it."""
    return Release(kind, key, tuple(payload["values"]), payload["meta"])


def own_release(tx: Transaction, row: TrialRow) -> Release | None:
    """Returns the release that is a trial's own."""
    own = tx.released("value", row.trial)
    return None if own is None else release_of("value", row.trial, own)


def shown(row: TrialRow, own: Release | None) -> Published:
    """Returns what a trial with a value may show."""
    value = math.nan if row.value is None else row.value
    return published_of(value, row.role, row.step, own)


def published_of(value: float, role: str, step: int, own: Release | None) -> Published:
    """Returns what a trial may show of its value and its own release."""
    draw = None if own is None or own.value == value else own.value
    step = START_STEP if role == START else step  # its row may have moved to the end
    found = Published(value, role, step, draw)
    return found if own is None else found._replace(scores=own.scores, lacks=own.lacks)


def scores_shown(
    scores: Sequence[ScoreFacts], values: Sequence[Release], compared: Sequence[ScoreFacts]
) -> dict[str, Any]:
    """Returns what a history shows of scores, and the front of those that are compared."""
    if not scores:
        return {}
    kept = [max(release.lacks.values(), default=0.0) <= 0.0 for release in values]
    told = [release.scores for release, own in zip(values, kept, strict=True) if own]
    best = iter(front(compared, told) if told else ())
    known = [release.meta.get(CORRELATIONS, {}) for release in values]
    by_name = {one.name: [release.scores[one.name] for release in values] for one in scores}
    return {
        "figure": "score",
        "scores": by_name,
        "correlations": {
            one.name: [own.get(one.name, math.nan) for own in known] for one in scores[1:]
        },
        "at_ends": {
            one.name: sum(value in (one.low, one.high) for value, _ in by_name[one.name])
            for one in scores
        },
        "undefined": {
            one.name: [tuple(own) == (one.worst, one.high - one.low) for own in by_name[one.name]]
            for one in scores
        },
        "front": [next(best) if own else None for own in kept],
        "front_of": [one.name for one in compared],
        "trials": [release.key for release in values],
    }


def space_changed(old: Space | None, new: Space) -> str:
    """Says why a trial of another space is refused."""
    known = "" if old is None else f" over {', '.join(old.names)}"
    return (
        f"The search space of a private study{known} is fixed by its first trial (or by "
        f"search_space=), and this trial evaluated another one over {', '.join(new.names)}: "
        f"nothing was stored or charged. {ONE_SPACE}"
    )


def most_trainings(plan: CentralPlan | None) -> int:
    """Limits the trainings of a run: a trial that ends without a release trains again."""
    return _UNPLANNED_TRAININGS if plan is None else ATTEMPTS * plan.n_trials


def _trainings(
    training: Total, config: CentralConfig, plan: CentralPlan | None
) -> tuple[tuple[float, int, float], ...]:
    """The declared cost of one training, how many were charged, and how many can be."""
    if config.training_mu is None:
        return ()
    most = math.inf if plan is None else max(most_trainings(plan), training.n)
    return ((config.training_mu, training.n, float(most)),)
