"""Verdicts reach a webhook or a command once each, whatever the receiver does, and hold up nothing."""

import json
import os
import socket
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
from hindmost.errors import UsageError
from hindmost_collector.http_client import Answer
from hindmost_collector.live import notification
from hindmost_collector.live.notification import QUEUE, SETTLES_S, Command, Notification, Outlet, Webhook, destination
from hindmost_collector.live.verdicts import VerdictLog
from hindmost_judge.verdict.schema import WhichOperation

from tests.waiting import PATIENCE_S, wait_until

REPORT: Mapping[str, Any] = {"ranks": [{"rank": 2, "node": "n0"}]}
HOSTILE = "<!channel> $(touch owned) `touch owned`\x1b[2J"


def verdict(cost: float = 3.9, **more: Any) -> dict[str, Any]:
    """Rank 2 computes for longer than the others, since step 40."""
    known = {"kind": "straggler", "ranks": [2], "victims": [], "cause": "compute", "confidence": 0.99, "evidence": []}
    return {**known, "since_step": 40, "cost_ms_per_step": cost, "cost_ratio": cost / 10, **more}


def event_of(event: str = "opened", which: str = "1", job: str = "train") -> Notification:
    return Notification.of(job, {"event": event, "id": which, "time_ns": 1, "verdict": verdict()}, REPORT)


class Receiver:
    """A real HTTP server on loopback; each request is answered by the next of ``behaviours``, the last for ever."""

    def __init__(self) -> None:
        self.bodies: list[dict[str, Any]] = []
        self.keys: list[str] = []
        self.behaviours: list[Callable[[BaseHTTPRequestHandler], None]] = [answers(200)]
        receiver = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                receiver.bodies.append(json.loads(self.rfile.read(int(self.headers["Content-Length"]))))
                receiver.keys.append(self.headers["Idempotency-Key"])
                behave = receiver.behaviours.pop(0) if receiver.behaviours[1:] else receiver.behaviours[0]
                behave(self)

            def log_message(self, *_: object) -> None:
                """Tests are quiet."""

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.server.daemon_threads = True
        self.url = f"http://127.0.0.1:{self.server.server_address[1]}/services/secret"
        threading.Thread(target=self.server.serve_forever, args=(0.01,), daemon=True).start()

    def die(self) -> None:
        """Answer no more; the port is closed."""
        self.server.shutdown()
        self.server.server_close()

    @property
    def events(self) -> list[str]:
        return [body["event"] for body in self.bodies]


def answers(status: int) -> Callable[[BaseHTTPRequestHandler], None]:
    """A receiver that answers at once."""

    def behave(handler: BaseHTTPRequestHandler) -> None:
        handler.send_response(status)
        handler.send_header("Content-Length", "0")
        handler.end_headers()

    return behave


def trickles(handler: BaseHTTPRequestHandler) -> None:
    """Answers for ever, a byte at a time: each within any time limit of one read."""
    try:
        while True:
            handler.wfile.write(b"H")
            time.sleep(0.02)
    except OSError:
        handler.close_connection = True


def breaks_off(handler: BaseHTTPRequestHandler) -> None:
    """Takes the request and closes the connection."""
    handler.connection.shutdown(socket.SHUT_RDWR)
    handler.close_connection = True


@pytest.fixture
def receiver() -> Iterator[Receiver]:
    made = Receiver()
    yield made
    made.die()


def outlet(receiver: Receiver) -> Outlet:
    return Outlet(Webhook(receiver.url, attempt_s=PATIENCE_S), pause_s=0.01)


def test_slack_shows_the_text_and_a_program_reads_the_verdict(receiver: Receiver) -> None:
    """One body serves both."""
    out = outlet(receiver)
    out.put(event_of())
    out.close(PATIENCE_S)
    (body,) = receiver.bodies
    said = "SLOW rank 2 on n0: computing, since step 40; costs 3.9 of 10.0 ms per step (39 %)"
    assert body["text"] == f"hindmost: job train: {said}"
    assert (body["event"], body["job"], body["id"], body["verdict"]["ranks"]) == ("opened", "train", "1", [2])


def test_a_hang_says_who_waits_and_then_where_the_missing_rank_is() -> None:
    """At once where its stack is there; otherwise a change of a hang is that it has come."""
    number = WhichOperation("that all_reduce is number 7 of communicator 0x4d")
    evidence = ["3 ranks wait in all_reduce", "rank 2 is at train.py:7", number]
    hang = verdict(kind="hang", cause=None, victims=[0, 1, 3], evidence=evidence, cost_ms_per_step=None)
    texts = [
        Notification.of("j", {"event": event, "id": "1", "time_ns": 1, "verdict": hang, **before}, REPORT).text
        for event, before in (("opened", {}), ("changed", {"before": hang}))
    ]
    said = "HUNG in step 40: rank 2 on n0 did not arrive"
    assert texts == [f"{said}; {evidence[0]}; {evidence[1]}", f"changed: HUNG; {evidence[1]}"]
    hang["evidence"] = [evidence[0], number]  # a stopped rank has no stack
    change = {"event": "changed", "id": "1", "time_ns": 1, "verdict": hang, "before": hang}
    assert Notification.of("j", change, REPORT).text == f"changed: HUNG; {evidence[0]}"


@pytest.mark.parametrize(("until", "goes_on"), [(None, False), (39, False), (40, False), (41, True)])
def test_a_job_goes_on_after_a_hang_if_it_made_a_later_step(until: int | None, goes_on: bool) -> None:
    """One that a signal ended made none."""
    hang = verdict(kind="hang", cause=None, victims=[0, 1, 3], cost_ms_per_step=None, until_step=until)
    closed = {"event": "closed", "id": "1", "time_ns": 1, "verdict": hang}
    assert ("the job goes on" in Notification.of("j", closed, REPORT).text) == goes_on


COSTS = "costs 3.9 of 10.0 ms per step (39 %)"
SLOW, INPUT = "SLOW rank 2 on n0: computing, since step 40", "LIMITED BY input: the job waits for it, since step 40"
LOST = {"kind": "hang", "ranks": [], "victims": [0, 1], "cost_ms_per_step": None}


@pytest.mark.parametrize(
    ("now", "before", "said"),
    [
        ({}, {"cost_ms_per_step": 1.0}, f"rank 2 on n0 {COSTS}, before 1.0 ms"),
        ({}, {"cause": "unknown"}, f"rank 2 on n0: computing, before cause unknown; {COSTS}"),
        ({}, {"ranks": [1]}, f"{SLOW}; {COSTS}"),
        ({"cost_ms_per_step": None}, {"cost_ms_per_step": 1.0}, SLOW),
        ({"kind": "input_bound", "ranks": []}, {"cost_ms_per_step": 1.0}, f"{INPUT}; {COSTS}"),
        (LOST, {"cause": "unknown"}, "HUNG in step 40: 2 ranks wait in one operation"),
    ],
)
def test_a_change_says_what_changed(now: dict[str, Any], before: dict[str, Any], said: str) -> None:
    """Not the whole sentence once more, but where it is of other ranks, of none, or of a cost that is not known."""
    newest = verdict() | now
    change = {"event": "changed", "id": "1", "time_ns": 1, "verdict": newest, "before": newest | before}
    assert Notification.of("j", change, REPORT).text == f"changed: {said}"


def test_a_deadlock_changes_as_its_ranks_are_seen_where_they_are() -> None:
    """How long they wait is no news. The line has what to do, in a clause."""
    where = "rank 0 is at train.py:27, rank 1 is at train.py:28"
    advice = ["let one of ranks 0 and 1 send before it receives; see the manual"]
    evidence = ["deadlock: rank 0 waits for rank 1", where, "they have waited 11.8 s", "rank 3 waits for them"]
    hang = verdict(kind="hang", cause="deadlock", victims=[3], cost_ms_per_step=None, evidence=evidence, advice=advice)
    change = {"event": "changed", "id": "1", "time_ns": 1, "verdict": hang}
    text = Notification.of("j", change, REPORT).text
    assert text.endswith(f"; {where}; DO let one of ranks 0 and 1 send before it receives")
    assert "11.8" not in text


def test_a_hang_that_gives_way_to_another_is_not_said_to_be_over_for_the_job() -> None:
    """The job still stands still."""
    hang = verdict(kind="hang", cause=None, victims=[0, 1, 3], evidence=[], cost_ms_per_step=None)
    report = {**REPORT, "verdicts": [{"kind": "desync"}]}
    closed = Notification.of("j", {"event": "closed", "id": "1", "time_ns": 1, "verdict": hang}, report)
    assert closed.text == "over: HUNG in step 40: rank 2 on n0 did not arrive"


def test_a_name_cannot_call_a_channel(receiver: Receiver) -> None:
    """Slack's markup begins with < and is escaped; control characters are spelled out."""
    out = outlet(receiver)
    out.put(event_of(job=HOSTILE))
    out.close(PATIENCE_S)
    assert "&lt;!channel&gt;" in receiver.bodies[0]["text"]
    assert "\x1b" not in receiver.bodies[0]["text"]


@pytest.mark.parametrize("trouble", [answers(503), answers(429), breaks_off, trickles])
def test_a_receiver_that_recovers_gets_the_same_event_again(receiver: Receiver, trouble: Any) -> None:
    """With the same key, so that it can tell; the events after it come in their order, once each."""
    webhook = Webhook(receiver.url, attempt_s=1.0 if trouble is trickles else PATIENCE_S)

    def troubles(handler: BaseHTTPRequestHandler) -> None:
        webhook.attempt_s = PATIENCE_S
        trouble(handler)

    receiver.behaviours = [troubles, answers(200)]
    out = Outlet(webhook, pause_s=0.01)
    out.put(event_of("opened"))
    out.put(event_of("closed"))
    out.close(PATIENCE_S)
    assert receiver.events == ["opened", "opened", "closed"]
    assert receiver.keys[0] == receiver.keys[1] != receiver.keys[2]
    assert (out.sent, out.failures, out.dropped) == (2, 1, 0)


def test_what_a_receiver_refuses_is_not_sent_again(receiver: Receiver) -> None:
    """A wrong URL stays wrong."""
    receiver.behaviours = [answers(404)]
    out = outlet(receiver)
    out.put(event_of())
    out.close(PATIENCE_S)
    assert (receiver.events, out.failures, out.dropped) == (["opened"], 1, 1)


def test_a_hung_receiver_holds_up_no_judging_and_no_end(receiver: Receiver, caplog: pytest.LogCaptureFixture) -> None:
    """Thousands of events take no time, and no memory beyond the queue; one line in the log, without a secret."""
    never = threading.Event()
    receiver.behaviours = [breaks_off, lambda _: never.wait()]
    out = outlet(receiver)
    for which in range(QUEUE * 4):
        out.put(event_of(which=str(which)))
    wait_until(lambda: len(receiver.bodies) == 2)
    out.close(0.2)
    assert (out.sent, out.failures) == (0, 1)
    assert out.dropped >= QUEUE * 4 - 1
    never.set()
    assert len(caplog.records) == 1
    assert "does not take notifications" in caplog.text
    assert "secret" not in caplog.text


def test_changes_that_were_not_sent_yet_are_one(receiver: Receiver) -> None:
    """A receiver that is away for an hour gets the newest state and not the history of a cost."""
    gate = threading.Event()
    receiver.behaviours = [lambda handler: (gate.wait(PATIENCE_S), answers(200)(handler))[1], answers(200)]
    out = outlet(receiver)
    out.put(event_of("opened", "1"))
    wait_until(lambda: receiver.bodies)
    change = {"event": "changed", "id": "1", "time_ns": 1, "verdict": verdict(), "before": verdict(cause="unknown")}
    out.put(Notification.of("train", change, REPORT))
    for cost in (1.0, 9.0):
        out.put(Notification.of("train", {**change, "before": verdict(cost)}, REPORT))
    out.put(event_of("opened", "2"))
    out.put(event_of("changed", "2"))
    gate.set()
    out.close(PATIENCE_S)
    assert [(body["event"], body["id"]) for body in receiver.bodies] == [
        ("opened", "1"),
        ("changed", "1"),
        ("opened", "2"),
    ]
    assert ": changed: SLOW rank 2 on n0: computing, since step 40; costs 3.9 of" in receiver.bodies[1]["text"]


class Sent:
    """A receiver that takes everything at once, unless its ``status`` says that it refuses."""

    name = "sent"

    def __init__(self) -> None:
        self.all: list[tuple[str, str]] = []
        self.status = 200

    def send(self, one: Notification) -> Answer:
        self.all.append((one.event, one.text))
        return Answer(self.status, "")


@pytest.mark.parametrize("lost", [(), (0, 1), (1,)])
def test_a_change_of_what_was_not_sent_is_a_whole_sentence(lost: tuple[int, ...]) -> None:
    """Without the opening, or the last change, there is nothing to compare with."""
    out = Outlet(to := Sent())
    for at, cost in enumerate((1.0, 2.0, 3.9)):
        to.status = 400 if at in lost else 200
        event = {"event": "changed", "before": verdict(float(at))} if at else {"event": "opened"}
        out.put(Notification.of("train", {**event, "id": "1", "time_ns": at, "verdict": verdict(cost)}, REPORT))
        wait_until(lambda at=at: out.sent + out.dropped == at + 1)
    out.close(PATIENCE_S)
    assert to.all[-1][1] == f"changed: {f'{SLOW}; {COSTS}' if lost else f'rank 2 on n0 {COSTS}, before 2.0 ms'}"


HUNG = "HUNG in step 40: rank 2 on n0 did not arrive; 3 ranks wait in all_reduce"


def hang(event: str, *evidence: str) -> Notification:
    why = ["3 ranks wait in all_reduce", *evidence]
    found = verdict(kind="hang", cause=None, victims=[0, 1, 3], evidence=why, cost_ms_per_step=None)
    return Notification.of("train", {"event": event, "id": "1", "time_ns": 1, "verdict": found}, REPORT)


def test_a_stop_and_where_its_rank_is_are_one_notification() -> None:
    """The stack comes some tenths of a second later, after other evidence."""
    sent, looked = Sent(), threading.Event()

    def clock() -> float:
        if threading.current_thread().name == "notification":
            looked.set()
        return 0.0

    out = Outlet(sent, clock=clock)
    out.put(hang("opened"))
    looked.wait(PATIENCE_S)
    out.put(hang("changed", "rank 2 was stopped for 3 s", "rank 2 is at train.py:7"))
    wait_until(lambda: out.sent)
    out.close(PATIENCE_S)
    assert sent.all == [("opened", f"{HUNG}; rank 2 is at train.py:7")]


def test_a_stack_that_does_not_come_is_not_waited_for() -> None:
    sent, now = Sent(), [0.0]
    out = Outlet(sent, clock=lambda: now[0])
    out.put(hang("opened"))
    now[0] = SETTLES_S
    out.put(event_of(which="2"))
    wait_until(lambda: out.sent == 2)
    out.close(PATIENCE_S)
    assert sent.all[0] == ("opened", HUNG)


def test_a_command_gets_the_verdict_on_stdin_and_in_variables(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """No shell reads it: names of jobs and hosts are data."""
    monkeypatch.chdir(tmp_path)
    program = "import json,os,sys; json.dump([json.load(sys.stdin), dict(os.environ)], open(sys.argv[1], 'w'))"
    out = Outlet(Command(f'{sys.executable} -c "{program}" out.json'))
    out.put(event_of(job=HOSTILE))
    out.close(PATIENCE_S)
    body, environ = json.loads((tmp_path / "out.json").read_text())
    assert body["job"] == HOSTILE
    assert environ["HINDMOST_VERDICT_JOB"] == HOSTILE.replace("\x1b", "\\x1b")
    assert (environ["HINDMOST_VERDICT_RANKS"], environ["HINDMOST_VERDICT_CAUSE"]) == ("2", "compute")
    assert [path.name for path in tmp_path.iterdir()] == ["out.json"]


@pytest.mark.parametrize("command", ["sh -c 'sleep 3600 & wait'", "sh -c 'cat >/dev/null; exit 3'", "true"])
def test_a_command_ends_in_bounded_time_and_is_not_repeated(command: str) -> None:
    """One that hangs is stopped with its children; one that reads nothing is none that failed."""
    out = Outlet(Command(command, attempt_s=0.3 if "sleep" in command else PATIENCE_S))
    out.put(event_of())
    out.close(PATIENCE_S)
    assert (out.sent, out.failures, out.dropped) == ((1, 0, 0) if command == "true" else (0, 1, 1))


@pytest.mark.parametrize("text", ["", "no-such-program-here --x", "'open", "http://", "https://host:99999/"])
def test_what_is_neither_command_nor_url_is_refused_at_once(text: str) -> None:
    """Before the job starts, by the name of the option."""
    with pytest.raises(UsageError, match="--on-verdict"):
        destination(text)


async def test_a_collector_notifies_of_a_job_that_it_judges(
    receiver: Receiver, collecting: Any, fake_agent: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Webhook, and stdout for the process that started it, have the same events: opened, closed at the end."""
    read, write = os.pipe()
    monkeypatch.setattr(notification, "STDOUT", write)

    options = {"on_verdict": receiver.url, "print_verdicts": True, "exit_when_stdin_closes": True, "http": "none"}
    async with collecting(**options, job_id="j") as collector:
        agent = fake_agent(collector.addresses["grpc"])
        began = agent.now()
        await agent.connect()
        for step in range(40):
            agent.now = lambda at=began + step * 150_000: at
            await agent.send(agent.batch(step, slow_rank=1))
        await agent.round_trip()
        await agent.close()
    os.close(write)
    with open(read) as lines:  # noqa: PTH123 - a file descriptor
        printed = [json.loads(line)["verdict"] for line in lines]
    assert [one["event"] for one in printed] == receiver.events == ["opened", "closed"]
    assert {tuple(body["verdict"]["ranks"]) for body in receiver.bodies} == {(1,)}
    assert printed[0]["text"].startswith("SLOW rank 1 on n0: computing")
    assert printed[0]["kind"] == "straggler"
    assert (printed[1]["ended"], receiver.bodies[1]["ended"]) == (True, True)


def test_the_end_of_a_job_closes_what_is_open_and_tells_what_was_found_last() -> None:
    """Once each: a job that was too short to be judged live has its verdict notified all the same."""
    log = VerdictLog()
    list(log.update([verdict()], 1, last_step=100, first_step=0))
    other = verdict(ranks=[5], since_step=300)
    events = list(log.ended([verdict(4.0), other], 2))
    assert [(event["event"], event["verdict"]["ranks"], event.get("ended", False)) for event in events] == [
        ("closed", [2], True),
        ("opened", [5], False),
        ("closed", [5], True),
    ]
    assert list(log.ended([], 3)) == []
