"""Errors of the node's memory that ECC found, as the memory controllers' drivers count them."""

from collections.abc import Iterator

from hindmost_agent.kernel_files import NumberFile, NumberFiles
from hindmost_agent.sampler import counter, register, series

ERRORS = counter(
    "hindmost_node_memory_errors_total",
    "Memory errors since the driver was loaded, by whether ECC corrected them.",
    "controller", "corrected",
)  # fmt: skip
FILES = (("ce_count", "yes"), ("ue_count", "no"))


@register
class Edac(NumberFiles):
    """Corrected and uncorrected errors of each memory controller, readable without root."""

    name = "edac"
    period = 60.0
    source = "/sys/devices/system/edac/mc/mc*/{ce_count,ue_count}"
    metrics = (ERRORS,)

    def scan(self) -> Iterator[NumberFile]:
        for controller in sorted((self.host.sys / "devices/system/edac/mc").glob("mc[0-9]*")):
            for name, corrected in FILES:
                yield NumberFile(series(ERRORS, controller.name, corrected), controller / name)
