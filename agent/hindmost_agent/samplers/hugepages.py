"""Huge pages of each size: a job that finds none left falls back to small pages, or does not start."""

from collections.abc import Iterator

from hindmost_agent.kernel_files import NumberFile, NumberFiles
from hindmost_agent.sampler import Metric, gauge, register, series


def _pages(what: str, text: str) -> Metric:
    return gauge(f"hindmost_node_hugepages_{what}", text, "size_kb")


FILES = {
    "nr_hugepages": _pages("allocated", "Huge pages set aside, in use or not."),
    "free_hugepages": _pages("free", "Huge pages that are free."),
    "resv_hugepages": _pages("reserved", "Huge pages reserved by a process and not used yet."),
    "surplus_hugepages": _pages("surplus", "Huge pages beyond what was set aside."),
}


@register
class Hugepages(NumberFiles):
    """Huge pages of each size that the processor has."""

    name = "hugepages"
    period = 30.0
    source = "/sys/kernel/mm/hugepages"
    metrics = tuple(FILES.values())

    def scan(self) -> Iterator[NumberFile]:
        prefix = "hugepages-"
        for folder in sorted((self.host.sys / "kernel/mm/hugepages").glob(f"{prefix}*kB")):
            size = folder.name.removeprefix(prefix).removesuffix("kB")
            for name, metric in FILES.items():
                yield NumberFile(series(metric, size), folder / name)
