"""What a sampler reads, by name and labels, as tests ask for it."""

from hindmost_agent.sampler import Host, Sampler, gauge, series

VALUE = gauge("hindmost_node_test_value_bytes", "A value.")


class Steady(Sampler):
    """A source that has nothing to do with files or GPUs."""

    name, source, metrics = "steady", "nowhere", (VALUE,)

    def __init__(self, host: Host) -> None:
        super().__init__(host)
        self.series = (series(VALUE),)

    def sample(self) -> list[float]:
        return [1.0]


def read(sampler: Sampler, prefix: str = "") -> dict[tuple[str, ...], float]:
    """Each value by its metric's name, less the ``prefix``, and its labels' values."""
    values = sampler.sample()
    names = ((one.metric.name.removeprefix(prefix), *one.values) for one in sampler.series)
    return dict(zip(names, values, strict=True))


def read_gpu(sampler: Sampler) -> dict[tuple[str, ...], float]:
    """The same of a GPU's metrics, without what their names all begin with."""
    return read(sampler, "hindmost_gpu_")
