"""TGP-UCB and LDP-TGP-UCB: GP-UCB on truncated rewards (Algorithm 2).

Notation:

    ========  ================================================================  =======
    symbol    meaning                                                           shape
    ========  ================================================================  =======
    b_t       truncation point; larger rewards count as zero                    scalar
    L         scale of the Laplace noise                                        scalar
    K         B² + R² + 2 L²: bound on the second moment of ybar (config.v)     scalar
    gamma_t   1/2 ln det(I + K_t / lambda), of the points that were played      scalar
    lambda    regulariser                                                       scalar
    ========  ================================================================  =======

Raw rewards with (1 + alpha) moments below v are truncated at
``v^{1/(1+alpha)} t^{1/(2(1+alpha))}`` (Chowdhury and Gopalan 2019, Algorithm 1).
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from numpy.typing import NDArray

from privbo_plugins.algorithms.ldp_gp_ucb.config import UCBConfig
from privbo_plugins.algorithms.ldp_gp_ucb.ucb import RewardUCB
from privbo_plugins.algorithms.protocols import Evaluation
from privbo_plugins.spaces import Space

Array = NDArray[np.float64]


class TGPUCB(RewardUCB):
    """Truncates each reward once, as it arrives."""

    name = "tgp-ucb"

    def __init__(
        self, config: UCBConfig, space: Space, *, maximize: bool = True, seed: int = 0
    ) -> None:
        super().__init__(config, space, maximize=maximize, seed=seed)
        self._posterior = self.domain.posterior(config.lam)
        self.gamma = 0.0

    def b(self, t: int) -> float:
        """Truncation point of play t >= 1 (line 4)."""
        c = self.config
        if c.tail is not None:
            return c.norm + c.raw_noise + c.tail(max(t, 1))
        return float(c.v ** (1 / (1 + c.alpha)) * max(t, 1) ** (1 / (2 * (1 + c.alpha))))

    @property
    def beta(self) -> float:
        """Width for the play after the t plays told so far (line 5, order-wise by default).

        A horizon that is given takes the place of t in the logarithms.
        """
        c, t = self.config, self.config.n_trials or max(self.t, 1)
        if c.constants == "theorem":
            width = (
                c.norm
                + 2
                * math.sqrt(2 / c.lam)
                * self.b(self.t)
                * math.sqrt(self.gamma - math.log(c.failure_probability))
                + math.sqrt(c.v * (math.log(t) + 1) / c.lam)
            )
        else:
            width = c.norm + self.b(self.t) * math.sqrt(math.log(t))
        return c.beta_scale * width

    def _learn(self, evaluation: Evaluation, z: Array, reward: float) -> None:
        sigma = self._posterior.predict(z[None])[1][0]
        self.gamma += 0.5 * math.log1p(float(sigma) ** 2 / self.config.lam)
        truncated = reward if abs(reward) <= self.b(self.t) else 0.0  # line 8
        self._posterior.tell(z, truncated)  # lines 9 and 10

    def _score(self, pending: Array) -> Any:
        posterior = self._posterior.imagining(pending) if len(pending) else self._posterior
        beta = self.beta

        def ucb(Z: Array) -> Array:  # line 6
            mu, sigma = posterior.predict(Z)
            return mu + beta * sigma

        return ucb

    def mean(self, Z: Array) -> Array:
        """Posterior mean, in reward units."""
        return self._posterior.predict(Z)[0]
