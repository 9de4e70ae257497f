"""What all guarantees have in common, and the three layers in which each is shown.

A headline says who is protected, how strongly, and who is not; a box of facts follows; then the
limits by their kind, notes and details. Everything that is printed, stored or compared is made of
one :class:`~privbo_plugins.privacy.statement.Statement`, whose words stand in ``words.toml``.
"""

from __future__ import annotations

import abc
import json
import math
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple, Self

from privbo_plugins.privacy.accountant import (
    ApproximateEvent,
    Counted,
    compose_delta,
    compose_epsilon,
)
from privbo_plugins.privacy.figures import as_it_is, large_delta, two_decimals
from privbo_plugins.privacy.statement import Statement, guess, percent
from privbo_plugins.privacy.words import LIMITS, RECORD, WORDS, Words, limit_of, plural, texts_of


def told(name: str) -> Any:
    """Makes a property of a text of ``words.toml``."""
    return property(lambda guarantee: guarantee._words()[name])


_NOT_STORED = ("composed", "where")


class SoFar(str):
    """A note on what has happened so far, which no stored claim repeats."""


class Spending(NamedTuple):
    """What was spent: the measure, how much of it, out of what, in how many releases.

    ``total`` is None where the guarantee knows no budget, ``delta`` where the measure has none.
    """

    measure: str
    spent: float
    total: float | None
    releases: int
    delta: float | None


@dataclass(frozen=True, repr=False)
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
        where: Name of the run, and its host; empty where they are not known. Not stored.
        epsilon: At the delta that the claim names; infinity where nothing is claimed.
    """

    protected: bool
    parameters: dict[str, Any] = field(default_factory=dict, kw_only=True)
    not_covered: tuple[str, ...] = field(default=(), kw_only=True)
    reasons: tuple[str, ...] = field(default=(), kw_only=True)
    notes: tuple[str, ...] = field(default=(), kw_only=True)
    composed: tuple[Counted, ...] = field(default=(), kw_only=True)
    where: str = field(default="", compare=False, kw_only=True)

    _FIGURES: ClassVar[tuple[str, ...]] = ("epsilon",)
    """Fields that are infinite where nothing is claimed."""

    _MEMBERS: ClassVar[str] = ""
    """The field that counts those who are protected, where that is one number for good."""

    unit: ClassVar[str] = RECORD  # what is protected, where the kind's own words do not say it

    counted: ClassVar[str] = "trials"
    """In what a run is counted: trials, rounds or answers."""

    def __post_init__(self) -> None:
        for name in () if self.protected else self._FIGURES:
            object.__setattr__(self, name, math.inf)
        if not self.not_covered:
            limits = texts_of(*self._kinds(lasting=False), unit=self.unit)["not_covered"]
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
        n, of = getattr(self, self._MEMBERS, None), self._MEMBERS.removeprefix("n_")
        of = plural(self.unit) if of == plural(RECORD) else of
        texts = texts_of(unit=self.unit)
        alone = texts["alone"] + texts["by_groups"] * ("scores" not in self.parameters)
        rows = self.unit.endswith(" row") and self.protected
        notes = [*[alone] * rows, *filter(None, [large_delta(self.deltas[0], n, of)]), *self.notes]
        if not lasting:
            return notes
        kept = [note for note in notes if not isinstance(note, SoFar)]
        return [*kept, *[texts_of("lasting")["so_far"]] * self.protected]

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
            {"delta": delta, "epsilon": json_ready(self.epsilon_at(delta))}
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
            "spent": json_ready(spent),
            "budget": json_ready(known),
        }

    def to_dict(self) -> dict[str, Any]:
        """JSON-ready fields; infinities as the string "inf"."""
        shown = {name: value for name, value in asdict(self).items() if name not in _NOT_STORED}
        shown |= {name: getattr(self, name) for name in ("mechanism", "neighbours", "population")}
        return {name: json_ready(value) for name, value in shown.items()}

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
            *self._kinds(lasting=lasting),
            *(c for c, holds in cases.items() if holds),
            unit=self.unit,
        )
        chance = self._lasting_chance if lasting else self.best_guess
        return Words(
            texts,
            self,
            chance=percent(chance),
            strength=next(word for word, most in WORDS["strengths"].items() if chance <= most),
            why="; ".join(self.reasons) or texts["nothing"],
            settings=", ".join(f"{k}={as_it_is(v)}" for k, v in self.parameters.items()) or "none",
        )

    def statement(self, *, lasting: bool = False, pages: bool = True) -> Statement:
        """Headline, box, lists of limits, and what is folded.

        Args:
            lasting: For what is stored: the cap ("at most") and nothing so far.
            pages: Whether limits name the page of this package's documentation about them.
        """
        words, weakest = self._words(lasting=lasting), [*WORDS["strengths"]][-1]
        folded = [
            *words.rows("folded"),
            *(
                (f"Epsilon at delta = {as_it_is(delta)}", two_decimals(self.epsilon_at(delta)))
                for delta in (() if lasting else self.deltas)
            ),
        ]
        return Statement(
            words["headline"],
            self.protected,
            words.filled("{strength}") == weakest,
            words.rows("box"),
            [
                (WORDS["headings"][of], points)
                for of, points in self._lists(lasting, pages)
                if points
            ],
            folded if self.protected else [],
        )

    def _lists(self, lasting: bool, pages: bool) -> Iterator[tuple[str, Sequence[str]]]:
        """Lists why nothing is claimed, or else the limits by their kinds; and notes."""
        yield "reasons", () if lasting else self.reasons
        beside = texts_of("lasting")["scope"].values() if lasting else ()
        limits = [
            limit_of(text, self.unit) for text in (*self.not_covered, *beside) if self.protected
        ]
        for kind in LIMITS:
            own = [(said, f" ({page})" * pages) for of, said, page in limits if of == kind]
            yield kind, [f"{said}{page}" for said, page in own]
        yield "notes", tuple(self._notes(lasting=lasting))

    def details(self) -> str:
        """All of the claim: headline, box, limits, notes and the mechanism's settings."""
        return self.statement().to_text()

    def to_markdown(self) -> str:
        """The same as a table and lists, with a form for what the team confirms."""
        return self.statement().to_markdown()

    def _repr_html_(self) -> str:
        return self.statement().to_html()

    def __str__(self) -> str:
        return self.statement().to_text(self._words()["more"])

    def __repr__(self) -> str:
        told = self._words()["privacy"] if self.protected else "NOT PROTECTED"
        return f"<{type(self).__name__}: {told}>"

    @property
    def lasting(self) -> str:
        """All of the claim in one paragraph for what is stored: the cap, and nothing so far.

        So it stays true after further releases, and all who know the run's settings write the
        same text, with every note that stays true.
        """
        return self.statement(lasting=True).in_one_line()


def json_ready(value: Any) -> Any:
    """Makes infinities the strings "inf" and "-inf", at any depth."""
    if isinstance(value, float) and math.isinf(value):
        return "inf" if value > 0 else "-inf"
    if isinstance(value, dict):
        return {str(name): json_ready(part) for name, part in value.items()}
    return type(value)(map(json_ready, value)) if type(value) in (list, tuple) else value
