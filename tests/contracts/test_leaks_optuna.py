"""System by sink on Optuna: no secret in any byte that a study leaves behind.

What others receive of an agent is noisy sums, and of a user a noisy reward: these tests look for
exact values in them; how much noise there is, is for the audits to say.
"""

import pytest

from tests.leaks.evidence import SINKS, Evidence
from tests.systems import SYSTEMS

SILENT = {"records": {"messages"}, "federation, turns": {"console"}}
"""Sinks that a system or one run of it has not: there is one party, or one console for all."""

QUIET = {"warnings", "vault", "messages", "report", "dashboard"}
"""Sinks that may stay empty; runs say themselves whether there is a vault's file, and only our own
samplers write a report and publish."""


def each(kind):
    """Runs of every system, or its careless ones."""
    runs = [(system, name) for system, row in SYSTEMS.items() for name in getattr(row, kind)]
    return pytest.mark.parametrize(("system", "name"), runs)


def left_by(kind, system, name, folder):
    """What a run has left, and the sinks that it has."""
    storage, run = getattr(SYSTEMS[system], kind)[name]
    left = Evidence(folder, storage)
    run(left)
    silent = SILENT.get(system, set()) | SILENT.get(f"{system}, {name}", set())
    return left, [sink for sink in SINKS if sink not in silent]


@pytest.mark.slow
@each("runs")
def test_no_secret_reaches_a_sink(system, name, tmp_path):
    left, sinks = left_by("runs", system, name, tmp_path)
    for sink in sinks:
        assert any(left.blobs[sink].values()) or sink in QUIET, sink
        assert left.hits(sink) == [], sink
        assert left.payloads(sink) == [], sink


@pytest.mark.slow
@each("careless")
def test_control_what_is_careless_is_found_in_each_sink(system, name, tmp_path):
    left, sinks = left_by("careless", system, name, tmp_path)
    for sink in sinks:
        hits, expected = left.hits(sink), left.expected[sink]
        assert expected, sink
        assert [want for want in expected if not any(want in hit for hit in hits)] == [], sink
        assert [hit for hit in hits if left.never and hit.startswith(left.never)] == [], sink
        assert [hit for hit in hits if any(want in hit for want in left.withheld)] == [], sink
