"""How secrets are made, planted and looked for, in any byte that a system leaves on a host.

``tests/contracts/test_leaks_*.py`` hold the tests: one table, system by sink. ``tests/systems.py``
runs the systems on secrets, ``hostile`` is the zoo of what goes wrong inside an objective,
``evidence`` gathers what a run leaves by sink, ``scanner`` looks for the secrets. Every sink has a
control: a careless run must be found there.
"""

from tests.leaks.scanner import (
    Scanner,
    exception_leaks,
    frame_bytes,
    number_forms,
    pair_forms,
    text_forms,
)

__all__ = ["Scanner", "exception_leaks", "frame_bytes", "number_forms", "pair_forms", "text_forms"]
