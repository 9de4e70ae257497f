"""Runs the tests against each mutant: ``python -m tests.mutants``."""

from __future__ import annotations

import argparse
import sys
from concurrent.futures import ThreadPoolExecutor, as_completed
from contextlib import ExitStack
from dataclasses import dataclass
from queue import SimpleQueue

from tqdm.auto import tqdm

from tests.mutants.mutant import MUTANTS, TIMEOUT, MutantError
from tests.mutants.workspace import FAILED, PASSED, Workspace


@dataclass(frozen=True)
class Judgement:
    """What became of one mutant.

    Attributes:
        name: The mutant's.
        caught: Whether the tests noticed.
        by: The first test that did, or why nothing can be said.
    """

    name: str
    caught: bool
    by: str


def judged(mutant, outcome):
    """A mutant counts as caught only where tests ran and failed."""
    if outcome.code == FAILED and outcome.failures:
        return Judgement(mutant.name, True, outcome.failures[0])
    if outcome.stumbled:
        return Judgement(mutant.name, False, f"a fixture failed before {outcome.errors[0]}")
    if outcome.code is None:
        return Judgement(mutant.name, mutant.hang, "its tests did not end")
    said = "NOT CAUGHT" if outcome.code == PASSED else f"pytest ended with {outcome.code}"
    return Judgement(mutant.name, False, said)


def tried(mutant, copies):
    """Tries a mutant in whichever copy is free."""
    workspace = copies.get()
    try:
        return judged(mutant, workspace.try_mutant(mutant, TIMEOUT))
    except MutantError as error:
        return Judgement(mutant.name, False, str(error))
    finally:
        copies.put(workspace)


def baseline(mutants, workspace, jobs):
    """Runs every selected test once without a mutant.

    Raises:
        MutantError: If one fails: whatever it caught then would prove nothing.
    """
    tests = list(dict.fromkeys(test for mutant in mutants for test in mutant.tests))
    print(f"{len(tests)} selections without a mutant ...", flush=True)
    outcome = workspace.run(tests, "-n", str(jobs) if jobs > 1 else "0")
    if outcome.stumbled:
        outcome = workspace.run(outcome.errors)
    if outcome.code != PASSED:
        raise MutantError(f"tests fail without any mutant:\n{outcome.tail}")


def all_tried(mutants, copies):
    """Verdicts; mutants whose tests start Ray go first, being the longest."""
    free = SimpleQueue()
    for workspace in copies:
        free.put(workspace)
    order = sorted(mutants, key=lambda m: not any("raytune" in test for test in m.tests))
    found = []
    with ThreadPoolExecutor(len(copies)) as pool:
        futures = [pool.submit(tried, mutant, free) for mutant in order]
        try:
            for future in tqdm(as_completed(futures), total=len(futures), unit="mutant"):
                found.append(future.result())
                if not found[-1].caught:
                    tqdm.write(f"{found[-1].name}: {found[-1].by}")
        except BaseException:
            pool.shutdown(cancel_futures=True)
            raise
    return found


def main(given=None):
    """Exit code 0 if every mutant was caught."""
    parser = argparse.ArgumentParser(prog="python -m tests.mutants", description=__doc__)
    parser.add_argument("--jobs", type=int, default=2, metavar="N", help="mutants at one time")
    parser.add_argument("--only", action="append", metavar="NAME", help="may be repeated")
    arguments = parser.parse_args(given)
    mutants = [m for m in MUTANTS if arguments.only is None or m.name in arguments.only]
    with ExitStack() as stack:
        copies = [Workspace() for _ in range(arguments.jobs)]
        for workspace in copies:
            stack.callback(workspace.close)
        try:
            baseline(mutants, copies[0], arguments.jobs)
        except MutantError as error:
            print(error, file=sys.stderr)
            return 1
        judgements = all_tried(mutants, copies)
    for judgement in judgements:
        print(f"{judgement.name}: {judgement.by}")
    caught = sum(judgement.caught for judgement in judgements)
    print(f"{caught} of {len(mutants)} caught")
    return 0 if 0 < len(mutants) == caught else 1


if __name__ == "__main__":
    sys.exit(main())
