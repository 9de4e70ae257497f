"""The public model of a federation, one for the server and all agents of a process."""

from __future__ import annotations

import json
import weakref

from privbo_plugins.algorithms.dp_fts_de.agent import make_model
from privbo_plugins.algorithms.dp_fts_de.config import FederationConfig
from privbo_plugins.algorithms.dp_fts_de.model import SharedModel
from privbo_plugins.spaces import Space

_MODELS: weakref.WeakValueDictionary[str, SharedModel] = weakref.WeakValueDictionary()


def shared_model(config: FederationConfig, space: Space) -> SharedModel:
    """Features and regions of a space, one for all agents of this process."""
    key = json.dumps([config.to_dict(), space.to_dict()])
    found = _MODELS.get(key)
    if found is None:
        found = _MODELS[key] = make_model(config, space)
    return found
