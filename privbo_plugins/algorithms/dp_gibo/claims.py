"""What the guarantee of a run says of its releases."""

from __future__ import annotations

from typing import Any

from privbo_plugins.algorithms.dp_gibo.config import GIBOConfig
from privbo_plugins.algorithms.dp_gibo.plan import Plan
from privbo_plugins.algorithms.protocols import Words


def words(config: GIBOConfig, plan: Plan | None) -> Words:
    """The statistics that are released, and the parameters of their noise once planned."""
    statistics = "means of per-record gradients clipped in L2 norm, on means of clipped values"
    if plan is not None and plan.n_searched and not plan.n_steps:
        return Words(
            "means of clipped values, one a trial",
            {
                "N": plan.n_trials,
                "value_range": config.value_range,
                "value_noise": plan.value_noise,
            },
        )
    if config.adaptive:
        statistics += ", on fractions of records within the norm"
    planned = None if plan is None or config.adaptive else plan.clipping_norm
    parameters: dict[str, Any] = {
        "clipping_norm": planned or config.clipping_norm or "planned with the first trial",
        "value_range": config.value_range,
    }
    if plan is not None:
        adaptive = "2B sqrt(T)/(n mu_g) with B adaptive"
        parameters |= {
            "T": plan.n_steps,
            "b": plan.batch_size,
            "gradient_noise": adaptive if config.adaptive else plan.gradient_noise,
            "value_noise": plan.value_noise,
        }
    return Words(statistics, parameters)
