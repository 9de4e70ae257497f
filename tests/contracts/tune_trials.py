"""What the trials of the matrix do, for their own processes: little is imported here.

Everything private that a trial makes is random, and noted in ``folder``/secret/made, beside the
experiment's own folder: whoever looks for it later finds it there.
"""

from __future__ import annotations

import json
import math
import os
import signal
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from ray import tune

N = 40
"""Records of a trial."""

PUBLIC = "train_loss"
"""Name of what trials declare public."""


def turn(folder):
    """Which evaluation of the experiment this is, from 0."""
    for number in range(10_000):
        try:
            os.close(os.open(folder / f"turn-{number}", os.O_CREAT | os.O_EXCL))
        except FileExistsError:
            continue
        return number
    raise AssertionError("there is no end of trials")


def turns(folder):
    """How many evaluations have begun."""
    return len(list(folder.glob("turn-*")))


def made(folder):
    """The private numbers of each evaluation."""
    for line in (folder / "secret" / "made").read_text().splitlines():
        yield json.loads(line)


def secret(folder, n, *more):
    """Numbers of full precision that nobody has seen before, shape (n,), noted with others."""
    y = np.random.default_rng().uniform(0.12, 0.88, n)
    with (folder / "secret" / "made").open("a") as file:
        file.write(json.dumps([*y.tolist(), *more]) + "\n")
    return y


# What happens before a trial returns ------------------------------------------------------------


@dataclass(frozen=True)
class Quiet:
    """Nothing."""

    def __call__(self, folder, report):
        turn(folder)


@dataclass(frozen=True)
class Reports:
    """Reports something public so often; the evaluation ``bad`` reports worse values."""

    epochs: int
    bad: int = -1

    def __call__(self, folder, report):
        offset = float(turn(folder) == self.bad)
        for epoch in range(self.epochs):
            report({PUBLIC: offset + 1 / (epoch + 2)})


@dataclass(frozen=True)
class Checkpoints:
    """Reports three checkpoints, of which the second is best."""

    def __call__(self, folder, report):
        turn(folder)
        for epoch, loss in enumerate((0.5, 0.25, 0.75)):
            with tempfile.TemporaryDirectory() as place:
                (Path(place) / "model").write_text(str(epoch))
                report({PUBLIC: loss}, checkpoint=tune.Checkpoint.from_directory(place))


@dataclass(frozen=True)
class Fails:
    """The first evaluation raises."""

    def __call__(self, folder, report):
        if turn(folder) == 0:
            raise ValueError("a row named Jane Doe")


@dataclass(frozen=True)
class Dies:
    """The process of the second evaluation is killed."""

    def __call__(self, folder, report):
        if turn(folder) == 1:
            os.kill(os.getpid(), signal.SIGKILL)


@dataclass(frozen=True)
class Sleeps:
    """Each evaluation takes a while."""

    seconds: float

    def __call__(self, folder, report):
        turn(folder)
        time.sleep(self.seconds)


@dataclass(frozen=True)
class Interrupts:
    """The first evaluation raises, and the third ends the experiment as Ctrl+C does.

    Attributes:
        driver: Its process.
        seconds: What the third then takes: the others' are killed, an agent's host lives on.
    """

    driver: int
    seconds: float

    def __call__(self, folder, report):
        number = turn(folder)
        if number == 0:
            raise ValueError("a row named Jane Doe")
        if number == 2:
            os.kill(self.driver, signal.SIGINT)
            time.sleep(self.seconds)


# Trainables, to be wrapped or not ---------------------------------------------------------------


@dataclass(frozen=True)
class Losses:
    """A vector of per-record losses."""

    folder: Path
    before: Any
    n: int = N

    def __call__(self, config):
        from raytune_searchers import report_public

        self.before(self.folder, report_public)
        return secret(self.folder, self.n)


@dataclass(frozen=True)
class Reward(Losses):
    """One user's reward."""

    n: int = 1

    def __call__(self, config):
        return float(super().__call__(config)[0])


def _beside_the_answer(metrics, **more):
    """Tune asks for the metric in every report."""
    tune.report({"answer": float("nan"), **metrics}, **more)


@dataclass(eq=False)  # tune.with_resources writes its own into it
class Answer:
    """The answer to a row: it is told by the curator and secret no more."""

    folder: Path
    before: Any
    answers: Any

    def __call__(self, config):
        self.before(self.folder, _beside_the_answer)
        return {"answer": self.answers(config["row"])}


@dataclass(frozen=True)
class OfAgent:
    """An agent's own value; its parameter is secret too."""

    folder: Path
    before: Any

    def __call__(self, agent, config):
        self.before(self.folder, _closed)
        return float(secret(self.folder, 1, config["x"])[0])


def _closed(*_, **__):
    raise AssertionError("an agent's objective reports nothing")


def is_number(value):
    """Whether a result shows a value, and not the NaN of public reports."""
    return isinstance(value, float) and math.isfinite(value)
