"""Figures of a claim in words: what is printed never promises more than what holds.

A number counts as the decimal digits that Python prints for it, the shortest that read back as the
same number: 0.1 is printed as 0.1.
"""

from __future__ import annotations

from collections.abc import Sequence
from decimal import ROUND_CEILING, ROUND_FLOOR, Context, Decimal
from typing import Any

from privbo_plugins.errors import PrivacyWarning, warn

_EXACT = Context(prec=400, rounding=ROUND_CEILING)
"""Digits enough for every float's integral part."""

_GIVEN = 8
"""A number of no more digits was given by a person, and is printed as it is."""


def not_below(value: float, digits: int) -> str:
    """With so many significant digits, or as it was given, and never less than the value.

    Example:
        >>> not_below(1.0004900001, 4), not_below(0.1, 4), not_below(1.00049, 4)
        ('1.001', '0.1', '1.00049')
    """
    return _rounded(value, Context(prec=digits, rounding=ROUND_CEILING))


def not_above(value: float, digits: int) -> str:
    """With so many significant digits, or as it was given, and never more than the value."""
    return _rounded(value, Context(prec=digits, rounding=ROUND_FLOOR))


def _rounded(value: float, context: Context) -> str:
    exact = Decimal(_digits(value))
    return as_it_is(float(exact if _was_given(exact) else context.plus(exact)))


def together(mus: Sequence[float], who: str = "record") -> tuple[str, ...]:
    """Composes the runs of one object, as notes; none for a single run.

    Args:
        mus: What each run may spend.
        who: Whose mu it is.

    Example:
        >>> together([1.0, 1.0])[0].partition(":")[2]
        ' for a record that is in all of them 1.415-GDP at most together (squares of mu add up)'
    """
    from privbo_plugins.privacy.accountant import compose_mu

    if len(mus) < 2:
        return ()
    return (
        f"this object has made {len(mus)} runs: for a {who} that is in all of them "
        f"{not_below(compose_mu(mus), 4)}-GDP at most together (squares of mu add up)",
    )


def large_delta(delta: float, n: int | None, of: str) -> str:
    """Words a warning of a delta above 1/(10 N), for N of something; nothing of a smaller one.

    Example:
        >>> large_delta(0.01, 1000, "records").partition(":")[0], large_delta(1e-6, 1000, "rows")
        ('delta = 0.01 is large for 1000 records', '')
    """
    if not n or delta <= (least := 1 / (10 * n)):
        return ""
    return (
        f"delta = {not_below(delta, 3)} is large for {n} {of}: it is roughly the chance that the "
        f"promise fails. Give delta= of at most 1/(10 N) = {not_above(least, 3)}"
    )


def warn_of_delta(delta: float | None, n: int | None, of: str) -> None:
    """Warns where a delta is large for n of something; None for no delta."""
    if told := large_delta(delta or 0.0, n, of):
        warn(told, PrivacyWarning)


def two_decimals(value: float) -> str:
    """With two decimals (of small ones two digits), or as given, and never less than the value.

    Example:
        >>> [two_decimals(value) for value in (1.0000000001, 1.5, 4.005, 1 / 30)]
        ['1.01', '1.50', '4.005', '0.034']
    """
    exact = Decimal(_digits(value))
    if not exact.is_finite():
        return f"{value:.2f}"
    step = Decimal(1).scaleb(min(-2, exact.adjusted() - 1))
    shown = exact.quantize(step, context=_EXACT)
    return f"{exact if _was_given(exact) and exact != shown else shown:f}"


def _was_given(exact: Decimal) -> bool:
    return not exact.is_finite() or len(exact.normalize().as_tuple().digits) <= _GIVEN


def as_it_is(value: Any) -> str:
    """A public setting, not rounded at all.

    Example:
        >>> as_it_is(2.0), as_it_is(1e-6), as_it_is("refuse")
        ('2', '1e-06', 'refuse')
    """
    return _digits(value).removesuffix(".0") if isinstance(value, float) else str(value)


def _digits(value: float) -> str:
    return float.__repr__(float(value))
