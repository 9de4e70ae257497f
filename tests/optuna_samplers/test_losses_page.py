"""docs/losses.md: its table says what the losses say."""

import re
from pathlib import Path

import pytest

from privbo_plugins import losses

PAGE = Path(__file__).parents[2] / "docs" / "losses.md"


def test_the_table_holds_what_the_losses_say():
    rows = dict(
        re.findall(r"^\| `(\w+)[(q)]*` \| ([^|]*) \| [^|]* \|", PAGE.read_text(), re.MULTILINE)
    )
    assert set(rows) == {
        "zero_one", "brier", "bounded_log", "log", "squared", "absolute", "pinball",
    }  # fmt: skip
    norms = dict(
        re.findall(r"^\| `(\w+)` \| [^|]* \| (\d)[^|]* \|", PAGE.read_text(), re.MULTILINE)
    )
    for name in ("zero_one", "brier", "bounded_log"):
        loss = getattr(losses, name)
        assert rows[name].startswith(f"{loss.loss_bound:g}")
        assert norms[name] == f"{loss.clipping_norm:g}"
    assert f"= {losses.log.bound(floor=1e-3):.1f}" in rows["log"]
    assert losses.log.settings()["clipping_norm"] == 2 * losses.log.bound()
    assert "16 spread²" in rows["squared"]
    assert losses.squared.settings(0, 100, spread=1) == {"loss_bound": 16, "clipping_norm": 2}
    assert losses.absolute.settings(0, 100, spread=1) == {"loss_bound": 4, "clipping_norm": 2}
    late = losses.pinball(0.9).settings(0, 100, spread=1)
    assert late == {"loss_bound": pytest.approx(3.6), "clipping_norm": pytest.approx(1.8)}
    assert losses.pinball(0.9).bound(0, 100) == pytest.approx(90)
