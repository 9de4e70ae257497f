"""One paper, one module; :data:`ALGORITHMS` lists them all."""

from privbo_plugins.algorithms.base import Algorithm
from privbo_plugins.algorithms.dp_gibo import DPGIBO

ALGORITHMS: dict[str, type[Algorithm]] = {DPGIBO.name: DPGIBO}
"""Every algorithm by name; one contract suite runs over all of them."""
