"""Makes the claim for a run: its figures, and the words that tell them.

There is one class of guarantee, :class:`PrivacyGuarantee`, and four kinds of figures: of a run on
per-record losses, of users' rewards, of a federation's rounds, and of a released table with its
answers. A kind gives its figures and what they compose to; the words that tell them, and how each
figure is rounded, stand in ``words.toml``. Everything that is printed, stored or compared is made
of these here.
"""

from __future__ import annotations

import abc
import json
import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple, Self

from privbo_plugins.privacy.accountant import (
    ApproximateEvent,
    Cost,
    Counted,
    compose_delta,
    compose_epsilon,
    compose_mu,
    gdp_delta,
    gdp_epsilon,
)
from privbo_plugins.privacy.figures import as_it_is, two_decimals
from privbo_plugins.privacy.statement import Statement, guess, percent
from privbo_plugins.privacy.words import Words, texts_of


def _told(name: str) -> Any:
    """Makes a property of a text of ``words.toml``."""
    return property(lambda guarantee: guarantee._words()[name])


class Spending(NamedTuple):
    """What was spent: the measure, how much of it, out of what, in how many releases.

    ``total`` is None where the guarantee knows no budget, ``delta`` where the measure has none.
    """

    measure: str
    spent: float
    total: float | None
    releases: int
    delta: float | None


@dataclass(frozen=True)
class PrivacyGuarantee(abc.ABC):
    """What all guarantees have in common: who is protected, how, how far, and why not.

    Attributes:
        protected: False if nothing may be claimed; then ``reasons`` says why.
        mechanism: What is released and how.
        neighbours: The neighbouring relation.
        population: Whose data are protected, and against whom.
        parameters: Public parameters of the mechanism.
        not_covered: What the guarantee does not extend to; empty for what its kind never does.
        reasons: Why nothing is claimed, if so.
        notes: Facts a reader should know.
        composed: What was released of one who is protected, for figures at other deltas; of
            several, any of whom may have paid most. Not stored.
        epsilon: At the delta that the claim names; infinity where nothing is claimed.
    """

    protected: bool
    parameters: dict[str, Any] = field(default_factory=dict, kw_only=True)
    not_covered: tuple[str, ...] = field(default=(), kw_only=True)
    reasons: tuple[str, ...] = field(default=(), kw_only=True)
    notes: tuple[str, ...] = field(default=(), kw_only=True)
    composed: tuple[Counted, ...] = field(default=(), repr=False, kw_only=True)

    _FIGURES: ClassVar[tuple[str, ...]] = ("epsilon",)
    """Fields that are infinite where nothing is claimed."""

    counted: ClassVar[str] = "trials"
    """In what a run is counted: trials, rounds or answers."""

    def __post_init__(self) -> None:
        for name in () if self.protected else self._FIGURES:
            object.__setattr__(self, name, math.inf)
        if not self.not_covered:
            limits = texts_of(*self._kinds(lasting=False))["not_covered"]
            object.__setattr__(self, "not_covered", limits)

    # What a kind gives ----------------------------------------------------------------------

    if TYPE_CHECKING:  # a field of some kinds

        @property
        def epsilon(self) -> float: ...  # noqa: D102

    @abc.abstractmethod
    def _kinds(self, *, lasting: bool) -> Sequence[str]:
        """Tables of its words, the last one deciding; ``lasting`` for what stays true."""

    @abc.abstractmethod
    def _spending(self) -> Spending:
        """Measures what was spent, out of what."""

    def _epsilon_at(self, delta: float) -> float:
        """Epsilon of a protected run at any delta in [0, 1).

        Of what was composed, if that is known; a claim at its own delta holds at larger ones too.
        """
        claimed = self._spending().delta or 0.0
        if self.composed and 0 < delta != claimed:
            return max(compose_epsilon(dict(releases), delta) for releases in self.composed)
        if delta < claimed:
            raise ValueError(
                f"This guarantee claims an epsilon at delta={claimed} and larger ones; what "
                f"holds at delta={delta} is not known."
            )
        return self.epsilon

    def _apart(self) -> float:
        """Total variation between two neighbours of a protected run: delta at epsilon 0."""
        pair = ApproximateEvent(self.epsilon, self._spending().delta or 0.0)
        known = self.composed or (frozenset({(pair, 1)}),)
        return max(compose_delta(dict(releases), 0.0) for releases in known)

    @property
    def deltas(self) -> tuple[float, ...]:
        """Deltas at which epsilon is shown; the first one is the claim's."""
        return (self._spending().delta or 0.0,)

    def _notes(self, *, lasting: bool) -> Sequence[str]:
        """Notes, those on figures included; ``lasting`` for those that stay true."""
        return () if lasting else self.notes

    @property
    def _lasting_chance(self) -> float:
        """The attacker's best chance that stays true."""
        return self.best_guess

    def at_most(self) -> Self:
        """The same with everything spent that can be, for what may have fallen behind."""
        return self

    # Figures --------------------------------------------------------------------------------

    def epsilon_at(self, delta: float) -> float:
        """Epsilon at ``delta``, never rounded down; infinity where nothing is claimed.

        Raises:
            ValueError: If delta lies outside [0, 1), or nothing is known at it.
        """
        if not 0 <= delta < 1:
            raise ValueError(f"delta must lie in [0, 1), got {delta}.")
        return self._epsilon_at(delta) if self.protected else math.inf

    @property
    def best_guess(self) -> float:
        """The best chance to guess right which of two worlds it is, by any method.

        Both are equally likely to begin with, so a coin is right with one half; 1 where nothing
        is claimed. The two worlds are ``neighbours``: the attacker knows everything else.
        """
        return guess(self._apart()) if self.protected else 1.0

    def figures(self) -> dict[str, Any]:
        """JSON-ready: epsilon at some deltas, and the attacker's best chance; "inf" for none."""
        epsilons = [
            {"delta": delta, "epsilon": _json_ready(self.epsilon_at(delta))}
            for delta in self.deltas
        ]
        return {"epsilons": epsilons, "best_guess": self.best_guess}

    def spending(self, budget: float | None = None) -> dict[str, Any]:
        """JSON-ready: releases so far, and what they have cost out of which budget.

        Args:
            budget: Where the guarantee knows none: the most that one user may pay; None for no
                limit.
        """
        measure, spent, total, releases, delta = self._spending()
        known = budget if total is None else total
        if not self.protected:  # where nothing was published, nothing stands against it
            spent, known = (math.inf, math.inf) if self.reasons or releases else (0.0, known)
        return {
            "releases": int(releases),
            "measure": measure,
            "delta": delta,
            "spent": _json_ready(spent),
            "budget": _json_ready(known),
        }

    def to_dict(self) -> dict[str, Any]:
        """JSON-ready fields; infinities as the string "inf"."""
        shown = asdict(self)
        shown.pop("composed", None)
        shown |= {name: getattr(self, name) for name in ("mechanism", "neighbours", "population")}
        return {name: _json_ready(value) for name, value in shown.items()}

    def to_json(self) -> str:
        """:meth:`to_dict` as text; its form is in ``certificate.schema.json``."""
        return json.dumps(self.to_dict(), indent=1, allow_nan=False)

    # For people -----------------------------------------------------------------------------

    def _words(self, *, lasting: bool = False) -> Words:
        """The texts of its kind, and the facts that they name besides its own attributes.

        Args:
            lasting: For what is stored: the cap ("at most") and nothing so far.
        """
        cases = {"lasting": lasting, "unclaimed": not self.protected}
        texts = texts_of(
            *self._kinds(lasting=lasting), *(c for c, holds in cases.items() if holds)
        )
        return Words(
            texts,
            self,
            chance=percent(self._lasting_chance if lasting else self.best_guess),
            why="; ".join(self.reasons) or texts["nothing"],
            settings=", ".join(f"{k}={as_it_is(v)}" for k, v in self.parameters.items()) or "none",
            limits="; ".join(self.not_covered),
            remarks="".join(f" Note: {note}." for note in self._notes(lasting=lasting)),
        )

    def statement(self) -> Statement:
        """One sentence, a table and lists."""
        known = [
            ("Why nothing is claimed", self.reasons),
            ("Not covered", self.not_covered),
            ("To know", tuple(self._notes(lasting=False))),
        ]
        lists = [(heading, points) for heading, points in known if points]
        words = self._words()
        rows = [] if not self.protected else [
            ("Who is protected", words["who"]),
            ("Neighbouring relation", words["relation"]),
            *words.rows("figures"),
            *(
                (f"Epsilon at delta = {as_it_is(delta)}", two_decimals(self.epsilon_at(delta)))
                for delta in self.deltas
            ),
            ("An attacker's best chance", words["best_chance"]),
            *words.rows("sizes"),
            (words["spent_row"], words["spent"]),
            ("Mechanism", words["how"]),
            ("Parameters", words.filled("{settings}")),
        ]  # fmt: skip
        return Statement(words["sentence"], self.protected, rows, lists)

    def to_markdown(self) -> str:
        """One sentence, a table, and what is not covered."""
        return self.statement().to_markdown()

    def _repr_markdown_(self) -> str:
        return self.to_markdown()

    def _repr_html_(self) -> str:
        return self.statement().to_html()

    def __str__(self) -> str:
        return self._words()["text"]

    @property
    def lasting(self) -> str:
        """The claim in words for what is stored: it says the cap ("at most") and nothing so far.

        So it stays true after further releases, and all who know the run's settings write the
        same text. Notes on what has happened are left to ``str()``.
        """
        return self._words(lasting=True)["text"]

    def lasting_lines(self) -> tuple[str, str]:
        """The claim in one sentence, and what it costs at most; they stay true as well."""
        words = self._words(lasting=True)
        return words["sentence"], words["capped"]


def _json_ready(value: Any) -> Any:
    if isinstance(value, float) and math.isinf(value):
        return "inf" if value > 0 else "-inf"
    if isinstance(value, dict):
        return {str(name): _json_ready(part) for name, part in value.items()}
    return type(value)(map(_json_ready, value)) if type(value) in (list, tuple) else value


def _tenths(delta: float) -> tuple[float, float, float]:
    """A delta, and two that are ten and a hundred times smaller."""
    return delta, float(f"{delta / 10:.12g}"), float(f"{delta / 100:.12g}")


@dataclass(frozen=True)
class Guarantee(PrivacyGuarantee):
    """A guarantee for the records whose losses a run was given.

    Attributes:
        mechanism: What is released and how.
        neighbours: The neighbouring relation.
        population: Whose data are protected.
        n_records: Their number, public under replace-one; None before it is known.
        mu: Declared total Gaussian DP parameter; infinity where nothing is claimed.
        mu_spent: What the ledger shows so far.
        n_releases: Number of noisy releases so far.
        trainings: (mu, so many so far, at most so many) of trainings with a declared cost; of each
            run, where the guarantee is of several.

    Example:
        >>> g = Guarantee(True, "Gaussian mechanism", "replace-one", "records", 100, 1.0, 0.5, 3)
        >>> round(g.epsilon_at(1e-5), 3)
        4.377
    """

    mechanism: str
    neighbours: str
    population: str
    n_records: int | None
    mu: float
    mu_spent: float
    n_releases: int
    trainings: tuple[tuple[float, float, float], ...] = field(default=(), kw_only=True)

    _FIGURES: ClassVar[tuple[str, ...]] = ("mu",)

    def _kinds(self, *, lasting: bool) -> Sequence[str]:  # noqa: ARG002
        cases = {"records_by_mu": not self._asked[1], "records_unknown": self.n_records is None}
        return ("records", *(name for name, holds in cases.items() if holds))

    @property
    def epsilon(self) -> float:
        """Of the declared total, at the first of ``deltas``."""
        return self.epsilon_at(self.deltas[0])

    @property
    def rho(self) -> float:
        """Zero-concentrated DP parameter mu² / 2; exact on the noise library's grid."""
        return self.mu**2 / 2

    @property
    def spent_mu(self) -> float:
        """``mu_spent``; squares that add up to the declared total do so but for rounding."""
        return self.mu if self.mu < self.mu_spent <= self.mu * (1 + 1e-9) else self.mu_spent

    def delta(self, epsilon: float) -> float:
        """Delta at ``epsilon`` >= 0 for the declared total; 1 where nothing is claimed."""
        return gdp_delta(self.mu, epsilon)

    @property
    def deltas(self) -> tuple[float, ...]:
        """Lists the delta asked for, or the customary power of ten below 1/n; and tenths."""
        n = self.n_records or 10**5
        customary = float(f"1e-{math.ceil(math.log10(10 * n))}")
        asked = self._asked[1]
        return _tenths(asked if 0 < asked < 1 else customary)

    @property
    def _asked(self) -> tuple[float, float]:
        """The epsilon and delta that were asked for; (0, 0) where mu was."""
        epsilon, delta = (self.parameters.get(name) for name in ("epsilon", "delta"))
        if isinstance(epsilon, float) and isinstance(delta, float):
            return epsilon, delta
        return 0.0, 0.0

    def _epsilon_at(self, delta: float) -> float:
        found, (asked, at) = gdp_epsilon(self.mu, delta), self._asked
        return asked if delta == at and asked >= found else found

    def _apart(self) -> float:
        return gdp_delta(self.mu, 0.0)

    def at_most(self) -> Self:
        """The same with all of mu spent, and all trainings that the plan allows."""
        trainings = tuple((mu, most, most) for mu, _, most in self.trainings)
        return replace(self, mu_spent=self.mu, trainings=trainings)

    def figures(self) -> dict[str, Any]:
        """Beside the others' figures: mu, and rho."""
        return {"mu": _json_ready(self.mu), "rho": _json_ready(self.rho), **super().figures()}

    def _spending(self) -> Spending:
        return Spending("mu", self.spent_mu, self.mu, self.n_releases, None)

    def _notes(self, *, lasting: bool) -> Sequence[str]:
        """Beside the others' notes: what trainings cost together."""
        notes = super()._notes(lasting=lasting)
        if not self.trainings:
            return notes
        words, upto = texts_of("records"), "at most " if lasting else ""
        counted = [(mu, most if lasting else n) for mu, n, most in self.trainings]
        told = Words(words, self, upto=upto)
        each = [told.filled(words["training"], n=n, training_mu=mu) for mu, n in counted]
        total = compose_mu(*zip(*counted, strict=True))
        return (*notes, told.filled(words["trainings"], each=" and ".join(each), total=total))


def of_all(claims: Sequence[tuple[str, Guarantee]]) -> Guarantee:
    """Composes the guarantees of several runs on the same records.

    Squares of mu add up, exactly for zero-concentrated DP. If nothing can be claimed for one run,
    nothing is claimed for all.

    Args:
        claims: Of each run its name and its guarantee.
    """
    own = [claim for _, claim in claims]
    reasons = [
        f"{name}: {why}"
        for name, claim in claims
        if not claim.protected
        for why in claim.reasons or ("nothing is claimed",)
    ]
    notes = [f"{name}: {note}" for name, claim in claims for note in claim.notes]
    sizes = sorted({claim.n_records for claim in own}, key=lambda n: (n is None, n or 0))
    if len(sizes) > 1:
        notes.append(
            f"runs under this label are on {', '.join(map(str, sizes))} records: what is claimed "
            "is for a record that is in all of them"
        )
    mechanism, neighbours, population = (
        "; ".join(dict.fromkeys(texts))
        for texts in zip(*((c.mechanism, c.neighbours, c.population) for c in own), strict=True)
    )
    return Guarantee(
        protected=not reasons,
        mechanism=mechanism,
        neighbours=neighbours,
        population=population,
        n_records=sizes[0] if len(sizes) == 1 else None,
        mu=compose_mu(claim.mu for claim in own),
        mu_spent=compose_mu(claim.mu_spent for claim in own),
        n_releases=sum(claim.n_releases for claim in own),
        parameters={f"mu of {name}": claim.mu for name, claim in claims},
        not_covered=tuple(dict.fromkeys(limit for c in own for limit in c.not_covered)),
        reasons=tuple(reasons),
        notes=(*notes, "several runs on the same records, of which the squares of mu are added"),
        trainings=tuple(training for claim in own for training in claim.trainings),
    )


@dataclass(frozen=True)
class LocalGuarantee(PrivacyGuarantee):
    """A guarantee for users, each of whose rewards is privatised before it leaves their process.

    Attributes:
        mechanism: What happens to a reward.
        epsilon_evaluation: Epsilon of one evaluation; infinity where nothing is claimed.
        delta_evaluation: Delta of one evaluation; 0 for pure epsilon-LDP.
        n_evaluations: Evaluations (privatised rewards) released so far.
        most_evaluations: The most evaluations of one user; infinity where no ledger is at hand
            that counts them.
        epsilon_most: Epsilon for that user, at ``delta_most``.
        delta_most: 0 where epsilons simply add up.
        users_named: Whether the ledger knows which evaluations belong to one user.

    Example:
        >>> g = LocalGuarantee(True, "randomised response", 1.0, 0.0, 3, 1, 1.0, 0.0, False)
        >>> str(g)[:46]
        'Every reward that this run publishes is 1-LDP '
    """

    mechanism: str
    epsilon_evaluation: float = math.inf
    delta_evaluation: float = 0.0
    n_evaluations: int = 0
    most_evaluations: float = 0
    epsilon_most: float = math.inf
    delta_most: float = 0.0
    users_named: bool = False

    _FIGURES: ClassVar[tuple[str, ...]] = ("epsilon_evaluation", "epsilon_most")
    neighbours, population = map(_told, ("relation", "who"))

    def _kinds(self, *, lasting: bool) -> Sequence[str]:
        cases = {
            "rewards_delta": self.delta_evaluation > 0,
            "rewards_at_delta": self.delta_most > 0,
            "rewards_series": not lasting and self.most_evaluations > 1,
            "rewards_uncounted": math.isinf(self.most_evaluations),
            "rewards_unnamed": not self.users_named,
        }
        return ("rewards", *(name for name, holds in cases.items() if holds))

    @property
    def epsilon(self) -> float:
        """Of the user who was asked most often, at ``delta_most``."""
        return self.epsilon_most

    def _apart(self) -> float:
        return max(self._one_apart(), super()._apart())

    def _one_apart(self) -> float:
        """The same of one evaluation."""
        gaussian = self.parameters.get("mechanism") == "gaussian"
        one = Cost(self.epsilon_evaluation, self.delta_evaluation, gaussian)
        return compose_delta([one.event], 0.0)

    @property
    def _lasting_chance(self) -> float:
        return guess(self._one_apart()) if self.protected else 1.0

    @property
    def chance_of_one(self) -> str:
        """An attacker's best chance after one evaluation, in percent."""
        return percent(self._lasting_chance)

    def at_most(self) -> Self:
        """The same where it is not known how often a named user was asked."""
        if not self.users_named:
            return self
        return replace(self, most_evaluations=math.inf, epsilon_most=math.inf, composed=())

    def _spending(self) -> Spending:
        return Spending("epsilon", self.epsilon_most, None, self.n_evaluations, self.delta_most)


@dataclass(frozen=True)
class FederationGuarantee(PrivacyGuarantee):
    """A guarantee for the agents of a federation, of everything that it broadcasts.

    Attributes:
        n_agents: Agents on the roster; public.
        epsilon: Of all rounds that may be released, at ``delta``; infinity if not protected.
        delta: Of the claim.
        epsilon_spent: Of the rounds released so far, at ``delta``.
        n_rounds: Rounds that may be released.
        n_released: Rounds released so far.
        held: Whether rounds run on the server's clock, whichever agents send.

    Example:
        >>> g = FederationGuarantee(True, 29, 3.997, 0.0246, 1.0, 3, 1)
        >>> "participation" in str(g)
        True
    """

    n_agents: int
    epsilon: float
    delta: float
    epsilon_spent: float
    n_rounds: int
    n_released: int
    held: bool = field(default=False, kw_only=True)

    _FIGURES: ClassVar[tuple[str, ...]] = ("epsilon", "epsilon_spent")
    counted: ClassVar[str] = "rounds"
    mechanism, neighbours, population = map(_told, ("how", "relation", "who"))

    def _kinds(self, *, lasting: bool) -> Sequence[str]:  # noqa: ARG002
        cases = {"aggregate": self.parameters.get("trust") == "aggregate", "held": self.held}
        return ("federation", *(name for name, holds in cases.items() if holds))

    @property
    def T(self) -> int | None:
        """Agents without whom the server cannot open a sum, where it is not trusted."""
        return self.parameters.get("T")

    @property
    def c(self) -> int | None:
        """Agents that may pool what they know with such a server."""
        return self.parameters.get("c")

    @property
    def deltas(self) -> tuple[float, ...]:
        """The claim's, and its tenths where the parameters say what rounds compose of."""
        return _tenths(self.delta) if self._round else (self.delta,)

    @property
    def _round(self) -> tuple[float, float] | None:
        """(q, z) of each round, where the parameters say them."""
        q, z = (self.parameters.get(name) for name in "qz")
        return None if q is None or z is None else (q, z)

    def _epsilon_at(self, delta: float) -> float:
        from privbo_plugins.privacy.subsampling import pld_epsilon

        if delta == self.delta or self._round is None:
            return super()._epsilon_at(delta)
        return pld_epsilon(*self._round, self.n_rounds, delta)

    def _apart(self) -> float:
        from privbo_plugins.privacy.subsampling import pld_delta

        if self._round is None:
            return super()._apart()
        return pld_delta(*self._round, self.n_rounds, 0.0)

    def at_most(self) -> Self:
        """The same with the epsilon of all rounds spent."""
        return replace(self, epsilon_spent=self.epsilon)

    def _spending(self) -> Spending:
        return Spending("epsilon", self.epsilon_spent, self.epsilon, self.n_released, self.delta)


@dataclass(frozen=True)
class OutsourcedGuarantee(PrivacyGuarantee):
    """A guarantee for the rows of a curator's table, of the released one and of the answers.

    Attributes:
        mechanism: "gaussian" or "projection".
        epsilon: Of everything released of one row, at ``delta``; infinity if not protected.
        delta: Of the claim.
        neighbor_distance: How far the row may differ between two worlds that cannot be told
            apart, in released units; None for any two rows.
        n_rows: Rows in the table; public.
        outcomes: How answers are privatised; None if they are given as they are.
        n_answers: Rows whose outcome has been told.

    Example:
        >>> g = OutsourcedGuarantee(True, "gaussian", 1.0, 1e-5, 0.5, 1000)
        >>> "one row" in str(g)
        True
    """

    mechanism: str
    epsilon: float
    delta: float
    neighbor_distance: float | None
    n_rows: int
    outcomes: str | None = field(default=None, kw_only=True)
    n_answers: int = field(default=0, kw_only=True)

    counted: ClassVar[str] = "answers"
    neighbours, population = map(_told, ("relation", "who"))

    def _kinds(self, *, lasting: bool) -> Sequence[str]:  # noqa: ARG002
        return (
            "rows",
            "rows_any" if self.neighbor_distance is None else "rows_near",
            "answers" if self.outcomes else "rows_plain",
            *(["rows_refused"] if self.parameters.get("on_excess") == "refuse" else ()),
        )

    def _spending(self) -> Spending:
        return Spending("epsilon", self.epsilon, self.epsilon, self.n_answers, self.delta)
