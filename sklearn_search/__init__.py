"""Private hyperparameter search for scikit-learn's estimators."""

from __future__ import annotations

from typing import TYPE_CHECKING

from privbo_plugins.lazy import on_first_use

if TYPE_CHECKING:
    from sklearn_search._search import PrivateSearch as PrivateSearch
else:
    __getattr__, __dir__, __all__ = on_first_use(
        __name__,
        {"sklearn_search._search": ["PrivateSearch"]},
    )
