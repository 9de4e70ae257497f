"""Points that somebody else chooses, and the noisy mean of each: any sampler, centrally private.

What any user of a tuner who spends one budget on N noisy means would do, made sound: clipping,
one ledger, and a recommendation that is not the luckiest trial.
"""

from privbo_plugins.algorithms.released_means.algorithm import MeansState, ReleasedMeans
from privbo_plugins.algorithms.released_means.plan import MeansConfig, MeansPlan, make_plan

__all__ = ["MeansConfig", "MeansPlan", "MeansState", "ReleasedMeans", "make_plan"]
