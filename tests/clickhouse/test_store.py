"""Flushes into the real engine: whole or not at all, once, and read back as they were."""

import asyncio
import json
import time

import hindmost_collector
import pyarrow as pa
import pytest
from hindmost.errors import HindmostError, UsageError
from hindmost_cli import main
from hindmost_collector.simulate import Fault, Scenario, simulate
from hindmost_collector.simulate.write import write
from hindmost_collector.store import partial_read, schema
from hindmost_collector.store.clickhouse import ddl
from hindmost_collector.store.clickhouse.client import Server, Unreachable, parse
from hindmost_collector.store.clickhouse.store import ClickHouseStore
from hindmost_collector.store.parquet import segments
from hindmost_collector.store.parquet.run_directory import read_run

pytestmark = pytest.mark.clickhouse
NOW_NS = time.time_ns()


def steps(step, ranks=2):
    """One step of each rank as a stored table."""
    target = schema.arrow_schema("steps")
    columns = {field.name: [step] * ranks for field in target} | {"rank": list(range(ranks))}
    columns |= {"kind": ["train"] * ranks, "input_ns": [-1] * ranks}
    return pa.Table.from_arrays([pa.array(columns[field.name], field.type) for field in target], schema=target)


def who():
    """Rank 0 said who it is."""
    target = schema.arrow_schema("ranks")
    values = {field.name: "n0" if field.type.equals(pa.dictionary(pa.int32(), pa.string())) else 0 for field in target}
    return pa.Table.from_arrays([pa.array([values[field.name]], field.type) for field in target], schema=target)


def metrics(ticks):
    """A counter of a node, one sample a second."""
    target = schema.arrow_schema("metrics")
    columns = {
        "node": ["n0"] * ticks,
        "name": ["hindmost_node_cpu_seconds_total"] * ticks,
        "labels": ['{"mode":"user"}'] * ticks,
        "time_ns": [NOW_NS + tick * 1_000_000_000 for tick in range(ticks)],
        "value": [tick / 8 for tick in range(ticks)],
    }
    return pa.Table.from_arrays([pa.array(columns[field.name], field.type) for field in target], schema=target)


@pytest.fixture
def store(url):
    """A store of nothing yet."""
    made = ClickHouseStore(url)
    yield made
    made.close()


@pytest.mark.parametrize(
    "query",
    [
        "select rank, step from steps order by rank",
        "-- of one job\nwith late as (select * from steps where step > 1) select rank, step from late order by rank",
        "select s.rank, s.step from steps s join (select distinct rank from steps) r using rank order by rank",
        """with recursive t as (select 0 as n union all select n + 1 from t where n < 1)
        select n as rank, step from t join steps on steps.rank = n order by n""",
        "select rank, step from {database}.steps order by rank",
        "select rank, step from {database}.steps_rows order by rank",
        "-- steps\n" * 40 + "select rank, step from steps order by rank",
    ],
)
def test_a_query_of_one_job_reads_its_rows_alone(store, url, query):
    """Where the URL names the job: whatever the query is, and however it names a table."""
    store.write({("it's", "steps"): [steps(2)], ("b", "steps"): [steps(9)]}, {})
    asked = hindmost_collector.open(f"{url}?job=it's").sql(query.format(database=store.target.place.database))
    assert [(row["rank"], row["step"]) for row in asked.to_pylist()] == [(0, 2), (1, 2)]
    assert len(store.server.rows(f"select * from {store.target.place.database}.steps")) == 4


def test_totals_of_one_job_are_its_own(store, url):
    """A line that begins with WITH, below a comment, stays where it is."""
    store.write({("it's", "steps"): [steps(2)], ("b", "steps"): [steps(9)]}, {})
    query = "-- by rank\nselect rank, count() as n from steps group by rank\nWITH TOTALS order by rank"
    asked = hindmost_collector.open(f"{url}?job=it's").sql(query).to_pylist()
    assert [(row["rank"], row["n"]) for row in asked[:2]] == [(0, 1), (1, 1)]


def test_a_query_of_one_job_is_explained(store, url):
    """What is no SELECT runs as it is written."""
    store.write({("a", "steps"): [steps(2)]}, {})
    assert len(hindmost_collector.open(f"{url}?job=a").sql("explain select rank from steps"))


def test_rows_come_back_as_they_went(store, url):
    """Rows of several jobs and tables are read back equal, by job and all together, with the agents' sequences."""
    wrote = {("a", "steps"): [steps(1), steps(2)], ("b", "steps"): [steps(9)], ("a", "metrics"): [metrics(3)]}
    rows, _ = store.write(wrote, {"x@n0": 7}, {"boot_id": "b", "base_ns": 1})
    assert rows == 9
    run = store.read("a")
    assert run.steps["step"].tolist() == [1, 2, 1, 2]
    assert set(run.steps["input_ns"].tolist()) == {-1}
    assert run.metrics["value"].tolist() == [0.0, 0.125, 0.25]
    assert run.metrics["labels"].tolist() == ['{"mode":"user"}'] * 3
    assert (store.sequences, store.clock) == ({"x@n0": 7}, {"boot_id": "b", "base_ns": 1})
    store.write_meta("a", {"job_id": "a"})
    store.write_meta("b", {"job_id": "b"})
    store.write({}, {})
    recording = hindmost_collector.open(url)
    assert sorted(recording.steps()["job"].to_pylist()) == ["a"] * 4 + ["b"] * 2
    assert recording.steps("step", "rank").column_names == ["step", "rank"]
    assert recording.sql("select max(step) as newest from steps")["newest"].to_pylist() == [9]
    assert hindmost_collector.open(url + "?job=b").run().steps["step"].tolist() == [9, 9]


def test_flush_without_its_commit_is_invisible(store, monkeypatch):
    """Rows of a flush that failed half-way are in no view, and writing them again does not double them."""
    real = store.server.insert

    def breaking(table, data, token):
        if table == "flushes":
            raise Unreachable("gone")
        real(table, data, token)

    with monkeypatch.context() as patch:
        patch.setattr(store.server, "insert", breaking)
        with pytest.raises(OSError, match="gone"):
            store.write({("j", "steps"): [steps(1)]}, {"x@n0": 1})
    assert store.sequences == {}
    store.write({("j", "steps"): [steps(1), steps(2)]}, {"x@n0": 2})
    assert store.read("j").steps["step"].tolist() == [1, 2, 1, 2]
    assert store.sequences == {"x@n0": 2}


def test_commit_whose_answer_was_lost_is_undone(store, monkeypatch):
    """A commit that reached the server though its answer did not is void when its rows are written again."""
    real = store.server.insert

    def deaf(table, data, token):
        real(table, data, token)
        if table == "flushes":
            raise Unreachable("no answer")

    with monkeypatch.context() as patch:
        patch.setattr(store.server, "insert", deaf)
        with pytest.raises(OSError, match="no answer"):
            store.write({("j", "steps"): [steps(1)]}, {"x@n0": 1})
    store.write({("j", "steps"): [steps(1)]}, {"x@n0": 1})
    assert store.read("j").steps["step"].tolist() == [1, 1]


def test_insert_tried_again_is_done_once(store, monkeypatch):
    """An insert whose answer was lost is repeated under the same token, and its rows are there once."""
    real, lost = store.server.insert, []

    def losing(table, data, token):
        real(table, data, token)
        if table not in lost:
            lost.append(table)
            raise Unreachable("no answer")

    monkeypatch.setattr(store.server, "insert", losing)
    store.write({("j", "steps"): [steps(1)], ("j", "metrics"): [metrics(2)]}, {"x@n0": 1})
    levels = {f"{level}_rows" for level in schema.LEVELS}
    assert set(lost) == {"steps_rows", "metrics_rows", "agents_rows", "flushes", *levels}
    assert store.read("j").steps["step"].tolist() == [1, 1]
    assert store.read("j").metrics["value"].tolist() == [0.0, 0.125]


def test_server_killed_keeps_what_was_acknowledged(standin):
    """After kill -9 of the server every write that returned is there; while it is away a write says so."""
    url = standin.url("killed")
    store = ClickHouseStore(url)
    store.write({("j", "steps"): [steps(1)]}, {"x@n0": 1})
    standin.kill()
    with pytest.raises(OSError, match="does not answer"):
        store.write({("j", "steps"): [steps(2)]}, {"x@n0": 2})
    standin.start()
    store.write({("j", "steps"): [steps(2)]}, {"x@n0": 2})
    assert store.read("j").steps["step"].tolist() == [1, 2, 1, 2]
    store.close()


def test_files_and_lines_of_a_job(store):
    """What is noted of a job is merged, its newest file is the one read, and its verdicts are lines in order."""
    store.write_meta("j", {"command": "train.py", "exit_code": None})
    store.write_meta("j", {"exit_code": 3})
    for line in ("first", "second"):
        store.append_line("j", "verdicts.jsonl", line)
    store.write({("j", "steps"): [steps(1)]}, {}, None, {("j", "stacks/0.txt"): b"main()"})
    assert store.read_file("j", "stacks/0.txt") == b"main()"
    again = ClickHouseStore(f"clickhouse://default@127.0.0.1:{store.target.port}/{store.target.place.database}")
    again.write_meta("j", {"ended_ns": 5})
    run = again.read("j")
    assert (run.job.command, run.job.exit_code, run.job.ended_ns) == ("train.py", 3, 5)
    lines = again.server.rows(f"SELECT line FROM {store.target.place.database}.lines ORDER BY flush")
    assert lines["line"].to_pylist() == ["first", "second"]
    again.close()


def test_retention_follows_the_setting(url):
    """Rows older than the retention go, not who the ranks are; a changed retention changes tables that are there."""
    old = ClickHouseStore(url, now_ns=lambda: NOW_NS - 40 * 86_400_000_000_000)
    old.write({("j", "steps"): [steps(1)], ("j", "ranks"): [who()]}, {})
    old.close()
    store = ClickHouseStore(url, retention_days=30)
    store.write({("j", "steps"): [steps(2)]}, {})
    database = store.target.place.database
    for table in ("steps_rows", "ranks_rows", "flushes"):
        store.server.command(f"OPTIMIZE TABLE {database}.{table} FINAL")
    assert store.read("j").steps["step"].tolist() == [2, 2]
    assert store.read("j").ranks["node"].tolist() == ["n0"]
    made = store.server.command(f"SHOW CREATE TABLE {database}.steps_rows")
    assert "toIntervalSecond(2592000)" in made
    for own in ("flushes", "agents_rows"):  # a week longer
        assert "toIntervalSecond(3196800)" in store.server.command(f"SHOW CREATE TABLE {database}.{own}")
    assert "toIntervalSecond(10368000)" in store.server.command(f"SHOW CREATE TABLE {database}.metrics_30s_rows")
    ClickHouseStore(url).close()
    for table in ("steps_rows", "metrics_30s_rows", "flushes", "agents_rows"):
        assert "TTL" not in store.server.command(f"SHOW CREATE TABLE {database}.{table}")
    store.close()


def test_agents_take_no_more_room_with_time(url):
    """However many flushes an agent is in, at most two rows are kept of it for each start of its collector."""
    for start in range(2):
        store = ClickHouseStore(url)
        for number in range(1, 6):
            store.write({}, {"x@n0": 10 * start + number, "y@n1": 7})
        store.server.command(f"OPTIMIZE TABLE {store.target.place.database}.agents_rows FINAL")
        kept = store.server.command(f"SELECT count() FROM {store.target.place.database}.agents_rows")
        assert int(kept) <= 2 * 2 * (start + 1)
        assert store.sequences == {"x@n0": 10 * start + 5, "y@n1": 7}
        store.close()


@pytest.mark.parametrize("whole", [1, 2, 3])
def test_half_a_flush_costs_no_sequence(url, monkeypatch, whole):
    """A flush that never became whole does not take the place of an agent's last one, also after a kill and a merge."""
    store = ClickHouseStore(url)
    for number in range(1, whole + 1):
        store.write({}, {"x@n0": number})
        store.write({}, {"y@n1": number})
    real = store.server.insert

    def breaking(table, data, token):
        if table == "flushes":
            raise Unreachable("gone")
        real(table, data, token)

    monkeypatch.setattr(store.server, "insert", breaking)
    for _ in range(2):
        with pytest.raises(OSError, match="gone"):
            store.write({}, {"x@n0": 99})
    store.server.command(f"OPTIMIZE TABLE {store.target.place.database}.agents_rows FINAL")
    store.server.close()
    again = ClickHouseStore(url)
    assert again.sequences == {"x@n0": whole, "y@n1": whole}
    again.close()


def test_column_of_a_newer_version_is_added(url):
    """Tables of an older version get the columns they lack; rows written before read as not measured."""
    store = ClickHouseStore(url)
    database = store.target.place.database
    store.server.command(f"DROP VIEW {database}.steps")
    store.server.command(f"ALTER TABLE {database}.steps_rows DROP COLUMN work")
    store.close()
    store = ClickHouseStore(url)
    store.server.command(f"INSERT INTO {database}.steps_rows (job, rank, step, flush) SELECT 'j', 0, 1, 5")
    store.server.command(f"INSERT INTO {database}.flushes (flush) SELECT 5")
    assert store.read("j").steps["work"].tolist() == [-1]
    store.close()


def test_cluster_statements_are_understood(standin):
    """The engine's parser takes every statement for a cluster, replicated tables and distributed ones among them."""
    server = Server(parse(standin.url("x")))
    place = ddl.Place("hindmost", "it's `mine`")
    made = [
        *ddl.statements(place, 30),
        *(change for _, _, change in ddl.retention(place, 7)),
        *ddl.additions(place, {"steps_local": frozenset({"rank"}), "steps_rows": frozenset({"rank"})}),
    ]
    for statement in made:
        formatted = server.command("SELECT formatQuery({q:String})", {"q": statement})
        assert "ON CLUSTER" in formatted
    assert sum("ReplicatedMergeTree" in one for one in made) == 14
    assert sum("ReplicatedReplacingMergeTree" in one for one in made) == 1
    assert sum("ReplicatedAggregatingMergeTree" in one for one in made) == 3
    assert sum("Distributed" in one for one in made) == 18
    server.close()


@pytest.mark.parametrize(
    ("url", "said"),
    [
        ("clickhouse://127.0.0.1:1/db", "does not answer: Connection refused"),
        ("clickhouse://me:secret@127.0.0.1:1/db", "clickhouse://me@127.0.0.1:1/db does not answer"),
        ("clickhouse://127.0.0.1:no/db", "is not understood: give clickhouse://USER@HOST:8123/DATABASE"),
        ("clickhouse://127.0.0.1/db?claster=x", "unknown option 'claster'"),
    ],
)
def test_what_is_wrong_is_said(url, said):
    """A server that does not answer and a URL that is none are each named, without the password."""
    with pytest.raises(HindmostError) as caught:
        ClickHouseStore(url)
    assert said in str(caught.value)
    assert "secret" not in str(caught.value)


def test_nothing_recorded_is_said(standin, url):
    """A database that is not there, one without jobs, a job that is not there and a wrong query are usage errors."""
    with pytest.raises(UsageError, match="holds no recording"):
        hindmost_collector.open(standin.url("absent"))
    store = ClickHouseStore(url)
    with pytest.raises(UsageError, match="no collector has written there yet"):
        hindmost_collector.open(url)
    store.write_meta("j", {"job_id": "j"})
    store.close()
    with pytest.raises(UsageError, match="holds no job 'k'; it holds j"):
        hindmost_collector.open(url + "?job=k").run()
    with pytest.raises(UsageError, match="nosuch"):
        hindmost_collector.open(url).sql("select nosuch from steps")


def test_verdicts_are_those_of_the_reports_at_the_end(store, url):
    """Of all jobs, or of the one that the URL names; a job without a report, or with a torn one, has none."""
    for job in ("a", "b", "c"):
        store.write({(job, "steps"): [steps(1)]}, {})
        store.write_meta(job, {"job_id": job})
    slow = {"kind": "straggler", "ranks": [1], "cause": "compute", "cost_ms_per_step": 3.5, "evidence": ["late"]}
    store.write_file("a", "report.json", json.dumps({"verdicts": [slow]}).encode())
    store.write_file("b", "report.json", json.dumps({"verdicts": [{"kind": "balanced", "ranks": []}]}).encode())
    store.write_file("c", "report.json", b"{")
    found = hindmost_collector.open(url).verdicts().to_pylist()
    assert [(one["job"], one["kind"], one["ranks"]) for one in found] == [
        ("a", "straggler", [1]),
        ("b", "balanced", []),
    ]
    assert hindmost_collector.open(f"{url}?job=b").verdicts().to_pandas()["kind"].tolist() == ["balanced"]


STEPS = 40


@pytest.mark.parametrize("hour_ns", [0, 3_600_000_000_000])
def test_ranks_that_span_collectors(collecting, fake_agent, url, capsys, hour_ns):
    """Rank 3 of the second collector is named among all four, also where the collectors' clocks are an hour apart."""

    async def scenario():
        async with collecting(store=url, http="none") as one, collecting(store=url, http="none") as other:
            other.clock._base += hour_ns  # the real service reads the machine's clock, which is one
            agents = [fake_agent.of_several(number) for number in range(2)]
            for agent, collector in zip(agents, (one, other), strict=True):
                agent.address = collector.addresses["grpc"]
                await agent.connect()
            for step in range(STEPS):
                await asyncio.gather(*(agent.send(agent.batch(step, slow_rank=3)) for agent in agents))
            await asyncio.gather(*(agent.until_acked(STEPS) for agent in agents))
            await asyncio.gather(*(agent.close() for agent in agents))

    asyncio.run(scenario())
    assert main(["report", f"{url}?job=j", "--format", "json"]) == 0
    report = json.loads(capsys.readouterr().out)
    assert (report["job"]["world_size"], report["job"]["steps"]) == (4, STEPS)
    assert [row["rank"] for row in report["ranks"]] == [0, 1, 2, 3]
    assert [(one["kind"], one["ranks"]) for one in report["verdicts"]] == [("straggler", [3])]


@pytest.fixture
def both(url, tmp_path):
    """A run of 4 ranks and 400 steps in a run directory, and in a database."""
    write(simulate(Scenario(4, 400, faults=(Fault("compute", (2,), 0.10),))).run, tmp_path / "run", "run")
    tables = {one.name: segments.read_table(one, one.name)[0] for one in (tmp_path / "run/segments").iterdir()}
    store = ClickHouseStore(url)
    store.write({("run", table): [rows] for table, rows in tables.items() if rows.num_rows}, {})
    yield tmp_path / "run", store
    store.close()


def rows(run, table):
    """What a run holds of a table, in an order of its own."""
    columns = run.tables()[table]
    return sorted(zip(*(columns[name].tolist() for name in schema.STORED[table]), strict=True))


@pytest.mark.parametrize("share", [4, 1])
def test_the_same_rows_are_read_as_from_files(both, monkeypatch, share):
    """A quarter of the calls, and what goes with them, says the report; of a small job all, and nothing is said."""
    folder, store = both
    calls = len(read_run(folder).collectives["rank"])
    monkeypatch.setitem(partial_read.MOST, "collectives", calls // share)
    of_files, of_database = read_run(folder), store.read("run")
    assert (of_database.job.steps, of_database.job.skipped_ns) == (of_files.job.steps, of_files.job.skipped_ns)
    assert [one for one in of_database.notes if "to stay in memory" in one] == [
        one for one in of_files.notes if "to stay in memory" in one
    ]
    for table in ("steps", "collectives", "intervals", "metrics"):
        assert rows(of_database, table) == rows(of_files, table), table
    assert (len(rows(of_database, "collectives")) < calls / 3) is (share == 4)
