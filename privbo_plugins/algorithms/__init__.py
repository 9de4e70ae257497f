"""One paper, one module; :mod:`privbo_plugins.algorithms.registry` lists them all."""
