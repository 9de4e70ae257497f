"""The keywords of a search: the algorithm's own, and what scikit-learn and hosts add."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from privbo_plugins.algorithms.dp_gibo.config import GIBOConfig
from privbo_plugins.algorithms.released_means import MeansConfig
from privbo_plugins.privacy.settings import RecordSettings
from privbo_plugins.settings import again, setting, settings
from privbo_plugins.store.vault import masked


class Shown(str):
    """A URL of which representations of an estimator print no password.

    Example:
        >>> Shown("postgresql://ann:secret@host/db")
        'postgresql://ann:***@host/db'
    """

    __slots__ = ()

    def __repr__(self) -> str:
        return repr(masked(str(self)))


@settings(eq=False, checked=False)
class PrivateSearchSettings(GIBOConfig):
    """All keywords; what they say is checked when ``fit`` begins, as in scikit-learn."""

    estimator: Any = setting("The estimator or Pipeline to tune; it is cloned.", kw_only=False)
    param_distributions: Mapping[str, Any] = setting(
        "By parameter (``step__param`` of a Pipeline): an Optuna distribution, "
        "``scipy.stats.uniform``, ``loguniform`` or ``randint``, or a list of choices. Public: "
        "names, ranges and choices are stored as they are (of objects their type).",
        kw_only=False,
    )
    loss: str | Callable[..., Any] | None = setting(
        "What is minimised, one number a validation record: zero_one, brier, bounded_log, log, "
        "squared, absolute, balanced (0-1 loss with the training records' class weights), "
        "``privbo_plugins.losses.pinball(q)``, or a function of (y_true, prediction). None is "
        "``scoring``, or zero_one for a classifier.",
        default=None,
    )
    scoring: Any = setting(
        "In place of ``loss``, scikit-learn's name of it: accuracy, neg_log_loss, "
        "neg_brier_score, neg_mean_absolute_error, neg_mean_squared_error. Or of a score that is "
        "no mean of losses (f1, balanced_accuracy, roc_auc, r2 with ``y_range``, ...), one of "
        "``privbo_plugins.scores``, or a list or dictionary of several: then "
        '``method`` is "released-means". With ``protect="all"`` any of scikit-learn\'s scores, or '
        "a function of (estimator, X, y).",
        default=None,
    )
    constraints: Mapping[str, float] | None = again(
        MeansConfig, "constraints", default=None, more="They need scores in ``scoring``."
    )
    feasible_with: float = again(MeansConfig, "feasible_with", default=0.9)
    final_score: Any = setting(
        "A score to release once more, of the model that is handed out, as ``final_score_``: one "
        "that ``scoring`` takes. ``final_share`` is kept for it.",
        default=None,
    )
    final_share: float | None = setting(
        "With ``final_score``: its share of the squared budget; None for a tenth.", default=None
    )
    response_method: str | None = setting(
        "The estimator's method whose result the loss takes; None for predict_proba with brier, "
        "bounded_log and log, and predict with others.",
        default=None,
    )
    y_range: tuple[float, float] | None = setting(
        "Public range (low, high) of the target, of which squared, absolute and pinball take "
        "``loss_bound`` and ``clipping_norm``.",
        default=None,
    )
    y_spread: float | None = setting(
        "With ``y_range``: how far a target typically lies from the middle of them, from public "
        "knowledge; None for a quarter of the range.",
        default=None,
    )
    valid_size: float | int = setting(
        "Share, or number, of the records that ``fit(X, y)`` holds out for validation. They are "
        "what is protected, and the more there are, the less noise is needed.",
        default=0.5,
    )
    protect: str = setting(
        '"validation": the records that are held out; or "all": every record is dealt into one of '
        "``n_blocks`` blocks, each trial fits and validates inside each of them, and a block's "
        "score is one entry of what is released. Caches (``memory=``) are off inside blocks.",
        default="validation",
    )
    n_blocks: int | None = setting(
        'With ``protect="all"``: number of blocks, at most half of the records; None for what '
        "their number, mu and the number of parameters ask for.",
        default=None,
    )
    cv: Any = setting(
        'With ``protect="all"``: folds, or a splitter, inside each block; None for one split by '
        "``valid_size``.",
        default=None,
    )
    random_state: int = setting(
        "Which records are held out: with the same number the same ones, whatever they hold. It "
        "must not change when a study is resumed.",
        default=0,
    )
    seed: int | None = setting("Drives candidates, never noise and never the split.", default=None)
    method: str = setting(
        '"dp-gibo", or "released-means": each trial\'s noisy mean, for any sampler.',
        default="dp-gibo",
    )
    sampler: Any = setting(
        "An Optuna sampler (on Ray a searcher of Tune's), which is told noisy means; it makes "
        '``method`` "released-means". None there for TPE (on Ray random search).',
        default=None,
    )
    backend: str = setting('What runs the trials: "optuna" or "ray".', default="optuna")
    storage: Any = setting(
        "Where the study is kept: Optuna's storage or its URL, None for memory; on Ray the folder "
        "of the experiments. It holds released values only.",
        default=None,
    )
    study_name: str | None = setting("Name of the study, on Ray of the experiment.", default=None)
    load_if_exists: bool = setting(
        "Go on with the study of this name; needs the ``vault`` that it began with.", default=False
    )
    vault: str | Path | None = setting(
        "Where losses wait for their release, and the ledger lies: None for memory, "
        "``private.db``, ``postgresql://...`` or ``env:NAME`` to resume a study.",
        default=None,
    )
    n_jobs: int | None = setting(
        "Trials at once: threads in Optuna, processes on Ray. None for 1, -1 for as many as there "
        'are cores (on Ray, in its cluster). With ``protect="all"`` in Optuna blocks at once, in '
        "processes.",
        default=None,
    )
    timeout: float | None = setting(
        "Seconds after which no further trial begins; what is released by then counts.",
        default=None,
    )
    refit: bool | str = setting(
        "Fit the recommended parameters on the training records, for ``best_estimator_``. Of "
        "several scores the name of the one that parameters are chosen by.",
        default=True,
    )
    error_score: str | float = setting(
        'What an estimator that cannot be fitted means: "raise", or the loss of every record '
        "(NaN for the worst).",
        default="raise",
    )
    verbose: int = setting("0 for silence, 1 for a bar, 2 for the host's own lines.", default=0)
    callbacks: Sequence[Any] | None = setting(
        "Optuna's, functions of (study, trial); on Ray ``ray.tune.Callback``.", default=None
    )
    mu: float = again(GIBOConfig, "mu", default=None)
    per_group: str = again(RecordSettings, "per_group", default="mean")
    group_bound: float | None = again(RecordSettings, "group_bound", default=None)
    unit: str | None = again(RecordSettings, "unit", default=None)
    n_trials: int | None = setting(
        "The most trials, for planning; None for the plan's own number. Needed by "
        '"released-means"; "dp-gibo" (``protect="all"``) needs 6 for one number, 13 for six.',
        default=None,
    )
    incumbent: str | Mapping[str, Any] | None = setting(  # type: ignore[assignment]
        "Parameters that you use today, evaluated first, and recommended unless the releases say "
        'that another point is better. "auto" takes those of the unfitted estimator if all lie in '
        "their ranges, else the middle and first choices, as None does. "
        "Public. A searcher of Tune's evaluates it if its points_to_evaluate names it.",
        default="auto",
    )
    n_iter: int | None = setting("Another name of ``n_trials``.", default=None)
    loss_bound: float | tuple[float, float] | None = setting(  # type: ignore[assignment]
        "Losses are clipped to [0, loss_bound], or (low, high), before they are released; None "
        "for what belongs to the loss.",
        default=None,
    )

    def __attrs_post_init__(self) -> None:
        """Checks nothing: ``set_params`` changes one at a time."""
