"""`hindmost top` and `hindmost simulate --collector` prove themselves as agents do."""

import asyncio
import datetime
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from hindmost.credentials import job_token, write_private
from hindmost_cli import main, pki
from hindmost_collector.collector import Collector

from tests.collecting import collecting
from tests.commands import Says
from tests.security.conftest import SECRET, tls_of


@contextmanager
def served(**flags: Any) -> Iterator[Collector]:
    """A collector with these settings, in a thread of its own: commands ask it as another process would."""
    ready, over = threading.Event(), threading.Event()
    found: list[Collector] = []

    async def serve() -> None:
        async with collecting(**flags) as collector:
            found.append(collector)
            ready.set()
            await asyncio.to_thread(over.wait)

    thread = threading.Thread(target=asyncio.run, args=(serve(),))
    thread.start()
    try:
        assert ready.wait(300)
        yield found[0]
    finally:
        over.set()
        thread.join()


def page(authority: Path, tmp_path: Path) -> dict[str, str]:
    """Settings of a collector with TLS on both ports."""
    config = tmp_path / "web.yml"
    config.write_text(
        f"tls_server_config:\n  cert_file: {authority}/collector.pem\n  key_file: {authority}/collector.key\n"
    )
    return {
        "web_config": str(config),
        "tls_cert": f"{authority}/collector.pem",
        "tls_key": f"{authority}/collector.key",
    }


def ports(collector: Collector) -> list[str]:
    """The addresses of agents and of the page, from here."""
    addresses: dict[str, str] = collector.addresses  # type: ignore[attr-defined]
    return [addresses[kind].replace("0.0.0.0", "127.0.0.1") for kind in ("grpc", "http")]  # noqa: S104


SIMULATE = ["simulate", "--ranks", "2", "--steps", "20", "--collector"]


def test_a_job_is_simulated_and_watched_with_tls_and_a_token(
    authority: Path, secret: Path, tmp_path: Path, says: Says
) -> None:
    """One authority and one file of the secret open both ports."""
    proofs = ["--tls-ca", f"{authority}/ca.pem", "--token-file", str(secret)]
    with served(token_file=str(secret), http="0.0.0.0:0", **page(authority, tmp_path)) as collector:
        grpc, http = ports(collector)
        assert "all acknowledged" in says(0, [*SIMULATE, grpc, *proofs]).out
        assert "simulated" in says(0, ["top", http, "--once", *proofs]).out
        token = job_token(SECRET, "another", writes=False)
        assert "no job yet" in says(0, ["top", f"https://{http}/?token={token}", "--once", *proofs[:2]]).out


@pytest.mark.parametrize(
    ("command", "proofs", "message"),
    [
        (SIMULATE, ["--tls-ca", "{ca}"], "refuses it: no valid token"),
        (SIMULATE, [], "if it speaks TLS, give --tls-ca"),
        (SIMULATE, ["--tls-ca", "{other}", "--token-file", "{secret}"], "has to be the authority of its certificate"),
        (["top", "--once"], ["--tls-ca", "{ca}"], "a valid token or password is needed: give --token-file FILE"),
        (["top", "--once"], ["--tls-ca", "{ca}", "--token-file", "{wrong}"], "wrong: it is not one of this collector"),
        (["top", "--once"], ["--tls-ca", "{other}"], "certificate not accepted: unable to get local issuer"),
        (["top", "--once"], [], "no answer from http://"),
    ],
)
def test_without_proof_each_says_what_to_give(
    authority: Path,
    secret: Path,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    command: list[str],
    proofs: list[str],
    message: str,
) -> None:
    """One line, without a token in it."""
    monkeypatch.setattr("hindmost_collector.simulate.stream.WELCOME_S", 2.0)
    paths = {"ca": f"{authority}/ca.pem", "other": f"{authority}/other/ca.pem", "secret": str(secret)}
    paths["wrong"] = str(tmp_path / "wrong")
    write_private(tmp_path / "wrong", "another-secret-altogether\n")
    with served(token_file=str(secret), http="0.0.0.0:0", **page(authority, tmp_path)) as collector:
        grpc, http = ports(collector)
        where = grpc if command is SIMULATE else http
        assert main([*command, where, *(proof.format(**paths) for proof in proofs)]) == 1
    said = capsys.readouterr().err
    assert message in said
    assert said.count("\n") == 1
    assert SECRET not in said


def test_a_simulation_needs_a_certificate_of_its_nodes(authority: Path, says: Says) -> None:
    """As agents do: one that names the simulated node sends for it, another's is refused."""
    pki.issue(authority, ["node0000"], datetime.timedelta(days=1))
    with served(**tls_of(authority)) as collector:
        grpc, _ = ports(collector)
        for name, code, line in (("node0000", 0, "all acknowledged"), ("n1", 1, "the certificate is not one of node")):
            own = ["--tls-ca", f"{authority}/ca.pem"]
            own += ["--tls-cert", f"{authority}/{name}.pem", "--tls-key", f"{authority}/{name}.key"]
            said = says(code, [*SIMULATE, grpc, *own])
            assert line in said.out + said.err


def test_a_jobs_token_simulates_that_job(secret: Path, tmp_path: Path, says: Says) -> None:
    """What is simulated is defined as agents define it."""
    token = tmp_path / "token"
    write_private(token, job_token(SECRET, "simulated-0") + "\n")
    with served(token_file=str(secret)) as collector:
        for seed, code, line in (("0", 0, "all acknowledged"), ("1", 1, "the token is not one of job 'simulated-1'")):
            said = says(code, [*SIMULATE, ports(collector)[0], "--seed", seed, "--token-file", str(token)])
            assert line in said.out + said.err


def test_an_address_of_ipv6_is_printed_as_it_is_given(secret: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """With brackets: agents, commands and browsers take it as it is."""
    with served(listen="[::1]:0", http="[::1]:0", token_file=str(secret)) as collector:
        grpc, http = ports(collector)
        assert main([*SIMULATE, grpc, "--token-file", str(secret)]) == 0
        assert main(["top", http, "--once", "--token-file", str(secret)]) == 0
    assert "all acknowledged" in capsys.readouterr().out
