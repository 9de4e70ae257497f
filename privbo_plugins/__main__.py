"""``python -m privbo_plugins`` is ``privbo``."""

from __future__ import annotations

import sys

from privbo_plugins.cli import main

if __name__ == "__main__":
    sys.exit(main())
