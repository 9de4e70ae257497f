"""Slips that would break a promise of privacy, and the tests that must notice each of them."""
