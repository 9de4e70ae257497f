"""Covariance functions and Gaussian processes."""
