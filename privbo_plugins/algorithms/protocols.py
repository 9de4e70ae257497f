"""Bases and protocols of algorithms: framework-free ask/tell objects with explicit state.

Those that tune on per-record losses are :class:`CentralAlgorithm`. ``propose`` reads releases
only; ``observe`` is the only way it learns, and it learns releases, never raw losses. A
:class:`Query` describes a private statistic; the session that owns the vault, the ledger and the
noise carries it out.

Those that tune on one number a trial, privatised before it reaches them, are
:class:`RewardAlgorithm`: all that they do with it is post-processing.
"""

from __future__ import annotations

import abc
import math
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Any, ClassVar, Protocol, Self

import numpy as np
from numpy.typing import NDArray

from privbo_plugins.errors import UtilityWarning, warn
from privbo_plugins.settings import POSITIVE, integer
from privbo_plugins.spaces import Space

ATTEMPTS = 3
"""So many trials at one place (a draw, a row, an agent's round) may end without a number, and so
many trainings are charged for a planned trial."""

Array = NDArray[np.float64]
Slot = tuple[int, int, int]

START, STEP, FINAL, OUTSIDE = "start", "step", "final", "outside"
"""Roles of a trial: chooses the start, informs a step, is compared in the end, or was not asked
for by the plan."""

START_STEP, OUTSIDE_STEP = -1, -2
"""The step numbers of start trials and of trials outside the plan."""


@dataclass(frozen=True)
class Proposal:
    """A point to evaluate.

    Attributes:
        role: :data:`START`, :data:`STEP` or :data:`FINAL`.
        step: Which step it belongs to; -1 for start points.
        slot: Its place in the step.
        x: The point, shape (D,), encoded by the space.
    """

    role: str
    step: int
    slot: int
    x: Array


@dataclass(frozen=True)
class Release:
    """A noisy statistic that is public from now on.

    Attributes:
        kind: "value", "gradient", "norm", "comparison" or :data:`LAST_SCORE`.
        key: Which one of its kind.
        values: The noisy vector.
        meta: Public facts needed to learn from it.
    """

    kind: str
    key: str
    values: tuple[float, ...]
    meta: Mapping[str, Any] = field(default_factory=dict)

    @property
    def scores(self) -> dict[str, list[float]]:
        """Estimate and standard deviation of each score by name; empty where there are none."""
        return {name: list(told) for name, told in self.meta.get(SCORES, {}).items()}

    @property
    def lacks(self) -> dict[str, float]:
        """Lists by score what it lacks of its constraint; <= 0 where it keeps it."""
        return dict(self.meta.get(LACKS, {}))

    @property
    def value(self) -> float:
        """Returns what a trial shows: the estimate of its first score, or the number released."""
        return next(iter(self.scores.values()), self.values)[0]


LAST_SCORE = "score"
"""Kind of a release of the model that was chosen, after all trials."""

SCORES, LACKS, CORRELATIONS = "scores", "lacks", "correlations"
"""Public facts of a release: each score of the run, what it lacks of each constraint, and how the
noise of each further score goes with that of the first."""


@dataclass(frozen=True)
class Query:
    """A bounded statistic of per-record losses and what it costs to release it.

    Attributes:
        kind: See :class:`Release`. A "value" is one trial's: hosts show it, and its ``meta``
            holds "role" and "step".
        key: See :class:`Release`; kind and key together are unique in a run.
        statistic: A function of a module; from blocks of losses, (n_block, m) each, and
            ``settings`` to the exact value, shape (d,).
        sensitivity: L2 sensitivity under replace-one.
        mu: Gaussian DP parameter to spend on it.
        trials: Whose losses it reads, in the column order of the blocks.
        offset: Public number added after the noise; the statistic is measured from it.
        meta: Public facts stored with the release.
        settings: Public arguments of ``statistic``, by name.
        derived: From what was released, shape (d,), to more public facts of it.
        ahead: Whether a user's own code is in ``derived``. Then what was drawn is stored with its
            charge before that code sees it.
    """

    kind: str
    key: str
    statistic: Callable[..., Array]
    sensitivity: float
    mu: float
    trials: tuple[str, ...] = ()
    offset: float = 0.0
    meta: Mapping[str, Any] = field(default_factory=dict)
    settings: Mapping[str, Any] = field(default_factory=dict)
    derived: Callable[[Array], Mapping[str, Any]] | None = None
    ahead: bool = False

    def exact(self, blocks: Iterable[Array]) -> Array:
        """The statistic of some losses, as audits compute it: a secret."""
        return self.statistic(blocks, **self.settings)


@dataclass(frozen=True)
class Comparison:
    """Compares the recommendation, or what is next to it, with the incumbent by releases alone.

    Attributes:
        incumbent: The point, D numbers, encoded by the space.
        lead: How much better than the incumbent the recommendation is by estimate, or another
            point where the incumbent is recommended, in units of values; > 0 is better where
            values are maximised, too.
        sd: Standard deviation of that estimate.
        left: Whether another point than the incumbent is recommended.
        clip: The most that one record's difference counts for the lead; infinity for all of it.
        middle: Whether no incumbent was named, so that it is the middle of the ranges.
    """

    incumbent: list[float]
    lead: float
    sd: float
    left: bool
    clip: float = math.inf
    middle: bool = False

    def to_dict(self) -> dict[str, Any]:
        """JSON-ready figures, and the sentence that says them."""
        return {"left": self.left, "lead": self.lead, "sd": self.sd, "text": str(self)}

    def __str__(self) -> str:
        of = "the middle of the ranges" if self.middle else "the incumbent"
        most = f"; one record's difference counts at most {self.clip:.2g}, so 0-1 losses gain more"
        sure = f"standard deviation {self.sd:.2g}{most if math.isfinite(self.clip) else ''}"
        if self.left and self.lead > 0:
            return f"The recommendation is {self.lead:.2g} better than {of} ({sure})."
        if self.left:
            return (
                f"No release says clearly that {of} is better than the recommendation (whose "
                f"estimated gain is {self.lead:.2g}, {sure})."
            )
        if self.middle:
            return (
                f"{of.capitalize()} is recommended, {-self.lead:.2g} better than another point "
                f"({sure})."
            )
        return (
            f"No release says clearly that another point is better than {of}, so it is "
            f"recommended (estimated gain of another one {self.lead:.2g}, {sure})."
        )


@dataclass(frozen=True)
class Evaluation:
    """One point to evaluate: of one user's reward, one row or one agent's draw.

    Attributes:
        x: The point, shape (D,), encoded by the space.
        epoch: Which group of evaluations it belongs to; None if to none.
        agent: Which of several agents takes it; None where there is one.
        draw: Which of the agent's draws in the epoch it is.
    """

    x: Array
    epoch: int | None = None
    agent: int | None = None
    draw: int | None = None

    @property
    def slot(self) -> Slot | None:
        """The draw that it is, if it is one."""
        if self.epoch is None or self.agent is None or self.draw is None:
            return None
        return self.epoch, self.agent, self.draw

    def row(self, value: float) -> list[Any]:
        """The evaluation and its value, JSON-ready."""
        return [self.x.tolist(), self.epoch, self.agent, self.draw, value]

    @classmethod
    def of_row(cls, row: Sequence[Any]) -> tuple[Self, float]:
        """The inverse of :meth:`row`."""
        x, *place, value = row
        return cls(np.array(x, dtype=float), *place), float(value)


@dataclass(frozen=True)
class Words:
    """Describes an algorithm's releases for a guarantee; the session adds the rest.

    Attributes:
        statistics: What noise is added to, as "means of clipped values"; {unit} and {units} stand
            for what an entry of a vector is.
        parameters: Public parameters by name, those of the plan included once there is one.
        not_covered: Limits beyond those of every guarantee that rests on per-record losses.
    """

    statistics: str
    parameters: Mapping[str, Any] = field(default_factory=dict)
    not_covered: tuple[str, ...] = ()


@dataclass(frozen=True, kw_only=True)
class NoisyPlan(abc.ABC):
    """The base of all plans, which are dataclasses: they say where noise hides the signal.

    Attributes:
        seconds_per_trial: How long a trial takes; None if it is not known.
        n_workers: Trials that run at once.
        host_note: Lines in which a host says how to run it.
        n_asked: Trials that were asked for; None if that is not known.
        entries: Names the entries of a vector of losses.
    """

    seconds_per_trial: float | None = None
    n_workers: int = 1
    host_note: str = ""
    n_asked: int | None = field(default=None, compare=False, repr=False)
    entries: str = field(default="records", compare=False, repr=False)

    @property
    @abc.abstractmethod
    def noise_dominates(self) -> bool:
        """Tells if the noise is likely to hide the signal."""

    @abc.abstractmethod
    def noise_warning(self) -> str:
        """Says how large the noise is, what follows, and what helps."""

    def warn_if_noise_dominates(self) -> None:
        """Issues a :class:`UtilityWarning` where the noise is likely to hide the signal."""
        if self.noise_dominates:
            warn(self.noise_warning(), UtilityWarning)

    def presented(
        self, seconds_per_trial: float | None = None, n_workers: int = 1, host_note: str = ""
    ) -> Self:
        """Returns the plan with its time, and warns where the noise is likely to hide the signal.

        Args:
            seconds_per_trial: How long a trial takes; None if it is not known.
            n_workers: Trials that run at once.
            host_note: Lines in which a host says how to run it.

        Raises:
            ValueError: If they are no positive numbers.
        """
        integer(1).check("n_workers", n_workers)
        if seconds_per_trial is not None:
            POSITIVE.check("seconds_per_trial", seconds_per_trial)
        self.warn_if_noise_dominates()
        return replace(
            self, seconds_per_trial=seconds_per_trial, n_workers=n_workers, host_note=host_note
        )

    @property
    def turns(self) -> int:
        """Trials that run one after another while others run beside them; 0 if none is planned."""
        return math.ceil(getattr(self, "n_trials", 0) / self.n_workers)

    @property
    def seconds(self) -> float | None:
        """Adds up all trials; None if the time of one is not known."""
        return self.seconds_per_trial and self.turns * self.seconds_per_trial

    def _last_lines(self) -> list[str]:
        """Says how long it takes, where that is known, and whether noise hides the signal."""
        lines = ["  WARNING: the noise is likely to drown the signal"] * self.noise_dominates
        if self.seconds and self.seconds_per_trial:
            total, each = lasting(self.seconds), lasting(self.seconds_per_trial)
            time = f"  time: about {total}, with trials of {each}, {self.n_workers} at a time"
            lines.insert(0, time)
        if self.n_asked and self.n_asked > (planned := getattr(self, "n_trials", 0)):
            lines.insert(0, f"  {planned} trials of n_trials={self.n_asked}, as steps are whole")
        return [*lines, *self.host_note.splitlines()]

    def to_dict(self) -> dict[str, Any]:
        """JSON-ready fields, and the time if it is known; infinities as the string "inf"."""
        fields: Any = self
        told = asdict(fields) | {"seconds": self.seconds}
        left = {"host_note", "n_asked", "entries"} | (_TIME if self.seconds is None else set())
        return {k: "inf" if v == math.inf else v for k, v in told.items() if k not in left}


_TIME = {"seconds", "seconds_per_trial", "n_workers"}


def lasting(seconds: float) -> str:
    """Words a time in the unit that people say it in.

    Example:
        >>> lasting(9.4), lasting(1200), lasting(117 * 1200), lasting(7e5)
        ('9.4 s', '20 min', '39 h', '8.1 days')
    """
    units = ((86400 * 3, 86400, "days"), (7200, 3600, "h"), (120, 60, "min"), (0, 1, "s"))
    length, unit = next((length, name) for least, length, name in units if seconds >= least)
    return f"{float(f'{seconds / length:.2g}'):g} {unit}"


class CentralPlan(Protocol):
    """Plan and cost of a run on per-record losses; printing it shows both."""

    @property
    def n_trials(self) -> int:
        """Planned trials."""
        ...

    @property
    def value_noise(self) -> float:
        """Standard deviation of the noise on a released value; 0 where none is released."""
        ...

    def warn_if_noise_dominates(self) -> None:
        """Issues a ``UtilityWarning`` where the noise is likely to hide the signal."""
        ...

    def presented(
        self, seconds_per_trial: float | None = None, n_workers: int = 1, host_note: str = ""
    ) -> Self:
        """Returns the plan with its time, and warns as above: see :class:`NoisyPlan`."""
        ...


class CentralConfig(Protocol):
    """Settings of a run on per-record losses: public, compared by value, picklable.

    The class of an algorithm that another package brings also has ``registered_at``, the place of
    its entry as "module:NAME": see :func:`privbo_plugins.algorithms.registry.register`.
    """

    algorithm: ClassVar[str]
    """Name of the algorithm's entry in the registry."""

    @property
    def mu(self) -> float:
        """Total Gaussian DP parameter of the run; infinity for no privacy."""
        ...

    @property
    def training_mu(self) -> float | None:
        """Gaussian DP parameter that one training costs the training records."""
        ...

    @property
    def n_trials(self) -> int | None:
        """The user's limit of trials; None for none."""
        ...

    @property
    def trials_given(self) -> bool:
        """Tells if the settings say how long the run is, so that no host needs to."""
        ...

    def with_trials(self, n_trials: int | None) -> Self:
        """Returns these settings with another limit of trials."""
        ...

    def plain(self) -> Self:
        """Returns these settings without noise, clipping or end, for a run of plain floats."""
        ...

    def to_dict(self) -> dict[str, Any]:
        """JSON-ready settings, as vaults store them."""
        ...

    @classmethod
    def from_dict(cls, stored: Mapping[str, Any]) -> Self:
        """The inverse of :meth:`to_dict`."""
        ...


class RewardAlgorithm(abc.ABC):
    """Ask/tell over one number a trial: all that it learns from are the evaluations told.

    Args:
        config: The settings.
        space: The search space.
        maximize: Whether larger values are better.
        seed: Drives candidates and ties; a host may change it.

    Attributes:
        evaluations: What was told, in order, in the host's direction.
    """

    name: str
    noun: ClassVar[str] = "reward"
    """Names a value in errors."""

    def __init__(self, config: Any, space: Space, *, maximize: bool = True, seed: int = 0) -> None:
        self.config, self.space, self.maximize, self.seed = config, space, maximize, seed
        self.evaluations: list[tuple[Evaluation, float]] = []

    @property
    def t(self) -> int:
        """Number of evaluations told."""
        return len(self.evaluations)

    @abc.abstractmethod
    def ask(
        self, key: int, pending: Sequence[Evaluation] = (), *, may_wait: bool = False
    ) -> Evaluation | None:
        """The next evaluation.

        Args:
            key: Distinguishes this ask from others of the same seed.
            pending: Evaluations that were handed out and have no value yet.
            may_wait: Whether None may be returned until some of them have a value.

        Returns:
            The evaluation, or None to wait. Nothing changes; only :meth:`tell` learns.
        """

    def tell(self, evaluation: Evaluation, value: float) -> None:
        """Learns one value, in the host's direction.

        Raises:
            ValueError: If the value is not finite.
        """
        if not math.isfinite(value):
            raise ValueError(f"Each {self.noun} must be finite; privatised ones always are.")
        self.evaluations.append((evaluation, float(value)))
        self._learn(evaluation, float(value))

    @abc.abstractmethod
    def _learn(self, evaluation: Evaluation, value: float) -> None:
        """Takes in the last value, in the host's direction."""

    def recommendation(self) -> Array:
        """The point that the values so far recommend, shape (D,).

        Raises:
            ValueError: If nothing has been told yet.
        """
        if not self.evaluations:
            raise ValueError(f"There is nothing to recommend yet: no {self.noun} has been told.")
        return self._recommended()

    @abc.abstractmethod
    def _recommended(self) -> Array:
        """The same of one value or more."""

    def _reward(self, value: float) -> float:
        """A value of the host's as a reward to be maximised, and the other way round."""
        return float(value if self.maximize else -value)

    def state_dict(self) -> dict[str, Any]:
        """The transcript: JSON-ready, and public where the values are."""
        return {"evaluations": [evaluation.row(value) for evaluation, value in self.evaluations]}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Replays :meth:`state_dict` on a new object."""
        for row in state["evaluations"]:
            self.tell(*Evaluation.of_row(row))


class CentralAlgorithm(abc.ABC):
    """Ask/tell over releases; see :class:`privbo_plugins.algorithms.dp_gibo.DPGIBO`.

    What is not abstract says that no step of the run reads the losses of several trials. After a
    crash it is made anew, and observes the run's releases in order.

    Args:
        config: The settings.
        space: The search space.
        seed: Drives points, never noise.
        maximize: Whether per-record values are scores to maximise.
        plan: Of :meth:`make_plan`; None before the number of records is known.

    Attributes:
        incumbent: The point that users have today, shape (D,): of the settings, or else the first
            that was enqueued and released; None without one.

    Raises:
        ValueError: If the settings' incumbent is no point of the space.
    """

    name: str

    def __init__(
        self,
        config: Any,
        space: Space,
        *,
        seed: int,
        maximize: bool = False,
        plan: Any = None,
    ) -> None:
        self.config, self.space, self.seed, self.maximize = config, space, seed, maximize
        self.plan: Any = plan
        self.state: Any = None
        given = getattr(config, "incumbent", None)
        self.incumbent: Array | None = None if given is None else space.incumbent(given)
        self._enqueued = -math.inf if self.incumbent is not None else math.inf

    @property
    def value_noise(self) -> float:
        """Standard deviation of a released value's noise; 0 where there is none or no plan."""
        return 0.0 if self.plan is None else float(self.plan.value_noise)

    @property
    def _plan(self) -> Any:
        if self.plan is None:
            raise ValueError("The plan needs the number of records, which the first trial tells.")
        return self.plan

    def nominate(self, x: Sequence[float], order: int) -> None:
        """Takes a released point as the incumbent if it is the first of those enqueued.

        Args:
            x: The point, shape (D,).
            order: Its place among them. The settings' own incumbent comes before all.
        """
        if order < self._enqueued:
            self._enqueued, self.incumbent = order, np.array(x, dtype=float)

    def state_dict(self) -> dict[str, Any]:
        """JSON-ready public state: the fields of the dataclass ``state``; infinities as "inf"."""
        return {k: "inf" if v == math.inf else v for k, v in asdict(self.state).items()}

    @staticmethod
    @abc.abstractmethod
    def make_plan(config: Any, space: Space, n_records: int) -> CentralPlan:
        """The plan of a run over so many records.

        Raises:
            ValueError: If the settings leave no room for a run.
        """

    @staticmethod
    @abc.abstractmethod
    def words(config: Any, plan: Any) -> Words:
        """Describes what a run releases, for its guarantee; before a plan, ``plan`` is None."""

    @property
    @abc.abstractmethod
    def path(self) -> Sequence[Sequence[float]]:
        """Points (D,) to which the releases so far have led, one a step, for pictures."""

    @property
    def comparison(self) -> Comparison | None:
        """Compares recommendation and incumbent by releases; None while they say nothing."""
        return None

    @property
    def shortfall(self) -> str:
        """Says what the recommendation is not seen to keep, if anything; empty if nothing."""
        return ""

    @abc.abstractmethod
    def recommendation(self) -> Array:
        """The point that the releases so far recommend, shape (D,)."""

    @property
    @abc.abstractmethod
    def phase(self) -> tuple[str, int]:
        """Role and step of the next proposals."""

    @property
    @abc.abstractmethod
    def finished(self) -> bool:
        """True once the plan is used up."""

    @property
    @abc.abstractmethod
    def batch_capacity(self) -> int:
        """Number of evaluations that the plan has in the current step."""

    @abc.abstractmethod
    def propose(
        self, slot: int, out: Sequence[Array] = (), failed: Sequence[Array] = ()
    ) -> Proposal:
        """The point of a slot of the current step; slots beyond the batch are extra points.

        Args:
            slot: Which one.
            out: Points (D,) of the step's trials that are being evaluated.
            failed: Points of those that ended without a number.
        """

    @abc.abstractmethod
    def observe(self, release: Release) -> None:
        """Learns one release.

        Raises:
            ValueError: If the kind is not one of this algorithm's.
        """

    @abc.abstractmethod
    def value_query(self, trial: str, role: str, step: int, x: Array) -> Query | None:
        """Returns the query of one trial's own losses, or None."""

    @abc.abstractmethod
    def fallback_value(self, role: str, step: int) -> float:
        """Value of a trial without a release of its own, from earlier releases only."""

    def shown_value(self, release: Release | None, role: str, step: int, x: Array) -> float:  # noqa: ARG002
        """Value that a trial shows, from releases only; here its own, or what stands in for it.

        Args:
            release: The trial's own, not observed yet; None if there is none.
            role: Of the trial.
            step: Of the trial.
            x: Where it was evaluated, shape (D,).
        """
        return self.fallback_value(role, step) if release is None else release.value

    def step_queries(
        self,
        trials: Sequence[str],  # noqa: ARG002
        X: Sequence[Array],  # noqa: ARG002
        held: Collection[str] | None = None,  # noqa: ARG002
    ) -> list[Query]:
        """Returns the queries once these trials of the current step are done; [] if too early.

        ``held`` names the trials whose losses still exist; None means all.
        """
        return []

    def ready(self, done: Collection[int], given_up: Collection[int] = ()) -> bool:  # noqa: ARG002
        """Tells if the evaluated slots complete the batch of the current step.

        Args:
            done: Slots that are evaluated.
            given_up: Slots at which too many trials failed.
        """
        return False

    def wants_losses(self, role: str, step: int, release: Release | None = None) -> bool:  # noqa: ARG002
        """Tells if a trial's losses are still needed once its value is released.

        Args:
            role: Of the trial.
            step: Of the trial.
            release: Its value, not observed yet; None if they may matter at any value.
        """
        return False

    def remembered_after(self, last: Query) -> Collection[str]:  # noqa: ARG002
        """Trials whose losses are still needed after the last release of a step.

        Of the start, after each trial's own.
        """
        return ()
