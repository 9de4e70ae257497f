"""Scores that are no mean of one loss: F1, AUC, R² and others, from means that a trial releases.

An objective returns :func:`predictions`; a run with ``scores=`` releases bounded means of them,
and each score is a public function of these::

    from optuna_samplers import private_objective
    from privbo_plugins import scores

    def objective(trial):
        ...
        return scores.predictions(
            y, predicted=model.predict(X), probabilities=model.predict_proba(X),
            classes=model.classes_,
        )

    private = private_objective(objective, scores=["f1", "roc_auc"], mu=1, n_trials=30)
"""

from privbo_plugins.scores.registry import (
    NEAR,
    SCORES,
    accuracy,
    balanced_accuracy,
    cohen_kappa,
    cost,
    d2_absolute_error_score,
    d2_pinball_score,
    demographic_parity_difference,
    equal_opportunity_difference,
    expected_calibration_error,
    explained_variance,
    f1,
    f1_macro,
    f_beta,
    matthews_corrcoef,
    named,
    neg_brier_score,
    neg_log_loss,
    neg_mean_absolute_error,
    neg_root_mean_squared_error,
    precision,
    precision_macro,
    r2,
    recall,
    recall_macro,
    roc_auc,
)
from privbo_plugins.scores.score import Estimate, Score, ratio
from privbo_plugins.scores.statistics import (
    Cells,
    PerRecord,
    Predictions,
    Statistic,
    predictions,
)

__all__ = [
    "NEAR",
    "SCORES",
    "Cells",
    "Estimate",
    "PerRecord",
    "Predictions",
    "Score",
    "Statistic",
    "accuracy",
    "balanced_accuracy",
    "cohen_kappa",
    "cost",
    "d2_absolute_error_score",
    "d2_pinball_score",
    "demographic_parity_difference",
    "equal_opportunity_difference",
    "expected_calibration_error",
    "explained_variance",
    "f1",
    "f1_macro",
    "f_beta",
    "matthews_corrcoef",
    "named",
    "neg_brier_score",
    "neg_log_loss",
    "neg_mean_absolute_error",
    "neg_root_mean_squared_error",
    "precision",
    "precision_macro",
    "predictions",
    "r2",
    "ratio",
    "recall",
    "recall_macro",
    "roc_auc",
]
