"""Every check of the conformance suite, for our searcher and for Tune's OptunaSearch."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

pytest.importorskip("ray", reason="Ray is not installed (the ray extra)")
pytest.importorskip("optuna", reason="Optuna is not installed (the optuna extra)")

from raytune_searchers import DUETSSearch
from raytune_searchers._rewards import RewardSearch
from tests.contracts import conformance, pages
from tests.contracts.conformance import CHECKS, Check, Subject

pytestmark = [
    pytest.mark.usefixtures("local_hosts"),
    pytest.mark.filterwarnings("ignore:.*:DeprecationWarning:ray.*"),
    pytest.mark.filterwarnings("ignore:.*:ResourceWarning"),
]

NAMES = [check.name for check in CHECKS]

DURABLE = [
    check
    for check in CHECKS
    if any(word in check.name for word in ("restore", "finish", "pickled", "folder", "limiter"))
]
"""Where it matters in which kind of vault the run lies."""


def documented() -> dict[str, dict[str, str]]:
    """Outcomes that the page tells, by the check's name and the search's."""
    text = conformance.PAGE.read_text().split(pages.begin(conformance.MODULE))[1]
    alike, _, rest = text.split(pages.END)[0].strip().partition("\n\n")
    systems = [subject.name for subject in conformance.documented()]
    names = alike.removeprefix("Every search does this: ").removesuffix(".").split("; ")
    told = {name: dict.fromkeys(systems, "yes") for name in names}
    for line in rest.splitlines()[2:]:
        heads, cell = line.strip("| ").split(" | ")
        for name in re.findall(r"\*\*(.*?)\*\*", heads):
            told[name] = dict.fromkeys(systems, "yes")
            for part in cell.split("<br>"):
                of, _, outcome = part.partition(": ")
                told[name] |= dict.fromkeys(systems if of == "all" else of.split(", "), outcome)
    return told


@pytest.mark.parametrize("check", CHECKS, ids=NAMES)
def test_dp_gibo_conforms(check: Check, tmp_path: Path) -> None:
    assert conformance.outcome(check, conformance.dp_gibo(None), tmp_path) == "yes"


@pytest.mark.parametrize("check", DURABLE, ids=[check.name for check in DURABLE])
def test_dp_gibo_conforms_with_a_vault_in_a_file(check: Check, tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path / 'vault.db'}"
    assert conformance.outcome(check, conformance.dp_gibo(url), tmp_path) == "yes"


@pytest.mark.parametrize("kind", [*conformance.REWARDS, DUETSSearch])
def test_searches_on_rewards_conform(kind: type[RewardSearch], tmp_path: Path) -> None:
    subject = conformance.duets() if kind is DUETSSearch else conformance.rewards(kind)
    found = {}
    for number, check in enumerate(CHECKS):
        folder = tmp_path / str(number)
        folder.mkdir()
        found[check.name] = conformance.outcome(check, subject, folder)
    exempt = {name for name, outcome in found.items() if outcome.startswith("not applicable:")}
    without_plan = {name for name in NAMES if name.startswith(("finishes", "stays finished"))}
    assert exempt == without_plan | set(subject.exempt)
    assert {found[name] for name in set(NAMES) - exempt} == {"yes"}


@pytest.mark.parametrize("subject", conformance.documented()[1:], ids=lambda one: one.name)
def test_a_column_says_what_its_search_does(subject: Subject, tmp_path: Path) -> None:
    rows = documented()
    for number, check in enumerate(CHECKS):
        folder = tmp_path / str(number)
        folder.mkdir()
        found = conformance.outcome(check, subject, folder)
        assert found == rows[check.name][subject.name], check.name


@pytest.mark.parametrize(
    "name", ["save and blank restore", "limiter after a restore", "pickled under way"]
)
@pytest.mark.parametrize("kind", [conformance.REWARDS[0], DUETSSearch])
def test_a_search_on_rewards_conforms_with_a_ledger(
    name: str, kind: type[RewardSearch], tmp_path: Path
) -> None:
    check = next(check for check in CHECKS if check.name == name)
    url = f"sqlite:///{tmp_path / 'vault.db'}"
    duets = kind is DUETSSearch
    subject = conformance.duets(100.0, url) if duets else conformance.rewards(kind, 100.0, url)
    assert conformance.outcome(check, subject, tmp_path) == "yes"


def test_the_table_lists_every_check_and_claims_what_is_tested() -> None:
    rows = documented()
    assert sorted(rows) == sorted(NAMES)
    assert {row["DPGIBOSearch"] for row in rows.values()} == {"yes"}
    for subject in conformance.documented()[:-1]:
        found = {row[subject.name] for row in rows.values()}
        assert not any(outcome.startswith("no:") for outcome in found)
    assert len(set(NAMES)) == len(NAMES)


def test_a_search_is_read_from_the_folder_of_an_experiment(tmp_path: Path) -> None:
    subject = conformance.dp_gibo(f"sqlite:///{tmp_path / 'vault.db'}")
    search = conformance.on(subject)
    config = search.suggest("1")
    search.save_to_dir(str(tmp_path), "session")
    again = type(search).from_experiment(tmp_path)
    assert again.suggest("1") == config
