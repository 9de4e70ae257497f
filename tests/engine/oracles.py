"""Formulas that several tests compare the product with, written out beside it."""

import functools
import itertools
import math

import numpy as np
from scipy.optimize import brentq
from scipy.stats import norm

from privbo_plugins.spaces import Categorical


def gaussian_delta(mu, epsilon):
    """Gives delta of a Gaussian mechanism: theorem 8 of Balle and Wang 2018."""
    second = math.exp(epsilon + norm.logcdf(-epsilon / mu - mu / 2))
    return float(norm.cdf(-epsilon / mu + mu / 2)) - second


@functools.cache
def gaussian_mu(epsilon, delta):
    """Gives the distance of two normal distributions that a pair allows."""
    return float(brentq(lambda mu: gaussian_delta(mu, epsilon) - delta, 1e-6, 50, xtol=1e-13))


def gaussian_epsilon(mu, delta):
    return float(brentq(lambda e: gaussian_delta(mu, e) - delta, 0.0, 500.0, xtol=1e-12))


def covariance(n, seed=0, rank=None):
    """Gives random arms with unequal variances, of full rank or less."""
    A = np.random.default_rng(seed).standard_normal((n, n if rank is None else rank))
    K = A @ A.T
    return K / np.diag(K).max()


def conditioned(K, cross, prior, y, lam):
    """Gives mean and variance of a Gaussian process, a row each evaluation, by one inverse."""
    inverse = np.linalg.inv(K + lam * np.eye(len(K)))
    variance = prior - np.einsum("ij,jk,ik->i", cross, inverse, cross)
    return cross @ inverse @ np.asarray(y, dtype=float), np.asarray(variance)


def points_of(space):
    """Writes out all points of a finite space."""
    axes = [
        range(len(d.choices))
        if isinstance(d, Categorical)
        else [
            d.encode(d.low + k * (d.step or 1))
            for k in range(int((d.high - d.low) // (d.step or 1)) + 1)
        ]
        for d in space.values()
    ]
    return np.array(list(itertools.product(*axes)), dtype=float)
