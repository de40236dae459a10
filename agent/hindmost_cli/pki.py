"""``hindmost pki``: a small authority of one's own, certificates of nodes, and tokens of jobs."""

from __future__ import annotations

import contextlib
import datetime
import hashlib
import ipaddress
import os
import re
import shutil
import ssl
import subprocess
import sys
from typing import TYPE_CHECKING, Any

from hindmost import credentials
from hindmost.errors import HindmostError, UsageError

from hindmost_cli import arguments

if TYPE_CHECKING:
    import argparse
    from collections.abc import Mapping, Sequence
    from pathlib import Path

EPILOG = """\
examples:
  hindmost pki init /etc/hindmost/pki
  hindmost pki issue /etc/hindmost/pki collector.example.org node01 node02
  hindmost pki secret /etc/hindmost/secret
  (umask 077; hindmost pki token /etc/hindmost/secret JOB > token)

docs/how-to/secure.md says which file goes where."""

#: In the authority's folder; and of `hindmost run`.
CA, CA_KEY = "ca.pem", "ca.key"
CERTIFICATE, KEY = "collector.pem", "collector.key"
CA_DAYS, DAYS = 3650, 365
#: What openssl is asked for.
REQUEST = "req -x509 -newkey ec -pkeyopt ec_paramgen_curve:prime256v1 -nodes -subj /CN=hindmost -days 3650".split()
#: Certificates are valid from a while ago: nodes' clocks differ.
EARLIER = datetime.timedelta(days=1)
_NAME = re.compile(r"[A-Za-z0-9]([A-Za-z0-9._:-]{0,253}[A-Za-z0-9])?")


#: How many names each takes, and what they are.
COUNTS = {"init": (0, 0), "issue": (1, 100_000), "secret": (0, 0), "token": (1, 1)}
USES = {
    "init": "give the new folder alone",
    "issue": "give the authority's folder, then nodes",
    "secret": "give the new file alone",
    "token": "give the file of the secret, then one job",
}


def configure(parser: argparse.ArgumentParser) -> None:
    parser.epilog = EPILOG
    kinds = ("init", "issue", "secret", "token")
    add = parser.add_argument
    known = f"{{{','.join(kinds)}}}"
    add("made", choices=kinds, metavar=known, help="an authority, certificates of nodes, a secret, or a job's token")
    add("path", type=arguments.path("PATH"), metavar="PATH", help="folder of the authority, or file of the secret")
    add("names", nargs="*", metavar="NAME", help="of a node, as `hostname` says there (NODE,MORE: several); or the job")
    add("--days", type=int, default=DAYS, metavar="N", help=f"certificates are valid for N days (default: {DAYS})")
    add("--read-only", action="store_true", help="the token shows the job and sends nothing")


def run(args: argparse.Namespace) -> int:
    least, most = COUNTS[args.made]
    if not least <= len(args.names) <= most:
        raise UsageError(f"{args.made}: {USES[args.made]}")
    if args.made == "secret":
        _written(args.path, credentials.new_secret() + "\n", there="choose another, or remove it")
        sys.stdout.write(f"{args.path}: give it to the collector as --token-file\n")
    elif args.made == "token":
        secret = credentials.secrets_of(str(args.path), "PATH")[0]
        job = arguments.filled("NAME", args.names[0])
        sys.stdout.write(credentials.job_token(secret, job, writes=not args.read_only) + "\n")
    elif args.made == "init":
        initialise(args.path)
        sys.stdout.write(f"{args.path / CA}: the authority; keep {CA_KEY} on this machine\n")
    else:
        if not 1 <= args.days <= CA_DAYS:
            raise UsageError(f"--days {args.days}: from 1 to {CA_DAYS}")
        for names in args.names:
            made = issue(args.path, names.split(","), datetime.timedelta(days=args.days))
            sys.stdout.write(f"{made} {made.with_name(f'{made.name[:-4]}.key')}\n")
    return 0


def initialise(folder: Path) -> None:
    """Make an authority: ``ca.pem`` and ``ca.key``. Raises ``HindmostError``, also where there is one."""
    x509 = _x509()
    try:
        credentials.private_directory(folder)
    except OSError as error:
        raise HindmostError(f"{folder}: {error.strerror or error}") from error
    key = _new_key()
    name = _named("hindmost authority")
    made = _builder(name, name, key.public_key(), datetime.timedelta(days=CA_DAYS))
    made = made.add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
    usage = dict.fromkeys(
        "digital_signature content_commitment key_encipherment data_encipherment key_agreement encipher_only"
        " decipher_only".split(),
        False,
    )
    made = made.add_extension(x509.KeyUsage(**usage, key_cert_sign=True, crl_sign=True), critical=True)
    _written(folder / CA_KEY, _pem(key), there="choose another folder")
    _written(folder / CA, _signed(made, key), 0o644)


def issue(folder: Path, names: Sequence[str], valid: datetime.timedelta, out: Path | None = None) -> Path:
    """Make the certificate and key of a node that has these names; its path. Raises ``HindmostError``."""
    x509 = _x509()
    from cryptography.hazmat.primitives import serialization

    for name in names:
        if not (_NAME.fullmatch(name) or _is_address(name)):
            raise UsageError(f"NODE {name!r}: not a host name or address")
    if f"{names[0]}.pem" == CA:
        raise UsageError(f"NODE {names[0]}: the authority's own file has this name")
    try:
        authority = x509.load_pem_x509_certificate((folder / CA).read_bytes())
        text = credentials.private(str(folder / CA_KEY), "FOLDER").encode()
        signer: Any = serialization.load_pem_private_key(text, None)
    except OSError as error:
        raise UsageError(f"{error.filename}: {error.strerror}; make an authority with: hindmost pki init") from error
    except ValueError as error:
        raise UsageError(f"FOLDER {folder}: {CA} or {CA_KEY} cannot be read: {error}") from error
    key = _new_key()
    made = _builder(_named(names[0]), authority.subject, key.public_key(), valid)
    made = made.add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
    made = made.add_extension(x509.SubjectAlternativeName([_alternative(name) for name in names]), critical=False)
    uses = [x509.OID_SERVER_AUTH, x509.OID_CLIENT_AUTH]
    made = made.add_extension(x509.ExtendedKeyUsage(uses), critical=False)
    identifier = x509.AuthorityKeyIdentifier.from_issuer_public_key(signer.public_key())
    made = made.add_extension(identifier, critical=False)
    where = (out or folder) / f"{names[0]}.pem"
    files = {where.with_name(f"{names[0]}.key"): (_pem(key), 0o600), where: (_signed(made, signer), 0o644)}
    _replaced(files)
    return where


def ephemeral(folder: Path) -> tuple[str, str | None]:
    """Make a certificate that no one signed, for the life of one collector: agents know it by its fingerprint.

    The fingerprint; empty, with a sentence that says why, where nothing here can make one.
    """
    certificate, key = folder / CERTIFICATE, folder / KEY
    openssl = shutil.which("openssl")
    if openssl is None:
        try:
            own = _new_key()
        except HindmostError:
            return "", "other hosts send unencrypted: install openssl, or pip install cryptography"
        made = _builder(
            _named("hindmost run"), _named("hindmost run"), own.public_key(), datetime.timedelta(days=CA_DAYS)
        )
        _written(key, _pem(own))
        _written(certificate, _signed(made, own))
    else:
        before = os.umask(0o077)
        try:
            done = subprocess.run(
                [openssl, *REQUEST, "-keyout", str(key), "-out", str(certificate)],
                stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=20, check=False,
            )  # fmt: skip
        except (OSError, subprocess.TimeoutExpired) as error:
            return "", f"other hosts send unencrypted: {openssl}: {error}"
        finally:
            os.umask(before)
        if done.returncode:
            said = (done.stderr.strip().splitlines() or ["?"])[-1]
            return "", f"other hosts send unencrypted: {openssl} makes no certificate: {said}"
    der = ssl.PEM_cert_to_DER_cert(certificate.read_text(encoding="ascii"))
    return hashlib.sha256(der).hexdigest(), None


def _x509() -> Any:
    try:
        from cryptography import x509
    except ImportError as error:
        raise HindmostError("certificates need the package cryptography: pip install cryptography") from error
    return x509


def _new_key() -> Any:
    _x509()
    from cryptography.hazmat.primitives.asymmetric import ec

    return ec.generate_private_key(ec.SECP256R1())


def _named(name: str) -> Any:
    x509 = _x509()
    return x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, name[:64])])


def _alternative(name: str) -> Any:
    x509 = _x509()
    try:
        return x509.IPAddress(ipaddress.ip_address(name))
    except ValueError:
        return x509.DNSName(name)


def _is_address(name: str) -> bool:
    """Whether it is an IP address. Without a zone: that is of one host, and may have any characters."""
    try:
        ipaddress.ip_address(name)
    except ValueError:
        return False
    return "%" not in name


def _builder(subject: Any, issuer: Any, key: Any, valid: datetime.timedelta) -> Any:
    x509 = _x509()
    now = datetime.datetime.now(datetime.timezone.utc)
    made = x509.CertificateBuilder(issuer, subject, key, x509.random_serial_number(), now - EARLIER, now + valid)
    return made.add_extension(x509.SubjectKeyIdentifier.from_public_key(key), critical=False)


def _signed(made: Any, key: Any) -> str:
    from cryptography.hazmat.primitives import hashes, serialization

    text: bytes = made.sign(key, hashes.SHA256()).public_bytes(serialization.Encoding.PEM)
    return text.decode()


def _pem(key: Any) -> str:
    from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat

    text: bytes = key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())
    return text.decode()


def _written(path: Path, text: str, mode: int = 0o600, *, there: str = "") -> None:
    """Write a new file; ``there`` says what to do where there is one."""
    try:
        credentials.write_private(path, text)
        path.chmod(mode)
    except OSError as error:
        more = f"; {there}" if there and isinstance(error, FileExistsError) else ""
        raise HindmostError(f"{path}: {error.strerror}{more}") from error


def _replaced(files: Mapping[Path, tuple[str, int]]) -> None:
    """Write these texts with these modes. Former files go only when all new ones are on the disk."""
    new = {path: path.with_name(f"{path.name}.new") for path in files}
    try:
        for path, (text, mode) in files.items():
            new[path].unlink(missing_ok=True)  # of an attempt that was interrupted
            _written(new[path], text, mode)
        for path, written in new.items():
            written.replace(path)
    except OSError as error:
        raise HindmostError(f"{error.filename}: {error.strerror}") from error
    finally:
        for written in new.values():
            with contextlib.suppress(OSError):
                written.unlink()
