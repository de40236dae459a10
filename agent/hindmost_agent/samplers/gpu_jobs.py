"""The jobs that a scheduler gave each GPU, by the map files that dcgm-exporter reads: a prolog writes them.

A file is named by the GPU's number, of a MIG instance with a dot and that of the instance, and has a job's id a line.
"""

import os
import re
from pathlib import Path

from hindmost_agent.kernel_files import read_once
from hindmost_agent.nvml import NVIDIA
from hindmost_agent.sampler import GPU, Absent, Host, Series, TableSampler, gauge, register, series

JOB = gauge("hindmost_gpu_job_info", "1; a job that the scheduler gave this GPU.", "gpu_uuid", "job")
#: dcgm-exporter's name for the folder.
VARIABLE = "DCGM_HPC_JOB_MAPPING_DIR"
_FILE = re.compile(r"(\d{1,3})(?:\.\d{1,3})?")
_ID = re.compile(rb"[\w.+\[\]-]{1,64}")
#: Jobs of one GPU at most, and bytes of a file.
_JOBS, _BYTES = 16, 4096


@register
class GpuJobs(TableSampler):
    """Jobs by GPU, also of those that no process uses yet."""

    name = "gpu_jobs"
    period = 5.0
    asks_driver = GPU
    source = f"NVML, and the files in `{VARIABLE}`"
    metrics = (JOB,)

    def __init__(self, host: Host) -> None:
        super().__init__(host)
        self._folder = host.gpu_jobs or Path(os.environ.get(VARIABLE, ""))
        if not self._folder.is_absolute():
            raise Absent(f"{VARIABLE} names no folder")
        self._uuid = {device.number: device.uuid for device in NVIDIA.opened(host).devices}

    def table(self) -> dict[Series, float]:
        return dict.fromkeys(sorted(series(JOB, uuid, job) for uuid, job in self._jobs()), 1.0)

    def _jobs(self) -> list[tuple[str, str]]:
        """GPU and job of each line; a folder that is not there yet has none."""
        jobs: list[tuple[str, str]] = []
        try:
            names = sorted(path.name for path in self._folder.iterdir())
        except FileNotFoundError:
            return jobs
        for name in names:
            file = _FILE.fullmatch(name)
            uuid = self._uuid.get(int(file[1])) if file else None
            if uuid is None:
                continue
            try:
                lines = read_once(self._folder / name, _BYTES).split()
            except OSError:  # the epilog has removed it
                continue
            jobs += [(uuid, line.decode()) for line in lines[:_JOBS] if _ID.fullmatch(line)]
        return jobs
