"""What of one trial is released as its value: what is not finite is the worst, private or not."""

from __future__ import annotations

import math

import numpy as np
import pytest

from privbo_plugins.algorithms.values import value_query


@pytest.mark.parametrize("private", [True, False])
@pytest.mark.parametrize(
    ("maximize", "losses", "expected"),
    [
        (False, [math.nan] * 4, 1.0),
        (True, [math.nan] * 4, 0.0),
        (False, [0.2, math.inf, 0.4, -math.inf], (0.2 + 1 + 0.4 + 1) / 4),
        (True, [0.2, math.inf, 0.4, math.nan], 0.6 / 4),
        (False, [0.2, 0.4, 0.6, 0.8], 0.5),
    ],
)
def test_what_is_not_finite_counts_as_the_worse_bound(
    private: bool, maximize: bool, losses: list[float], expected: float
) -> None:
    query = value_query(
        "trial", (0.0, 1.0), n_records=4, mu=1.0, private=private, maximize=maximize, meta={}
    )
    blocks = [np.array(losses[:2])[:, None], np.array(losses[2:])[:, None]]
    assert query.statistic(blocks)[0] + query.offset == pytest.approx(expected)


def test_without_privacy_a_diverged_record_is_no_better_than_the_worst_one() -> None:
    query = value_query(
        "trial", (0.0, 1.0), n_records=3, mu=math.inf, private=False, maximize=False, meta={}
    )
    assert query.statistic([np.array([[5.0], [1.0], [math.nan]])])[0] == pytest.approx(11 / 3)
