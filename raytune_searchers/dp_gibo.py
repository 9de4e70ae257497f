"""DP-GIBO as a Ray Tune searcher."""

from __future__ import annotations

from privbo_plugins.algorithms.dp_gibo import GIBOConfig
from privbo_plugins.algorithms.dp_gibo.config import PUBLISHED
from privbo_plugins.settings import Published, named, part, settings, takes
from raytune_searchers._base import PrivateRunSettings, PrivateSearch


@settings(eq=False)
class DPGIBOSettings(PrivateRunSettings, GIBOConfig):
    """The searcher's keywords."""


class DPGIBOSearch(Published, PrivateSearch):
    """Tunes on secret validation records with Gaussian differential privacy.

    The trainable returns one value per validation record; what Tune stores and shows of it is
    mu-GDP for these records (replace-one). Source: Sopa et al., *Scalable Differentially Private
    Bayesian Optimization*, Algorithm 1. ``recommend`` gives theta_T, not the best noisy trial.
    With up to four numeric parameters and little noise on values it searches by these instead
    (docs/dp-gibo.md); ``n_starts=16`` plans descent.
    ``paper(mu)`` makes it as published: random start, no start points, no released values (what
    is shown is zeros), no centring, B = 3, T = 25, AdaGrad on coordinates.

    {settings}

    Raises:
        ValueError: For every argument outside its range.
        VaultError: If the vault's database cannot be opened for writing.

    Example:
        >>> from ray import tune
        >>> search = DPGIBOSearch(mu=1, metric="loss", mode="min")
        >>> print(search.plan({"lr": tune.loguniform(1e-4, 1e-1)}, n_records=1000))
        DP-GIBO plan: 69 trials, n=1000 records, d=1, ...
        >>> # results = tune.Tuner(
        >>> #     search.private(trainable),
        >>> #     param_space={"lr": tune.loguniform(1e-4, 1e-1)},
        >>> #     tune_config=tune.TuneConfig(search_alg=search, num_samples=-1),
        >>> # ).fit()
    """

    _PUBLISHED = PUBLISHED

    @takes(DPGIBOSettings)
    def __init__(self, given: DPGIBOSettings) -> None:
        super().__init__(part(given, GIBOConfig), **named(given, PrivateRunSettings))
