"""Damaged inputs are refused by their documented errors, at once, and nothing of them is told."""

import resource
import traceback
import warnings
from collections import Counter
from contextlib import ExitStack

import pytest
from hypothesis import HealthCheck, given, settings

from privbo_plugins.store import vault_file

from .parsers import PARSERS, SECRET, Scene

FEW, MANY = 100, 5000
"""Inputs of each parser: in every run, and in soak."""

ROOM = 2**29
"""Bytes by which a parser may raise the most that the process has ever held."""


def feed(parser, inputs, folder):
    """Feeds a parser so many damaged inputs; says how many were accepted and refused."""
    outcomes = Counter()
    with warnings.catch_warnings(), ExitStack() as ending:
        warnings.simplefilter("ignore")
        damaged, read = parser.prepare(Scene(folder, ending))

        @settings(
            max_examples=inputs, deadline=10_000, derandomize=inputs == FEW, database=None,
            suppress_health_check=list(HealthCheck),
        )  # fmt: skip
        @given(damaged)
        def fed(value):
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
def test_damaged_inputs(parser, inputs, tmp_path, monkeypatch):
    monkeypatch.setattr(vault_file, "_PATIENCE", 0.01)  # an empty file is waited for
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    outcomes = feed(parser, inputs, tmp_path)
    assert outcomes["accepted"] > 0, "some damage does not matter"
    assert outcomes["refused"] > 0
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < ROOM / 1024
