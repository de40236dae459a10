"""Verdicts as Events and annotations: what is written for which pod, however the API server answers. tests/kubernetes
does the same with a real API server."""

import json
import ssl
import threading
from collections.abc import Iterator
from datetime import timedelta
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
from hindmost.errors import UsageError
from hindmost_cli.pki import initialise, issue
from hindmost_collector import components
from hindmost_collector.http_client import Answer
from hindmost_collector.ingest.definitions import Pod
from hindmost_collector.live.kubernetes import ANNOTATION, PODS, SEND_S, Kubernetes, event_of
from hindmost_collector.live.notification import Notification
from hindmost_proto import telemetry_pb2 as wire

SLOW = Pod("team-a", "train-2", "u-2", "MPIJob/train")
TOKEN = "a token of this pod"  # noqa: S105


def notification(event: str = "opened", which: str = "1", *pods: Pod, kind: str = "straggler") -> Notification:
    verdict = {"kind": kind, "ranks": [2], "victims": [], "cause": "compute", "confidence": 0.99, "evidence": []}
    known = {**verdict, "since_step": 40, "cost_ms_per_step": 3.9, "cost_ratio": 0.4}
    about = {"event": event, "id": which, "time_ns": 1_700_000_000 * 10**9, "verdict": known}
    report = {"ranks": [{"rank": 2, "node": "n0"}]}
    one = Notification.of("train", about, report, {2: SLOW})
    return one if not pods else Notification(**{**vars(one), "pods": pods})


class Server:
    """An API server that keeps Events by path, and says which requests came; ``answers`` come first."""

    def __init__(self, folder: Path) -> None:
        self.requests: list[tuple[str, str, dict[str, Any]]] = []
        self.tokens: set[str] = set()
        self.answers: list[int] = []
        kept: set[str] = set()
        server = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
                server.requests.append((self.command, self.path, body))
                server.tokens.add(self.headers["Authorization"])
                name = f"{self.path}/{body['metadata']['name']}" if self.command == "POST" else None
                status = server.answers.pop(0) if server.answers else 409 if name in kept else 200
                kept.update({name} if status == 200 and name else ())
                self.send_response(status)
                self.send_header("Content-Length", "0")
                self.end_headers()

            do_PATCH = do_POST  # noqa: N815

            def log_message(self, *_: object) -> None:
                """Tests are quiet."""

        initialise(folder / "pki")
        certificate = issue(folder / "pki", ["127.0.0.1"], timedelta(days=1))
        self.http = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(certificate, certificate.with_name("127.0.0.1.key"))
        self.http.socket = context.wrap_socket(self.http.socket, server_side=True)
        threading.Thread(target=self.http.serve_forever, args=(0.01,), daemon=True).start()
        self.account = folder / "account"
        self.account.mkdir()
        (self.account / "token").write_text(f"{TOKEN}\n")
        (self.account / "ca.crt").write_bytes((folder / "pki/ca.pem").read_bytes())

    def written(self, level: str = "annotations") -> Kubernetes:
        host, port = self.http.server_address[:2]
        environ = {"KUBERNETES_SERVICE_HOST": str(host), "KUBERNETES_SERVICE_PORT": str(port)}
        return Kubernetes(level, environ, self.account, pause=lambda _: None)

    @property
    def annotations(self) -> list[str | None]:
        return [
            body["metadata"]["annotations"][ANNOTATION] for _, path, body in self.requests if path.endswith("/status")
        ]


@pytest.fixture
def server(tmp_path: Path) -> Iterator[Server]:
    made = Server(tmp_path)
    yield made
    made.http.shutdown()
    made.http.server_close()


def test_a_verdict_is_an_event_of_the_pod_that_it_names(server: Server) -> None:
    """With the account's token, in the pod's namespace; a change goes to the same Event."""
    writer = server.written("events")
    for event in ("opened", "changed", "closed"):
        assert writer.send(notification(event)).taken
    methods = [method for method, _, _ in server.requests]
    assert methods == ["POST", "POST", "PATCH", "POST", "PATCH"]
    first, last = server.requests[0], server.requests[-1]
    assert first[1] == "/api/v1/namespaces/team-a/events"
    assert last[1] == f"{first[1]}/{first[2]['metadata']['name']}"
    assert first[2]["involvedObject"] == {
        "apiVersion": "v1", "kind": "Pod", "name": "train-2", "namespace": "team-a", "uid": "u-2",
    }  # fmt: skip
    assert (first[2]["type"], first[2]["reason"]) == ("Warning", "Straggler")
    assert first[2]["message"].startswith("job train: SLOW rank 2")
    assert (last[2]["type"], last[2]["reason"]) == ("Normal", "VerdictClosed")
    assert server.tokens == {f"Bearer {TOKEN}"}


def test_the_annotation_is_the_newest_open_verdict_and_goes_with_the_last(server: Server) -> None:
    """It is of this very pod: another one of that name has another uid."""
    writer = server.written()
    for event, which in (("opened", "1"), ("opened", "2"), ("closed", "2"), ("closed", "1")):
        assert writer.send(notification(event, which)).taken
    shown = server.annotations
    assert [text is None for text in shown] == [False, False, False, True]
    assert {body["metadata"]["uid"] for _, path, body in server.requests if path.endswith("/status")} == {"u-2"}


@pytest.mark.parametrize(("status", "temporary"), [(403, False), (503, True), (429, True)])
def test_a_refusal_says_whether_to_try_again(server: Server, status: int, temporary: bool) -> None:
    """No right in this namespace is final; a server that is busy is not."""
    server.answers = [status]
    answer = server.written("events").send(notification())
    assert (answer.taken, answer.temporary) == (False, temporary)


def test_a_pod_that_has_ended_is_no_failure(server: Server) -> None:
    """Its Event is written; its annotation has no place any more."""
    server.answers = [200, 404]
    assert server.written().send(notification()).taken


def test_a_job_that_claims_a_path_is_not_written_for(server: Server) -> None:
    """Names become parts of a path, and a job can set them to anything."""
    outside = Pod("../../../apis", "x", "u"), Pod("team-a", "../../secrets/x", "u"), Pod("team-a", "", "", "Job/../x")
    kinds = Pod("team-a", "", "", "J\x1b[2J/x"), Pod("team-a", "", "", "A B/x"), Pod("team-a", "", "", "/x")
    assert server.written().send(notification("opened", "1", *outside, *kinds, Pod("team-a"))).taken
    assert server.requests == []


def test_of_a_thousand_pods_a_few_are_told(server: Server) -> None:
    """One slow switch names many ranks; the API server is not the place to list them."""
    writer = server.written("events")
    writer.send(notification("opened", "1", *(Pod("team-a", f"train-{at}", f"u{at}") for at in range(1000))))
    assert len(server.requests) == PODS


def test_one_verdict_takes_no_longer_than_its_deadline(server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    """A server that answers slowly is asked again later; it does not hold up the verdicts that follow."""
    now, bounds = [100.0], []
    environ = {"KUBERNETES_SERVICE_HOST": "127.0.0.1"}
    writer = Kubernetes("events", environ, server.account, pause=lambda _: None, clock=lambda: now[0])

    def slow(*words: Any) -> Answer:
        bounds.append(words[-1])
        now[0] += 9.0
        return Answer(201, "")

    monkeypatch.setattr(writer._server, "request", slow)
    eight = [Pod("team-a", f"train-{at}", f"u{at}") for at in range(PODS)]
    for _ in range(2):
        answer = writer.send(notification("opened", "1", *eight))
        assert (answer.taken, answer.temporary) == (False, True)
    assert bounds == [SEND_S, SEND_S - 9, SEND_S - 18] * 2


def test_what_is_known_of_a_job_goes_with_the_job(server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    """The end of a verdict may never come here; nor may the end of its job, so pods are bounded too."""
    writer = server.written()
    for which in ("1", "2"):
        writer.send(notification("opened", which))
    writer.send(notification("opened", "1", Pod("team-a", "train-3", "u-3")))
    writer.send(Notification(**{**vars(notification("closed", "2")), "ended": True}))
    assert server.annotations[-1] is None
    assert writer._open == {}
    monkeypatch.setattr("hindmost_collector.live.kubernetes.MOST_PODS", 3)
    for at in range(5):
        writer.send(notification("opened", "1", Pod("team-a", f"train-{at}", f"u-{at}")))
    assert [pod.uid for pod in writer._open] == ["u-2", "u-3", "u-4"]
    server.answers = [200, 404]
    writer.send(notification("opened", "2", Pod("team-a", "train-4", "u-4")))
    assert [pod.uid for pod in writer._open] == ["u-2", "u-3"]


def test_a_jobs_name_does_not_control_a_terminal() -> None:
    """`kubectl get events` prints it, and a user chose it."""
    one = Notification(**{**vars(notification()), "job": "a\x1b[2Jb\nc"})
    assert event_of(one, Pod("team-a", "train-0"))["message"].startswith("job a\\x1b[2Jb\\nc: ")


def test_without_a_pods_name_it_is_an_event_of_what_made_the_pod() -> None:
    """mpirun's ranks start by ssh, which does not pass on the variables of their own pod."""
    made = event_of(notification(), Pod("team-a", "", "", "MPIJob/train"))
    assert made["involvedObject"] == {"namespace": "team-a", "kind": "MPIJob", "name": "train"}


async def test_a_collector_writes_of_a_job_that_it_judges(
    server: Server, collecting: Any, fake_agent: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """From what an agent says of a rank's pod to an Event of that pod, and its end when the job is over."""
    monkeypatch.setattr(components, "Kubernetes", server.written)

    options = {"kubernetes": "events", "exit_when_stdin_closes": True, "http": "none", "job_id": "j"}
    async with collecting(**options) as collector:
        agent = fake_agent(collector.addresses["grpc"])
        plain, began = agent.definitions, agent.now()

        def in_pods() -> wire.Definitions:
            found: wire.Definitions = plain()
            for rank in found.ranks:
                rank.pod.CopyFrom(wire.Pod(namespace="team-a", name=f"train-{rank.rank}", uid="u"))
            return found

        agent.definitions = in_pods
        await agent.connect()
        for step in range(40):
            agent.now = lambda at=began + step * 150_000: at
            await agent.send(agent.batch(step, slow_rank=1))
        await agent.round_trip()
        await agent.close()
    assert [(method, body["reason"]) for method, _, body in server.requests] == [
        ("POST", "Straggler"), ("POST", "VerdictClosed"), ("PATCH", "VerdictClosed"),
    ]  # fmt: skip
    assert server.requests[0][2]["involvedObject"]["name"] == "train-1"


@pytest.mark.parametrize("lacks", ["KUBERNETES_SERVICE_HOST", "token"])
def test_outside_of_a_pod_it_says_so(tmp_path: Path, lacks: str) -> None:
    """In one line, when the collector starts."""
    environ = {} if lacks != "token" else {"KUBERNETES_SERVICE_HOST": "10.0.0.1"}
    (tmp_path / "ca.crt").touch()
    with pytest.raises(UsageError, match=lacks):
        Kubernetes("events", environ, tmp_path)
