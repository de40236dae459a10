"""Bytes that no program of ours wrote: what reads them refuses them in its own words, or goes on, in bounded memory.

A fixed number of examples, the same in each run: seconds. HINDMOST_FUZZ_EXAMPLES=5000 looks further.
"""

import asyncio
import contextlib
import io
import os
import shutil
import tempfile
import tracemalloc
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from google.protobuf.descriptor import FieldDescriptor
from google.protobuf.message import DecodeError
from hindmost import ring
from hindmost.errors import HindmostError, UsageError
from hindmost.identity import Identity
from hindmost.web_config import WebConfig
from hindmost_agent.delivery.spool import Spool
from hindmost_cli import main
from hindmost_collector.components import Components
from hindmost_collector.ingest.chunk import finish
from hindmost_collector.ingest.clock import NodeClock
from hindmost_collector.ingest.decode import Decoder
from hindmost_collector.ingest.definitions import Definitions
from hindmost_collector.ingest.packed_fields import SHORT_COLUMNS, packed
from hindmost_collector.ingest.session import Outbox
from hindmost_collector.live.jobs import LiveJob
from hindmost_collector.options import resolve, resolve_thresholds
from hindmost_collector.simulate import Scenario
from hindmost_collector.simulate.write import simulated
from hindmost_collector.store.arrow_tables import arrow_tables
from hindmost_proto import telemetry_pb2 as wire
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.security.conftest import hello_of

pytest.importorskip("yaml")
EXAMPLES = int(os.environ.get("HINDMOST_FUZZ_EXAMPLES", "60"))
FIXED = settings(
    max_examples=EXAMPLES,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large, HealthCheck.function_scoped_fixture],
)
#: What one input may make a reader hold.
MOST_BYTES = 64 << 20

#: Numbers at which arithmetic breaks, and ordinary ones.
EDGES = [0, 1, 2, 7, 127, 128, 255, 2**16, 2**31 - 1, 2**31, 2**32 - 1, 2**53, 2**63 - 1]
TEXTS = st.sampled_from(["", "j", "train", "all_reduce", "../x", "\0", "é" * 600, "x" * 5000, '"} 1\n'])
#: A reference that is defined, one that may be, one that is not.
REFS = st.sampled_from([1, 2, 3, 2**63, 2**64 - 1])


#: By type of a field, but whole numbers.
PLAIN = {
    FieldDescriptor.TYPE_STRING: TEXTS,
    FieldDescriptor.TYPE_BYTES: st.binary(max_size=40),
    FieldDescriptor.TYPE_BOOL: st.booleans(),
    FieldDescriptor.TYPE_DOUBLE: st.floats(),
    FieldDescriptor.TYPE_ENUM: st.integers(0, 9),
}


def scalar(field: FieldDescriptor) -> st.SearchStrategy[Any]:
    """Values that a field's type allows, and its meaning does not."""
    if field.name in {"ref", "rank", "schema", "ranks"} and field.type == FieldDescriptor.TYPE_FIXED64:
        return REFS
    if field.type in PLAIN:
        return PLAIN[field.type]
    bits, signed = (32 if "32" in str(field.cpp_type) or field.cpp_type in {1, 3} else 64), field.cpp_type in {1, 2}
    low, high = (-(2 ** (bits - 1)), 2 ** (bits - 1) - 1) if signed else (0, 2**bits - 1)
    values = [one for edge in EDGES for one in (edge, -edge) if low <= one <= high]
    return st.sampled_from(values)


@cache
def message(descriptor: Any, depth: int = 3) -> st.SearchStrategy[dict[str, Any]]:
    """Fields of a message of this type, some of them left out."""
    fields = {}
    for field in descriptor.fields:
        if field.message_type is not None and field.message_type.GetOptions().map_entry:
            fields[field.name] = st.dictionaries(TEXTS, TEXTS, max_size=2)
        elif field.message_type is not None:
            if not depth:
                continue
            inner = message(field.message_type, depth - 1)
            fields[field.name] = st.lists(inner, max_size=2) if field.is_repeated else inner
        else:
            one = scalar(field)
            fields[field.name] = st.lists(one, max_size=3) if field.is_repeated else one
    return st.fixed_dictionaries({}, optional=fields)


BODIES = ("definitions", "batch", "clock", "relayed", "hello")


@st.composite
def messages(draw: st.DrawFn) -> bytes:
    """A coded message of an agent: well formed and meaningless, or with bytes changed, or cut off."""
    body = draw(st.sampled_from(BODIES))
    field = wire.AgentMessage.DESCRIPTOR.fields_by_name[body]
    coded = wire.AgentMessage(**{body: draw(message(field.message_type))}).SerializeToString()
    return draw(mutated(coded)) if draw(st.booleans()) else coded


@st.composite
def mutated(draw: st.DrawFn, content: bytes) -> bytes:
    """The content with some bytes changed, and perhaps its end missing."""
    changed = bytearray(content)
    if changed:
        for place in draw(st.lists(st.integers(0, len(changed) - 1), max_size=6)):
            changed[place] = draw(st.integers(0, 255))
        if draw(st.integers(0, 3)) == 0:
            del changed[draw(st.integers(0, len(changed))) :]
    return bytes(changed)


@contextlib.contextmanager
def bounded() -> Iterator[None]:
    """Fails when what runs inside holds too much at one time."""
    tracemalloc.start()
    try:
        yield
        assert tracemalloc.get_traced_memory()[1] < MOST_BYTES
    finally:
        tracemalloc.stop()


@given(st.lists(messages(), min_size=1, max_size=4), st.booleans())
@FIXED
def test_messages_of_agents(coded: list[bytes], restricted: bool) -> None:
    """None raises or is an unforeseen failure; what cannot be is counted, and what was taken is stored and shown."""
    asyncio.run(_ingested(coded, "j" if restricted else ""))


async def _ingested(coded: list[bytes], only_job: str) -> None:
    parts = Components(resolve({"http": "none"}, {}), None)
    ingest = parts.ingest
    hello = hello_of("j")
    hello.only_job = only_job
    agent, outbox = await ingest.greet(hello)
    assert isinstance(outbox, Outbox)
    known = wire.Definitions(
        ranks=[wire.Rank(ref=1, job_id="j", node="n0")],
        schemas=[wire.Schema(ref=2, series=[wire.Series(name="a"), wire.Series(name="b")])],
    )
    if not only_job:
        await ingest.handle(
            agent, outbox, ingest.inbox.parsed(wire.AgentMessage(definitions=known).SerializeToString())
        )
    with bounded():
        for one in coded:
            try:
                parsed = ingest.inbox.parsed(one)
            except DecodeError:
                continue
            if parsed.WhichOneof("body") in {"definitions", "batch", "clock"}:
                await ingest.handle(agent, outbox, parsed)
        ingest.inbox.empty()
        chunks = {job: finish(rows) for job, rows in parts.decoder.take().items()}
        words, definitions = parts.decoder.words, parts.ingest.definitions
        stored = arrow_tables({job: [one] for job, one in chunks.items()}, words, definitions)
        for name, chunk in chunks.items():
            job = LiveJob(name, 0)
            job.add(chunk, words, definitions, 1)
            rows = sum(piece.num_rows for piece in stored.get((name, "steps"), ()))
            assert len(job.snapshot(words)().steps["rank"]) == rows
        outbox.drain()
    assert ingest.counts["set_aside"] == 0


#: Bytes of a column of 64 or 65 calls: none, one value for all, half as many for each, whole, and no such length.
LENGTHS = st.sampled_from([0, 1, 7, 8, 9, 255, 256, 257, 264, 511, 512, 513, 520])


@given(st.sampled_from([64, 65]), st.tuples(*[LENGTHS] * len(SHORT_COLUMNS)))
@FIXED
def test_columns_of_many_calls(count: int, lengths: tuple[int, ...]) -> None:
    """A block with a column of a length that no agent sends is left out; of others there are all calls."""
    calls = {name: list(range(count)) for name in ("seq", "start_ns")}
    batch = packed(wire.Batch(collectives=[wire.CollectiveBlock(rank=1, op_names=["x"], op=[0] * count, **calls)]))
    for name, length in zip(SHORT_COLUMNS, lengths, strict=True):
        setattr(batch.collectives[0], name, b"\xff" * length)
    decoder, clock = Decoder(definitions := Definitions()), NodeClock(0, 0)
    definitions.learn(wire.Definitions(ranks=[wire.Rank(ref=1, job_id="j", node="n0")]), decoder.job, clock)
    decoder.add(batch, "n0", "j", clock)
    known = {0, 8, (count + 1) // 2 * 8, count * 8}.issuperset(lengths)
    columns = finish(decoder.take()["j"]).coded.get("collectives", {})
    assert {len(column) for column in columns.values()} == ({count} if known else set())


@cache
def whole_ring() -> bytes:
    """A ring with steps, names and a communicator."""
    with tempfile.TemporaryDirectory() as folder:
        writer = ring.Writer.create(folder, Identity("j", 0, 1, 0, "n", "torch", "train.py"), "py", capacity=64)
        name, comm = writer.name("train"), writer.communicator(7, 0, 1, "world")
        for step in range(100):
            writer.event(ring.STEP, name, step, 1, seq=step, comm=comm)
        return next(Path(folder).glob("*.ring")).read_bytes()


@given(st.data())
@FIXED
def test_rings(data: st.DataObject) -> None:
    """A ring that a process of the job has damaged is read as far as it goes, or refused as a RingError."""
    content = data.draw(mutated(whole_ring()[:4096]))
    with tempfile.TemporaryDirectory() as folder, contextlib.suppress(ring.RingError), bounded():
        path = Path(folder, "1.ring")
        path.write_bytes(content + whole_ring()[len(content) :] if len(content) == 4096 else content)
        reader = ring.Reader(path)
        for event in reader.poll():
            assert event is None or event.kind < 256
        reader.communicators()


@cache
def whole_spool() -> Path:
    """A spool with batches that were not acknowledged."""
    folder = Path(tempfile.mkdtemp(), "spool")
    spool = Spool(folder, 1 << 20)
    for number in range(1, 30):
        spool.append(3, b"message %d " % number * 9, {number: b"definition"})
    spool.close()
    return folder


@given(st.data())
@FIXED
def test_spools(data: st.DataObject) -> None:
    """A damaged spool is opened, or refused in one line; what is left of it is sent, and its account is exact."""
    with tempfile.TemporaryDirectory() as folder:
        damaged = Path(folder, "spool")
        shutil.copytree(whole_spool(), damaged)
        damaged.chmod(0o700)
        path = data.draw(st.sampled_from(sorted(one for one in damaged.iterdir() if one.stat().st_size)))
        path.write_bytes(data.draw(mutated(path.read_bytes())))
        with bounded():
            try:
                spool = Spool(damaged, 1 << 20)
            except UsageError:
                return
            spool.connected(0, 0)
            while spool.next() is not None:
                pass
            ledger = spool.ledger
            assert ledger.pending >= 0
            assert spool.size < 1 << 20
            spool.close()


@cache
def whole_run() -> Path:
    """A run directory of two ranks."""
    folder = Path(tempfile.mkdtemp(), "run")
    simulated(Scenario(ranks=2, steps=12), folder)
    return folder


@given(st.data())
@settings(FIXED, max_examples=EXAMPLES // 6)
def test_run_directories(data: st.DataObject) -> None:
    """``hindmost report`` of a damaged run prints a report, or one line: never a traceback."""
    with tempfile.TemporaryDirectory() as folder:
        damaged = Path(folder, "run")
        shutil.copytree(whole_run(), damaged)
        path = data.draw(st.sampled_from(sorted(one for one in damaged.rglob("*") if one.is_file())))
        path.write_bytes(data.draw(mutated(path.read_bytes())))
        out, errors = io.StringIO(), io.StringIO()
        with contextlib.redirect_stdout(out), contextlib.redirect_stderr(errors):
            code = main(["report", str(damaged)])
        assert code in {0, 1, 2}
        assert (code == 0) or len(errors.getvalue().splitlines()) == 1


YAML = """tls_server_config: {cert_file: a, key_file: b, client_auth_type: NoClientCert, min_version: TLS12}
http_server_config: {http2: true, headers: {A: b}}
basic_auth_users: {u: $2b$04$abcdefghijklmnopqrstuuS0eo6xbGyA8N0wUJxUZ1Fh3h9oUFDGm}
"""


@given(st.one_of(mutated(YAML.encode()), st.binary(max_size=60), st.text(max_size=60).map(str.encode)))
@FIXED
def test_web_config(content: bytes) -> None:
    """Each is a configuration, or a line that names the file."""
    _one_line(content, "web.yml", lambda path: WebConfig(str(path), "--web-config"))


TOML = """listen = "127.0.0.1:1"
flush_seconds = 2.5
memory_mib = 64
[tls]
cert = "c"
key = "k"
[judge]
min_effect = 0.02
"""


@given(st.one_of(mutated(TOML.encode()), st.binary(max_size=60), st.text(max_size=60).map(str.encode)))
@FIXED
def test_toml(content: bytes) -> None:
    """Each is settings and thresholds, or a line that names the file or the setting."""
    _one_line(content, "c.toml", lambda path: resolve({}, {}, path))
    _one_line(content, "c.toml", lambda path: resolve_thresholds([], {}, path))


def _one_line(content: bytes, name: str, read: Any) -> None:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, name)
        path.write_bytes(content)
        said = ""
        with bounded():
            try:
                read(path)
            except HindmostError as error:
                said = str(error)
        assert len(said.splitlines()) <= 1
        assert said.isprintable()
