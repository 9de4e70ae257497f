"""Claims from a vault: ``privbo guarantee``, ``report``, ``certificate``, ``verify``, ``label``.

Nothing is started, drawn or charged. A certificate is noted in the vault that issues it, so that
it is known again as it was written.
"""

from __future__ import annotations

from collections.abc import Callable
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from privbo_plugins.cli.outcome import DIFFERS, Answer, Command, as_json, said, together, vault_at
from privbo_plugins.errors import TOGETHER, PrivacyError, VaultError

if TYPE_CHECKING:
    from privbo_plugins.sessions.certificates import Line
    from privbo_plugins.sessions.stored import StoredRun
    from privbo_plugins.store.vault import Vault

_LARGEST = 2**24
"""Bytes that a certificate may have."""

_study_options = together(
    click.option("--study", metavar="PATH", help="storage of its Optuna study, as --vault"),
    click.option("--study-name", metavar="NAME", help="its name; the run's, if not given"),
)
"""Of an Optuna study that is compared with its run."""


def _runs(help_of_run: str) -> Callable[[Any], Any]:
    """Makes the options that name runs of a vault."""
    return together(
        click.option("--run", help=f"name of the run; {help_of_run}. {TOGETHER}"),
        click.option(
            "--data-label", metavar="LABEL",
            help="or all runs on the data of this label together, of which the losses add up",
        ),
    )  # fmt: skip


def _named(vault: Vault, run: str | None, data_label: str | None) -> list[StoredRun]:
    """The runs that the options name: one, or all with a label.

    Raises:
        ValueError: If they name none, or both are given.
    """
    from privbo_plugins.sessions.certificates import labelled
    from privbo_plugins.sessions.stored import run_named

    if data_label is None:
        return [run_named(vault, run)]
    if run is not None:
        raise ValueError("--data-label takes all runs on the same data: leave --run out.")
    return labelled(vault, data_label)


@click.command(cls=Command)
@vault_at(opens=True)
@_runs("of several in a vault, all are listed without it")
@_study_options
@as_json
def guarantee(
    vault: Vault,
    run: str | None,
    data_label: str | None,
    study: str | None,
    study_name: str | None,
) -> Answer:
    """Print what may be claimed for a run, as far as its vault alone can know it.

    What a study or experiment shows beside the releases, and whether the vault was set back to an
    older backup, no vault knows: --study, sampler.guarantee(study) or search.guarantee(results)
    compare it. Exit code 3 if the study differs.
    """
    from privbo_plugins.sessions.certificates import added
    from privbo_plugins.sessions.stored import runs_of

    listed = runs_of(vault)
    if run is None and data_label is None and study is None and len(listed) != 1:
        return _listed(listed)
    runs = _named(vault, run, data_label)
    compared = _of_study(runs, study, study_name)
    verdict = _verdict(compared, "publish nothing", verbose=False)
    if verdict.code:
        return verdict
    total, names = added(runs, data_label), ", ".join(one.title for one in runs)
    if data_label is not None:
        of_all = {"data_label": data_label, "runs": [one.name for one in runs]}
        return Answer(
            f"{data_label}: {names}\n\n{total.details()}\n\n"
            "Only runs that were given this label are added up (privbo label).",
            of_all | {"guarantee": total.to_dict(), "figures": total.figures()},
        )
    (one,) = runs
    unknown = "\n".join(["What this vault alone cannot know:", *(f"- {f}" for f in one.not_known)])
    facts = {
        "run": one.name, "kind": one.kind, "algorithm": one.algorithm,
        "guarantee": total.to_dict(), "not_known": one.not_known,
    }  # fmt: skip
    shown = f"\n\nThe study beside it: {verdict.text}" * bool(compared)
    return Answer(
        f"{names} ({_what(one.kind, one.algorithm)})\n\n{total.details()}{shown}\n\n{unknown}",
        facts if run is not None else facts | {"runs": [_facts(one)]},
    )


def _what(kind: str, algorithm: str) -> str:
    return ", ".join(filter(None, (kind, algorithm)))


def _listed(runs: list[StoredRun]) -> Answer:
    facts = [_facts(run) for run in runs]
    lines = [
        f"{run.title}  ({_what(one['kind'], one['algorithm'])}; {one['releases']} releases)  "
        f"{one['claim']}"
        for run, one in zip(runs, facts, strict=True)
    ]
    lines += ["\nGive --run NAME for what may be claimed, in full.", f"{TOGETHER}."]
    return Answer("\n".join(lines) if facts else "The vault holds no run yet.", {"runs": facts})


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
@vault_at(opens=True)
@click.option("--run", help="name of the run; needed where the vault holds several")
@click.option("--out", type=Path, required=True, help="where to write, .html")
def report(vault: Vault, run: str | None, out: Path) -> Answer:
    """Write an HTML page about a run: guarantee, releases and pictures."""
    if out.suffix.lower() not in (".html", ".htm"):
        raise ValueError(f"A report is an .html file, got --out {out.name!r}.")
    (found,) = _named(vault, run, None)
    return Answer(f"The report of {found.title} is in {found.report().write(out)}.")


@click.command(cls=Command)
@vault_at(opens=True)
@_runs("needed where the vault holds several")
@click.option(
    "--out", type=Path, multiple=True, required=True, metavar="PATH ...",
    help="where to write: .json to be checked, .md for people",
)  # fmt: skip
def certificate(vault: Vault, run: str | None, data_label: str | None, out: list[Path]) -> Answer:
    """Write what may be claimed, as a file that can be checked against the vault.

    The vault notes that it has issued it; nothing is drawn.
    """
    from privbo_plugins.files import write_text
    from privbo_plugins.sessions.certificates import Certificate, issue

    written = {".json": Certificate.to_json, ".md": Certificate.to_markdown}
    wrong = next((path for path in out if path.suffix.lower() not in written), None)
    if wrong is not None:
        raise ValueError(
            "A certificate is a .json file, which can be checked, or an .md file for people, "
            f"got --out {wrong.name!r}."
        )
    made = issue(_named(vault, run, data_label), data_label)
    for path in out:
        write_text(path, written[path.suffix.lower()](made), private=False)
    files = ", ".join(map(str, out))
    return Answer(f"{made.statement().sentence}\n\nThe certificate is in {files}.")


@click.command(cls=Command)
@vault_at(opens=True)
@click.option(
    "--run", multiple=True, metavar="NAME ...",
    help="names of runs; needed where the vault holds several",
)  # fmt: skip
@click.option(
    "--data-label", metavar="LABEL", required=True,
    help="public name of the records, kept for good: wards2026",
)  # fmt: skip
def label(vault: Vault, run: list[str], data_label: str) -> Answer:
    """Note in the vault on which data runs are, so that their losses are added up."""
    from privbo_plugins.sessions.certificates import give_label
    from privbo_plugins.sessions.stored import run_named

    runs = [run_named(vault, name) for name in run] or [run_named(vault, None)]
    for one in runs:
        give_label(one, data_label)
    return Answer(f"{', '.join(one.title for one in runs)}: on the data of {data_label!r}.")


@click.command(cls=Command)
@click.argument("path", metavar="CERTIFICATE.json", type=Path)
@vault_at(opens=True)
@_study_options
@click.option("-v", "--verbose", is_flag=True, help="show lines that agree, too")
@as_json
def verify(
    path: Path, vault: Vault, study: str | None, study_name: str | None, verbose: bool
) -> Answer:
    """Compare a certificate with the ledger, and with the study, line by line.

    Exit code 0 only if all agrees, else 3.
    """
    from privbo_plugins.sessions.certificates import Certificate, verified
    from privbo_plugins.sessions.stored import run_named

    if path.stat().st_size > _LARGEST:
        raise ValueError(f"{path.name} is larger than any certificate.")
    try:
        found = Certificate.from_json(path.read_text(encoding="utf-8"))
    except UnicodeDecodeError:
        raise ValueError(f"{path.name} is no UTF-8 text, and so no certificate.") from None
    lines = verified(found, vault)
    runs = [] if study is None else [run_named(vault, one["run"]) for one in found.facts["runs"]]
    lines += _of_study(runs, study, study_name)
    return _verdict(lines, "do not rely on this certificate", verbose)


def _verdict(lines: list[Line], advice: str, verbose: bool) -> Answer:
    """Tells first whether all agrees, and then which lines differ."""
    differing = [line for line in lines if line.agrees is False]
    apart = [line for line in lines if line.agrees is None]
    shown = [f"All {len(lines) - len(apart)} lines agree."]
    if differing:
        shown = [f"{len(differing)} of {len(lines) - len(apart)} lines differ: {advice}."]
    told = {True: "agrees ", False: "DIFFERS", None: "NOT COMPARED"}
    shown += [
        f"{told[line.agrees]}  {line.what}: {line.found}"
        for line in (lines if verbose else differing + apart)
    ]
    facts = {"agrees": not differing, "lines": [line._asdict() for line in lines]}
    return Answer("\n".join(shown), facts, DIFFERS if differing else 0)


def _of_study(runs: list[StoredRun], study: str | None, study_name: str | None) -> list[Line]:
    """Compares a run with its study, if one was given, by the adapter for Optuna."""
    from privbo_plugins.sessions.certificates import Line

    if study is None and study_name is None:
        return []
    if study is None:
        raise ValueError("--study-name is the name of a study in the storage that --study gives.")
    try:
        adapter = import_module("optuna_samplers._compared")
    except ImportError:
        raise ValueError(
            "--study needs Optuna: pip install 'privbo-plugins[optuna]'. Leave it out to ask the "
            "vault alone."
        ) from None
    if len(runs) > 1:
        raise ValueError(
            "--study compares one run, and these are several: leave it out, and compare each "
            "run with its own study."
        )
    told = adapter.compare_study(study, study_name or runs[0].host_name, runs[0])
    return [Line(f"study: {what}", agrees, text) for what, agrees, text in told]
