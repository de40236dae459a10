"""A job whose ranks are spread over two collectors with one database: the report is of all of them."""

import asyncio
import json

import pytest
from hindmost_cli import main

from tests.collector.agents_of_a_job import Four

pytestmark = pytest.mark.clickhouse
STEPS = 40


@pytest.mark.parametrize("hour_ns", [0, 3_600_000_000_000])
def test_ranks_that_span_collectors(collecting, fake_agent, url, capsys, hour_ns):
    """Rank 3 of the second collector is named among all four, also where the collectors' clocks are an hour apart."""

    async def scenario():
        async with collecting(store=url, http="none") as one, collecting(store=url, http="none") as other:
            other.clock._base += hour_ns  # the real service reads the machine's clock, which is one
            agents = [Four(fake_agent)(number) for number in range(2)]
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
