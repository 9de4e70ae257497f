"""DUETS: uniform exploration of a shrinking set with coins that others can replay.

Source: Pavlovic, Salgia and Zhao, *Order-Optimal Regret in Distributed Kernel Bandits using
Uniform Sampling with Shared Randomness*. :class:`Server` and :class:`Agent` are its two sides,
:class:`DUETS` holds all of them for a host.
"""

from privbo_plugins.algorithms.duets.agent import Agent
from privbo_plugins.algorithms.duets.algorithm import DUETS, Epoch, make_agents
from privbo_plugins.algorithms.duets.coins import Coins
from privbo_plugins.algorithms.duets.config import DUETSConfig
from privbo_plugins.algorithms.duets.domain import Domain, FinitePoints, SpaceDomain
from privbo_plugins.algorithms.duets.messages import Broadcast, Communication, InducingSet, Upload
from privbo_plugins.algorithms.duets.server import Server

__all__ = [
    "DUETS",
    "Agent",
    "Broadcast",
    "Coins",
    "Communication",
    "DUETSConfig",
    "Domain",
    "Epoch",
    "FinitePoints",
    "InducingSet",
    "Server",
    "SpaceDomain",
    "Upload",
    "make_agents",
]
