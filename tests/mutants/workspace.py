"""A copy of the sources in a temporary folder, where mutants live and tests run.

Nothing is ever patched in the checkout itself: a run that is killed leaves no mutant behind.
"""

from __future__ import annotations

import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

from tests.mutants.mutant import MutantError

ROOT = Path(__file__).parents[2]
PACKAGES = ("privbo_plugins", "optuna_samplers", "raytune_searchers", "sklearn_search", "tests")
PASSED, FAILED = 0, 1
"""Exit codes of pytest that say something; others mean that nothing was tested."""

_GRACE = 20
_FAILURE = re.compile(r"^FAILED (\S+::.*?)(?: - |$)", re.MULTILINE)
_ERROR = re.compile(r"^ERROR (\S+::.*?)(?: - |$)", re.MULTILINE)
_WHERE = (
    "import importlib.util, sys; "
    "print(*(importlib.util.find_spec(name).origin for name in sys.argv[1:]), sep='\\n')"
)


@dataclass(frozen=True)
class Outcome:
    """What became of one run of tests.

    Attributes:
        code: Pytest's exit code; None if it did not end in time.
        failures: Tests that failed.
        errors: Tests whose fixtures did, such as a Ray that did not start: these say nothing.
        output: What pytest printed.
        seconds: How long it took.
    """

    code: int | None
    failures: tuple[str, ...]
    errors: tuple[str, ...]
    output: str
    seconds: float

    @property
    def stumbled(self):
        """Whether nothing but fixtures failed: on a busy machine another try may say more."""
        return self.code == FAILED and not self.failures and bool(self.errors)

    @property
    def tail(self):
        """The end of what pytest printed."""
        return self.output[-3000:]


class Workspace:
    """One copy; not to be used by two threads at once."""

    def __init__(self):
        self.folder = Path(tempfile.mkdtemp(prefix="mutants-"))
        try:
            self._copy()
            self._check()
        except BaseException:
            self.close()
            raise

    def _copy(self):
        """The tracked files as they are in the checkout now, committed or not."""
        listed = subprocess.run(
            ["git", "ls-files", "-z"], cwd=ROOT, stdout=subprocess.PIPE, check=True
        ).stdout.decode()
        for name in filter(None, listed.split("\0")):
            source, target = ROOT / name, self.folder / name
            if source.is_file():
                target.parent.mkdir(parents=True, exist_ok=True)
                shutil.copyfile(source, target)

    def _check(self):
        """That a process begun here imports the copy: an editable install has its own ideas."""
        found = subprocess.run(
            [sys.executable, "-c", _WHERE, *PACKAGES], cwd="/",
            env=self.environment(self.folder), stdout=subprocess.PIPE, check=True, text=True,
        ).stdout.split()  # fmt: skip
        wrong = [path for path in found if not Path(path).is_relative_to(self.folder)]
        if wrong or len(found) != len(PACKAGES):
            raise MutantError(f"tests would import {', '.join(wrong)} instead of the copy")

    def environment(self, scratch):
        """For pytest, and for all processes that tests begin."""
        return os.environ | {
            "PYTHONPATH": str(self.folder),
            "PYTHONDONTWRITEBYTECODE": "1",  # a cached module of the same second would be believed
            "HYPOTHESIS_STORAGE_DIRECTORY": str(scratch / "hypothesis"),
        }

    def run(self, tests, *options, timeout=None):
        """Runs tests in the copy."""
        command = [sys.executable, "-m", "pytest", "-q", "-m", "", "-p", "no:cacheprovider"]
        command += options
        begun = time.monotonic()
        with tempfile.TemporaryDirectory(prefix="mutant-run-") as scratch:
            process = subprocess.Popen(
                [*command, *tests], cwd=self.folder, env=self.environment(Path(scratch)),
                stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
                start_new_session=True,
            )  # fmt: skip
            output, in_time = _finish(process, timeout)
        text = output.decode(errors="replace")
        return Outcome(
            process.returncode if in_time else None, tuple(_FAILURE.findall(text)),
            tuple(_ERROR.findall(text)), text, time.monotonic() - begun,
        )  # fmt: skip

    def try_mutant(self, mutant, timeout):
        """Runs a mutant's tests against it, and takes it out again."""
        before, after = mutant.patched(self.folder)
        (self.folder / mutant.file).write_text(after)
        try:
            outcome = self.run(mutant.tests, "-x", timeout=timeout)
            if outcome.stumbled:
                outcome = self.run(mutant.tests, "-x", timeout=timeout)
            return outcome
        finally:
            (self.folder / mutant.file).write_text(before)

    def close(self):
        """Removes the copy."""
        shutil.rmtree(self.folder, ignore_errors=True)


def _finish(process, timeout):
    """What a process printed, and whether it ended in time; nothing of its group is left then."""
    try:
        return process.communicate(timeout=timeout)[0], True
    except subprocess.TimeoutExpired:
        process.send_signal(signal.SIGINT)  # pytest ends its fixtures, and with them its servers
        try:
            output = process.communicate(timeout=_GRACE)[0]
        except subprocess.TimeoutExpired:
            _kill(process)
            output = process.communicate()[0]
        return output, False
    finally:
        if process.poll() is None:  # interrupted: whatever the reason, leave nothing behind
            _kill(process)


def _kill(process):
    try:
        os.killpg(process.pid, signal.SIGKILL)
    except ProcessLookupError:
        pass
