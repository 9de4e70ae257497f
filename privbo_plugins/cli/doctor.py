"""``privbo doctor``: what a report of a bug should say of an installation, and of a vault."""

from __future__ import annotations

import os
import platform
import re
import tempfile
from collections.abc import Callable
from importlib import import_module, metadata
from pathlib import Path

import click

from privbo_plugins import __version__
from privbo_plugins.cli.outcome import REFUSED, Answer, Command, as_json, said, vault_at

_REQUIREMENT = re.compile(r"([\w.-]+)[^;]*(?:;.*extra == ['\"](\w+)['\"])?")
_OTHERS = {"all", "dev", "docs", "mutants"}
"""Extras that repeat others, or are not for users."""


@click.command(cls=Command)
@vault_at(required=False)
@as_json
def doctor(vault: str | None) -> Answer:
    """Print what a report of a bug should say: versions, extras, and the state of a vault.

    Nothing is written, and nothing secret is shown: no URL, no folder, no run's name, nothing of
    its records.
    """
    facts = {
        "privbo-plugins": __version__,
        "python": platform.python_version(),
        "platform": platform.platform(),
        **_installed(),
        "system's entropy": _tried(
            lambda: "works" if os.urandom(16) else "FAILED: it gives nothing"
        ),
        "noise library": _tried(lambda: f"loads {import_module('opendp').__name__}"),
        "reports and files": _shown(Path.cwd()),
        "temporary files": _shown(Path(tempfile.gettempdir())),
    }
    if vault is not None:
        facts["vault"] = _tried(lambda: _of_vault(vault))
    failed = any(found.startswith("FAILED") for found in facts.values())
    lines = [f"{name}: {found}" for name, found in facts.items()]
    return Answer("\n".join(lines), facts, REFUSED if failed else 0)


def _installed() -> dict[str, str]:
    """Versions of the packages that this one needs, and which extras are complete."""
    try:
        needed = metadata.requires("privbo-plugins") or []
    except metadata.PackageNotFoundError:
        return {"extras": "not known: the package is run from a folder, not installed"}
    found: dict[str, str] = {}
    complete: dict[str, bool] = {}
    for name, extra in (_REQUIREMENT.match(one).groups() for one in needed):  # type: ignore[union-attr]
        if extra in _OTHERS:
            continue
        try:
            found[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            found[name] = "not installed"
        if extra is not None:
            complete[extra] = complete.get(extra, True) and found[name] != "not installed"
    extras = [f"{name} {'is' if whole else 'NOT'} installed" for name, whole in complete.items()]
    return {**found, "extras": ", ".join(extras)}


def _tried(look: Callable[[], str]) -> str:
    try:
        return look()
    except Exception as error:
        return f"FAILED: {said(error)}"


def _shown(folder: Path) -> str:
    """A folder without its user's name, and whether files can be made there."""
    home = str(Path.home())
    writable = "can be written" if os.access(folder, os.W_OK) else "CANNOT be written"
    return f"{re.sub(f'^{re.escape(home)}(?=/|$)', '~', str(folder))} ({writable})"


def _of_vault(handle: str) -> str:
    """Checks a vault's tables, its log's chain, and whether it lies where its runs were used."""
    from privbo_plugins.privacy.words import of_one
    from privbo_plugins.store import tables, vault
    from privbo_plugins.store.run import PLACE

    held = vault.open_vault(handle, create=False, writes=False)
    with held.transaction("") as tx:
        tx.check_chain()
        lines, hosts = tx.head().n, tx.hosts()
    place, here = held.place(), 0
    for host in hosts:
        with held.transaction("") as tx:
            tx.run_id = tx.run_of_host(host) or ""
            here += tx.has_mark(PLACE, place)
    return of_one(
        f"schema {tables.SCHEMA}, {len(hosts)} runs, {lines} lines whose chain fits; used where "
        f"it lies now: {here} runs (fewer after a copy, a restored backup or a restart)"
    )
