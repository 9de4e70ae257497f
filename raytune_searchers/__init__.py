"""Ray Tune searchers with a privacy guarantee."""

from __future__ import annotations

from typing import TYPE_CHECKING

from privbo_plugins.lazy import on_first_use

if TYPE_CHECKING:
    from privbo_plugins.algorithms.dp_fts_de.config import FederationConfig as FederationConfig
    from raytune_searchers._base import PrivateSearch as PrivateSearch
    from raytune_searchers._local import ldp_trainable as ldp_trainable
    from raytune_searchers._means import private_trainable as private_trainable
    from raytune_searchers._trainable import report_public as report_public
    from raytune_searchers.dp_fts_de import DPFTSDESearch as DPFTSDESearch
    from raytune_searchers.dp_fts_de import agent_trials as agent_trials
    from raytune_searchers.dp_gibo import DPGIBOSearch as DPGIBOSearch
    from raytune_searchers.duets import DUETSSearch as DUETSSearch
    from raytune_searchers.hosts.curator import answering as answering
    from raytune_searchers.ldp_gp_ucb import LDPATAGPUCBSearch as LDPATAGPUCBSearch
    from raytune_searchers.ldp_gp_ucb import LDPGPUCBSearch as LDPGPUCBSearch
    from raytune_searchers.ldp_gp_ucb import LDPMoMAGPUCBSearch as LDPMoMAGPUCBSearch
    from raytune_searchers.ldp_gp_ucb import LDPTGPUCBSearch as LDPTGPUCBSearch
    from raytune_searchers.po_gp_ucb import POGPUCBSearch as POGPUCBSearch
else:
    __getattr__, __dir__, __all__ = on_first_use(
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
