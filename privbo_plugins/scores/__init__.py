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

from privbo_plugins.scores.registry import NEAR as NEAR
from privbo_plugins.scores.registry import SCORES as SCORES
from privbo_plugins.scores.registry import accuracy as accuracy
from privbo_plugins.scores.registry import balanced_accuracy as balanced_accuracy
from privbo_plugins.scores.registry import cohen_kappa as cohen_kappa
from privbo_plugins.scores.registry import cost as cost
from privbo_plugins.scores.registry import d2_absolute_error_score as d2_absolute_error_score
from privbo_plugins.scores.registry import d2_pinball_score as d2_pinball_score
from privbo_plugins.scores.registry import (
    demographic_parity_difference as demographic_parity_difference,
)
from privbo_plugins.scores.registry import (
    equal_opportunity_difference as equal_opportunity_difference,
)
from privbo_plugins.scores.registry import expected_calibration_error as expected_calibration_error
from privbo_plugins.scores.registry import explained_variance as explained_variance
from privbo_plugins.scores.registry import f1 as f1
from privbo_plugins.scores.registry import f1_macro as f1_macro
from privbo_plugins.scores.registry import f_beta as f_beta
from privbo_plugins.scores.registry import matthews_corrcoef as matthews_corrcoef
from privbo_plugins.scores.registry import named as named
from privbo_plugins.scores.registry import neg_brier_score as neg_brier_score
from privbo_plugins.scores.registry import neg_log_loss as neg_log_loss
from privbo_plugins.scores.registry import neg_mean_absolute_error as neg_mean_absolute_error
from privbo_plugins.scores.registry import (
    neg_root_mean_squared_error as neg_root_mean_squared_error,
)
from privbo_plugins.scores.registry import precision as precision
from privbo_plugins.scores.registry import precision_macro as precision_macro
from privbo_plugins.scores.registry import r2 as r2
from privbo_plugins.scores.registry import recall as recall
from privbo_plugins.scores.registry import recall_macro as recall_macro
from privbo_plugins.scores.registry import roc_auc as roc_auc
from privbo_plugins.scores.score import Estimate as Estimate
from privbo_plugins.scores.score import Score as Score
from privbo_plugins.scores.score import ratio as ratio
from privbo_plugins.scores.statistics import Cells as Cells
from privbo_plugins.scores.statistics import PerRecord as PerRecord
from privbo_plugins.scores.statistics import Predictions as Predictions
from privbo_plugins.scores.statistics import Statistic as Statistic
from privbo_plugins.scores.statistics import predictions as predictions
