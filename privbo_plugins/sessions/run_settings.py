"""Fixes the settings with which a run asks for rewards: its algorithm and its search space.

A ledger needs neither for its guarantee, and a sampler of the user's own gives neither. Where a
host gives them, they are stored with the run, and a host with others is refused: with two spaces
in one run, an algorithm would learn from rewards of points that it never asked for.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from privbo_plugins.errors import SpaceChangedError, VaultError
from privbo_plugins.spaces import Space
from privbo_plugins.store.log import DAMAGED, NOTE
from privbo_plugins.store.run import Run
from privbo_plugins.store.transaction import Transaction

_CONFIG, _SPACE, _LATE = "config", "space", "late"
"""What a run has fixed, and what of it was not known to its first evaluations."""

_WORDS = {_CONFIG: "algorithm", _SPACE: "search space"}

Asked = Mapping[str, Any]
"""Settings and space as they are stored, without those that no host gave."""


def asked_with(config: Mapping[str, Any] | None, space: Space | None) -> Asked:
    """Settings and space as a run stores them.

    Raises:
        TypeError: If the settings are not JSON-ready.
    """
    given = {
        _CONFIG: None if config is None else dict(config),
        _SPACE: None if space is None else space.to_dict(),
    }
    told = {name: one for name, one in given.items() if one is not None}
    return dict(json.loads(json.dumps(told)))


def fix(run: Run, given: Asked) -> None:
    """Compares what a run was begun with, and stores what it does not know yet.

    If evaluations were charged before, it is not known what they were asked for with, and the
    run's guarantee says so from then on.

    Raises:
        SpaceChangedError: If the run has another space.
        ValueError: If it has other settings.
    """
    with run.transaction() as tx:
        compare(tx, given)
        stored = _fixed(tx)
        new = [name for name in given if name not in stored]
        late = new if new and tx.evaluations() else []
        if new:
            tx.freeze({**given, **stored, _LATE: [*stored.get(_LATE, ()), *late]})
        if late:
            words = " and ".join(_WORDS[name] for name in late)
            tx.mark(
                NOTE,
                f"the run's {words} was stored after its first evaluations: whether these were "
                "asked for with the same is not known",
            )


def compare(tx: Transaction, given: Asked) -> None:
    """Checks that a host asks for rewards with the settings that the run has stored.

    Raises:
        SpaceChangedError: If the run has another space.
        ValueError: If it has other settings.
    """
    stored = _fixed(tx)
    if _SPACE in stored and stored[_SPACE] != given.get(_SPACE):
        raise SpaceChangedError(
            f"The rewards of this run are asked for over {_names(stored[_SPACE])}, and this host "
            f"gave another space ({_names(given.get(_SPACE))}, or other ranges or choices). "
            "Nothing was drawn. Give the space= that the run was started with, or start another "
            "run."
        )
    if _CONFIG in stored and stored[_CONFIG] != given.get(_CONFIG):
        raise ValueError(
            f"This run was started with other settings ({_differing(stored, given)}). Nothing was "
            "drawn. Give the config= that the run was started with, or start another run."
        )


def asked_of(frozen: Mapping[str, Any] | None) -> dict[str, Any]:
    """Reads settings and space that a run has fixed, as a host that joins it gives them.

    Raises:
        VaultError: If they are none.
    """
    fixed = frozen or {}
    config, space = fixed.get(_CONFIG), fixed.get(_SPACE)
    try:
        return {
            _CONFIG: None if config is None else dict(config),
            _SPACE: None if space is None else Space.from_dict(space),
        }
    except (KeyError, TypeError, ValueError):
        raise VaultError(DAMAGED) from None


def algorithm_of(frozen: Mapping[str, Any] | None) -> str | None:
    """The algorithm that all of a run's rewards were asked for with, where the run knows it."""
    fixed = frozen or {}
    config, late = fixed.get(_CONFIG), fixed.get(_LATE)
    if not isinstance(config, Mapping) or not isinstance(late, list) or _CONFIG in late:
        return None
    name = config.get("algorithm")
    return name if isinstance(name, str) else None


def _fixed(tx: Transaction) -> dict[str, Any]:
    known = tx.run()
    return dict((known and known[2]) or {})


def _names(space: Mapping[str, Any] | None) -> str:
    return ", ".join(space) if space else "none"


def _differing(stored: Asked, given: Asked) -> str:
    then, now = stored[_CONFIG], given.get(_CONFIG) or {}
    return ", ".join(
        f"{name}={then.get(name)!r} then and {now.get(name)!r} now"
        for name in {**then, **now}
        if then.get(name) != now.get(name)
    )
