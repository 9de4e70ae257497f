"""Lifecycle of every search that stands before a host."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path
from typing import Any, ClassVar

import ray

from privbo_plugins.errors import ForeignValueError, PrivacyError, VaultError
from privbo_plugins.privacy.source import NoiseSource
from raytune_searchers._audit import Row
from raytune_searchers._run import ComparedRun
from raytune_searchers._search import TuneSearch
from raytune_searchers._settings import SearchSettings


class HostedSearch(ComparedRun, TuneSearch):
    """Base of the searchers that keep a ledger in a host and compare every result with it.

    Args:
        given: What every searcher has that keeps a ledger.

    Raises:
        ValueError: For an argument outside its range, or a vault URL with a password.
        VaultError: If the vault's database cannot be opened.
    """

    _OF_THIS_PROCESS: ClassVar[tuple[str, ...]] = (
        *TuneSearch._OF_THIS_PROCESS,
        *ComparedRun._OF_THIS_PROCESS,
        "_suggesting",
        "_reconcile",
    )

    _SEE_WHY: ClassVar[str] = (
        "Ray shows how in error.txt of each; what a private trainable raises is withheld there: "
        "call the function itself with one config to see it."
    )

    def __init__(self, given: SearchSettings) -> None:
        TuneSearch.__init__(self, given, search_space=given.search_space)
        self._start(given.vault, given.run_name, given.noise)

    # State ----------------------------------------------------------------------------------

    def _attach(self, *, may_begin: bool = False, noise: NoiseSource | None = None) -> None:
        TuneSearch._attach(self)
        super()._attach(may_begin=may_begin, noise=noise)
        self._suggesting = self._reconcile = False

    def save(self, checkpoint_path: str) -> None:
        """Writes the public state; Tune calls it now and then.

        Raises:
            VaultError: If the vault was in memory and is gone, while trials are out: Tune asks for
                no suggestion any more once all its trials have begun.
        """
        with suppress(VaultError, PrivacyError):  # the last one stays, and says so when it is read
            self._keep(Path(checkpoint_path).parent)
        super().save(checkpoint_path)
        if self._here and self._suggesting:
            self._check_lives()

    def restore(self, checkpoint_path: str) -> None:
        """Reads what :meth:`save` wrote; what the vault knows beyond it always wins."""
        super().restore(checkpoint_path)
        self._kept = Path(checkpoint_path).parent, 0
        if self._reading:
            return
        with suppress(VaultError):  # a later call says that it is gone
            self._begin()

    def _begin(self) -> None:
        """Has the host begin: trials that a restored experiment resumes ask for nothing."""
        known = None not in (self._metric, self._mode, self._space)
        if known and self._has_host and ray.is_initialized():
            self._open()

    def _begin_fit(self) -> None:
        super()._begin_fit()
        self._channel, self._suggesting = None, False

    # Tune's hooks ---------------------------------------------------------------------------

    def suggest(self, trial_id: str) -> dict[str, Any] | str | None:
        """The next configuration, ``FINISHED``, or None while a batch or the limit is out.

        Raises:
            RuntimeError: If metric, mode or search space are not known.
            VaultError: If the vault is gone.
        """
        if self._broken is not None:
            raise VaultError(self._broken)
        if not self._suggesting:  # once a fit, and never by those who only read
            self._suggesting = self._reconcile = True
        elif self._here:
            self._check_lives()
        return super().suggest(trial_id)

    def on_trial_result(self, trial_id: str, result: dict[str, Any]) -> None:
        """Compares a report: what was neither released nor declared unprotects the run."""
        super().on_trial_result(trial_id, result)
        self._look(trial_id, result)

    def on_trial_complete(
        self, trial_id: str, result: dict[str, Any] | None = None, error: bool = False
    ) -> None:
        """Looks at what is shown of a trial, and gives its slot back if it was never told."""
        self._look_at_end(super().on_trial_complete, trial_id, dict(result or {}), error)

    @property
    def _parameters(self) -> set[str]:
        return set(self._param_space)

    def _configs(self, trial_id: str) -> list[Row]:
        return TuneSearch._configs(self, trial_id)  # which knows what it has suggested

    def add_evaluated_point(self, *_args: Any, **_kwargs: Any) -> None:
        """Refused: a value from elsewhere is not a release of this run."""
        raise ForeignValueError(
            f"{type(self).__name__} learns from its own releases only; a value from elsewhere has "
            "no noise and no charge. Have the point evaluated: points_to_evaluate=[...]."
        )
