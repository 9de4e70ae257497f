"""No raw reward and no user's name in any byte that an experiment or its Ray leaves behind.

The last of four experiments leaks, as a control: what it makes must be found.
"""

from __future__ import annotations

import re
from typing import Any

import pytest

pytest.importorskip("ray", reason="Ray is not installed (the ray extra)")

from tests.raytune_searchers.ldp_leak_driver import ALONE, FAILING, TRIALS, N
from tests.raytune_searchers.test_leaks import ALIVE_ONLY, ARTEFACTS, HARMLESS, Run, run_driver

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Run:
    return run_driver("ldp_leak_driver", "all", tmp_path_factory.mktemp("secret"))


def of_control(hit: str, run: Run) -> bool:
    """Whether a hit is a secret that the control made."""
    made = re.search(r"(?:name|losses) (\d+)", hit)
    return made is not None and int(made[1]) > run.facts["control"]["before"]


@pytest.mark.parametrize("when", ["alive", "after"])
def test_no_byte_tells_a_reward_or_a_name(when: str, run: Run) -> None:
    hits = {name: [h for h in found if not of_control(h, run)] for name, found in run.hits.items()}
    assert {n: found[:5] for n, found in hits.items() if found and n.startswith(when)} == {}


def test_the_ledger_itself_holds_neither(run: Run) -> None:
    assert run.vault_bytes > 0
    assert run.vault == []


@pytest.mark.parametrize("parts", (ARTEFACTS | ALIVE_ONLY | HARMLESS).values())
def test_each_artefact_was_there_to_be_scanned(parts: tuple[str, ...], run: Run) -> None:
    assert run.seen("alive/", *parts)


@pytest.mark.parametrize(
    "parts",
    [
        ("experiments/control", "result.json"),
        ("experiments/control", "progress.csv"),
        ("experiments/control", "tfevents"),
        ("experiments/control", "experiment_state"),
        ("experiments/control", "error.txt"),
        ("objects/control", "frame.csv"),
        ("logs/worker", ".out"),
    ],
)
def test_control_a_raw_reward_is_found_in_each_artefact(parts: tuple[str, ...], run: Run) -> None:
    for when in ("alive", "after"):
        assert any(of_control(hit, run) for hit in run.where(f"{when}/", *parts))


def facts(run: Run, name: str) -> dict[str, Any]:
    return dict(run.facts[name])


def test_trials_ran_and_failed_as_they_should(run: Run) -> None:
    assert [facts(run, name)["trials"] for name in TRIALS] == list(TRIALS.values())
    assert [facts(run, name)["errors"] for name in TRIALS] == [0, 0, 1 + len(ALONE), 1]
    assert [facts(run, name)["protected"] for name in TRIALS] == [True, True, True, False]
    assert [facts(run, name)["plays"] for name in TRIALS] == [4, 4, 1, 0]
    wild = facts(run, "control")["before"] - facts(run, "wild")["before"]
    assert wild == 1 + len(FAILING) + 1 + len(ALONE)
    assert N > 1
