"""DP-FTS-DE (Dai, Low, Jaillet: Differentially Private Federated Bayesian Optimization)."""

from privbo_plugins.algorithms.dp_fts_de.agent import Agent, SharedModel
from privbo_plugins.algorithms.dp_fts_de.config import FederationConfig
from privbo_plugins.algorithms.dp_fts_de.regions import Regions, Temperature
from privbo_plugins.algorithms.dp_fts_de.server import Broadcast, RoundSum

__all__ = [
    "Agent",
    "Broadcast",
    "FederationConfig",
    "Regions",
    "RoundSum",
    "SharedModel",
    "Temperature",
]
