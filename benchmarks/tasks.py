"""Carrying out many runs in processes, with a bar, and keeping those that are finished."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from pathlib import Path
from typing import Any

from tqdm import tqdm

Row = dict[str, Any]
Task = tuple[str, Row]


def carried_out(
    tasks: Iterable[Task],
    carry_out: Callable[[Task], Row],
    *,
    jobs: int,
    kept: Path | None,
    alone: bool = False,
) -> list[Row]:
    """One row a task.

    Args:
        tasks: What to run: a part's name and JSON-ready arguments.
        carry_out: A module's function, which spawned processes can import.
        jobs: Number of processes.
        kept: File of finished runs, one a line; they are not repeated.
        alone: One fresh process a task, one at a time: for what is measured.
    """
    asked = list(tasks)
    found = _read(kept)
    todo = [task for task in asked if json.dumps(task) not in found]
    label = asked[0][0] if asked else ""
    with ProcessPoolExecutor(
        1 if alone else jobs, get_context("spawn"), max_tasks_per_child=1 if alone else None
    ) as pool:
        done = pool.map(carry_out, todo, chunksize=1)
        for task, row in zip(todo, tqdm(done, total=len(todo), desc=label), strict=True):
            found[json.dumps(task)] = row
            _keep(kept, task, row)
    return [found[json.dumps(task)] for task in asked]


def _read(kept: Path | None) -> dict[str, Row]:
    """Rows of tasks carried out before, one a line."""
    if kept is None or not kept.exists():
        return {}
    lines = [json.loads(line) for line in kept.read_text().splitlines()]
    return {json.dumps(task): row for task, row in lines}


def _keep(kept: Path | None, task: Task, row: Row) -> None:
    if kept is not None:
        with kept.open("a") as file:
            file.write(json.dumps([task, row]) + "\n")
