"""docs/sklearn.md: its code runs from top to bottom, and its tables hold what is so."""

from __future__ import annotations

import re
import warnings
from pathlib import Path
from typing import Any

import pytest

from tests.sklearn_search import test_estimator_checks as checks

PAGE = Path(__file__).parents[2] / "docs" / "sklearn.md"


def blocks(kind: str) -> list[str]:
    """Code of the page: "python", or "python on Ray"."""
    return re.findall(rf"^```{kind}\n(.*?)^```$", PAGE.read_text(), re.DOTALL | re.MULTILINE)


@pytest.mark.slow
def test_the_page_s_code_runs_from_top_to_bottom(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    pytest.importorskip("plotly", reason="plotly is not installed (the viz extra)")
    monkeypatch.chdir(tmp_path)
    defined: dict[str, Any] = {"__name__": "__main__"}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for code in blocks("python"):
            exec(compile(code, PAGE.name, "exec"), defined)
    said = capsys.readouterr().out
    assert "Everything this run publishes is 1-GDP" in said
    assert "['a' 'b' 'c' 'kind']" in said
    assert re.search(r"^\d+ (1\.0|0\.99999+)", said, re.MULTILINE), "mu is spent once"
    assert "1-GDP" in (tmp_path / "report.html").read_text()
    assert (tmp_path / "private.db").stat().st_mode & 0o077 == 0


@pytest.mark.slow
def test_the_readme_s_four_lines_run_after_its_first_example() -> None:
    text = (PAGE.parents[1] / "README.md").read_text()
    fenced = re.findall(r"^```python\n(.*?)^```$", text, re.DOTALL | re.MULTILINE)
    (lines,) = [code for code in fenced if "sklearn_search" in code]
    (example,) = [code for code in fenced if "train_test_split" in code]
    defined: dict[str, Any] = {"__name__": "__main__"}
    exec(compile(example.split("def objective")[0], "README.md", "exec"), defined)
    exec(compile(lines, "README.md", "exec"), defined)
    assert defined["search"].n_valid_ == 900
    assert defined["search"].guarantee_.protected


def test_the_checks_that_fail_are_those_that_the_page_lists() -> None:
    text = PAGE.read_text().split("## What scikit-learn checks")[1]
    listed = set(re.findall(r"`(check_\w+)`", text)) - {"check_estimator"}
    assert listed == {*checks.FAILING, *checks.OF_REGRESSORS, *checks.NOISY}


def test_the_table_of_losses_holds_every_named_one() -> None:
    from tests.inside import losses_of_searches

    text = PAGE.read_text().split("## What is minimised")[1].split("##")[0]
    assert set(re.findall(r'`"(\w+)"`', text)) == set(losses_of_searches())
