"""Actors that hold what trials must not: losses, a ledger of rewards, rows, a server, agents."""
