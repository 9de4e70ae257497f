"""Private hyperparameter tuning: the engine.

It knows no host framework; :mod:`optuna_samplers` and :mod:`raytune_searchers` wrap it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from privbo_plugins.lazy import on_first_use

if TYPE_CHECKING:
    from privbo_plugins.algorithms.po_gp_ucb.exchange import read_answers as read_answers
    from privbo_plugins.algorithms.po_gp_ucb.exchange import write_request as write_request
    from privbo_plugins.algorithms.po_gp_ucb.table import ReleasedTable as ReleasedTable
    from privbo_plugins.errors import BudgetExceededError as BudgetExceededError
    from privbo_plugins.errors import FederationError as FederationError
    from privbo_plugins.errors import PrivacyError as PrivacyError
    from privbo_plugins.errors import PrivacyWarning as PrivacyWarning
    from privbo_plugins.errors import UtilityWarning as UtilityWarning
    from privbo_plugins.errors import VaultError as VaultError
    from privbo_plugins.sessions.rows import Curator as Curator
    from privbo_plugins.spaces import Categorical as Categorical
    from privbo_plugins.spaces import Float as Float
    from privbo_plugins.spaces import Int as Int
    from privbo_plugins.spaces import Space as Space
else:
    __getattr__, __dir__, __all__ = on_first_use(
        __name__,
        {
            "privbo_plugins.algorithms.po_gp_ucb.exchange": ["read_answers", "write_request"],
            "privbo_plugins.algorithms.po_gp_ucb.table": ["ReleasedTable"],
            "privbo_plugins.errors": [
                "BudgetExceededError",
                "FederationError",
                "PrivacyError",
                "PrivacyWarning",
                "UtilityWarning",
                "VaultError",
            ],
            "privbo_plugins.sessions.rows": ["Curator"],
            "privbo_plugins.spaces": ["Categorical", "Float", "Int", "Space"],
        },
    )

__version__ = "0.3.0"
