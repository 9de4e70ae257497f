"""All mutants."""

from __future__ import annotations

from tests.mutants import of_optuna, of_ray, of_sklearn, of_the_engine

MUTANTS = (
    *of_the_engine.MUTANTS,
    *of_optuna.MUTANTS,
    *of_ray.MUTANTS,
    *of_sklearn.MUTANTS,
)
