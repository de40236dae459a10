"""Programs that tests use where a machine has them, and the Debian packages that bring them.

    python3 tests/programs.py          installs what is missing (`make test-deps`)
    python3 tests/programs.py hide DIR links every other program of PATH into DIR: a PATH as of a machine without them

Needs nothing but the standard library: it runs before there is a virtual environment.
"""

import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

#: The Debian packages of each program; Ubuntu calls them alike.
PACKAGES = {
    "amtool": "prometheus-alertmanager",
    "cc": "gcc libc6-dev",
    "chromedriver": "chromium-driver",
    "chromium": "chromium",
    "cmake": "cmake",
    "g++": "g++",
    "gfortran": "gfortran",
    "ip": "iproute2",
    "mariadbd": "mariadb-server",
    "mpirun.openmpi": "openmpi-bin",
    "nm": "binutils",
    "prometheus": "prometheus",
    "prometheus-alertmanager": "prometheus-alertmanager",
    "promtool": "prometheus",
    "slurmd": "slurm-wlm slurm-wlm-basic-plugins",
    "slurmdbd": "slurmdbd slurm-wlm-mysql-plugin",
    "systemd-analyze": "systemd",
    "unshare": "util-linux",
    "victoria-metrics": "victoria-metrics",
}
#: What else stands for a program, or is of no use without it.
ALIKE = {
    "cc": ("gcc", "clang", "c99", "c89", "tcc", "x86_64-linux-gnu-gcc", "aarch64-linux-gnu-gcc"),
    "g++": ("c++", "clang++"),
    "gfortran": ("f77", "f95"),
    "mariadbd": ("mariadb-install-db", "mysqld"),
    "slurmd": ("slurmctld", "srun", "sbatch", "sinfo", "scontrol"),
    "slurmdbd": ("sacct", "sacctmgr"),
}
#: Stops Debian's packages from starting their services, while it is there.
POLICY = Path("/usr/sbin/policy-rc.d")


def is_installed(program: str) -> bool:
    """Whether PATH has the program, or one that stands for it."""
    return any(shutil.which(name) for name in (program, *(ALIKE["cc"] if program == "cc" else ())))


def install() -> int:
    """Install what is missing, with apt; the exit code."""
    lacking = {name: packages for name, packages in PACKAGES.items() if not is_installed(name)}
    wanted = sorted({package for packages in lacking.values() for package in packages.split()})
    if not wanted:
        return _end(0, "Everything that tests use is installed.")
    if not shutil.which("apt-get"):
        return _end(1, f"This system has no apt-get. Install with its own package manager: {', '.join(lacking)}.")
    root = [] if os.geteuid() == 0 else ["sudo"]
    subprocess.run([*root, "apt-get", "update", "-qq"], check=False)
    known = [package for package in wanted if _candidate(package)]
    with no_service_starts(root):
        line = [*root, "apt-get", "install", "-y", "-qq", "--no-install-recommends", *known]
        code = subprocess.run(line, check=False, stdout=subprocess.DEVNULL).returncode
    unknown = sorted(set(wanted) - set(known))
    if code or unknown:
        return _end(code, f"Not installed: {', '.join(wanted if code else unknown)}. Tests that need it are skipped.")
    return _end(0, f"Installed: {', '.join(known)}.")


def shell_program(path: Path, text: str) -> Path:
    """A program of the shell, in the place of a real one."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(f"#!/bin/sh\n{text}\n")
    path.chmod(0o755)
    return path


def hide(folder: Path) -> None:
    """Link every program of PATH into ``folder``, except those of the table."""
    hidden = {*PACKAGES, *(name for names in ALIKE.values() for name in names)}
    folder.mkdir(parents=True)
    for place in os.environ["PATH"].split(os.pathsep):
        for program in sorted(Path(place).glob("*")):
            name = program.name
            compiler = name.startswith(("gcc", "g++", "clang", "cpp", "x86_64-linux-gnu-g", "aarch64-linux-gnu-g"))
            if name not in hidden and not compiler:
                with suppress(FileExistsError):
                    (folder / name).symlink_to(os.path.realpath(program))  # unlike resolve(), minds no loop of links


def _end(code: int, line: str) -> int:
    sys.stderr.write(line + "\n")
    return code


def _candidate(package: str) -> bool:
    policy = subprocess.run(["apt-cache", "policy", package], capture_output=True, text=True, check=False).stdout
    return "Candidate:" in policy and "Candidate: (none)" not in policy


@contextmanager
def no_service_starts(root: list[str]) -> Iterator[None]:
    """Keep apt from starting the services that it installs; ``root`` goes before what only root may do."""
    if POLICY.exists():  # of the machine's own
        yield
        return
    refuse = f"printf '#!/bin/sh\\nexit 101\\n' >{POLICY} && chmod 755 {POLICY}"
    subprocess.run([*root, "sh", "-c", refuse], check=True)
    try:
        yield
    finally:
        subprocess.run([*root, "rm", "-f", str(POLICY)], check=True)


if __name__ == "__main__":
    if sys.argv[1:2] == ["hide"]:
        hide(Path(sys.argv[2]))
    else:
        sys.exit(install())
