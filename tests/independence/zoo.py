"""Odd records: what may stand where one validation record, reward or coordinate is."""

import logging
import math
import sys
import warnings
from decimal import Decimal
from fractions import Fraction

import numpy as np

ORDINARY = 0.5

SPOKEN = "the odd record says 0.8125"
"""What an object of the zoo prints or logs while it is converted.

That is the user's code speaking, as if the objective had printed it, so lines of just these words
are taken out of a console and a log before they are compared.
"""

QUOTED = "the odd record is 0.8125"
"""What it raises or warns of; this must not be seen anywhere."""


class Raises:
    """Not convertible, and quotes itself."""

    def __init__(self, kind=ValueError):
        self.kind = kind

    def __float__(self):
        raise self.kind(QUOTED)

    def __repr__(self):
        return QUOTED


class Prints:
    """Prints while it is converted."""

    def __float__(self):
        print(SPOKEN)
        print(SPOKEN, file=sys.stderr)
        return 0.8125


class Warns:
    """Warns while it is converted."""

    def __float__(self):
        warnings.warn(QUOTED, RuntimeWarning, stacklevel=1)
        return 0.8125


class Logs:
    """Logs while it is converted."""

    def __float__(self):
        logging.getLogger("privbo").warning(SPOKEN)
        return 0.8125


class LongArray:
    """Looks like an array of another shape than a number's."""

    def __array__(self, dtype=None, copy=None):
        return np.array([0.5, 0.5])


NUMBERS = {
    "nan": math.nan, "infinity": math.inf, "minus infinity": -math.inf, "huge": 1e308,
    "minus huge": -1e308, "denormal": 5e-324, "minus zero": -0.0, "one": 1.0,
    "beyond the range": -7.25,
}  # fmt: skip
"""Floats: these may also be coordinates of a vector."""

OBJECTS = {
    "none": lambda: None,
    "text": lambda: "Jane Doe",
    "number as text": lambda: "0.25",
    "bytes": lambda: b"Jane",
    "complex": lambda: 0.25 + 1j,
    "one-element list": lambda: [0.25],
    "two-element list": lambda: [0.25, 0.75],
    "empty list": list,
    "dictionary": lambda: {"loss": 0.25},
    "decimal": lambda: Decimal("0.25"),
    "signalling nan": lambda: Decimal("sNaN"),
    "fraction": lambda: Fraction(1, 3),
    "masked": lambda: np.ma.masked,
    "float16": lambda: np.float16(0.25),
    "long double": lambda: np.longdouble(0.25),
    "huge long double": lambda: np.longdouble("1e4000"),
    "unsigned byte": lambda: np.uint8(200),
    "big-endian": lambda: np.array(0.25, dtype=">f8")[()],
    "array of no dimension": lambda: np.array(0.25),
    "complex scalar": lambda: np.complex64(0.25),
    "time": lambda: np.datetime64("2020-01-01"),
    "span of time": lambda: np.timedelta64(3, "s"),
    "text scalar": lambda: np.str_("Jane"),
    "structured": lambda: np.zeros((), dtype=[("loss", "f8")])[()],
    "true": lambda: True,
    "numpy true": lambda: np.True_,
    "integer": lambda: 3,
    "integer beyond 64 bits": lambda: 2**80,
    "integer too big for a float": lambda: 10**400,
    "raises": Raises,
    "raises type error": lambda: Raises(TypeError),
    "raises overflow": lambda: Raises(OverflowError),
    "prints": Prints,
    "warns": Warns,
    "logs": Logs,
    "array-like": LongArray,
}

ZOO = {**{name: (lambda value=value: value) for name, value in NUMBERS.items()}, **OBJECTS}
"""By name, what makes the odd record anew."""
