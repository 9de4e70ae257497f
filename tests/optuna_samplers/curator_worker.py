"""Other names of :mod:`tests.optuna_samplers.scenes.curators`."""

import sys

from tests.optuna_samplers.scenes.curators import *  # noqa: F403
from tests.optuna_samplers.scenes.curators import main

if __name__ == "__main__":
    main(*sys.argv[1:])
