"""Threads that change where they seldom do."""

from __future__ import annotations

import contextlib
import random
import threading
import time


@contextlib.contextmanager
def taking_turns(package, chance=0.2, seconds=3e-4):
    """Lets other threads go on at lines of a package, in threads that are started meanwhile.

    Args:
        package: A folder of modules.
        chance: Of each line.
        seconds: How long a thread waits there.
    """

    def trace(frame, event, _arg):
        if f"/{package}/" not in frame.f_code.co_filename:
            return None
        if event == "line" and random.random() < chance:
            time.sleep(seconds)
        return trace

    before = threading.gettrace()
    threading.settrace(trace)
    try:
        yield
    finally:
        threading.settrace(before)
