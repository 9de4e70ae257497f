"""Runs the tests against each mutant: ``python -m tests.mutants``."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from contextlib import ExitStack
from dataclasses import asdict, dataclass
from pathlib import Path
from queue import SimpleQueue

from tqdm.auto import tqdm

from tests.mutants.catalogue import MUTANTS
from tests.mutants.mutant import TIMEOUT, Mutant, MutantError
from tests.mutants.workspace import FAILED, PASSED, Outcome, Workspace


@dataclass(frozen=True)
class Judgement:
    """What became of one mutant.

    Attributes:
        name: The mutant's.
        breaks: The promise that it breaks.
        file: What was patched.
        caught: Whether the tests noticed.
        by: The first test that did, or why nothing can be said.
        seconds: How long its tests took.
    """

    name: str
    breaks: str
    file: str
    caught: bool
    by: str
    seconds: float


def judged(mutant: Mutant, outcome: Outcome) -> Judgement:
    """A mutant counts as caught only where tests ran and failed."""
    if outcome.code == FAILED and outcome.failures:
        caught, by = True, outcome.failures[0]
    elif outcome.stumbled:
        caught, by = False, f"ERROR: a fixture failed before {outcome.errors[0]}"
    elif outcome.code is None:
        caught, by = mutant.hang, "its tests did not end"
    elif outcome.code == PASSED:
        caught, by = False, "NOT CAUGHT"
    else:
        caught, by = False, f"ERROR: pytest ended with {outcome.code}"
    return Judgement(
        mutant.name, mutant.breaks, mutant.file, caught, by, round(outcome.seconds, 1)
    )


def tried(mutant: Mutant, copies: SimpleQueue[Workspace], timeout: float) -> Judgement:
    """Tries a mutant in whichever copy is free."""
    workspace = copies.get()
    try:
        return judged(mutant, workspace.try_mutant(mutant, timeout))
    except MutantError as error:
        return Judgement(mutant.name, mutant.breaks, mutant.file, False, f"ERROR: {error}", 0.0)
    finally:
        copies.put(workspace)


def baseline(mutants: Sequence[Mutant], workspace: Workspace, jobs: int) -> None:
    """Runs every selected test once without a mutant.

    Raises:
        MutantError: If one fails: whatever it caught then would prove nothing.
    """
    tests = list(dict.fromkeys(test for mutant in mutants for test in mutant.tests))
    print(f"{len(tests)} selections without a mutant ...", flush=True)
    outcome = workspace.run(tests, "-n", str(jobs) if jobs > 1 else "0")
    if outcome.stumbled:
        print(f"... again the {len(outcome.errors)} whose fixtures failed", flush=True)
        outcome = workspace.run(outcome.errors)
    if outcome.code != PASSED:
        raise MutantError(f"tests fail without any mutant:\n{outcome.tail}")
    print(f"... pass in {outcome.seconds:.0f} s", flush=True)


def all_tried(
    mutants: Sequence[Mutant], copies: Sequence[Workspace], timeout: float
) -> list[Judgement]:
    """Verdicts in the order of the mutants; those that start Ray go first, being the longest."""
    free: SimpleQueue[Workspace] = SimpleQueue()
    for workspace in copies:
        free.put(workspace)
    order = sorted(mutants, key=lambda m: not any("raytune" in test for test in m.tests))
    found: dict[str, Judgement] = {}
    with ThreadPoolExecutor(len(copies)) as pool:
        futures = [pool.submit(tried, mutant, free, timeout) for mutant in order]
        try:
            for future in tqdm(as_completed(futures), total=len(futures), unit="mutant"):
                judgement = future.result()
                found[judgement.name] = judgement
                if not judgement.caught:
                    tqdm.write(f"{judgement.name}: {judgement.by}")
        except BaseException:
            pool.shutdown(cancel_futures=True)
            raise
    return [found[mutant.name] for mutant in mutants]


def table(judgements: Sequence[Judgement]) -> str:
    """One line a mutant, and how many were caught."""
    head = ("mutant", "what it breaks", "caught by", "seconds")
    rows = [(v.name, v.breaks, v.by, f"{v.seconds:.1f}") for v in judgements]
    widths = [max(map(len, column)) for column in zip(head, *rows, strict=True)]
    lines = [
        "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip()
        for row in (head, *rows)
    ]
    caught = sum(judgement.caught for judgement in judgements)
    return "\n".join([*lines, f"{caught} of {len(judgements)} caught"])


def chosen(names: Sequence[str]) -> tuple[Mutant, ...]:
    """Mutants by name, all of them if there is none.

    Raises:
        MutantError: If there is no such mutant, or two have one name.
    """
    known = {mutant.name: mutant for mutant in MUTANTS}
    if len(known) < len(MUTANTS):
        raise MutantError("two mutants have the same name")
    unknown = [name for name in names if name not in known]
    if unknown:
        raise MutantError(f"there is no mutant {', '.join(unknown)}: see --list")
    return tuple(known[name] for name in names) or MUTANTS


def listed() -> str:
    """All mutants with the tests that should notice them."""
    parts = [
        f"{mutant.name} ({mutant.file})\n  {mutant.breaks}\n"
        + "".join(f"    {test}\n" for test in mutant.tests)
        for mutant in MUTANTS
    ]
    return "".join(parts) + f"{len(MUTANTS)} mutants"


def parser() -> argparse.ArgumentParser:
    """What may be said on the command line."""
    made = argparse.ArgumentParser(prog="python -m tests.mutants", description=__doc__)
    made.add_argument("--jobs", type=int, default=2, metavar="N", help="mutants at the same time")
    made.add_argument(
        "--only", action="append", default=[], metavar="NAME", help="may be repeated"
    )
    made.add_argument("--list", action="store_true", help="show all mutants and run nothing")
    made.add_argument("--no-baseline", action="store_true", help="trust that tests pass as it is")
    made.add_argument("--timeout", type=float, default=TIMEOUT, metavar="S", help="of one mutant")
    made.add_argument("--json", type=Path, metavar="FILE", help="write the judgements here too")
    return made


def checked(arguments: argparse.Namespace) -> list[Judgement]:
    """Tries what was asked for.

    Raises:
        MutantError: If nothing can be said.
    """
    mutants, jobs = chosen(arguments.only), max(1, arguments.jobs)
    with ExitStack() as stack:
        copies = []
        for _ in range(min(jobs, len(mutants))):
            copies.append(Workspace())
            stack.callback(copies[-1].close)
        if not arguments.no_baseline:
            baseline(mutants, copies[0], jobs)
        return all_tried(mutants, copies, arguments.timeout)


def main(given: Sequence[str] | None = None) -> int:
    """Exit code 0 if every mutant was caught."""
    arguments = parser().parse_args(given)
    if arguments.list:
        print(listed())
        return 0
    try:
        judgements = checked(arguments)
    except MutantError as error:
        print(error, file=sys.stderr)
        return 1
    if arguments.json is not None:
        arguments.json.write_text(json.dumps([asdict(v) for v in judgements], indent=1) + "\n")
    print(table(judgements))
    return 0 if all(judgement.caught for judgement in judgements) else 1


if __name__ == "__main__":
    sys.exit(main())
