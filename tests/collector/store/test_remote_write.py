"""Remote write: the bytes, what is tried again, what is let go and counted, and what is marked as ended."""

import struct

import cramjam
import numpy as np
import pytest
from hindmost.errors import UsageError
from hindmost_collector.http_client import Answer, Receiver
from hindmost_collector.ingest.definitions import Definitions, Schema, Series
from hindmost_collector.ingest.row_builder import MetricRows
from hindmost_collector.store import remote_write
from hindmost_collector.store.remote_write import STALE, PageEncoder, RemoteWrite

from tests.waiting import until

SECOND = 1_000_000_000
NOW_NS = 1_760_000_000 * SECOND
MS, NAN = NOW_NS // 1_000_000, float("nan")
STALE_BITS = 0x7FF0000000000002


def fields(message):
    """``(tag, value)`` of each field of a protobuf message, read by the book."""
    at = 0

    def number():
        nonlocal at
        shift = value = 0
        while True:
            byte = message[at]
            at += 1
            value |= (byte & 0x7F) << shift
            shift += 7
            if byte < 0x80:
                return value

    while at < len(message):
        tag = number()
        if tag & 7 == 2:
            size = number()
            yield tag >> 3, message[at : at + size]
            at += size
        elif tag & 7 == 1:
            yield tag >> 3, struct.unpack_from("<Q", message, at)[0]
            at += 8
        else:
            yield tag >> 3, number()


def decoded(message):
    """Labels (as text) to ``[(ms, bits of the value)]``."""
    found = {}
    for _, series in fields(message):
        parts = list(fields(series))
        pairs = [tuple(text.decode() for _, text in fields(one)) for tag, one in parts if tag == 1]
        assert [name for name, _ in pairs] == sorted(name for name, _ in pairs)
        samples = [dict(fields(one)) for tag, one in parts if tag == 2]
        key = ",".join(f"{name}={value}" for name, value in pairs)
        found.setdefault(key, []).extend((sample[2], sample[1]) for sample in samples)
    return found


def bits(value):
    return struct.unpack("<Q", struct.pack("<d", value))[0]


class FakeReceiver(Receiver):
    """Gives these answers, one after the other, then 204; keeps what it took."""

    def __init__(self, answers):
        super().__init__("http://127.0.0.1:1/write")
        self.answers, self.taken = list(answers), []

    def post(self, body):
        answer = self.answers.pop(0) if self.answers else Answer(204, "")
        if callable(answer):
            answer = answer(body)
        if answer.taken:
            self.taken.append(decoded(bytes(cramjam.snappy.decompress_raw(body))))
        return answer


def definitions():
    """One schema of three series."""
    made = Definitions()
    names = [("hindmost_node_cpu_seconds_total", '{"mode":"user"}'), ("b", "{}"), ("c", '{"zone":"ü"}')]
    made.schemas[1] = Schema(tuple(Series(name, False, "", labels) for name, labels in names))
    return made


class Sink(RemoteWrite):
    """A sink whose clock is in the test's hands, into a receiver that gives these answers."""

    def __init__(self, *answers):
        self.time_ns, self.known, receiver = NOW_NS, definitions(), FakeReceiver(answers)
        super().__init__(receiver, self.known, str, now_ns=lambda: self.time_ns, jitter=lambda: 0.0)
        self._leaving.wait = lambda timeout=None: False
        self.taken = receiver.taken

    def sent(self, *blocks, after_s=0):
        """What the receiver takes of these, so much later."""
        self.time_ns += after_s * SECOND
        before = len(self.taken)
        self.add(blocks)
        self.send()
        return self.taken[-1] if len(self.taken) > before else {}


def block(node, first_s, values):
    """Samples one second apart from ``first_s`` on; ``values`` a row a second."""
    times = NOW_NS + (first_s + np.arange(len(values))) * SECOND
    return MetricRows.of(node, 1, times, np.array(values, dtype=np.float64))


def test_bytes_are_the_protocol_s():
    """Labels in order, values bit by bit, times in ms; a missing sample leaves no row; nodes share a template."""
    sink, cpu = Sink(), "__name__=hindmost_node_cpu_seconds_total,mode=user,node="
    rows = block("n0", 0, [[1.5, -0.0, 7], [2.5, NAN, 8]]), block("n1", 0, [[9, 8, NAN], [3, 2, NAN]])
    assert sink.sent(*rows) == {
        f"{cpu}n0": [(MS, bits(1.5)), (MS + 1000, bits(2.5))],
        "__name__=b,node=n0": [(MS, bits(-0.0))],
        "__name__=c,node=n0,zone=ü": [(MS, bits(7)), (MS + 1000, bits(8))],
        f"{cpu}n1": [(MS, bits(9)), (MS + 1000, bits(3))],
        "__name__=b,node=n1": [(MS, bits(8)), (MS + 1000, bits(2))],
    }
    assert (sink.counts["sent"], sink.waiting_bytes) == (9, 0)


def test_what_is_old_or_twice_is_left_out():
    """Samples behind what was sent, replayed or from a broken clock, are not sent, and are counted."""
    sink, old = Sink(), block("bad", -1_759_999_999, [[1, 1, 1]])
    sink.sent(block("n0", 5, [[1, 1, 1]]))
    sink.sent(block("n0", 4, [[0, 0, 0], [1, 1, 1], [2, 2, 2]]), old)
    assert [[ms for ms, _ in one["__name__=b,node=n0"]] for one in sink.taken] == [[MS + 5000], [MS + 6000]]
    assert sink.counts["dropped_old"] == 9


def test_series_that_end_are_marked_once():
    """A series missing where its agent goes on is stale at once, those of a silent agent after a minute."""
    sink = Sink()
    sink.sent(block("n0", 0, [[1, 1, 1]]))
    assert sink.sent(block("n0", 1, [[2, NAN, 2]]))["__name__=b,node=n0"] == [(MS + 1000, STALE_BITS)]
    assert {key.split(",")[0]: found for key, found in sink.sent(after_s=70).items()} == {
        "__name__=hindmost_node_cpu_seconds_total": [(MS + 1001, STALE_BITS)],
        "__name__=c": [(MS + 1001, STALE_BITS)],
    }
    assert sink.sent() == {}


@pytest.mark.parametrize("first", [1, 2])
def test_series_that_go_on_in_another_schema_do_not_end(first):
    """When one rank of two ends, the other has one sample at each time; a receiver refuses a second. Nor later."""
    sink = Sink()
    sink.known.schemas[2] = Schema((Series("b", False, "", "{}"),))
    sink.sent(block("n0", 0, [[1, 1, 1]]))
    new = MetricRows.of("n0", 2, np.array([NOW_NS + SECOND]), np.array([[2.0]]))
    found = sink.sent(*[block("n0", 1, [[NAN, NAN, NAN]]), new][:: 1 if first == 1 else -1])
    assert found["__name__=b,node=n0"] == [(MS + 1000, bits(2))]
    assert found["__name__=c,node=n0,zone=ü"] == [(MS + 1000, STALE_BITS)]
    assert sink.sent(after_s=90) == {"__name__=b,node=n0": [(MS + 1001, STALE_BITS)]}


def test_a_schema_that_was_replaced_in_silence_ends_nothing_that_goes_on():
    """Its series, but those that the agent still sends, end a minute after the last of them."""
    sink = Sink()
    sink.known.schemas[2] = Schema((Series("b", False, "", "{}"),))
    sink.sent(block("n0", 0, [[1, 1, 1]]))
    later = sink.sent(MetricRows.of("n0", 2, np.array([NOW_NS + 70 * SECOND]), np.array([[2.0]])), after_s=70)
    ended = [key.split(",")[0] for key, found in later.items() if found[-1][1] == STALE_BITS]
    assert sorted(ended) == ["__name__=c", "__name__=hindmost_node_cpu_seconds_total"]


def test_forgotten_schema_is_still_sent():
    """Samples that waited for longer than their definition is kept are sent as they were meant, and end as usual."""
    sink = Sink()
    sink.sent(block("n0", 0, [[1, 1, 1]]))
    sink.add([block("n0", 1, [[2, 2, 2]]), block("n1", 1, [[3, 3, 3]])])
    sink.known.schemas.clear()
    found = sink.sent(after_s=30)
    for node, value in (("n0", 2), ("n1", 3)):
        assert found[f"__name__=b,node={node}"] == [(MS + 1000, bits(value))]
    assert sink.sent(after_s=70)["__name__=b,node=n0"] == [(MS + 1001, STALE_BITS)]
    assert (sink.counts["sent"], sink.counts["errors"]) == (15, 0)


def test_samples_of_no_schema_are_counted():
    """Samples whose definition is gone when they come are left out and counted; the others are sent."""
    sink = Sink()
    sink.sent(MetricRows.of("n0", 2, np.array([NOW_NS]), np.ones((1, 4))), block("n0", 0, [[1, 1, 1]]))
    assert (sink.counts["dropped_undefined"], sink.counts["sent"], sink.waiting_bytes) == (4, 3, 0)


def test_what_ended_long_ago_is_forgotten():
    """Processes that come and go leave nothing behind: an hour after its mark a series is not known any more."""
    sink = Sink()
    sink.sent(*(block(f"n{node}", 0, [[1, 1, 1]]) for node in range(100)))
    sink.sent(after_s=70)
    sink.sent(block("n0", 0, [[1, 1, 1]]))
    assert sink.counts["dropped_old"] == 3  # a replay within the hour is still known as one
    sink.sent(after_s=3600)
    assert (sink.remembered, sink.counts["sent"]) == (0, 600)


def test_temporary_failures_are_tried_again():
    """No answer, 429 and 503 are tried again until taken; nothing is lost, and the retries are counted."""
    sink = Sink(Answer(0, "refused"), Answer(429, "slow down", 1.0), Answer(503, "starting"))
    sink.sent(block("n0", 0, [[1, 1, 1]]))
    assert (sink.counts["sent"], sink.counts["retries"], sink.failing) == (3, 3, None)
    assert len(sink.taken) == 1


def test_what_is_tried_again_waits(monkeypatch):
    """Samples count as waiting until the receiver has them; meanwhile the oldest that are not on their way give way."""
    seen = []

    def busy(_):
        seen.append(sink.waiting_bytes)
        sink.add([block("n0", 2 + len(seen), [[1, 1, 1]])])
        seen.append(sink.waiting_bytes)
        return Answer(503, "starting")

    sink = Sink(busy, busy, busy)
    one = block("n0", 0, [[1, 1, 1]])
    monkeypatch.setattr(remote_write, "PORTION_BYTES", one.bytes)
    monkeypatch.setattr(remote_write, "WAITING_BYTES", 3 * one.bytes)
    sink.add([one, block("n0", 1, [[2, 2, 2]])])
    sink.send()
    assert [size / one.bytes for size in seen] == [2, 3, 3, 3, 3, 3]
    assert (sink.counts["sent"], sink.counts["dropped_full"], sink.waiting_bytes) == (9, 6, 0)


def test_only_what_is_at_fault_is_refused():
    """A request that is refused is cut in halves: the node at fault is left out and counted, the others arrive."""

    def refusing(body):
        found = decoded(bytes(cramjam.snappy.decompress_raw(body)))
        return Answer(400, "out of order sample") if any("node=n2" in key for key in found) else Answer(204, "")

    sink = Sink(*[refusing] * 9)
    sink.sent(*(block(f"n{node}", 0, [[1, 2, 3]]) for node in range(5)))
    arrived = {key.rpartition("node=")[2][:2] for one in sink.taken for key in one}
    assert arrived == {"n0", "n1", "n3", "n4"}
    assert (sink.counts["sent"], sink.counts["refused"]) == (12, 3)


def test_waiting_samples_are_bounded():
    """While nothing is sent, memory stays bounded, the oldest samples give way, and they are counted."""
    sink = Sink()
    large = [MetricRows.of("n0", 1, np.arange(100_000) + NOW_NS, np.zeros((100_000, 3))) for _ in range(40)]
    sink.add(large)
    assert sink.waiting_bytes <= 64 << 20
    a_tick = 3 * 8 + 8  # three values and their time
    assert sink.counts["dropped_full"] // 3 * a_tick + sink.waiting_bytes == 40 * 100_000 * a_tick


def test_page_is_sent_with_what_left_it():
    """Series of the metrics page are sent as they stand there; one that is gone is marked, and then forgotten."""
    pages = PageEncoder()
    first = ['# TYPE a gauge\na{x="1\\"\\\\\\n",y=""} 2.5', "b 1e9"]
    message, count = pages.page("\n".join(first).splitlines(), 1 << 40)
    assert (decoded(message), count) == (
        {'__name__=a,x=1"\\\n': [(1 << 40, bits(2.5))], "__name__=b": [(1 << 40, bits(1e9))]},
        2,
    )
    message, _ = pages.page(["b 2"], 1 << 40)
    assert decoded(message)['__name__=a,x=1"\\\n'] == [(1 << 40, STALE_BITS)]
    assert pages.page(["b 2"], 1 << 40)[1] == 1
    assert bits(STALE) == STALE_BITS


def test_series_twice_on_the_page_is_sent_once():
    """A page that names a series twice is sent with its last value, this time and the next, and the rest with it."""
    pages = PageEncoder()
    for _ in range(2):
        message, count = pages.page(['a{x="1"} 1', 'a{x="1"} 2', "b 3"], 1 << 40)
        assert (decoded(message), count) == (
            {"__name__=a,x=1": [(1 << 40, bits(2))], "__name__=b": [(1 << 40, bits(3))]},
            2,
        )


async def test_two_agents_of_a_node_are_one_line(collecting, fake_agent):
    """Agents of two jobs on one node are one series of that node, connected as long as either of them is."""
    async with collecting(http="none") as collector:
        agents = [fake_agent(collector.addresses["grpc"], agent_id=name, job=name) for name in "ab"]
        for agent in agents:
            await agent.connect()
        both = collector.endpoints.jobs_text()
        await agents[1].close()
        await until(lambda: collector.ingest.connected() == 1)
        one = collector.endpoints.jobs_text()
        await agents[0].close()
    for page in (both, one):
        series = [line.rpartition(" ")[0] for line in page.splitlines() if not line.startswith("#")]
        assert len(series) == len(set(series))
        assert 'hindmost_collector_agent_connected{node="n0"} 1' in page.splitlines()


@pytest.mark.parametrize(
    "url", ["prometheus:9090", "ftp://x/y", "http:///api", "http://x:99999/", "http://x:p/", "http://[::1/"]
)
def test_url_is_checked(url):
    """What is no http URL is a usage error that shows one."""
    with pytest.raises(UsageError, match="such as http://prom:9090/api/v1/write"):
        Receiver(url)
