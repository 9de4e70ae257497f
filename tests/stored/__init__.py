"""Studies, vaults and experiments that released versions have left half-finished."""
