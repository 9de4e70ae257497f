"""What users hand to a search, checked once."""

from __future__ import annotations

import uuid
from collections.abc import Mapping
from typing import Any

from privbo_plugins.status import warn_of_minimised_scores
from privbo_plugins.store.vault import (
    as_handle,
    handle_of,
    open_vault,
    refuse_password,
    resolve_url,
)
from raytune_searchers._audit import OURS


def check_target(name: str, metric: Any, mode: Any) -> None:
    """One metric, one mode, and no name that Tune fills in itself."""
    if isinstance(metric, list | tuple) or isinstance(mode, list | tuple):
        raise ValueError(f"{name} tunes one metric; this search was given several.")
    if mode not in (None, "min", "max"):
        raise ValueError(f"mode must be 'min' or 'max', got {mode!r}.")
    if metric is not None and (not isinstance(metric, str) or not metric):
        raise ValueError(f"metric must be a name, got {metric!r}.")
    if metric is not None and metric.split("/")[0] in OURS | {"config"}:
        raise ValueError(f"metric may not be {metric!r}, which Tune fills in itself.")
    if mode == "min":
        warn_of_minimised_scores([metric])


def checked_points(points: Any) -> list[dict[str, Any]]:
    """Points to evaluate, as dictionaries of their own."""
    points = [] if points is None else points
    if not isinstance(points, list | tuple) or not all(isinstance(p, Mapping) for p in points):
        raise ValueError(
            "points_to_evaluate must be a list of dictionaries, each with a value for every "
            "parameter of the search space."
        )
    return [dict(point) for point in points]


def checked_run(run_name: Any, handle: str | None) -> str:
    """A name of a run; a new one for None."""
    if run_name is None:
        return uuid.uuid4().hex
    if not isinstance(run_name, str) or not run_name or len(run_name) > 200:
        raise ValueError("run_name must be a name of 1 to 200 characters.")
    if handle is None:
        raise ValueError(
            "run_name= names a run in a database, where a later search finds it again; this vault "
            "is in memory. Give vault='sqlite:///private.db' too, or no run_name=."
        )
    return run_name


def checked_handle(vault: Any) -> str | None:
    """None for memory, else a handle that may be pickled: no password, no relative path."""
    handle = as_handle(vault)
    if handle is None or handle == "memory":
        return None
    url = resolve_url(handle)
    if handle.startswith("env:"):
        return handle
    refuse_password(handle, "Ray would write into tuner.pkl beside the results")
    return handle_of(url)


def private_url(handle: str) -> str:
    """The URL itself, for the host's memory only."""
    return handle_of(resolve_url(handle))


def identify(handle: str) -> str:
    """The identity of the vault behind a handle; creates the store if there is none."""
    vault = open_vault(private_url(handle))
    vault.close()
    return vault.vault_id
