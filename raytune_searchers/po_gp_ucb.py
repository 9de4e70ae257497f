"""PO-GP-UCB as a Ray Tune searcher: a trial is one row of a released table.

Nothing on this side is secret but what the table's manifest does not protect. The rows
themselves stay with the curator: with somebody else, in a file of requests and answers, or in an
actor of this cluster (:func:`raytune_searchers.answering`).
"""

from __future__ import annotations

import secrets
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from privbo_plugins.algorithms.po_gp_ucb import (
    POGPUCB,
    ReleasedTable,
    row_space,
)
from privbo_plugins.algorithms.po_gp_ucb.modeler import PUBLISHED, GivenRows, RowsSettings
from privbo_plugins.algorithms.po_gp_ucb.plan import TablePlan, make_table_plan
from privbo_plugins.algorithms.protocols import Evaluation
from privbo_plugins.plots import Report, RowHistory
from privbo_plugins.privacy.guarantee import OutsourcedGuarantee
from privbo_plugins.privacy.source import NoiseSource
from privbo_plugins.privacy.words import WORDS
from privbo_plugins.reports import row_history, rows_report
from privbo_plugins.sessions.scheduler import FailureCounts, finite
from privbo_plugins.settings import Published, evolve, integer, named, setting, settings, takes
from privbo_plugins.shown import altered, as_float
from privbo_plugins.status import status
from raytune_searchers._audit import Row, stored_in
from raytune_searchers._run import warn_unprotected
from raytune_searchers._search import TuneSearch, filled
from raytune_searchers._settings import SearchSettings, TuneSettings
from raytune_searchers._space import TuneSpace, domains_of

Array = NDArray[np.float64]

_SEEN_BESIDE = (
    "results hold values under other names than the search's metric, or in the place of a config"
)


class _Rows(GivenRows):
    """Released rows as a search space; a file is pickled as its path and manifest, else whole.

    Args:
        table: A released table, the path of its file, or a matrix of shape (n, r).
        settings: Of the model.
        parameter: Under which name a trial's config holds its row.

    Raises:
        ValueError: If the table is none of them, or the name none.
        FileNotFoundError: If there is no such file.
    """

    def __init__(
        self,
        table: ReleasedTable | ArrayLike | str | Path,
        settings: dict[str, Any],
        parameter: Any,
    ) -> None:
        if not isinstance(parameter, str) or not parameter or "/" in parameter:
            raise ValueError(f"parameter must be a name without '/', got {parameter!r}.")
        super().__init__(table, settings)
        self.parameter = parameter
        self.space = TuneSpace(row_space(self.n, parameter), {})

    def row(self, x: Array) -> int:
        """The row at a point of shape (1,)."""
        return int(self.space.suggestion(x)[self.parameter])

    def point(self, row: int) -> Array:
        """The point of a row, shape (1,)."""
        return self.space.space.encode({self.parameter: row})

    def check_points(self, points: Sequence[Mapping[str, Any]], *, repeats: bool) -> None:
        """Raises ValueError if a listed point is no row, or is listed twice without repeats."""
        listed = [self.row(self.space.checked_point(point)) for point in points]
        for row, point in zip(listed, points, strict=True):
            if point[self.parameter] != row:
                raise ValueError(
                    f"points_to_evaluate gives {self.parameter}={point[self.parameter]!r}, "
                    "which is no row."
                )
        if len(set(listed)) < len(listed) and not repeats:
            raise ValueError("points_to_evaluate asks for a row twice, and repeats=False.")

    def check_space(self, config: Mapping[str, Any]) -> None:
        """Raises ValueError if a Tuner's ``param_space`` holds other domains than the rows."""
        name, dims = self.parameter, domains_of(config)
        rule = (
            f"this search asks for rows of its table: leave {name!r} out of param_space, or put "
            f"tune.randint(0, {self.n}) there"
        )
        others = sorted(set(dims) - {name})
        if others:
            raise ValueError(
                f"param_space holds a domain for {', '.join(others)}, but {rule}. It may hold "
                "constants besides."
            )
        if name in config and dims.get(name) != self.space.space[name]:
            raise ValueError(f"param_space holds something else for {name!r}, but {rule}.")


@settings(eq=False)
class _Settings(TuneSettings, RowsSettings):
    """Keywords of :class:`POGPUCBSearch`."""

    Z: ReleasedTable | ArrayLike | str | Path = setting(
        "What the curator released, n rows: a "
        ":class:`~privbo_plugins.algorithms.po_gp_ucb.ReleasedTable`, the path of its file "
        "(``.npz`` or ``.parquet``), or a bare matrix of shape (n, r), of which nothing is "
        "claimed. A path is pickled as such, with the manifest, which knows the table's "
        "digest; anything else is written whole into every checkpoint, so give the path for "
        "large n.",
        kw_only=False,
    )
    points_to_evaluate: Sequence[Mapping[str, Any]] | None = setting(
        'Rows to ask for first, each ``{"row": i}``.',
        default=None,
    )
    seed: int | None = setting("Drives start-up rows and ties.", default=None)


class POGPUCBSearch(Published, TuneSearch):
    """Looks for the best row of a table whose rows it never sees, only their noisy images.

    Every trial gets the config ``{"row": i}``, with the constants of the Tuner's ``param_space``,
    asks the curator for that row's outcome and reports it under the metric. It should report
    nothing else: what a trainable knows of a row beyond its answer is not covered by anything,
    and Tune writes all of it into its results. Raising counts as reporting: exception texts land
    in ``error.txt``.

    Trials that run at the same time get different rows. A row whose trial fails, or reports no
    finite number, may be asked again twice, then it is left out. The search ends when every row
    was asked; give ``num_samples=`` to ask for fewer. No row is asked again that has answered,
    also after ``Tuner.restore`` of an experiment that was interrupted; of one that crashed, the
    rows of the last moments, which Tune had not written, may be. With ``repeats=True`` the search
    never ends by itself, parallel trials may share a row, and a row that keeps reporting no
    number is not left out for good.

    Make a new search for every experiment: a Tuner without ``param_space`` does not tell a
    search that another one starts, so trials of one that was interrupted would count as running.

    Source: Kharkovskii, Dai and Low, *Private Outsourced Bayesian Optimization*, ICML 2020,
    Algorithm 2; see :mod:`privbo_plugins.algorithms.po_gp_ucb.modeler`.

    {settings}

    Raises:
        ValueError: For every argument outside its range, and for a file that holds no table or
            one that was changed after its release.
        FileNotFoundError: If there is no such file.

    Warns:
        PrivacyWarning: If nothing can be claimed for the rows.

    Example:
        >>> from privbo_plugins.sessions.rows import Curator
        >>> X = np.linspace(0.1, 0.9, 40)[:, None]
        >>> curator = Curator(
        ...     X, epsilon=8.0, delta=1e-6, bounds=[(0, 1)], neighbor_distance=0.05,
        ...     outcomes=lambda row: -abs(float(X[row, 0]) - 0.5),
        ... )
        >>> search = POGPUCBSearch(curator.release(), metric="answer", mode="max", seed=1)
        >>> for trial in "abc":  # what tune.Tuner does
        ...     config = search.suggest(trial)
        ...     search.on_trial_complete(trial, {"answer": curator.evaluate(config["row"])})
        >>> sorted(search.recommend()) == ["row"]
        True
        >>> guarantee = search.guarantee()
        >>> guarantee.protected, guarantee.epsilon, guarantee.n_answers
        (True, 8.0, 3)
        >>> # answers = answering(make_curator)  # a function that reads the rows where it runs
        >>> # tune.Tuner(
        >>> #     lambda config: {"answer": answers(config["row"])},
        >>> #     tune_config=tune.TuneConfig(search_alg=search, num_samples=50),
        >>> # ).fit()
    """

    _OF_THIS_PROCESS = "_model"
    _PUBLISHED = PUBLISHED
    _SEE_WHY = "Ray shows how in error.txt of each."

    @takes(_Settings)
    def __init__(self, given: _Settings) -> None:
        seed = secrets.randbits(32) if given.seed is None else int(given.seed)
        super().__init__(SearchSettings(**named(evolve(given, seed=seed), TuneSettings)))
        self._rows = _Rows(given.Z, given.of_the_model(), given.parameter)
        self._repeats = bool(given.repeats)
        self._space: TuneSpace = self._rows.space
        self._told: list[tuple[int, float]] = []
        self._learnt: set[str] = set()
        self._lost: FailureCounts[int] = FailureCounts()
        self._asked = 0
        self._beside = False
        self._rows.check_points(self._points, repeats=self._repeats)
        warn_unprotected(self._rows.claim().reasons)

    # State ----------------------------------------------------------------------------------

    def _attach(self, *, may_begin: bool = False, noise: NoiseSource | None = None) -> None:
        super()._attach(may_begin=may_begin, noise=noise)
        self._model: POGPUCB | None = None

    def _take_up(self, path: Path) -> None:
        """Reads a saved search, and the table's file.

        Raises:
            ValueError: If the file holds another table than it did.
            FileNotFoundError: If it is gone.
        """
        super()._take_up(path)
        _ = self._rows.config

    def _learned(self) -> POGPUCB:
        """The algorithm after everything that trials have shown."""
        if self._model is None:
            self._model = POGPUCB(
                self._rows.config,
                self._space.space,
                maximize=self._mode == "max",
                seed=int(self._seed or 0),
            )
            for row, value in self._told:
                self._model.tell(Evaluation(self._rows.point(row)), value)
        return self._model

    # Tune's hooks ---------------------------------------------------------------------------

    def set_search_properties(
        self, metric: str | None, mode: str | None, config: dict[str, Any], **spec: Any
    ) -> bool:
        """Takes what the Tuner knows: metric, mode, and constants for the trials' configs.

        Raises:
            ValueError: If the Tuner's ``param_space`` holds other domains than the rows, or the
                table's file holds another table than it did.
            FileNotFoundError: If the file is gone.
        """
        self._rows.check_space(config)
        _ = self._rows.config
        self._model = None  # the mode may be another
        return super().set_search_properties(metric, mode, config, **spec)

    def _ready(self) -> TuneSpace:
        """The space, once metric and mode are known.

        Raises:
            RuntimeError: If they are not.
        """
        if self._metric is None or self._mode is None:
            raise RuntimeError(
                f"{type(self).__name__} needs metric= and mode=, got metric={self._metric!r} and "
                f"mode={self._mode!r}. Give them to the search: Tune hands TuneConfig's on only "
                "where the Tuner has a param_space."
            )
        return self._space

    def _next(self, trial_id: str, space: TuneSpace) -> tuple[str, Array | None]:  # noqa: ARG002
        left_out = self._lost.given_up()
        done = {row for row, _ in self._told} | left_out
        out = {trial: self._rows.row(x) for trial, x in self._live.items()}
        taken = set() if self._repeats else done | set(out.values())
        while self._points:
            x = space.checked_point(self._points.pop(0))
            if self._rows.row(x) not in taken:
                return "ask", x
        if len(taken) == self._rows.n:
            return self._forgotten(out, done)
        pending = [Evaluation(x) for x in self._live.values()]
        pending += [Evaluation(self._rows.point(row)) for row in sorted(left_out)]
        evaluation = self._learned().ask(self._asked, pending)
        self._asked += 1
        return "ask", None if evaluation is None else evaluation.x

    def _forgotten(self, out: Mapping[str, int], done: set[int]) -> tuple[str, Array | None]:
        """At the end: a row of a trial that a restore may have dropped, if there is one."""
        for trial, row in out.items():
            if trial not in self._here and row not in done:
                return "ask", self._live.pop(trial)
        return "finished", None

    def _look(self, trial_id: str, row: Row) -> None:
        self._note_beside(trial_id, row, self._configs(trial_id))

    def _complete(self, trial_id: str, x: Array | None, result: Row, error: bool) -> bool:
        self._note_beside(trial_id, result)
        row = self._found(result) if x is None else self._rows.row(x)
        value = None if error else finite(as_float(result.get(str(self._metric))))
        if row is None or trial_id in self._learnt:
            return value is not None
        if value is not None:
            self._learnt.add(trial_id)
            self._tell(row, value)
        elif x is not None:
            self._lost.add(row, trial_id)
        return value is not None

    @property
    def _parameters(self) -> set[str]:
        return {*self._param_space, self._rows.parameter}

    def _note_beside(self, trial: str, result: Row, given: Sequence[Row] = ()) -> None:
        shown = self._read(trial, result)
        self._beside |= bool(shown.extras) or altered(shown.config, given)

    def _found(self, result: Mapping[str, Any]) -> int | None:
        """The row of a trial that this search did not suggest: one that Tune made anew."""
        row: Any = result.get(f"config/{self._rows.parameter}")
        return int(row) if integer(0).holds(row) and row < self._rows.n else None

    def _tell(self, row: int, value: float) -> None:
        """Learns an answer; a second one of the same row would be the same noise again."""
        if not self._repeats and any(row == known for known, _ in self._told):
            return
        self._told.append((row, value))
        if self._model is not None:
            self._model.tell(Evaluation(self._rows.point(row)), value)

    # What the user reads --------------------------------------------------------------------

    def recommend(self, param_space: Mapping[str, Any] | None = None) -> dict[str, Any]:
        """The answered row with the largest posterior mean (smallest, to minimise).

        Args:
            param_space: The Tuner's own, needed only where constants are objects (functions,
                classes): Tune hides them from searchers.

        Returns:
            A config as a trial gets it: ``{"row": i}``, and the constants if there are any.

        Raises:
            ValueError: If no trial has answered, or objects are hidden.
            RuntimeError: If the mode is not known.
        """
        if not self._told:
            raise ValueError("There is nothing to recommend yet: no row has an outcome.")
        own = self._param_space if param_space is None else param_space
        self._rows.check_space(own)
        values = self._ready().suggestion(self._learned().recommendation())
        return filled(own, values)

    def guarantee(self, results: Iterable[Any] = ()) -> OutsourcedGuarantee:
        """Claims what the table's manifest says of its rows.

        Args:
            results: The ``ResultGrid`` of ``Tuner.fit``: which rows have answered, and whether
                it holds more than answers; what passed through this search was seen on the way.

        Returns:
            The guarantee; it says NOT PROTECTED of a bare matrix.
        """
        rows = {row for row, _ in self._told}
        for trial in stored_in(results):
            for shown in trial.rows:
                self._note_beside(trial.trial, shown, trial.given)
                row = self._found(shown)
                if row is not None and finite(as_float(shown.get(str(self._metric)))) is not None:
                    rows.add(row)
        made = self._rows.claim(len(rows))
        notes = (*made.notes, *((_SEEN_BESIDE,) if self._beside else ()))
        limits = (*made.not_covered, WORDS["rows_on_ray"]["conditions"]["beside"])
        return replace(made, not_covered=limits, notes=notes, where="Ray Tune")

    def history(self) -> RowHistory:
        """Answers that trials have reported, and the model's view of their rows."""
        return row_history(
            self._told,
            maximize=self._mode == "max",
            answer_variance=self._rows.config.answer_variance,
            posterior=self._learned().posterior,
        )

    def plan(self) -> TablePlan:
        """Says what the released table costs each row, and how well it keeps rows apart.

        Warns:
            UtilityWarning: If the noise is likely to drown the rows.
        """
        return make_table_plan(self._rows).presented()

    def status(self) -> dict[str, Any]:
        """Tells where the run stands, JSON-ready: see :func:`privbo_plugins.status.status`."""
        answered = len(self._told)
        return status(self.guarantee(), answered, recommendation=answered > 0)

    def _page(self, results: Iterable[Any]) -> Report:
        guarantee, history = self.guarantee(results), self.history()
        manifest = self._rows.manifest
        return rows_report(
            "Private tuning report",
            guarantee,
            history,
            None if manifest is None else manifest.to_dict(),
            self.recommend() if history.answers else None,
        )
