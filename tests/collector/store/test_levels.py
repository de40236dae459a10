"""Coarser levels of samples: made by compaction, whole at any time, and chosen by the length of a range."""

import os
import time
from collections import Counter

import hindmost_collector
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hindmost.errors import HindmostError
from hindmost_collector.store import schema
from hindmost_collector.store.parquet import compaction, segments
from hindmost_collector.store.parquet.compaction import LEAST_SEGMENTS, MANY_SEGMENTS, MOST_SEGMENTS, Retention, Upkeep
from hindmost_collector.store.parquet.store import ParquetStore, read_run

from tests.collector.stored import rows_of

SECOND = 1_000_000_000
START_NS = 1_760_000_400 * SECOND  # a full hour
FLUSH_S = 7  # no level's interval is a multiple of it
NAME = "hindmost_node_cpu_seconds_total"
DAY_S = 86400.0


def samples(first_s, seconds, nodes=3):
    """One series a node, a sample a second; node k counts up by k+1 a second."""
    at = np.tile(np.arange(first_s, first_s + seconds), nodes)
    of = np.repeat(np.arange(nodes), seconds)
    known = {"node": [f"n{node}" for node in of], "name": NAME, "labels": "{}"}
    return rows_of("metrics", **known, time_ns=START_NS + at * SECOND, value=at * (of + 1.0))


@pytest.fixture(scope="module")
def written(tmp_path_factory):
    """The folder of a store of one job with LEAST_SEGMENTS flushes, and as many again before their compaction."""
    made = ParquetStore(tmp_path_factory.mktemp("store"), single=False)
    for flush in range(LEAST_SEGMENTS):
        made.write({("j", "metrics"): [samples(flush * FLUSH_S, FLUSH_S)]}, {})
    Upkeep(made, Retention()).compact()
    for flush in range(LEAST_SEGMENTS, 2 * LEAST_SEGMENTS - 1):
        made.write({("j", "metrics"): [samples(flush * FLUSH_S, FLUSH_S)]}, {})
    made.close()
    return made.root


def expected(width_s, seconds):
    """Of node 2: start, count, min, max, sum, last of every interval."""
    values = np.arange(seconds) * 3.0
    found = []
    for first in range(0, seconds, width_s):
        part = values[first : first + width_s]
        found.append((START_NS + first * SECOND, len(part), part[0], part[-1], part.sum(), part[-1]))
    return found


@pytest.mark.parametrize(("level", "width_s"), [("metrics_30s", 30), ("metrics_5m", 300), ("metrics_1h", 3600)])
def test_level_is_whole(store, tmp_path, level, width_s):
    """A level has every sample once: those of compacted segments, the newest ones, and intervals that lie across."""
    assert (tmp_path / "j/segments" / level).is_dir()
    query = f"select time_ns, count, min, max, sum, last from {level} where node = 'n2' order by 1"  # noqa: S608
    rows = hindmost_collector.open(tmp_path).sql(query).to_pylist()
    assert [tuple(row.values()) for row in rows] == expected(width_s, FLUSH_S * (2 * LEAST_SEGMENTS - 1))


def test_range_chooses_its_level(store, tmp_path):
    """A short range is answered with samples, a longer one with the finest level that has no more points than asked."""
    recording = hindmost_collector.open(tmp_path)
    total = FLUSH_S * (2 * LEAST_SEGMENTS - 1)
    fine = recording.series(NAME, node="n1", start_ns=START_NS, end_ns=START_NS + 60 * SECOND)
    assert fine["last"].to_pylist() == [2.0 * at for at in range(60)]
    coarse = recording.series(NAME, node="n1", points=total // 30 + 1)
    assert coarse["count"].to_pylist() == [30] * (total // 30) + [total % 30]
    assert coarse["mean"].to_pylist()[0] == 29.0
    assert recording.series(NAME, points=1)["count"].to_pylist() == [total] * 3
    assert len(recording.series("nosuch")) == 0


def test_levels_outlive_their_samples(store, tmp_path):
    """Retention takes samples first; what they were is still there in the levels, and a range finds it."""
    Upkeep(store, Retention(days=2), now=lambda: time.time() + 4 * DAY_S).compact()
    Upkeep(store, Retention(days=2), now=lambda: time.time() + 4 * DAY_S).expire()
    assert not list((tmp_path / "j/segments/metrics").glob("*.parquet"))
    recording = hindmost_collector.open(tmp_path)
    kept = recording.series(NAME, node="n2")
    assert sum(kept["count"].to_pylist()) == FLUSH_S * (2 * LEAST_SEGMENTS - 1)
    assert kept["count"].to_pylist()[0] == 30
    Upkeep(store, Retention(days=2), now=lambda: time.time() + 200 * DAY_S).expire()
    assert not (tmp_path / "j").exists()


def test_size_takes_samples_before_levels(store, tmp_path):
    """Over the size limit the samples go first, oldest first, and the levels last."""
    held = sum(path.stat().st_size for path in tmp_path.rglob("metrics_*/*.parquet"))
    Upkeep(store, Retention(bytes=held + 1)).expire()
    assert not list((tmp_path / "j/segments/metrics").glob("*.parquet"))
    assert sum(path.stat().st_size for path in tmp_path.rglob("metrics_*/*.parquet")) == held


def test_day_that_is_over_is_compacted_whatever_it_has(tmp_path):
    """A few flushes of a day that is over are merged too, so that its levels are there when its samples go."""
    made = ParquetStore(tmp_path, single=False)
    made.write({("j", "metrics"): [samples(0, 5)]}, {})
    assert Upkeep(made, Retention()).compact() == 0
    tomorrow = Upkeep(made, Retention(), now=lambda: time.time() + DAY_S)
    assert tomorrow.compact() == 1
    assert len(list((tmp_path / "j/segments/metrics_1h").glob("*.parquet"))) == 1
    assert tomorrow.compact() == 0
    made.close()


def test_merge_in_pieces_is_the_sorted_whole(tmp_path, monkeypatch):
    """Merging piece by piece gives every row once, sorted, whatever words and ranges the segments have."""
    monkeypatch.setattr(compaction, "PIECE_ROWS", 400)
    paths = []
    for number in range(4):
        paths.append(tmp_path / f"{number}.parquet")
        pieces = [samples(number * 50, 50, nodes=2 + 3 * number).slice(at, 100) for at in range(0, 550, 100)]
        segments.write("metrics", [piece for piece in pieces if len(piece)], paths[-1])
    made = list(compaction.merged("metrics", paths))
    assert len(made) > 2
    rows = [row for piece in made for row in piece.to_pylist()]
    keys = [(row["node"], row["name"], row["labels"], row["time_ns"]) for row in rows]
    assert keys == sorted(keys)
    assert len(set(keys)) == len(keys) == sum(50 * (2 + 3 * number) for number in range(4))


def test_late_rows_are_sorted_in():
    """Samples that an agent sent late, from its spool, end up in their place."""
    late = pa.concat_tables([samples(10, 5, 1), samples(0, 5, 1)]).unify_dictionaries().combine_chunks()
    made = compaction.in_order("metrics", late)
    assert made["time_ns"].to_pylist() == sorted(late["time_ns"].to_pylist())


def test_segment_of_an_older_schema_is_read_and_migrated(tmp_path):
    """A segment of version 0, without columns that came later, is read as not measured, and compaction renews it."""
    target = schema.arrow_schema("steps")
    old = pa.schema([target.field(name) for name in ("rank", "step", "start_ns", "duration_ns")])
    old = old.with_metadata({schema.VERSION_KEY: b"0"})
    made = ParquetStore(tmp_path, single=False)
    directory = tmp_path / "j/segments/steps"
    directory.mkdir(parents=True)
    for flush in range(LEAST_SEGMENTS):
        rows = pa.table({name: pa.array([flush], old.field(name).type) for name in old.names}, schema=old)
        pq.write_table(rows, directory / segments.file_name("20250101", flush))
    run = read_run(tmp_path / "j")
    assert run.steps["step"].tolist() == list(range(LEAST_SEGMENTS))
    assert (run.steps["forward_ns"].tolist(), run.steps["kind"].tolist()) == (
        [-1] * LEAST_SEGMENTS,
        [""] * LEAST_SEGMENTS,
    )
    assert Upkeep(made, Retention()).compact() == LEAST_SEGMENTS
    (renewed,) = directory.glob("*.parquet")
    metadata = pq.ParquetFile(renewed).schema_arrow.metadata
    assert metadata[schema.VERSION_KEY] == str(schema.VERSION).encode()
    assert read_run(tmp_path / "j").steps["forward_ns"].tolist() == [-1] * LEAST_SEGMENTS
    made.close()


def test_segment_of_a_newer_schema_is_refused(tmp_path):
    """A segment that a newer hindmost wrote is not misread: the error names it and the remedy."""
    target = schema.arrow_schema("steps").with_metadata({schema.VERSION_KEY: str(schema.VERSION + 1).encode()})
    directory = tmp_path / "segments/steps"
    directory.mkdir(parents=True)
    pq.write_table(target.empty_table(), directory / segments.file_name("20250101", 1))
    with pytest.raises(HindmostError, match="written by a newer hindmost"):
        read_run(tmp_path)
    with pytest.raises(HindmostError, match="written by a newer hindmost"):
        hindmost_collector.open(tmp_path).steps()


def test_compaction_lets_a_newer_schema_be(store, tmp_path, caplog):
    """A table that a newer hindmost has written into is not merged, said once; the other tables are."""
    target = schema.arrow_schema("clocks").with_metadata({schema.VERSION_KEY: str(schema.VERSION + 1).encode()})
    directory = tmp_path / "j/segments/clocks"
    directory.mkdir(parents=True)
    for flush in range(LEAST_SEGMENTS):
        pq.write_table(target.empty_table(), directory / segments.file_name("20250101", flush))
    work = Upkeep(store, Retention(), now=lambda: time.time() + DAY_S)
    assert work.compact() == LEAST_SEGMENTS
    assert work.compact() == 0
    assert len(list(directory.glob("*.parquet"))) == LEAST_SEGMENTS
    (said,) = [record.message for record in caplog.records if "is not compacted" in record.message]
    assert said.startswith(f"{directory} is not compacted: ")
    assert said.endswith("was written by a newer hindmost (schema 2): upgrade this one to read it")


def test_while_cores_are_full_only_tables_of_many_segments_are_merged(store, tmp_path):
    """Those of fewer are merged once cores are free, even if nothing was written since."""
    work = Upkeep(store, Retention())
    flushes = [[samples((2 * LEAST_SEGMENTS - 1 + number) * FLUSH_S, FLUSH_S)] for number in range(MANY_SEGMENTS + 1)]
    store.write({("j", "metrics"): flushes[0]}, {})
    assert [work.compact(MANY_SEGMENTS), work.compact()] == [0, LEAST_SEGMENTS + 1]
    for rows in flushes[1:]:
        store.write({("j", "metrics"): rows}, {})
    assert work.compact(MANY_SEGMENTS) == MOST_SEGMENTS


def test_what_was_merged_counts_once_while_both_are_there(store, tmp_path):
    """Between the two halves of a swap a reader finds old segments and new: it reads the new ones only."""
    directory = tmp_path / "j/segments"
    store.write({("j", "metrics"): [samples((2 * LEAST_SEGMENTS - 1) * FLUSH_S, FLUSH_S)]}, {})
    before = {path: path.read_bytes() for path in directory.rglob("*.parquet")}
    assert Upkeep(store, Retention()).compact() == LEAST_SEGMENTS + 1
    total = FLUSH_S * 2 * LEAST_SEGMENTS * 3
    for path, content in before.items():
        path.write_bytes(content)
    recording = hindmost_collector.open(tmp_path)
    assert len(recording.metrics()) == total
    assert len(read_run(tmp_path / "j").metrics["value"]) == total
    for level in schema.LEVELS:
        assert recording.sql(f"select sum(count) as n from {level}")["n"].to_pylist() == [total]  # noqa: S608


def test_large_segment_is_not_stood_for(tmp_path):
    """Segments before and after one that is large enough are not merged across it: its rows would be left out."""
    names = [segments.file_name("20250101", flush) for flush in (1, 2, 3)]
    large = segments.file_name("20250101", 4, 9)
    for name in [*names, large, segments.file_name("20250101", 10)]:
        (tmp_path / name).touch()
    os.truncate(tmp_path / large, compaction.LARGE_BYTES)
    groups = [[one.path.name for one in group] for group in compaction.mergeable(tmp_path, "20250102")]
    assert groups == [names, [segments.file_name("20250101", 10)]]


def test_row_is_rewritten_as_often_as_its_table_doubles(tmp_path):
    """A day of flushes is merged into few segments, writing each byte a few times, and into one when it is over."""
    flush_bytes, count, written = 3000, 2000, 0

    def merge_all(today):
        nonlocal written
        while groups := compaction.mergeable(tmp_path, today):
            for group in groups:
                total = sum(one.bytes for one in group)
                for one in group:
                    one.path.unlink()
                made = tmp_path / segments.file_name("20250101", group[0].flush, group[-1].last)
                made.touch()
                os.truncate(made, total)
                written += total

    for flush in range(1, count + 1):
        path = tmp_path / segments.file_name("20250101", flush)
        path.touch()
        os.truncate(path, flush_bytes)
        if flush % LEAST_SEGMENTS == 0:
            merge_all("20250101")
    doublings = np.log2(count / LEAST_SEGMENTS)
    assert written <= (doublings + 1) * count * flush_bytes
    assert len(segments.listed(tmp_path)) <= doublings + 1
    merge_all("20250102")
    (whole,) = segments.listed(tmp_path)
    assert whole.bytes == count * flush_bytes


def of_cpus(first_s, seconds, cpus):
    """A series a CPU of one node."""
    rows = samples(first_s, seconds, nodes=cpus)
    labels = pa.array([f'{{"cpu":"{node}"}}' for node in rows["node"].to_pylist()]).dictionary_encode()
    nodes = pa.array(["n0"] * len(rows)).dictionary_encode()
    columns = {**dict(zip(rows.column_names, rows.columns, strict=True)), "node": nodes, "labels": labels}
    return pa.table(columns, schema=rows.schema)


def test_merge_cuts_within_one_node(tmp_path, monkeypatch):
    """A store of one node, whose leading column never changes, is merged in pieces too, and no series is cut in two."""
    monkeypatch.setattr(compaction, "PIECE_ROWS", 400)
    paths = [tmp_path / f"{number}.parquet" for number in range(3)]
    for number, path in enumerate(paths):
        segments.write("metrics", [compaction.in_order("metrics", of_cpus(number * 20, 20, 40))], path)
    made = list(compaction.merged("metrics", paths))
    assert len(made) == 6
    assert max(map(len, made)) <= 2 * 400
    of = [set(piece["labels"].to_pylist()) for piece in made]
    assert sum(map(len, of)) == len(set().union(*of)) == 40
    keys = [(row["labels"], row["time_ns"]) for piece in made for row in piece.to_pylist()]
    assert keys == sorted(keys)
    assert len(set(keys)) == len(keys) == 40 * 60


def test_merge_reads_each_row_group_once(tmp_path, monkeypatch):
    """However many pieces share a row group of a segment, it is read once for all of them."""
    monkeypatch.setattr(compaction, "PIECE_ROWS", 60)
    monkeypatch.setattr(segments, "FLUSH_GROUP", 128)
    paths = [tmp_path / segments.file_name("20250101", flush) for flush in (1, 2)]
    for number, path in enumerate(paths):
        segments.write("metrics", [samples(100 * number, 50, nodes=8)], path)
    read, real = Counter(), segments.read_group

    def counted(file, number, columns=None):
        if columns is None:  # else it looks for bounds only
            read[id(file), number] += 1
        return real(file, number, columns)

    monkeypatch.setattr(segments, "read_group", counted)
    pieces = list(compaction.merged("metrics", paths))
    assert len(pieces) > 4
    assert (len(read), set(read.values())) == (6, {1})
    assert sum(map(len, pieces)) == sum(len(segments.read(path)) for path in paths)
