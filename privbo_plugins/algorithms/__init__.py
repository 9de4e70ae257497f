"""One paper, one module; :data:`ALGORITHMS` lists them all."""

from __future__ import annotations

from typing import TYPE_CHECKING

from privbo_plugins.lazy import on_first_use

if TYPE_CHECKING:
    from privbo_plugins.algorithms.dp_fts_de.agent import FEDERATED_MODELS
    from privbo_plugins.algorithms.dp_fts_de.model import SharedModel
    from privbo_plugins.algorithms.protocols import Algorithm, CentralAlgorithm
    from privbo_plugins.algorithms.registry import (
        ALGORITHMS,
        CENTRAL_ALGORITHMS,
        DISTRIBUTED_ALGORITHMS,
        REWARD_ALGORITHMS,
        ROW_ALGORITHMS,
    )
else:
    __getattr__, __dir__ = on_first_use(
        __name__,
        {
            "privbo_plugins.algorithms.protocols": ["Algorithm", "CentralAlgorithm"],
            "privbo_plugins.algorithms.dp_fts_de.agent": ["FEDERATED_MODELS"],
            "privbo_plugins.algorithms.dp_fts_de.model": ["SharedModel"],
            "privbo_plugins.algorithms.registry": [
                "ALGORITHMS",
                "CENTRAL_ALGORITHMS",
                "DISTRIBUTED_ALGORITHMS",
                "REWARD_ALGORITHMS",
                "ROW_ALGORITHMS",
            ],
        },
    )

__all__ = [
    "ALGORITHMS",
    "CENTRAL_ALGORITHMS",
    "DISTRIBUTED_ALGORITHMS",
    "FEDERATED_MODELS",
    "REWARD_ALGORITHMS",
    "ROW_ALGORITHMS",
    "Algorithm",
    "CentralAlgorithm",
    "SharedModel",
]
