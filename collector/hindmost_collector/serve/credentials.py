"""What a collector or relay asks of those who connect: agents on one port, people and Prometheus on the other."""

from __future__ import annotations

import logging
import ssl
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

import grpc
from hindmost.credentials import Client, Grant, Reread, bearer, file_content, granted, private, reason, secrets_of
from hindmost.errors import UsageError
from hindmost.web_config import WebConfig
from hindmost_proto import telemetry_pb2 as wire

if TYPE_CHECKING:
    from hindmost_collector.options import Options

log = logging.getLogger(__name__)


class Gate:
    """Who may connect to a collector, or to a relay, as its options say. Files are read again when they change.

    Raises ``UsageError`` where one of them cannot be used.
    """

    def __init__(self, options: Options) -> None:
        self._options = options
        self.insecure = options.open_ports
        path = options.token_file
        self._secrets = Reread([path], lambda: secrets_of(path)) if path else tuple[str, ...]
        self.relays = frozenset(one.strip() for one in options.relays.split(",") if one.strip())
        self.web = WebConfig(options.web_config, "--web-config") if options.web_config else None
        for what, where in self.insecure.items():
            log.warning(
                "%s on %s: no password and no token, everyone who reaches it is let in (--insecure)", what, where
            )
        if options.agents_are_anonymous:
            said = "TLS without --tls-ca or --token-file: everyone who reaches it may send for every job"
            log.warning("listen on %s: %s", options.listen, said)

    def server(self) -> grpc.ServerCredentials | None:
        """What TLS on the agents' port needs; None without TLS. Certificates are read again when they change."""
        options = self._options
        if not options.tls_cert:
            return None
        paths = [options.tls_cert, options.tls_key, options.tls_ca]
        config = Reread(paths, lambda: _configuration(*paths))
        served = [config()]

        def changed() -> Any:
            """None where nothing changed: gRPC replaces what handshakes under way still use, and may crash by it."""
            found = config()
            if found is served[0]:
                return None
            served[0] = found
            return found

        return grpc.dynamic_ssl_server_credentials(
            served[0], changed, require_client_authentication=bool(options.tls_ca)
        )

    def channel(self, target: str, *, options: list[tuple[str, int]]) -> grpc.aio.Channel:
        """A relay's connection to its collector. Raises ``UsageError``.

        With a certificate of its own and no ``--tls-ca``, it trusts the authorities of the system, or of
        ``GRPC_DEFAULT_SSL_ROOTS_FILE_PATH``: ``--tls-ca`` would ask its agents for certificates.
        """
        own = self._options
        return open_channel(target, Client(own.tls_cert, own.tls_key, own.tls_ca), options)

    def metadata(self) -> tuple[tuple[str, str], ...]:
        """What a relay says with its call."""
        known = self._secrets()
        return (("authorization", f"Bearer {known[0]}"),) if known else ()

    def of_call(self, context: Any) -> Grant | None:
        """What the caller on the agents' port may do; None for nothing."""
        nodes = None
        if self._options.tls_cert and self._options.tls_ca:
            nodes = _names(context.auth_context())
        known = self._secrets()
        if not known:
            return Grant(nodes=nodes)
        token = bearer(str(dict(context.invocation_metadata() or ()).get("authorization", "")))
        found = granted(known, token) if token else None
        return found._replace(nodes=nodes) if found is not None and found.writes else None

    def refuses(self, grant: Grant, hello: wire.Hello) -> str:
        """Why an agent that says this may not send; empty where it may."""
        if grant.job is not None and hello.job_id != grant.job:
            return f"the token is not one of job {hello.job_id!r:.80}"
        if grant.nodes is not None and not _is_named(hello.node, grant.nodes):
            return f"the certificate is not one of node {hello.node!r:.80}"
        return ""

    def relays_through(self, grant: Grant) -> bool:
        """Whether a caller may send for other agents: with the secret, and with the certificate of a relay."""
        return grant.job is None and (grant.nodes is None or bool(grant.nodes & self.relays))

    def of_token(self, token: str) -> Grant | None:
        """What a token on the HTTP port permits."""
        return granted(self._secrets(), token)


class Visitor(NamedTuple):
    """Who reads over HTTP. ``job``: the only one that a token shows; ``user``: whose jobs alone are shown; None: all.

    ``anonymous``: nothing but whether this collector is well.
    """

    job: str | None = None
    user: str | None = None
    anonymous: bool = False

    @property
    def sees_all(self) -> bool:
        """Whether nothing is kept from it."""
        return self.job is None and self.user is None and not self.anonymous


ANONYMOUS, EVERYONE = Visitor(anonymous=True), Visitor()


class Headers(Protocol):
    """Of a request."""

    def get(self, name: str, /) -> str | None: ...


class Door:
    """Who may read over HTTP."""

    def __init__(self, gate: Gate, options: Options) -> None:
        self.web = gate.web
        self._gate, self._header = gate, options.user_header
        #: With ``out`` there is nothing here but this job.
        self._only_job = options.job_id or None if options.out else None
        self._needs_proof = options.page_needs_proof and "http" not in gate.insecure

    def admits(self, headers: Headers, token: str, cookie: str = "") -> Visitor | None:
        """Who asks, by the headers and the ``token`` of its address or ``cookie``; None where it may not.

        A cookie that is not known any more, as of an earlier job on this port, counts as none.
        """
        authorization = headers.get("Authorization") or ""
        token = bearer(authorization) or token
        grant = self._gate.of_token(token or cookie)
        if token and grant is None:
            return None
        if grant is not None:
            return EVERYONE if grant.job == self._only_job else Visitor(grant.job)
        if self._needs_proof and not (self.web is not None and self.web.protects):
            return None
        if self.web is not None and not self.web.admits(authorization):
            return None
        if self._header:
            user = (headers.get(self._header) or "").strip()
            return Visitor(user=user) if user else ANONYMOUS
        return EVERYONE


def _configuration(cert: str, key: str, ca: str) -> Any:
    pair = private(key, "--tls-key").encode(), file_content(cert, "--tls-cert")
    if b"-----BEGIN CERTIFICATE-----" not in pair[1]:
        raise UsageError(f"--tls-cert {cert}: no certificate in it")
    if b"PRIVATE KEY-----" not in pair[0]:
        raise UsageError(f"--tls-key {key}: no private key in it")
    if b"ENCRYPTED" in pair[0]:
        raise UsageError(f"--tls-key {key}: it is encrypted; a key without a password is needed")
    try:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.set_ciphers("DEFAULT:@SECLEVEL=0")  # how strong a key has to be, gRPC decides
        context.load_cert_chain(cert, key, password="")  # without one, OpenSSL asks on the terminal
    except (OSError, ValueError) as error:
        raise UsageError(f"--tls-cert {cert}, --tls-key {key}: {reason(error)}") from error
    root = file_content(ca, "--tls-ca") if ca else None
    return grpc.ssl_server_certificate_configuration([pair], root_certificates=root)


def open_channel(target: str, client: Client, options: Sequence[tuple[str, int]] = ()) -> grpc.aio.Channel:
    """A connection to a collector, with TLS where the client has an authority or a certificate. Raises UsageError."""
    if not (client.ca or client.cert):
        return grpc.aio.insecure_channel(target, options=options)
    named = (client.ca, "--tls-ca"), (client.key, "--tls-key"), (client.cert, "--tls-cert")
    ca, key, cert = (file_content(path, what) if path else None for path, what in named)
    return grpc.aio.secure_channel(target, grpc.ssl_channel_credentials(ca, key, cert), options=options)


def _names(context: Mapping[str, Any]) -> frozenset[str]:
    """The names that a client's certificate has."""
    kinds = ("x509_common_name", "x509_subject_alternative_name")
    return frozenset(name.decode(errors="replace") for kind in kinds for name in context.get(kind, ()))


def _is_named(node: str, names: frozenset[str]) -> bool:
    """Whether a node is one of these: as it is, or without a domain where it says none."""
    return node in names or ("." not in node and node in {name.partition(".")[0] for name in names})
