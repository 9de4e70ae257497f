"""``privbo``: what a run would cost, what may be claimed for one, and files for others.

    privbo plan dp-gibo --mu 1 --records 1000 --space C:0.01:100:log depth:1:10:int
    privbo plan rewards --epsilon 1 --range 0 1 --trials 400
    privbo plan federation --agents 29 --epsilon 4
    privbo guarantee --vault sqlite:///private.db
    privbo report --vault sqlite:///private.db --run optuna/digits --out report.html
    privbo certificate --vault sqlite:///private.db --run optuna/digits --out certificate.json
    privbo verify certificate.json --vault sqlite:///private.db
    privbo curator release people.csv ...
    privbo federation serve --agents 29 --epsilon 4 --vault sqlite:///server.db ...

It prints public facts only: settings that were typed, releases, and what an engine's guarantee
says. Nothing heavy is imported before a command needs it.

Exit codes: 0 if it was done, 2 if it was refused (with the rule, the value and the way out on
standard error), 3 if a certificate differs from what it is compared with, 1 if it failed inside
(what failed may quote data, so only its kind is told), 130 if it was interrupted, 141 if the
program that read its output has ended.
"""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Sequence

from privbo_plugins.cli import certificate, curator, federation, plan, vault
from privbo_plugins.cli.outcome import UNHEARD, carried_out
from privbo_plugins.cli.settings_file import with_file


def parser() -> argparse.ArgumentParser:
    """What may be typed."""
    made = argparse.ArgumentParser(
        prog="privbo",
        description="Private hyperparameter tuning: plans, guarantees, certificates, reports, and "
        "the command lines of a curator and of a federation's server.",
    )
    commands = made.add_subparsers(dest="command", required=True, metavar="command")
    plan.add_to(commands)
    vault.add_to(commands)
    certificate.add_to(commands)
    curator.add_to(commands)
    federation.add_to(commands)
    return made


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs one command and returns its exit code."""
    try:
        try:
            return _main(arguments)
        finally:
            sys.stdout.flush()
    except BrokenPipeError:  # as after `| head`; what is still buffered goes nowhere
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return UNHEARD


def _main(arguments: Sequence[str] | None) -> int:
    made, typed = parser(), sys.argv[1:] if arguments is None else arguments
    try:
        whole = with_file(typed, ["federation", "serve"])
    except ValueError as error:
        made.error(str(error))
    given, unknown = made.parse_known_args(whole)
    if unknown:  # by name alone: what was meant for an option may be a password
        names = [word.partition("=")[0] for word in unknown if word.startswith("-")]
        made.error(f"unrecognized arguments: {' '.join(names) or len(unknown)}")
    return carried_out(given.act, given)
