"""Optuna's own suite for samplers."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from optuna.samplers import BaseSampler
from optuna.testing.pytest_samplers import (
    BasicSamplerTestCase,
    RelativeSamplerTestCase,
    SingleOnlySamplerTestCase,
)

from optuna_samplers import DPGIBOSampler

pytestmark = pytest.mark.filterwarnings(
    "ignore::privbo_plugins.errors.PrivacyWarning",  # the suite's objectives return plain floats
)


class TestDPGIBOSampler(BasicSamplerTestCase, RelativeSamplerTestCase, SingleOnlySamplerTestCase):
    """111 tests that every sampler of one objective must pass."""

    @pytest.fixture
    def sampler(self) -> Callable[[], BaseSampler]:
        return lambda: DPGIBOSampler(mu=1)
