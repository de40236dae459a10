"""What others try on a collector: as another user, another job, another host, with hostile content. Each is refused
with one clear line; what another job has is not shown and not changed, and the collector goes on."""

import asyncio
import base64
import json
import re
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from hashlib import blake2b
from pathlib import Path
from typing import Any

import grpc
import pytest
from hindmost.credentials import Client, job_token
from hindmost_agent.delivery.stream import connect
from hindmost_agent.jobs.ranks import RankProcess
from hindmost_proto import METHOD
from hindmost_proto import telemetry_pb2 as wire
from hindmost_proto.address import parse

from tests.pages import fetched
from tests.security.conftest import SECRET, greeted, hello_of
from tests.waiting import PATIENCE_S

bcrypt = pytest.importorskip("bcrypt")
#: Stands in the victim's command line: who else is shown it has read another's job.
PRIVATE = "theirs-secret-argument"
#: What a job may call itself, hoping for a browser or a scraper that takes it for more.
MARKUP = '</script><script>alert(1)</script>"} 1\nevil_metric 1\n'
MINE, THEIRS = job_token(SECRET, "mine"), job_token(SECRET, "theirs")
STEPS = 3


def ref(text: str) -> int:
    """The reference of content, as agents make it."""
    return int.from_bytes(blake2b(text.encode(), digest_size=8).digest(), "little")


def rank_of(job: str, node: str, **more: Any) -> wire.Rank:
    known = RankProcess(job, 0, 1, 0, 7, 9)
    facts = {"ref": known.ref(node), "command": "train.py", "user": job, **more}
    return wire.Rank(job_id=job, world_size=1, node=node, pid=7, process_start_ticks=9, **facts)


def steps_of(rank: int, sequence: int, first: int = 0) -> wire.AgentMessage:
    now = time.monotonic_ns()
    steps = range(first, first + STEPS)
    block = wire.StepBlock(
        rank=rank, step=steps, start_ns=[now + step * 10**6 for step in steps], duration_ns=[10**6] * STEPS
    )
    return wire.AgentMessage(batch=wire.Batch(sequence=sequence, steps=[block]))


def defined(*ranks: wire.Rank, schemas: tuple[wire.Schema, ...] = ()) -> wire.AgentMessage:
    return wire.AgentMessage(definitions=wire.Definitions(ranks=ranks, schemas=schemas))


class Target:
    """A collector as a service, that records all jobs, and where ``theirs`` runs."""

    def __init__(self, folder: Path) -> None:
        (folder / "secret").write_text(SECRET)
        hashed = bcrypt.hashpw(b"right", bcrypt.gensalt(4)).decode()
        (folder / "web.yml").write_text(f"basic_auth_users:\n  proxy: {hashed}\n")
        for path in folder.iterdir():
            path.chmod(0o600)
        self.folder = folder
        options = ["--listen", "127.0.0.1:0", "--http", "127.0.0.1:0", "--store", str(folder / "store")]
        options += ["--token-file", str(folder / "secret"), "--web-config", str(folder / "web.yml")]
        options += ["--user-header", "X-User", "--flush-seconds", "0.2"]
        with (folder / "log").open("wb") as log:
            command = [sys.executable, "-m", "hindmost", "collector", *options]
            self.process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=log)
        assert self.process.stdout
        said = json.loads(self.process.stdout.readline())
        self.grpc, self.http = said["grpc"], said["http"]
        found = asyncio.run(
            self.send(
                THEIRS, hello_of("theirs", "n9", "victim"),
                defined(rank_of("theirs", "n9", command=PRIVATE)), steps_of(rank_of("theirs", "n9").ref, 1),
            )
        )  # fmt: skip
        assert "ack" in found
        mine = defined(rank_of("mine", "n0", command=MARKUP, framework=MARKUP))
        asyncio.run(self.send(MINE, hello_of("mine", "n0", "mine"), mine, steps_of(rank_of("mine", "n0").ref, 1)))

    @property
    def log(self) -> str:
        """What the collector said."""
        return (self.folder / "log").read_text()

    async def send(self, token: str, hello: wire.Hello, *messages: wire.AgentMessage) -> str:
        """Be an agent; the kinds of messages that come back, and why the stream ended where it was refused."""
        where = parse(self.grpc)
        assert where is not None
        said: list[str] = []
        try:
            async with connect(where.host, where.port, PATIENCE_S, Client(token=token)) as call:
                for message in (wire.AgentMessage(hello=hello), *messages):
                    await call.write(message.SerializeToString())
                await call.write(wire.AgentMessage(goodbye=wire.Goodbye(reason="done")).SerializeToString())
                while (answer := await call.read()) is not None:
                    said.append(str(answer.WhichOneof("body")))
        except OSError as error:
            said.append(str(error))
        return " ".join(said)

    def metric(self, name: str) -> float:
        """A metric of the collector itself."""
        _, page = self.get("/metrics", basic("proxy", "right"))
        found = re.search(rf"^{re.escape(name)} (\S+)$", page, re.MULTILINE)
        return float(found[1]) if found else 0.0

    def get(self, path: str, headers: dict[str, str]) -> tuple[int, str]:
        """Status and body of a request."""
        return fetched(f"http://{self.http}{path}", headers)

    def raw(self, content: bytes, port: str = "") -> bytes:
        """What comes back for these bytes until the connection is closed."""
        where = parse(port or self.http)
        assert where is not None
        with socket.create_connection(where) as connection:
            connection.sendall(content)
            answer = b""
            try:
                while block := connection.recv(65536):
                    answer += block
            except ConnectionError:
                pass
            return answer

    def their_state(self) -> tuple[int, int, str]:
        """The victim's job: how many ranks, its last step, and the command that is stored."""
        status, body = self.get("/api/state?job=theirs", bearer(THEIRS))
        assert status == 200
        state, meta = json.loads(body), json.loads((self.folder / "store/theirs/meta.json").read_text())
        return state["ranks"], state["step"], meta["command"]


def bearer(token: str) -> dict[str, str]:
    """A token's header."""
    return {"Authorization": f"Bearer {token}"}


def basic(user: str, password: str) -> dict[str, str]:
    """A password's header."""
    return {"Authorization": "Basic " + base64.b64encode(f"{user}:{password}".encode()).decode()}


def as_user(name: str) -> dict[str, str]:
    """What the proxy sends for a user."""
    return {**basic("proxy", "right"), "X-User": name}


@pytest.fixture(scope="module")
def target(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Target]:
    """One for all attacks: each must leave it as it was."""
    made = Target(tmp_path_factory.mktemp("target"))
    yield made
    made.process.kill()
    made.process.wait()


@pytest.fixture(autouse=True)
def unharmed(target: Target) -> Iterator[None]:
    """After each attack the collector runs, has written no traceback, and the victim's job is what it was."""
    yield
    assert target.process.poll() is None
    assert "Traceback" not in target.log
    assert target.their_state() == (1, STEPS - 1, PRIVATE)


#: An agent's stream that is refused: its token, its Hello, and the line that it gets.
REFUSED = {
    "no token": ("", hello_of("mine"), "no valid token"),
    "a token of another secret": (job_token("x" * 16, "mine"), hello_of("mine"), "no valid token"),
    "an empty secret": (job_token("", "mine"), hello_of("mine"), "no valid token"),
    "a token that only reads": (job_token(SECRET, "mine", writes=False), hello_of("mine"), "no valid token"),
    "my token under their name": ("theirs." + MINE.partition(".")[2], hello_of("theirs"), "no valid token"),
    "my token for their job": (MINE, hello_of("theirs"), "the token is not one of job 'theirs'"),
    "my token for all jobs": (MINE, hello_of(""), "the token is not one of job ''"),
    "my token for a path": (MINE, hello_of("../theirs"), "the token is not one of job '../theirs'"),
    "the identity of their agent": (MINE, hello_of("mine", "n9", "victim"), "another job's agent has this identity"),
    "a long name": (SECRET, hello_of("j", "n" * 2000), "at most 1024"),
    "another protocol": (SECRET, wire.Hello(protocol=9, agent_id="a"), "protocol 9 is not spoken here"),
}


@pytest.mark.parametrize("tried", REFUSED)
def test_a_stream_is_refused_in_one_line(target: Target, tried: str) -> None:
    """The attacker learns why, and of whom it is not; the collector's log has the line as well, at least once."""
    token, hello, line = REFUSED[tried]
    said = asyncio.run(greeted(target.grpc, Client(token=token), hello))
    assert line in said
    assert len(said.splitlines()) == 1
    assert PRIVATE not in said
    assert SECRET not in said + target.log


def series_of(job: str) -> wire.Schema:
    """The schema of a process metric of a job, under its own reference."""
    found = wire.Schema(series=[wire.Series(name="hindmost_process_x", labels={"job": job, "rank": "0"})])
    digest = blake2b(found.SerializeToString(deterministic=True), digest_size=8).digest()
    found.ref = int.from_bytes(digest, "little")
    return found


POISONED = series_of("mine")
POISONED.ref = series_of("theirs").ref
#: What my agent sends with my own token, of which nothing may count.
FORGED = {
    "a rank of their job": [defined(rank_of("theirs", "n0"))],
    "a rank on their node": [defined(rank_of("mine", "n9"))],
    "their rank's reference for mine": [defined(rank_of("mine", "n0", ref=rank_of("theirs", "n9").ref))],
    "steps of their rank": [steps_of(rank_of("theirs", "n9").ref, 1, first=1000)],
    "steps of my rank and theirs": [
        defined(rank_of("mine", "n0")),
        wire.AgentMessage(
            batch=wire.Batch(
                sequence=1,
                steps=[
                    wire.StepBlock(
                        ranks=[rank_of("mine", "n0").ref, rank_of("theirs", "n9").ref],
                        rows=[1, 1], step=[1000, 1000], start_ns=[1, 1], duration_ns=[1, 1],
                    )
                ],
            )
        ),
    ],
    "a series of their job": [defined(schemas=(series_of("theirs"),))],
    "their schema's reference for mine": [defined(schemas=(POISONED,))],
    "a rank out of range": [defined(rank_of("mine", "n0", rank=1 << 21, ref=1))],
    "columns of different lengths": [
        defined(rank_of("mine", "n0")),
        wire.AgentMessage(
            batch=wire.Batch(
                sequence=1, steps=[wire.StepBlock(rank=rank_of("mine", "n0").ref, step=[1, 2], start_ns=[1])]
            )
        ),
    ],
}  # fmt: skip


@pytest.mark.parametrize("tried", FORGED)
def test_what_is_forged_is_left_out_and_counted(target: Target, tried: str) -> None:
    """My agent's stream goes on; what it may not send counts as malformed, and nothing of it is kept."""
    name = "hindmost_collector_malformed_blocks_total"
    before = target.metric(name)
    agent = f"forger-{sorted(FORGED).index(tried)}"
    said = asyncio.run(target.send(MINE, hello_of("mine", "n0", agent), *FORGED[tried]))
    assert said.startswith("welcome")
    assert target.metric(name) > before


GREETING = wire.AgentMessage(hello=hello_of("mine", "n0", "odd")).SerializeToString()
#: Bytes on the agents' port: what they are, the compression that they come in, and the line that comes back. What takes
#: long to compress comes after a greeting, for which a server waits 15 s.
ODD = {
    "no message": ([b"\xff" * 64], None, "no message of an agent"),
    "not Hello first": ([wire.AgentMessage(goodbye=wire.Goodbye()).SerializeToString()], None, "must be Hello"),
    "a relay's stream": ([wire.AgentMessage(relayed=wire.Relayed()).SerializeToString()], None, "only a relay"),
    "a message too large": ([bytes(17 << 20)], None, "larger than max"),
    "a decompression bomb": ([GREETING, bytes(200 << 20)], grpc.Compression.Gzip, "larger than max"),
}


@pytest.mark.parametrize("tried", ODD)
async def test_odd_messages_end_their_stream(target: Target, tried: str) -> None:
    """With a valid token too they end in one line, and the collector's memory does not grow with them."""
    messages, compression, line = ODD[tried]

    before = resident(target.process.pid)
    unlimited = [("grpc.max_send_message_length", -1)]
    async with grpc.aio.insecure_channel(target.grpc, options=unlimited, compression=compression) as channel:
        call: Any = channel.stream_stream(METHOD)(metadata=(("authorization", f"Bearer {MINE}"),))
        try:
            for message in messages:
                await call.write(message)
            while await call.read() is not grpc.aio.EOF:
                pass
        except (grpc.aio.AioRpcError, asyncio.InvalidStateError):
            pass
        assert line in str(await call.details())
    assert resident(target.process.pid) - before < 100 << 20


def resident(pid: int) -> int:
    """Bytes of memory that a process has."""
    with open(f"/proc/{pid}/statm", encoding="ascii") as file:  # noqa: PTH123 - of /proc
        return int(file.read().split()[1]) * 4096


async def test_another_service_is_not_served(target: Target) -> None:
    """Methods of other services are refused by name."""
    async with grpc.aio.insecure_channel(target.grpc) as channel:
        with pytest.raises(grpc.aio.AioRpcError, match="is not served here"):
            await channel.unary_unary("/grpc.reflection.v1.ServerReflection/Info")(b"")


@pytest.mark.parametrize("content", [b"GET / HTTP/1.1\r\n\r\n", b"\x16\x03\x01" + bytes(200), bytes(9)])
def test_other_protocols_are_closed(target: Target, content: bytes) -> None:
    """HTTP/1, TLS and noise on the agents' port end without a word of any job."""
    assert PRIVATE.encode() not in target.raw(content, target.grpc)


def test_a_path_in_a_job_id_stays_in_the_store(target: Target) -> None:
    """A job that is called like a path has a folder of its own below the store."""
    job = "../../escaped"
    rank = rank_of(job, "n0")
    said = asyncio.run(target.send(SECRET, hello_of("", "n0", "climber"), defined(rank), steps_of(rank.ref, 1)))
    assert "ack" in said
    assert list(target.folder.parent.rglob("*escaped*/segments")) == list(
        (target.folder / "store").glob("*escaped*/segments")
    )


#: Requests that get nothing: headers, path, status and what is said.
KEPT_OUT = {
    "no password": ({}, "/api/jobs", 401),
    "a wrong password": (basic("proxy", "wrong"), "/api/jobs", 401),
    "an unknown user": (basic("root", "right"), "/api/jobs", 401),
    "a password of a kilobyte": (basic("proxy", "r" * 1000), "/api/jobs", 401),
    "no base64": ({"Authorization": "Basic %%%"}, "/api/jobs", 401),
    "a wrong token": (bearer("theirs." + "A" * 43), "/api/jobs?job=theirs", 401),
    "an empty token": (bearer(""), "/api/jobs", 401),
    "my token, all metrics": (bearer(MINE), "/metrics", 403),
    "a user, all metrics": (as_user("mine"), "/metrics", 403),
    "no user, jobs": (basic("proxy", "right"), "/api/jobs", 403),
    "no user, the page": (basic("proxy", "right"), "/", 403),
    **{
        f"{who}, {path}": (headers, path, 404)
        for who, headers in (("my token", bearer(MINE)), ("another user", as_user("mine")))
        for path in (
            "/api/state?job=theirs", "/api/report?job=theirs", "/api/newest?job=theirs", "/report?job=theirs",
            "/api/live?of=steps&job=theirs", "/api/live?of=rank&rank=0&job=theirs", "/api/events?job=theirs",
        )
    },
    "a path for a job": (bearer(SECRET), "/report?job=../../../../etc/passwd", 404),
    "an encoded path": (bearer(SECRET), "/report?job=..%2f..%2fsecret", 404),
    "a path": (bearer(SECRET), "/../../etc/passwd", 404),
}  # fmt: skip


@pytest.mark.parametrize("tried", KEPT_OUT)
def test_a_request_is_refused(target: Target, tried: str) -> None:
    """It gets a status and at most a line, in which there is nothing of another's job."""
    headers, path, status = KEPT_OUT[tried]
    found, body = target.get(path, headers)
    assert found == status, body
    assert len(body.splitlines()) <= 1
    assert PRIVATE not in body
    assert "root:" not in body


def test_a_jobs_token_is_told_what_it_shows(target: Target) -> None:
    """At /metrics, which shows all jobs."""
    assert target.get("/metrics", bearer(MINE))[1].endswith("a job's token shows /api/report of its job\n")


def test_a_user_whom_a_proxy_names_is_told_where_their_jobs_are(target: Target) -> None:
    """At /metrics, which shows all jobs; and where the proxy names none, that it does not."""
    assert target.get("/metrics", as_user("mine"))[1].endswith("yours are on the page and in /api/jobs\n")
    headers = {name: value for name, value in as_user("").items() if value}
    assert "the proxy named none in its header" in target.get("/api/report", headers)[1]


@pytest.mark.parametrize("path", ["state", "report", "newest"])
def test_another_job_looks_like_none(target: Target, path: str) -> None:
    """Whether there is such a job cannot be learned."""
    theirs, none = (target.get(f"/api/{path}?job={job}", bearer(MINE)) for job in ("theirs", "never-was"))
    assert theirs == none


@pytest.mark.parametrize(("headers", "jobs"), [(bearer(MINE), {"mine"}), (as_user("theirs"), {"theirs"})])
def test_one_sees_ones_own_jobs(target: Target, headers: dict[str, str], jobs: set[str]) -> None:
    """A token shows its job, a user those that run as that user: in the list, by name, and where none is named."""
    status, body = target.get("/api/jobs", headers)
    assert (status, {load["id"] for load in json.loads(body)}) == (200, jobs)
    (job,) = jobs
    for query in ("", f"?job={job}"):
        assert json.loads(target.get(f"/api/state{query}", headers)[1])["job"] == job


SECOND = b"GET /metrics HTTP/1.1\r\nAuthorization: Basic cHJveHk6cmlnaHQ=\r\n\r\n"
#: Requests that a proxy in front might see otherwise, or that take too much.
CROOKED = {
    "a body": (b"GET / HTTP/1.1\r\nContent-Length: 40\r\n\r\n" + SECOND, b"400"),
    "chunks": (b"GET / HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n" + SECOND, b"400"),
    "a line of 100 kB": (b"GET /" + b"x" * 100_000 + b" HTTP/1.1\r\n\r\n", b"414"),
    "a header of 100 kB": (b"GET / HTTP/1.1\r\nX: " + b"x" * 100_000 + b"\r\n\r\n", b"431"),
    "500 headers": (b"GET / HTTP/1.1\r\n" + b"X: y\r\n" * 500 + b"\r\n", b"431"),
    "another method": (b"POST /api/jobs HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n", b"501"),
    "no version that is known": (b"GET / HTTP/9.9\r\n\r\n", b"505"),
}  # fmt: skip


@pytest.mark.parametrize("tried", CROOKED)
def test_a_crooked_request_gets_one_answer(target: Target, tried: str) -> None:
    """It is refused, the connection is closed, and what follows is not taken for a request."""
    content, status = CROOKED[tried]
    answer = target.raw(content)
    assert status in answer[:500]
    assert answer.count(b"HTTP/1.1 ") <= 1
    assert b"hindmost_" not in answer


def test_a_token_in_an_address_becomes_a_cookie(target: Target) -> None:
    """It is out of the address at once, no script can read it, and nothing of the address becomes a header."""
    query = f"token={MINE}&x=%0d%0aSet-Cookie:%20evil=1"
    answer = target.raw(f"GET /?{query} HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n".encode()).decode()
    assert answer.startswith("HTTP/1.1 303")
    assert re.findall(r"^Set-Cookie: (\S+)=\S+ (.*?)\r$", answer, re.MULTILINE)[0][1].startswith(
        "HttpOnly; SameSite=Strict"
    )
    assert not re.search(r"^Set-Cookie: evil", answer, re.MULTILINE)
    assert not re.search(r"^Location: .*token", answer, re.MULTILINE)


def test_hostile_names_stay_text(target: Target) -> None:
    """A command line that is markup, or ends a metric's line, is neither on the page, in JSON nor on /metrics."""
    _, page = target.get("/metrics", basic("proxy", "right"))
    assert not re.search(r"^evil_metric", page, re.MULTILINE)
    assert json.loads((target.folder / "store/mine/meta.json").read_text())["command"] == MARKUP
    from hindmost_collector.page import document

    assert "<script>alert" not in document.render({"command": MARKUP}, title=MARKUP)
