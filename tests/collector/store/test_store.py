"""The store between flushes, and reading it: compaction, retention, SQL."""

import errno
import itertools
import math
import time
from types import SimpleNamespace

import hindmost_collector
import numpy as np
import pyarrow as pa
import pytest
from hindmost.errors import UsageError
from hindmost_cli import query
from hindmost_collector.ingest.chunk import Chunk
from hindmost_collector.ingest.definitions import Definitions, Schema, Series
from hindmost_collector.ingest.row_builder import MetricRows, Words, origin
from hindmost_collector.store import arrow_tables, schema
from hindmost_collector.store.arrow_tables import in_order, metrics_tables
from hindmost_collector.store.parquet import compaction, journal, segments
from hindmost_collector.store.parquet.compaction import LEAST_SEGMENTS as LEAST
from hindmost_collector.store.parquet.compaction import Retention, Upkeep
from hindmost_collector.store.parquet.store import ParquetStore
from hypothesis import given
from hypothesis import strategies as st

from tests.collector.stored import rows_of

DAY = 86400.0


def steps(step):
    """One step of rank 0 as a stored table."""
    return rows_of("steps", step, rank=0, input_ns=-1)


@pytest.fixture(scope="module")
def written(tmp_path_factory):
    """The folder of a store of one job, ``j``, with one segment a step."""
    made = ParquetStore(tmp_path_factory.mktemp("store"), single=False)
    for step in range(LEAST + 4):
        made.write({("j", "steps"): [steps(step)]}, {"a@n": step})
    made.close()
    return made.root


@pytest.mark.parametrize("shuffled", [False, True])
def test_rows_of_a_flush_are_in_order(shuffled):
    """Owner by owner, each owner's by time, whether they came in runs, as agents send them, or in any order."""
    chance = np.random.default_rng(1)
    owner = np.concatenate([np.repeat(chance.permutation(40), 5) for _ in range(6)]).astype(np.int32)
    when = np.concatenate([np.tile(np.arange(5), 40) + 5 * batch for batch in range(6)])
    if shuffled:
        owner, when = (column[chance.permutation(len(owner))] for column in (owner, when))
    order = in_order(owner, when)
    assert sorted(order.tolist()) == list(range(len(owner)))
    assert list(zip(owner[order], when[order], strict=True)) == sorted(zip(owner, when, strict=True))
    assert len(in_order(owner[:0], when[:0])) == 0


@pytest.mark.parametrize("in_runs", [False, True])
def test_a_flush_takes_some_ranks_at_a_time(monkeypatch, in_runs):
    """The pieces of a table, each of a few ranks, are its rows in order: there is no memory for a second copy."""
    chance, columns = np.random.default_rng(1), {name: np.full(400, -1) for name in schema.STORED["steps"]}
    columns |= {"rank": chance.integers(0, 40, 400), "step": chance.permutation(400), "kind": np.zeros(400, int)}
    if in_runs:  # as agents send them
        columns["rank"] = np.concatenate([np.repeat(chance.permutation(10), 10) for _ in range(4)])
        columns["step"] = np.tile(np.arange(10), 40) + np.repeat(np.arange(0, 40, 10), 100)
        columns["rank"][:100] = 3  # a run that is longer than a piece
        columns["step"][:100] = np.arange(100)
        columns["step"][100:][columns["rank"][100:] == 3] += 100
        monkeypatch.setattr(arrow_tables, "LONG_RUN", 10)
        monkeypatch.setattr(arrow_tables, "in_order", None)  # no row is moved alone
    parts = [{name: column[at : at + 100] for name, column in columns.items()} for at in range(0, 400, 100)]
    words = Words()
    words.code("train")
    monkeypatch.setattr(arrow_tables, "PIECE_ROWS", 50)
    chunks = {"j": [Chunk({"steps": part}, {}, [], []) for part in parts]}
    pieces = list(arrow_tables.arrow_tables(chunks, words, Definitions())["j", "steps"])
    assert max(map(len, pieces)) <= 100
    stored = [tuple(row.values()) for row in pa.concat_tables(pieces).select(["rank", "step"]).to_pylist()]
    assert stored == sorted(zip(columns["rank"].tolist(), columns["step"].tolist(), strict=True))


@pytest.mark.parametrize("table", list(schema.ORDER))
def test_a_segment_tells_what_rows_it_has(table):
    """Of each row group the owners and times are noted, by which readers and merges leave others unread."""
    for passing in (False, True):
        noted = schema.noted(table, passing=passing)
        assert schema.ORDER[table][0] in noted
        assert any(name in noted for name in ("time_ns", "start_ns"))
        assert set(noted) <= set(schema.FILED[table])


def test_compaction_keeps_every_row(store, tmp_path):
    """Many small segments become one with the same rows, and the sequences stay."""
    assert Upkeep(store, Retention()).compact() == LEAST + 4
    assert len(list((tmp_path / "j/segments/steps").glob("*.parquet"))) == 1
    assert hindmost_collector.open(tmp_path).steps()["step"].to_pylist() == list(range(LEAST + 4))
    assert store.sequences == {"a@n": LEAST + 3}
    assert Upkeep(store, Retention()).compact() == 0


def test_compaction_happens_again_with_what_came_later(store, tmp_path):
    """A compacted segment is merged with later ones, in place, losing nothing."""
    upkeep = Upkeep(store, Retention())
    upkeep.compact()
    for step in range(100, 100 + LEAST):
        store.write({("j", "steps"): [steps(step)]}, {"a@n": step})
    assert upkeep.compact() == LEAST + 1
    assert len(hindmost_collector.open(tmp_path).steps()) == 2 * LEAST + 4


def test_a_store_at_rest_is_not_read(store, monkeypatch):
    """Upkeep reads what flushes wrote into since, and the whole store once a day: old jobs cost nothing."""
    now = time.time()
    upkeep = Upkeep(store, Retention(days=7, bytes=1 << 40), now=lambda: now)
    store.write({("old", "ranks"): [schema.arrow_schema("ranks").empty_table()]}, {})
    read = []
    listdir = segments.os.listdir
    monkeypatch.setattr(segments.os, "listdir", lambda path: read.append(path) or listdir(path))

    def round_of_upkeep():
        read.clear()
        while upkeep.compact() or upkeep.expire():
            pass
        return {path.parents[1].name for path in read if path.parent.name == "segments"}

    assert round_of_upkeep() == {"j", "old"}
    assert round_of_upkeep() == set()
    store.write({("j", "steps"): [steps(100)]}, {})
    assert round_of_upkeep() == {"j"}
    now += DAY
    assert round_of_upkeep() == {"j", "old"}


def test_a_full_store_is_surveyed_when_what_goes_next_is_unknown(store, tmp_path, monkeypatch):
    """Over its limit the oldest go, round after round; what a user removed by hand makes room within an hour."""
    monkeypatch.setattr(compaction, "_OLDEST", 3)
    directory = tmp_path / "j/segments/steps"
    one = next(directory.glob("*.parquet")).stat().st_size
    now = time.time()
    upkeep = Upkeep(store, Retention(bytes=(LEAST + 4) * one + one // 2), now=lambda: now)
    assert upkeep.expire() == 0
    for step in range(100, 106):
        store.write({("j", "steps"): [steps(step)]}, {})
        assert upkeep.expire() > 0
    kept = hindmost_collector.open(tmp_path).steps()["step"].to_pylist()
    assert kept == [*range(7, LEAST + 4), *range(100, 106)]
    for path in list(directory.glob("*.parquet"))[:10]:
        path.unlink()
    now += compaction.SURVEY_S
    store.write({("j", "steps"): [steps(106)]}, {})
    assert upkeep.expire() == 0


def test_compaction_survives_a_crash(store, tmp_path, monkeypatch):
    """Killed after the commit and before the swap, the next start finishes it: no row is lost or doubled."""
    with monkeypatch.context() as patch:
        patch.setattr(journal.Journal, "finish", lambda _: None)
        Upkeep(store, Retention()).compact()
        store.close()
    again = ParquetStore(tmp_path, single=False)
    assert len(list((tmp_path / "j/segments/steps").glob("*.parquet"))) == 1
    assert len(hindmost_collector.open(tmp_path).steps()) == LEAST + 4
    again.close()


def test_old_days_go(store, tmp_path):
    """Segments of days beyond the retention are deleted, a job without any with them; writing goes on."""
    later = Upkeep(store, Retention(days=7), now=lambda: time.time() + 9 * DAY)
    assert Upkeep(store, Retention(days=7)).expire() == 0
    assert later.expire() > 0
    assert not (tmp_path / "j").exists()
    store.write({("j", "steps"): [steps(1)]}, {})
    assert len(hindmost_collector.open(tmp_path).steps()) == 1


def test_size_is_bounded_oldest_first(store, tmp_path):
    """Over the size limit the oldest segments go, and only as many as needed."""
    one = next((tmp_path / "j/segments/steps").glob("*.parquet")).stat().st_size
    Upkeep(store, Retention(bytes=3 * one + one // 2)).expire()
    assert hindmost_collector.open(tmp_path).steps()["step"].to_pylist() == [LEAST + 1, LEAST + 2, LEAST + 3]


def test_reports_count_as_space_and_go_with_their_job(store, tmp_path):
    """The page of a job is larger than a short job's segments; what another job wrote need not go for it as well."""
    store.write({("k", "steps"): [steps(1)]}, {})
    ranks = tmp_path / "j/segments/ranks"
    ranks.mkdir(exist_ok=True)
    segments.write("ranks", [schema.arrow_schema("ranks").empty_table()], ranks / segments.file_name("20250101", 1))
    store.write_file("j", "report.html", bytes(1 << 20))
    store.write_file("j", "stacks/0.txt", bytes(1 << 20))
    upkeep = Upkeep(store, Retention(bytes=(5 << 20) // 2))
    upkeep.expire()
    assert (tmp_path / "j/report.html").exists()
    store.write_file("j", "stacks/1.txt", bytes(1 << 20))
    upkeep.expire()
    assert not (tmp_path / "j").exists()
    assert len(list((tmp_path / "k/segments/steps").glob("*.parquet"))) == 1


def test_the_size_is_not_overshot_between_rounds(store, tmp_path):
    """Room is made for as much as came since the round before, and for no more where nothing comes."""
    directory = tmp_path / "j/segments/steps"
    one = next(directory.glob("*.parquet")).stat().st_size
    upkeep = Upkeep(store, Retention(bytes=16 * one + one // 2))
    upkeep.expire()
    for step in range(100, 108):
        for flush in range(2):
            store.write({("j", "steps"): [steps(2 * step + flush)]}, {})
        held = sum(path.stat().st_size for path in directory.glob("*.parquet"))
        assert step == 100 or held <= 16 * one + one // 2
        while upkeep.expire():
            pass
    held = sum(path.stat().st_size for path in directory.glob("*.parquet"))
    assert upkeep.expire() == 0
    assert 14 * one <= held <= 15 * one


@pytest.mark.parametrize("by_age", [True, False])
def test_who_is_where_stays_while_anything_else_does(store, tmp_path, by_age):
    """A job that runs for longer than its rows are kept still knows its ranks' nodes; with its last rows they go."""
    old = segments.file_name("20250101", 1)
    for table in ("ranks", "steps"):
        directory = tmp_path / "j/segments" / table
        directory.mkdir(exist_ok=True)
        segments.write(table, [schema.arrow_schema(table).empty_table()], directory / old)
    held = sum(path.stat().st_size for path in tmp_path.rglob("segments/steps/*.parquet"))
    assert Upkeep(store, Retention(days=7) if by_age else Retention(bytes=held - 1)).expire() > 0
    assert not (tmp_path / "j/segments/steps" / old).exists()
    assert (tmp_path / "j/segments/ranks" / old).exists()
    last = Upkeep(store, Retention(days=7) if by_age else Retention(bytes=1), now=lambda: time.time() + 9 * DAY)
    while last.expire():
        pass
    assert not (tmp_path / "j").exists()


@pytest.mark.parametrize("days", [365 * 20, 365 * 100, 1e12])
def test_long_retention_keeps_everything(store, tmp_path, days):
    """A retention that reaches back beyond 1970, of samples or of a level, deletes nothing."""
    directory = tmp_path / "j/segments/metrics_1h"
    directory.mkdir()
    level = directory / segments.file_name(time.strftime("%Y%m%d", time.gmtime()), 1, 2)
    level.write_bytes(b"rows")
    assert Upkeep(store, Retention(days=days)).expire() == 0
    assert level.exists()


def test_job_stays_while_a_flush_is_prepared_for_it(store, tmp_path):
    """Retention that finds no segment of a job leaves its directory to the flush that is about to commit there."""
    upkeep = Upkeep(store, Retention(bytes=1))

    def rows():
        assert upkeep.expire() > 0  # the last segment goes while the next one is written
        yield steps(100)

    store.write({("j", "steps"): rows()}, {"a@n": 100})
    assert hindmost_collector.open(tmp_path).steps()["step"].to_pylist() == [100]
    assert store.sequences == {"a@n": 100}


def test_emptied_job_goes_in_a_later_round(store, tmp_path):
    """A job's directory that had to wait for a flush, which then failed, goes with the next round of retention."""
    upkeep = Upkeep(store, Retention(bytes=1))

    def rows():
        upkeep.expire()
        raise OSError(errno.ENOSPC, "no space")
        yield

    with pytest.raises(OSError, match="no space"):
        store.write({("j", "steps"): rows()}, {})
    assert (tmp_path / "j").exists()
    upkeep.expire()
    assert not (tmp_path / "j").exists()


def test_fresh_journal_overwrites_nothing(store, tmp_path):
    """With the journal moved away, flushes are numbered on from the segments there are, one set aside included."""
    store.close()
    (tmp_path / ".journal.json").rename(tmp_path / "damaged.json")
    last = max((tmp_path / "j/segments/steps").glob("*.parquet"))
    last.write_bytes(b"torn")
    again = ParquetStore(tmp_path, single=False)
    for step in range(100, 103):
        again.write({("j", "steps"): [steps(step)]}, {"a@n": step})
    again.close()
    stored = hindmost_collector.open(tmp_path).sql("select step from steps order by 1")["step"].to_pylist()
    assert stored == [*range(LEAST + 3), 100, 101, 102]
    assert last.with_name(f"{last.name}.torn").read_bytes() == b"torn"
    assert not last.exists()


@pytest.mark.parametrize(
    ("form", "printed"),
    [
        ("csv", f'job,newest,mean,none,all\nj,{LEAST + 3},9.5,,"[{LEAST + 2}, {LEAST + 3}]"\n'),
        ("json", f'{{"job":"j","newest":{LEAST + 3},"mean":9.5,"none":null,"all":[{LEAST + 2},{LEAST + 3}]}}\n'),
        ("text", f"job  newest  mean  none       all\n  j      {LEAST + 3}   9.5  null  [{LEAST + 2}, {LEAST + 3}]\n"),
    ],
)
def test_query_prints_rows(store, tmp_path, capsys, form, printed):
    """``hindmost query`` answers SQL over a store, with the job as a column; what is not there is empty or null."""
    import argparse

    parser = argparse.ArgumentParser()
    query.configure(parser)
    asked = "select job, max(step) as newest, avg(step) as mean, 'nan'::double as none, list_sort(max(step, 2)) as all"
    args = parser.parse_args([str(tmp_path), f"{asked} from steps group by 1", "--format", form])
    assert query.run(args) == 0
    assert capsys.readouterr().out == printed


def test_query_without_rows_prints_its_columns(store, tmp_path, capsys):
    """An answer of no rows is a header."""
    query.run(SimpleNamespace(paths=[tmp_path], sql="select rank, step from steps where rank = 7", format="text"))
    assert capsys.readouterr().out == "rank  step\n"


def test_wrong_query_is_a_usage_error(store, tmp_path):
    """A wrong query, one of no words, an unknown table and a directory without a recording each say what is wrong."""
    for nothing in ("", "-- later"):
        with pytest.raises(UsageError, match="the query asks for nothing: give a SELECT"):
            hindmost_collector.open(tmp_path).sql(nothing)
    with pytest.raises(UsageError, match="nosuch"):
        hindmost_collector.open(tmp_path).sql("select nosuch from steps")
    with pytest.raises(UsageError, match="there is no table"):
        hindmost_collector.open(tmp_path).table("nosuch")
    with pytest.raises(UsageError, match="holds no recording"):
        hindmost_collector.open(tmp_path / "j/segments")


@pytest.mark.parametrize(
    "writing",
    [
        "copy (select 1) to '{file}'",
        "select 1; copy steps to '{file}'",
        "explain analyze copy (select 1) to '{file}'",
        "attach '{file}' as other",
        "export database '{file}'",
    ],
)
def test_a_query_writes_nothing(store, tmp_path, writing):
    """Whatever is asked, no file comes of it, and the refusal says so; what reads is answered as before."""
    file = tmp_path / "written"
    recording = hindmost_collector.open(tmp_path)
    with pytest.raises(UsageError, match="is not allowed: queries only read"):
        recording.sql(writing.format(file=file))
    assert not file.exists()
    for reading in ("describe steps", "explain select * from steps", "from steps", "summarize steps", "show tables"):
        assert recording.sql(reading).num_rows


def test_older_schema_reads_as_unmeasured():
    """A column that an older version did not write reads as not measured, whatever its type."""
    older = pa.table({"rank": pa.array([3], pa.int32()), "step": pa.array([1], pa.int64())})
    columns = schema.to_numpy("steps", older)
    assert (columns["forward_ns"].tolist(), columns["kind"].tolist()) == ([-1], [""])
    assert np.isnan(schema.to_numpy("intervals", older)["value"]).all()


#: Layouts by reference: 1 and 2 differ in their labels alone, 3 has its series out of order, 4 has none.
SERIES = {
    1: [("a", '{"gpu":"x"}'), ("a", '{"gpu":"y"}'), ("b", '{"gpu":"x"}')],
    2: [("a", '{"gpu":"u"}'), ("a", '{"gpu":"v"}'), ("b", '{"gpu":"u"}')],
    3: [("z", "{}"), ("a", "{}")],
    4: [],
}
BLOCKS = st.tuples(st.sampled_from(["n0", "n1", "n10"]), st.sampled_from(list(SERIES)), st.integers(1, 4))


def definitions():
    """What the references mean."""
    made = Definitions()
    for ref, series in SERIES.items():
        made.schemas[ref] = Schema(Series(name, False, "", labels) for name, labels in series)
    return made


def sent(blocks):
    """Blocks with a value of its own for each sample, one in five missing, and the rows that they are."""
    made, expected, at = [], set(), 0
    for node, ref, ticks in blocks:
        values = np.arange(at, at + ticks * len(SERIES[ref]), dtype=float).reshape(ticks, -1)
        values[values % 5 == 0] = np.nan
        times = np.arange(at, at + ticks)
        made.append(MetricRows(origin(node, ref), times.tobytes(), 1000, values.tobytes(), int(times[-1]) + 1000))
        for time_ns, row in zip(times.tolist(), values.tolist(), strict=True):
            pairs = zip(SERIES[ref], row, strict=True)
            expected |= {(node, *series, time_ns + 1000, one) for series, one in pairs if not math.isnan(one)}
        at += ticks * max(len(SERIES[ref]), 1)
    return made, expected


def rows(tables):
    """All rows as tuples, in order."""
    return [tuple(row.values()) for row in pa.concat_tables(tables).to_pylist()] if tables else []


@given(st.lists(BLOCKS, max_size=12), st.sampled_from([3, 10, 1 << 17]))
def test_every_sample_is_one_row(blocks, piece):
    """From nodes with as many samples as others or not, in pieces of any size; missing ones leave no rows."""
    made, expected = sent(blocks)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(arrow_tables, "PIECE_SAMPLES", piece)
        stored = rows(list(metrics_tables(made, definitions())))
    assert len(stored) == len(expected)
    assert set(stored) == expected


def test_the_samples_of_a_series_are_neighbours_by_time():
    """In whichever blocks they came, and whatever other nodes sent between."""
    made, _ = sent([("n1", 1, 2), ("n0", 1, 2), ("n1", 1, 2), ("n0", 1, 2)])
    stored = [(node, name, labels) for node, name, labels, *_ in rows(list(metrics_tables(made, definitions())))]
    changes = sum(one != other for one, other in itertools.pairwise(stored))
    assert changes == len(set(stored)) - 1
    times = [row[3] for row in rows(list(metrics_tables(made, definitions()))) if row[:3] == ("n1", *SERIES[1][0])]
    assert times == sorted(times)


def test_pieces_follow_one_another_by_node(monkeypatch):
    """A reader that wants one node finds it in few row groups."""
    monkeypatch.setattr(arrow_tables, "PIECE_SAMPLES", 6)
    made, _ = sent([(f"n{number}", 1, 2) for number in (3, 1, 2, 0)])
    nodes = [table["node"].to_pylist() for table in metrics_tables(made, definitions())]
    assert [node for one in nodes for node in dict.fromkeys(one)] == ["n0", "n1", "n2", "n3"]
