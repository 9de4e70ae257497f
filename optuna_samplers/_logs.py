"""What is logged, through Optuna's logger and at its levels, and what Optuna must not log.

An objective that was not wrapped by ``sampler.private`` may return the vector of losses itself.
Optuna fails such a trial and logs what was returned, whole and twice. It asks the sampler first
(``after_trial``), in the same thread: from then until the next trial begins, its messages about
this trial pass here, and lose what they quote.
"""

from __future__ import annotations

import logging
import threading

import optuna

logger = optuna.logging.get_logger("optuna.privbo")
"""Ours; its lines look like Optuna's, and its verbosity is Optuna's."""

_LOGGER = "optuna.study._optimize"
_BECAUSE = "because of the following error: "
_QUOTING = ("The value ", "The number of the values ")
"""How the texts begin that Optuna writes of values it cannot store."""

_WITHHELD = (
    "the objective returned something that Optuna cannot store as one number; what it was is not "
    "shown. Wrap the objective: study.optimize(sampler.private(objective))."
)

_ending = threading.local()


class _Withholding(logging.Filter):
    """Takes what was returned out of messages about the trial that ends in this thread."""

    def filter(self, record: logging.LogRecord) -> bool:
        """Checks whether the message is logged at all; the text may become another."""
        number, text = getattr(_ending, "number", None), str(record.msg)
        if number is None or not text.startswith(f"Trial {number} failed with "):
            return True
        if text.startswith(f"Trial {number} failed with value"):
            return False
        before, because, why = text.partition(_BECAUSE)
        if why.startswith(_QUOTING):
            record.msg = f"{before}{because}{_WITHHELD}"
        return True


def withhold(number: int) -> None:
    """Keeps what a failed trial returned out of Optuna's log, in this thread.

    Args:
        number: The trial's.
    """
    logger = logging.getLogger(_LOGGER)
    if not any(isinstance(known, _Withholding) for known in logger.filters):
        logger.addFilter(_Withholding())
    _ending.number = number


def begin() -> None:
    """Another trial begins in this thread: what is logged of earlier ones is logged as it is."""
    _ending.number = None
