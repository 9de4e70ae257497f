"""docs/sklearn.md: its tables hold what is so."""

import re
from pathlib import Path

from tests.sklearn_search import test_estimator_checks as checks

PAGE = Path(__file__).parents[2] / "docs" / "sklearn.md"


def test_the_checks_that_fail_are_those_that_the_page_lists():
    text = PAGE.read_text().split("## What scikit-learn checks")[1]
    listed = set(re.findall(r"`(check_\w+)`", text)) - {"check_estimator"}
    assert listed == {*checks.FAILING, *checks.OF_REGRESSORS, *checks.NOISY}


def test_the_table_of_losses_holds_every_named_one():
    from tests.inside import losses_of_searches

    text = PAGE.read_text().split("## What is minimised")[1].split("##")[0]
    assert set(re.findall(r'`"(\w+)"`', text)) == set(losses_of_searches())
