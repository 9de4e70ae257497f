"""The paper's location of a normal model (Appendix E.3) through the algorithm, without privacy.

The run remembers all its points, as Algorithm 1 does. The box of the original problem is the
unit cube here, so the gradient scales by the box's width.
"""

import math

import numpy as np
import pytest
from numpy.testing import assert_allclose

from privbo_plugins.algorithms.dp_gibo import GIBOConfig
from privbo_plugins.spaces import Float, Space

from .helpers import answer, start

LOW, WIDTH = -1.0, 4.0
BOX = Space({f"theta{j}": Float(LOW, LOW + WIDTH) for j in range(5)})


@pytest.mark.filterwarnings("ignore::privbo_plugins.errors.UtilityWarning")
def test_location_without_privacy_reaches_the_estimate_exactly():
    """Polynomial kernel, b = 3 < d + 1, n = 50."""
    data = 1.0 + np.random.default_rng(0).standard_normal((50, 5))
    config = GIBOConfig(
        mu=math.inf, n_starts=0, n_steps=60, batch_size=3, memory=-1, value_share=0.0,
        clipping_norm=math.inf, kernel="polynomial2", noise_ratio=0.0, step_rule="sgd",
        step_size=0.2 / WIDTH**2, as_published=True,
    )  # fmt: skip
    algorithm, losses, gradients = start(config, BOX, 50, seed=1), {}, []
    algorithm._begin(BOX.encode(dict.fromkeys(BOX.names, 0.0)).tolist())
    while algorithm.phase[0] == "step":
        X = {f"{len(gradients)}/{slot}": algorithm.propose(slot).x for slot in range(3)}
        losses |= {t: 0.5 * ((data - LOW - WIDTH * x) ** 2).sum(1) for t, x in X.items()}
        (query,) = algorithm.step_queries([*X], [*X.values()])
        release = answer(query, np.column_stack([losses[t] for t in query.trials]))
        algorithm.observe(release)
        gradients.append(np.array(release.values) / WIDTH)
    path, estimate = LOW + WIDTH * np.array(algorithm.state.path), data.mean(0)
    assert_allclose(path[-1], estimate, atol=1e-4)
    # Once the 21 monomials are determined the bias of the gradient vanishes.
    assert_allclose(gradients[20:], path[20:-1] - estimate, atol=1e-6)
