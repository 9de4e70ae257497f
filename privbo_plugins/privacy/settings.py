"""The setting by which tests hand in a source of noise."""

from __future__ import annotations

from typing import TYPE_CHECKING

from privbo_plugins.settings import setting, settings

if TYPE_CHECKING:
    from privbo_plugins.privacy.source import NoiseSource


@settings(eq=False)
class NoiseSettings:
    """What everything that releases takes."""

    noise: NoiseSource | None = setting(
        "For tests only; what was released with it is reported as unprotected.",
        default=None,
    )
