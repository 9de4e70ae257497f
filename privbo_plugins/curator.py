"""The curator's command line is ``privbo curator`` now; this module goes on working."""

from __future__ import annotations

import sys
from collections.abc import Sequence


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs ``privbo curator`` with the same arguments, and says on standard error that it does."""
    from privbo_plugins.cli import main as privbo

    print("python -m privbo_plugins.curator is now: privbo curator", file=sys.stderr)
    return privbo(["curator", *(sys.argv[1:] if arguments is None else arguments)])


if __name__ == "__main__":
    sys.exit(main())
