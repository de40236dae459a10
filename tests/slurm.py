#!/usr/bin/env python3
"""A Slurm of several virtual nodes on this host, with accounting where slurmdbd and MariaDB are; for root.

On the nodes their names are known to programs, where root may mount.

    tests/slurm.py FOLDER [NAME=VALUE …] -- COMMAND …     # e.g. Prolog=/path; FOLDER is new, and others may enter it

The controller and the accounting run as user slurm, the nodes' daemons as root. Jobs may be any user's.
"""

import contextlib
import os
import pwd
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from pathlib import Path

NODES = ("one", "two", "three")
USER = "slurm"
PATIENCE_S = 30.0

DBD = """
AuthType=auth/none
DbdHost=localhost
DbdAddr=127.0.0.1
DbdPort={port}
SlurmUser=slurm
LogFile={folder}/slurmdbd.log
PidFile={folder}/slurmdbd.pid
StorageType=accounting_storage/mysql
StorageHost=127.0.0.1
StoragePort={storage}
StorageUser=slurm
StoragePass=slurm
"""
SLURM = """
ClusterName=tests
SlurmctldHost={host}(127.0.0.1)
SlurmctldPort={port}
SlurmUser=slurm
AuthType=auth/none
CredType=cred/none
StateSaveLocation={folder}/state
SlurmdSpoolDir={folder}/spool-%n
SlurmctldPidFile={folder}/slurmctld.pid
SlurmctldLogFile={folder}/slurmctld.log
SlurmdPidFile={folder}/%n.pid
SlurmdLogFile={folder}/%n.log
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
SelectType=select/linear
ReturnToService=2
SchedulerParameters=bf_interval=1,sched_interval=1,batch_sched_delay=0
SlurmdTimeout=10
"""
#: Runs a command where this file is /etc/hosts.
NAMED = ("unshare", "--mount", "sh", "-c", 'mount --bind "$0" /etc/hosts 2>/dev/null; exec "$@"')


class Slurm:
    """The running one."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.environ = {**os.environ, "SLURM_CONF": str(folder / "slurm.conf")}
        self.daemons: dict[str, subprocess.Popen[bytes]] = {}

    def start(self, name: str, *argv: str, **more: str) -> None:
        """A daemon in the foreground, with a log of its own."""
        with (self.folder / f"{name}.out").open("ab") as log:
            self.daemons[name] = subprocess.Popen(
                argv,
                env={**self.environ, **more},
                stdout=log,
                stderr=log,
                stdin=subprocess.DEVNULL,
                start_new_session=True,
            )

    def said(self, *argv: str) -> str:
        """What a command prints; raises where it fails."""
        return subprocess.run(argv, env=self.environ, check=True, capture_output=True, text=True, timeout=60).stdout

    def until(self, what: str, *argv: str, holds: str) -> None:
        """Wait until a command prints this."""
        deadline, found = time.monotonic() + PATIENCE_S, ""
        while time.monotonic() < deadline:
            done = subprocess.run(argv, env=self.environ, capture_output=True, text=True, timeout=60, check=False)
            found = done.stdout.strip() or done.stderr.strip()
            if found == holds:
                return
            time.sleep(0.2)
        logs = "".join(path.read_text(errors="replace")[-2000:] for path in self.folder.glob("*.log"))
        raise RuntimeError(f"{what}: {found}\n{logs}\n{what}: {found}")

    def lose(self, node: str) -> None:
        """A node dies: its daemon and all that runs under it, at once."""
        wanted = {f"SLURMD_NODENAME={node}".encode(), f"SLURM_CONF={self.environ['SLURM_CONF']}".encode()}
        for process in Path("/proc").glob("[0-9]*"):
            with contextlib.suppress(OSError):
                if wanted <= set((process / "environ").read_bytes().split(b"\0")):
                    os.kill(int(process.name), signal.SIGKILL)
        self.daemons.pop(node).wait()

    def close(self) -> None:
        """End all of it, the last started first."""
        for daemon in reversed(self.daemons.values()):
            daemon.terminate()
            try:
                daemon.wait(20)
            except subprocess.TimeoutExpired:
                os.killpg(daemon.pid, signal.SIGKILL)
                daemon.wait()


def port() -> int:
    """One that is free."""
    with socket.create_server(("127.0.0.1", 0)) as found:
        number: int = found.getsockname()[1]
    return number


@contextlib.contextmanager
def slurm(folder: Path, settings: Mapping[str, str], *, accounting: bool = True) -> Iterator[Slurm]:
    """A Slurm in a new folder, with these settings in its slurm.conf."""
    folder.mkdir(mode=0o755, parents=True)
    (folder / "state").mkdir()
    shutil.chown(folder / "state", USER)
    shutil.chown(folder, USER)
    made = Slurm(folder)
    text = SLURM.format(host=socket.gethostname(), port=port(), folder=folder)
    for name in NODES:
        text += f"NodeName={name} NodeHostname={socket.gethostname()} NodeAddr=127.0.0.1 Port={port()}\n"
    text += "PartitionName=all Nodes=ALL Default=YES State=UP OverSubscribe=YES\n"
    text += "".join(f"{name}={value}\n" for name, value in settings.items())
    try:
        if accounting:
            text += _accounting(made)
        (folder / "slurm.conf").write_text(text)
        if accounting:
            made.until("slurmdbd", "sacctmgr", "-n", "-P", "-i", "show", "cluster", "format=cluster", holds="")
            made.said("sacctmgr", "-i", "add", "cluster", "tests")
        made.start("slurmctld", "slurmctld", "-D", "-c")
        (folder / "hosts").write_text(Path("/etc/hosts").read_text() + f"\n127.0.0.1 {' '.join(NODES)}\n")
        for name in NODES:
            made.start(name, *NAMED, str(folder / "hosts"), "slurmd", "-D", "-N", name, SLURMD_NODENAME=name)
        made.until("nodes", "sinfo", "-h", "-o", "%D", "-t", "idle", holds=str(len(NODES)))
        yield made
    finally:
        made.close()


def _accounting(made: Slurm) -> str:
    """MariaDB and slurmdbd; what slurm.conf says of them."""
    folder, storage, number = made.folder, port(), port()
    install = ["mariadb-install-db", "--no-defaults", f"--datadir={folder}/db", "--user=root", "--skip-test-db"]
    subprocess.run([*install, "--auth-root-authentication-method=normal"], check=True, capture_output=True, timeout=120)
    (folder / "init.sql").write_text(
        "create user slurm@'127.0.0.1' identified by 'slurm';\ngrant all on *.* to slurm@'127.0.0.1';\n"
    )
    where = [f"--datadir={folder}/db", f"--port={storage}", "--bind-address=127.0.0.1", f"--socket={folder}/db.sock"]
    where += ["--skip-name-resolve"]
    memory = ["--innodb-buffer-pool-size=64M", "--innodb-flush-log-at-trx-commit=0", f"--init-file={folder}/init.sql"]
    made.start("mariadbd", "mariadbd", "--no-defaults", "--user=root", *where, *memory)
    conf = folder / "slurmdbd.conf"
    conf.write_text(DBD.format(port=number, storage=storage, folder=folder))
    conf.chmod(0o600)
    shutil.chown(conf, USER)
    _listening(storage)
    user = pwd.getpwnam(USER)
    as_user = ["setpriv", f"--reuid={user.pw_uid}", f"--regid={user.pw_gid}", "--clear-groups"]
    made.start("slurmdbd", *as_user, "slurmdbd", "-D")
    _listening(number)
    return (
        "AccountingStorageType=accounting_storage/slurmdbd\nAccountingStorageHost=127.0.0.1\n"
        f"AccountingStoragePort={number}\n"
    )


def _listening(number: int) -> None:
    deadline = time.monotonic() + PATIENCE_S
    while time.monotonic() < deadline:
        with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", number), 1):
            return
        time.sleep(0.2)
    raise RuntimeError(f"nothing listens on port {number}")


def main() -> int:
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    end = sys.argv.index("--")
    settings = dict(one.split("=", 1) for one in sys.argv[2:end])
    with slurm(Path(sys.argv[1]), settings) as made:
        return subprocess.run(sys.argv[end + 1 :], env=made.environ, check=False).returncode


if __name__ == "__main__":
    sys.exit(main())
