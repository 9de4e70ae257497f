"""Two processes that share a folder: a clinic's curator and a modeler who never sees a row.

A clinic knows 442 patients and may afford 40 expensive examinations. It wants the patients whose
diabetes gets worst. A modeler chooses whom to examine next, from a table in which every row has
noise of its own. In the shared folder lie the released table, the modeler's requests and the
curator's answers; the rows stay in the curator's own folder.

    python -m examples.demo_outsourced [--epsilon 4] [--distance 0.2] [--tests 40]
"""

from __future__ import annotations

import argparse
import csv
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numpy as np

COLUMNS = {"bmi": (15, 45), "bp": (60, 135), "s5": (3, 6.2)}
"""Body mass index, blood pressure, log triglycerides, with bounds that any clinic knows."""

BATCH = 4
"""Examinations at a time."""


def write_patients(path: Path) -> np.ndarray:
    """The clinic's file: 442 patients of scikit-learn's diabetes data; their outcomes, (n,)."""
    from sklearn.datasets import load_diabetes

    data = load_diabetes(scaled=False)
    places = [data.feature_names.index(name) for name in COLUMNS]
    with path.open("w", newline="") as file:
        lines = csv.writer(file)
        lines.writerow([*COLUMNS, "progression"])
        for row, y in zip(data.data[:, places].tolist(), data.target.tolist(), strict=True):
            lines.writerow([*row, y])
    return np.asarray(data.target, dtype=float)


# The modeler process ----------------------------------------------------------------------------


def model(shared: Path, n_tests: int) -> None:
    """Chooses rows with Optuna; knows the shared folder and nothing else."""
    import optuna
    from tqdm import tqdm

    from optuna_samplers import POGPUCBSampler
    from privbo_plugins import ReleasedTable, read_answers, write_request

    optuna.logging.set_verbosity(optuna.logging.WARNING)
    table = ReleasedTable.load(shared / "table.npz")
    digest, asked = table.manifest.digest, list[int]()
    sampler = POGPUCBSampler(table, seed=0)
    study = optuna.create_study(direction="maximize", sampler=sampler)
    with tqdm(total=n_tests, desc="examinations", file=sys.stderr) as bar:
        while len(asked) < n_tests:
            trials = [study.ask() for _ in range(min(BATCH, n_tests - len(asked)))]
            rows = [trial.suggest_int("row", 0, table.n - 1) for trial in trials]
            asked += rows
            write_request(shared / "request.json", digest, asked)
            answers = read_answers(shared / "answers.json", digest)
            while not set(asked) <= set(answers):
                time.sleep(0.05)
                answers = read_answers(shared / "answers.json", digest)
            for trial, row in zip(trials, rows, strict=True):
                study.tell(trial, answers[row])
            bar.update(len(rows))
    print(f"\nThe modeler recommends row {sampler.recommend(study)['row']}. It was told:\n")
    print(sampler.guarantee(study))


# Both -------------------------------------------------------------------------------------------


def start(*arguments: str | Path) -> subprocess.Popen[bytes]:
    """Another Python process."""
    return subprocess.Popen([sys.executable, "-m", *map(str, arguments)])


def evaluation(private: Path, shared: Path, epsilon: float, distance: float, n_tests: int) -> None:
    """Runs the curator and the modeler, and tells how it went."""
    y = write_patients(private / "patients.csv")
    vault = f"sqlite:///{private}/curator.db"
    bounds = [f"{name}:{low}:{high}" for name, (low, high) in COLUMNS.items()]
    released = start(
        "privbo_plugins", "curator", "release", private / "patients.csv", "--columns", *bounds,
        "--epsilon", str(epsilon), "--delta", "1e-6", "--neighbor-distance", str(distance),
        "--vault", vault, "--out", shared / "table.npz",
    )  # fmt: skip
    if released.wait():
        raise SystemExit(released.returncode)
    curator = start(
        "privbo_plugins", "curator", "answer", private / "patients.csv",
        "--outcome", "progression", "--vault", vault, "--request", shared / "request.json",
        "--out", shared / "answers.json", "--watch", "0.2", "--until", str(n_tests),
    )  # fmt: skip
    modeler = start("examples.demo_outsourced", "--modeler", shared, "--tests", str(n_tests))
    try:
        while modeler.poll() is None:
            time.sleep(0.1)
            if curator.poll():
                raise SystemExit("The curator stopped: nothing answers the modeler any longer.")
    finally:
        modeler.terminate()
        curator.terminate()
        modeler.wait()
        curator.wait()
    tell(shared, y, n_tests)


def tell(shared: Path, y: np.ndarray, n_tests: int) -> None:
    """How many of the worst tenth were found, beside what chance finds."""
    from privbo_plugins import ReleasedTable, read_answers

    table = ReleasedTable.load(shared / "table.npz")
    rows = list(read_answers(shared / "answers.json", table.manifest.digest))
    worst = np.sort(y)[-(len(y) // 10)]
    found = int((y[rows] >= worst).sum())
    by_chance = n_tests * float((y >= worst).mean())
    print(f"\nOf {len(rows)} patients examined, {found} belong to the tenth whose disease got")
    print(f"worst; choosing at random finds {by_chance:.1f} on average.")
    print("In the shared folder:", ", ".join(sorted(path.name for path in shared.iterdir())))


def main() -> None:
    """Parses the arguments and runs everything in a temporary folder."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n", 1)[0])
    parser.add_argument("--epsilon", type=float, default=4.0)
    parser.add_argument(
        "--distance", type=float, default=0.2,
        help="rows that differ by so much are hard to tell apart; 1 is a column's whole range",
    )  # fmt: skip
    parser.add_argument("--tests", type=int, default=40, help="examinations that can be afforded")
    parser.add_argument("--modeler", type=Path, metavar="FOLDER", help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.modeler is not None:
        model(given.modeler, given.tests)
        return
    with tempfile.TemporaryDirectory() as folder:
        private, shared = Path(folder, "curator"), Path(folder, "shared")
        private.mkdir(mode=0o700)
        shared.mkdir()
        evaluation(private, shared, given.epsilon, given.distance, given.tests)


if __name__ == "__main__":
    main()
