"""Whatever Ray is set up to: no vector of losses passes through its object store."""

from __future__ import annotations

import json
import shutil
import subprocess
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("ray", reason="Ray is not installed (the ray extra)")

from tests.leaks.memory import shared_memory
from tests.worker import PATIENCE, script

pytestmark = pytest.mark.slow

LIMITS = DIRECT, INLINED = ("max_direct_call_object_size", "task_rpc_inlined_bytes_limit")


@contextmanager
def a_run(folder: Path, system_config: dict[str, int]) -> Iterator[tuple[Any, list[Path]]]:
    """How a run with these settings went, and what holds its memory while its Ray lives."""
    ray_folder = Path(tempfile.mkdtemp(prefix="ry", dir="/tmp"))  # short: sockets lie in it
    settings = {
        "folder": str(folder), "ray_folder": str(ray_folder), "system_config": system_config
    }  # fmt: skip
    said = ray_folder / "said"
    with said.open("wb") as out:
        driver = script(
            "tests.raytune_searchers.store_scenes:lowered",
            settings,
            stdin=subprocess.PIPE,
            stdout=out,
            stderr=out,
        )
    try:
        facts = folder / "facts.json"
        end = time.monotonic() + PATIENCE
        while not (facts.exists() and facts.read_text().endswith("}")):
            assert driver.poll() is None, said.read_text()[-3000:]
            assert time.monotonic() < end, said.read_text()[-3000:]
            time.sleep(0.1)
        yield json.loads(facts.read_text()), ray_folder
    finally:
        driver.communicate(b"\n", timeout=PATIENCE)
        shutil.rmtree(ray_folder, ignore_errors=True)


def in_the_store(folder: Path, ray_folder: Path) -> list[str]:
    """Which parts of which vectors lie in the memory that a run's processes share."""
    memory = dict(shared_memory(ray_folder))
    assert sum(map(len, memory.values())) > 0  # the store has been looked at
    return [
        f"{path.name} from {start}"
        for path in folder.glob("*.losses")
        for losses in [path.read_bytes()]
        for start in range(0, len(losses), 2**12)
        if any(losses[start : start + 64] in blob for blob in memory.values())
    ]


@pytest.mark.parametrize("limit", [DIRECT, pytest.param(INLINED, marks=pytest.mark.soak)])
def test_a_ray_that_stores_small_arguments_is_refused_and_stores_no_losses(
    limit: str, tmp_path: Path
) -> None:
    with a_run(tmp_path, {limit: 1024}) as (facts, ray_folder):
        assert in_the_store(tmp_path, ray_folder) == []
    assert facts["released"] == 0
    assert all(name in facts["refused"] for name in LIMITS)


@pytest.mark.soak
@pytest.mark.parametrize("limit", LIMITS)
def test_a_ray_with_lower_limits_gets_smaller_blocks_and_stores_no_losses(
    limit: str, tmp_path: Path
) -> None:
    with a_run(tmp_path, {limit: 20_000}) as (facts, ray_folder):
        assert in_the_store(tmp_path, ray_folder) == []
    assert facts == {"refused": "", "released": 7}
    assert len(list(tmp_path.glob("*.losses"))) == 7
