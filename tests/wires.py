"""The protocol of a federation, written a second time: tests speak it beside the product.

A call is one gRPC request over TLS, ``/privbo.Federation/<call>``, whose bytes are a JSON object;
so are those of the reply. The agent's number and secret go as metadata. Vectors are base64 of
little-endian float64. An invitation holds address, agent, the server's certificate and a secret.
"""

from __future__ import annotations

import base64
import json
import urllib.parse
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any
from unittest import mock

import grpc
import numpy as np
from cryptography import x509
from cryptography.hazmat.primitives.serialization import Encoding

from privbo_plugins.federation.identity import identity_of

SERVICE = "privbo.Federation"
PATIENCE = 15.0
"""Seconds for an answer."""

TOLD = (
    "BudgetExceededError", "FederationError", "PrivacyError", "SpaceChangedError",
    "ValueError",
)  # fmt: skip
"""Errors that a server tells by name and text."""

CALLS = ("greet", "join", "submit", "collect", "broadcasts", "leave", "guarantee")
MASTER = bytes(range(64, 96))


def as_json(message):
    return json.dumps(message).encode()


def packed(numbers):
    return base64.b64encode(np.asarray(numbers, dtype="<f8").tobytes()).decode()


def told(broadcast):
    """A broadcast as a server sends it."""
    weights, noise = packed(broadcast.weights), packed(broadcast.noise)
    return {"round": broadcast.round, "weights": weights, "noise": noise, "chain": "c" * 64}


def greeting(config):
    """How a server that has released nothing introduces itself."""
    return {
        "protocol": "privbo-federation/2", "epoch": "0" * 32, "config": config.to_dict(),
        "deadline": None, "released": 0, "chain": None,
    }  # fmt: skip


# Invitations ------------------------------------------------------------------------------------


def _base64(data):
    return base64.urlsafe_b64encode(data).decode().rstrip("=")


def _bytes(text):
    return base64.urlsafe_b64decode(text + "=" * (-len(text) % 4))


def impostor(master=MASTER):
    """A server's identity, from a secret."""
    return identity_of(master)


def invitation(address, agent, secret, certificate=None):
    server = _base64(certificate or impostor().certificate)
    rest = f"{agent}?server={server}#{_base64(secret)}"
    host, port = address
    return f"privbo://{f'[{host}]' if ':' in host else host}:{port}/{rest}"


def secret_in(invitation):
    return _bytes(invitation.rpartition("#")[2])


def certificate_in(invitation):
    """DER."""
    return _bytes(invitation.partition("?server=")[2].partition("#")[0])


def agent_in(invitation):
    return int(urllib.parse.urlsplit(invitation).path.rpartition("/")[2])


def address_in(invitation):
    """Of a server that listens to the network."""
    parts = urllib.parse.urlsplit(invitation)
    assert parts.hostname is not None
    assert parts.port is not None
    return parts.hostname, parts.port


def shown(invitation):
    """What goes as metadata with each call of the invited agent."""
    agent = str(agent_in(invitation))
    return ("privbo-agent", agent), ("privbo-secret-bin", secret_in(invitation))


# The two sides ----------------------------------------------------------------------------------


@dataclass
class Stranger:
    """Somebody who has an invitation's certificate, and says what he likes."""

    invitation: str
    opened: list[Any] = field(default_factory=list)

    def __enter__(self):
        der = x509.load_der_x509_certificate(certificate_in(self.invitation))
        host, port = address_in(self.invitation)
        self.channel = grpc.secure_channel(
            f"[{host}]:{port}" if ":" in host else f"{host}:{port}",
            grpc.ssl_channel_credentials(der.public_bytes(Encoding.PEM)),
            options=[("grpc.ssl_target_name_override", "privbo-federation")],
        )
        return self

    def __exit__(self, *_):
        self.channel.close()

    def says(self, call, message, *, agent=None, secret=None):
        """The status and the reply; as the invited agent unless another is named."""
        number = agent_in(self.invitation) if agent is None else agent
        proof = secret_in(self.invitation) if secret is None else secret
        metadata = (("privbo-agent", str(number)), ("privbo-secret-bin", proof))
        ask = self.channel.unary_unary(f"/{SERVICE}/{call}")
        try:
            return "OK", ask(message, timeout=PATIENCE, metadata=metadata)
        except grpc.RpcError as error:
            return error.code().name, b""

    def asks(self, call, **message):
        """The reply to a proper request in the server's epoch."""
        if call != "greet":
            message.setdefault("epoch", self.asks("greet", last=0)["result"]["epoch"])
        status, reply = self.says(call, as_json(message))
        assert status == "OK", status
        return dict(json.loads(reply))


@contextmanager
def pretending(answer, identity=None):
    """A server that answers (call, request, metadata) so; where it listens."""
    proof = identity or impostor()

    def handler(call):
        return grpc.unary_unary_rpc_method_handler(
            lambda request, context: answer(call, request, dict(context.invocation_metadata()))
        )

    with ThreadPoolExecutor(4) as pool:
        server = grpc.server(pool)
        server.add_generic_rpc_handlers(
            (
                grpc.method_handlers_generic_handler(
                    SERVICE, {call: handler(call) for call in CALLS}
                ),
            )
        )
        port = server.add_secure_port(
            "127.0.0.1:0", grpc.ssl_server_credentials([(proof.key, proof.chain)])
        )
        server.start()
        try:
            yield "127.0.0.1", port
        finally:
            server.stop(None).wait()


@contextmanager
def dialled():
    """The channels that this process opens meanwhile, in order."""
    opened = []
    create = grpc.secure_channel

    def recorded(*args, **kwargs):
        opened.append(create(*args, **kwargs))
        return opened[-1]

    with mock.patch.object(grpc, "secure_channel", recorded):
        yield opened


class Peer:
    """A channel to a server that answers (call, request) so, without a network."""

    def __init__(self, answer):
        self._answer = answer

    def unary_unary(self, path):
        call = path.rpartition("/")[2]
        return lambda request, **_: self._answer(call, request)

    def close(self):
        """Nothing is open."""


@contextmanager
def meeting(peer):
    """Whoever this process calls over the network meanwhile is a peer that is made so."""
    with mock.patch.object(grpc, "secure_channel", side_effect=lambda *_, **__: peer()):
        yield
