"""Ray Tune searchers with a privacy guarantee."""

from __future__ import annotations

from typing import TYPE_CHECKING

from privbo_plugins.lazy import on_first_use

if TYPE_CHECKING:
    from privbo_plugins.algorithms.dp_fts_de.config import FederationConfig
    from raytune_searchers._base import PrivateSearch
    from raytune_searchers._local import ldp_trainable
    from raytune_searchers._means import private_trainable
    from raytune_searchers._trainable import report_public
    from raytune_searchers.dp_fts_de import DPFTSDESearch, agent_trials
    from raytune_searchers.dp_gibo import DPGIBOSearch
    from raytune_searchers.duets import DUETSSearch
    from raytune_searchers.hosts.curator import answering
    from raytune_searchers.ldp_gp_ucb import (
        LDPATAGPUCBSearch,
        LDPGPUCBSearch,
        LDPMoMAGPUCBSearch,
        LDPTGPUCBSearch,
    )
    from raytune_searchers.po_gp_ucb import POGPUCBSearch
else:
    __getattr__, __dir__ = on_first_use(
        __name__,
        {
            "raytune_searchers._base": ["PrivateSearch"],
            "privbo_plugins.algorithms.dp_fts_de.config": ["FederationConfig"],
            "raytune_searchers.hosts.curator": ["answering"],
            "raytune_searchers._local": ["ldp_trainable"],
            "raytune_searchers._means": ["private_trainable"],
            "raytune_searchers._trainable": ["report_public"],
            "raytune_searchers.dp_fts_de": ["DPFTSDESearch", "agent_trials"],
            "raytune_searchers.dp_gibo": ["DPGIBOSearch"],
            "raytune_searchers.duets": ["DUETSSearch"],
            "raytune_searchers.ldp_gp_ucb": [
                "LDPATAGPUCBSearch",
                "LDPGPUCBSearch",
                "LDPMoMAGPUCBSearch",
                "LDPTGPUCBSearch",
            ],
            "raytune_searchers.po_gp_ucb": ["POGPUCBSearch"],
        },
    )

__all__ = [
    "DPFTSDESearch",
    "DPGIBOSearch",
    "DUETSSearch",
    "FederationConfig",
    "LDPATAGPUCBSearch",
    "LDPGPUCBSearch",
    "LDPMoMAGPUCBSearch",
    "LDPTGPUCBSearch",
    "POGPUCBSearch",
    "PrivateSearch",
    "agent_trials",
    "answering",
    "ldp_trainable",
    "private_trainable",
    "report_public",
]
