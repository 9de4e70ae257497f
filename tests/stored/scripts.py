"""What users of version 0.1 ran: their own programs, which a later version must still run.

Every keyword is written as it was then. ``make.py`` runs these programs half-way with the code of
that version; the tests run them to the end with today's, over the files that were left. Data are
synthetic and public.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import optuna

from optuna_samplers import (
    DPFTSDESampler,
    DPGIBOSampler,
    DUETSSampler,
    FederatedServer,
    FederationConfig,
    LDPATAGPUCBSampler,
    LDPGPUCBSampler,
    LDPMoMAGPUCBSampler,
    LDPTGPUCBSampler,
    POGPUCBSampler,
    answer_trials,
    ldp_objective,
    run_federated,
)
from privbo_plugins.algorithms.po_gp_ucb import Curator, ReleasedTable
from privbo_plugins.algorithms.po_gp_ucb.exchange import write_request
from privbo_plugins.curator import main as command_line
from privbo_plugins.federation.history import AgentHistory
from privbo_plugins.spaces import Categorical, Float, Int, Space

RECORDS = np.random.default_rng(11).uniform(0.4, 0.9, size=60)
"""Validation records."""

MU, EPSILON = 2.0, 2.0

HALF = 3
"""Trials of a study that version 0.1 finished; one more was released and its worker died."""


VARIABLE, AGENTS_VARIABLE = "PRIVBO_STORED_VAULT", "PRIVBO_STORED_AGENTS"
VAULT = f"env:{VARIABLE}"
"""So that what was pickled finds its databases wherever its files were put."""


def url(path: Path) -> str:
    return f"sqlite:///{path}"


def places(folder: Path) -> dict[str, str]:
    """What the environment says of where the databases of a folder are."""
    return {
        VARIABLE: url(folder / "vault.db"),
        AGENTS_VARIABLE: url(folder / "{agent}.db"),
    }


# One study, one vault ---------------------------------------------------------------------------


@dataclass
class Tuning:
    """A program that tunes in one study.

    Attributes:
        study: On disk, with its sampler.
        private: What it optimises.
        guarantee: What it prints at the end.
        n_trials: How many trials it runs in all, at most.
    """

    study: optuna.Study
    private: Callable[[optuna.Trial], float]
    guarantee: Callable[[], Any]
    n_trials: int


def study_in(folder: Path, sampler: optuna.samplers.BaseSampler, direction: str) -> optuna.Study:
    return optuna.create_study(
        storage=url(folder / "study.db"),
        study_name="tuning",
        sampler=sampler,
        direction=direction,
        load_if_exists=True,
    )


def _public(trial: Any) -> None:
    """What the user declares public."""
    trial.set_user_attr("epochs", 3, public=True)
    trial.report(0.5, step=1, public=True)


def losses(trial: Any) -> np.ndarray:
    """A loss a record; parameters of all kinds, a constant, and a public attribute."""
    x, rate = trial.suggest_float("x", 0.0, 1.0), trial.suggest_float("rate", 0.01, 1.0, log=True)
    trial.suggest_int("width", 5, 5)
    penalty = {"low": 0.0, "high": 0.1}[trial.suggest_categorical("penalty", ["low", "high"])]
    _public(trial)
    return (x - RECORDS) ** 2 + 0.1 * rate + penalty


def records(folder: Path, **changes: Any) -> Tuning:
    """DP-GIBO, whose trainings cost something too."""
    settings: dict[str, Any] = {
        "n_starts": 2,
        "n_steps": 2,
        "seed": 3,
        "value_share": 0.2,
        "clipping_norm": 0.8,
        "loss_bound": 1.5,
        "lengthscale": 0.25,
        "noise_ratio": 0.01,
        "step_rule": "adagrad-norm",
        "step_size": 0.15,
        "average": 0.0,
        "memory": 0,
        "training_mu": 0.1,
        "vault": VAULT,
    }
    sampler = DPGIBOSampler(MU, **(settings | changes))
    study = study_in(folder, sampler, "minimize")
    return Tuning(study, sampler.private(losses), lambda: sampler.guarantee(study), 20)


def reward(trial: Any) -> float:
    """One user's."""
    return 1.0 - abs(trial.suggest_float("x", 0.0, 1.0) - 0.3)


def answer(trial: Any) -> float:
    """The same, with something public beside it."""
    _public(trial)
    return reward(trial)


def user(trial: Any) -> str:
    """Two are asked, in turn."""
    return f"user {trial.number % 2}"


def _rewards(folder: Path, sampler: Any, n_trials: int) -> Tuning:
    study = study_in(folder, sampler, "maximize")
    private = sampler.private(answer, user_id=user)
    return Tuning(study, private, lambda: private.guarantee(study), n_trials)


def gp_ucb(folder: Path, **changes: Any) -> Tuning:
    """Small noise by default."""
    settings: dict[str, Any] = {
        "reward_range": (0, 1),
        "horizon": 12,
        "beta_scale": 0.5,
        "user_budget": 40.0,
        "seed": 1,
        "vault": VAULT,
    }
    return _rewards(folder, LDPGPUCBSampler(EPSILON, **(settings | changes)), 12)


def tgp_ucb(folder: Path, **changes: Any) -> Tuning:
    """As published."""
    settings: dict[str, Any] = {
        "bound": 1.0,
        "horizon": 12,
        "failure": 0.2,
        "constants": "theorem",
        "seed": 1,
        "vault": VAULT,
    }
    return _rewards(folder, LDPTGPUCBSampler(EPSILON, **(settings | changes)), 12)


def ata_gp_ucb(folder: Path, **changes: Any) -> Tuning:
    """With another mechanism."""
    settings: dict[str, Any] = {
        "reward_range": (0, 1),
        "mechanism": "piecewise",
        "horizon": 12,
        "failure": 0.2,
        "accuracy": 0.2,
        "seed": 1,
        "vault": VAULT,
    }
    return _rewards(folder, LDPATAGPUCBSampler(EPSILON, **(settings | changes)), 12)


def moma_gp_ucb(folder: Path, **changes: Any) -> Tuning:
    """In the middle of an epoch of three replays; with a delta."""
    settings: dict[str, Any] = {
        "reward_range": (0, 1),
        "mechanism": "gaussian",
        "delta": 1e-3,
        "horizon": 12,
        "failure": 0.2,
        "replays": 3,
        "seed": 1,
        "vault": VAULT,
    }
    return _rewards(folder, LDPMoMAGPUCBSampler(EPSILON, **(settings | changes)), 12)


def duets(folder: Path, **changes: Any) -> Tuning:
    """In the middle of an epoch."""
    settings: dict[str, Any] = {
        "epsilon": EPSILON,
        "reward_range": (0, 1),
        "n_trials": 12,
        "failure": 0.2,
        "discretisation": 64,
        "seed": 1,
        "vault": VAULT,
    }
    return _rewards(folder, DUETSSampler(2, **(settings | changes)), 12)


def duets_published(folder: Path, **changes: Any) -> Tuning:
    """With coins of the agents' own."""
    published: dict[str, Any] = {"coins": "private", "trimming": "paper", "draws": "independent"}
    return duets(folder, **(published | changes))


def any_sampler(folder: Path, **changes: Any) -> Tuning:
    """A sampler of Optuna's own; Jane answers all trials."""
    settings: dict[str, Any] = {
        "epsilon": EPSILON,
        "reward_range": (0, 1),
        "mechanism": "duchi",
        "user_id": "Jane",
        "user_budget": 40.0,
        "vault": VAULT,
    }
    private = ldp_objective(answer, **(settings | changes))
    study = study_in(folder, optuna.samplers.RandomSampler(seed=1), "maximize")
    return Tuning(study, private, lambda: private.guarantee(study), 12)


def number(trial: Any) -> int:
    """One of two users."""
    return int(trial.number % 2)


def numbered_users(folder: Path, **changes: Any) -> Tuning:
    """Whose names are integers, which version 0.1 told apart from texts."""
    return any_sampler(folder, **({"user_id": number} | changes))


TUNING: dict[str, Callable[..., Tuning]] = {
    "records": records,
    "gp_ucb": gp_ucb,
    "tgp_ucb": tgp_ucb,
    "ata_gp_ucb": ata_gp_ucb,
    "moma_gp_ucb": moma_gp_ucb,
    "duets": duets,
    "duets_published": duets_published,
    "any_sampler": any_sampler,
    "numbered_users": numbered_users,
}


# A curator and a modeler ------------------------------------------------------------------------

ROWS = np.random.default_rng(5).uniform([18, 10], [98, 60], size=(24, 2))
OUTCOMES = 1 - np.abs(ROWS[:, 0] - 70) / 80


def curator(folder: Path, *, private: bool = True, **changes: Any) -> Curator:
    """Whose answers are randomised, or given as they are."""
    answers: dict[str, Any] = {"outcome_epsilon": 4.0, "outcome_range": (0, 1)}
    settings: dict[str, Any] = {
        "epsilon": 4.0,
        "delta": 1e-6,
        "neighbor_distance": 0.3,
        "bounds": [(18, 98), (10, 60)],
        "columns": ["age", "bmi"],
        "outcomes": OUTCOMES,
        "vault": url(folder / "vault.db"),
        "run": "clinic",
        **(answers if private else {}),
    }
    return Curator(ROWS, **(settings | changes))


def modeler(folder: Path) -> optuna.Study:
    """Over the table's file."""
    sampler = POGPUCBSampler(folder / "table.npz", delta=0.2, beta_scale=0.5, n_startup=2, seed=0)
    return study_in(folder, sampler, "maximize")


def ask_row(study: optuna.Study) -> tuple[optuna.Trial, int]:
    """The modeler's next question."""
    trial = study.ask()
    return trial, trial.suggest_int("row", 0, len(ROWS) - 1)


def question_and_answer(study: optuna.Study, holder: Curator) -> int:
    """One round of both sides; how many trials ended."""
    ask_row(study)
    return answer_trials(study, holder)


PEOPLE = "name,age,bmi,sex,stay\n" + "".join(
    f"person {i},{age:.0f},{bmi:.1f},{'FM'[i % 2]},{stay:.3f}\n"
    for i, ((age, bmi), stay) in enumerate(zip(ROWS, OUTCOMES, strict=True))
)
"""The file of a curator who does not program."""


def release_files(folder: Path, out: str = "table.npz") -> int:
    """What that curator types once."""
    (folder / "people.csv").write_text(PEOPLE)
    return command_line(
        ["release", str(folder / "people.csv"), "--columns", "age:18:98", "bmi:10:60", "sex=F,M",
         "--epsilon", "4", "--delta", "1e-6",
         "--outcome-epsilon", "4", "--outcome-range", "0", "1",
         "--vault", url(folder / "vault.db"), "--out", str(folder / out)]
    )  # fmt: skip


def answer_files(folder: Path, rows: Sequence[int]) -> int:
    """And whenever the modeler has asked."""
    table = ReleasedTable.load(folder / "table.npz")
    write_request(folder / "request.json", table.certificate.digest, rows)
    return command_line(
        ["answer", str(folder / "people.csv"), "--outcome", "stay",
         "--vault", url(folder / "vault.db"), "--request", str(folder / "request.json"),
         "--out", str(folder / "answers.json")]
    )  # fmt: skip


def told(folder: Path) -> dict[str, float]:
    """The answers that stand in the file."""
    answers = json.loads((folder / "answers.json").read_text())["answers"]
    return {str(row): float(y) for row, y in answers.items()}


# A federation -----------------------------------------------------------------------------------

AGENTS = ("north", "south")


def federation_config(kind: str, **changes: Any) -> FederationConfig:
    """The default, or agents that explore as published."""
    kinds: dict[str, dict[str, Any]] = {
        "prior": {"epsilon": 8.0, "delta": 0.01, "n_rounds": 2},
        "explore": {
            "z": 1.0, "q": 0.5, "n_rounds": 3, "crowd": "explore", "n_features": 8,
            "n_regions": 2, "clipping_norm": 4.0, "n_startup": 2, "delta": 0.05,
        },
    }  # fmt: skip
    return FederationConfig(len(AGENTS), **(kinds[kind] | changes))


def server(folder: Path, config: FederationConfig) -> FederatedServer:
    """Of all agents."""
    return FederatedServer(
        config, agents=AGENTS, deadline=None, vault=url(folder / "vault.db"), run="hospitals"
    )


def agents(folder: Path, whose: FederatedServer) -> list[optuna.Study]:
    """A study each, in a file of its own."""
    return [
        optuna.create_study(
            storage=url(folder / f"{name}.db"),
            study_name=name,
            sampler=DPFTSDESampler(whose.connect(name), seed=n),
            direction="maximize",
            load_if_exists=True,
        )
        for n, name in enumerate(AGENTS)
    ]


def federate(studies: list[optuna.Study], n_rounds: int) -> None:
    """So many rounds in all."""
    run_federated(studies, [reward for _ in studies], n_rounds)


SPACE = Space(
    {
        "x": Float(0.0, 1.0),
        "rate": Float(0.01, 1.0, log=True),
        "depth": Int(1, 8),
        "kind": Categorical(("a", "b")),
    }
)


def history(folder: Path, *, create: bool = True) -> AgentHistory:
    """What an agent of a federation on Ray keeps."""
    return AgentHistory("north", SPACE, vault=url(folder / "vault.db"), run="r", create=create)
