"""Compares the settings of a run with those that a host joins it with.

A ledger of rewards needs neither algorithm nor search space for its guarantee, and a sampler of
the user's own gives neither. Where the host that starts a run gives them, they are stored with it,
and a host with others is refused: with two spaces in one run, an algorithm would learn from
rewards of points that it never asked for.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from privbo_plugins.errors import SpaceChangedError, VaultError
from privbo_plugins.spaces import Space
from privbo_plugins.store.log import DAMAGED

_CONFIG, _SPACE = "config", "space"


def differing(then: Mapping[str, Any], now: Mapping[str, Any]) -> str:
    """Names the settings that differ, and says how; empty if none do."""
    return ", ".join(
        f"{name}={_shown(then.get(name))} then and {_shown(now.get(name))} now"
        for name in {**then, **now}
        if then.get(name) != now.get(name)
    )


def _shown(setting: Any) -> str:
    """A setting in words; scores by name and positive label, as their settings may hold much."""
    if not (isinstance(setting, list) and all(isinstance(one, dict) for one in setting)):
        return repr(setting)
    positive = [f" ({one['positive']} is positive)" * bool(one.get("positive")) for one in setting]
    names = [f"{one.get('name')}{more}" for one, more in zip(setting, positive, strict=True)]
    return f"{', '.join(names)}, each with its own settings"


def asked_with(config: Mapping[str, Any] | None, space: Space | None) -> dict[str, Any]:
    """Settings and space as a run of rewards stores them, without those that no host gave.

    Raises:
        TypeError: If the settings are not JSON-ready.
    """
    given = {
        _CONFIG: None if config is None else dict(config),
        _SPACE: None if space is None else space.to_dict(),
    }
    told = {name: one for name, one in given.items() if one is not None}
    return dict(json.loads(json.dumps(told)))


def check_asked(stored: Mapping[str, Any], given: Mapping[str, Any]) -> None:
    """Checks that a host asks for rewards with the settings that the run was started with.

    Raises:
        SpaceChangedError: If the run has another space.
        ValueError: If it has other settings.
    """
    then, now = stored.get(_SPACE), given.get(_SPACE)
    if then != now:
        raise SpaceChangedError(
            f"The rewards of this run are asked for over {_names(then)}, and this host "
            f"gave another space ({_names(now)}, or other ranges or choices). "
            "Nothing was drawn. Give the space= that the run was started with, or start another "
            "run."
        )
    others = differing(stored.get(_CONFIG) or {}, given.get(_CONFIG) or {})
    if others:
        raise ValueError(
            f"This run was started with other settings ({others}). Nothing was "
            "drawn. Give the config= that the run was started with, or start another run."
        )


def asked_of(stored: Mapping[str, Any]) -> dict[str, Any]:
    """Reads settings and space that a run was started with, as a host that joins it gives them.

    Raises:
        VaultError: If they are none.
    """
    config, space = stored.get(_CONFIG), stored.get(_SPACE)
    try:
        return {
            _CONFIG: None if config is None else dict(config),
            _SPACE: None if space is None else Space.from_dict(space),
        }
    except (KeyError, TypeError, ValueError):
        raise VaultError(DAMAGED) from None


def _names(space: Mapping[str, Any] | None) -> str:
    return ", ".join(space) if space else "none"
