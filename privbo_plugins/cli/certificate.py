"""``privbo certificate``, ``privbo verify`` and ``privbo label``: claims that others can check.

A certificate is noted in the vault that issues it, so that it is known again as it was written.
"""

from __future__ import annotations

from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING

import click

from privbo_plugins.cli.outcome import DIFFERS, Command, as_json, print_json, vault_at
from privbo_plugins.cli.vault import opened

if TYPE_CHECKING:
    from privbo_plugins.sessions.certificates import Certificate, Line
    from privbo_plugins.store.vault import Vault

_LARGEST = 2**24
"""Bytes that a certificate may have."""


@click.command(cls=Command)
@vault_at()
@click.option("--run", help="name of the run; needed where the vault holds several")
@click.option(
    "--data-label", metavar="LABEL", help="or all runs on the data of this label together"
)
@click.option(
    "--out", type=Path, multiple=True, required=True, metavar="PATH ...",
    help="where to write: .json to be checked, .md for people",
)  # fmt: skip
def certificate(vault: str, run: str | None, data_label: str | None, out: list[Path]) -> None:
    """Write what may be claimed, as a file that can be checked against the vault.

    The vault notes that it has issued it; nothing is drawn.
    """
    from privbo_plugins.files import write_text
    from privbo_plugins.sessions.certificates import Certificate, issue, labelled
    from privbo_plugins.sessions.stored import run_named

    written = {".json": Certificate.to_json, ".md": Certificate.to_markdown}
    wrong = next((path for path in out if path.suffix.lower() not in written), None)
    if wrong is not None:
        raise ValueError(
            "A certificate is a .json file, which can be checked, or an .md file for people, "
            f"got --out {wrong.name!r}."
        )
    held = opened(vault)
    if data_label is not None and run is not None:
        raise ValueError("--data-label takes all runs on the same data: leave --run out.")
    runs = [run_named(held, run)] if data_label is None else labelled(held, data_label)
    made = issue(runs, data_label)
    for path in out:
        write_text(path, written[path.suffix.lower()](made), private=False)
    print(made.statement().sentence)
    print(f"\nThe certificate is in {', '.join(map(str, out))}.")


@click.command(cls=Command)
@vault_at()
@click.option("--run", multiple=True, required=True, metavar="NAME ...", help="names of runs")
@click.option(
    "--data-label", metavar="LABEL", required=True,
    help="public name of the records, kept for good: wards2026",
)  # fmt: skip
def label(vault: str, run: list[str], data_label: str) -> None:
    """Note in the vault on which data runs are, so that their losses are added up."""
    from privbo_plugins.privacy.statement import legible
    from privbo_plugins.sessions.certificates import give_label
    from privbo_plugins.sessions.stored import run_named

    held = opened(vault)
    runs = [run_named(held, name) for name in run]
    for one in runs:
        give_label(one, data_label)
    print(f"{', '.join(legible(one.name) for one in runs)}: on the data of {data_label!r}.")


@click.command(cls=Command)
@click.argument("path", metavar="CERTIFICATE.json", type=Path)
@vault_at()
@click.option("--study", metavar="URL", help="storage of the Optuna study")
@click.option("--study-name", metavar="NAME", help="its name")
@as_json
def verify(
    path: Path, vault: str, study: str | None, study_name: str | None, as_json: bool
) -> int:
    """Compare a certificate with the ledger, and with the study, line by line.

    Exit code 0 only if all agrees, else 3.
    """
    from privbo_plugins.sessions.certificates import Certificate, verified

    if (study is None) != (study_name is None):
        raise ValueError("--study and --study-name go together: a storage, and a study in it.")
    if path.stat().st_size > _LARGEST:
        raise ValueError(f"{path.name} is larger than any certificate.")
    try:
        found = Certificate.from_json(path.read_text(encoding="utf-8"))
    except UnicodeDecodeError:
        raise ValueError(f"{path.name} is no UTF-8 text, and so no certificate.") from None
    held = opened(vault)
    lines = verified(found, held)
    if study is not None and study_name is not None:
        lines += _of_study(found, held, study, study_name)
    differing = sum(not line.agrees for line in lines)
    shown = [
        f"{'agrees ' if line.agrees else 'DIFFERS'}  {line.what}: {line.found}" for line in lines
    ]
    shown += [f"\nAll {len(lines)} lines agree."] if not differing else [
        f"\n{differing} of {len(lines)} lines differ: do not rely on this certificate."
    ]  # fmt: skip
    if as_json:
        print_json({"agrees": not differing, "lines": [line._asdict() for line in lines]})
    else:
        print("\n".join(shown))
    return DIFFERS if differing else 0


def _of_study(found: Certificate, vault: Vault, study: str, study_name: str) -> list[Line]:
    """Asks the adapter for Optuna, if it is installed."""
    from privbo_plugins.sessions.certificates import Line
    from privbo_plugins.sessions.stored import run_named

    try:
        adapter = import_module("optuna_samplers._compared")
    except ImportError:
        raise ValueError(
            "--study needs Optuna: pip install 'privbo-plugins[optuna]'. Leave it out to compare "
            "the certificate with the vault alone."
        ) from None
    names = [run["run"] for run in found.facts["runs"]]
    if len(names) > 1:
        raise ValueError(
            "This certificate is of several runs; --study compares one. Check it without --study, "
            "and each run's own certificate with its study."
        )
    told = adapter.compare_study(study, study_name, run_named(vault, names[0]))
    return [Line(f"study: {what}", agrees, text) for what, agrees, text in told]
