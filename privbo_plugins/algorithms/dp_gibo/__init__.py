"""DP-GIBO (Sopa, Marusic, Avella-Medina, Cunningham: Scalable Differentially Private BO)."""

from privbo_plugins.algorithms.dp_gibo.algorithm import DPGIBO
from privbo_plugins.algorithms.dp_gibo.batches import GIBOState
from privbo_plugins.algorithms.dp_gibo.config import GIBOConfig
from privbo_plugins.algorithms.dp_gibo.plan import Plan, make_plan

__all__ = ["DPGIBO", "GIBOConfig", "GIBOState", "Plan", "make_plan"]
