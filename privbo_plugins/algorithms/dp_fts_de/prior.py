"""Assumptions about the agents' functions; public knowledge."""

from __future__ import annotations

from typing import Annotated

from privbo_plugins.settings import Stored, between, setting, settings

_Length = Annotated[float, between(1e-4, 1e3)]
_Level = Annotated[float, between(-1e3, 1e3)]
_Doubt = Annotated[float, between(0.0, 1.0 - 1e-9)]


@settings
class PopulationPrior(Stored):
    """What is assumed of the agents' functions before anything is seen; public knowledge.

    Lengths are in units of the unit cube, standard deviations in units of the value range.

    {settings}

    Raises:
        ValueError: If a number lies outside its range.
    """

    level: _Level = setting(
        "Mean of the values, in [0, 1] from the worst to the best of the range.", default=0.65
    )
    level_sd: _Length = setting("s_c, how much agents differ in level.", default=0.06)
    shared_lengthscale: _Length = setting("Of m.", default=0.8)
    shared_sd: _Length = setting("Of m.", default=0.045)
    own_lengthscale: _Length = setting("Of g_n.", default=0.18)
    own_sd: _Length = setting("Of g_n.", default=0.08)
    noise_sd: _Length = setting("s_n.", default=0.015)
    doubt: _Doubt = setting(
        "Share of m's prior variance that is kept after a broadcast, in [0, 1): guards against a "
        "prior that fits badly.",
        default=0.2,
    )
