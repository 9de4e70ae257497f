"""What may be claimed, in words and in numbers."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import TYPE_CHECKING, Any, ClassVar, Self

from privbo_plugins.privacy.accountant import (
    ApproximateEvent,
    Cost,
    Counted,
    compose_delta,
    compose_epsilon,
    gdp_delta,
    gdp_epsilon,
)
from privbo_plugins.privacy.figures import as_it_is, not_above, not_below, two_decimals
from privbo_plugins.privacy.statement import Rows, Statement, guess, percent


class Epsilon(float):
    """A guarantee's epsilon: the number at the delta that it names, and called, at another one.

    Pickled and copied it is the plain number.

    Example:
        >>> g = LocalGuarantee(True, "randomised response", 1.0, 0.0, 3, 2, 2.0, 0.0, True)
        >>> g.epsilon, g.epsilon(), g.epsilon(1e-5)
        (2.0, 2.0, 2.0)
    """

    def __new__(cls, value: float, at: Callable[[float], float]) -> Epsilon:
        """The number, and what it is at another delta."""
        epsilon = super().__new__(cls, value)
        epsilon._at = at
        return epsilon

    _at: Callable[[float], float]

    def __call__(self, delta: float | None = None) -> float:
        """Epsilon at ``delta``, never rounded down; None for the delta that the claim names.

        Raises:
            ValueError: If delta is none, or nothing is known at it.
        """
        return float(self) if delta is None else self._at(delta)

    def __reduce__(self) -> Any:
        return float, (float(self),)


class _StoredEpsilon:
    """A dataclass's field that holds a number and shows an :class:`Epsilon`."""

    def __get__(self, guarantee: Any, owner: type) -> Epsilon:
        if guarantee is None:
            raise AttributeError("epsilon")  # which tells a dataclass that there is no default
        value = guarantee.__dict__["epsilon"] if guarantee.protected else math.inf
        return Epsilon(value, guarantee._at)

    def __set__(self, guarantee: Any, value: float) -> None:
        guarantee.__dict__["epsilon"] = float(value)


class PrivacyGuarantee:
    """What all guarantees have in common: who is protected, how, how far, and why not.

    Attributes:
        protected: False if nothing may be claimed; then ``reasons`` says why.
        mechanism: What is released and how.
        neighbours: The neighbouring relation.
        population: Whose data are protected, and against whom.
        parameters: Public parameters of the mechanism.
        not_covered: What the guarantee does not extend to.
        reasons: Why nothing is claimed, if so.
        notes: Facts a reader should know.
        epsilon: A number, infinity where nothing is claimed; ``epsilon(delta)`` is what holds at
            another delta.
    """

    if TYPE_CHECKING:
        protected: bool
        parameters: dict[str, Any]
        not_covered: tuple[str, ...]
        reasons: tuple[str, ...]
        notes: tuple[str, ...]

    _FIGURES: ClassVar[tuple[str, ...]] = ("epsilon",)
    """Fields that are infinite where nothing is claimed."""

    def __post_init__(self) -> None:
        for name in () if self.protected else self._FIGURES:
            object.__setattr__(self, name, math.inf)

    _UNPROTECTED: ClassVar[tuple[str, str, str, str]]
    """No such guarantee for what; why, if no reason is given; treat what as if it quoted whom."""

    def _at(self, delta: float) -> float:
        if not 0 <= delta < 1:
            raise ValueError(f"delta must lie in [0, 1), got {delta}.")
        return self._epsilon_at(delta) if self.protected else math.inf

    def _epsilon_at(self, delta: float) -> float:
        """Epsilon of a protected run at any delta in [0, 1)."""
        raise NotImplementedError

    @property
    def limits(self) -> tuple[str, ...]:
        """Everything that is not covered."""
        return self.not_covered

    def to_dict(self) -> dict[str, Any]:
        """JSON-ready fields; infinities as the string "inf"."""
        shown = asdict(self) | {"not_covered": self.limits}  # type: ignore[call-overload]
        shown.pop("composed", None)
        shown |= {name: getattr(self, name) for name in ("mechanism", "neighbours", "population")}
        return {name: _json_ready(value) for name, value in shown.items()}

    def to_json(self) -> str:
        """:meth:`to_dict` as text; its form is in ``certificate.schema.json``."""
        return json.dumps(self.to_dict(), indent=1, allow_nan=False)

    # For people -----------------------------------------------------------------------------

    _WHO: ClassVar[tuple[str, str]]
    """Whose data are protected, and against whom."""

    @property
    def best_guess(self) -> float:
        """The most that an attacker can be right with who guesses which of two worlds it is.

        Both are equally likely to begin with, so a coin is right with one half; 1 where nothing
        is claimed. The two worlds are ``neighbours``: the attacker knows everything else.
        """
        return guess(self._apart()) if self.protected else 1.0

    def _apart(self) -> float:
        """Total variation between two neighbours of a protected run: delta at epsilon 0."""
        raise NotImplementedError

    def _deltas(self) -> Sequence[float]:
        """Deltas at which epsilon is told."""
        raise NotImplementedError

    def figures(self) -> dict[str, Any]:
        """JSON-ready: epsilon at some deltas, and the attacker's best chance; "inf" for none."""
        epsilons = [
            {"delta": delta, "epsilon": _json_ready(self._at(delta))} for delta in self._deltas()
        ]
        return {"epsilons": epsilons, "best_guess": self.best_guess}

    def statement(self) -> Statement:
        """One sentence, a table and lists."""
        reasons = [("Why nothing is claimed", self.reasons)] if self.reasons else []
        lists = [*reasons, ("Not covered", self.limits)]
        lists += [("To know", self._noted())] if self._noted() else []
        if not self.protected:
            return Statement(self._unprotected_text(), False, [], lists)
        who, against = self._WHO
        mechanism, neighbours = (getattr(self, name) for name in ("mechanism", "neighbours"))
        rows = [
            ("Who is protected", who),
            ("Against whom", against),
            ("Neighbouring relation", neighbours),
            *self._how_much(),
            *((f"Epsilon at delta = {as_it_is(d)}", self._shown(d)) for d in self._deltas()),
            ("An attacker's best chance", self._chance()),
            *self._state(),
            ("Mechanism", mechanism),
            ("Parameters", self._settings()),
        ]
        return Statement(self._sentence(), True, rows, lists)

    def _shown(self, delta: float) -> str:
        return two_decimals(self._at(delta))

    def _chance(self) -> str:
        return (
            f"at most {percent(self.best_guess)}, where a coin has 50 %: to tell two neighbours "
            "apart that are equally likely to begin with, by whatever method, knowing everything "
            "else"
        )

    def _sentence(self) -> str:
        """The claim in one sentence."""
        raise NotImplementedError

    def _lasting_sentence(self) -> str:
        """The same where it stays true."""
        return self._sentence()

    def _how_much(self) -> Rows:
        """Figures beside epsilon."""
        return ()

    def _state(self) -> Rows:
        """How many are protected, and what has been spent."""
        raise NotImplementedError

    def to_markdown(self) -> str:
        """One sentence, a table, and what is not covered."""
        return self.statement().to_markdown()

    def _repr_markdown_(self) -> str:
        return self.to_markdown()

    def _repr_html_(self) -> str:
        return self.statement().to_html()

    _SPENDING: ClassVar[tuple[str, str, str | None, str, str | None]]
    """Names: of the measure; of the fields of what was spent, the budget, releases and delta."""

    def spending(self, budget: float | None = None) -> dict[str, Any]:
        """JSON-ready: releases so far, and what they have cost out of which budget.

        Args:
            budget: Where the guarantee knows none: the most that one user may pay; None for no
                limit.
        """
        measure, spent, total, releases, delta = self._SPENDING
        known = budget if total is None else float(getattr(self, total))
        told = (float(getattr(self, spent)), known) if self.protected else (math.inf, math.inf)
        if not (self.protected or self.reasons or getattr(self, releases)):
            told = 0.0, known  # nothing was published, and nothing stands against it
        return {
            "releases": int(getattr(self, releases)),
            "measure": measure,
            "delta": None if delta is None else float(getattr(self, delta)),
            "spent": _json_ready(told[0]),
            "budget": _json_ready(told[1]),
        }

    def __str__(self) -> str:
        return self._text(f"{self._so_far()} {self._ending()}", self._noted())

    @property
    def lasting(self) -> str:
        """The claim in words for what is stored: it says the cap ("at most") and nothing so far.

        So it stays true whatever is released after it was written, and everybody who knows the
        run's settings writes the same text. Notes on what has happened are left to ``str()``.
        """
        return self._text(f"{self._at_most()} {self._ending()} {_LASTING}", self._lasting_notes())

    def lasting_lines(self) -> tuple[str, str]:
        """The claim in one sentence, and what it costs at most; they stay true as well."""
        if not self.protected:
            return self._unprotected_text(), ""
        return self._lasting_sentence(), self._at_most()

    def _text(self, rest: str, notes: Sequence[str]) -> str:
        if not self.protected:
            return self._unprotected_text()
        return f"{self._claim_text()} {rest}{''.join(f' Note: {note}.' for note in notes)}"

    def _noted(self) -> tuple[str, ...]:
        """All notes, those on figures included."""
        return self.notes

    def _lasting_notes(self) -> tuple[str, ...]:
        """Notes on figures that stay true."""
        return ()

    def _unprotected_text(self) -> str:
        run, nothing, what, whom = self._UNPROTECTED
        return (
            f"NOT PROTECTED. No {run}: {'; '.join(self.reasons) or nothing}. Treat {what} as if "
            f"it quoted {whom}."
        )

    def _claim_text(self) -> str:
        """The claim in words, whatever was spent."""
        raise NotImplementedError

    def _so_far(self) -> str:
        """What was spent so far, in words."""
        raise NotImplementedError

    def _at_most(self) -> str:
        """What can be spent at most, in words."""
        raise NotImplementedError

    def _settings(self) -> str:
        return ", ".join(f"{k}={as_it_is(v)}" for k, v in self.parameters.items()) or "none"

    def _ending(self) -> str:
        return f"Not covered: {'; '.join(self.limits)}."


_LASTING = (
    "Nor is covered what the objective declared public, and what others wrote beside the "
    "releases. What was spent so far is in the ledger: guarantee() tells it, and notes on the run."
)
"""What a stored claim ends with."""


def _json_ready(value: Any) -> Any:
    if isinstance(value, float) and math.isinf(value):
        return "inf" if value > 0 else "-inf"
    if isinstance(value, dict):
        return {str(name): _json_ready(part) for name, part in value.items()}
    return type(value)(map(_json_ready, value)) if type(value) in (list, tuple) else value


_COIN = "tossing a coin gives 50 %"


def _tenths(delta: float) -> tuple[float, float, float]:
    """A delta, and two that are ten and a hundred times smaller."""
    return delta, float(f"{delta / 10:.12g}"), float(f"{delta / 100:.12g}")


def _known_pair(epsilon: float, delta: float) -> tuple[Counted, ...]:
    """A release of which nothing but this pair is known."""
    return (frozenset({(ApproximateEvent(epsilon, delta), 1)}),)


def _claimed(
    composed: tuple[Counted, ...], epsilon: float, claimed_delta: float, delta: float
) -> float:
    """Epsilon at another delta than the claimed one: of what was composed, if that is known.

    Otherwise a claim at its own delta holds at every larger one too.

    Raises:
        ValueError: If delta is smaller, and nothing else is known.
    """
    if composed and 0 < delta != claimed_delta:
        return max(compose_epsilon(dict(releases), delta) for releases in composed)
    if delta < claimed_delta:
        raise ValueError(
            f"This guarantee claims an epsilon at delta={claimed_delta} and larger ones; what "
            f"holds at delta={delta} is not known."
        )
    return epsilon


NOT_COVERED_COPIES = (
    "a process, container or virtual machine that is saved while it runs and resumed twice: both "
    "copies may draw the same noise, and then the difference of what they release is exact; "
    "what shows the releases (a study, a search's checkpoint, an agent's history) and the vault "
    "that pays for them, if both are restored from backups of the same moment or copied together: "
    "each copy then releases anew, and neither notices"
)
"""Limits of every guarantee: the noise generator's state lies in the process's memory, and who
remembers the releases can be copied with the ledger."""

NOT_COVERED_TUNER = (
    "training records: a model trained on secret data must be trained privately, and its cost "
    "declared as training_mu",
    "cross-validation losses, where one record both trains and validates",
    "objectives in which one record's loss depends on another validation record (early stopping, "
    "threshold or temperature selection, target scaling, batch statistics)",
    "runs in which row i is not the same record in every trial and on every worker (a shuffled "
    "loader, a split drawn anew, dropped rows)",
    "names, ranges, choices and constants of the search space, which are stored as they are",
    "run times, and whether a trial fails or is pruned",
    "what the objective itself prints, logs or writes",
    "other studies on the same records: their mu add up as squares",
    NOT_COVERED_COPIES,
)
"""Limits of every guarantee that rests on per-record losses."""


@dataclass(frozen=True)
class Guarantee(PrivacyGuarantee):
    """A privacy guarantee with everything it needs to be checked.

    Attributes:
        protected: False if nothing may be claimed; then ``reasons`` says why.
        mechanism: What is released and how.
        neighbours: The neighbouring relation.
        population: Whose data are protected.
        n_records: Their number, public under replace-one; None before it is known.
        mu: Declared total Gaussian DP parameter; infinity where nothing is claimed.
        mu_spent: What the ledger shows so far.
        n_releases: Number of noisy releases so far.
        parameters: Public parameters of the mechanism.
        not_covered: What the guarantee does not extend to.
        reasons: Why nothing is claimed, if so.
        notes: Facts a reader should know (failed trials).
        trainings: (mu, so many so far, at most so many) of trainings with a declared cost; of each
            run, where the guarantee is of several.

    Example:
        >>> g = Guarantee(True, "Gaussian mechanism", "replace-one", "records", 100, 1.0, 0.5, 3)
        >>> round(g.epsilon(1e-5), 3)
        4.377
    """

    protected: bool
    mechanism: str
    neighbours: str
    population: str
    n_records: int | None
    mu: float
    mu_spent: float
    n_releases: int
    parameters: dict[str, Any] = field(default_factory=dict)
    not_covered: tuple[str, ...] = NOT_COVERED_TUNER
    reasons: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()
    trainings: tuple[tuple[float, float, float], ...] = ()

    _FIGURES: ClassVar[tuple[str, ...]] = ("mu",)
    _SPENDING = ("mu", "_spent", "mu", "n_releases", None)
    _UNPROTECTED: ClassVar[tuple[str, str, str, str]] = (
        "privacy guarantee holds for this run",
        "no private release has been made",
        "every value, parameter and log line of it",
        "the records",
    )

    _WHO = (
        "each validation record",
        "whoever reads everything that the run publishes, and knows every other record",
    )

    def _apart(self) -> float:
        return gdp_delta(self.mu, 0.0)

    def _deltas(self) -> tuple[float, ...]:
        return _tenths(self._report_delta())

    def figures(self) -> dict[str, Any]:
        """Beside the others' figures: mu, and rho."""
        return {"mu": _json_ready(self.mu), "rho": _json_ready(self.rho), **super().figures()}

    def _sentence(self) -> str:
        every = "all" if self.n_records is None else f"all {self.n_records}"
        return (
            f"Whoever reads everything that this run publishes, and knows {every} validation "
            "records but one, guesses right which of two candidates that record is with a chance "
            f"of at most {percent(self.best_guess)}; {_COIN}."
        )

    def _how_much(self) -> Rows:
        rho = not_below(self.rho, 4)
        return (
            ("mu (Gaussian differential privacy)", not_below(self.mu, 4)),
            ("rho (zero-concentrated)", f"{rho}, exact; mu holds up to the noise library's grid"),
        )

    def _state(self) -> Rows:
        spent = f"mu = {not_below(self._spent, 4)} in {self.n_releases} releases"
        known = () if self.n_records is None else (("Records", str(self.n_records)),)
        return (*known, ("Spent so far", spent))

    @property
    def epsilon(self) -> Epsilon:
        """For the declared total: at the customary delta, or ``epsilon(delta)`` in (0, 1)."""
        return Epsilon(self._at(self._report_delta()), self._at)

    def _epsilon_at(self, delta: float) -> float:
        found, (asked, at) = gdp_epsilon(self.mu, delta), self._asked
        return asked if delta == at and asked >= found else found

    @property
    def _asked(self) -> tuple[float, float]:
        """The epsilon and delta that were asked for; (0, 0) where mu was."""
        epsilon, delta = (self.parameters.get(name) for name in ("epsilon", "delta"))
        if isinstance(epsilon, float) and isinstance(delta, float):
            return epsilon, delta
        return 0.0, 0.0

    def delta(self, epsilon: float) -> float:
        """Delta at ``epsilon`` >= 0 for the declared total; 1 where nothing is claimed."""
        return gdp_delta(self.mu, epsilon) if self.protected else 1.0

    @property
    def rho(self) -> float:
        """Zero-concentrated DP parameter mu² / 2; exact on the noise library's grid."""
        return self.mu**2 / 2 if self.protected else math.inf

    def _claim_text(self) -> str:
        delta, mu = self._report_delta(), not_below(self.mu, 4)
        size = "" if self.n_records is None else f" (n = {self.n_records})"
        epsilon = two_decimals(self.epsilon(delta))
        pair = f"(epsilon = {epsilon}, delta = {as_it_is(delta)})-differentially private and "
        return (
            f"Everything this run publishes is {pair if self._asked[1] else ''}{mu}-GDP (Gaussian "
            f"differential privacy, mu = {mu}; rho = {not_below(self.rho, 4)} zero-concentrated "
            f"DP exactly, mu-GDP up to the noise library's grid; epsilon = {epsilon} at delta = "
            f"{as_it_is(delta)}) for the {self.population}{size}. "
            f"Neighbouring relation: {self.neighbours}. Mechanism: {self.mechanism}. "
            f"Parameters: {self._settings()}."
        )

    def at_most(self) -> Self:
        """The same with all of mu spent, and all trainings that the plan allows."""
        trainings = tuple((mu, most, most) for mu, _, most in self.trainings)
        return replace(self, mu_spent=self.mu, trainings=trainings)

    def _so_far(self) -> str:
        return (
            f"Spent so far: mu = {not_below(self._spent, 4)} in {self.n_releases} releases; "
            f"the run cannot spend more than mu = {not_below(self.mu, 4)}."
        )

    def _at_most(self) -> str:
        return f"Spent at most: mu = {not_below(self.mu, 4)}, whatever the run releases."

    def _noted(self) -> tuple[str, ...]:
        done = [(mu, as_it_is(n), n) for mu, n, _ in self.trainings]
        return (*self.notes, *_of_trainings(done, "compose to"))

    def _lasting_notes(self) -> tuple[str, ...]:
        most = [(mu, f"at most {as_it_is(n)}", n) for mu, _, n in self.trainings]
        return _of_trainings(most, "compose to at most")

    @property
    def _spent(self) -> float:
        """Squares that add up to the declared total do so but for rounding."""
        return self.mu if self.mu < self.mu_spent <= self.mu * (1 + 1e-9) else self.mu_spent

    def _report_delta(self) -> float:
        """What was asked for, or a power of ten below 1/n: the customary delta for n records."""
        if 0 < self._asked[1] < 1:
            return self._asked[1]
        n = self.n_records or 10**5
        return float(f"1e-{math.ceil(math.log10(10 * n))}")


def _of_trainings(trainings: Sequence[tuple[float, str, float]], compose: str) -> tuple[str, ...]:
    """What trainings cost together: of each kind the cost of one, how many in words, how many."""
    if not trainings:
        return ()
    each = " and ".join(
        f"{count} trainings declared {not_below(mu, 4)}-GDP each" for mu, count, _ in trainings
    )
    total = not_below(math.sqrt(math.fsum(n * mu**2 for mu, _, n in trainings)), 4)
    return (
        f"training records: {each} {compose} {total}-GDP for the training records, if the "
        "training is what was declared",
    )


NOT_COVERED_LOCAL = (
    "what the user was shown (the parameters of each trial), and that the user took part",
    "whether a trial fails or is pruned, and run times",
    "what the objective itself prints, logs, writes or sends before it returns the reward",
    "the process and the machine on which the objective runs: the raw reward is there",
    "training data and everything else the objective reads, unless one reward is all of it that "
    "the trial depends on",
    "names, ranges, choices and constants of the search space, which are stored as they are",
    "the same user's rewards in other studies: their epsilons add up",
    NOT_COVERED_COPIES,
)
"""Limits of every guarantee for privatised rewards."""


@dataclass(frozen=True)
class LocalGuarantee(PrivacyGuarantee):
    """A local privacy guarantee: each reward is privatised before it leaves the user's process.

    Attributes:
        protected: False if nothing may be claimed; then ``reasons`` says why.
        mechanism: What happens to a reward.
        epsilon_evaluation: Epsilon of one evaluation; infinity where nothing is claimed.
        delta_evaluation: Delta of one evaluation; 0 for pure epsilon-LDP.
        n_evaluations: Evaluations (privatised rewards) released so far.
        most_evaluations: The most evaluations of one user; infinity where no ledger is at hand
            that counts them.
        epsilon_most: Epsilon for that user, at ``delta_most``.
        delta_most: 0 where epsilons simply add up.
        users_named: Whether the ledger knows which evaluations belong to one user.
        parameters: Public parameters of the mechanism.
        not_covered: What the guarantee does not extend to.
        reasons: Why nothing is claimed, if so.
        notes: Facts a reader should know.
        composed: What users paid, for figures at other deltas; not stored.

    Example:
        >>> g = LocalGuarantee(True, "randomised response", 1.0, 0.0, 3, 1, 1.0, 0.0, False)
        >>> str(g)[:46]
        'Every reward that this run publishes is 1-LDP '
    """

    protected: bool
    mechanism: str
    epsilon_evaluation: float
    delta_evaluation: float
    n_evaluations: int
    most_evaluations: float
    epsilon_most: float
    delta_most: float
    users_named: bool
    parameters: dict[str, Any] = field(default_factory=dict)
    not_covered: tuple[str, ...] = NOT_COVERED_LOCAL
    reasons: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()
    composed: tuple[Counted, ...] = field(default=(), repr=False)

    neighbours: ClassVar[str] = (
        "any two rewards whatsoever of the same user in the same evaluation"
    )
    population: ClassVar[str] = "each user, against everybody else, the tuner included"

    _FIGURES: ClassVar[tuple[str, ...]] = ("epsilon_evaluation", "epsilon_most")
    _SPENDING = ("epsilon", "epsilon_most", None, "n_evaluations", "delta_most")
    _UNPROTECTED: ClassVar[tuple[str, str, str, str]] = (
        "privacy guarantee holds for this run",
        "no privatised reward has been released",
        "every value, parameter and log line of it",
        "the users' rewards",
    )

    _WHO = ("each user's reward", "everybody else, the tuner included")

    def _apart(self) -> float:
        most = self.composed or _known_pair(self.epsilon_most, self.delta_most)
        return max(self._one_apart(), *(compose_delta(dict(user), 0.0) for user in most))

    def _one_apart(self) -> float:
        gaussian = self.parameters.get("mechanism") == "gaussian"
        one = Cost(self.epsilon_evaluation, self.delta_evaluation, gaussian)
        return compose_delta([one.event], 0.0)

    def _deltas(self) -> tuple[float, ...]:
        return (self.delta_most,)

    def _sentence(self) -> str:
        what = "rewards" if self.most_evaluations <= 1 else "series of rewards"
        return (
            f"Nobody, the tuner included, guesses right which of two {what} a user has given "
            f"with a chance of more than {percent(self.best_guess)}; {_COIN}."
        )

    def _lasting_sentence(self) -> str:
        once = replace(self, most_evaluations=1, epsilon_most=0.0, delta_most=0.0, composed=())
        return once._sentence()

    def _how_much(self) -> Rows:
        one = percent(guess(self._one_apart()))
        return (("One evaluation", f"{self._claim()}, a chance of at most {one}"),)

    def _state(self) -> Rows:
        done = f"{self.n_evaluations} evaluations. {self._users()}"
        return (("Released so far", done),)

    @property
    def epsilon(self) -> Epsilon:
        """Of the user who was asked most often, at ``delta_most`` or any larger delta."""
        return Epsilon(self.epsilon_most if self.protected else math.inf, self._at)

    def _epsilon_at(self, delta: float) -> float:
        return _claimed(self.composed, self.epsilon_most, self.delta_most, delta)

    def _claim_text(self) -> str:
        return (
            f"Every reward that this run publishes is {self._claim()} (local differential "
            f"privacy): it was clipped and privatised in the process that evaluated it. "
            f"Protected: {self.population}. Neighbouring relation: {self.neighbours}. "
            f"Mechanism: {self.mechanism}. Parameters: {self._settings()}."
        )

    def at_most(self) -> Self:
        """The same where nobody knows how often a user was asked whom the ledger names."""
        if not self.users_named:
            return self
        return replace(self, most_evaluations=math.inf, epsilon_most=math.inf)

    def _so_far(self) -> str:
        return f"Released so far: {self.n_evaluations} evaluations. {self._users()}"

    def _at_most(self) -> str:
        return (
            "That is the cost of one evaluation: a user who was asked k times has paid at most k "
            "times as much."
        )

    def _claim(self) -> str:
        epsilon = not_below(self.epsilon_evaluation, 4)
        if self.delta_evaluation:
            return f"({epsilon}, {not_below(self.delta_evaluation, 2)})-LDP"
        return f"{epsilon}-LDP"

    def _users(self) -> str:
        if not self.users_named:
            return (
                "One evaluation is taken to be one user, as declared; a user who was asked k "
                "times has paid k times."
            )
        if math.isinf(self.most_evaluations):
            return "How often one user was asked only the users' ledger knows: epsilon = inf."
        at = f" at delta = {not_below(self.delta_most, 2)}" if self.delta_most else ""
        return (
            f"The user asked most often had {self.most_evaluations} evaluations: epsilon = "
            f"{two_decimals(self.epsilon_most)}{at}."
        )


NOT_COVERED_FEDERATION = (
    "the server, which is trusted and sees what every agent sends",
    "an agent's own study, whose points and values are that agent's secret: keep it where only "
    "the agent can read",
    "what an agent publishes of its own results, models or recommendations",
    "that an agent is on the roster",
    "a server that was started again without its ledger, or with one restored from an older "
    "backup: it would spend the budget anew",
    "single records: hiding an agent's participation hides its records as a group, for "
    "the other agents and whoever sees what they receive, not from the server",
    "names, ranges and choices of the search space, and the public value range",
    "other federations of the same agents: their privacy losses add up",
    NOT_COVERED_COPIES,
)
"""Limits of every guarantee for a federation's agents."""

NOT_COVERED_AGGREGATE = (
    "a server that does not follow the protocol, such as one that hands out keys of its own "
    "making in the names of agents",
    "whoever breaks X25519, SHA-256 or ChaCha20, now or later, with what the server was sent",
    "who is there when, and who is lost in a round, which the server sees",
    "more agents that pool what they know with the server, if only by listening, or add no noise, "
    "than are named: less noise is left, and none once t of them pool, whose shares open every "
    "mask, of attempts that were given up too",
    "an agent that sends what it should not: its vector is clipped in its own process alone, so "
    "it can spoil the sum, though it learns no more of the others",
    *(limit for limit in NOT_COVERED_FEDERATION[1:] if not limit.startswith("single records")),
    "single records: hiding an agent's participation hides its records as a group",
)
"""Limits where the server sees the agents' noisy sum alone."""


@dataclass(frozen=True)
class FederationGuarantee(PrivacyGuarantee):
    """User-level privacy of a federation's broadcasts.

    Attributes:
        protected: False if nothing may be claimed; then ``reasons`` says why.
        n_agents: Agents on the roster; public.
        epsilon: Of all rounds that may be released, at ``delta``; infinity if not protected.
        delta: Of the claim.
        epsilon_spent: Of the rounds released so far, at ``delta``.
        n_rounds: Rounds that may be released.
        n_released: Rounds released so far.
        parameters: Public parameters of the mechanism.
        not_covered: What the guarantee does not extend to.
        reasons: Why nothing is claimed, if so.
        notes: Facts a reader should know.
        held: Whether rounds run on the server's clock, whoever sends.

    Example:
        >>> g = FederationGuarantee(True, 29, 3.997, 0.0246, 1.0, 3, 1)
        >>> "participation" in str(g)
        True
    """

    protected: bool
    n_agents: int
    epsilon: _StoredEpsilon = _StoredEpsilon()  # no default, which only mypy takes it for
    delta: float  # type: ignore[misc]
    epsilon_spent: float  # type: ignore[misc]
    n_rounds: int  # type: ignore[misc]
    n_released: int  # type: ignore[misc]
    parameters: dict[str, Any] = field(default_factory=dict)
    not_covered: tuple[str, ...] = NOT_COVERED_FEDERATION
    reasons: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()
    held: bool = False

    _FIGURES: ClassVar[tuple[str, ...]] = ("epsilon", "epsilon_spent")
    _SPENDING = ("epsilon", "epsilon_spent", "epsilon", "n_released", "delta")
    _UNPROTECTED: ClassVar[tuple[str, str, str, str]] = (
        "privacy guarantee holds for this federation",
        "no private broadcast has been made",
        "every broadcast",
        "the agents' vectors",
    )

    @property
    def colluding(self) -> int | None:
        """Agents that may pool with the server or add no noise; None if the server is trusted."""
        c: int | None = self.parameters.get("c")
        return c if self.parameters.get("trust") == "aggregate" else None

    @property
    def mechanism(self) -> str:
        """What is released and how."""
        if self.colluding is None:
            return (
                "each agent's vector is clipped, a Poisson sample of them is summed exactly, and "
                "Gaussian noise is added (OpenDP, up to its grid); composed by privacy loss "
                "distributions"
            )
        return (
            "each agent clips its vector, adds its share of discrete Gaussian noise (OpenDP) and "
            "masks both, so that the server can open the sum alone, of at least "
            f"{self.parameters['T']} agents; accounted for as the Gaussian noise of those that do "
            "not collude"
        )

    @property
    def population(self) -> str:
        """Whose data are protected, and against whom."""
        c = self.colluding
        if c is None:
            return (
                "each agent's participation, against the other agents and whoever sees what they "
                "receive"
            )
        return f"each agent's participation, against {self._against(c)}"

    @staticmethod
    def _against(c: int) -> str:
        return (
            f"the server, which follows the protocol, together with any {c} of the other agents "
            "(that pool what they know with it, or add no noise), and whoever sees what they "
            "receive"
        )

    @property
    def _WHO(self) -> tuple[str, str]:  # type: ignore[override]
        c, whose = self.colluding, "each agent's participation, with everything that it sends"
        if c is None:
            return whose, "the other agents and whoever sees what they receive, and not the server"
        return whose, self._against(c)

    def _apart(self) -> float:
        from privbo_plugins.privacy.subsampling import pld_delta

        q, z = (self.parameters.get(name) for name in "qz")
        if q is None or z is None:
            return compose_delta(dict(*_known_pair(self.epsilon, self.delta)), 0.0)
        return pld_delta(q, z, self.n_rounds, 0.0)

    def _deltas(self) -> tuple[float, ...]:
        composed = {"q", "z"} <= set(self.parameters)
        return _tenths(self.delta) if composed else (self.delta,)

    def _sentence(self) -> str:
        agent = f"one of its {self.n_agents} agents"
        what = f"{agent} takes part" if self.held else f"the vectors of {agent} counted"
        if self.colluding is not None:
            return (
                f"The server, with any {self.colluding} of the other agents, guesses right "
                f"whether {what} with a chance of at most {percent(self.best_guess)}; {_COIN}."
            )
        return (
            f"Whoever sees what this federation broadcasts guesses right whether {what} with a "
            f"chance of at most {percent(self.best_guess)}; {_COIN}."
        )

    def _state(self) -> Rows:
        spent = two_decimals(self.epsilon_spent)
        rounds = f"epsilon = {spent} in {self.n_released} of at most {self.n_rounds} rounds"
        return (("Agents on the roster", str(self.n_agents)), ("Spent so far", rounds))

    @property
    def neighbours(self) -> str:
        """What differs between two worlds that nobody can tell apart."""
        if self.held:
            return (
                "one agent takes part, with everything it ever sends, or does not (add or remove; "
                "the number of agents on the roster is public), where rounds run on the server's "
                "clock and agents run by themselves: in one loop or process that they share, a "
                "slow agent delays the others, and who sends when is taken as public"
            )
        return (
            "the vectors of one agent count as it sent them, or as zeros (add or remove, for the "
            "roster's public number of agents), while all send when they do: who is there when, "
            "and so which vectors reach which round, is taken as public"
        ) + (
            " (hold=True runs rounds on the server's clock instead)"
            if self.colluding is None
            else ""
        )

    def _epsilon_at(self, delta: float) -> float:
        """Composed anew where the parameters say of what."""
        from privbo_plugins.privacy.subsampling import pld_epsilon

        q, z = (self.parameters.get(name) for name in "qz")
        if delta == self.delta or q is None or z is None:
            return _claimed((), self.__dict__["epsilon"], self.delta, delta)
        return pld_epsilon(q, z, self.n_rounds, delta)

    def _claim_text(self) -> str:
        subject = "Everything this federation broadcasts"
        if self.colluding is not None:
            subject = "What this federation's server can read, and all that it broadcasts,"
        return (
            f"{subject} is user-level (epsilon = "
            f"{two_decimals(self.epsilon)}, delta = {not_below(self.delta, 3)})-differentially "
            f"private for {self.population} ({self.n_agents} on the roster). "
            f"Neighbouring relation: {self.neighbours}. Mechanism: {self.mechanism}. "
            f"Parameters: {self._settings()}."
        )

    def at_most(self) -> Self:
        """The same with the epsilon of all rounds spent."""
        return replace(self, epsilon_spent=self.epsilon)

    def _so_far(self) -> str:
        return (
            f"Spent so far: epsilon = {two_decimals(self.epsilon_spent)} in {self.n_released} "
            f"rounds; no more than {self.n_rounds} are released, whoever is late, silent or comes "
            "back."
        )

    def _at_most(self) -> str:
        return (
            f"Spent at most: epsilon = {two_decimals(self.epsilon)} in {self.n_rounds} rounds, "
            "whoever is late, silent or comes back."
        )


NOT_COVERED_OUTSOURCED = (
    "the curator, who holds the rows and is trusted",
    "the number of rows, their order, and that a person is one of them",
    "column names, and the public bounds that rows were scaled and clipped to",
    "which rows are asked for, whether a row has an outcome yet, and when answers come",
    "rows of the same person: k of them are released at sqrt(k) times the table's mu, and each of "
    "their answers counts",
    "outcomes that depend on other people's rows",
    "what a process that holds the rows reports of them beside the table and answers "
    "(attributes, logs)",
    "a vault that was copied, restored from an older backup or lost, where nothing that remembers "
    "it is asked (the file of the table at the path that is written to, files of answers in that "
    "folder, the study whose trials are answered, Ray's cluster): it would draw the table, and "
    "randomised answers, anew",
    "what the curator releases elsewhere of the same people, other tables of the same rows "
    "included: the privacy losses add up",
    NOT_COVERED_COPIES,
)
"""Limits of every guarantee for a released table."""

NOT_COVERED_BEYOND = (
    "changes of a row beyond that distance: a column with few values (a sex, a diagnosis) can "
    "then be read off the table, and so can that an entry is missing, if the middle of its bounds "
    "lies further away"
)
"""A limit where rows are protected up to a distance only."""

NOT_COVERED_ANSWERS = (
    "answers, and whatever they reveal of their rows: outcomes are given exactly as they are"
)
"""A limit where answers are not randomised."""

NOT_COVERED_REFUSAL = "that every row lies within the public bounds: other tables are refused"
"""A limit where tables beyond the bounds are refused."""


@dataclass(frozen=True)
class OutsourcedGuarantee(PrivacyGuarantee):
    """Privacy of a table's rows against whoever sees the released one, and of the answers.

    Attributes:
        protected: False if nothing may be claimed; then ``reasons`` says why.
        mechanism: "gaussian" or "projection".
        epsilon: Of everything released of one row, at ``delta``; infinity if not protected.
        delta: Of the claim.
        neighbor_distance: How far the row may differ between two worlds that cannot be told
            apart, in released units; None for any two rows.
        n_rows: Rows in the table; public.
        parameters: Public parameters of the mechanism.
        outcomes: How answers are privatised; None if they are given as they are.
        n_answers: Rows whose outcome has been told.
        not_covered: What the guarantee does not extend to.
        reasons: Why nothing is claimed, if so.
        notes: Facts a reader should know.
        composed: What was released of one row, for figures at other deltas; not stored.

    Example:
        >>> g = OutsourcedGuarantee(True, "gaussian", 1.0, 1e-5, 0.5, 1000)
        >>> "one row" in str(g)
        True
    """

    protected: bool
    mechanism: str
    epsilon: _StoredEpsilon = _StoredEpsilon()  # no default, which only mypy takes it for
    delta: float  # type: ignore[misc]
    neighbor_distance: float | None  # type: ignore[misc]
    n_rows: int  # type: ignore[misc]
    parameters: dict[str, Any] = field(default_factory=dict)
    outcomes: str | None = None
    n_answers: int = 0
    not_covered: tuple[str, ...] = NOT_COVERED_OUTSOURCED
    reasons: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()
    composed: tuple[Counted, ...] = field(default=(), repr=False)

    _SPENDING = ("epsilon", "epsilon", "epsilon", "n_answers", "delta")

    _UNPROTECTED: ClassVar[tuple[str, str, str, str]] = (
        "differential privacy guarantee holds for this table",
        "nothing has been released",
        "the released table",
        "the rows",
    )

    _WHO = (
        "each row of the curator's table",
        "the modeler and whoever else sees what was released, and not the curator",
    )

    def _apart(self) -> float:
        (one,) = self.composed or _known_pair(self.epsilon, self.delta)
        return compose_delta(dict(one), 0.0)

    def _deltas(self) -> tuple[float, ...]:
        return (self.delta,)

    def _sentence(self) -> str:
        distance = self.neighbor_distance
        near = "" if distance is None else f" at most {not_above(distance, 4)} apart"
        seen = "the released table and the answers" if self.outcomes else "the released table"
        return (
            f"Whoever sees {seen} guesses right which of two candidates{near} a row is with a "
            f"chance of at most {percent(self.best_guess)}; {_COIN}."
        )

    def _state(self) -> Rows:
        how = self.outcomes or "as they are, and without protection"
        return (("Rows", str(self.n_rows)), ("Answers told", f"{self.n_answers}: {how}"))

    @property
    def population(self) -> str:
        """Who is protected, and against whom."""
        seen = "the released table and the answers" if self.outcomes else "the released table"
        return f"each row of the curator's table, against the modeler and whoever sees {seen}"

    @property
    def neighbours(self) -> str:
        """What differs between the two worlds that the claim compares."""
        how_far = (
            "in any way"
            if self.neighbor_distance is None
            else f"by at most {not_above(self.neighbor_distance, 4)} in Euclidean norm over all "
            "columns together, in the scaled units of the release"
        )
        answers = "; the row's own outcome may differ in any way" if self.outcomes else ""
        return f"two tables of the same size that differ in one row, {how_far}{answers}"

    @property
    def limits(self) -> tuple[str, ...]:
        """Everything that is not covered."""
        more = [NOT_COVERED_BEYOND] if self.neighbor_distance is not None else []
        more += [] if self.outcomes else [NOT_COVERED_ANSWERS]
        more += [NOT_COVERED_REFUSAL] if self.parameters.get("on_excess") == "refuse" else []
        return (*self.not_covered, *more)

    def _epsilon_at(self, delta: float) -> float:
        return _claimed(self.composed, self.__dict__["epsilon"], self.delta, delta)

    def _so_far(self) -> str:
        return f"Answers told so far: {self.n_answers}, {self._answers()}."

    def _at_most(self) -> str:
        return f"Answers are told {self._answers()}."

    def _answers(self) -> str:
        if self.outcomes:
            return f"each randomised once: {self.outcomes}"
        return "as they are and without protection"

    def _claim_text(self) -> str:
        what = "table and the one answer to a row are" if self.outcomes else "table is"
        return (
            f"The released {what} (epsilon = {two_decimals(self.epsilon)}, delta = "
            f"{not_below(self.delta, 3)})-differentially private. Protected: {self.population} "
            f"(n = {self.n_rows}). Neighbouring relation: {self.neighbours}. "
            "Mechanism: rows scaled and clipped by public bounds, mixed by a public matrix, "
            "Gaussian noise on every one (OpenDP, up to its grid). "
            f"Parameters: {self._settings()}."
        )
