"""``privbo guarantee`` and ``privbo report``: claims and pages from a vault alone.

Opening a vault here starts nothing, draws nothing and charges nothing.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from privbo_plugins.cli.outcome import Command, as_json, check_lasting, print_json, said, vault_at
from privbo_plugins.errors import PrivacyError, VaultError

if TYPE_CHECKING:
    from privbo_plugins.sessions.stored import StoredRun
    from privbo_plugins.store.vault import Vault


@click.command(cls=Command)
@vault_at()
@click.option("--run", help="name of the run; without it all runs are listed")
@click.option(
    "--data-label", metavar="LABEL",
    help="all runs on the data of this label together, of which the losses add up",
)  # fmt: skip
@as_json
def guarantee(vault: str, run: str | None, data_label: str | None, as_json: bool) -> None:
    """Print what may be claimed for a run, as far as its vault alone can know it.

    What a study or experiment shows beside the releases, no vault knows:
    sampler.guarantee(study) or search.guarantee(results) compare it.
    """
    from privbo_plugins.sessions.stored import run_named, runs_of

    held = opened(vault)
    if data_label is not None and run is not None:
        raise ValueError("--data-label asks for all runs on the same data: leave --run out.")
    if data_label is not None:
        facts, text = _together(held, data_label)
    elif run is None:
        facts, text = _listed(runs_of(held))
    else:
        facts, text = _one(run_named(held, run))
    print_json(facts) if as_json else print(text)


_Answer = tuple[dict[str, Any], str]
"""The same for programs and for people."""


def _one(run: StoredRun) -> _Answer:
    from privbo_plugins.privacy.statement import legible

    claimed = run.guarantee
    facts = {
        "run": run.name, "kind": run.kind, "algorithm": run.algorithm,
        "guarantee": claimed.to_dict(), "not_known": run.not_known,
    }  # fmt: skip
    unknown = "\n".join(f"- {fact}" for fact in run.not_known)
    return facts, (
        f"{legible(run.name)} ({', '.join(filter(None, (run.kind, run.algorithm)))})\n\n"
        f"{claimed}\n\nWhat this vault alone cannot know:\n{unknown}"
    )


def _together(vault: Vault, data_label: str) -> _Answer:
    """Tells what holds for all runs on the same data together."""
    from privbo_plugins.privacy.statement import legible
    from privbo_plugins.sessions.certificates import added, labelled

    runs = labelled(vault, data_label)
    total, names = added(runs, data_label), [run.name for run in runs]
    facts = {"data_label": data_label, "runs": names}
    return facts | {"guarantee": total.to_dict(), "figures": total.figures()}, (
        f"{data_label}: {', '.join(map(legible, names))}\n\n{total}\n\n"
        "Only runs that were given this label are added up (privbo label)."
    )


def _listed(runs: list[StoredRun]) -> _Answer:
    from privbo_plugins.privacy.statement import legible

    facts = [_facts(run) for run in runs]
    lines = [
        f"{legible(run['run'])}  ({', '.join(filter(None, (run['kind'], run['algorithm'])))}; "
        f"{run['releases']} releases)  {run['claim']}"
        for run in facts
    ]
    lines += ["\nGive --run NAME for what may be claimed, in full."]
    return {"runs": facts}, "\n".join(lines) if facts else "The vault holds no run yet."


def _facts(run: StoredRun) -> dict[str, Any]:
    """Makes one line of the list; a run that cannot be read here does not hide the others."""
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


@click.command(cls=Command)
@vault_at()
@click.option("--run", help="name of the run; needed where the vault holds several")
@click.option("--out", type=Path, required=True, help="where to write, .html")
def report(vault: str, run: str | None, out: Path) -> None:
    """Write an HTML page about a run: guarantee, releases and pictures."""
    from privbo_plugins.privacy.statement import legible
    from privbo_plugins.sessions.stored import run_named

    if out.suffix.lower() not in (".html", ".htm"):
        raise ValueError(f"A report is an .html file, got --out {out.name!r}.")
    found = run_named(opened(vault), run)
    print(f"The report of {legible(found.name)} is in {found.report().write(out)}.")


def opened(url: str) -> Vault:
    """Opens a vault that exists and outlives this process.

    Raises:
        ValueError: If its URL names none on disk.
        VaultError: If there is none, or it cannot be read.
    """
    from privbo_plugins.store.vault import open_vault

    check_lasting(url)
    return open_vault(url, create=False)
