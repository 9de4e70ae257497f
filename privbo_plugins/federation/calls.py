"""An agent's calls to its federation's server: gRPC over TLS, and connections opened again.

A call is one request and one reply. The agent accepts the certificate of its invitation alone and
shows its secret with each call. Errors hold nothing of a request.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Mapping
from typing import Any

from privbo_plugins.errors import FederationError
from privbo_plugins.federation import messages
from privbo_plugins.federation.identity import Invitation, place
from privbo_plugins.federation.messages import MalformedError
from privbo_plugins.federation.sockets import OPTIONS, SERVICE, grpc

PATIENCE = 120.0
"""Seconds for an answer, beyond what a round may take; a database may be locked for 60."""
_LOST = (grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.CANCELLED)
_OPTIONS = [
    *OPTIONS,
    ("grpc.max_receive_message_length", messages.LARGEST),
    ("grpc.use_local_subchannel_pool", 1),  # a new channel tries at once, after any failure
    ("grpc.enable_http_proxy", 0),
]


class Calls:
    """Calls of one agent, from any thread and in forked children.

    Args:
        invitation: What the agent was given.
        proof: Its own certificates and private key, if the server asks for them; PEM.
    """

    def __init__(self, invitation: Invitation, proof: tuple[bytes, bytes] | None) -> None:
        self.invitation, self.place = invitation, place(invitation.address)
        chain, key = (None, None) if proof is None else proof
        self._proof = grpc.ssl_channel_credentials(invitation.trusted, key, chain)
        self._parents: list[Any] = []
        self._channel: Any = None
        self._start_process()

    def ask(self, call: str, message: Mapping[str, Any]) -> tuple[dict[str, Any], bool]:
        """The reply, and whether the request was sent twice because a connection was lost."""
        self._check_process()
        request = messages.encoded(message)
        code = details = None
        for again in (False, True):
            channel = self._opened()
            reply, code, details = self._exchanged(channel, call, request)
            if reply is not None:
                return self._decoded(reply), again
            if code not in _LOST:
                break
            self._hang_up(channel)
        raise self._failed(code, str(details))

    def _exchanged(self, channel: Any, call: str, request: bytes) -> tuple[Any, Any, Any]:
        """The reply, or the status and words of a failure."""
        shown = (
            ("privbo-agent", str(self.invitation.agent)),
            ("privbo-secret-bin", self.invitation.secret),
        )
        try:
            ask = channel.unary_unary(f"/{SERVICE}/{call}")
            return ask(request, timeout=PATIENCE, metadata=shown), None, None
        except grpc.RpcError as error:
            return None, error.code(), error.details()
        except ValueError:  # another thread has closed the channel meanwhile
            return None, grpc.StatusCode.CANCELLED, "the connection was closed"

    def _decoded(self, reply: bytes) -> dict[str, Any]:
        try:
            return messages.decoded(reply)
        except MalformedError:
            pass
        raise self.another_version()

    def answered(self, reply: Mapping[str, Any], read: Callable[[Any], Any]) -> Any:
        """Reads a reply.

        Args:
            reply: From :meth:`ask`.
            read: Makes sense of it.

        Raises:
            FederationError: If it says nothing, or something that went wrong.
        """
        try:
            if "error" in reply:
                messages.raise_what_was_told(reply["error"])
            return messages.understood(read, reply.get("result"))
        except MalformedError:
            pass
        raise self.another_version()

    # Connections --------------------------------------------------------------------------------

    def _start_process(self) -> None:
        self._lock = threading.Lock()
        self._pid, self._channel = os.getpid(), None

    def _check_process(self) -> None:
        if self._pid != os.getpid():  # a forked child: what is open belongs to its parent
            self._parents.append(self._channel)
            self._start_process()

    def _opened(self) -> Any:
        with self._lock:
            if self._channel is None:
                name = ("grpc.ssl_target_name_override", self.invitation.name)
                self._channel = grpc.secure_channel(
                    self.place,
                    self._proof,
                    options=[*_OPTIONS, name],
                )
            return self._channel

    def close(self) -> None:
        """Closes the connection; the next call opens one again."""
        self._check_process()
        self._hang_up(self._channel)

    def _hang_up(self, channel: Any) -> None:
        with self._lock:
            if channel is None or channel is not self._channel:
                return
            self._channel = None
        channel.close()

    # Errors -------------------------------------------------------------------------------------

    def _failed(self, code: Any, details: str) -> FederationError:
        if code is grpc.StatusCode.UNAUTHENTICATED or "CERTIFICATE_VERIFY_FAILED" in details:
            return FederationError(
                f"What listens at {self.place} does not accept this invitation of agent "
                f"{self.invitation.agent}, or is not the server that gave it. Nothing was sent. "
                "Ask the server's operator for a new invitation."
            )
        if code in (grpc.StatusCode.DEADLINE_EXCEEDED, grpc.StatusCode.RESOURCE_EXHAUSTED):
            return self.silent()
        if code in _LOST:
            return FederationError(
                f"The federation's server at {self.place} cannot be reached "
                f"({details.rpartition(': ')[2]}). Check that it runs and listens there; the "
                "agent can go on alone, and tries again at its next round."
            )
        return self.another_version()

    def silent(self) -> FederationError:
        """The error for a server that does not answer."""
        return FederationError(
            f"The federation's server at {self.place} does not answer. The agent can go on "
            "alone, and tries again at its next round."
        )

    def another_version(self) -> FederationError:
        """The error for an answer that makes no sense."""
        return FederationError(
            f"The federation's server at {self.place} gave an answer that this version does not "
            "know. Check that it runs the same version; the agent can go on alone meanwhile."
        )
