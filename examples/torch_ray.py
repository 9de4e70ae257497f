"""A neural network in torch, tuned privately on Ray Tune, with learning curves and checkpoints.

Learning rate, weight decay and width of a small network on handwritten digits; the 900 validation
images are the secret. Each epoch's training loss and checkpoint are public with respect to them,
and reported as such. Run it with ``python -m examples.torch_ray`` where torch is installed.
"""

from __future__ import annotations

import argparse
import os
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
os.environ.setdefault("RAY_AIR_NEW_OUTPUT", "0")

import numpy as np
import ray
import torch
from numpy.typing import NDArray
from ray import tune

from examples.demo_ray import Bar
from examples.digits import N_VALID, split
from raytune_searchers import DPGIBOSearch, report_public

SPACE = {
    "lr": tune.loguniform(1e-4, 1.0),
    "weight_decay": tune.loguniform(1e-6, 1e-1),
    "width": tune.qlograndint(8, 128, 8),
    "epochs": 8,
}


def trainable(config: dict[str, Any]) -> NDArray[np.float64]:
    """What the vault receives; Tune's results never do."""
    return brier_losses(config, report_epoch)


def brier_losses(
    config: dict[str, Any], report: Callable[[Any, float], None]
) -> NDArray[np.float64]:
    """One Brier loss in [0, 1] per validation record, shape (900,)."""
    torch.set_num_threads(1)
    torch.manual_seed(0)
    X, X_valid, y, y_valid = (torch.as_tensor(part) for part in split())
    X, X_valid = X.float() / 16, X_valid.float() / 16
    model = torch.nn.Sequential(
        torch.nn.Linear(64, config["width"]), torch.nn.ReLU(), torch.nn.Linear(config["width"], 10)
    )
    optimiser = torch.optim.SGD(
        model.parameters(), lr=config["lr"], momentum=0.9, weight_decay=config["weight_decay"]
    )
    for _ in range(config["epochs"]):
        report(model, train_epoch(model, optimiser, X, y))
    with torch.no_grad():
        p = torch.softmax(model(X_valid), dim=1)
    brier = ((p - torch.nn.functional.one_hot(y_valid, 10)) ** 2).sum(dim=1) / 2
    return np.asarray(brier.numpy(), dtype=float)


def train_epoch(model: Any, optimiser: Any, X: Any, y: Any) -> float:
    """One pass over the training records; their mean loss."""
    total = 0.0
    for batch in torch.randperm(len(X)).split(64):
        optimiser.zero_grad()
        loss = torch.nn.functional.cross_entropy(model(X[batch]), y[batch])
        loss.backward()
        optimiser.step()
        total += loss.item() * len(batch)
    return total / len(X)


def report_epoch(model: Any, train_loss: float) -> None:
    """Depends on training records only, so the caller may vouch for it."""
    with tempfile.TemporaryDirectory() as folder:
        torch.save(model.state_dict(), Path(folder) / "model.pt")
        report_public(
            {"train_loss": train_loss}, checkpoint=tune.Checkpoint.from_directory(folder)
        )


def main() -> None:
    """Runs the private experiment and prints the recommendation and the guarantee."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n", 1)[0])
    parser.add_argument("--mu", type=float, default=1.0, help="total Gaussian DP parameter")
    parser.add_argument("--steps", type=int, default=12, help="gradient steps T")
    parser.add_argument("--starts", type=int, default=8, help="start points K")
    parser.add_argument("--out", type=Path, default=Path("torch-ray"), help="Tune's results")
    arguments = parser.parse_args()
    search = DPGIBOSearch(
        mu=arguments.mu,
        metric="brier",
        mode="min",
        seed=0,
        n_steps=arguments.steps,
        n_starts=arguments.starts,
    )
    plan = search.plan(SPACE, n_records=N_VALID)
    print(plan, end="\n\n")
    ray.init(include_dashboard=False, log_to_driver=False, logging_level="ERROR")
    results = tune.Tuner(
        search.private(trainable),
        param_space=SPACE,
        tune_config=tune.TuneConfig(search_alg=search, num_samples=-1, reuse_actors=True),
        run_config=tune.RunConfig(
            name="torch",
            storage_path=str(arguments.out.resolve()),
            verbose=0,
            callbacks=[Bar(plan.n_trials)],
            checkpoint_config=tune.CheckpointConfig(num_to_keep=1),
        ),
    ).fit()
    recommended = search.recommend()
    print("\nRecommended:", recommended)
    print("\nGuarantee:", search.guarantee(results))
    print("\nNOT PRIVATE, shown because this is a demo on public data:")
    for name, config in (
        ("the recommendation", recommended),
        ("the middle of the space", {**recommended, "lr": 0.01, "weight_decay": 3e-4}),
    ):
        value = float(brier_losses(config, lambda *_: None).mean())
        print(f"  true mean Brier loss of {name}: {value:.4f}")
    ray.shutdown()


if __name__ == "__main__":
    main()
