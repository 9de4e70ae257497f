"""Settings that searchers have because they run in Ray Tune."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from privbo_plugins.privacy.settings import NoiseSettings, UserSettings
from privbo_plugins.privacy.source import NoiseSource
from privbo_plugins.settings import Count, WholeNumber, again, setting, settings


@settings(eq=False)
class TuneSettings:
    """What every searcher has."""

    metric: str | None = setting(
        "Under which name trials report what is released; None takes ``TuneConfig``'s, "
        "which Tune hands on only if the Tuner has a ``param_space``.",
        default=None,
    )
    mode: str | None = setting(
        '"min" for losses and costs, "max" for scores and rewards; None takes ``TuneConfig``\'s.',
        default=None,
    )
    points_to_evaluate: Sequence[Mapping[str, Any]] | None = setting(
        "Configurations to evaluate first.", default=None
    )
    max_concurrent: Count | None = setting(
        "The most trials that may be pending at once; ``max_concurrent_trials`` of "
        "``TuneConfig`` and ``ConcurrencyLimiter`` set it too.",
        default=None,
    )
    seed: WholeNumber | None = setting("Drives candidates and draws, never noise.", default=None)


@settings(eq=False)
class SearchSettings(TuneSettings):
    """What every searcher has that keeps a ledger."""

    search_space: Mapping[str, Any] | None = setting(
        "Tune domains, nested or not; None takes the Tuner's ``param_space``.", default=None
    )
    vault: str | Path | None = setting(
        "None keeps the losses in the memory of an actor on the driver's machine, which "
        "ends with the driver. ``private.db`` (a file on the driver's machine), "
        "``postgresql://user@host/db`` or ``env:NAME`` survive it, for ``Tuner.restore``.",
        default=None,
    )
    run_name: str | None = setting(
        "Name of the run in the vault; None makes one. A search with the name of an earlier "
        "run goes on with it.",
        default=None,
    )
    noise: NoiseSource | None = again(NoiseSettings, "noise", default=None)


@settings(eq=False)
class TrainableSettings:
    """What a private trainable has for any searcher, beside its vault."""

    run_name: str | None = again(
        SearchSettings, "run_name", default=None,
        more="Needed to go on with a ledger after ``Tuner.restore`` in a new process.",
    )  # fmt: skip
    noise: NoiseSource | None = again(NoiseSettings, "noise", default=None)


@settings(eq=False)
class RewardSearchSettings(SearchSettings, UserSettings):
    """What every searcher has that learns from privatised rewards."""

    vault: str | Path | None = setting(
        "Where users' evaluations are counted: None for the memory of an actor on the "
        "driver's machine, which ends with the driver; ``private.db`` (a file on "
        "the driver's machine), ``postgresql://user@host/db`` or ``env:NAME`` survive it.",
        default=None,
    )
