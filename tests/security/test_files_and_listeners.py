"""What the local machine is trusted with: files of secrets, directories, and ports that open."""

import asyncio
import contextlib
import datetime
import http.client
import os
import re
import shutil
import socket
import ssl
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from hindmost import ring
from hindmost.credentials import Client, job_token, private_directory, secrets_of
from hindmost.errors import HindmostError, UsageError
from hindmost.web_config import WebConfig
from hindmost_agent.delivery.spool import Spool
from hindmost_agent.exposition import listen
from hindmost_agent.settings import settings
from hindmost_cli import pki
from hindmost_cli.run.environment import proof, run_directory
from hindmost_collector.options import resolve
from hindmost_collector.serve import http as page
from hindmost_collector.serve.credentials import EVERYONE, Door, Gate
from hindmost_collector.simulate import Scenario
from hindmost_collector.simulate.write import simulated
from hindmost_proto.address import Address

from tests.collecting import collecting
from tests.needs import need
from tests.security.conftest import SECRET
from tests.servers import listening
from tests.waiting import wait_until

bcrypt = pytest.importorskip("bcrypt")


class Nothing:
    """An HTTP side with no jobs."""

    live = None

    def metrics(self) -> bytes:
        return b""

    def ready(self) -> str | None:
        return "the store at /secret/path fails"


def door(**flags: Any) -> Door:
    """Who gets in with these options."""
    options = resolve(flags, {})
    return Door(Gate(options), options)


@contextlib.contextmanager
def serving(door: Door | None = None) -> Iterator[int]:
    """The port of a page behind this door."""
    served = page.Page(("127.0.0.1", 0), Nothing(), door)  # type: ignore[arg-type]
    try:
        yield int(served.address.rpartition(":")[2])
    finally:
        served.close()


def answer(port: int, path: str, headers: dict[str, str] | None = None) -> tuple[int, bytes]:
    """Status and body of a page."""
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=200)
    connection.request("GET", path, headers=headers or {})
    found = connection.getresponse()
    body = found.read()
    connection.close()
    return found.status, body


def written(path: Path, text: str = SECRET, mode: int = 0o600, owner: int | None = None) -> str:
    """A file as an attacker, or a hurried administrator, leaves it."""
    path.write_text(text)
    path.chmod(mode)
    if owner is not None:
        need("root")
        os.chown(path, owner, owner)
    return str(path)


def fifo(path: Path) -> str:
    """What would be waited for without an end."""
    os.mkfifo(path, 0o600)
    return str(path)


FILES: dict[str, tuple[Callable[[Path], str], str]] = {
    "others may read it": (lambda path: written(path, mode=0o644), "other users may read it; run: chmod 600"),
    "a group may": (lambda path: written(path, mode=0o660), "other users may read it"),
    "another user's": (lambda path: written(path, owner=4711), "user 4711 owns it"),
    "empty": (lambda path: written(path, " \n"), "empty; write one with: hindmost pki secret"),
    "short": (lambda path: written(path, "hunter2"), "16 or more printable ASCII characters"),
    "no text": (lambda path: written(path, "\x00" * 40), "16 or more printable ASCII characters"),
    "huge": (lambda path: written(path, "x" * (2 << 20)), "larger than 1 MiB"),
    "a FIFO": (fifo, "not a file"),
    "a directory": (lambda path: (path.mkdir(), str(path))[1], ""),
    "missing": (str, "No such file"),
}


@pytest.mark.parametrize("kind", FILES)
def test_a_secret_is_in_a_file_of_its_own_user(tmp_path: Path, kind: str) -> None:
    """Any other file is refused in a line that names it and never its content."""
    make, line = FILES[kind]
    with pytest.raises(UsageError) as caught:
        secrets_of(make(tmp_path / "secret"))
    assert line in str(caught.value)
    assert str(tmp_path / "secret") in str(caught.value)
    assert SECRET not in str(caught.value)


def test_a_certificate_never_takes_the_authoritys_place(authority: Path) -> None:
    """A node that is called as the authority's file is refused."""
    before = [(authority / name).read_bytes() for name in ("ca.pem", "ca.key")]
    with pytest.raises(UsageError, match="NODE ca: the authority's own file has this name"):
        pki.issue(authority, ["ca"], datetime.timedelta(days=1))
    assert [(authority / name).read_bytes() for name in ("ca.pem", "ca.key")] == before


def test_a_renewal_that_fails_leaves_the_former_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The node keeps key and certificate; the next attempt renews both."""
    pki.initialise(tmp_path / "ca")
    made = pki.issue(tmp_path / "ca", ["n0"], datetime.timedelta(days=1))
    before = made.read_bytes()
    names = sorted(path.name for path in made.parent.iterdir())

    def full(path: Path, text: str) -> None:
        path.write_text(text[:9])
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patched:
        patched.setattr("hindmost.credentials.write_private", full)
        with pytest.raises(HindmostError, match="No space left"):
            pki.issue(tmp_path / "ca", ["n0"], datetime.timedelta(days=1))
    assert made.read_bytes() == before
    assert sorted(path.name for path in made.parent.iterdir()) == names
    assert pki.issue(tmp_path / "ca", ["n0"], datetime.timedelta(days=1)).read_bytes() != before
    assert sorted(path.name for path in made.parent.iterdir()) == names


@pytest.mark.parametrize(("name", "known"), [("::1", True), ("fd00::7", True), ("fe80::1%../x", False), ("-x", False)])
def test_a_certificate_is_of_a_name_or_an_address(authority: Path, tmp_path: Path, name: str, known: bool) -> None:
    """Also of IPv6; a zone could have any characters."""
    if known:
        assert pki.issue(authority, [name], datetime.timedelta(days=1), tmp_path).name == f"{name}.pem"
    else:
        with pytest.raises(UsageError, match="not a host name or address"):
            pki.issue(authority, [name], datetime.timedelta(days=1), tmp_path)


def test_a_secret_is_not_overwritten(tmp_path: Path) -> None:
    """The line says what to do."""
    command = [sys.executable, "-m", "hindmost", "pki", "secret", str(tmp_path / "secret")]
    subprocess.run(command, check=True, capture_output=True)
    again = subprocess.run(command, check=False, capture_output=True, text=True)
    assert again.stderr.endswith("secret: File exists; choose another, or remove it\n")


PAIRS = {
    "another's key": ("n0.pem", "n1.key", "--tls-cert {}/n0.pem, --tls-key {}/n1.key: the key is not that of the"),
    "no key": ("n0.pem", "junk", "--tls-key {}/junk: no private key in it"),
    "no certificate": ("junk", "n0.key", "--tls-cert {}/junk: no certificate in it"),
    "a missing certificate": ("none", "n0.key", "--tls-cert {}/none: No such file"),
}


@pytest.mark.parametrize("kind", PAIRS)
def test_a_pair_that_cannot_be_used_is_named(authority: Path, kind: str) -> None:
    """Before a port is opened, with its options."""
    cert, key, line = PAIRS[kind]
    written(authority / "junk", "hello")
    options = resolve({"tls_cert": f"{authority}/{cert}", "tls_key": f"{authority}/{key}"}, {})
    with pytest.raises(UsageError) as caught:
        Gate(options).server()
    assert line.replace("{}", str(authority)) in str(caught.value)


def linked(path: Path) -> None:
    """A link to what the user has elsewhere."""
    (path.parent / "elsewhere").mkdir(mode=0o700)
    path.symlink_to(path.parent / "elsewhere")


def owned(path: Path, owner: int = 4711) -> None:
    """A directory that another user made first."""
    need("root")
    path.mkdir(mode=0o777)
    os.chown(path, owner, owner)


def open_to_all(path: Path) -> None:
    """One that others may write."""
    path.mkdir()
    path.chmod(0o777)


@pytest.mark.parametrize(
    ("make", "line"), [(linked, "is a symbolic link"), (owned, "belongs to user 4711"), (open_to_all, "chmod go-w")]
)
def test_a_spool_is_its_users_alone(tmp_path: Path, make: Callable[[Path], None], line: str) -> None:
    """A directory that others could change is refused, and nothing is written there."""
    folder = tmp_path / "spool"
    make(folder)
    with pytest.raises(UsageError, match=line):
        Spool(folder, 1 << 20)
    assert list(folder.iterdir()) == []


def test_what_is_made_is_for_its_user_alone(tmp_path: Path) -> None:
    """Spool, run directory and credentials of a run cannot be read by others."""
    before = os.umask(0o022)
    try:
        Spool(tmp_path / "spool", 1 << 20).close()
        directory, _ = run_directory(tmp_path / "run", "j")
        made, note = proof(directory, "j", encrypted=True)
    finally:
        os.umask(before)
    assert note is None
    assert re.fullmatch(r"[0-9a-f]{64}", made.fingerprint)
    for folder in (tmp_path / "spool", directory, directory / "credentials"):
        assert folder.stat().st_mode & 0o777 == 0o700
    files = [*(tmp_path / "spool").iterdir(), *(directory / "credentials").iterdir()]
    assert {path.stat().st_mode & 0o777 for path in files} == {0o600}
    secret = (directory / "credentials/secret").read_text().strip()
    assert secret not in " ".join(made.collector_options)
    assert made.token not in made.variables(elsewhere=False).values()
    assert secret not in "".join(made.variables(elsewhere=True).values())


def test_a_ring_that_is_a_link_is_not_read(tmp_path: Path) -> None:
    """An agent with more rights than a job follows no link of that job."""
    (tmp_path / "victim").write_bytes(b"x" * 4096)
    (tmp_path / "1.ring").symlink_to(tmp_path / "victim")
    with pytest.raises((OSError, ValueError, HindmostError)):
        ring.Reader(tmp_path / "1.ring")


def test_a_recording_with_a_pipe_or_a_device_in_it_is_read(tmp_path: Path) -> None:
    """A reader of another user's folder does not wait for ever, and reads an end of each file."""
    simulated(Scenario(ranks=2, steps=12), tmp_path / "whole")
    runs = []
    for what in ("meta.json", ".lock", "segments/steps/*.parquet", "segments/metrics/*.parquet"):
        for node in ("pipe", "/dev/zero"):
            run = shutil.copytree(tmp_path / "whole", tmp_path / str(len(runs)))
            (path,) = run.glob(what)
            path.unlink()
            if node == "pipe":
                os.mkfifo(path)
            else:
                path.symlink_to(node)
            runs.append(str(run))
    script = r"""
import sys, hindmost_cli
for run in sys.argv[1:]:
    print(hindmost_cli.main(["report", run]), end="\f")
"""
    command = [sys.executable, "-c", script, *runs]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    *reports, _ = done.stdout.split("\f")
    assert [text.endswith("\n0") for text in reports] == [True] * len(runs), done.stderr
    assert all("2 ranks" in text or "torn and was left out" in text for text in reports)


def test_a_directory_below_a_link_of_another_user_is_not_used(tmp_path: Path) -> None:
    """Nor is a link above, where another user made it."""
    need("root")
    (tmp_path / "real").mkdir()
    (tmp_path / "link").symlink_to(tmp_path / "real")
    os.chown(tmp_path / "link", 4711, 4711, follow_symlinks=False)
    with pytest.raises(OSError, match="a symbolic link of user 4711"):
        private_directory(tmp_path / "link" / "spool")


OPEN: dict[str, tuple[Callable[[], Any], str]] = {
    "collector, every address": (lambda: resolve({"listen": ":9460"}, {}), "--listen :9460: the network reaches it"),
    "collector, IPv6": (lambda: resolve({"listen": "[::]:9460"}, {}), "--listen [::]:9460: the network reaches it"),
    "collector, a name": (lambda: resolve({"listen": "no.such.host:1"}, {}), "the network reaches it"),
    "page": (lambda: resolve({"http": "0.0.0.0:9461"}, {}), "--http 0.0.0.0:9461: the network reaches it"),
    "relay": (lambda: resolve({"relay_to": "c:1", "listen": ":1"}, {}), "the network reaches it"),
    "a variable": (lambda: resolve({}, {"HINDMOST_COLLECTOR_HTTP": ":1"}), "HINDMOST_COLLECTOR_HTTP :1: the network"),
    "agent": (lambda: settings(listen=":9400"), "--listen :9400: the network reaches it"),
    "header without a proxy": (
        lambda: resolve({"http": ":1", "token_file": "f", "user_header": "X"}, {}), "anyone could send it",
    ),
}  # fmt: skip


@pytest.mark.parametrize("kind", OPEN)
def test_a_port_that_the_network_reaches_is_not_opened_bare(kind: str) -> None:
    """One line names the port and the remedy."""
    start, line = OPEN[kind]
    with pytest.raises(UsageError) as caught:
        start()
    assert line in str(caught.value)
    assert len(str(caught.value).splitlines()) == 1
    if "network" in line:
        assert "--insecure" in str(caught.value)
        assert "docs/how-to/secure.md" in str(caught.value)


@pytest.mark.parametrize("where", ["127.0.0.1:0", "localhost:0", "[::1]:0", "127.9.9.9:0"])
def test_loopback_needs_nothing(where: str) -> None:
    """What only this machine reaches opens as it always did."""
    assert resolve({"listen": where, "http": where}, {}).open_ports == {}
    assert not settings(listen=where).insecure


@pytest.mark.parametrize(("text", "protects"), [("http_server_config: {headers: {}}", False), ("", True)])
def test_a_web_config_protects_where_it_asks_who_connects(tmp_path: Path, text: str, protects: bool) -> None:
    """A file of headers alone does not permit a port on a network; the line says what it lacks."""
    hashed = bcrypt.hashpw(b"right", bcrypt.gensalt(4)).decode()
    path = written(tmp_path / "web.yml", text or f"basic_auth_users: {{a: {hashed}}}")
    starts = (
        lambda: resolve({"http": ":1", "web_config": path}, {}),
        lambda: resolve({"http": ":1", "web_config": path, "token_file": "f", "user_header": "X"}, {}),
        lambda: settings(listen=":9400", web_config=path),
    )
    for start in starts:
        if protects:
            start()
            continue
        with pytest.raises(UsageError, match="give basic_auth_users or client_ca_file"):
            start()


def test_tls_alone_is_logged(authority: Path, secret: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """``--tls-cert`` alone lets everyone in; a page with headers alone and a secret needs a token."""
    line = "everyone who reaches it may send for every job"
    tls = {"listen": ":1", "tls_cert": f"{authority}/n0.pem", "tls_key": f"{authority}/n0.key"}
    path = written(tmp_path / "web.yml", "http_server_config: {headers: {}}")
    made = door(**tls, http=":1", web_config=path, token_file=str(secret))
    assert (made.admits({}, ""), made.admits({}, SECRET)) == (None, EVERYONE)
    assert line not in caplog.text
    Gate(resolve(tls, {}))
    assert caplog.text.count(line) == 1


SERVICE = {"http": "127.0.0.1:9461"}


@pytest.mark.parametrize(
    ("flags", "asks"),
    [
        (SERVICE, True),
        ({**SERVICE, "out": "run", "job_id": "j"}, True),
        ({**SERVICE, "relay_to": "collector:9460"}, True),
        ({**SERVICE, "user_header": "X-User"}, False),
        ({**SERVICE, "out": "run", "job_id": "j", "exit_when_stdin_closes": True}, False),
        ({"http": ":9461", "exit_when_stdin_closes": True}, True),
    ],
)
def test_a_service_with_a_secret_asks_for_a_token_on_loopback(secret: Path, flags: dict[str, Any], asks: bool) -> None:
    """All users of its host reach it. That of `hindmost run` opens without, and one behind a proxy that has asked."""
    made = door(**flags, token_file=str(secret))
    found = made.admits({}, ""), made.admits({}, "not-the-secret-of-it"), made.admits({}, SECRET)
    assert [one is None for one in found] == [asks, True, False]


def test_a_service_without_a_secret_asks_for_nothing_on_loopback() -> None:
    """Nor for a token that it could not know."""
    assert door(**SERVICE).admits({}, "") == EVERYONE


def test_a_service_on_loopback_takes_the_token_of_an_address_and_is_ready_without(secret: Path) -> None:
    """A job's token shows its job; a service manager asks for readiness without one."""
    token = job_token(SECRET, "j", writes=False)
    tries = {
        "/metrics": 401, f"/metrics?token={SECRET}": 200, "/": 401, f"/?token={token}": 303, "/healthz": 200,
    }  # fmt: skip
    with serving(door(http="127.0.0.1:0", token_file=str(secret))) as port:
        assert {path: answer(port, path)[0] for path in tries} == tries


async def test_insecure_is_logged_and_a_metric(caplog: pytest.LogCaptureFixture) -> None:
    """Who permits an open port can alert on it."""
    async with collecting(listen="0.0.0.0:0", insecure=True) as collector:
        text = collector.endpoints.metrics().decode()
    assert 'hindmost_collector_insecure{port="listen"} 1' in text
    assert 'hindmost_collector_insecure{port="http"} 0' in text
    assert "everyone who reaches it is let in (--insecure)" in caplog.text


def test_default_ports_are_on_loopback_only(tmp_path: Path) -> None:
    """A scan of what collector and agent open by themselves finds 127.0.0.1 alone."""
    collector = [
        sys.executable,
        "-m",
        "hindmost",
        "collector",
        "--store",
        str(tmp_path / "s"),
        "--exit-when-stdin-closes",
    ]
    agent = [sys.executable, "-m", "hindmost", "agent", "--collector", "127.0.0.1:1", "--spool", str(tmp_path / "p")]
    agent += ["--exit-when-stdin-closes"]
    environ = {**os.environ, "HINDMOST_COLLECTOR_LISTEN": "127.0.0.1:0", "HINDMOST_COLLECTOR_HTTP": "127.0.0.1:0"}
    for command, count in ((collector, 2), (agent, 0)):
        with subprocess.Popen(
            command, env=environ, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL
        ) as process:
            assert process.stdout
            process.stdout.readline()
            found = listening(process.pid)
            process.kill()
        assert len(found) == count, found
        assert {address for address, _ in found} <= {"0100007F", "0000000000000000FFFF00000100007F"}  # 127.0.0.1
    assert resolve({}, {}).listen.startswith("127.0.0.1:")
    assert resolve({}, {}).http_address == ("127.0.0.1", 9461)


def web_config(folder: Path, text: str) -> WebConfig:
    """Of this content."""
    (folder / "web.yml").write_text(text)
    return WebConfig(str(folder / "web.yml"), "--web-config")


WRONG = {
    "no YAML": ("a: [", "not YAML"),
    "a list": ("- a", "the file is no mapping"),
    "an unknown key": ("rate_limit: {}", "rate_limit is not supported"),
    "an unknown key of TLS": ("tls_server_config: {cert: x}", "cert is not supported in tls_server_config"),
    "aliases": ("a: &a [x]\nb: [*a]", "with aliases"),
    "no key": ("tls_server_config: {cert_file: c.pem}", "needs cert_file and key_file"),
    "a missing file": ("tls_server_config: {cert_file: c.pem, key_file: k.key}", "k.key: No such file"),
    "no hash": ("basic_auth_users: {a: plain}", "the hash of user a is not bcrypt's"),
    "a number": ("basic_auth_users: {a: 1}", "names to bcrypt hashes"),
    "an old TLS": ("tls_server_config: {cert_file: c, key_file: k, min_version: TLS10}", "TLS versions are TLS12"),
    "a kind of client": ("tls_server_config: {client_auth_type: Maybe}", "client_auth_type Maybe is not supported"),
    "a CA that is not asked": ("tls_server_config: {client_ca_file: c}", "belong together"),
    "a header that ends": ('http_server_config: {headers: {A: "b\\r\\nC: d"}}', "not printable ASCII"),
}


@pytest.mark.parametrize("kind", WRONG)
def test_a_wrong_web_config_is_refused(tmp_path: Path, kind: str) -> None:
    """In one line that names the file and what is wrong; nothing of it is half applied."""
    text, line = WRONG[kind]
    with pytest.raises(UsageError) as caught:
        web_config(tmp_path, text)
    assert line in str(caught.value)
    assert f"--web-config {tmp_path}/web.yml" in str(caught.value)


#: Options that name a file, with what they need besides; ``PIPE`` is a pipe.
PIPES = {
    "agent": [
        "--web-config PIPE --listen 127.0.0.1:0",
        "--collector 127.0.0.1:1 --tls-ca PIPE",
        "--collector 127.0.0.1:1 --tls-ca CA --tls-cert PIPE --tls-key KEY",
    ],
    "collector": [
        "--tls-cert PIPE --tls-key KEY",
        "--tls-cert CERT --tls-key PIPE",
        "--tls-cert CERT --tls-key KEY --tls-ca PIPE",
        "--token-file PIPE",
        "--web-config PIPE",
        "--config PIPE",
        "--relay-to 127.0.0.1:1 --tls-ca PIPE",
    ],
    "report .": ["--config PIPE"],
    "top": ["127.0.0.1:1 --once --tls-ca PIPE"],
}


RUNS = """
import sys, hindmost_cli
for line in sys.stdin.read().splitlines():
    print(hindmost_cli.main(line.split()), file=sys.stderr)
"""


def test_a_pipe_is_refused_before_it_is_read(authority: Path, tmp_path: Path) -> None:
    """Its writer would be waited for, and what is read again later could be read only once."""
    os.mkfifo(tmp_path / "PIPE", 0o600)
    named = {"CA": "ca.pem", "CERT": "collector.pem", "KEY": "collector.key"}
    named = {word: f"{authority}/{name}" for word, name in named.items()} | {"PIPE": f"{tmp_path}/PIPE"}
    lines = [f"{one} {line}" for one, more in PIPES.items() for line in more]
    text = "\n".join(" ".join(named.get(word, word) for word in line.split()) for line in lines)
    command = [sys.executable, "-c", RUNS]
    done = subprocess.run(command, input=text, capture_output=True, text=True, timeout=120, check=False, cwd=tmp_path)
    options = [line.partition(" PIPE")[0].rpartition(" ")[2] for line in lines]
    wanted = [line for option in options for line in (f"{option} {tmp_path}/PIPE: not a file", "2")]
    assert [line.rpartition("hindmost ")[2].partition(": ")[2] or line for line in done.stderr.splitlines()] == wanted


@pytest.mark.parametrize("name", ["cert_file", "client_ca_file"])
def test_a_web_config_that_names_a_pipe_is_refused(authority: Path, tmp_path: Path, name: str) -> None:
    """As one that is a pipe."""
    os.mkfifo(tmp_path / "pipe", 0o600)
    paths = {"cert_file": f"{authority}/collector.pem", "client_ca_file": f"{authority}/ca.pem", name: "pipe"}
    said = ", ".join(f"{key}: {path}" for key, path in paths.items())
    with pytest.raises(UsageError, match=f"{name} {tmp_path}/pipe: not a file"):
        web_config(
            tmp_path,
            f"tls_server_config: {{{said}, key_file: {authority}/collector.key,"
            " client_auth_type: RequireAndVerifyClientCert}",
        )


async def test_an_agents_metrics_are_as_its_web_config_says(authority: Path, tmp_path: Path) -> None:
    """TLS, and a password; without it /healthz alone."""
    hashed = bcrypt.hashpw(b"right", bcrypt.gensalt(4)).decode()
    pair = f"cert_file: {authority}/collector.pem, key_file: {authority}/collector.key"
    web = web_config(tmp_path, f"tls_server_config: {{{pair}}}\nbasic_auth_users: {{prometheus: {hashed}}}")

    async def asked(port: int, path: str, header: str = "") -> bytes:
        context = ssl.create_default_context(cafile=f"{authority}/ca.pem")
        reader, writer = await asyncio.open_connection("127.0.0.1", port, ssl=context)
        writer.write(f"GET {path} HTTP/1.1\r\n{header}\r\n".encode())
        answer = await reader.read()
        writer.close()
        return answer

    server = await listen(Address("127.0.0.1", 0), lambda: b"up 1\n", web)
    port = server.sockets[0].getsockname()[1]
    basic = "Authorization: Basic cHJvbWV0aGV1czpyaWdodA==\r\n"
    found = [await asked(port, "/metrics", basic), await asked(port, "/metrics"), await asked(port, "/healthz")]
    server.close()
    right, none, health = found
    assert right.endswith(b"up 1\n")
    assert none.startswith(b"HTTP/1.1 401")
    assert b"up 1" not in none
    assert health.endswith(b"ok\n")


def test_a_page_with_certificates_asks_for_one(
    authority: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """As Prometheus' exporters: a client without one of the authority does not get through TLS, and the log says so."""
    pair = f"cert_file: {authority}/collector.pem, key_file: {authority}/collector.key"
    more = f"client_auth_type: RequireAndVerifyClientCert, client_ca_file: {authority}/ca.pem"
    (tmp_path / "web.yml").write_text(f"tls_server_config: {{{pair}, {more}}}")
    with serving(door(http="127.0.0.1:0", web_config=str(tmp_path / "web.yml"))) as port:
        for certificate, admitted in (("n0", True), (None, False)):
            context = ssl.create_default_context(cafile=f"{authority}/ca.pem")
            if certificate:
                context.load_cert_chain(f"{authority}/{certificate}.pem", f"{authority}/{certificate}.key")
            connection = http.client.HTTPSConnection("127.0.0.1", port, context=context, timeout=200)
            try:
                connection.request("GET", "/healthz")
                assert admitted == (connection.getresponse().read() == b"ok\n")
            except OSError:
                assert not admitted
        with contextlib.suppress(OSError, http.client.HTTPException):
            http.client.HTTPConnection("127.0.0.1", port, timeout=200).request("GET", "/")
        wait_until(lambda: "plain HTTP" in caplog.text)
    assert "was refused on the page's port: TLS failed: PEER_DID_NOT_RETURN_A_CERTIFICATE" in caplog.text
    assert "was refused on the page's port: it sent plain HTTP: use https://" in caplog.text


def test_the_cookie_of_an_earlier_job_locks_nobody_out(secret: Path) -> None:
    """On a page that asks for nothing it counts as none; a wrong token in a header or an address is refused."""
    with serving(door(http="127.0.0.1:0", token_file=str(secret), exit_when_stdin_closes=True)) as port:
        stale = {"Cookie": f"hindmost-{port}=j.old"}
        tries = (("", stale, 200), ("?token=j.old", {}, 401), ("", {**stale, "Authorization": "Bearer j.old"}, 401))
        for query, headers, status in tries:
            assert answer(port, f"/metrics{query}", headers)[0] == status


def test_slow_and_many_clients_are_closed(monkeypatch: pytest.MonkeyPatch) -> None:
    """A request that does not arrive ends, however steadily it drips; a connection too many is closed at once."""
    monkeypatch.setattr(page, "ARRIVAL_S", 0.5)
    monkeypatch.setattr(page, "CONNECTIONS", 4)
    with serving() as port:
        held = [socket.create_connection(("127.0.0.1", port)) for _ in range(4)]
        stopped = threading.Event()

        def drip() -> None:
            while not stopped.wait(0.05):
                for one in held:
                    with contextlib.suppress(OSError):
                        one.send(b"x")

        dripping = threading.Thread(target=drip)
        dripping.start()
        time.sleep(0.1)  # they are four threads of the server by now
        with socket.create_connection(("127.0.0.1", port)) as fifth:
            fifth.settimeout(20)
            assert fifth.recv(1) == b""
        for one in held:
            one.settimeout(20)
            with contextlib.suppress(ConnectionError):
                assert one.recv(1000) == b""
        stopped.set()
        dripping.join()
        assert answer(port, "/healthz")[1] == b"ok\n"


def test_a_job_with_ranks_elsewhere_has_a_token_and_a_fingerprint(tmp_path: Path) -> None:
    """An agent elsewhere takes both from its environment where it cannot read the run directory."""
    made, _ = proof(tmp_path, "j", encrypted=True)
    environ = made.variables(elsewhere=True)
    there = Client.of({}, {**environ, "HINDMOST_TOKEN_FILE": "/not/on/this/host"})
    assert there.bearer() == {"authorization": f"Bearer {made.token}"}
    assert there.fingerprint == made.fingerprint
    assert Client.of({}, environ).bearer() == there.bearer()
