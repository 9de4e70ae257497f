"""Every check of the conformance suite, for our searcher and for Tune's OptunaSearch."""

import re

import pytest

from privbo_plugins.errors import PrivacyWarning
from raytune_searchers import PrivateSearch
from tests.contracts import conformance, pages
from tests.contracts.conformance import CHECKS, Subject, evaluate_privately, maker
from tests.inside import end_forgotten_hosts
from tests.sixth import SixthConfig

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

WITH_A_LEDGER = [
    check
    for check in CHECKS
    if check.name in ("save and blank restore", "limiter after a restore", "pickled under way")
]
"""Of these, what a search on rewards does with its ledger."""


def documented():
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


def outcomes(subject, checks, folder):
    """What came of each check, every one in a folder of its own."""
    found = {}
    for number, check in enumerate(checks):
        (place := folder / str(number)).mkdir()
        found[check.name] = conformance.outcome(check, subject, place)
        end_forgotten_hosts()
    return found


LEARNING = ("min is minimised", "max is maximised", "NumPy numbers are learned from")
OUTSIDE = Subject(
    "PrivateSearch",
    maker(PrivateSearch, SixthConfig(1.0, 100), seed=3),
    evaluate_privately,
    PrivacyWarning,
    exempt=dict.fromkeys(LEARNING, "its points do not depend on what was released"),
)
"""An algorithm that the product has never heard of."""

ALL = [*conformance.documented(), *map(conformance.rewards, conformance.REWARDS[1:]), OUTSIDE]
"""Searches of the table, those that it knows as further ones on rewards, and one from outside."""


ALIKE = ("LDPTGPUCBSearch", "LDPATAGPUCBSearch")
"""One class with LDPGPUCBSearch but for the posterior."""


@pytest.mark.parametrize(
    "subject",
    [pytest.param(one, marks=[pytest.mark.soak] * (one.name in ALIKE)) for one in ALL],
    ids=lambda one: one.name,
)
def test_the_table_says_what_a_search_does(subject, tmp_path):
    alike = "DPGIBOSearch" if subject is OUTSIDE else conformance.REWARDS[0].__name__
    expected = {name: row.get(subject.name, row[alike]) for name, row in documented().items()}
    expected |= {name: f"not applicable: {why}" for name, why in subject.exempt.items()}
    assert outcomes(subject, CHECKS, tmp_path) == expected


IN_FILES = {
    "DPGIBOSearch": (conformance.dp_gibo, DURABLE),
    "LDPGPUCBSearch": (
        lambda url: conformance.rewards(conformance.REWARDS[0], 100.0, url),
        WITH_A_LEDGER,
    ),
    "DUETSSearch": (lambda url: conformance.duets(100.0, url), WITH_A_LEDGER),
}  # fmt: skip


@pytest.mark.parametrize("name", IN_FILES)
def test_a_search_with_a_vault_in_a_file_conforms(name, tmp_path):
    make, checks = IN_FILES[name]
    for number, check in enumerate(checks):
        (place := tmp_path / str(number)).mkdir()
        subject = make(f"sqlite:///{place}/vault.db")
        assert conformance.outcome(check, subject, place) == "yes", check.name


def test_the_table_lists_every_check_and_claims_what_is_tested():
    rows = documented()
    assert sorted(rows) == sorted(NAMES)
    assert {row["DPGIBOSearch"] for row in rows.values()} == {"yes"}
    for subject in conformance.documented()[:-1]:
        found = {row[subject.name] for row in rows.values()}
        assert not any(outcome.startswith("no:") for outcome in found)
    assert len(set(NAMES)) == len(NAMES)
