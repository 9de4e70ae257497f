"""``privbo guarantee`` and ``privbo report``: what a vault alone can say of its runs.

Opening a vault here starts nothing, draws nothing and charges nothing.
"""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import TYPE_CHECKING, Any

from privbo_plugins.cli.outcome import add_json, add_vault, check_lasting, print_json, said
from privbo_plugins.errors import PrivacyError, VaultError

if TYPE_CHECKING:
    from privbo_plugins.sessions.stored import StoredRun
    from privbo_plugins.store.vault import Vault

DATABASE = "database of the ledger, such as sqlite:///private.db, or env:NAME for its URL"


def guarantee(given: argparse.Namespace) -> None:
    """Prints what may be claimed for a run, or lists the runs of a vault."""
    from privbo_plugins.sessions.stored import run_named, runs_of

    vault = opened(given.vault)
    if given.data_label is not None:
        _together(vault, given)
        return
    if given.run is None:
        _list(runs_of(vault, given.vault), given)
        return
    run = run_named(vault, given.vault, given.run)
    claimed = run.guarantee
    if given.json:
        print_json(
            {
                "run": run.name,
                "kind": run.kind,
                "algorithm": run.algorithm,
                "guarantee": claimed.to_dict(),
                "not_known": run.not_known,
            }
        )
        return
    print(f"{_headline(run)}\n\n{claimed}\n\nWhat this vault alone cannot know:")
    for fact in run.not_known:
        print(f"- {fact}")


def _together(vault: Vault, given: argparse.Namespace) -> None:
    """Prints what holds for all runs on the same data together."""
    from privbo_plugins.privacy.statement import legible
    from privbo_plugins.sessions.certificates import added, labelled

    if given.run is not None:
        raise ValueError("--data-label asks for all runs on the same data: leave --run out.")
    runs = labelled(vault, given.vault, given.data_label)
    total = added([(run.name, run.kind, run.guarantee) for run in runs], given.data_label)
    names = [run.name for run in runs]
    if given.json:
        told = {"data_label": given.data_label, "runs": names, "guarantee": total.to_dict()}
        print_json(told | {"figures": total.figures()})
        return
    print(f"{given.data_label}: {', '.join(map(legible, names))}\n\n{total}")
    print("\nOnly runs that were given this label are added up (privbo label).")


def report(given: argparse.Namespace) -> None:
    """Writes the page of a run."""
    from privbo_plugins.privacy.statement import legible
    from privbo_plugins.sessions.stored import run_named

    if given.out.suffix.lower() not in (".html", ".htm"):
        raise ValueError(f"A report is an .html file, got --out {given.out.name!r}.")
    run = run_named(opened(given.vault), given.vault, given.run)
    print(f"The report of {legible(run.name)} is in {run.report().write(given.out)}.")


def opened(url: str) -> Vault:
    """A vault that exists and outlives this process.

    Raises:
        ValueError: If its URL names none on disk.
        VaultError: If there is none, or it cannot be read.
    """
    from privbo_plugins.store.vault import open_vault

    check_lasting(url)
    return open_vault(url, create=False)


def _list(runs: list[StoredRun], given: argparse.Namespace) -> None:
    from privbo_plugins.privacy.statement import legible

    facts = [_facts(run) for run in runs]
    if given.json:
        print_json({"runs": facts})
        return
    if not facts:
        print("The vault holds no run yet.")
        return
    for run in facts:
        what = ", ".join(part for part in (run["kind"], run["algorithm"]) if part)
        print(f"{legible(run['run'])}  ({what}; {run['releases']} releases)  {run['claim']}")
    print("\nGive --run NAME for what may be claimed, in full.")


def _facts(run: StoredRun) -> dict[str, Any]:
    """One line of the list; a run that cannot be read here does not hide the others."""
    facts: dict[str, Any] = {
        "run": run.name, "kind": "", "algorithm": run.algorithm, "releases": 0,
        "protected": None, "claim": "",
    }  # fmt: skip
    try:
        facts |= {"kind": run.kind, "releases": run.n_releases}
        claimed = run.guarantee
    except (ValueError, PrivacyError, VaultError) as error:
        return facts | {"claim": said(error)}
    told = "as far as the vault knows, protected"
    if not claimed.protected:
        told = f"NOT PROTECTED: {'; '.join(claimed.reasons) or 'nothing has been released'}"
    return facts | {"protected": claimed.protected, "claim": told}


def _headline(run: StoredRun) -> str:
    from privbo_plugins.privacy.statement import legible

    return f"{legible(run.name)} ({', '.join(part for part in (run.kind, run.algorithm) if part)})"


# The command line -------------------------------------------------------------------------------


def add_label(command: argparse.ArgumentParser, text: str, *, required: bool = False) -> None:
    """Adds ``--data-label``."""
    command.add_argument("--data-label", metavar="LABEL", required=required, help=text)


def add_to(commands: Any) -> None:
    """Adds ``guarantee`` and ``report`` to a command line."""
    text = "what may be claimed for a run, as far as its vault alone can know it"
    made = commands.add_parser(
        "guarantee",
        help=text,
        description=f"Prints {text}. What a study or experiment shows beside the releases, no "
        "vault knows: sampler.guarantee(study) or search.guarantee(results) compare it.",
    )
    made.set_defaults(act=guarantee)
    add_vault(made, DATABASE)
    made.add_argument("--run", help="name of the run; without it all runs are listed")
    add_label(made, "all runs on the data of this label together, of which the losses add up")
    add_json(made)
    text = "an HTML page about a run: guarantee, releases and pictures"
    made = commands.add_parser("report", help=text, description=f"Writes {text}.")
    made.set_defaults(act=report)
    add_vault(made, DATABASE)
    made.add_argument("--run", help="name of the run; needed where the vault holds several")
    made.add_argument("--out", type=Path, required=True, help="where to write, .html")
