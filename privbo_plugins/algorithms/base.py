"""The former name of :mod:`privbo_plugins.algorithms.protocols`, which saved searches hold."""

from privbo_plugins.algorithms.protocols import Evaluation as Play

__all__ = ["Play"]
