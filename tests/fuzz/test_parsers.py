"""Damaged inputs are refused by their documented errors, at once, and nothing of them is told."""

from __future__ import annotations

import resource
import traceback
import warnings
from collections import Counter
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings

from .parsers import PARSERS, SECRET, Parser, Scene

FEW, MANY = 100, 5000
"""Inputs of each parser: in every run, and in soak."""

ROOM = 2**29
"""Bytes by which a parser may raise the most that the process has ever held."""


def feed(parser: Parser, inputs: int, folder: Path) -> Counter[str]:
    """Feeds a parser so many damaged inputs; says how many were accepted and refused."""
    outcomes: Counter[str] = Counter()
    with warnings.catch_warnings(), ExitStack() as ending:
        warnings.simplefilter("ignore")
        damaged, read = parser.prepare(Scene(folder, ending))

        @settings(
            max_examples=inputs,
            deadline=10_000,
            derandomize=inputs == FEW,
            database=None,
            suppress_health_check=list(HealthCheck),
        )
        @given(damaged)
        def fed(value: Any) -> None:
            shown = ""
            try:
                read(value)
            except parser.errors as error:
                shown = "".join(traceback.format_exception(error))
            assert SECRET not in shown
            outcomes["refused" if shown else "accepted"] += 1

        fed()
    return outcomes


@pytest.mark.parametrize("inputs", [FEW, pytest.param(MANY, marks=pytest.mark.soak)])
@pytest.mark.parametrize("parser", PARSERS, ids=lambda parser: parser.name)
def test_damaged_inputs(parser: Parser, inputs: int, tmp_path: Path) -> None:
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    outcomes = feed(parser, inputs, tmp_path)
    assert outcomes["accepted"] > 0, "some damage does not matter"
    assert outcomes["refused"] > 0
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < ROOM / 1024
