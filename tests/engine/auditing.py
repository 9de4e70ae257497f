"""Lower bounds on mu and epsilon from what two worlds show: the attacker of every empirical audit.

A threshold on a score is chosen on half the runs; Clopper-Pearson bounds over the other half turn
its rates into a bound, so both rates together hold with the given confidence.
"""

import numpy as np
from scipy.stats import beta, norm

CONFIDENCE = 0.9999


def at_most(hits, runs, confidence):
    """Clopper-Pearson upper bound on a rate."""
    hits = np.asarray(hits)
    bound = beta.ppf(1 - (1 - confidence) / 2, hits + 1, runs - hits)
    return np.nan_to_num(bound, nan=1.0)


def at_least(hits, runs, confidence):
    return 1.0 - at_most(runs - np.asarray(hits), runs, confidence)


def audited_mu(null, other, confidence=CONFIDENCE, *, tail=0.2):
    """From the rates of false positives and negatives; scores tend to be larger on the other."""

    def bound_at(thresholds, low, high):
        positives = at_most((low[:, None] > thresholds).sum(0), len(low), confidence)
        negatives = at_most((high[:, None] <= thresholds).sum(0), len(high), confidence)
        return norm.isf(positives) - norm.ppf(negatives)

    a, b = np.asarray(null), np.asarray(other)
    half = len(a) // 2
    mixed = np.concatenate([a[:half], b[:half]])
    thresholds = np.quantile(mixed, np.linspace(tail, 1 - tail, 61))
    place = int(np.argmax(bound_at(thresholds, a[:half], b[:half])))
    return float(bound_at(thresholds[place : place + 1], a[half:], b[half:])[0])


def audited_epsilon(a, b, confidence=CONFIDENCE, *, delta=0.0, quantiles=None):
    """From the rates of an event: both sides of a threshold, either world first."""

    def bounds_at(a, b, thresholds):
        bounds = []
        for one, two in ((a, b), (b, a)):
            above = [(scores[:, None] > thresholds).sum(0) for scores in (one, two)]
            below = [len(scores) - hits for scores, hits in zip((one, two), above, strict=True)]
            for p, q in (above, below):
                likely = np.maximum(at_least(p, len(one), confidence) - delta, 1e-300)
                bounds.append(np.log(likely / at_most(q, len(two), confidence)))
        return np.array(bounds)

    quantiles = np.linspace(0.01, 0.99, 81) if quantiles is None else quantiles
    half = len(a) // 2
    both = np.unique(np.concatenate([a[:half], b[:half]]))
    thresholds = np.quantile(both, quantiles, method="lower")
    bounds = bounds_at(a[:half], b[:half], thresholds)
    kind, place = np.unravel_index(int(np.argmax(bounds)), bounds.shape)
    return float(bounds_at(a[half:], b[half:], thresholds[place : place + 1])[kind, 0])
