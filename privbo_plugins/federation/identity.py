"""Who a federation's server and its agents are: certificate, secrets, invitations.

A server's private key and certificate follow from its master secret, so the same secret makes the
same server again; an institution may give a certificate of its own instead. An invitation holds
the address, the agent's number, that certificate, which is the only one that the agent accepts,
and a secret of the agent's own, which follows from the master secret, the certificate, the run and
the number. No certificate authority is needed.
"""

from __future__ import annotations

import base64
import datetime
import hashlib
import hmac
import os
import secrets
import stat
import urllib.parse
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from privbo_plugins.errors import PrivacyError
from privbo_plugins.federation.link import NEEDED
from privbo_plugins.federation.messages import PROTOCOL
from privbo_plugins.files import check_unchangeable, variable
from privbo_plugins.sanitize import public_name

try:
    from cryptography import x509
    from cryptography.hazmat.primitives import hashes
    from cryptography.hazmat.primitives.asymmetric import ec, rsa
    from cryptography.hazmat.primitives.kdf.hkdf import HKDF
    from cryptography.hazmat.primitives.serialization import (
        Encoding,
        NoEncryption,
        PrivateFormat,
        load_pem_private_key,
    )
    from cryptography.x509.oid import NameOID
except ImportError:
    raise ImportError(NEEDED.format("cryptography")) from None

Address = tuple[str, int]
"""Host and port."""

_NAME = "privbo-federation"
"""Of a server that made its own certificate."""
_FROM, _UNTIL = datetime.datetime(2020, 1, 1), datetime.datetime(2120, 1, 1)
"""Of such a certificate: it is pinned, and ends with the secret."""
_P256 = 0xFFFFFFFF00000000FFFFFFFFFFFFFFFFBCE6FAADA7179E84F3B9CAC2FC632551
"""Order of the group of the curve P-256 (FIPS 186-5)."""

Secret = bytes | str | os.PathLike[str] | None


@dataclass(frozen=True)
class Identity:
    """What a server proves itself with.

    Attributes:
        master: The master secret.
        chain: Its certificate, and those up to an authority if there are any; PEM.
        key: The certificate's private key; PEM.
        client_ca: Who signs agents' certificates; PEM. None if agents need none.
    """

    master: bytes = field(repr=False)
    chain: bytes = field(repr=False)
    key: bytes = field(repr=False)
    client_ca: bytes | None = field(default=None, repr=False)

    def __reduce__(self) -> Any:
        raise PrivacyError(
            "A server's identity cannot be pickled: it holds a private key. Give the other "
            "process the path of the secret file, which it reads itself."
        )

    @property
    def certificate(self) -> bytes:
        """The server's own certificate; DER."""
        return x509.load_pem_x509_certificates(self.chain)[0].public_bytes(Encoding.DER)

    def secret_of(self, run: str, agent: int) -> bytes:
        """An agent's secret, which no other server, run or agent accepts."""
        server = hashlib.sha256(self.certificate).hexdigest()
        return hmac.digest(self.master, f"{PROTOCOL} {server} {run} {agent}".encode(), "sha256")


def identity_of(
    secret: Secret,
    cert: str | os.PathLike[str] | None = None,
    key: str | os.PathLike[str] | None = None,
    client_ca: str | os.PathLike[str] | None = None,
) -> Identity:
    """Makes the identity that a server proves itself with.

    Args:
        secret: See :meth:`FederatedServer.listen`.
        cert: Likewise.
        key: Likewise.
        client_ca: Likewise.

    Raises:
        PrivacyError: If other users can read a file that they must not read, or replace one.
        ValueError: If a file cannot be used.
    """
    master = _master(secret)
    agents = None if client_ca is None else _certificates(Path(client_ca), "client_ca")
    given = own_proof(cert, key)
    if given is not None:
        return Identity(master, *given, agents)
    own = _own_key(master)
    pem = own.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())
    return Identity(master, _own_certificate(own), pem, agents)


def own_proof(
    cert: str | os.PathLike[str] | None, key: str | os.PathLike[str] | None
) -> tuple[bytes, bytes] | None:
    """An agent's certificates and private key, if it has any; PEM.

    Raises:
        PrivacyError: If other users can read the key, or replace a file.
        ValueError: If a file cannot be used, or one of the two is missing.
    """
    if (cert is None) != (key is None):
        raise ValueError("cert= and key= belong together: give both, or neither.")
    if cert is None or key is None:
        return None
    chain, private = _certificates(Path(cert), "cert"), _private_key(Path(key))
    own = x509.load_pem_x509_certificates(chain)[0]
    if own.public_key() != load_pem_private_key(private, None).public_key():
        raise ValueError("key= is not the private key of the first certificate in cert=.")
    _check_certificate(own)
    return chain, private


def _check_certificate(own: x509.Certificate) -> None:
    """Refuses a certificate that the other side would refuse with an unclear error."""
    now = datetime.datetime.now(datetime.UTC)
    if not own.not_valid_before_utc <= now <= own.not_valid_after_utc:
        raise ValueError(
            f"cert= is valid from {own.not_valid_before_utc:%Y-%m-%d} to "
            f"{own.not_valid_after_utc:%Y-%m-%d}, which is not now: have it renewed."
        )
    key = own.public_key()
    strong = isinstance(key, rsa.RSAPublicKey) and key.key_size >= 2048
    if not strong and not (
        isinstance(key, ec.EllipticCurvePublicKey)
        and isinstance(key.curve, ec.SECP256R1 | ec.SECP384R1)
    ):
        raise ValueError("cert= must have an RSA key of 2048 bits or more, or one on P-256/P-384.")
    if _signs_others(own):
        raise ValueError("cert= is an authority's. Have it issue one for this party (CA:FALSE).")


def _signs_others(own: x509.Certificate) -> bool:
    """Tells if a certificate's key may sign other certificates."""
    limits = [extension.value for extension in own.extensions]
    signs = any(getattr(x, "ca", False) or getattr(x, "key_cert_sign", False) for x in limits)
    return signs or own.version is x509.Version.v1


def fingerprint(certificate: bytes) -> str:
    """Makes the text that people compare: SHA-256 of a certificate (DER), in hexadecimal pairs."""
    return hashlib.sha256(certificate).digest().hex(":").upper()


def _own_key(master: bytes) -> ec.EllipticCurvePrivateKey:
    """A key that follows from the secret; 64 bytes modulo the order are as good as uniform."""
    raw = HKDF(hashes.SHA256(), 64, None, f"{PROTOCOL} key".encode()).derive(master)
    return ec.derive_private_key(int.from_bytes(raw, "big") % (_P256 - 1) + 1, ec.SECP256R1())


def _own_certificate(key: ec.EllipticCurvePrivateKey) -> bytes:
    """The same for the same key: a server that is started again is who it was."""
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, _NAME)])
    builder = (
        x509.CertificateBuilder(issuer_name=name, subject_name=name)
        .public_key(key.public_key())
        .serial_number(1)
        .not_valid_before(_FROM)
        .not_valid_after(_UNTIL)
        .add_extension(x509.SubjectAlternativeName([x509.DNSName(_NAME)]), critical=False)
    )
    made = builder.sign(key, hashes.SHA256(), ecdsa_deterministic=True)
    return made.public_bytes(Encoding.PEM)


def _certificates(path: Path, setting: str) -> bytes:
    try:
        check_unchangeable(path)
        data = path.read_bytes()
        x509.load_pem_x509_certificates(data)
    except (OSError, ValueError) as error:
        raise ValueError(
            f"{setting}={str(path)!r} is no file of PEM certificates: {_reason(error)}."
        ) from None
    return data


def _private_key(path: Path) -> bytes:
    """A private key without a password, in a file that this user alone can read."""
    failure = ""
    try:
        data = _read_own(path, "key file", "Restrict it to this user (chmod 600).")
        load_pem_private_key(data, None)
    except (OSError, ValueError, TypeError) as error:
        failure = _reason(error) if isinstance(error, OSError) else "no PEM key without password"
    if failure:
        raise ValueError(f"key={str(path)!r} cannot be used: {failure}.")
    return data


# Master secrets ---------------------------------------------------------------------------------


def _master(secret: Secret) -> bytes:
    """The master secret: a new one, the one given, or what a file holds."""
    if secret is None:
        return secrets.token_bytes(32)
    if not isinstance(secret, bytes):
        secret = _secret_in_file(Path(secret))
    if len(secret) < 16 or len(set(secret)) < 8:
        raise ValueError(
            "secret must have at least 16 random bytes, or it could be guessed from the server's "
            "certificate: secrets.token_bytes(32), or the path of a file that is to be created."
        )
    return secret


def _secret_in_file(path: Path) -> bytes:
    try:
        check_unchangeable(path.parent)
        if not path.exists():
            _create_secret(path)
        return _read_own(
            path, "secret file", "Delete it, so that a new one is made, and hand out new ones."
        )
    except OSError as error:
        raise ValueError(
            f"The secret file {path} cannot be read or created: {_reason(error)}. Give a path in "
            "a directory that this user may write."
        ) from None


def _read_own(path: Path, kind: str, fix: str) -> bytes:
    with open(path, "rb") as file:
        facts = os.fstat(file.fileno())
        if stat.S_IMODE(facts.st_mode) & 0o077 or facts.st_uid != os.geteuid():
            raise PrivacyError(
                f"The {kind} {path} can be read by other users, who could pose as this server. "
                f"{fix}"
            )
        check_unchangeable(path)
        return file.read()


def _create_secret(path: Path) -> None:
    """Writes beside the path and links, so that another server never reads half a secret."""
    beside = path.with_name(f".{path.name}-{secrets.token_hex(8)}")
    descriptor = os.open(beside, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o600)
    try:
        with open(descriptor, "wb") as file:
            file.write(secrets.token_bytes(32))
            file.flush()
            os.fsync(file.fileno())
        os.link(beside, path)
    except FileExistsError:
        pass  # another server was faster: its secret counts
    finally:
        os.unlink(beside)


def _reason(error: Exception) -> str:
    """Names the reason for which a file failed, as the system does."""
    return getattr(error, "strerror", None) or public_name(error)


# Invitations ------------------------------------------------------------------------------------


def place(address: Address) -> str:
    """An address as people, and gRPC, write it."""
    host, port = address
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


@dataclass(frozen=True)
class Invitation:
    """What one agent is given by the operator.

    Attributes:
        address: Where it reaches the server.
        agent: Its number on the roster.
        certificate: The server's; DER.
        secret: The agent's.
    """

    address: Address
    agent: int
    certificate: bytes = field(repr=False)
    secret: bytes = field(repr=False)

    def __reduce__(self) -> Any:
        raise PrivacyError(
            "An invitation cannot be pickled: it holds an agent's secret. Put its text into an "
            "environment variable of the other process, and call connect('env:NAME') there."
        )

    @property
    def trusted(self) -> bytes:
        """The server's certificate as PEM."""
        return x509.load_der_x509_certificate(self.certificate).public_bytes(Encoding.PEM)

    @property
    def name(self) -> str:
        """By which the certificate calls the server."""
        given = x509.load_der_x509_certificate(self.certificate)
        try:
            known = given.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
        except x509.ExtensionNotFound:
            known = x509.SubjectAlternativeName([])
        names = [
            *known.get_values_for_type(x509.DNSName),
            *map(str, known.get_values_for_type(x509.IPAddress)),
            *(str(a.value) for a in given.subject.get_attributes_for_oid(NameOID.COMMON_NAME)),
        ]
        return names[0].replace("*", "any") if names else _NAME

    def text(self) -> str:
        """The invitation in one line."""
        rest = f"{self.agent}?server={_written(self.certificate)}#{_written(self.secret)}"
        return f"privbo://{place(self.address)}/{rest}"


def _written(data: bytes) -> str:
    return base64.urlsafe_b64encode(data).decode().rstrip("=")


def _read(text: str) -> bytes:
    return base64.b64decode(text + "=" * (-len(text) % 4), altchars=b"-_", validate=True)


def invitation_from(text: str) -> Invitation:
    """Reads an invitation, or what an environment variable holds; errors never repeat it.

    Raises:
        ValueError: If it is none, or the variable is not set.
    """
    if text.startswith("env:"):
        name = text.removeprefix("env:")
        text = variable(name)
        if not text and name.isidentifier():  # anything else may be an invitation by mistake
            raise ValueError(
                f"connect('env:{name}') takes the invitation from the environment variable "
                f"{name!r}, which is not set in this process."
            )
    found = None
    with suppress(Exception):  # raised below: the parsers' own errors may quote the secret
        found = _parsed(text.strip())
    if found is not None and not _signs_others(x509.load_der_x509_certificate(found.certificate)):
        return found
    raise ValueError(
        "This is not an invitation. Pass the text that server.invitation(agent) gave, unchanged, "
        "or 'env:NAME' for the text in an environment variable. One that names an authority's "
        "certificate is none: each certificate that it signs would pass for the server's."
    )


def _parsed(text: str) -> Invitation:
    parts = urllib.parse.urlsplit(text)
    agent, secret = parts.path.removeprefix("/"), _read(parts.fragment)
    if parts.scheme != "privbo" or not parts.hostname or not parts.port:
        raise ValueError
    if len(secret) != 32 or not agent.isdecimal() or not parts.query.startswith("server="):
        raise ValueError
    parts.hostname.encode("idna")  # as a socket will
    certificate = _read(parts.query.removeprefix("server="))
    x509.load_der_x509_certificate(certificate)
    found = Invitation((parts.hostname, parts.port), int(agent), certificate, secret)
    found.name.encode("ascii")  # also: every extension can be read
    return found
