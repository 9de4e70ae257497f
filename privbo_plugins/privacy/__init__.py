"""Mechanisms, noise, ledger, accountant and guarantee."""
