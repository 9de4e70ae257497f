"""Private hyperparameter tuning: the engine.

It knows no host framework; :mod:`optuna_samplers` and :mod:`raytune_searchers` wrap it.
"""

__version__ = "0.2.0"
