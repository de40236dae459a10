"""Hosts on one machine: network namespaces behind a switch, each with a name, shared memory and a home of its own."""

import contextlib
import os
import shutil
import subprocess
import time
from collections.abc import Sequence
from pathlib import Path

#: Each host's place in the networks below.
HOSTS = ("a", "b")
V4, V6, OTHER = "10.213.11.{}", "fd00:213:11::{}", "10.213.12.{}"
#: Sets the clock of what a host runs (Debian: faketime), and by how much for each kind of network.
FAKETIME = "/usr/lib/x86_64-linux-gnu/faketime/libfaketimeMT.so.1"
OFF = {"fast": "+3600", "late": "-3600"}


class Network:
    """Two hosts, ``a`` and ``b``; ``close`` removes them.

    Args:
        kind: ``v4``, ``v6``, ``two`` (b is reached by a's second interface), ``nat`` (b sits behind a router that
            masquerades: no one can connect to it), or ``fast`` and ``late`` (b's clock is an hour off).
        shared: whether both hosts have one disk.
    """

    def __init__(self, folder: Path, kind: str = "v4", *, shared: bool = False) -> None:
        self.kind, self._shared = kind, shared
        #: Everybody sees ``folder``; ``disk`` is each host's own, unless it is ``shared``.
        self.folder, self.disk = folder, folder / "disk"
        self.disk.mkdir()
        self._names = {host: f"hmb{os.getpid()}{host}" for host in (*HOSTS, "s")}
        for name in self._names.values():
            sh(f"ip netns add {name}")
        self._wire()
        #: A process in each host, which holds its namespaces: all who come by ssh share one /dev/shm.
        self._holders: list[subprocess.Popen[bytes]] = []
        for host in HOSTS:
            self._program(host)
        self.agent = str(self._rsh())

    def address(self, host: str) -> str:
        number = HOSTS.index(host) + 1
        return {"v6": V6, "two": OTHER}.get(self.kind, V4).format(number)

    def on(self, host: str) -> str:
        """A program that runs its arguments on this host."""
        return str(self.folder / f"on-{host}")

    def cut(self, cut: bool = True) -> None:
        """Take b off the switch, or put it back: its interfaces stay up, nothing arrives."""
        switch, port = self._names["s"], "pb"
        sh(f"ip -n {switch} link set {port} " + ("nomaster" if cut else "master br0"))

    def slow(self, rate: str | None) -> None:
        """Limit what b sends to a rate of tc, as ``20mbit``; None lifts the limit."""
        name = self._names["b"]
        sh(f"tc -n {name} qdisc del dev eth0 root", check=False)
        if rate:
            sh(f"tc -n {name} qdisc add dev eth0 root tbf rate {rate} burst 64kb latency 50ms")

    def processes(self, host: str) -> list[int]:
        return [int(pid) for pid in sh(f"ip netns pids {self._names[host]}").split()]

    def kill(self, host: str) -> None:
        """The host loses its power: first it is heard no more."""
        self.cut()
        for pid in self.processes(host):
            _kill(pid)

    def close(self) -> None:
        """End all processes of the hosts, and remove them."""
        for host in HOSTS:
            for pid in self.processes(host):
                _kill(pid)
        for holder in self._holders:
            holder.wait()
        for name in self._names.values():
            sh(f"ip netns del {name}", check=False)

    def _wire(self) -> None:
        switch = self._names["s"]
        sh(f"ip -n {switch} link add br0 type bridge && ip -n {switch} link set br0 up")
        for host in HOSTS:
            self._connect(host, "eth0", f"p{host}", "br0")
        if self.kind == "two":
            sh(f"ip -n {switch} link add br1 type bridge && ip -n {switch} link set br1 up")
            for host in HOSTS:
                self._connect(host, "eth1", f"q{host}", "br1")
        number = {host: HOSTS.index(host) + 1 for host in HOSTS}
        for host, name in self._names.items():
            if host == "s":
                continue
            if self.kind == "v6":
                sh(f"ip -n {name} addr add {V6.format(number[host])}/64 dev eth0 nodad")
            elif self.kind == "two":  # the first network has an address on a only: b is not there
                sh(f"ip -n {name} addr add {OTHER.format(number[host])}/24 dev eth1")
                if host == "a":
                    sh(f"ip -n {name} addr add {V4.format(1)}/24 dev eth0")
            elif self.kind == "nat" and host == "b":
                sh(f"ip -n {name} addr add 10.213.13.2/24 dev eth0")
                sh(f"ip -n {name} route add default via 10.213.13.1")
            else:
                sh(f"ip -n {name} addr add {V4.format(number[host])}/24 dev eth0")
        if self.kind == "nat":
            sh(f"ip -n {switch} link set pb nomaster && ip -n {switch} addr add 10.213.13.1/24 dev pb")
            sh(f"ip -n {switch} addr add {V4.format(254)}/24 dev br0")
            sh(f"ip netns exec {switch} sysctl -qw net.ipv4.ip_forward=1")
            rules = "add table ip nat; add chain ip nat post { type nat hook postrouting priority 100; }; "
            rules += "add rule ip nat post oifname br0 masquerade"
            sh(f"ip netns exec {switch} nft '{rules}'")

    def _connect(self, host: str, interface: str, port: str, bridge: str) -> None:
        name, switch = self._names[host], self._names["s"]
        sh(f"ip -n {switch} link add {port} type veth peer name {interface} netns {name}")
        sh(f"ip -n {switch} link set {port} master {bridge} up")
        sh(f"ip -n {name} link set {interface} up && ip -n {name} link set lo up")

    def _program(self, host: str) -> None:
        """What enters a host: its name, its hosts file, its shared memory and its disk."""
        known = "".join(f"{self.address(one)} node-{one}\n" for one in HOSTS)
        (self.folder / f"hosts-{host}").write_text(f"127.0.0.1 localhost\n::1 localhost\n{known}")
        mounts = [f"hostname node-{host}", "mount -t tmpfs none /dev/shm"]
        if host == "b" and not self._shared:
            mounts += [f"mount -t tmpfs none {self.disk}"]
        mounts += [f"mount --bind {self.folder}/hosts-{host} /etc/hosts"]
        ready = self.folder / f"ready-{host}"
        setup = "; ".join([*mounts, f"touch {ready}", "exec sleep 100000"])
        enter = ["nsenter", f"--net=/run/netns/{self._names[host]}", "unshare", "--uts", "--mount", "sh", "-ec", setup]
        holder = subprocess.Popen(enter, stdin=subprocess.DEVNULL)
        self._holders.append(holder)
        while not ready.exists():
            if holder.poll() is not None:
                raise RuntimeError(f"no host {host}: {setup}")
            time.sleep(0.01)
        program = self.folder / f"on-{host}"
        enter = ["nsenter", "-t", str(holder.pid), "--net", "--uts", "--mount", "env", f"HOME={self.disk}"]
        if host == "b" and self.kind in OFF:
            clock = f"LD_PRELOAD={FAKETIME} FAKETIME={OFF[self.kind]} FAKETIME_DONT_FAKE_MONOTONIC=1 NO_FAKE_STAT=1"
            enter += clock.split()
        program.write_text(f'#!/bin/sh\nexec {" ".join(enter)} "$@"\n')
        program.chmod(0o755)

    def _rsh(self) -> Path:
        """As ssh it is given options, the host, and a command line for a shell."""
        program = self.folder / "rsh"
        case = '  {}|node-{}) exec {} sh -c "$*";;\n'
        cases = "".join(case.format(self.address(host), host, self.on(host)) for host in HOSTS)
        program.write_text(
            "#!/bin/sh\n"
            'host=\nwhile :; do case "$1" in\n  -[poilF]) shift 2;;\n  -*) shift;;\n'
            '  *) [ "$host" ] && break; host=$1; shift;;\nesac; done\n'
            f'case "$host" in\n{cases}  *) echo "no host $host" >&2; exit 255;;\nesac\n'
        )
        program.chmod(0o755)
        return program


def sh(command: str, *, check: bool = True) -> str:
    """What a shell command prints. Raises ``RuntimeError`` with its error."""
    done = subprocess.run(["sh", "-ec", command], capture_output=True, text=True, check=False)
    if check and done.returncode:
        raise RuntimeError(f"{command}: {done.stderr.strip()}")
    return done.stdout


def missing(programs: Sequence[str]) -> list[str]:
    """Which of these are not here: programs, files, or rights."""
    return [
        program
        for program in programs
        if not (Path(program).exists() if program.startswith("/") else shutil.which(program))
    ]


def _kill(pid: int) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, 9)
