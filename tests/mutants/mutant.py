"""What a mutant is, and how it is put into a copy of the sources."""

from __future__ import annotations

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
        tests: What pytest is given: files and node ids.
        hang: Whether it is noticed by tests that never end.
    """

    name: str
    breaks: str
    file: str
    old: str
    new: str
    tests: tuple[str, ...]
    hang: bool = False

    def apply(self, folder: Path) -> str:
        """Patches its file below a folder, and returns what was in it.

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
            raise MutantError(
                f"{self.name}: {self.file} is no Python any longer: {error}"
            ) from None
        path.write_text(after)
        return before
