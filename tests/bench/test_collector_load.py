"""The agents that load the collector in bench/collector_load send what the real agent sends."""

import json
from pathlib import Path

import pytest
from hindmost_agent.delivery import batch as packing
from hindmost_agent.jobs.event_rows import StepRow
from hindmost_agent.sampler import Reading
from hindmost_proto import telemetry_pb2 as wire

from bench.collector_load import node
from bench.collector_load.__main__ import write
from bench.collector_load.agents import MOST_TICKS, NS, RANKS, TICKS, Agent
from tests.ring_records import calls, rows_of

NOW = 1000 * NS


def by_rank(block, rows):
    first = 0
    for rank, count in zip(block.ranks, block.rows, strict=True):
        yield rank, rows[first : first + count]
        first += count


def step_rows(block):
    """Rows as the agent's fold makes them."""
    names = [phase.name for phase in block.phases]
    times = zip(*(phase.ns for phase in block.phases), strict=True)
    phases = [dict(zip(names, one, strict=True)) for one in times]
    columns = (block.step, block.start_ns, block.duration_ns, phases)
    return [StepRow(block.kind, step, start, took, -1, held) for step, start, took, held in zip(*columns, strict=True)]


@pytest.mark.parametrize("ticks", range(TICKS, MOST_TICKS + 1))
def test_a_batch_is_what_the_agents_builder_makes(ticks):
    """Byte by byte, for the same samples, steps, collectives and states of ranks, as often as batches are made."""
    layouts = {packing.schema(layout)[0]: layout for layout in (node.layout(source, 3) for source in node.SOURCES)}
    agent = Agent(3, 64)
    for step in range(0, 10 * ticks, ticks):
        sent = agent.messages(step, NOW + step * NS, ticks)[-1]
        batch = wire.AgentMessage.FromString(sent).batch
        builder = packing.Builder(agent.node)
        for block in batch.metrics:
            layout = layouts[block.schema]
            for at, time_ns in enumerate(block.time_ns):
                values = block.values[at * len(layout) : (at + 1) * len(layout)]
                builder.reading(Reading("", time_ns, layout, list(values)))
        for rank, rows in by_rank(batch.steps[0], step_rows(batch.steps[0])):
            builder.steps(rank, rows)
        for rank, rows in by_rank(batch.collectives[0], rows_of(batch.collectives[0])):
            builder.collectives(rank, calls(rows))
        for state in batch.rank_states:
            builder.state(state)
        assert packing.message(batch.sequence, builder.pack().parts) == sent


def test_definitions_come_once_before_the_batch_that_needs_them():
    """All that a batch refers to has been sent, and nothing twice."""
    agent, known = Agent(3, 64), []
    for step in range(0, 60, TICKS):
        *definitions, last = agent.messages(step, NOW + step * NS)
        for definition in definitions:
            sent = wire.AgentMessage.FromString(definition).definitions
            known += [held.ref for held in (*sent.schemas, *sent.ranks)]
        batch = wire.AgentMessage.FromString(last).batch
        assert {block.schema for block in batch.metrics} | set(batch.steps[0].ranks) <= set(known)
    assert len(known) == len(set(known)) == len(node.SOURCES) + RANKS


def test_samples_a_second():
    """The 340 samples a second that the figures are about, to 5 %."""
    agent = Agent(3, 64)
    batches = [wire.AgentMessage.FromString(agent.messages(step, NOW)[-1]).batch for step in range(0, 62, TICKS)]
    samples = sum(len(block.values) for batch in batches[1:] for block in batch.metrics)
    assert samples / 60 == pytest.approx(340, rel=0.05)
    assert abs(samples / 60 - sum(node.width(source) / source.period for source in node.SOURCES)) < 0.1


@pytest.mark.parametrize("known", [{"commit": "older"}, {}])
def test_figures_are_not_added_to_those_of_another_commit(tmp_path: Path, known: dict[str, str]) -> None:
    """Nor to those of which no commit is known."""
    output = tmp_path / "load.json"
    before = json.dumps({"what": [], **known, "measured": []})
    output.write_text(before)
    with pytest.raises(SystemExit, match="leave --add out"):
        write(output, {"commit": "newer", "load_before": 0.0}, [], add=True)
    assert output.read_text() == before
