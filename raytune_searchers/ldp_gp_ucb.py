"""GP-UCB on privatised or heavy-tailed rewards as Ray Tune searchers."""

from __future__ import annotations

from privbo_plugins.algorithms.ldp_gp_ucb.config import (
    PUBLISHED,
    PUBLISHED_NYSTROM,
    ATAGPUCBSettings,
    GPUCBSettings,
    MoMAGPUCBSettings,
    TGPUCBSettings,
)
from privbo_plugins.algorithms.registry import of_rewards
from privbo_plugins.privacy.local import AsPublished, RewardPrivacy
from privbo_plugins.settings import Published, settings, takes
from raytune_searchers._rewards import RewardSearch
from raytune_searchers._settings import RewardSearchSettings


@settings(eq=False)
class _GPUCBSettings(RewardSearchSettings, GPUCBSettings, RewardPrivacy):
    """Keywords of :class:`LDPGPUCBSearch`."""


class LDPGPUCBSearch(RewardSearch):
    """Learns from one privatised reward a trial; the default of this family.

    Each trial is one user's reward, privatised in the process that evaluates it. The search
    knows the mechanism's variance and uses it. See :class:`LDPTGPUCBSearch` and its siblings for
    the published algorithms.

    {settings}

    Raises:
        ValueError: For every argument outside its range.
        VaultError: If the vault's database cannot be opened for writing.

    Example:
        >>> from ray import tune
        >>> search = LDPGPUCBSearch(1.0, value_range=(0, 1), metric="reward", mode="max")
        >>> search.mechanism.epsilon
        1.0
        >>> # results = tune.Tuner(
        >>> #     search.private(lambda config: 1 - abs(config["x"] - 0.5)),
        >>> #     param_space={"x": tune.uniform(0, 1)},
        >>> #     tune_config=tune.TuneConfig(search_alg=search, num_samples=200),
        >>> # ).fit()
    """

    @takes(_GPUCBSettings)
    def __init__(self, given: _GPUCBSettings) -> None:
        super().__init__(*of_rewards("gp-ucb", given), given)


@settings(eq=False)
class _TGPUCBSettings(RewardSearchSettings, TGPUCBSettings, AsPublished):
    """Keywords of :class:`LDPTGPUCBSearch`."""


class LDPTGPUCBSearch(Published, RewardSearch):
    """Truncates each privatised reward once, at a point that grows with ln t.

    The simplest of the three published algorithms, faithful to the paper.
    Source: Zhou and Tan, *Local Differential Privacy for Bayesian Optimization*, Algorithm 2;
    without privacy (``epsilon=math.inf``) TGP-UCB of
    Chowdhury and Gopalan 2019.

    {settings}

    Raises:
        ValueError: For every argument outside its range.
        VaultError: If the vault's database cannot be opened for writing.
    """

    _PUBLISHED = PUBLISHED

    @takes(_TGPUCBSettings)
    def __init__(self, given: _TGPUCBSettings) -> None:
        super().__init__(*of_rewards("tgp-ucb", given), given)


@settings(eq=False)
class _ATAGPUCBSettings(RewardSearchSettings, ATAGPUCBSettings, AsPublished):
    """Keywords of :class:`LDPATAGPUCBSearch`."""


class LDPATAGPUCBSearch(Published, RewardSearch):
    """Truncates all privatised rewards anew in the space of Nyström features.

    Faithful to the paper with ``dictionary="paper"``, and the slowest of the three.
    Source: Zhou and Tan, *Local Differential Privacy for Bayesian Optimization*, Algorithm 1;
    without privacy (``epsilon=math.inf``) ATA-GP-UCB of
    Chowdhury and Gopalan 2019.

    {settings}

    Raises:
        ValueError: For every argument outside its range.
        VaultError: If the vault's database cannot be opened for writing.
    """

    _PUBLISHED = PUBLISHED_NYSTROM

    @takes(_ATAGPUCBSettings)
    def __init__(self, given: _ATAGPUCBSettings) -> None:
        super().__init__(*of_rewards("ata-gp-ucb", given), given)


@settings(eq=False)
class _MoMAGPUCBSettings(RewardSearchSettings, MoMAGPUCBSettings, AsPublished):
    """Keywords of :class:`LDPMoMAGPUCBSearch`."""


class LDPMoMAGPUCBSearch(Published, RewardSearch):
    """Evaluates each point k times and takes the median of k estimates.

    The replays of a point are k trials of the same parameters, which parallel workers share.
    Source: Zhou and Tan, *Local Differential Privacy for Bayesian Optimization*, Algorithm 3;
    without privacy (``epsilon=math.inf``) MoMA-GP-UCB of the
    same paper.

    {settings}

    Raises:
        ValueError: For every argument outside its range.
        VaultError: If the vault's database cannot be opened for writing.
    """

    _PUBLISHED = PUBLISHED_NYSTROM

    @takes(_MoMAGPUCBSettings)
    def __init__(self, given: _MoMAGPUCBSettings) -> None:
        super().__init__(*of_rewards("moma-gp-ucb", given), given)
