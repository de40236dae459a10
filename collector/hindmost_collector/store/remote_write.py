"""Prometheus remote write 1.0: every metric also to Prometheus, VictoriaMetrics or Mimir, as a second sink.

It never holds anything up: what waits is bounded, the oldest gives way and is counted, and one thread does the work.

Samples become protobuf by numpy, without an object a sample. A message is a row of time series, and a time series its
labels and then its samples::

    0A len( 0A len(label) label …  12 10 09 VALUE(8) 10 TIME(6)  12 10 … )

The time, ms since 1970, takes six bytes of varint from 1971 to 2109, so each sample takes 18 bytes and has its place.
What differs between two blocks of one schema is values, times and the node's name; the rest is a template.
"""

import importlib
import json
import logging
import random
import re
import threading
import time
from collections import Counter, OrderedDict, defaultdict, deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
from hindmost.errors import MissingError
from hindmost_proto import retry, varint
from hindmost_proto.exposition import JOB_LABEL

from hindmost_collector.http_client import Answer, Receiver
from hindmost_collector.ingest.definitions import Definitions, Schema
from hindmost_collector.ingest.row_builder import MetricRows
from hindmost_collector.serve.exposition import Metric, counter, family, gauge

Array = np.ndarray[Any, Any]

SAMPLE_BYTES = 18
#: Times that six bytes hold: from 1971 to 2109.
EARLIEST_MS, LATEST_MS = 1 << 35, (1 << 42) - 1
#: The NaN that says that a series has ended.
STALE = float(np.array([0x7FF0000000000002], np.uint64).view(np.float64)[0])
_TEMPLATES = 256
_LABEL = re.compile(r'(\w+)="((?:[^"\\]|\\.)*)"')
_UNESCAPE = {"n": "\n", '"': '"', "\\": "\\"}


def _field(tag: int, content: bytes) -> bytes:
    return bytes([tag]) + varint(len(content)) + content


def labels(pairs: Mapping[str, str]) -> bytes:
    """Labels in the order of their names, as the protocol asks; those without a value left out."""
    return b"".join(
        _field(0x0A, _field(0x0A, name.encode()) + _field(0x12, str(value).encode()))
        for name, value in sorted(pairs.items())
        if value
    )


def samples(times_ms: Array, values: Array) -> Array:
    """(S, T * 18) bytes of ``values`` (S, T) at ``times_ms`` (T,), which lie between EARLIEST_MS and LATEST_MS."""
    series, ticks = values.shape
    out = np.empty((series, ticks, SAMPLE_BYTES), np.uint8)
    out[..., 0:3] = (0x12, SAMPLE_BYTES - 2, 0x09)
    out[..., 3:11] = np.ascontiguousarray(values, "<f8").view(np.uint8).reshape(series, ticks, 8)
    out[..., 11] = 0x10
    for index in range(6):
        out[..., 12 + index] = (times_ms >> 7 * index & 0x7F) | (0x80 if index < 5 else 0)
    return out.reshape(series, ticks * SAMPLE_BYTES)


def one_series(label_bytes: bytes, times_ms: Array, values: Array) -> bytes:
    """One time series; ``values`` (T,)."""
    return _field(0x0A, label_bytes + samples(times_ms, values[None, :]).tobytes())


@dataclass(frozen=True)
class _Template:
    content: Array
    nodes: Array
    values: Array


class Encoder:
    """Encodes blocks of metrics. Templates are kept by schema, length of the node's name, series present, and ticks."""

    def __init__(self, job_label: str = JOB_LABEL) -> None:
        self._job_label = job_label
        self._templates: OrderedDict[tuple[int, int, bytes, int], _Template] = OrderedDict()

    def block(self, node: str, ref: int, schema: Schema, times_ms: Array, values: Array) -> bytes:
        """The time series of a block, ``values`` (T, S), NaN for missing: those samples are left out."""
        missing = np.isnan(values) & (values.view(np.uint64) != np.float64(STALE).view(np.uint64))
        any_missing = missing.any(axis=0)
        whole = ~any_missing
        parts = [self._whole(node, ref, schema, times_ms, values, whole)] if whole.any() else []
        for column in np.flatnonzero(any_missing & ~missing.all(axis=0)).tolist():
            mask = ~missing[:, column]
            parts.append(
                one_series(_labels(schema, column, node, self._job_label), times_ms[mask], values[mask, column])
            )
        return b"".join(parts)

    def _whole(self, node: str, ref: int, schema: Schema, times_ms: Array, values: Array, whole: Array) -> bytes:
        name = np.frombuffer(node.encode(), np.uint8)
        key = ref, len(name), np.packbits(whole).tobytes(), len(times_ms)
        template = self._templates.get(key)
        if template is None:
            columns = np.flatnonzero(whole).tolist()
            template = self._templates[key] = _template(schema, columns, node, len(times_ms), self._job_label)
            if len(self._templates) > _TEMPLATES:
                self._templates.popitem(last=False)
        out = template.content.copy()
        if len(name):
            out[template.nodes[:, None] + np.arange(len(name))] = name
        width = len(times_ms) * SAMPLE_BYTES
        out[template.values[:, None] + np.arange(width)] = samples(times_ms, values.T[whole])
        return bytes(out.data)


def _labels(schema: Schema, column: int, node: str, job_label: str) -> bytes:
    own = json.loads(schema.labels(column))
    if "job" in own:
        own[job_label] = own.pop("job")
    return labels({"__name__": schema.head.names[column], "node": node, **own})


def _template(schema: Schema, columns: Sequence[int], node: str, ticks: int, job_label: str) -> _Template:
    """Everything of a message but node and samples, and where those go."""
    room = bytes(ticks * SAMPLE_BYTES)
    mark = _field(0x0A, _field(0x0A, b"node") + _field(0x12, node.encode()))
    out, nodes, places = bytearray(), [], []
    for column in columns:
        label_bytes = _labels(schema, column, node, job_label)
        head = b"\x0a" + varint(len(label_bytes) + len(room))
        if node:
            nodes.append(len(out) + len(head) + label_bytes.index(mark) + len(mark) - len(node.encode()))
        out += head + label_bytes
        places.append(len(out))
        out += room
    return _Template(np.frombuffer(bytes(out), np.uint8), np.array(nodes, np.int64), np.array(places, np.int64))


class PageEncoder:
    """Encodes the text of a metrics page, and marks as stale what was on the page before and is not any more."""

    def __init__(self) -> None:
        self._labels: dict[str, bytes] = {}

    def page(self, lines: Iterable[str], time_ms: int) -> tuple[bytes, int]:
        """``(time series, how many)`` of a page's lines, all at ``time_ms``; the last of one given twice."""
        found = {}
        for line in lines:
            series, _, value = line.rpartition(" ")
            if series and not line.startswith("#"):
                found[series] = float(value)
        known = self._labels
        self._labels = {series: known.pop(series, b"") or _parsed(series) for series in found}
        all_labels = [*self._labels.values(), *known.values()]
        values = [*found.values(), *[STALE] * len(known)]
        block = samples(np.array([time_ms]), np.array(values, np.float64)[:, None])
        parts = [_field(0x0A, one + row.tobytes()) for one, row in zip(all_labels, block, strict=True)]
        return b"".join(parts), len(parts)


def _parsed(series: str) -> bytes:
    name, _, inside = series.partition("{")
    pairs = {key: re.sub(r"\\(.)", lambda m: _UNESCAPE.get(m[1], m[1]), text) for key, text in _LABEL.findall(inside)}
    return labels({"__name__": name, **pairs})


log = logging.getLogger(__name__)

#: How often what has come is sent, and how often the page of jobs and ranks.
PERIOD_S, PAGE_S = 5.0, 15.0
#: Memory for samples that wait; beyond, the oldest give way, but for a portion that is being sent.
WAITING_BYTES = 64 << 20
PORTION_BYTES = 16 << 20
#: Samples of one request, about.
REQUEST_SAMPLES = 20_000
#: A series whose agent has been silent for this long has ended.
STALE_S = 60.0
#: For so long it is known up to when a series was sent, so that a late replay is not sent a second time.
FORGET_S = 3600.0
BACKOFF_FIRST_S, BACKOFF_LAST_S = 0.1, 10.0


class _Waiting(NamedTuple):
    """Samples, and what they mean: the definitions may be forgotten before these are sent."""

    rows: MetricRows
    schema: Schema


class _Sent(NamedTuple):
    """What was sent of one schema of one node: up to when (job clock ms), which series (S,), and when that was (ms)."""

    last_ms: int
    present: Array
    schema: Schema
    at_ms: int


def _keys(schema: Schema) -> Iterator[tuple[str, str]]:
    return ((name, labels) for name, _, _, labels in schema.series)


class RemoteWrite:
    """The sink. ``add`` from the event loop; a thread sends, between ``start`` and ``close``.

    Args:
        page: the text of the page of jobs and ranks, asked for every PAGE_S.
    """

    def __init__(
        self,
        receiver: Receiver,
        definitions: Definitions,
        page: Callable[[], str] = str,
        *,
        job_label: str = JOB_LABEL,
        now_ns: Callable[[], int] = time.time_ns,
        jitter: Callable[[], float] = random.random,
    ) -> None:
        """Raises HindmostError where the compression is not installed."""
        try:
            self._snappy: Any = importlib.import_module("cramjam").snappy
        except ImportError as error:
            raise MissingError(error, "remote-write") from error
        self._receiver, self._definitions, self._page, self._now_ns = receiver, definitions, page, now_ns
        self._jitter = jitter
        self._encoder, self._pages = Encoder(job_label), PageEncoder()
        self._waiting: deque[_Waiting] = deque()
        self._waiting_bytes = self._sending_bytes = 0
        self._lock, self._leaving = threading.Lock(), threading.Event()
        self._last: defaultdict[str, dict[int, _Sent]] = defaultdict(dict)
        self._thread: threading.Thread | None = None
        self._page_due_ns = 0
        self.counts: Counter[str] = Counter()
        self.failing: str | None = None

    @property
    def waiting_bytes(self) -> int:
        """Memory of samples that the receiver has not taken yet, those that it is offered included."""
        return self._waiting_bytes + self._sending_bytes

    @property
    def remembered(self) -> int:
        """How many schemas of nodes it is known of up to when they were sent."""
        return sum(map(len, self._last.values()))

    def add(self, blocks: Sequence[MetricRows]) -> None:
        """Take samples; the oldest give way, counted, where too many wait."""
        with self._lock:
            for block in blocks:
                schema = self._definitions.schemas.get(block.schema)
                if schema is None:
                    self.counts["dropped_undefined"] += block.size
                    continue
                self._waiting.append(_Waiting(block, schema))
                self._waiting_bytes += block.bytes
            while self._waiting and self.waiting_bytes > WAITING_BYTES:
                oldest = self._waiting.popleft().rows
                self._waiting_bytes -= oldest.bytes
                self.counts["dropped_full"] += oldest.size

    def start(self) -> None:
        self._thread = threading.Thread(target=self._run, daemon=True, name="remote write")
        self._thread.start()

    def close(self) -> None:
        """Send what waits, once, and end."""
        self._leaving.set()
        if self._thread:
            self._thread.join(BACKOFF_LAST_S)
        self._receiver.close()

    def _run(self) -> None:
        while not self._leaving.wait(PERIOD_S):
            self.send()
        self.send()

    def send(self) -> None:
        """Send everything that waits, what ended, and the page when it is due."""
        try:
            self._send_blocks()
            if self._now_ns() >= self._page_due_ns or self._leaving.is_set():
                self._page_due_ns = self._now_ns() + round(PAGE_S * 1e9)
                text, count = self._pages.page(self._page().splitlines(), self._now_ns() // 1_000_000)
                self._post([(text, count)])
        except Exception:  # a sink that dies silently would be worse; the store and the judge go on either way
            log.exception("remote write failed in an unforeseen way; going on")
            self.counts["errors"] += 1

    def _send_blocks(self) -> None:
        try:
            while taken := self._portion():
                self._send_portion(taken)
        finally:
            self._sending_bytes = 0
        self._post(self._ended())

    def _portion(self) -> list[_Waiting]:
        """The oldest of what waits: so much as may be held for as long as the receiver takes nothing."""
        taken: list[_Waiting] = []
        with self._lock:
            self._sending_bytes = 0
            while self._waiting and self._sending_bytes < PORTION_BYTES:
                taken.append(self._waiting.popleft())
                self._waiting_bytes -= taken[-1].rows.bytes
                self._sending_bytes += taken[-1].rows.bytes
        return taken

    def _send_portion(self, taken: list[_Waiting]) -> None:
        groups: dict[tuple[str, int], list[_Waiting]] = defaultdict(list)
        for one in taken:
            groups[one.rows.node, one.rows.schema].append(one)
        request: list[tuple[bytes, int]] = []
        # Schemas that end come last: which of their series go on in another one of the node is known by then.
        for (node, ref), waiting in sorted(groups.items(), key=lambda one: np.isnan(one[1][-1].rows.values[-1]).all()):
            request.append(self._encoded(node, ref, waiting))
            if sum(count for _, count in request) >= REQUEST_SAMPLES:
                self._post(request)
                request = []
        self._post(request)

    def _encoded(self, node: str, ref: int, waiting: list[_Waiting]) -> tuple[bytes, int]:
        """Samples of one schema of one node, and a mark on each series that has none any more; ``(bytes, count)``."""
        times = np.concatenate([one.rows.times for one in waiting]) // 1_000_000
        values = np.concatenate([one.rows.values for one in waiting])
        times, first = np.unique(times, return_index=True)
        values = values[first]
        sent = self._last.get(node, {}).get(ref)
        before, present = (sent.last_ms, sent.present) if sent else (0, np.zeros(values.shape[1], bool))
        fresh = (times > max(before, EARLIEST_MS)) & (times <= LATEST_MS)
        self.counts["dropped_old"] += int((~fresh).sum()) * values.shape[1]
        if not fresh.any():
            return b"", 0
        times, values = times[fresh], values[fresh]
        here = ~np.isnan(values)
        schema = waiting[-1].schema
        gone = self._nowhere(node, ref, schema, present & ~here.any(axis=0), int(times[-1]))
        values[-1, gone] = STALE
        self._last[node][ref] = _Sent(int(times[-1]), here.any(axis=0), schema, self._now_ns() // 1_000_000)
        encoded = self._encoder.block(node, ref, schema, times, values)
        return encoded, int(here.sum() + gone.sum())

    def _nowhere(self, node: str, ref: int, schema: Schema, gone: Array, time_ms: int) -> Array:
        """Which of the series (S,) that are gone no other schema of the node has had at that time or since."""
        names = {schema.head.names[place] for place in np.flatnonzero(gone).tolist()}
        found: set[tuple[str, str]] = set()
        for other, sent in self._last[node].items():
            if other != ref and sent.last_ms >= time_ms and not names.isdisjoint(sent.schema.head.names):
                found.update(key for key, there in zip(_keys(sent.schema), sent.present, strict=True) if there)
        return gone & [key not in found for key in _keys(schema)] if found else gone

    def _ended(self) -> list[tuple[bytes, int]]:
        """A mark on every series of agents that have been silent for too long; those silent for long are forgotten."""
        now = self._now_ns() // 1_000_000
        found = []
        for node, ref, sent in [(node, *one) for node, schemas in self._last.items() for one in schemas.items()]:
            if now - sent.last_ms > STALE_S * 1e3 and sent.present.any():
                gone = self._nowhere(node, ref, sent.schema, sent.present, now - round(STALE_S * 1e3))
                values = np.where(gone, STALE, np.nan)[None, :]
                encoded = self._encoder.block(node, ref, sent.schema, np.array([sent.last_ms + 1]), values)
                found.append((encoded, int(gone.sum())))
                self._last[node][ref] = sent._replace(last_ms=sent.last_ms + 1, present=np.zeros_like(sent.present))
            if now - sent.at_ms > FORGET_S * 1e3:
                del self._last[node][ref]
                if not self._last[node]:
                    del self._last[node]
        return found

    def _post(self, request: list[tuple[bytes, int]]) -> None:
        """Send until taken, refused for good, or shut down; a refused request is halved to save its valid part."""
        request = [part for part in request if part[1]]
        if not request:
            return
        answer = self._tried(bytes(self._snappy.compress_raw(b"".join(part for part, _ in request))))
        count = sum(count for _, count in request)
        if answer.taken:
            self.counts["sent"] += count
            if self.failing:
                log.warning("remote write works again")
            self.failing = None
        elif answer.temporary:
            self.counts["dropped_leaving"] += count
        elif len(request) > 1:
            middle = len(request) // 2
            self._post(request[:middle])
            self._post(request[middle:])
        else:
            if not self.counts["refused"]:  # once: the counter tells the rest
                log.warning("remote write: samples were refused: HTTP %d %s", answer.status, answer.reason[:300])
            self.counts["refused"] += count

    def _tried(self, body: bytes) -> Answer:
        attempt = 0
        while True:
            answer = self._receiver.post(body)
            self.counts["requests"] += 1
            if not answer.temporary:
                return answer
            self.counts["retries"] += 1
            self._failed(f"HTTP {answer.status} {answer.reason}" if answer.status else answer.reason)
            pause = retry.pause_s(attempt, BACKOFF_LAST_S, self._jitter(), BACKOFF_FIRST_S)
            if self._leaving.wait(max(pause, answer.retry_after_s)):
                return answer
            attempt += 1

    def _failed(self, reason: str) -> None:
        if not self.failing:
            log.warning("remote write failed, retrying: %s", reason[:300])
        self.failing = reason


#: Label ``reason`` to the sink's count: the queue was full, older than what was sent, refused for good, shut down, of a
#: schema that is no longer defined.
DROPPED = {
    "queue_full": "dropped_full",
    "old": "dropped_old",
    "refused": "refused",
    "leaving": "dropped_leaving",
    "undefined": "dropped_undefined",
}


_SAMPLES = counter("hindmost_collector_remote_write_samples_total", "With `remote_write`: samples sent.")
_DROPPED = counter(
    "hindmost_collector_remote_write_dropped_samples_total",
    "Samples that will never be sent. `queue_full`; `old`: behind newer ones; `refused`: HTTP 4xx; `leaving`: at exit; "
    "`undefined`: of a forgotten schema.",
    "reason",
)
_REQUESTS = counter("hindmost_collector_remote_write_requests_total", "Requests sent.")
_RETRIES = counter("hindmost_collector_remote_write_retries_total", "Requests that had to be repeated.")
_WAITING = gauge(
    "hindmost_collector_remote_write_waiting_bytes", "Memory of samples that the receiver has not accepted yet."
)
_FAILING = gauge("hindmost_collector_remote_write_failing", "1 while the receiver accepts nothing.")
METRICS = (_SAMPLES, _DROPPED, _REQUESTS, _RETRIES, _WAITING, _FAILING)


def metrics(sink: RemoteWrite) -> str:
    """The sink's own metrics, at their present values."""
    found: tuple[tuple[Metric, float], ...] = (
        (_SAMPLES, sink.counts["sent"]),
        (_REQUESTS, sink.counts["requests"]),
        (_RETRIES, sink.counts["retries"]),
        (_WAITING, sink.waiting_bytes),
        (_FAILING, bool(sink.failing)),
    )
    dropped = family(_DROPPED, (([reason], sink.counts[key]) for reason, key in DROPPED.items()))
    return "".join((*(family(metric, [((), value)]) for metric, value in found), dropped))
