"""Ray Tune searchers with a privacy guarantee."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from raytune_searchers._trainable import report_public
    from raytune_searchers.dp_gibo import DPGIBOSearch

__all__ = ["DPGIBOSearch", "report_public"]

_HOMES = {
    "DPGIBOSearch": "raytune_searchers.dp_gibo",
    "report_public": "raytune_searchers._trainable",
}


def __getattr__(name: str) -> Any:
    """Imports on first use: the vault's actor needs no Ray Tune and starts a second sooner."""
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(_HOMES[name]), name)
