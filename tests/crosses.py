"""The one rule by which full crosses are split between every run and soak.

A cross tries every value of one axis with every value of the others. Every run takes a covering
selection: few cases that hold each combination of so many axes' values. Soak takes the rest.
"""

import itertools
from collections import Counter

import pytest


def covering(cases, axes):
    """Places of few cases that hold every combination of so many axes' values.

    Each time that case is taken which brings most, and of these the one whose values have been
    taken least. Nothing is drawn: every run takes the same.
    """
    values = [[(axis, repr(value)) for axis, value in enumerate(case)] for case in cases]
    held = [set(itertools.combinations(own, axes)) for own in values]
    missing, taken, used = set().union(*held), [], Counter()

    def worth(i):
        return len(held[i] & missing), -sum(used[value] for value in values[i])

    while missing:
        best = max(range(len(cases)), key=worth)
        taken.append(best)
        missing -= held[best]
        used.update(values[best])
    return taken


def crossed(cases, *, axes=1):
    """Cases for ``pytest.mark.parametrize``, of which those outside the selection are soak.

    Args:
        cases: Tuples, one value an axis.
        axes: Of how many axes every run has each combination: 1 for axes that are mere variety,
            2 where each pair has to hold.
    """
    cases = list(cases)
    taken = covering(cases, axes)
    marks = {i: () if i in taken else pytest.mark.soak for i in range(len(cases))}
    return [pytest.param(*case, marks=marks[i]) for i, case in enumerate(cases)]
