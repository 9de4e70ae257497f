"""Every check of the conformance suite, for our searcher and for Tune's OptunaSearch."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

pytest.importorskip("ray", reason="Ray is not installed (the ray extra)")
pytest.importorskip("optuna", reason="Optuna is not installed (the optuna extra)")

from tests.raytune_searchers import conformance
from tests.raytune_searchers.conformance import CHECKS, Check

pytestmark = pytest.mark.usefixtures("the_ray")

DOCUMENT = Path(__file__).parents[2] / "docs" / "conformance.md"

NAMES = [check.name for check in CHECKS]

DURABLE = [
    check
    for check in CHECKS
    if any(word in check.name for word in ("restore", "finish", "pickled", "folder", "limiter"))
]
"""Where it matters in which kind of vault the run lies."""


def documented() -> dict[str, tuple[str, str, str]]:
    """Description and the two outcomes of every row of the table, by name."""
    rows = re.findall(
        r"^\| \*\*(.+?)\*\*: (.*) \| (.*) \| (.*) \|$", DOCUMENT.read_text(), re.MULTILINE
    )
    return {name: (description, ours, optunas) for name, description, ours, optunas in rows}


@pytest.mark.parametrize("check", CHECKS, ids=NAMES)
def test_dp_gibo_conforms(check: Check, tmp_path: Path) -> None:
    assert conformance.outcome(check, conformance.dp_gibo(None), tmp_path) == "yes"


@pytest.mark.slow
@pytest.mark.parametrize("check", DURABLE, ids=[check.name for check in DURABLE])
def test_dp_gibo_conforms_with_a_vault_in_a_file(check: Check, tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path / 'vault.db'}"
    assert conformance.outcome(check, conformance.dp_gibo(url), tmp_path) == "yes"


def test_optuna_search_differs_where_the_table_says_so(tmp_path: Path) -> None:
    subject, found = conformance.optuna(), {}
    for number, check in enumerate(CHECKS):
        folder = tmp_path / str(number)
        folder.mkdir()
        found[check.name] = conformance.outcome(check, subject, folder)
    differing = {name for name, outcome in found.items() if outcome.startswith("no:")}
    table = {name for name, (_, _, optunas) in documented().items() if optunas.startswith("no:")}
    assert differing == table


def test_the_table_lists_every_check_and_claims_what_is_tested() -> None:
    rows = documented()
    assert list(rows) == NAMES
    assert [row[0] for row in rows.values()] == [check.description for check in CHECKS]
    assert {row[1] for row in rows.values()} == {"yes"}
    assert len(set(NAMES)) == len(NAMES)


def test_a_search_is_read_from_the_folder_of_an_experiment(tmp_path: Path) -> None:
    subject = conformance.dp_gibo(f"sqlite:///{tmp_path / 'vault.db'}")
    search = conformance.on(subject)
    config = search.suggest("1")
    search.save_to_dir(str(tmp_path), "session")
    again = type(search).from_experiment(tmp_path)
    assert again.suggest("1") == config
