"""Settings that samplers have because they run in Optuna."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from optuna.distributions import BaseDistribution

from privbo_plugins.privacy.settings import NoiseSettings, RecordSettings, UserSettings
from privbo_plugins.privacy.source import NoiseSource
from privbo_plugins.settings import WholeNumber, again, setting, settings


@settings(eq=False)
class SpaceSettings:
    """What every sampler has that tunes a space."""

    search_space: Mapping[str, BaseDistribution] | None = setting(
        "Optuna distributions by name, if known beforehand; without it the first trial is a "
        "random draw.",
        default=None,
    )
    seed: WholeNumber | None = setting("Drives candidates and draws, never noise.", default=None)


@settings(eq=False)
class RunSettings(SpaceSettings):
    """What every sampler has that keeps a ledger."""

    vault: str | Path | None = setting(
        "None for memory; a path such as ``private.db``, or ``postgresql://...``, for several "
        "processes and for resuming.",
        default=None,
    )
    noise: NoiseSource | None = again(NoiseSettings, "noise", default=None)


@settings(eq=False)
class LossRunSettings(RunSettings, RecordSettings):
    """What every sampler has that tunes on per-record losses."""


@settings(eq=False)
class RewardRunSettings(RunSettings, UserSettings):
    """What every sampler has that learns from privatised rewards."""

    vault: str | Path | None = setting(
        "Where users' evaluations are counted: None for what this sampler wraps alone, or a "
        "path or database URL.",
        default=None,
    )
