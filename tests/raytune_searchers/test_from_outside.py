"""An algorithm that the product has never heard of runs on Ray Tune as any of its own does."""

import pytest

pytest.importorskip("ray", reason="Ray is not installed (the ray extra)")


from privbo_plugins.errors import PrivacyWarning
from raytune_searchers import PrivateSearch
from tests.contracts import conformance
from tests.contracts.conformance import CHECKS, Subject, evaluate_privately
from tests.sixth import SixthConfig

T = 6


def search_of(n_trials=T, **settings):
    own = {"metric": "loss", "mode": "min", "seed": 3} | settings
    return PrivateSearch(SixthConfig(1.0, n_trials), **own)


# Through the hooks ------------------------------------------------------------------------------


LEARNING = ("min is minimised", "max is maximised", "NumPy numbers are learned from")
"""Checks of what random search never does: its points do not depend on what was released."""


def made(space=None, metric=None, mode=None, **kwargs):
    return search_of(100, **({"search_space": space, "metric": metric, "mode": mode} | kwargs))


@pytest.mark.usefixtures("local_hosts")
@pytest.mark.parametrize(
    "check", [check for check in CHECKS if check.name not in LEARNING], ids=lambda c: c.name
)
def test_it_conforms(check, tmp_path):
    subject = Subject("PrivateSearch", made, evaluate_privately, PrivacyWarning)
    assert conformance.outcome(check, subject, tmp_path) == "yes"


# On a real Ray ----------------------------------------------------------------------------------
