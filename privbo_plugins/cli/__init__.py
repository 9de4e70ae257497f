"""``privbo``: what a run would cost, what may be claimed for one, and files for others.

    privbo plan dp-gibo --mu 1 --records 1000 --space C:0.01:100:log depth:1:10:int
    privbo plan rewards --epsilon 1 --range 0 1 --trials 400
    privbo plan federation --agents 29 --epsilon 4
    privbo guarantee --vault private.db
    privbo report --vault private.db --run optuna/digits --out report.html
    privbo certificate --vault private.db --run optuna/digits --out certificate.json
    privbo verify certificate.json --vault private.db
    privbo doctor --vault private.db
    privbo curator release people.csv ...
    privbo federation serve --agents 29 --epsilon 4 --vault server.db ...

It prints public facts only: settings that were typed, releases, and what an engine's guarantee
says. Nothing heavy is imported before a command needs it.

Exit codes: 0 if it was done, 2 if it was refused (with the rule, the value and the way out on
standard error), 3 if a certificate or study differs from its vault, 1 if it failed inside
(only the kind of the failure is printed: its text may quote data), 130 if it was interrupted, 141
if the program that read its output has ended.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence

import click

from privbo_plugins.cli import curator, doctor, federation, plan, vault
from privbo_plugins.cli.outcome import UNHEARD, Group, carried_out


@click.group(cls=Group, context_settings={"show_default": True})
@click.version_option(package_name="privbo-plugins", prog_name="privbo")
def privbo() -> None:
    """Private hyperparameter tuning: plans, guarantees, certificates and reports of runs.

    Curators release tables with it, and federations run their server.
    """


for command in (
    plan.plan,
    vault.guarantee,
    vault.report,
    vault.certificate,
    vault.verify,
    vault.label,
    doctor.doctor,
    curator.curator,
    federation.federation,
):
    privbo.add_command(command)


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs one command and returns its exit code."""
    typed = list(sys.argv[1:] if arguments is None else arguments)
    try:
        return carried_out(lambda: _run(typed))
    except BrokenPipeError:  # as after `| head`; what is still buffered goes nowhere
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return UNHEARD


def _run(typed: list[str]) -> int | None:
    try:
        with privbo.make_context("privbo", typed) as context:
            code: int | None = privbo.invoke(context)
            return code
    except click.exceptions.Exit as ended:
        return ended.exit_code
    except click.ClickException as error:
        error.show()
        return error.exit_code
