"""DP-FTS-DE (Dai, Low, Jaillet: Differentially Private Federated Bayesian Optimization)."""

from privbo_plugins.algorithms.dp_fts_de.agent import Agent, make_model
from privbo_plugins.algorithms.dp_fts_de.config import FederationConfig, PopulationPrior
from privbo_plugins.algorithms.dp_fts_de.model import SharedModel
from privbo_plugins.algorithms.dp_fts_de.regions import Regions, Temperature
from privbo_plugins.algorithms.dp_fts_de.server import Broadcast, Measure, RoundSum

__all__ = [
    "Agent",
    "Broadcast",
    "FederationConfig",
    "Measure",
    "PopulationPrior",
    "Regions",
    "RoundSum",
    "SharedModel",
    "Temperature",
    "make_model",
]
