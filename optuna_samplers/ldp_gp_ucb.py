"""GP-UCB on privatised or heavy-tailed rewards as Optuna samplers."""

from __future__ import annotations

from optuna_samplers._rewards import RewardSampler
from optuna_samplers._settings import RewardRunSettings
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


@settings(eq=False)
class _GPUCBSettings(RewardRunSettings, GPUCBSettings, RewardPrivacy):
    """Keywords of :class:`LDPGPUCBSampler`."""


class LDPGPUCBSampler(RewardSampler):
    """Learns from one privatised reward per trial; the default of this family.

    Each trial is one user's reward, privatised in the process that evaluates it. The sampler
    knows the mechanism's variance and uses it. See :class:`LDPTGPUCBSampler` and its siblings for
    the published algorithms.

    {settings}

    Raises:
        ValueError: For every argument outside its range.

    Example:
        >>> import optuna
        >>> optuna.logging.set_verbosity(optuna.logging.ERROR)
        >>> sampler = LDPGPUCBSampler(1.0, value_range=(0, 1), seed=0)
        >>> study = optuna.create_study(direction="maximize", sampler=sampler)
        >>> reward = lambda trial: 1 - abs(trial.suggest_float("x", 0, 1) - 0.5)
        >>> study.optimize(sampler.private(reward), n_trials=5)
        >>> sampler.guarantee(study).protected
        True
    """

    @takes(_GPUCBSettings)
    def __init__(self, given: _GPUCBSettings) -> None:
        super().__init__(*of_rewards("gp-ucb", given), given)


@settings(eq=False)
class _TGPUCBSettings(RewardRunSettings, TGPUCBSettings, AsPublished):
    """Keywords of :class:`LDPTGPUCBSampler`."""


class LDPTGPUCBSampler(Published, RewardSampler):
    """Truncates each privatised reward once, at a point that grows with ln t.

    The simplest of the three published algorithms, faithful to the paper.
    Source: Zhou and Tan, *Local Differential Privacy for Bayesian Optimization*, Algorithm 2;
    without privacy (``epsilon=math.inf``) TGP-UCB of
    Chowdhury and Gopalan 2019.

    {settings}

    Raises:
        ValueError: For every argument outside its range.
    """

    _PUBLISHED = PUBLISHED

    @takes(_TGPUCBSettings)
    def __init__(self, given: _TGPUCBSettings) -> None:
        super().__init__(*of_rewards("tgp-ucb", given), given)


@settings(eq=False)
class _ATAGPUCBSettings(RewardRunSettings, ATAGPUCBSettings, AsPublished):
    """Keywords of :class:`LDPATAGPUCBSampler`."""


class LDPATAGPUCBSampler(Published, RewardSampler):
    """Truncates all privatised rewards anew in the space of Nyström features.

    Faithful to the paper with ``dictionary="paper"``, and the slowest of the three.
    Source: Zhou and Tan, *Local Differential Privacy for Bayesian Optimization*, Algorithm 1;
    without privacy (``epsilon=math.inf``) ATA-GP-UCB of
    Chowdhury and Gopalan 2019.

    {settings}

    Raises:
        ValueError: For every argument outside its range.
    """

    _PUBLISHED = PUBLISHED_NYSTROM

    @takes(_ATAGPUCBSettings)
    def __init__(self, given: _ATAGPUCBSettings) -> None:
        super().__init__(*of_rewards("ata-gp-ucb", given), given)


@settings(eq=False)
class _MoMAGPUCBSettings(RewardRunSettings, MoMAGPUCBSettings, AsPublished):
    """Keywords of :class:`LDPMoMAGPUCBSampler`."""


class LDPMoMAGPUCBSampler(Published, RewardSampler):
    """Evaluates each point k times and takes the median of k estimates.

    The replays of a point are k trials of the same parameters, which parallel workers share.
    Source: Zhou and Tan, *Local Differential Privacy for Bayesian Optimization*, Algorithm 3;
    without privacy (``epsilon=math.inf``) MoMA-GP-UCB of the
    same paper.

    {settings}

    Raises:
        ValueError: For every argument outside its range.
    """

    _PUBLISHED = PUBLISHED_NYSTROM

    @takes(_MoMAGPUCBSettings)
    def __init__(self, given: _MoMAGPUCBSettings) -> None:
        super().__init__(*of_rewards("moma-gp-ucb", given), given)
