"""Figures of a claim in words: what is printed never promises more than what holds.

A number counts as the decimal digits that Python prints for it, the shortest that read back as the
same number: 0.1 is printed as 0.1.
"""

from __future__ import annotations

import math
from decimal import ROUND_CEILING, ROUND_FLOOR, Context, Decimal
from typing import Any

_EXACT = Context(prec=400, rounding=ROUND_CEILING)
"""Digits enough for every float's integral part."""


def not_below(value: float, digits: int) -> str:
    """With so many significant digits, and never less than the value.

    Example:
        >>> not_below(1.00049, 4), not_below(0.1, 4)
        ('1.001', '0.1')
    """
    context = Context(prec=digits, rounding=ROUND_CEILING)
    return as_it_is(float(context.create_decimal(_digits(value))))


def not_above(value: float, digits: int) -> str:
    """With so many significant digits, and never more than the value."""
    context = Context(prec=digits, rounding=ROUND_FLOOR)
    return as_it_is(float(context.create_decimal(_digits(value))))


def two_decimals(value: float) -> str:
    """With two decimals, and never less than the value.

    Example:
        >>> two_decimals(1.0001), two_decimals(1.5), two_decimals(math.inf)
        ('1.01', '1.50', 'inf')
    """
    if not math.isfinite(value):
        return f"{value:.2f}"
    return f"{Decimal(_digits(value)).quantize(Decimal('0.01'), context=_EXACT):f}"


def as_it_is(value: Any) -> str:
    """A public setting, not rounded at all.

    Example:
        >>> as_it_is(2.0), as_it_is(1e-6), as_it_is("refuse")
        ('2', '1e-06', 'refuse')
    """
    return _digits(value).removesuffix(".0") if isinstance(value, float) else str(value)


def _digits(value: float) -> str:
    return float.__repr__(float(value))
