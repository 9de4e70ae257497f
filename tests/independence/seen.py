"""Everything that a run shows to anybody, and how two runs are compared."""

import difflib
import gc
import logging
import re
import shutil
from collections.abc import Callable
from contextlib import contextmanager
from typing import Any

import matplotlib.backends.backend_svg  # noqa: F401  # its first import speaks to the log

from privbo_plugins.errors import PrivacyError
from tests.independence.sealed import sealed
from tests.independence.zoo import SPOKEN
from tests.leaks.evidence import Evidence

logging.getLogger("matplotlib.font_manager").setLevel(logging.INFO)  # tells each font once

SAID = ("log", "console")
"""Where the user's own code may be heard."""

_SPOKEN = (f"privbo {SPOKEN}\n", f"{SPOKEN}\n")

MEASURED = ("vault",)
"""What is private, of which the outside sees the size."""

_PASSING = re.compile(
    r"0x[0-9a-f]{6,}"  # where an object lies in memory
    r"|(?<=\[I )[-0-9]{10} [:,0-9]{12}(?=\])"  # when Optuna said something
    r"|\[(?:generated in|cached since|no key|raw sql|dialect)[^\]]*\]"  # SQLAlchemy's times
)


class Seen(Evidence):
    """What one run leaves.

    Besides the sinks of :class:`Evidence` there are exceptions, sizes and modes of files, and what
    a tape holds.
    """

    def __init__(self, folder, tape, storage="sqlite"):
        super().__init__(folder, storage)
        self.tape, self.refusals = tape, (ValueError, PrivacyError)
        for sink in ("exceptions", "files"):
            self.blobs[sink] = {}

    # What is gathered -----------------------------------------------------------------------

    def telling(self, call):
        """The same function, whose exceptions are looked at before they go on."""

        def told(*args, **kwargs):
            try:
                return call(*args, **kwargs)
            except BaseException as error:
                self.add_error(error)
                raise

        return told

    def add_error(self, error):
        n = len(self.blobs["exceptions"])
        self.add("exceptions", f"exception {n}", "\n".join(described(error)))

    def add_sizes(self):
        """Of the public folder and of the vault's: names, modes and sizes."""
        for folder in (self.folder, self.vault_folder):
            for path in sorted(folder.rglob("*")):
                facts = path.stat()
                size = facts.st_size if path.is_file() else 0
                name = str(path.relative_to(folder.parent))
                self.add("files", name, f"{facts.st_mode:o} {size} bytes")

    def close(self):
        """Takes what is left on the tape."""
        self.add_sizes()
        for channel, lines in self.tape.lines.items():
            self.blobs.setdefault(channel, {})["tape"] = "\n".join(lines).encode()

    def comparable(self):
        """Sink and name to what must be equal."""
        return {
            f"{sink}: {name}": str(len(blob)).encode() if sink in MEASURED else _plain(sink, blob)
            for sink, blobs in self.blobs.items()
            for name, blob in blobs.items()
        }


def _plain(sink, blob):
    text = blob.decode("latin-1")
    if sink in SAID:
        text += "\n"
        for words in _SPOKEN:
            text = text.replace(words, "")
    return _PASSING.sub("<>", text).encode("latin-1")


def described(error, depth=0):
    """Types, texts, notes, frames and what the frames know by name, along the whole chain."""
    if error is None or depth > 8:
        return
    kind = type(error)
    yield f"{kind.__module__}.{kind.__qualname__} {error} {error.args!r}"
    yield f"{getattr(error, '__notes__', [])} {sorted(vars(error))} {error.__suppress_context__}"
    trace = error.__traceback__
    while trace is not None:
        code, known = trace.tb_frame.f_code, trace.tb_frame.f_locals
        kinds = sorted(f"{name} {type(value).__name__}" for name, value in known.items())
        yield f"{code.co_filename} {code.co_name} {trace.tb_lineno} {kinds}"
        trace = trace.tb_next
    for name in ("__cause__", "__context__"):
        for line in described(getattr(error, name), depth + 1):
            yield f"{name} {line}"


# Two runs ---------------------------------------------------------------------------------------

Run = Callable[[Seen, Any], None]
"""Runs a system on data of which one entry is what the function of the second argument makes."""


@contextmanager
def _place(folder):
    """Always the same path, which is part of what is written."""
    place = folder / "run"
    place.mkdir()
    try:
        yield place
    finally:
        shutil.rmtree(place)


def left_by(run, entry, folder):
    """What a run leaves, by sink and name.

    What earlier runs left in memory goes first: a pool that is collected later would say so in
    this run's log. What stays then is not walked through again.
    """
    gc.collect()
    gc.freeze()
    with _place(folder) as place, sealed() as tape:
        seen = Seen(place, tape)
        run(seen, entry)
        seen.close()
        return seen.comparable()


def differences(one, other):
    """Sink and name of what differs, and how it begins to."""
    found = {}
    for name in sorted({*one, *other}):
        a, b = one.get(name), other.get(name)
        if a != b:
            found[name] = _how(a, b)
    return found


def _how(a, b):
    if a is None or b is None:
        left = a if b is None else b
        return f"only in the {'first' if b is None else 'second'} run: {left[:300]!r}"
    lines = difflib.unified_diff(
        a.decode("latin-1").splitlines(), b.decode("latin-1").splitlines(), lineterm="", n=0
    )
    return "\n".join(line[:200] for line in list(lines)[2:8])
