"""Whoever holds secrets: per-record losses, rewards, rows, or the vectors of a federation.

Each module knows what its secret is and what may be asked of it; how a release is charged, drawn,
stored and replayed is the store's business alone.
"""
