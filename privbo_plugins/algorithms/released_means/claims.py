"""What the guarantee of a run says of its releases."""

from __future__ import annotations

from typing import Any

from privbo_plugins.algorithms.protocols import Words
from privbo_plugins.algorithms.released_means.config import MeansConfig
from privbo_plugins.algorithms.released_means.plan import MeansPlan


def words(config: MeansConfig, plan: MeansPlan | None) -> Words:
    """The statistics that are released, and the parameters of their noise once planned."""
    parameters: dict[str, Any] = {"N": config.n_trials, "value_range": config.value_range}
    if plan is not None:
        parameters["value_noise"] = plan.value_noise
    return Words(
        "means of clipped values, one a trial",
        parameters,
        (
            "what the objective's own wrapper makes of a release: a study's values are compared "
            "with their releases when a further trial is told and when guarantee is asked for, an "
            "experiment's rows once Ray Tune has told searcher, scheduler and earlier callbacks",
        ),
    )
