"""Damaged inputs are refused by their documented errors, at once, and nothing of them is told.

A failure names the input by its number; ``rng_of(parser, seed, number)`` draws it again.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pytest

from .campaign import INPUTS, campaign, shares
from .parsers import SECRET, Parser, Scene

SMALL = 200
"""Inputs of each parser in the small version."""


@pytest.mark.parametrize(("parser", "share"), [
    pytest.param(parser, share, id=parser.name) for parser, share in shares(INPUTS)
])  # fmt: skip
class TestParser:
    def test_a_few_damaged_inputs(self, parser: Parser, share: int, tmp_path: Path) -> None:
        outcome = campaign(parser, min(SMALL, share), seed=7, folder=tmp_path)
        assert outcome.wrong == []
        assert outcome.accepted > 0  # some damage does not matter
        assert sum(outcome.refused.values()) > 0

    @pytest.mark.soak
    def test_a_million_damaged_inputs(
        self, parser: Parser, share: int, tmp_path: Path, capsys: pytest.CaptureFixture[str]
    ) -> None:
        outcome = campaign(parser, share, seed=0, folder=tmp_path)
        with capsys.disabled():
            print(json.dumps(outcome.line()), file=sys.stderr, flush=True)  # xdist drops stdout
        assert outcome.wrong == []
        assert outcome.inputs == share


def _faulty(_scene: Scene) -> tuple[Any, Any]:
    def read(number: int) -> None:
        if number == 1:
            raise KeyError
        if number == 2:
            raise ValueError(f"not {SECRET}")
        if number == 3:
            raise ValueError("no number")
        if number == 4:
            while True:
                pass

    return (lambda rng: rng.randrange(5)), read


def test_a_campaign_notices_what_goes_wrong(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tests.fuzz.campaign.PATIENCE", 0.01)
    parser = Parser("made up", (ValueError,), 1.0, _faulty)
    outcome = campaign(parser, 100, seed=0, folder=tmp_path, keep=100)
    kinds = ("KeyError", "repeats a secret", "Hanging")
    assert all(any(kind in line for line in outcome.wrong) for kind in kinds)
    assert len(outcome.wrong) + outcome.accepted + outcome.refused["ValueError"] > 100
    assert 0 < outcome.accepted < 50
