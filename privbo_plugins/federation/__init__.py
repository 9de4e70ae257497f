"""Federations of agents: the server's rounds, links to it, and what an agent does."""

from privbo_plugins.federation.link import Alone, Link
from privbo_plugins.federation.participant import Participant
from privbo_plugins.federation.server import FederatedServer, LocalLink
from privbo_plugins.federation.wire import RemoteLink, connect
from privbo_plugins.privacy.subsampling import calibrate

__all__ = [
    "Alone",
    "FederatedServer",
    "Link",
    "LocalLink",
    "Participant",
    "RemoteLink",
    "calibrate",
    "connect",
]
