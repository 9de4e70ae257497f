"""Warns where released values lie at an end of the range to which losses are clipped.

Where losses lie beyond the range, or are no numbers, their clipped mean is the end itself at every
point, and nothing can be learnt of values. What is looked at are releases, so it costs nothing.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

from privbo_plugins.errors import UtilityWarning, warn
from privbo_plugins.scores.score import ScoreFacts

_FEWEST = 8
"""Values of which a mean is worth a look."""

_TOLD = 0.025
"""Standard error of that mean, in widths of the range, above which noise hides everything."""

_DROWNING = 0.1
"""Widths of its range, from which noise of a score hides most of what settings change."""

_CLOSE = 4.0
"""Standard errors from the end: where losses lie beyond it, one run in 10^4 is not told."""


_OF_LOSSES = (
    "Either losses lie beyond it, or they are no numbers (NaN and what fails count as the worst). "
    "Give the range that losses have, from public knowledge, as loss_bound=(low, high), check "
    'that none is NaN, and that the direction is "minimize" for losses and "maximize" for scores.'
)

_OF_SCORES = (
    "Check that labels= and the range of the target are those of the records, that predicted= "
    "holds labels and probabilities= probabilities, and that none is NaN: what is no label or "
    "number, and what a function of your own fails for, counts as the worst."
)


def end_of(
    values: Sequence[float], noise: float, value_range: tuple[float, float], *, maximize: bool
) -> float | None:
    """Finds the end of the range at which all points seem to lie.

    The end that is wanted counts only if it is not a natural one: errors near 0 and scores near 1
    are what people look for.

    Args:
        values: Released so far, means of clipped losses under noise.
        noise: Standard deviation of one.
        value_range: (low, high) that losses are clipped to.
        maximize: Whether they are scores.

    Returns:
        The end within four standard errors of the values' mean; None if there is none, or where
        noise hides it.

    Example:
        >>> end_of([0.99, 1.02, 1.0, 0.98] * 3, 0.02, (0.0, 1.0), maximize=False)
        1.0
        >>> end_of([0.31, 0.28, 0.3, 0.32] * 3, 0.02, (0.0, 1.0), maximize=False) is None
        True
    """
    low, high = value_range
    error = noise / math.sqrt(max(len(values), 1))
    if len(values) < _FEWEST or error > _TOLD * (high - low):
        return None
    mean = math.fsum(values) / len(values)
    bad, good, natural = (low, high, 1.0) if maximize else (high, low, 0.0)
    ends = (bad,) if good == natural else (bad, good)
    return next((end for end in ends if abs(mean - end) <= _CLOSE * error), None)


def warn_of_scores(
    told: Mapping[str, Sequence[float]], scores: Sequence[ScoreFacts], doubts: Sequence[str]
) -> bool:
    """Warns where the noise of a released score is a tenth of its range or more, and of doubts.

    Args:
        told: Estimate and standard deviation of each score by name.
        scores: Of the run.
        doubts: What the release shows of their settings.

    Returns:
        Whether it has warned.
    """
    most = {score.name: _DROWNING * (score.high - score.low) for score in scores}
    found = [f"{name} {told[name][1]:.2g}" for name in most if told[name][1] >= most[name]]
    if found:
        warn(
            f"The noise of a released score has a standard deviation of {', '.join(found)}: "
            "settings can hardly be told apart by it. Few positives, labels other than the "
            "score's, or a wide range of the target make it large. More records, a larger mu, "
            "fewer trials or fewer scores help, or a loss: docs/scores.md.",
            UtilityWarning,
        )
    if doubts:
        warn(f"Of a released score {'; of '.join(doubts)}. {_OF_SCORES}", UtilityWarning)
    return bool(found or doubts)


def warn_at_an_end(values: Sequence[float], noise: float, config: object, maximize: bool) -> bool:
    """Warns if released values cannot be told from an end of their range.

    Args:
        values: As for :func:`end_of`.
        noise: Likewise.
        config: Settings of the algorithm; without ``value_range`` there is nothing to look at.
        maximize: As for :func:`end_of`.

    Returns:
        Whether it has warned.
    """
    value_range = getattr(config, "value_range", None)
    if value_range is None:
        return False
    end = end_of(values, noise, value_range, maximize=maximize)
    advice = _OF_SCORES if getattr(config, "scores", None) else _OF_LOSSES
    if end is not None:
        warn(
            f"The mean of all {len(values)} released values lies within four standard errors of "
            f"{end:g}, an end of the range [{value_range[0]:g}, {value_range[1]:g}]: points can "
            f"hardly be told apart. {advice}",
            UtilityWarning,
        )
    return end is not None
