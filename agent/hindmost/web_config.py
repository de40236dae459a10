"""TLS, passwords and headers of an HTTP listener, from a file in the format of Prometheus' exporters (web-config).

https://github.com/prometheus/exporter-toolkit/blob/master/docs/web-configuration.md
"""

from __future__ import annotations

import base64
import hashlib
import hmac
import ssl
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hindmost.credentials import Reread, file_content, private, reason
from hindmost.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Mapping

VERSIONS = {"TLS12": ssl.TLSVersion.TLSv1_2, "TLS13": ssl.TLSVersion.TLSv1_3}
CLIENTS = ("NoClientCert", "RequireAndVerifyClientCert")
#: By section: the keys that are understood here. What is not understood is refused: it might protect something.
KEYS = {
    "": ("tls_server_config", "http_server_config", "basic_auth_users"),
    "tls_server_config": (
        "cert_file", "key_file", "client_auth_type", "client_ca_file", "min_version", "max_version",
    ),
    "http_server_config": ("http2", "headers"),
}  # fmt: skip
#: Checked where there is no such user, so that it takes as long.
_NOBODY = b"$2b$10$dUBckwqwG.lE4YH0F/Tkn.FC6h/VlW/3VDo.eyyGmnDldRcIYyR8m"
#: Passwords that were right are known by their hash: bcrypt takes a tenth of a second on purpose.
_REMEMBERED = 64


@dataclass(frozen=True)
class Contents:
    """What a file says; ``users`` maps names to bcrypt hashes."""

    tls: ssl.SSLContext | None = None
    verifies_clients: bool = False
    users: Mapping[str, bytes] = field(default_factory=dict)
    headers: Mapping[str, str] = field(default_factory=dict)


class WebConfig:
    """The file ``path``, named ``what`` where it is wrong; read again when it or a certificate changes.

    Raises ``UsageError``, of a package that is not installed too.
    """

    def __init__(self, path: str, what: str) -> None:
        self._what, self._where, self._path = what, f"{what} {path}", Path(path)
        self._known: dict[bytes, bytes] = {}
        self._contents: Reread[Contents] = Reread([path, *self._files()], self._load)

    @property
    def tls(self) -> ssl.SSLContext | None:
        """For the next connection; None where the listener speaks plain HTTP."""
        return self._contents().tls

    @property
    def protects(self) -> bool:
        """Whether a client has to prove who it is."""
        found = self._contents()
        return found.verifies_clients or bool(found.users)

    @property
    def headers(self) -> Mapping[str, str]:
        """To send with each answer."""
        return self._contents().headers

    def admits(self, authorization: str) -> bool:
        """Whether a request with this ``Authorization`` header is let in. A right password is slow once."""
        contents = self._contents()
        if not contents.users:
            return True
        scheme, _, encoded = authorization.strip().partition(" ")
        try:
            user, _, password = base64.b64decode(encoded, validate=True).decode().partition(":")
        except ValueError:
            return False
        if scheme.lower() != "basic" or len(password.encode()) > 72:  # bcrypt reads no more
            return False
        expected = contents.users.get(user, b"")
        key = hashlib.sha256(b"\0".join((user.encode(), password.encode(), expected))).digest()
        if expected and hmac.compare_digest(self._known.get(key, b""), expected):
            return True
        right: bool = _bcrypt(self._where).checkpw(password.encode(), expected or _NOBODY) and bool(expected)
        if right:
            if len(self._known) >= _REMEMBERED:
                self._known.clear()
            self._known[key] = expected
        return right

    def _files(self) -> list[str]:
        tls = self._section(self._read(), "tls_server_config")
        return [str(self._beside(tls[key])) for key in ("cert_file", "key_file", "client_ca_file") if tls.get(key)]

    def _read(self) -> Mapping[str, Any]:
        yaml = _imported("yaml", self._where, "PyYAML")
        content = file_content(str(self._path), self._what)
        if b"&" in content and b"*" in content:  # aliases grow without bound
            raise UsageError(f"{self._where}: with aliases, which are not supported")
        try:
            found = yaml.safe_load(content)
        except (yaml.YAMLError, ValueError, RecursionError) as error:
            raise UsageError(f"{self._where}: not YAML: {error}") from error
        return self._checked("", {} if found is None else found)

    def _section(self, whole: Mapping[str, Any], name: str) -> Mapping[str, Any]:
        found = whole.get(name)
        return self._checked(name, {} if found is None else found)

    def _checked(self, name: str, found: Any) -> Mapping[str, Any]:
        if not isinstance(found, dict):
            raise UsageError(f"{self._where}: {name or 'the file'} is no mapping")
        for key in found:
            if name in KEYS and key not in KEYS[name]:
                known = ", ".join(KEYS[name])
                raise UsageError(f"{self._where}: {key!s:.80} is not supported{f' in {name}' * bool(name)}: {known}")
        return found

    def _load(self) -> Contents:
        whole = self._read()
        users = self._section(whole, "basic_auth_users")
        for user, hashed in users.items():
            if not isinstance(user, str) or not isinstance(hashed, str):
                raise UsageError(f"{self._where}: basic_auth_users maps names to bcrypt hashes")
            try:
                _bcrypt(self._where).checkpw(b"", hashed.encode())
            except ValueError as error:
                raise UsageError(f"{self._where}: the hash of user {user:.80} is not bcrypt's") from error
        headers = self._section(whole, "http_server_config").get("headers") or {}
        self._checked("headers", headers)
        for key, value in headers.items():
            if not f"{key}{value}".isascii() or not f"{key}{value}".isprintable():
                raise UsageError(f"{self._where}: header {key!r:.80} is not printable ASCII")
        tls = self._section(whole, "tls_server_config")
        context = self._context(tls) if tls else None
        return Contents(
            context,
            bool(context and context.verify_mode is ssl.CERT_REQUIRED),
            {user: hashed.encode() for user, hashed in users.items()},
            {str(key): str(value) for key, value in headers.items()},
        )

    def _context(self, tls: Mapping[str, Any]) -> ssl.SSLContext:
        kind, ca = tls.get("client_auth_type") or CLIENTS[0], tls.get("client_ca_file")
        if kind not in CLIENTS:
            raise UsageError(f"{self._where}: client_auth_type {kind!s:.80} is not supported: {' or '.join(CLIENTS)}")
        if (kind == CLIENTS[1]) != bool(ca):
            raise UsageError(f"{self._where}: {CLIENTS[1]} and client_ca_file belong together")
        if not tls.get("cert_file") or not tls.get("key_file"):
            raise UsageError(f"{self._where}: tls_server_config needs cert_file and key_file")
        versions = [tls.get("min_version") or "TLS12", tls.get("max_version") or "TLS13"]
        if not all(isinstance(one, str) and one in VERSIONS for one in versions):
            raise UsageError(f"{self._where}: TLS versions are {' and '.join(VERSIONS)}")
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.minimum_version, context.maximum_version = (VERSIONS[one] for one in versions)
        key = str(self._beside(tls["key_file"]))
        private(key, f"{self._where}: key_file")
        for name in ("cert_file", "client_ca_file") if ca else ("cert_file",):
            file_content(str(self._beside(tls[name])), f"{self._where}: {name}")
        try:
            context.load_cert_chain(self._beside(tls["cert_file"]), key)
            if ca:
                context.load_verify_locations(self._beside(ca))
                context.verify_mode = ssl.CERT_REQUIRED
        except (OSError, ValueError) as error:
            raise UsageError(f"{self._where}: tls_server_config: {reason(error)}") from error
        return context

    def _beside(self, name: Any) -> Path:
        """A path, relative to the file that names it."""
        if not isinstance(name, str) or "\0" in name:
            raise UsageError(f"{self._where}: {name!r:.80} is no path")
        return self._path.parent / name


def _bcrypt(where: str) -> Any:
    return _imported("bcrypt", f"{where}: basic_auth_users", "bcrypt")


def _imported(name: str, where: str, package: str) -> Any:
    import importlib  # noqa: PLC0415 - where used

    try:
        return importlib.import_module(name)
    except ImportError as error:
        raise UsageError(f"{where}: needs {package}: pip install {package}") from error
