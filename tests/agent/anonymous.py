"""Recorded files without the names in them: hosts, mounts, groups, addresses, GPUs. One name has one stand-in."""

import re

UUID = re.compile(r"[0-9a-f]{8}([-_])[0-9a-f]{4}\1[0-9a-f]{4}\1[0-9a-f]{4}\1[0-9a-f]{12}", re.IGNORECASE)
#: A container's or a job's id: long, and neither a decimal number nor a word.
ID = re.compile(r"(?<![0-9a-z])(?=[0-9a-f]*[0-9])(?=[0-9a-f]*[a-f])[0-9a-f]{12,}(?![0-9a-z])", re.IGNORECASE)
INTERFACE = re.compile(r"\b(veth|cali|lxc|br-|tap)(?=[0-9a-z]*[0-9])[0-9a-z]{4,}")
ADDRESS = re.compile(r"(?<![\d.])(?:\d{1,3}\.){3}\d{1,3}(?![\d.])|(?<![\w:])(?:[0-9a-f]{1,4}:+){3,7}[0-9a-f]{1,4}")
#: Mount points that every machine has.
COMMON = re.compile(
    r"/(?:(?:proc|sys|dev)(?:/.*)?|tmp|run|boot|boot/efi|home|var|var/tmp|usr|opt|etc/(?:hosts|hostname|resolv\.conf))?"
)
#: What stands in the place of a device and tells nothing.
DEVICE = re.compile(
    r"/dev/(?:[a-z]+[0-9a-z]*|root)|none|udev|shm|overlay|systemd-\d+|mqueue|\w+fs|devpts|cgroup2?|proc|bpf"
)
#: Words of which the names of control groups are made, by whatever made the group.
GROUP = re.compile(
    r"\d*|0+[0-9a-f]+|cpu|cpuacct|memory|pids|unified|system|user|init|slice|scope|service|session|docker|podman|libpod"
    r"|crio?|containerd|kubepods|kubelet|besteffort|burstable|guaranteed|pod|container|slurm(?:stepd)?|job|step|task|uid"
    r"|batch|extern|special|machine|runtime|cgroup|controllers"
)


class Anonymous:
    """Stand-ins for the names of one machine, which is called ``host``."""

    def __init__(self, host: str) -> None:
        names = "|".join(re.escape(name) for name in (host, host.partition(".")[0]))
        self._host = re.compile(rf"(?<![\w-])(?:{names})(?![\w-])")
        self._known: dict[tuple[str, str], str] = {}

    def _stand_in(self, kind: str, name: str, form: str) -> str:
        """``form`` with the number of this name among those of its kind."""
        number = 1 + sum(known == kind for known, _ in self._known)
        return self._known.setdefault((kind, name), form.format(number))

    def words(self, text: str) -> str:
        """A text without the host's name, ids, addresses, and interfaces whose names are made up."""
        text = ID.sub(lambda found: self._stand_in("id", found[0], f"{{:0{len(found[0])}x}}"), self.uuids(text))
        text = INTERFACE.sub(lambda found: self._stand_in(found[1], found[0], found[1] + "{}"), text)
        text = ADDRESS.sub(lambda found: self._stand_in("address", found[0], "192.0.2.{}"), text)
        return self._host.sub("node1", text)

    def uuids(self, text: str) -> str:
        """A text full of numbers without what GPUs are called: ``1.2345678901234e-05`` is no id."""
        return UUID.sub(self._uuid, text)

    def _uuid(self, found: re.Match[str]) -> str:
        between = found[1]
        return self._stand_in("uuid", found[0], between.join(("0" * 8, "0" * 4, "0" * 4, "0" * 4, "{:012x}")))

    def mounts(self, text: str) -> str:
        """``/proc/self/mounts``: types and flags stay; devices, places and options that name something do not."""
        return "".join(self._mount(*line.split(" ", 4)) + "\n" for line in text.splitlines())

    def _mount(self, device: str, place: str, kind: str, options: str, rest: str) -> str:
        return " ".join((self.device(device), self.place(place), kind, _options(options), rest))

    def mountstats(self, text: str) -> str:
        """``/proc/self/mountstats``: the first line of each mount as in ``mounts``; numbers as they are."""
        return "".join(self._statistics(line) for line in text.splitlines(keepends=True))

    def _statistics(self, line: str) -> str:
        if first := re.fullmatch(r"(device )(.*)( mounted on )(.*)( with fstype .*\n)", line):
            return f"{first[1]}{self.device(first[2])}{first[3]}{self.place(first[4])}{first[5]}"
        if options := re.fullmatch(r"(\s*opts:\s*)(.*)\n", line):
            return f"{options[1]}{_options(options[2])}\n"
        return self.words(line)

    def device(self, name: str) -> str:
        """What is mounted: ``server1:/export1`` of a network file system."""
        if DEVICE.fullmatch(name):
            return name
        host, colon, path = name.rpartition(":/")
        if colon:
            return f"{self._stand_in('server', host, 'server{}')}:{self._stand_in('export', path, '/export{}')}"
        return self._stand_in("device", name, "/dev/device{}" if name.startswith("/dev/") else "device{}")

    def place(self, path: str) -> str:
        """Where it is mounted: ``/mount1``."""
        return path if COMMON.fullmatch(path) else self._stand_in("mount", path, "/mount{}")

    def groups(self, text: str) -> str:
        """``/proc/PID/cgroup``: the paths of its groups as in ``group``."""
        lines = (line.split(":", 2) for line in text.splitlines())
        return "".join(f"{number}:{names}:{self.group(path)}\n" for number, names, path in lines)

    def group(self, path: str) -> str:
        """The path of a control group: ids and what a site made up are replaced, Slurm's and others' words stay."""
        return "/".join(map(self._level, path.split("/")))

    def _level(self, name: str) -> str:
        name = self.words(name)
        known = all(GROUP.fullmatch(word) for word in re.split(r"[-_.,:]|(?<=pod)(?=\d)", name))
        return name if known else self._stand_in("group", name, "group{}")


def _options(listed: str) -> str:
    return ",".join(map(_option, listed.split(",")))


def _option(option: str) -> str:
    """A mount option; of one whose value is a path, a name or an address only that there is one."""
    key, equals, value = option.partition("=")
    plain = re.fullmatch(
        r"\d+(?:\.\d)?[kmg]?|sys|krb5[ip]?|tcp6?|rdma|hard|soft|on|off|none|remount-ro|continue", value
    )
    return option if not equals or plain else f"{key}=removed"
