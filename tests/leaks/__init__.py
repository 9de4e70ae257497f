"""Nothing private in any byte that any system leaves on any host: one table, system by sink.

``tests/systems.py`` runs the systems on secrets, ``hostile`` is the zoo of what goes wrong inside
an objective, ``evidence`` gathers what a run leaves by sink, ``scanner`` looks for the secrets.
Every sink has a control: a careless run must be found there.
"""

from tests.leaks.scanner import (
    Scanner,
    exception_leaks,
    frame_bytes,
    number_forms,
    pair_forms,
    text_forms,
)

__all__ = [
    "Scanner",
    "exception_leaks",
    "frame_bytes",
    "number_forms",
    "pair_forms",
    "text_forms",
]
