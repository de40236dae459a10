"""Agents that move between collectors with a directory each: what is stored twice then, and how it is recognised."""

import argparse
import io
import json
import shutil
from dataclasses import replace

import duckdb
import hindmost_collector
import numpy as np
import pyarrow as pa
import pytest
from hindmost.errors import UsageError
from hindmost_cli import query, report
from hindmost_collector.ingest.chunk import from_rows
from hindmost_collector.main import open_store
from hindmost_collector.options import Options
from hindmost_collector.simulate import Fault, Scenario, simulate
from hindmost_collector.simulate.write import write
from hindmost_collector.store.parquet.run_directory import read_together
from hindmost_collector.store.parquet.store import ParquetStore
from hindmost_collector.store.schema import arrow_schema
from hindmost_judge.encoding import chosen
from hindmost_judge.judge import judge
from hindmost_judge.model import RUNNING, TABLES, empty
from hindmost_judge.verdict import endings
from hindmost_proto import telemetry_pb2 as wire


async def test_what_was_not_acknowledged_is_doubled_and_no_more(collecting, fake_agent, tmp_path):
    """What the first collector took and had not acknowledged is in both directories.

    Read together, steps differ by what the agent measured."""
    async with collecting(store=str(tmp_path / "a")) as first, collecting(store=str(tmp_path / "b")) as second:
        async with fake_agent(first.addresses["grpc"]) as agent:
            await agent.deliver(range(3))
            first.recorder.last_flush += 600
            for step in range(3, 5):
                await agent.send(agent.batch(step))
            await agent.round_trip()
        agent.address = second.addresses["grpc"]
        await agent.connect()
        await agent.deliver([5])
        await agent.close()
    both = f"read_parquet('{tmp_path}/*/j/segments/steps/*.parquet')"
    counts = duckdb.sql(f"select step, count(*) from {both} group by step order by step").fetchall()  # noqa: S608
    assert counts == [(0, 2), (1, 2), (2, 2), (3, 4), (4, 4), (5, 2)]
    once = f"select distinct on (rank, step, kind, duration_ns) * from {both}"  # noqa: S608
    assert duckdb.sql(f"select count(*) from ({once})").fetchall() == [(12,)]  # noqa: S608
    together = read_together([tmp_path / "a/j", tmp_path / "b/j"])
    assert sorted(together.steps["step"].tolist()) == [step for step in range(6) for _ in range(2)]
    assert len(together.collectives["seq"]) == 12
    assert query_rows(tmp_path / "a/j", tmp_path / "b/j", "select count(*) from steps") == [[12]]
    assert query_rows(tmp_path / "b", tmp_path / "a", "select job, count(*) from collectives group by job") == [
        ["j", 12]
    ]
    both = hindmost_collector.open(tmp_path / "a", tmp_path / "b")
    assert sorted(both.run().steps["step"].tolist()) == sorted(together.steps["step"].tolist())


def query_rows(*words):
    """What ``hindmost query WORDS --format json`` prints, a list of values a row."""
    parser = argparse.ArgumentParser()
    query.configure(parser)
    with pytest.MonkeyPatch.context() as patch:
        output = io.StringIO()
        patch.setattr(query.sys, "stdout", output)
        assert query.run(parser.parse_args([*map(str, words), "--format", "json"])) == 0
    return [list(json.loads(line).values()) for line in output.getvalue().splitlines()]


def test_a_question_goes_to_all_directories(tmp_path):
    """Each half has its ranks; one that is given twice counts once."""
    first, second = _parts(tmp_path)
    ranks = "select distinct rank from steps order by rank"
    assert query_rows(first, ranks) == [[rank] for rank in range(4)]
    assert query_rows(first, second, ranks) == [[rank] for rank in range(8)]
    assert query_rows(first, first, "select count(*) from steps") == query_rows(first, "select count(*) from steps")
    with pytest.raises(UsageError, match="only directories can be read together"):
        hindmost_collector.open(first, "clickhouse://h/db")
    with pytest.raises(UsageError, match="elsewhere is not a directory"):
        hindmost_collector.open(first, tmp_path / "elsewhere")


def test_jobs_of_two_stores_are_kept_apart(tmp_path):
    """Rows that are alike are taken once where they are of one job, not where they are of two."""
    first, second = _parts(tmp_path)
    alone = query_rows(first, "select count(*) from steps")[0][0]
    shutil.copytree(first, tmp_path / "again")
    assert query_rows(first, tmp_path / "again", "select count(*) from steps") == [[alone]]
    meta = json.loads((first / "meta.json").read_bytes())
    (tmp_path / "again/meta.json").write_text(json.dumps(meta | {"job_id": "other"}))
    by_job = query_rows(first, tmp_path / "again", second, "select job, count(*) from steps group by job order by job")
    assert sorted(by_job) == sorted([[meta["job_id"], 2 * alone], ["other", alone]])


def test_a_coarser_level_has_one_row_an_interval(tmp_path):
    """Of an interval in which an agent moved, both directories have samples: they are added up, and the later is
    last."""
    for name, times, values in (("a", (1, 2), (5.0, 9.0)), ("b", (3, 40), (1.0, 7.0))):
        store = ParquetStore(tmp_path / name, single=True)
        words = {"node": "n", "name": "m", "labels": "{}"}
        columns = {key: pa.array([word] * 2).dictionary_encode() for key, word in words.items()}
        columns |= {"time_ns": pa.array([time * 10**9 for time in times]), "value": pa.array(values)}
        rows = pa.Table.from_arrays(list(columns.values()), schema=arrow_schema("metrics"))
        store.write({("j", "metrics"): [rows]}, {})
        store.write_meta("j", {"job_id": "j"})
        store.close()
    wanted = "select time_ns, count, min, max, sum, last from metrics_30s order by time_ns"
    for pair in (("a", "b"), ("b", "a")):
        intervals = query_rows(*(tmp_path / name for name in pair), wanted)
        assert intervals == [[0, 3, 1.0, 9.0, 15.0, 1.0], [30 * 10**9, 1, 7.0, 7.0, 7.0, 7.0]]


def _parts(folder, *, size=8):
    """The run directories of a job of which each of two collectors saw half of the ranks; rank 6 is slow."""
    run = simulate(Scenario(size, 60, faults=(Fault("compute", (6,), 0.3),))).run
    for name, low in (("a", 0), ("b", size // 2)):
        mine = {
            table: chosen(one, (one["rank"] >= low) & (one["rank"] < low + size // 2)) if "rank" in one else one
            for table, one in run.tables().items()
        }
        mine["ranks"]["world_size"] = np.full(size // 2, size, np.int32)
        write(replace(run, **mine), folder / name, "run")
    return folder / "a", folder / "b"


def test_directories_of_one_job_are_reported_on_together(tmp_path):
    """One half's late rank may be in the other; without that no rank is cleared, and with it all ranks are known."""
    first, second = _parts(tmp_path)
    (alone,) = report.judged(first)["verdicts"]
    assert alone["kind"] == "insufficient_data"
    both = report.judged(first, None, (second,))
    assert [(verdict["kind"], verdict["ranks"]) for verdict in both["verdicts"]] == [("straggler", [6])]
    assert [row["rank"] for row in both["ranks"]] == list(range(8))


@pytest.mark.parametrize("order", [(0, 1), (1, 0)], ids=("in order", "reversed"))
def test_no_host_whose_collector_wrote_the_end_is_lost(tmp_path, order):
    """Ranks outlive the launchers of both hosts, of which one ends 3 s before the other."""
    run = simulate(Scenario(2, 60)).run
    paths = [tmp_path / "a", tmp_path / "b"]
    for rank, path in enumerate(paths):
        ranks = chosen(run.ranks, run.ranks["rank"] == rank) | {"node": np.array([f"node{rank}"])}
        end = (30 + 3 * rank) * 10**9
        states = from_rows("rank_states", [(rank, end - 10**8, RUNNING, 8, 0, -1, -1, "")])
        write(replace(run, ranks=ranks, rank_states=states, metrics=empty(TABLES["metrics"])), path, "run")
        meta = json.loads((path / "meta.json").read_bytes())
        meta |= {"host": f"node{rank}", "ended_ns": end, "exit_code": 0}
        (path / "meta.json").write_text(json.dumps(meta))
    assert endings.of(read_together([paths[one] for one in order])) == (None, None)


def test_directories_of_different_jobs_are_refused(tmp_path):
    """In one line that names them."""
    first, second = _parts(tmp_path)
    meta = json.loads((second / "meta.json").read_bytes())
    (second / "meta.json").write_text(json.dumps(meta | {"job_id": "other"}))
    with pytest.raises(UsageError, match=r"run directories of different jobs .* of other"):
        report.judged(first, None, (second,))


@pytest.mark.parametrize(("world", "kind"), [(2, "balanced"), (4, "insufficient_data")])
async def test_a_collector_clears_no_rank_while_ranks_are_elsewhere(collecting, fake_agent, tmp_path, world, kind):
    """Neither while the job runs nor at its end: whether those it sees wait for one of the others it cannot tell."""
    async with collecting(out=str(tmp_path)) as collector:
        agent = fake_agent(collector.addresses["grpc"])
        await agent.connect(define=False)
        definitions = agent.definitions()
        for rank in definitions.ranks:
            rank.world_size = world
        await agent.stream.write(wire.AgentMessage(definitions=definitions))
        await agent.deliver(range(60))
        live = judge(collector.jobs["j"].snapshot(collector.decoder.words)())
        await agent.close()
    for verdicts in (live.to_dict(), json.loads((tmp_path / "report.json").read_bytes())):
        (verdict,) = verdicts["verdicts"]
        assert verdict["kind"] == kind
        assert ("ranks 2 and 3" in verdict["evidence"][0]) == (world == 4)


def test_a_directory_of_another_job_is_not_continued(tmp_path):
    """A collector records into a directory again only for the job that it contains."""
    write(simulate(Scenario(2, 4, seed=1)).run, tmp_path / "run", "run")
    recorded = json.loads((tmp_path / "run" / "meta.json").read_text())["job_id"]
    with pytest.raises(UsageError, match=f"it contains job {recorded}, not other; name another directory"):
        open_store(Options(out=str(tmp_path / "run"), job_id="other"))
