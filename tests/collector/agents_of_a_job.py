"""Several simulated agents of one job."""


class Four:
    """Makes agents of two ranks each, of one job of four."""

    def __init__(self, fake_agent):
        self._make = fake_agent

    def __call__(self, number):
        agent = self._make("", agent_id=f"a{number}", node=f"n{number}", ranks=4)
        definitions = agent.definitions
        mine = range(2 * number, 2 * number + 2)

        def batch(step, slow_rank=-1):
            made = type(agent).batch(agent, step, slow_rank)
            for column in (made.steps, made.collectives):
                kept = [block for block in column if block.rank & 0xFFFF in mine]
                del column[:]
                column.extend(kept)
            return made

        agent.batch, agent.definitions = batch, definitions
        return agent
