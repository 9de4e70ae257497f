"""Optuna's own suite for samplers."""

from __future__ import annotations

import numpy as np
import pytest
from optuna.testing.pytest_samplers import (
    BasicSamplerTestCase,
    RelativeSamplerTestCase,
    SingleOnlySamplerTestCase,
)

import optuna_samplers
from optuna_samplers import (
    DPFTSDESampler,
    DPGIBOSampler,
    DUETSSampler,
    FederatedServer,
    FederationConfig,
    LDPATAGPUCBSampler,
    LDPGPUCBSampler,
    LDPMoMAGPUCBSampler,
    LDPTGPUCBSampler,
    POGPUCBSampler,
    PrivateSampler,
)
from tests.sixth import SixthConfig

pytestmark = pytest.mark.filterwarnings(
    "ignore::privbo_plugins.errors.PrivacyWarning"  # the suite's objectives return plain floats
)


class TestDPGIBOSampler(BasicSamplerTestCase, RelativeSamplerTestCase, SingleOnlySamplerTestCase):
    """111 tests that every sampler of one objective must pass."""

    @pytest.fixture
    def sampler(self):
        return lambda: DPGIBOSampler(mu=1)


class TestSamplerFromOutside(
    BasicSamplerTestCase, RelativeSamplerTestCase, SingleOnlySamplerTestCase
):
    """An algorithm that the product has never heard of."""

    @pytest.fixture
    def sampler(self):
        return lambda: PrivateSampler(SixthConfig(1.0, 20))


class _RewardSamplerTestCase(
    BasicSamplerTestCase, RelativeSamplerTestCase, SingleOnlySamplerTestCase
):
    cls: type

    @pytest.fixture
    def sampler(self):
        return lambda: self.cls(1.0, bound=1.0)


class TestLDPGPUCBSampler(_RewardSamplerTestCase):
    cls = LDPGPUCBSampler


@pytest.mark.soak  # one class with LDPGPUCBSampler but for the posterior
class TestLDPTGPUCBSampler(_RewardSamplerTestCase):
    cls = LDPTGPUCBSampler


@pytest.mark.soak
class TestLDPATAGPUCBSampler(_RewardSamplerTestCase):
    cls = LDPATAGPUCBSampler


class TestLDPMoMAGPUCBSampler(_RewardSamplerTestCase):
    cls = LDPMoMAGPUCBSampler


class TestDUETSSampler(BasicSamplerTestCase, RelativeSamplerTestCase, SingleOnlySamplerTestCase):
    """Two agents without privacy, as they come."""

    @pytest.fixture
    def sampler(self):
        return lambda: DUETSSampler(2)


class TestDPFTSDESampler(BasicSamplerTestCase, RelativeSamplerTestCase, SingleOnlySamplerTestCase):
    """One agent, alone in its federation; short messages, which are cheap to reckon with."""

    pytestmark = pytest.mark.filterwarnings("ignore:The parameters that all trials")

    @pytest.fixture
    def sampler(self):
        config = FederationConfig(n_agents=1, z=2.0, n_rounds=2, n_startup=2, n_features=4)
        return lambda: DPFTSDESampler(FederatedServer(config).connect(0))


class TestPOGPUCBSampler(BasicSamplerTestCase, RelativeSamplerTestCase, SingleOnlySamplerTestCase):
    """Objectives without a row: every parameter is drawn at random."""

    @pytest.fixture
    def sampler(self):
        Z = np.random.default_rng(0).normal(size=(7, 2))
        return lambda: POGPUCBSampler(Z, noise_sd=0.1)


def test_every_sampler_is_put_through_the_suite():
    """The general one runs what comes from outside."""
    suites = {name for name in globals() if name.startswith("Test")}
    offered = {name for name in optuna_samplers.__all__ if name.endswith("Sampler")}
    assert offered == {
        "PrivateSampler" if name == "TestSamplerFromOutside" else name.removeprefix("Test")
        for name in suites
    }
