"""Every algorithm by name.

It imports all of them, so what runs one algorithm does not import it.
"""

from privbo_plugins.algorithms.base import Algorithm, CentralAlgorithm
from privbo_plugins.algorithms.dp_gibo import DPGIBO
from privbo_plugins.algorithms.duets import DUETS
from privbo_plugins.algorithms.ldp_gp_ucb import ATAGPUCB, GPUCB, TGPUCB, MoMAGPUCB, RewardUCB
from privbo_plugins.algorithms.po_gp_ucb import POGPUCB

CENTRAL_ALGORITHMS: dict[str, type[CentralAlgorithm]] = {DPGIBO.name: DPGIBO}
"""Algorithms that tune on per-record losses, by name."""

REWARD_ALGORITHMS: dict[str, type[RewardUCB]] = {
    GPUCB.name: GPUCB,
    TGPUCB.name: TGPUCB,
    ATAGPUCB.name: ATAGPUCB,
    MoMAGPUCB.name: MoMAGPUCB,
}
"""Algorithms that tune on one privatised number a trial, by name."""

ROW_ALGORITHMS: dict[str, type[POGPUCB]] = {POGPUCB.name: POGPUCB}
"""Algorithms that choose rows of a released table, by name."""

DISTRIBUTED_ALGORITHMS: dict[str, type[DUETS]] = {DUETS.name: DUETS}
"""Algorithms of many agents that share one objective, by name."""

ALGORITHMS: dict[str, type[Algorithm]] = {
    **CENTRAL_ALGORITHMS,
    **REWARD_ALGORITHMS,
    **ROW_ALGORITHMS,
    **DISTRIBUTED_ALGORITHMS,
}
"""Every algorithm by name; one contract suite runs over all of them."""
