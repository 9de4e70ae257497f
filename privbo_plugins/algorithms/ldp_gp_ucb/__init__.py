"""GP-UCB for privatised and heavy-tailed rewards (Zhou and Tan; Chowdhury and Gopalan)."""

from __future__ import annotations

from typing import TYPE_CHECKING

from privbo_plugins.lazy import on_first_use

if TYPE_CHECKING:
    from privbo_plugins.algorithms.ldp_gp_ucb.ata_gp_ucb import ATAGPUCB
    from privbo_plugins.algorithms.ldp_gp_ucb.config import UCBConfig
    from privbo_plugins.algorithms.ldp_gp_ucb.gp_ucb import GPUCB
    from privbo_plugins.algorithms.ldp_gp_ucb.moma_gp_ucb import MoMAGPUCB
    from privbo_plugins.algorithms.ldp_gp_ucb.tgp_ucb import TGPUCB
    from privbo_plugins.algorithms.ldp_gp_ucb.ucb import RewardUCB
else:
    __getattr__, __dir__ = on_first_use(
        __name__,
        {
            "privbo_plugins.algorithms.ldp_gp_ucb.ata_gp_ucb": ["ATAGPUCB"],
            "privbo_plugins.algorithms.ldp_gp_ucb.config": ["UCBConfig"],
            "privbo_plugins.algorithms.ldp_gp_ucb.gp_ucb": ["GPUCB"],
            "privbo_plugins.algorithms.ldp_gp_ucb.moma_gp_ucb": ["MoMAGPUCB"],
            "privbo_plugins.algorithms.ldp_gp_ucb.tgp_ucb": ["TGPUCB"],
            "privbo_plugins.algorithms.ldp_gp_ucb.ucb": ["RewardUCB"],
        },
    )

__all__ = [
    "ATAGPUCB",
    "GPUCB",
    "TGPUCB",
    "MoMAGPUCB",
    "RewardUCB",
    "UCBConfig",
]
