"""Agents that move between collectors with a directory each: what is stored twice then, and how it is told apart."""

from __future__ import annotations

import asyncio

import duckdb


def test_what_was_not_acknowledged_is_doubled_and_no_more(collecting, fake_agent, tmp_path):
    """What the first collector took and had not acknowledged is in both directories; read together, steps are told
    apart by what the agent measured."""

    async def scenario():
        async with collecting(store=str(tmp_path / "a")) as first, collecting(store=str(tmp_path / "b")) as second:
            agent = fake_agent(first.addresses["grpc"])
            await agent.connect()
            for step in range(3):
                await agent.send(agent.batch(step))
            await agent.until_acked(3)
            first.recorder.last_flush += 600
            for step in range(3, 5):
                await agent.send(agent.batch(step))
            await agent.round_trip()
            await agent.close()
            agent.address = second.addresses["grpc"]
            await agent.connect()
            await agent.send(agent.batch(5))
            await agent.until_acked(6)
            await agent.close()

    asyncio.run(scenario())
    both = f"read_parquet('{tmp_path}/*/j/segments/steps/*.parquet')"
    counts = duckdb.sql(f"select step, count(*) from {both} group by step order by step").fetchall()  # noqa: S608
    assert counts == [(0, 2), (1, 2), (2, 2), (3, 4), (4, 4), (5, 2)]
    once = f"select distinct on (rank, step, kind, duration_ns) * from {both}"  # noqa: S608
    assert duckdb.sql(f"select count(*) from ({once})").fetchall() == [(12,)]  # noqa: S608
