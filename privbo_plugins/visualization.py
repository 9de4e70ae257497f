"""The former name of :mod:`privbo_plugins.plots`, which saved searches of version 0.1 hold."""

from privbo_plugins.plots import (
    History,
    plot_active_set,
    plot_budget,
    plot_communication,
    plot_path,
    plot_values,
)

__all__ = [
    "History",
    "plot_active_set",
    "plot_budget",
    "plot_communication",
    "plot_path",
    "plot_values",
]
