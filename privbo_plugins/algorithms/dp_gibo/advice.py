"""Names the methods that were measured to be as good as any for d parameters and a budget.

What the methods have in common is the budget n mu: the noise of both is a function of it and of
the trials alone. The table is that of :mod:`benchmarks.map`. Everything here is public.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterable
from functools import lru_cache
from importlib.resources import files
from typing import Any

_NAMES = {
    "dp-gibo": "DP-GIBO",
    "means-tpe": "private means with a TPE sampler",
    "means-cma": "private means with a CMA-ES sampler",
    "means-gp": "private means with a GP sampler",
}

_WHERE = "docs/which-method.md"


@lru_cache(1)
def as_good() -> dict[int, dict[int, tuple[str, ...]]]:
    """Methods as good as the best measured, the best first, by d and n mu."""
    told = json.loads(files(__package__).joinpath("measured.json").read_text(encoding="utf-8"))
    return {
        int(d): {int(level): tuple(named) for level, named in levels.items()}
        for d, levels in told.items()
    }


def advise(d: int, n_records: int, mu: float) -> dict[str, Any]:
    """Names the methods that were as good as the best, at the nearest measured numbers by ratio.

    Args:
        d: Numeric parameters.
        n_records: n.
        mu: Total budget.

    Returns:
        JSON-ready: ``as_good``, methods by name, the best first, empty where nothing was
        measured; ``text``, a sentence.

    Example:
        >>> advise(65, 1000, 1.0)["text"]
        'not measured for d > 64'
    """
    parameters = _nearest(max(d, 1), as_good())
    levels = as_good()[parameters]
    missing = _outside("d", d, as_good()) or _outside("n mu", n_records * mu, levels)
    if missing:
        return {"as_good": [], "text": f"not measured for {missing}"}
    budget = _nearest(n_records * mu, levels)
    best, *others = levels[budget]
    more = f", and as good: {', '.join(_NAMES[m] for m in others)}" if others else ""
    text = f"best with d={parameters}, n mu={budget}: {_NAMES[best]}{more} ({_WHERE})"
    return {"as_good": [best, *others], "text": text}


def _outside(name: str, value: float, measured: Iterable[int]) -> str:
    known = sorted(measured)
    if value < known[0]:
        return f"{name} < {known[0]}"
    return f"{name} > {known[-1]}" if value > known[-1] else ""


def _nearest(value: float, measured: Iterable[int]) -> int:
    """The measured number with the least ratio to a value within their range."""
    return min(measured, key=lambda one: abs(math.log(value / one)))
