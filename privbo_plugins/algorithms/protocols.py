"""Protocols of algorithms: framework-free ask/tell objects with explicit state.

Those that tune on per-record losses are :class:`CentralAlgorithm`. ``propose`` reads releases
only; ``observe`` is the only way it learns, and it learns releases, never raw losses. A
:class:`Query` describes a private statistic; the session that owns the vault, the ledger and the
noise carries it out.

Those that tune on one number a trial, privatised before it reaches them, are
:class:`RewardAlgorithm`: whatever they do with it is post-processing.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar, Protocol, Self, runtime_checkable

import numpy as np
from numpy.typing import NDArray

from privbo_plugins.spaces import Space

ATTEMPTS = 3
"""So many trials at one place (a draw, a row, an agent's round) may end without a number, and so
many trainings are charged for a planned trial."""

Array = NDArray[np.float64]
Slot = tuple[int, int, int]

START, STEP, FINAL, OUTSIDE = "start", "step", "final", "outside"
"""Roles of a trial: chooses the start, informs a step, evaluates the recommendation, or was not
asked for by the plan."""

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
        kind: "value", "final", "gradient" or "norm".
        key: Which one of its kind.
        values: The noisy vector.
        meta: Public facts needed to learn from it.
    """

    kind: str
    key: str
    values: tuple[float, ...]
    meta: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Query:
    """A bounded statistic of per-record losses and what it costs to release it.

    Attributes:
        kind: See :class:`Release`. "value" and "final" are values of trials: hosts show them,
            and their ``meta`` holds "role" and "step".
        key: See :class:`Release`; kind and key together are unique in a run.
        statistic: From blocks of losses, (n_block, m) each, to the exact value, shape (d,).
        sensitivity: L2 sensitivity under replace-one.
        mu: Gaussian DP parameter to spend on it.
        trials: Whose losses it reads, in the column order of the blocks.
        offset: Public number added after the noise; the statistic is measured from it.
        meta: Public facts stored with the release.
    """

    kind: str
    key: str
    statistic: Callable[[Iterable[Array]], Array]
    sensitivity: float
    mu: float
    trials: tuple[str, ...] = ()
    offset: float = 0.0
    meta: Mapping[str, Any] = field(default_factory=dict)


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


@dataclass(frozen=True)
class Words:
    """Describes an algorithm's releases for a guarantee; the session adds the rest.

    Attributes:
        statistics: What noise is added to, as "means of clipped values".
        parameters: Public parameters by name, those of the plan included once there is one.
        not_covered: Limits beyond those of every guarantee that rests on per-record losses.
    """

    statistics: str
    parameters: Mapping[str, Any] = field(default_factory=dict)
    not_covered: tuple[str, ...] = ()


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

    def warn_if_drowned(self) -> None:
        """Issues a ``UtilityWarning`` where the noise is likely to drown the signal."""
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
        """Whether the settings say how long the run is, so that no host needs to."""
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


class Algorithm(Protocol):
    """The base of all algorithms."""

    name: str

    def recommendation(self) -> Array:
        """The point that the releases so far recommend, shape (D,)."""
        ...

    def state_dict(self) -> dict[str, Any]:
        """JSON-ready public state."""
        ...

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restores :meth:`state_dict`."""
        ...


class RewardAlgorithm(Algorithm, Protocol):
    """Ask/tell over rewards; see :mod:`privbo_plugins.algorithms.ldp_gp_ucb`."""

    def ask(
        self, key: int, pending: Sequence[Evaluation] = (), *, may_wait: bool = False
    ) -> Evaluation | None:
        """The next evaluation while others are pending; None to wait for them."""
        ...

    def tell(self, evaluation: Evaluation, value: float) -> None:
        """Learns one value."""
        ...


class SeededAlgorithm(RewardAlgorithm, Protocol):
    """Over one space, with candidates that a seed drives, which a host may change."""

    space: Space
    seed: int


class DrawAlgorithm(RewardAlgorithm, Protocol):
    """Goes on once it knows an epoch's draws: :class:`privbo_plugins.algorithms.duets.DUETS`."""

    evaluations: list[tuple[Evaluation, float]]
    """Evaluations and their values, in order."""

    @property
    def epoch(self) -> int:
        """The open epoch."""
        ...

    def slots(self) -> list[Slot]:
        """Draws of the open epoch (epoch, agent, draw); none once the last one is over."""
        ...

    def open_slots(self) -> list[Slot]:
        """Those of :meth:`slots` that have no number yet, in that order."""
        ...

    def evaluation_of(self, slot: Slot) -> Evaluation:
        """Returns the evaluation of a draw of the open epoch."""
        ...

    def give_up(self, evaluation: Evaluation, value: float) -> None:
        """Counts a draw of the open epoch as a value without an observation."""
        ...

    def worst(self, known: Sequence[float]) -> float | None:
        """Value that a draw without a number counts as, given others; None if there is none."""
        ...


class CentralAlgorithm(Algorithm, Protocol):
    """Ask/tell over releases; see :class:`privbo_plugins.algorithms.dp_gibo.DPGIBO`."""

    @property
    def plan(self) -> CentralPlan | None:
        """Known once the number of records is."""
        ...

    @property
    def path(self) -> Sequence[Sequence[float]]:
        """Points (D,) to which the releases so far have led, one a step, for pictures."""
        ...

    @property
    def phase(self) -> tuple[str, int]:
        """Role and step of the next proposals."""
        ...

    @property
    def finished(self) -> bool:
        """True once the plan is used up."""
        ...

    @property
    def room(self) -> int:
        """Number of evaluations that the plan has in the current step."""
        ...

    def propose(self, slot: int) -> Proposal:
        """The point of a slot of the current step; slots beyond the batch are extra points."""
        ...

    def observe(self, release: Release) -> None:
        """Learns one release."""
        ...

    def value_query(self, trial: str, role: str, step: int, x: Array) -> Query | None:
        """Returns the query of one trial's own losses, or None."""
        ...

    def step_queries(
        self, trials: Sequence[str], X: Sequence[Array], held: Collection[str] | None = None
    ) -> list[Query]:
        """Returns the queries once these trials of the current step are done; [] if too early.

        ``held`` names the trials whose losses still exist; None means all.
        """
        ...

    def ready(self, n_done: int) -> bool:
        """Whether so many evaluated points complete the batch of the current step."""
        ...

    def fallback_value(self, role: str, step: int) -> float:
        """Value of a trial without a release of its own, from earlier releases only."""
        ...

    def wants_losses(self, role: str, step: int) -> bool:
        """Whether a trial's losses are still needed once its value is released."""
        ...

    def remembered_after(self, last: Query) -> Sequence[tuple[str, Any]]:
        """(trial, x) of the losses that are still needed after the last release of a step."""
        ...


@runtime_checkable
class SmoothsValues(Protocol):
    """A :class:`CentralAlgorithm` whose trials show estimates instead of single noisy draws."""

    def shown_value(self, release: Release | None, role: str, step: int, x: Array) -> float:
        """Value that a trial publishes, from releases only, its own (not observed yet) included.

        Args:
            release: The trial's own; None if there is none.
            role: Of the trial.
            step: Of the trial.
            x: Where it was evaluated, shape (D,).
        """
        ...


@runtime_checkable
class PendingAware(Protocol):
    """A :class:`CentralAlgorithm` that proposes other points where trials are out or failed."""

    def propose_beside(
        self, slot: int, out: Sequence[Array], failed: Sequence[Array] = ()
    ) -> Proposal:
        """As ``propose``, which knows of no other trial.

        Args:
            slot: As for ``propose``.
            out: Points (D,) of the step's trials that are being evaluated.
            failed: Points of those that ended without a number.
        """
        ...
