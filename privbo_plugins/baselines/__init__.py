"""What the algorithms are compared with, under the same guarantee."""

from privbo_plugins.baselines.distributed_kernel_ucb import (
    ApproxDisKernelUCB,
    DisKernelUCB,
    NKernelUCB,
)
from privbo_plugins.baselines.private_selection import noisy_argmin
from privbo_plugins.baselines.random_search import random_points

__all__ = [
    "ApproxDisKernelUCB",
    "DisKernelUCB",
    "NKernelUCB",
    "noisy_argmin",
    "random_points",
]
