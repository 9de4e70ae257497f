"""``privbo certificate``, ``privbo verify`` and ``privbo label``: claims that others can check.

A certificate is noted in the vault that issues it, so that it is known again as it was written.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any

from privbo_plugins.cli.outcome import DIFFERS, add_json, add_vault, print_json
from privbo_plugins.cli.vault import DATABASE, add_label, opened

if TYPE_CHECKING:
    from privbo_plugins.sessions.certificates import Line, PrivacyCertificate
    from privbo_plugins.sessions.stored import StoredRun
    from privbo_plugins.store.vault import Vault

_LARGEST = 2**24
"""Bytes that a certificate may have."""


def certificate(given: argparse.Namespace) -> None:
    """Writes what may be claimed for a run, or for all runs on the same data."""
    from privbo_plugins.files import write_text
    from privbo_plugins.sessions.certificates import issue

    writers = [(path, _writer(path)) for path in given.out]
    vault = opened(given.vault)
    made = issue(vault, _runs(vault, given), given.data_label)
    for path, write in writers:
        write_text(path, write(made), private=False)
    print(made.statement().sentence)
    print(f"\nThe certificate is in {', '.join(map(str, given.out))}.")


def _writer(path: Path) -> Callable[[PrivacyCertificate], str]:
    writers: dict[str, Callable[[PrivacyCertificate], str]] = {
        ".json": lambda made: made.to_json(),
        ".md": lambda made: made.to_markdown(),
    }
    if path.suffix.lower() not in writers:
        raise ValueError(
            f"A certificate is a .json file, which can be checked, or an .md file for people, got "
            f"--out {path.name!r}."
        )
    return writers[path.suffix.lower()]


def _runs(vault: Vault, given: argparse.Namespace) -> list[StoredRun]:
    from privbo_plugins.sessions.certificates import labelled
    from privbo_plugins.sessions.stored import run_named

    if given.data_label is None:
        return [run_named(vault, given.vault, given.run)]
    if given.run is not None:
        raise ValueError("--data-label takes all runs on the same data: leave --run out.")
    return labelled(vault, given.vault, given.data_label)


def label(given: argparse.Namespace) -> None:
    """Notes on which data runs are."""
    from privbo_plugins.privacy.statement import legible
    from privbo_plugins.sessions.certificates import give_label
    from privbo_plugins.sessions.stored import run_named

    vault = opened(given.vault)
    runs = [run_named(vault, given.vault, name) for name in given.run]
    for run in runs:
        give_label(run, given.data_label)
    print(f"{', '.join(legible(run.name) for run in runs)}: on the data of {given.data_label!r}.")


def verify(given: argparse.Namespace) -> int:
    """Compares a certificate with the ledger, and with a study."""
    from privbo_plugins.sessions.certificates import as_facts, verified

    if (given.study is None) != (given.study_name is None):
        raise ValueError("--study and --study-name go together: a storage, and a study in it.")
    found = _read(given.certificate)
    vault = opened(given.vault)
    lines = verified(found, vault, given.vault)
    if given.study is not None:
        lines += _of_study(found, vault, given)
    agrees = all(line.agrees for line in lines)
    if given.json:
        print_json({"agrees": agrees, "lines": as_facts(lines)})
    else:
        _tell(lines, agrees)
    return 0 if agrees else DIFFERS


def _read(path: Path) -> PrivacyCertificate:
    from privbo_plugins.sessions.certificates import PrivacyCertificate

    if path.stat().st_size > _LARGEST:
        raise ValueError(f"{path.name} is larger than any certificate.")
    try:
        return PrivacyCertificate.from_json(path.read_text(encoding="utf-8"))
    except UnicodeDecodeError:
        raise ValueError(f"{path.name} is no UTF-8 text, and so no certificate.") from None


def _of_study(found: PrivacyCertificate, vault: Vault, given: argparse.Namespace) -> list[Line]:
    """What an adapter says of a study; which one is installed is asked here alone."""
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
    run = run_named(vault, given.vault, names[0])
    told = adapter.compare_study(given.study, given.study_name, run)
    return [Line(f"study: {what}", agrees, text) for what, agrees, text in told]


def _tell(lines: list[Line], agrees: bool) -> None:
    for line in lines:
        print(f"{'agrees ' if line.agrees else 'DIFFERS'}  {line.what}: {line.found}")
    differing = sum(not line.agrees for line in lines)
    print(
        f"\nAll {len(lines)} lines agree."
        if agrees
        else f"\n{differing} of {len(lines)} lines differ: do not rely on this certificate."
    )


# The command line -------------------------------------------------------------------------------


def add_to(commands: Any) -> None:
    """Adds the three commands to a command line."""
    _add_certificate(commands)
    _add_verify(commands)
    text = "on which data runs are, so that their losses are added up"
    made = commands.add_parser("label", help=text, description=f"Notes in the vault {text}.")
    made.set_defaults(act=label)
    add_vault(made, DATABASE)
    made.add_argument("--run", nargs="+", required=True, help="names of runs")
    add_label(made, "public name of the records, kept for good: wards2026", required=True)


def _add_certificate(commands: Any) -> None:
    text = "what may be claimed, as a file that can be checked against the vault"
    made = commands.add_parser(
        "certificate",
        help=text,
        description=f"Writes {text}. The vault notes that it has issued it; nothing is drawn.",
    )
    made.set_defaults(act=certificate)
    add_vault(made, DATABASE)
    made.add_argument("--run", help="name of the run; needed where the vault holds several")
    add_label(made, "or all runs on the data of this label together")
    made.add_argument(
        "--out", type=Path, nargs="+", required=True,
        help="where to write: .json to be checked, .md for people",
    )  # fmt: skip


def _add_verify(commands: Any) -> None:
    text = "whether a certificate agrees with the ledger, and with the study, line by line"
    made = commands.add_parser(
        "verify", help=text, description=f"Says {text}. Exit code 0 only if all agrees, else 3."
    )
    made.set_defaults(act=verify)
    made.add_argument("certificate", type=Path, help="the .json file")
    add_vault(made, DATABASE)
    made.add_argument("--study", metavar="URL", help="storage of the Optuna study")
    made.add_argument("--study-name", metavar="NAME", help="its name")
    add_json(made)
