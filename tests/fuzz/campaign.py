"""So many damaged inputs for each parser, and what became of them."""

from __future__ import annotations

import random
import resource
import signal
import time
import traceback
import warnings
import zlib
from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from .parsers import PARSERS, SECRET, Parser, Scene

INPUTS = 10**6
"""Of all parsers together, when there is time."""

PATIENCE = 10.0
"""Seconds after which an input counts as one that hangs a parser."""

ROOM = 2**29
"""Bytes by which a parser may raise what the process has ever held."""


class Hanging(BaseException):
    """An input that is not read in time."""


@dataclass
class Outcome:
    """What became of a parser's inputs.

    Attributes:
        parser: Its name.
        inputs: How many there were.
        accepted: How many were taken.
        refused: Documented errors by name.
        wrong: Everything else, as "number of the input: what happened".
        seconds: Of a core that all of it took.
    """

    parser: str
    inputs: int = 0
    accepted: int = 0
    refused: Counter[str] = field(default_factory=Counter)
    wrong: list[str] = field(default_factory=list)
    seconds: float = 0.0

    def line(self) -> dict[str, Any]:
        """For a report."""
        return {
            "parser": self.parser, "inputs": self.inputs, "accepted": self.accepted,
            "refused": dict(self.refused), "wrong": len(self.wrong),
            "seconds": round(self.seconds, 1),
        }  # fmt: skip


def shares(total: int) -> list[tuple[Parser, int]]:
    """How many of so many inputs each parser gets; at least one."""
    weights = sum(parser.weight for parser in PARSERS)
    counts = [max(1, int(total * parser.weight / weights)) for parser in PARSERS]
    counts[0] += max(0, total - sum(counts))
    return list(zip(PARSERS, counts, strict=True))


def rng_of(parser: Parser, seed: int, number: int) -> random.Random:
    """Draws one input, whatever was drawn before."""
    return random.Random((zlib.crc32(parser.name.encode()) << 64) ^ (seed << 32) ^ number)


def campaign(parser: Parser, inputs: int, seed: int, folder: Path, keep: int = 5) -> Outcome:
    """Feeds a parser; ends early after a few inputs that went wrong."""
    folder.mkdir(exist_ok=True)
    outcome, begun, peak = Outcome(parser.name), time.process_time(), _peak()
    with warnings.catch_warnings(), ExitStack() as ending, _alarmed():
        warnings.simplefilter("ignore")
        draw, read = parser.prepare(Scene(folder, ending))
        for number in range(inputs):
            value = draw(rng_of(parser, seed, number))
            outcome.inputs += 1
            signal.setitimer(signal.ITIMER_REAL, PATIENCE)
            try:
                read(value)
                outcome.accepted += 1
            except parser.errors as error:
                outcome.refused[type(error).__name__] += 1
                if SECRET in _shown(error):
                    outcome.wrong.append(f"{number}: {type(error).__name__} repeats a secret")
            except (Exception, Hanging) as error:
                outcome.wrong.append(f"{number}: {_where(error)}\n  input: {value!r:.300}")
            if len(outcome.wrong) >= keep:
                break
        signal.setitimer(signal.ITIMER_REAL, 0)
    if _peak() - peak > ROOM:
        outcome.wrong.append(f"it took {(_peak() - peak) >> 20} MB")
    outcome.seconds = time.process_time() - begun
    return outcome


def _peak() -> int:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


@contextmanager
def _alarmed() -> Iterator[None]:
    def ring(_signal: int, _frame: Any) -> None:
        raise Hanging

    before = signal.signal(signal.SIGALRM, ring)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


def _shown(error: BaseException) -> str:
    """What a log shows of an error: its text, and those of the errors that it names."""
    shown, following = "", error
    for _ in range(10):
        shown += str(following)
        other = following.__cause__ or (
            None if following.__suppress_context__ else following.__context__
        )
        if other is None:
            break
        following = other
    return shown


def _where(error: BaseException) -> str:
    last = traceback.extract_tb(error.__traceback__)[-1]
    return f"{type(error).__name__}: {str(error)[:150]} ({Path(last.filename).name}:{last.lineno})"
