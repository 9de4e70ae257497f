"""Federations of agents: the server's rounds, links to it, and what an agent does."""

from __future__ import annotations

from typing import TYPE_CHECKING

from privbo_plugins.lazy import on_first_use

if TYPE_CHECKING:
    from privbo_plugins.federation.link import Alone as Alone
    from privbo_plugins.federation.link import Link as Link
    from privbo_plugins.federation.participant import Participant as Participant
    from privbo_plugins.federation.remote import RemoteLink as RemoteLink
    from privbo_plugins.federation.remote import connect as connect
    from privbo_plugins.privacy.subsampling import calibrate as calibrate
    from privbo_plugins.sessions.local import LocalLink as LocalLink
    from privbo_plugins.sessions.server import FederatedServer as FederatedServer
else:
    __getattr__, __dir__, __all__ = on_first_use(
        __name__,
        {
            "privbo_plugins.federation.link": ["Alone", "Link"],
            "privbo_plugins.federation.participant": ["Participant"],
            "privbo_plugins.sessions.local": ["LocalLink"],
            "privbo_plugins.sessions.server": ["FederatedServer"],
            "privbo_plugins.federation.remote": ["RemoteLink", "connect"],
            "privbo_plugins.privacy.subsampling": ["calibrate"],
        },
    )
