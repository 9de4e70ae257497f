"""PO-GP-UCB as an Optuna sampler: a study asks for rows of a released table, a curator answers.

The sampler holds the released table alone. Trial values are the curator's answers as they are:
there is no objective to wrap, because the curator randomises the outcomes that must be hidden.
The two sides may be one process, or two that share nothing but the study's storage: then the
modeler asks, and the curator calls :func:`answer_trials` now and then.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

from numpy.typing import ArrayLike
from optuna.distributions import BaseDistribution, IntDistribution
from optuna.exceptions import UpdateFinishedTrialError
from optuna.study import Study, StudyDirection
from optuna.trial import FrozenTrial, TrialState

from optuna_samplers import _logs
from optuna_samplers._audit import attributes_note
from optuna_samplers._sampler import Wanted
from optuna_samplers._scheduler import Mark, ScheduledSampler, state_of, value_of
from optuna_samplers._settings import SpaceSettings
from optuna_samplers._study import (
    completed,
    guard,
    refuse_multi_objective,
    show_guarantee,
    whole,
)
from privbo_plugins.algorithms.po_gp_ucb import (
    POGPUCB,
    ReleasedTable,
    row_space,
)
from privbo_plugins.algorithms.po_gp_ucb.modeler import PUBLISHED, GivenRows, RowsSettings
from privbo_plugins.algorithms.po_gp_ucb.plan import TablePlan, make_table_plan
from privbo_plugins.algorithms.protocols import Evaluation
from privbo_plugins.errors import ObjectiveFailedError, PrivacyError, SpaceChangedError
from privbo_plugins.plots import Report, RowHistory
from privbo_plugins.privacy.guarantee import OutsourcedGuarantee, PrivacyGuarantee
from privbo_plugins.reports import row_history, rows_report
from privbo_plugins.sessions.scheduler import Attempt, FailureCounts
from privbo_plugins.settings import Published, setting, settings, takes
from privbo_plugins.status import status

if TYPE_CHECKING:
    from privbo_plugins.sessions.rows import Curator

ROW_ATTR = "privbo:row"
"""System attribute of a trial: the row that it is about to ask for, while workers compare."""

UNSEEN = "that answers in this study were randomised by the curator as stated is not checked here"
"""What is noted where the manifest claims something of answers too."""

_TURNS = 8
"""How often a worker takes another row because a second one took the same at the same moment."""


@settings(eq=False)
class _Settings(RowsSettings):
    """Keywords of :class:`POGPUCBSampler`."""

    Z: ReleasedTable | ArrayLike | str | Path = setting(
        "What the curator released, n rows: a "
        ":class:`~privbo_plugins.algorithms.po_gp_ucb.ReleasedTable`, the path of its file "
        "(``.npz`` or ``.parquet``), or a bare matrix of shape (n, r), of which nothing is "
        "claimed.",
        kw_only=False,
    )
    seed: int | None = setting(
        "Drives start-up rows, ties and other parameters, never noise.",
        default=None,
    )


class POGPUCBSampler(Published, ScheduledSampler):
    """GP-UCB over the rows of a table that a curator has released.

    The objective suggests one parameter that matters, the number of a row:
    ``trial.suggest_int("row", 0, n - 1)``. Other parameters are drawn at random and not tuned.
    Workers that share a study get different rows, threads and processes alike. A row whose trial
    fails, is pruned or has an infinite value may be asked again twice, then it is left out;
    ``study.enqueue_trial({"row": i})`` asks for it once more. Once every row has been asked for,
    the best one is asked for again and again.

    Source: Kharkovskii, Dai and Low, *Private Outsourced Bayesian Optimization*, ICML 2020,
    section 2; with a kernel that knows the noise in the rows.

    {settings}

    Raises:
        ValueError: For every argument outside its range, for ``noise_sd`` beside a manifest,
            and for a file that is no released table or was changed since its release.
        FileNotFoundError: If there is no such file.

    Warns:
        PrivacyWarning: Once a study, where the manifest claims nothing or there is none.

    Example:
        >>> import numpy as np, optuna
        >>> from privbo_plugins.sessions.rows import Curator
        >>> optuna.logging.set_verbosity(optuna.logging.ERROR)
        >>> X = np.random.default_rng(0).uniform(18, 90, size=(60, 1))
        >>> bounds, outcomes = [(18, 90)], -abs(X[:, 0] - 50)
        >>> curator = Curator(X, epsilon=4, delta=1e-6, bounds=bounds, outcomes=outcomes)
        >>> sampler = POGPUCBSampler(curator.release(), seed=0)
        >>> study = optuna.create_study(direction="maximize", sampler=sampler)
        >>> study.optimize(lambda t: curator.evaluate(t.suggest_int("row", 0, 59)), n_trials=5)
        >>> sampler.guarantee(study).protected
        True
        >>> list(sampler.recommend(study))
        ['row']
    """

    _PUBLISHED = PUBLISHED
    _OF_THIS_PROCESS = (*ScheduledSampler._OF_THIS_PROCESS, "_config")  # the table's file has it

    @takes(_Settings)
    def __init__(self, given: _Settings) -> None:
        self._parameter = given.parameter
        self._rows = GivenRows(given.Z, given.of_the_model())
        self._space = row_space(self._rows.n, self._parameter)
        self._distribution = IntDistribution(0, self._rows.n - 1)
        super().__init__(POGPUCB, self._rows.config, SpaceSettings(seed=given.seed))

    def __setstate__(self, state: dict[str, Any]) -> None:
        super().__setstate__(state)
        self._config = self._rows.config

    # Optuna's hooks ---------------------------------------------------------------------------

    def _admit(self, study: Study, trial: FrozenTrial) -> None:
        """Shows what may be claimed, and warns if it is nothing."""
        guarantee = self.guarantee(study)
        done = completed(study)
        if len(done) == 1 and self._parameter not in done[0].params:
            _logs.logger.warning(
                f"The first trial asked for no row, so nothing is learnt from it. {self._rule} "
                "Another name is given to the sampler as parameter=."
            )
        if guarantee.protected:
            return
        fix = (
            ""
            if self._rows.manifest
            else "Give the sampler the curator's released table, or its file."
        )
        self._state(study).warn("; ".join(guarantee.reasons), fix)

    def _relative(self, study: Study) -> dict[str, BaseDistribution]:
        """Nothing: :meth:`_draw` sees the range that the objective really uses."""
        return {}

    def _suggest(self, study: Study, trial: FrozenTrial, wanted: Wanted) -> dict[str, Any]:
        """Draws each parameter by itself."""
        return {name: self._draw(study, trial, name, dist) for name, dist in wanted.items()}

    def _draw(self, study: Study, trial: FrozenTrial, name: str, dist: BaseDistribution) -> Any:
        """The next row; a random draw for every other parameter."""
        if name != self._parameter:
            return super()._draw(study, trial, name, dist)
        if dist != self._distribution:
            raise SpaceChangedError(f"The objective suggests another range. {self._rule}")
        with self._lock:
            return self._next_row(study, trial)

    @property
    def _rule(self) -> str:
        n, name = self._config.n, self._parameter
        return (
            f"This table has {n} rows, numbered from 0: write trial.suggest_int({name!r}, 0, "
            f"{n - 1}), and use a new study for another table."
        )

    def _next_row(self, study: Study, trial: FrozenTrial) -> int:
        """A row that no other trial has, unless all have been asked.

        Workers write which row they take and read the others' afterwards. Of two that take the
        same at once, the one that writes later sees it, takes another row, and leaves
        as many choices to the others as there are with lower numbers.
        """
        avoided: list[Evaluation] = []
        for _ in range(_TURNS):
            trials = study.get_trials(deepcopy=False)
            model, out = self._synchronised(study, self._space, trial.number)
            model.seed = self._seed
            taken = [*out, *self._lost(trials), *avoided]
            row = self._row_at(model.ask(trial.number, taken))
            study._storage.set_trial_system_attr(trial._trial_id, ROW_ATTR, row)
            rivals = self._rivals(study, row, trial.number)
            if not rivals or row in {*self._told(trials), *map(self._row_at, taken)}:
                break  # in the latter case the model knows that it repeats a row
            avoided.append(self._evaluation(row))
            for _ in [number for number in rivals if number < trial.number]:
                next_choice = model.ask(trial.number, [*taken, *avoided])
                avoided.append(self._evaluation(self._row_at(next_choice)))
        return row

    # What trials say ----------------------------------------------------------------------------

    def _evaluation(self, row: int) -> Evaluation:
        return Evaluation(self._space.encode({self._parameter: row}))

    def _row_at(self, evaluation: Evaluation | None) -> int:
        if evaluation is None:
            raise RuntimeError("The model of a released table never waits.")
        return int(self._space.decode(evaluation.x)[self._parameter])

    def _row_of(self, trial: FrozenTrial) -> int | None:
        """The row that a trial asks for; None if it names none of this table."""
        if self._parameter not in trial.params:
            claim = trial.system_attrs.get(ROW_ATTR)
            return claim if trial.state == TrialState.RUNNING else None
        row = trial.params[self._parameter]
        fits = trial.distributions[self._parameter] == self._distribution
        return row if fits and 0 <= row < self._config.n else None

    def _rivals(self, study: Study, row: int, asking: int) -> list[int]:
        """Other trials that have asked for a row, or are about to."""
        trials = study.get_trials(deepcopy=False)
        return [t.number for t in trials if t.number != asking and self._row_of(t) == row]

    def _told(self, trials: Sequence[FrozenTrial]) -> set[int | None]:
        return {self._row_of(trial) for trial in trials if _answered(trial)}

    def _lost(self, trials: Sequence[FrozenTrial]) -> list[Evaluation]:
        """Rows whose trials ended without an answer, too often."""
        lost: FailureCounts[int] = FailureCounts()
        for trial in trials:
            row = self._row_of(trial)
            if row is not None and trial.state.is_finished() and not _answered(trial):
                lost.add(row, trial.number)
        return [self._evaluation(row) for row in sorted(lost.given_up() - self._told(trials))]

    def _attempt(self, trial: FrozenTrial, mark: Mark | None) -> Attempt:
        row = self._row_of(trial)
        if row is None and self._parameter in trial.params:
            if trial.state == TrialState.COMPLETE:
                raise SpaceChangedError(
                    f"Trial {trial.number} of this study names a row of another table. "
                    f"{self._rule}"
                )
        params = {} if row is None else {self._parameter: row}
        return Attempt(trial.number, params, state_of(trial), value_of(trial))

    # What the user reads ------------------------------------------------------------------------

    def recommend(self, study: Study) -> dict[str, int]:
        """The row told with the largest posterior mean: not the best noisy answer.

        Returns:
            The parameter's name and the row's number.

        Raises:
            ValueError: If no trial has completed, or the study has several objectives.
            SpaceChangedError: If a completed trial names a row of another table.
        """
        study = self._tunable(study)
        with self._lock:
            model, _ = self._synchronised(study, self._space, None)
            return {self._parameter: self._row_at(Evaluation(model.recommendation()))}

    def guarantee(self, study: Study) -> OutsourcedGuarantee:
        """Claims what the table's manifest does, after as many answers as trials have completed.

        It is shown in the study as well.

        Returns:
            The guarantee; ``protected`` is False, with reasons, for the published projection, for
            a table made with test noise and for a bare matrix.
        """
        study = whole(study)
        claim, manifest = self._rows.claim(len(completed(study))), self._rows.manifest
        randomised = manifest is not None and claim.outcomes is not None
        notes = (*claim.notes, *[UNSEEN] * randomised, *attributes_note(study))
        return show_guarantee(study, replace(claim, notes=notes))

    def history(self, study: Study) -> RowHistory:
        """Answers that the study shows, and the model's view of their rows.

        Raises:
            ValueError: If the study has several objectives.
            SpaceChangedError: If a completed trial names a row of another table.
        """
        study = self._tunable(study)
        with self._lock:
            model, _ = self._synchronised(study, self._space, None)
            attempts = self._attempts(study, study.get_trials(deepcopy=False))
            told = self._scheduler(study, self._space).values(attempts)
            answers = [(self._row_at(evaluation), value) for evaluation, value in told]
            return row_history(
                answers,
                maximize=study.direction == StudyDirection.MAXIMIZE,
                answer_variance=self._config.answer_variance,
                posterior=cast(POGPUCB, model).posterior,
            )

    def plan(self) -> TablePlan:
        """Tells what the released table costs each row, and how well it keeps rows apart.

        Warns:
            UtilityWarning: If the noise is likely to drown the rows.
        """
        return make_table_plan(self._rows).presented()

    def status(self, study: Study) -> dict[str, Any]:
        """Tells where the run stands, JSON-ready: see :func:`privbo_plugins.status.status`."""
        study = whole(study)
        answered = sum(map(_answered, completed(study)))
        return status(self.guarantee(study), answered, recommendation=answered > 0)

    def _values_are(self, study: Study, guarantee: PrivacyGuarantee) -> str:
        if not self._config.answer_variance:
            return "Each is the curator's answer for one row, as it came."
        return (
            "Each is the curator's randomised answer for one row. So the best value is the "
            "*luckiest* answer and looks better than it is; go by the recommendation."
        )

    def _page(self, study: Study) -> Report:
        manifest = self._rows.manifest
        told = None if manifest is None else manifest.to_dict()
        return self._reported(rows_report, study, manifest=told)


def _answered(trial: FrozenTrial) -> bool:
    return value_of(trial) is not None


# The curator's side -----------------------------------------------------------------------------


def answer_trials(study: Study, curator: Curator, *, parameter: str = "row") -> int:
    """Writes the outcomes that a study's running trials ask for; the curator's side.

    For a modeler and a curator that share nothing but the study's storage. The modeler asks
    (``trial = study.ask(); trial.suggest_int("row", 0, n - 1)``, this parameter last: a trial is
    over once it is answered) and waits; the curator calls this function now and then, with the
    study loaded under any sampler. Enqueued trials are answered once the modeler has asked for
    them.

    The trial of a row without an outcome, or whose outcome fails, ends as failed; nothing else is
    said. It does no harm to call this twice, or from two curators at once: answers stay as given.
    Two curators with privatised answers need one ``vault=``, or each draws its own noise.

    Args:
        study: The study, with one objective.
        curator: Holds the outcomes.
        parameter: Name of the parameter that numbers the rows.

    Returns:
        How many trials this call has ended, failed ones among them. Where SQLite let two curators
        answer one trial at the same moment, both count it.

    Raises:
        ValueError: If the study has several objectives, or the curator no outcomes.
        SpaceChangedError: If a trial numbers its rows in another way; none is answered then.
        VaultError: If the curator's vault refuses, was restored from an older backup, or is a
            copy of the one that has answered in this study; none is answered then.
    """
    refuse_multi_objective(study, "answer_trials")
    running = study.get_trials(deepcopy=False, states=(TrialState.RUNNING,))
    waiting = [trial for trial in running if parameter in trial.params]
    for trial in waiting:
        if trial.distributions[parameter] != IntDistribution(0, curator.n - 1):
            raise SpaceChangedError(
                f"Trial {trial.number} asks for {parameter!r} in another range than 0 to "
                f"{curator.n - 1}, the curator's rows. Nothing was answered."
            )
    if waiting:
        for run in curator.runs:  # the study remembers how far the vault came, before it answers
            guard(study, run)
    return sum(_answer(study, t.number, curator, t.params[parameter]) for t in waiting)


def _answer(study: Study, number: int, curator: Curator, row: int) -> bool:
    """Tells one trial; False if somebody else was quicker."""
    answer = _outcome(curator, row)
    try:
        study.tell(number, answer, TrialState.FAIL if answer is None else TrialState.COMPLETE)
    except (ValueError, UpdateFinishedTrialError):
        if not study.get_trials(deepcopy=False)[number].state.is_finished():
            raise
        return False
    return True


def _outcome(curator: Curator, row: int) -> float | None:
    """A row's outcome; None if it has none. What an outcome's function raised is dropped here."""
    if not 0 <= row < curator.n:  # an enqueued number, of which Optuna has warned
        return None
    try:
        return curator.evaluate(row)
    except (ObjectiveFailedError, PrivacyError):
        return None
