"""A small network in torch as an estimator of scikit-learn's: all that a search asks of one."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from sklearn.base import BaseEstimator, ClassifierMixin


class TorchClassifier(ClassifierMixin, BaseEstimator):  # type: ignore[misc]  # without types
    """One hidden layer, trained on the records that it is given and on nothing else.

    Args:
        lr: Learning rate.
        width: Units of the hidden layer.
        epochs: Passes over the training records.
        random_state: Drives weights and batches.
    """

    def __init__(
        self, lr: float = 0.1, width: int = 32, epochs: int = 8, random_state: int = 0
    ) -> None:
        self.lr = lr
        self.width = width
        self.epochs = epochs
        self.random_state = random_state

    def fit(self, X: Any, y: Any) -> TorchClassifier:
        """Trains on records X (n, d) with labels y (n,)."""
        torch.manual_seed(self.random_state)
        self.classes_, columns = np.unique(y, return_inverse=True)
        self.n_features_in_ = np.shape(X)[1]
        self.scale_ = float(np.abs(X).max()) or 1.0
        inputs, labels = self._inputs(X), torch.as_tensor(columns)
        self.model_ = torch.nn.Sequential(
            torch.nn.Linear(self.n_features_in_, self.width),
            torch.nn.ReLU(),
            torch.nn.Linear(self.width, len(self.classes_)),
        )
        optimiser = torch.optim.SGD(self.model_.parameters(), lr=self.lr, momentum=0.9)
        for _ in range(self.epochs):
            for batch in torch.randperm(len(inputs)).split(64):
                optimiser.zero_grad()
                loss = torch.nn.functional.cross_entropy(self.model_(inputs[batch]), labels[batch])
                loss.backward()
                optimiser.step()
        return self

    def predict_proba(self, X: Any) -> NDArray[np.float64]:
        """Probabilities (n, K) of records X, each by itself."""
        with torch.no_grad():
            p = torch.softmax(self.model_(self._inputs(X)).double(), dim=1)
        return np.asarray(p.numpy(), dtype=float)

    def predict(self, X: Any) -> NDArray[Any]:
        """Labels (n,)."""
        return np.asarray(self.classes_[self.predict_proba(X).argmax(axis=1)])

    def _inputs(self, X: Any) -> Any:
        return torch.as_tensor(np.asarray(X, dtype=np.float32) / self.scale_)
