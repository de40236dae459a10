"""What agents, relays and collectors prove to each other: tokens in files, certificates, and who may use them.

A collector keeps a secret in a file. Who has the secret may write and read every job. A job's token is made of it, by
HMAC-SHA256, so a collector recognises the tokens of all its jobs and keeps a list of none.
"""

from __future__ import annotations

import contextlib
import hashlib
import hmac
import ipaddress
import logging
import os
import secrets
import socket
import ssl
import stat
from base64 import urlsafe_b64encode
from dataclasses import dataclass
from typing import TYPE_CHECKING, Generic, NamedTuple, TypeVar
from urllib.parse import quote, unquote

from hindmost.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping
    from pathlib import Path

log = logging.getLogger(__name__)

T = TypeVar("T")

#: Of a file of secrets; a certificate with its chain is a few kB.
LARGEST_FILE = 1 << 20
#: Characters of a secret, at least: shorter ones can be guessed.
SHORTEST_SECRET = 16
#: OpenSSL's flag for a certificate of whatever date: who it is says its fingerprint, and clocks of nodes are wrong.
_NO_CHECK_TIME = 0x200000
PAGE = "docs/how-to/secure.md"


def is_loopback(host: str) -> bool:
    """Whether only this machine reaches ``host``: an address, or a name of which all addresses are loopback's."""
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        pass
    try:
        found = {entry[4][0] for entry in socket.getaddrinfo(host, None)} if host else set()
    except (OSError, UnicodeError):
        return False
    return bool(found) and all(ipaddress.ip_address(str(one).partition("%")[0]).is_loopback for one in found)


def file_content(path: str, what: str) -> bytes:
    """What a file holds. Raises ``UsageError``, also for a pipe or a device: their writer would be waited for."""
    return _opened(path, what)[1]


def private(path: str, what: str) -> str:
    """The text of a file that no other user may read: its owner is this user or root. Raises ``UsageError``.

    A group may read what root owns, as a service manager hands it out.
    """
    found, content = _opened(path, what)
    if found.st_uid not in (os.geteuid(), 0):
        raise UsageError(f"{what} {path}: user {found.st_uid} owns it; a file of your own is needed")
    if found.st_mode & (0o037 if found.st_uid == 0 else 0o077):
        raise UsageError(f"{what} {path}: other users may read it; run: chmod 600 {path}")
    try:
        return content.decode()
    except UnicodeDecodeError as error:
        raise UsageError(f"{what} {path}: not text") from error


def _opened(path: str, what: str) -> tuple[os.stat_result, bytes]:
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
    except OSError as error:
        raise UsageError(f"{what} {path}: {error.strerror}") from error
    try:
        found = os.fstat(descriptor)
        if not stat.S_ISREG(found.st_mode):
            raise UsageError(f"{what} {path}: not a file")
        content = os.read(descriptor, LARGEST_FILE + 1)
    except OSError as error:
        raise UsageError(f"{what} {path}: {error.strerror}") from error
    finally:
        os.close(descriptor)
    if len(content) > LARGEST_FILE:
        raise UsageError(f"{what} {path}: larger than {LARGEST_FILE >> 20} MiB")
    return found, content


def secrets_of(path: str, what: str = "--token-file") -> tuple[str, ...]:
    """The secrets or tokens in a file, one a line; the first is the newest. Raises ``UsageError``."""
    found = tuple(line.strip() for line in private(path, what).splitlines() if line.strip())
    if not found:
        raise UsageError(f"{what} {path}: empty; write one with: hindmost pki secret {path}")
    for one in found:
        if len(one) < SHORTEST_SECRET or not one.isascii() or not one.isprintable():
            raise UsageError(f"{what} {path}: each line needs {SHORTEST_SECRET} or more printable ASCII characters")
    return found


def new_secret() -> str:
    """256 random bits."""
    return secrets.token_urlsafe(32)


def write_private(path: Path, text: str) -> None:
    """A new file that its owner alone may read. Raises ``OSError``, also where there is one already."""
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
    with open(descriptor, "w", encoding="ascii") as file:  # noqa: PTH123 - of a descriptor
        file.write(text)


def private_directory(path: Path) -> None:
    """Make a directory for this user alone, below any that is there. Raises ``OSError`` where it is another user's.

    What another user owns, or may write, that user could replace; what is a symbolic link, its owner could point
    elsewhere. Above it links of this user and of root are followed.
    """
    for above in reversed(path.absolute().parents):
        with contextlib.suppress(FileNotFoundError):
            link = above.lstat()
            if stat.S_ISLNK(link.st_mode) and link.st_uid not in (os.geteuid(), 0):
                raise OSError(0, f"{above} is a symbolic link of user {link.st_uid}")
    with contextlib.suppress(FileExistsError):
        path.mkdir(parents=True, mode=0o700)
    found = path.lstat()
    if stat.S_ISLNK(found.st_mode):
        raise OSError(0, "is a symbolic link: name the directory itself")
    if not stat.S_ISDIR(found.st_mode):
        raise OSError(0, "is not a directory")
    if found.st_uid != os.geteuid():
        raise OSError(0, f"belongs to user {found.st_uid}")
    if found.st_mode & 0o022:
        raise OSError(0, f"other users may write it: chmod go-w {path}")


class Grant(NamedTuple):
    """What a token, or a certificate, permits: all jobs, or one; to write, or only to read; as these nodes."""

    job: str | None = None
    writes: bool = True
    nodes: frozenset[str] | None = None


def _mac(secret: str, purpose: str, job: str) -> str:
    digest = hmac.new(secret.encode(), f"hindmost {purpose}\0{job}".encode(), hashlib.sha256).digest()
    return urlsafe_b64encode(digest).decode().rstrip("=")


def job_token(secret: str, job: str, *, writes: bool = True) -> str:
    """The token of one job, which may write and read it; or only read it."""
    return f"{quote(job, safe='')}.{_mac(secret, 'write' if writes else 'read', job)}"


def granted(known: Iterable[str], token: str) -> Grant | None:
    """What ``token`` permits where ``known`` are the secrets; None for nothing. Takes as long for any wrong one."""
    job, _, mac = token.rpartition(".")
    job = unquote(job)
    found = None
    for secret in known:
        if hmac.compare_digest(secret.encode(), token.encode()):
            found = Grant()
        for writes in (True, False):
            wanted = _mac(secret, "write" if writes else "read", job)
            if job and hmac.compare_digest(wanted.encode(), mac.encode()):
                found = Grant(job, writes)
    return found


def bearer(header: str) -> str:
    """The token of an ``Authorization`` header; empty where it has none."""
    scheme, _, token = header.strip().partition(" ")
    return token.strip() if scheme.lower() == "bearer" else ""


class Reread(Generic[T]):
    """What ``load`` makes of files, made again when one of them changes. What fails to load later is logged and the old
    value stays: a file may be half written."""

    def __init__(self, paths: Iterable[str], load: Callable[[], T]) -> None:
        self._paths, self._load = [path for path in paths if path], load
        self._signature = self._look()
        self._value = load()

    def __call__(self) -> T:
        """The value of the files as they are now."""
        signature = self._look()
        if signature != self._signature:
            self._signature = signature
            try:
                self._value = self._load()
                log.info("read again, because it changed: %s", ", ".join(self._paths))
            except (OSError, UsageError) as error:
                log.warning("changed and cannot be used, the former stays in use: %s", error)
        return self._value

    def _look(self) -> list[tuple[int, ...]]:
        return [self._stat(path) for path in self._paths]

    @staticmethod
    def _stat(path: str) -> tuple[int, ...]:
        try:
            found = os.stat(path)  # noqa: PTH116 - for each connection
        except OSError:
            return ()
        return found.st_mtime_ns, found.st_size, found.st_ino


@dataclass(frozen=True)
class Client:
    """How a client of a collector proves itself, and knows the collector. Files are read for each connection.

    ``fingerprint`` is the SHA-256 of the collector's certificate in hexadecimal digits: with it neither names nor
    authorities count. ``token`` counts where there is no ``token_file``.
    """

    cert: str = ""
    key: str = ""
    ca: str = ""
    token_file: str = ""
    token: str = ""
    fingerprint: str = ""

    @classmethod
    def of(cls, flags: Mapping[str, str | None], environ: Mapping[str, str]) -> Client:
        """Options, or else variables ``HINDMOST_TLS_CERT`` …, checked. Raises ``UsageError``."""
        named = {
            "cert": "HINDMOST_TLS_CERT", "key": "HINDMOST_TLS_KEY", "ca": "HINDMOST_TLS_CA",
            "token_file": "HINDMOST_TOKEN_FILE", "token": "HINDMOST_TOKEN", "fingerprint": "HINDMOST_FINGERPRINT",
        }  # fmt: skip
        found = {name: flags.get(name) or environ.get(variable, "") for name, variable in named.items()}
        if found["token"] and found["token_file"] and not flags.get("token_file"):
            # The file of `hindmost run` is on its own node, or on a disk that others share; the variable goes along.
            found["token_file"] = found["token_file"] if os.access(found["token_file"], os.R_OK) else ""
        if bool(found["cert"]) != bool(found["key"]):
            raise UsageError("--tls-cert and --tls-key belong together: give both")
        client = cls(**{name: value or "" for name, value in found.items()})
        if client.cert and not (client.ca or client.fingerprint):
            raise UsageError("--tls-cert needs --tls-ca, the authority that signed the collector's certificate")
        client.bearer()
        if client.ca:
            client.context()
        return client

    @property
    def encrypts(self) -> bool:
        """Whether it speaks TLS."""
        return bool(self.ca or self.fingerprint)

    def bearer(self) -> dict[str, str]:
        """The header or metadata with the token, if there is one. Raises ``UsageError``."""
        token = secrets_of(self.token_file)[0] if self.token_file else self.token
        return {"authorization": f"Bearer {token}"} if token else {}

    def context(self, certificate: bytes = b"", speaks: str = "h2") -> ssl.SSLContext:
        """For one connection; with ``certificate`` (DER), to the server that has it. Raises ``UsageError``.

        ``speaks`` is the protocol that is named in the handshake: gRPC's, or ``http/1.1``.
        """
        for path, what in ((self.ca, "--tls-ca"), (self.cert, "--tls-cert")):
            if path:
                file_content(path, what)  # OpenSSL would wait for the writer of a pipe
        try:
            if certificate:
                context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
                context.check_hostname = False
                context.load_verify_locations(cadata=certificate)
                context.verify_flags |= _NO_CHECK_TIME | ssl.VERIFY_X509_PARTIAL_CHAIN
            else:
                context = ssl.create_default_context(cafile=self.ca or None)
            if self.cert:
                private(self.key, "--tls-key")
                context.load_cert_chain(self.cert, self.key)
        except (OSError, ValueError) as error:
            what = " ".join(one for one in (self.ca, self.cert, self.key) if one)
            raise UsageError(f"TLS with {what}: {reason(error)}") from error
        context.minimum_version = ssl.TLSVersion.TLSv1_2
        context.set_alpn_protocols([speaks])
        return context

    def pins(self, certificate: bytes) -> bool:
        """Whether a server's certificate (DER) is the one that is expected."""
        wanted = self.fingerprint.replace(":", "").lower()
        return hmac.compare_digest(hashlib.sha256(certificate).hexdigest(), wanted)


def unverified() -> ssl.SSLContext:
    """To ask a server for its certificate, and for nothing else."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE
    context.set_alpn_protocols(["h2"])
    return context


def reason(error: Exception) -> str:
    """Why TLS failed, in a few words."""
    if isinstance(error, ssl.SSLCertVerificationError):
        return f"certificate not accepted: {error.verify_message}"
    if isinstance(error, ssl.SSLError):
        known = {
            "NO_CERTIFICATE_OR_CRL_FOUND": "no certificate in it",
            "KEY_VALUES_MISMATCH": "the key is not that of the certificate",
            "WRONG_VERSION_NUMBER": "the other side does not speak TLS",
        }
        return known.get(error.reason or "", (error.reason or str(error)).replace("_", " ").lower())
    return getattr(error, "strerror", None) or str(error)
