"""A campaign from the command line: ``python -m tests.fuzz [INPUTS] [SEED]``.

Prints a JSON line a parser and one for all of them; ends with 1 if anything went wrong.
"""

from __future__ import annotations

import json
import sys
import tempfile
from pathlib import Path

from .campaign import INPUTS, campaign, shares


def main(inputs: int = INPUTS, seed: int = 0) -> int:
    """Feeds every parser its share."""
    total = wrong = 0
    seconds = 0.0
    with tempfile.TemporaryDirectory(dir="/dev/shm" if Path("/dev/shm").is_dir() else None) as at:
        for number, (parser, share) in enumerate(shares(inputs)):
            outcome = campaign(parser, share, seed, Path(at) / str(number))
            print(json.dumps(outcome.line()), *outcome.wrong, sep="\n  ", flush=True)
            total, wrong = total + outcome.inputs, wrong + len(outcome.wrong)
            seconds += outcome.seconds
    print(json.dumps({"inputs": total, "wrong": wrong, "seconds": round(seconds, 1)}))
    return int(wrong > 0)


if __name__ == "__main__":
    sys.exit(main(*map(int, sys.argv[1:])))
