"""The four kinds of guarantees, and what each of them composes to.

Of a run on per-record losses, of users' rewards, of a federation's rounds, and of a released table
with its answers. A kind gives its figures; the words that tell them, and how each figure is
rounded, stand in ``words.toml``.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar, Self

from privbo_plugins.privacy.accountant import (
    Cost,
    compose_delta,
    compose_mu,
    gdp_delta,
    gdp_epsilon,
)
from privbo_plugins.privacy.claim import PrivacyGuarantee, Spending, json_ready, told
from privbo_plugins.privacy.statement import guess, percent
from privbo_plugins.privacy.words import RECORD, ROW, Words, as_row, plural, texts_of

__all__ = ["FederationGuarantee", "Guarantee", "LocalGuarantee", "OutsourcedGuarantee",
           "PrivacyGuarantee", "of_all"]  # fmt: skip


def _tenths(delta: float) -> tuple[float, float, float]:
    """A delta, and two that are ten and a hundred times smaller."""
    return delta, float(f"{delta / 10:.12g}"), float(f"{delta / 100:.12g}")


@dataclass(frozen=True, repr=False)
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
        in_blocks: Whether all are dealt into blocks that train and validate by themselves; then
            those that train are protected too.
        unit: What one entry of the losses is (or a block of): a record, or what the user has
            named.

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
    in_blocks: bool = field(default=False, kw_only=True)
    unit: str = field(default=RECORD, kw_only=True)  # type: ignore[misc]  # of others one for all

    _FIGURES: ClassVar[tuple[str, ...]] = ("mu",)
    _MEMBERS: ClassVar[str] = "n_records"

    def _kinds(self, *, lasting: bool) -> Sequence[str]:  # noqa: ARG002
        cases = {
            "records_validated": not self.in_blocks,
            "records_in_blocks": self.in_blocks,
            "records_by_mu": not self._asked[1],
            "records_unknown": self.n_records is None,
            "records_trained": bool(self.trainings),
            "records_of_units": self.unit != as_row(self.unit),
        }
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
        return self.mu if math.isclose(self.mu, self.mu_spent) else self.mu_spent

    @property
    def mu_left(self) -> float:
        """Returns what may still be spent: squares add up."""
        return math.sqrt(max(self.mu**2 - self.spent_mu**2, 0.0))

    @property
    def training_most(self) -> float:
        """Mu of all trainings that may be, as declared."""
        return compose_mu(*zip(*((mu, most) for mu, _, most in self.trainings), strict=True))

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
        return {"mu": json_ready(self.mu), "rho": json_ready(self.rho), **super().figures()}

    def _spending(self) -> Spending:
        return Spending("mu", self.spent_mu, self.mu, self.n_releases, None)

    def _notes(self, *, lasting: bool) -> Sequence[str]:
        """Beside the others' notes: what trainings cost together."""
        notes = super()._notes(lasting=lasting)
        if not self.trainings:
            return notes
        counted = [(mu, most if lasting else n) for mu, n, most in self.trainings]
        told = Words(texts_of("records", unit=self.unit), self, upto="at most " if lasting else "")
        each = [told.filled("{training}", n=n, training_mu=mu) for mu, n in counted]
        total = compose_mu(*zip(*counted, strict=True))
        return (*notes, told.filled("{trainings}", each=" and ".join(each), total=total))


def _of_different(units: Sequence[str], unit: str, sizes: Sequence[int | None]) -> Iterator[str]:
    """Says for whom a claim is, of runs that protect different units or numbers of them."""
    if len(units) > 1:  # of what belongs to one entry of each run, the claims of all hold
        yield (
            f"runs under this label protect different units ({', '.join(units)}): what is claimed "
            "is for a single record, which is a part of one of each"
        )
    if len(sizes) > 1:
        yield (
            f"runs under this label are on {', '.join(map(str, sizes))} {plural(unit)}: what is "
            f"claimed is for a {unit} that is in all of them"
        )
    yield (
        f"several runs on the same {plural(unit)}, of which the squares of mu are added: for "
        f"a {unit} that each of them protects"
    )


def _each(texts: Iterable[str]) -> str:
    return "; ".join(dict.fromkeys(texts))


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
    units = list(dict.fromkeys(claim.unit for claim in own))
    unit = units[0] if len(units) == 1 else RECORD
    sizes = sorted({claim.n_records for claim in own}, key=lambda n: (n is None, n or 0))
    trainings = tuple(training for claim in own for training in claim.trainings)
    if trainings and not all(claim.trainings for claim in own):
        trainings = ()
        notes.append("not all runs declared a cost of training, so none is claimed for them all")
    notes += _of_different(units, unit, sizes)
    apart = [c for c in own if not c.in_blocks] or own  # they bound nothing for what trains
    return Guarantee(
        protected=not reasons,
        mechanism=_each(c.mechanism for c in own),
        neighbours=_each(c.neighbours for c in apart),
        population=_each(c.population for c in apart),
        n_records=sizes[0] if len(sizes) == 1 else None,
        mu=compose_mu(claim.mu for claim in own),
        mu_spent=compose_mu(claim.mu_spent for claim in own),
        n_releases=sum(claim.n_releases for claim in own),
        parameters={f"mu of {name}": claim.mu for name, claim in claims},
        not_covered=tuple(dict.fromkeys(limit for c in own for limit in c.not_covered)),
        reasons=tuple(reasons),
        notes=tuple(notes),
        trainings=trainings,
        in_blocks=all(claim.in_blocks for claim in own),
        unit=unit,
    )


@dataclass(frozen=True, repr=False)
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
        >>> g
        <LocalGuarantee: epsilon = 1 at delta = 0 in each evaluation (local differential privacy)>
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
    neighbours, population = map(told, ("relation", "who"))

    def _kinds(self, *, lasting: bool) -> Sequence[str]:
        cases = {
            "rewards_delta": self.delta_evaluation > 0,
            "rewards_at_delta": self.delta_most > 0,
            "rewards_series": not lasting and self.most_evaluations > 1,
            "rewards_uncounted": math.isinf(self.most_evaluations),
            "rewards_unnamed": not self.users_named,
            "rewards_so_far": not lasting,
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
        """The same where it is not known how often a user was asked, who may be named later."""
        return replace(self, most_evaluations=math.inf, epsilon_most=math.inf, composed=())

    def _spending(self) -> Spending:
        return Spending("epsilon", self.epsilon_most, None, self.n_evaluations, self.delta_most)


@dataclass(frozen=True, repr=False)
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
    _MEMBERS: ClassVar[str] = "n_agents"
    counted: ClassVar[str] = "rounds"
    mechanism, neighbours, population = map(told, ("how", "relation", "who"))

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
        """The claim's, and its tenths where it is known what rounds compose of."""
        return _tenths(self.delta) if self.composed else (self.delta,)

    def at_most(self) -> Self:
        """The same with the epsilon of all rounds spent."""
        return replace(self, epsilon_spent=self.epsilon)

    def _spending(self) -> Spending:
        return Spending("epsilon", self.epsilon_spent, self.epsilon, self.n_released, self.delta)


@dataclass(frozen=True, repr=False)
class OutsourcedGuarantee(PrivacyGuarantee):
    """A guarantee for the rows of a curator's table, of the released one and of the answers.

    Attributes:
        mechanism: "gaussian" or "projection".
        epsilon: Of everything released of one row, at ``delta``; infinity if not protected.
        delta: Of the claim.
        neighbor_distance: How far the row may differ between two worlds that cannot be told
            apart, in released units; None for any two rows.
        n_rows: Rows in the table; public.
        unit: What one of those who are protected is called.
        rows_per_group: Rows of one of them that count at most; None where each row is one.
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
    unit: str = field(default=ROW, kw_only=True)  # type: ignore[misc]  # of others one for all
    rows_per_group: int | None = field(default=None, kw_only=True)
    outcomes: str | None = field(default=None, kw_only=True)
    n_answers: int = field(default=0, kw_only=True)

    _MEMBERS: ClassVar[str] = "n_rows"
    counted: ClassVar[str] = "answers"
    neighbours, population = map(told, ("relation", "who"))

    def _kinds(self, *, lasting: bool) -> Sequence[str]:  # noqa: ARG002
        return (
            "rows",
            "rows_any" if self.neighbor_distance is None else "rows_near",
            "answers" if self.outcomes else "rows_plain",
            *(["rows_of_units"] if self.unit != ROW else ()),
            *(["rows_in_groups"] if self.rows_per_group is not None else ()),
            *(["answers_in_groups"] if self.rows_per_group is not None and self.outcomes else ()),
        )

    def _spending(self) -> Spending:
        return Spending("epsilon", self.epsilon, self.epsilon, self.n_answers, self.delta)
