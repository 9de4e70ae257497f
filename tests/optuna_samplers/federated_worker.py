"""Other names of :mod:`tests.optuna_samplers.scenes.federations`."""

from tests.optuna_samplers.scenes.federations import *  # noqa: F403
