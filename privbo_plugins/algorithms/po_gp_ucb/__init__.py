"""PO-GP-UCB: a curator releases a transformed table, a modeler asks for rows of it.

Source: Kharkovskii, Dai and Low, *Private Outsourced Bayesian Optimization*, ICML 2020. Its
privacy theorem is false where there are more rows than columns; the default mechanism here is
another, sound one.
"""

from privbo_plugins.algorithms.po_gp_ucb.modeler import (
    POGPUCB,
    RowsConfig,
    row_space,
    rows_config,
)
from privbo_plugins.algorithms.po_gp_ucb.table import ReleasedTable, TableManifest

__all__ = ["POGPUCB", "ReleasedTable", "RowsConfig", "TableManifest", "row_space", "rows_config"]
