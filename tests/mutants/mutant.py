"""What a mutant is, and how it is put into a copy of the sources; mutants.toml lists them."""

from __future__ import annotations

import tomllib
from dataclasses import dataclass
from pathlib import Path

TIMEOUT = 300
"""Seconds that the tests of one mutant may take: starting Ray on a busy machine is slow."""


class MutantError(Exception):
    """A mutant says nothing: its patch does not fit, or its tests did not really run."""


@dataclass(frozen=True)
class Mutant:
    """One slip.

    Attributes:
        name: Short and unique, for ``--only``.
        breaks: The promise that it breaks, in one sentence.
        file: The module that is patched.
        old: Text that occurs exactly once in it.
        new: What stands there instead.
        tests: What pytest is given: files, node ids and options.
        hang: Whether it is noticed by tests that never end.
    """

    name: str
    breaks: str
    file: str
    old: str
    new: str
    tests: list[str]
    hang: bool = False

    def patched(self, folder):
        """Its file below a folder as it is, and as it is with the slip.

        Raises:
            MutantError: If the old text does not occur exactly once, or the new one is no Python.
        """
        path = folder / self.file
        before = path.read_text() if path.exists() else ""
        times = before.count(self.old)
        if times != 1:
            raise MutantError(f"{self.name}: its old text occurs {times} times in {self.file}")
        after = before.replace(self.old, self.new)
        try:
            compile(after, self.file, "exec")
        except SyntaxError as error:
            raise MutantError(f"{self.name}: {self.file} is no Python any more") from error
        return before, after


_LISTED = tomllib.loads((Path(__file__).parent / "mutants.toml").read_text())

MUTANTS = [Mutant(name, **row) for name, row in _LISTED.items()]
"""All mutants."""
