"""What the algorithms are compared with, under the same guarantee."""

from benchmarks.baselines.distributed_kernel_ucb import (
    ApproxDisKernelUCB,
    DisKernelUCB,
    NKernelUCB,
)
from benchmarks.baselines.private_selection import noisy_argmin
from benchmarks.baselines.random_search import random_points

__all__ = [
    "ApproxDisKernelUCB",
    "DisKernelUCB",
    "NKernelUCB",
    "noisy_argmin",
    "random_points",
]
