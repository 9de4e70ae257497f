"""GP-UCB with the privatising noise's known variance.

Notation:

    ======  ==================================================================  =======
    symbol  meaning                                                             shape
    ======  ==================================================================  =======
    y       reward in half-ranges around the middle of its public range         scalar
    lam     variance of the privatised reward, in the same unit                 scalar
    beta    width of the confidence interval                                    scalar
    mu      posterior mean                                                      (n,)
    sigma   posterior standard deviation                                        (n,)
    ======  ==================================================================  =======

A bounded mechanism keeps a reward bounded, hence sub-Gaussian, so none of the machinery for heavy
tails is needed. What is left of the published algorithms is Algorithm 2 without truncation, and
with the two constants that theory leaves free chosen by what is public: the prior is centred in
the middle of the range, one standard deviation of f is half of it, and the noise's variance is the
mechanism's own instead of lambda = 1.

Privatised rewards are so noisy that an early mistake is never found out at that width, and that
arms which the covariance wrongly calls alike drown each other. So two things are added where
rewards are privatised, both functions of what was released: beta begins at twice its value and
falls to it over the first half of a planned T, and finitely many arms are modelled by a mixture
of the given covariance, of independent arms and of their middle, weighed by evidence.
"""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray

from privbo_plugins.algorithms.ldp_gp_ucb.ucb import ModelUCB
from privbo_plugins.algorithms.protocols import Evaluation

Array = NDArray[np.float64]

WIDTH = 0.75
"""beta at beta_scale = 1 and T = 1000: see the benchmark's table of widths."""

_WIDER = 2.0
"""Times its width that beta begins at."""

_WHILE = 0.5
"""Share of T in which it falls."""


class GPUCB(ModelUCB):
    """Plain GP-UCB; needs the rewards' public range.

    Raises:
        ValueError: If the settings hold no range.
    """

    name = "gp-ucb"

    def _begin(self) -> None:
        config = self.config
        if config.low is None or config.high is None:
            raise ValueError("GP-UCB takes its unit from the range: give bound= or value_range=.")
        self._half = (config.high - config.low) / 2
        self._middle = self._reward(config.low + self._half)
        self._model = self.domain.posterior(self.lam, doubtful=config.noise is not None)

    @property
    def lam(self) -> float:
        """Noise variance in squared half-ranges; at most 1 for raw rewards in the range."""
        noise, moment = self.config.noise, self.config.noise_moment
        total = self._half**2 if noise is None else noise.total_variance
        if moment is not None:
            total = moment + self.config.added_variance
        return total / self._half**2

    @property
    def beta(self) -> float:
        """Grows with the square root of ln T, as in theory, but not with t.

        At these noise levels a width that grows under way never stops exploring.
        """
        config, wider = self.config, 1.0
        if config.n_trials is not None and config.noise is not None:
            wider += (_WIDER - 1.0) * max(1.0 - self.t / (_WHILE * config.n_trials), 0.0)
        growth = math.sqrt(math.log(max(config.T, 2)) / math.log(1000))
        return config.beta_scale * WIDTH * growth * wider

    def _take(self, evaluation: Evaluation, z: Array, reward: float) -> None:
        self._model.tell(z, (reward - self._middle) / self._half)
