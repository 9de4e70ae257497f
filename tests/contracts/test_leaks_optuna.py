"""System by sink on Optuna: no secret in any byte that a study leaves behind.

What others receive of an agent is noisy sums, and of a user a noisy reward: these tests look for
exact values in them; how much noise there is, is for the audits to say.
"""

import pytest

from tests.leaks.evidence import SINKS
from tests.systems import SYSTEMS

SILENT = {"records": {"messages"}, "federation, turns": {"console"}}
"""Sinks that a system or one run of it has not: there is one party, or one console for all."""

QUIET = {"warnings", "vault", "messages", "report", "dashboard"}
"""Sinks that may stay empty; runs say themselves whether there is a vault's file, and only our own
samplers write a report and publish."""


def cells(kind):
    return [
        pytest.param(system, kind, name, sink, id=f"{system}-{name}-{sink}")
        for system, row in SYSTEMS.items()
        for name in getattr(row, kind)
        for sink in SINKS
        if sink not in SILENT.get(system, ()) and sink not in SILENT.get(f"{system}, {name}", ())
    ]


@pytest.mark.slow
@pytest.mark.parametrize(("system", "kind", "name", "sink"), cells("runs"))
def test_no_secret_reaches_a_sink(system, kind, name, sink, left):
    assert any(left.blobs[sink].values()) or sink in QUIET
    assert left.hits(sink) == []
    assert left.payloads(sink) == []


@pytest.mark.slow
@pytest.mark.parametrize(("system", "kind", "name", "sink"), cells("careless"))
def test_control_what_is_careless_is_found_in_each_sink(system, kind, name, sink, left):
    hits = left.hits(sink)
    assert left.expected[sink]
    assert [want for want in left.expected[sink] if not any(want in hit for hit in hits)] == []
    assert [hit for hit in hits if left.never and hit.startswith(left.never)] == []
    assert [hit for hit in hits if any(want in hit for want in left.withheld)] == []
