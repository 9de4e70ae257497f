"""Exact search of byte strings for private numbers and texts, in every encoding they travel in.

Patterns of at least eight bytes are found by their first eight bytes in all windows of a blob,
then compared in full. Error rate: a pattern of k random bytes or 12 random digits occurs by
chance in a megabyte with probability below 1e-5 for the hundreds of patterns used here; forms
of 6 to 8 digits count only where no digit stands beside them. A single float32 (four bytes)
would occur by chance, so vectors are searched as pairs of neighbouring float32.
"""

import base64
import itertools
import traceback as tracebacks
from collections.abc import Mapping
from contextlib import suppress

import numpy as np

_DIGITS = frozenset(b"0123456789")
_WINDOW = 8
_SPREAD, _FEWEST = np.uint64(0x9E3779B97F4A7C15), 18
"""Hash windows into a table of at least 2^18 bits, which settles most of them at once."""


def _base64_forms(raw):
    """The characters that ``raw`` fixes at each of the three alignments, both alphabets."""
    for shift in range(3):
        whole = (len(raw) + shift) * 8 // 6
        skip = -(-shift * 8 // 6)
        for encode in (base64.standard_b64encode, base64.urlsafe_b64encode):
            yield encode(b"\0" * shift + raw)[skip:whole]


def _byte_forms(raw):
    yield "bytes", raw
    yield "hex", raw.hex().encode()
    yield "HEX", raw.hex().upper().encode()
    yield "escaped", repr(raw)[2:-1].encode()
    for form in _base64_forms(raw):
        yield "base64", form


def number_forms(value):
    """(encoding, pattern, whether digits beside it make it another number) of a sentinel.

    Args:
        value: In (0.1, 1), so that decimals and significant digits are the same.
    """
    if not 0.1 < value < 1:
        raise ValueError("Sentinels must lie in (0.1, 1).")
    text = f"{value:.17f}"
    yield "decimal", text[2:14].encode(), False  # twelve digits, cut: any longer form begins so
    yield "12 digits", f"{value:.12f}"[2:].rstrip("0").encode(), False
    yield "8 digits", f"{value:.8g}".encode(), True
    yield "6 digits", f"{value:.6g}".encode(), True
    yield "float32 decimal", str(np.float32(value)).encode(), True
    yield "exponent", f"{value:.16e}"[:14].encode(), False
    yield "percent", f"{100 * value:.12f}"[:13].encode(), False
    yield "float.hex", value.hex().split("p")[0].removeprefix("0x").encode(), False
    for order in "<>":
        raw = np.array(value, dtype=f"{order}f8").tobytes()
        for name, pattern in _byte_forms(raw):
            yield f"float64{order} {name}", pattern, False


def pair_forms(first, second):
    """Encodings of two neighbouring float32."""
    for order in "<>":
        raw = np.array([first, second], dtype=f"{order}f4").tobytes()
        for name, pattern in _byte_forms(raw):
            yield f"float32{order} {name}", pattern, False


def text_forms(text):
    """Encodings of a random text of at least eight characters."""
    yield "utf-16", text.encode("utf-16-le"), False
    for name, pattern in _byte_forms(text.encode()):
        yield f"text {name}", pattern, False


class Scanner:
    """Finds every registered sentinel in any number of blobs."""

    def __init__(self):
        self._patterns = []
        self._index = None  # table of bits and its shift, exact

    def __len__(self):
        return len(self._patterns)

    def _add(self, name, forms):
        for encoding, pattern, bounded in forms:
            if len(pattern) >= _WINDOW:  # a shorter one is no longer unique
                self._patterns.append((f"{name} as {encoding}", pattern, bounded))
        self._index = None

    def add_number(self, name, value):
        self._add(name, number_forms(float(value)))

    def add_raw(self, name, value):
        """Registers any float, as float64 bytes and in full decimal form."""
        for order in "<>":
            raw = np.array(value, dtype=f"{order}f8").tobytes()
            self._add(name, ((f"float64{order} {n}", p, False) for n, p in _byte_forms(raw)))
        self._add(name, [("decimal", repr(float(value)).encode(), True)])

    def add_vector(self, name, values):
        """Registers each value, each pair of neighbours as float32, and the exact mean."""
        finite = [float(v) for v in values if np.isfinite(v)]
        for i, value in enumerate(finite):
            self.add_number(f"{name}[{i}]", value)
        for i, pair in enumerate(itertools.pairwise(finite)):
            self._add(f"{name}[{i}:{i + 2}]", pair_forms(*pair))
        if len(finite) > 1:
            self.add_number(f"mean of {name}", float(np.mean(finite)))

    def add_text(self, name, text):
        self._add(name, text_forms(text))

    def allow(self, public):
        """Drops the shortened forms that a public number has too: they are not unique."""
        shared = set()
        for value in public:
            forms = (f"{value:.6g}", f"{value:.8g}", str(np.float32(value)))
            shared.update(form.encode() for form in forms)
        self._patterns = [p for p in self._patterns if not (p[2] and p[1] in shared)]
        self._index = None

    def _prefixes(self):
        if self._index is None:
            table = {}
            for i, (_, pattern, _) in enumerate(self._patterns):
                table.setdefault(int.from_bytes(pattern[:_WINDOW], "little"), []).append(i)
            power = max(_FEWEST, (64 * len(table)).bit_length())  # or most windows pass the bits
            bits, shift = np.zeros(1 << power, dtype=bool), np.uint64(64 - power)
            bits[_slots(np.array(list(table), dtype=np.uint64), shift)] = True
            self._index = bits, shift, table
        return self._index

    def hits(self, blob):
        """Names of the sentinels in a blob, with their encodings."""
        bits, shift, table = self._prefixes()
        found = {}
        for offset in range(_WINDOW):
            count = (len(blob) - offset) // _WINDOW
            if count <= 0:
                continue
            windows = np.frombuffer(blob, dtype="<u8", count=count, offset=offset)
            for w in np.flatnonzero(bits[_slots(windows, shift)]):
                start = offset + _WINDOW * int(w)
                for i in table.get(int(windows[w]), ()):
                    name, pattern, bounded = self._patterns[i]
                    if _matches(blob, start, pattern, bounded):
                        found[name] = None
        return list(found)

    def scan(self, artefacts):
        """``artefact: sentinel as encoding`` for every hit."""
        return [f"{name}: {hit}" for name, blob in artefacts.items() for hit in self.hits(blob)]


def _slots(windows, shift):
    return (windows * _SPREAD) >> shift


def _matches(blob, start, pattern, bounded):
    end = start + len(pattern)
    if blob[start:end] != pattern:
        return False
    beside = blob[start - 1 : start] + blob[end : end + 1] if start else blob[end : end + 1]
    return not (bounded and any(byte in _DIGITS for byte in beside))


def _exception_bytes(error):
    yield repr(error).encode()
    yield str(error).encode()
    yield type(error).__qualname__.encode()
    yield repr(vars(error)).encode()


def _value_bytes(value, depth=0):
    """What a traceback printer with local variables could show of a value."""
    with suppress(Exception):
        yield repr(value).encode(errors="backslashreplace")
    if isinstance(value, np.ndarray):
        yield value.tobytes()
        yield repr(value.tolist()).encode()
    elif isinstance(value, bytes | bytearray):
        yield bytes(value)
    elif isinstance(value, BaseException):
        yield from _exception_bytes(value)
    elif depth < 3 and isinstance(value, Mapping | list | tuple | set):
        for part in value.values() if isinstance(value, Mapping) else value:
            yield from _value_bytes(part, depth + 1)


def frame_bytes(traceback):
    """(where, bytes) of every local variable of every frame of a traceback."""
    while traceback is not None:
        frame = traceback.tb_frame
        for name, value in list(frame.f_locals.items()):
            for blob in _value_bytes(value):
                yield f"{frame.f_code.co_qualname}: {name}", blob
        traceback = traceback.tb_next


def links(error):
    """An exception, those it holds, and those it came from."""
    chain = [error]
    seen = set()
    while chain:
        link = chain.pop()
        if link is None or id(link) in seen:
            continue
        seen.add(id(link))
        yield link
        chain += [link.__cause__, link.__context__, *getattr(link, "exceptions", ())]


def _printed(link, trace):
    """What log handlers print who show local variables, also of suppressed contexts."""
    shown = tracebacks.TracebackException(
        type(link), link, trace, capture_locals=True, compact=False
    )
    text = [*shown.format(), repr(link.args), repr(vars(link)), repr(link.__reduce__())]
    return "\n".join(text).encode(errors="backslashreplace")


def exception_leaks(error, scanner):
    """Hits in an exception, its causes, contexts and frames, and in how it is printed.

    The first frame is the one that caught it, a test, which knows the sentinels.
    """
    leaks = []
    for link in links(error):
        leaks += [f"exception: {h}" for blob in _exception_bytes(link) for h in scanner.hits(blob)]
        first = link.__traceback__
        if link is error and first is not None:
            first = first.tb_next
        leaks += [f"{where}: {h}" for where, b in frame_bytes(first) for h in scanner.hits(b)]
        leaks += [f"printed: {hit}" for hit in scanner.hits(_printed(link, first))]
    return leaks
