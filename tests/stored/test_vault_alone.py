"""Vaults of version 0.1 say of themselves what their hosts said then."""

from __future__ import annotations

import json
import warnings
from pathlib import Path

import pytest

from privbo_plugins.cli import main
from privbo_plugins.sessions.stored import runs_of
from privbo_plugins.store.run import NEVER_COMPARED
from privbo_plugins.store.vault import open_vault
from tests.stored.files import restore

OLD = Path(__file__).parent / "v0_1"

KEPT = sorted(path.parent.name for path in OLD.glob("*/vault.db.sql"))


@pytest.mark.parametrize("name", KEPT)
def test_the_command_line_reads_a_vault_of_version_0_1(
    name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    pytest.importorskip("plotly", reason="plotly is not installed (the viz extra)")
    restore(OLD / name, tmp_path)
    (vault,) = tmp_path.rglob("vault.db")
    url = f"sqlite:///{vault}"
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # the temporary folder may be anybody's
        (run,) = runs_of(open_vault(url), url)
        report = main(["report", "--vault", url, "--out", str(tmp_path / "r.html")])
    if run.kind == "agent":
        assert report == 2
        assert "that agent's secret" in capsys.readouterr().err
        return
    assert report == 0
    compared = not run.name.startswith(("ray/", "ray-ldp/"))  # which version 0.1 noted nowhere
    assert run.guarantee.protected == compared
    assert compared or run.guarantee.reasons == (NEVER_COMPARED,)
    facts = json.loads((OLD / name / "facts.json").read_text())
    said = facts.get("guarantee", {}).get("epsilon")
    if said is not None and compared:
        at = 1e-5 if run.kind == "records" else None  # where the figures were taken
        assert run.guarantee.epsilon(at) == pytest.approx(said)
