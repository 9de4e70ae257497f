"""A driver whose Ray sends small arguments through its object store, and what its trials held."""

from __future__ import annotations

import json
import os
import sys
import uuid
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import ray

from privbo_plugins.errors import PrivacyError
from tests.inside import published_by
from tests.raytune_searchers.runs import fit, make_search

N_RECORDS = 20_000
"""Of a trial's vector: two blocks and a half."""


class Secretive:
    """A loss a record; what it made is kept where the test finds it.

    Args:
        folder: Where to.
    """

    def __init__(self, folder: str) -> None:
        self._folder = folder

    def __call__(self, config: dict[str, Any]) -> np.ndarray:
        losses = np.random.default_rng(int.from_bytes(os.urandom(8), "big")).random(N_RECORDS)
        (Path(self._folder) / f"{uuid.uuid4().hex}.losses").write_bytes(losses.tobytes())
        return losses


def lowered(folder: str, ray_folder: str, system_config: dict[str, int]) -> None:
    """Runs an experiment, says how it went, and keeps its Ray until it is told to end."""
    from tests.raytune_searchers.conftest import INIT  # trials need no pytest

    warnings.simplefilter("ignore")
    ray.init(address="local", _temp_dir=ray_folder, _system_config=system_config, **INIT)
    search = make_search()
    facts: dict[str, Any] = {"refused": "", "released": 0}
    try:
        results = fit(search, search.private(Secretive(folder)), Path(folder))
        facts["released"] = len(published_by(search))
        facts["refused"] = "\n".join(str(error) for error in results.errors)
    except PrivacyError as error:
        facts["refused"] = str(error)
    (Path(folder) / "facts.json").write_text(json.dumps(facts))
    sys.stdin.readline()
    ray.shutdown()
