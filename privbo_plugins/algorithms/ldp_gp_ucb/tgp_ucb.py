"""TGP-UCB and LDP-TGP-UCB: GP-UCB on truncated rewards (Algorithm 2).

Notation:

    ========  ================================================================  =======
    symbol    meaning                                                           shape
    ========  ================================================================  =======
    b_t       truncation point; larger rewards count as zero                    scalar
    L         scale of the Laplace noise                                        scalar
    K         B² + R² + 2 L²: bound on the second moment of ybar (config.v)     scalar
    gamma_t   1/2 ln det(I + K_t / lambda) of the evaluations (plays)           scalar
    lambda    regulariser                                                       scalar
    ========  ================================================================  =======

Raw rewards with (1 + alpha) moments below v are truncated at
``v^{1/(1+alpha)} t^{1/(2(1+alpha))}`` (Chowdhury and Gopalan 2019, Algorithm 1).
"""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray

from privbo_plugins.algorithms.ldp_gp_ucb.config import FAILURE
from privbo_plugins.algorithms.ldp_gp_ucb.ucb import ModelUCB
from privbo_plugins.algorithms.protocols import Evaluation

Array = NDArray[np.float64]


class TGPUCB(ModelUCB):
    """Truncates each reward once, as it arrives."""

    name = "tgp-ucb"

    def _begin(self) -> None:
        self._model = self.domain.posterior(self.config.lam)
        self.gamma = 0.0

    def b(self, t: int) -> float:
        """Truncation point of evaluation t >= 1 (line 4)."""
        c = self.config
        if c.noise is not None:
            return c.norm + c.raw_noise + c.noise.tail(max(t, 1))
        return float(c.v ** (1 / (1 + c.alpha)) * max(t, 1) ** (1 / (2 * (1 + c.alpha))))

    @property
    def beta(self) -> float:
        """Width for the next evaluation after t told ones (line 5, order-wise by default).

        A horizon that is given takes the place of t in the logarithms.
        """
        c, t = self.config, self.config.n_trials or max(self.t, 1)
        if c.constants == "theorem":
            width = (
                c.norm
                + 2
                * math.sqrt(2 / c.lam)
                * self.b(self.t)
                * math.sqrt(self.gamma - math.log(FAILURE))
                + math.sqrt(c.v * (math.log(t) + 1) / c.lam)
            )
        else:
            width = c.norm + self.b(self.t) * math.sqrt(math.log(t))
        return c.beta_scale * width

    def _take(self, evaluation: Evaluation, z: Array, reward: float) -> None:
        sigma = self._model.predict(z[None])[1][0]
        self.gamma += 0.5 * math.log1p(float(sigma) ** 2 / self.config.lam)
        truncated = reward if abs(reward) <= self.b(self.t) else 0.0  # line 8
        self._model.tell(z, truncated)  # lines 9 and 10
