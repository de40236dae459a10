# ruff: noqa: E501 - files of a kernel, line by line as it writes them
"""A node as its kernel shows it: 192 cores, two NUMA nodes, InfiniBand, Lustre, NFS, one rank in a control group.

Composed in the formats of Linux 5.14 (RHEL 9), mlx5 with NDR and Lustre 2.15, for tests that need much of everything; few
lines of each file, round numbers, and no copy of a machine. Nodes closer to real ones are in ``typical_nodes.py``, recorded
ones in ``tests/fixtures/nodes``.
"""

from pathlib import Path

CORES, ADAPTERS, PID = 192, 8, 4242

MOUNTSTATS = """device rootfs mounted on / with fstype ext4
device nas:/home mounted on /home with fstype nfs4 statvers=1.1
\topts:\trw,vers=4.2
\tage:\t3600
\tbytes:\t1000 2000 0 0 3000 4000 10 20
\tper-op statistics
\t        READ: 50 52 0 6000 3000000 4 250 260 0
\t       WRITE: 0 0 0 0 0 0 0 0 0
"""
LUSTRE = """snapshot_time             1700000000.123456789 secs.nsecs
start_time                1699996400.123456789 secs.nsecs
elapsed_time              3600.000000000 secs.nsecs
read_bytes                5000 samples [bytes] 4096 1048576 5242880000 5497558138880000
write_bytes               100 samples [bytes] 4096 1048576 104857600 109951162777600
read                      5000 samples [usecs] 3 9000 250000 90000000
write                     100 samples [usecs] 9 9000 31000 90000000
ioctl                     7 samples [reqs]
open                      42 samples [usecs] 10 900 8400 900000
"""
SNMP = """Tcp: RtoAlgorithm InSegs OutSegs RetransSegs InErrs OutRsts CurrEstab
Tcp: 1 1000000 1200000 345 0 12 88
"""
NETSTAT = """TcpExt: SyncookiesSent ListenDrops TCPTimeouts TCPLostRetransmit TCPBacklogDrop
TcpExt: 0 3 21 5 0
"""


def proc() -> dict[str, str]:
    """Files below /proc."""
    cores = "".join(f"cpu{core} {1000 + core} 0 200 9000 10 0 5 0 0 0\n" for core in range(CORES))
    total = f"cpu  {CORES * 1000} 0 {CORES * 200} {CORES * 9000} {CORES * 10} 0 {CORES * 5} 0 0 0\n"
    schedstat = "".join(f"cpu{core} 0 0 0 0 0 0 {10**9} {10**6} 500\n" for core in range(CORES))
    fields = ["0"] * 49
    fields[7], fields[9], fields[11], fields[12], fields[17], fields[19], fields[21] = (
        "9",
        "1",
        "5000",
        "300",
        "12",
        "777",
        "2048",
    )
    stat = f"{PID} (python train) S 1 " + " ".join(fields[2:]) + "\n"
    task = f"{PID}/task/{PID}"
    return {
        "stat": f"{total}{cores}intr 99 0 0\nctxt 123456\nbtime 1700000000\nprocesses 4321\nprocs_running 64\nprocs_blocked 2\n",
        "sys/kernel/osrelease": "5.14.0-427.13.1.el9_4.x86_64\n",
        "loadavg": "64.10 60.00 50.00 65/4000 99\n",
        "schedstat": f"version 15\ntimestamp 1\n{schedstat}",
        "meminfo": "MemTotal:       2113929216 kB\nMemFree:         1000000 kB\nMemAvailable:   1500000000 kB\nCached:            7000 kB\nDirty:                12 kB\nHugePages_Total:    1024\n",
        "vmstat": "pgfault 100\npgmajfault 3\npswpin 0\npswpout 0\noom_kill 1\nnuma_miss 17\n",
        "diskstats": " 259       0 nvme0n1 100 0 8000 50 200 0 16000 70 1 90 120 0 0 0 0 7 3\n 259       1 nvme0n1p1 1 0 8 1 1 0 8 1 0 1 2 0 0 0 0 0 0\n",
        "net/dev": "Inter-|   Receive                                                |  Transmit\n face |bytes    packets errs drop fifo frame compressed multicast|bytes    packets errs drop fifo colls carrier compressed\n  eth0:    1000      10    0    1    0     0          0         0     2000      20    0    0    0     0       0          0\nveth12: 1 1 0 0 0 0 0 0 1 1 0 0 0 0 0 0\n",
        "net/snmp": SNMP,
        "net/netstat": NETSTAT,
        "pressure/cpu": "some avg10=1.00 avg60=1.00 avg300=1.00 total=2500000\nfull avg10=0.00 avg60=0.00 avg300=0.00 total=0\n",
        "pressure/io": "some avg10=0.00 avg60=0.00 avg300=0.00 total=1000000\nfull avg10=0.00 avg60=0.00 avg300=0.00 total=900000\n",
        "self/mounts": "/dev/nvme0n1p1 / ext4 rw 0 0\nnas:/home /home nfs4 rw 0 0\nmgs:/scratch /scratch lustre rw 0 0\n",
        "self/mountstats": MOUNTSTATS,
        f"{PID}/stat": stat,
        f"{PID}/schedstat": "53000000000 1500000000 4000\n",
        f"{PID}/io": "rchar: 100\nwchar: 200\nsyscr: 3\nsyscw: 4\nread_bytes: 4096\nwrite_bytes: 8192\ncancelled_write_bytes: 0\n",
        f"{PID}/status": "Name:\tpython\nCpus_allowed_list:\t0-23,96-119\nvoluntary_ctxt_switches:\t400\nnonvoluntary_ctxt_switches:\t30\n",
        f"{PID}/cgroup": "0::/job_77\n",
        f"{task}/stat": stat,
        f"{task}/schedstat": "53000000000 1500000000 4000\n",
        f"{task}/children": "",
    }  # fmt: skip


def sys() -> dict[str, str]:
    """Files below /sys."""
    files = {}
    for core in range(CORES):
        files[f"devices/system/cpu/cpu{core}/cpufreq/scaling_cur_freq"] = f"{2_400_000 + core}\n"
        files[f"devices/system/cpu/cpu{core}/cpufreq/cpuinfo_max_freq"] = "3700000\n"
        files[f"devices/system/cpu/cpu{core}/thermal_throttle/core_throttle_count"] = "0\n"
    for node in range(2):
        folder = f"devices/system/node/node{node}"
        files[f"{folder}/meminfo"] = (
            f"Node {node} MemTotal:       1056964608 kB\nNode {node} MemFree:          500000 kB\nNode {node} HugePages_Total:   512\n"
        )
        files[f"{folder}/numastat"] = (
            "numa_hit 1000\nnuma_miss 17\nnuma_foreign 0\ninterleave_hit 4\nlocal_node 990\nother_node 10\n"
        )
    for adapter in range(ADAPTERS):
        device = f"class/infiniband/mlx5_{adapter}"
        files |= {f"{device}/fw_ver": "28.39.1002\n", f"{device}/board_id": "MT_0000000838\n"}
        port = f"{device}/ports/1"
        files |= {
            f"{port}/state": "4: ACTIVE\n", f"{port}/phys_state": "5: LinkUp\n", f"{port}/rate": "400 Gb/sec (4X NDR)\n", f"{port}/link_layer": "InfiniBand\n",
            f"{port}/counters/port_xmit_data": "1000\n", f"{port}/counters/port_rcv_data": "2000\n",
            f"{port}/counters/port_xmit_wait": "77\n", f"{port}/counters/link_downed": "0\n",
            f"{port}/hw_counters/roce_adp_retrans": "5\n", f"{port}/hw_counters/out_of_sequence": "2\n",
        }  # fmt: skip
    for size, pages in ((2048, 1024), (1_048_576, 0)):
        folder = f"kernel/mm/hugepages/hugepages-{size}kB"
        files |= {f"{folder}/nr_hugepages": f"{pages}\n", f"{folder}/free_hugepages": f"{pages // 2}\n"}
        files |= {f"{folder}/resv_hugepages": "0\n", f"{folder}/surplus_hugepages": "0\n"}
    net = "class/net/eth0"
    files |= {
        f"{net}/device/vendor": "0x15b3\n",
        f"{net}/carrier": "1\n",
        f"{net}/speed": "200000\n",
        f"{net}/mtu": "4200\n",
    }
    files |= {f"{net}/carrier_down_count": "2\n"}
    files["kernel/debug/lustre/llite/scratch-ffff9a01c7f4e800/stats"] = LUSTRE
    for controller in range(2):
        folder = f"devices/system/edac/mc/mc{controller}"
        files |= {f"{folder}/ce_count": f"{controller}\n", f"{folder}/ue_count": "0\n"}
    chip = "class/hwmon/hwmon0"
    files |= {f"{chip}/name": "coretemp\n", f"{chip}/temp1_input": "61000\n", f"{chip}/temp1_label": "Package id 0\n"}
    return files


CGROUP = {
    "cgroup.controllers": "cpu memory pids\n",
    "cpu.max": "800000 100000\n",
    "cpu.stat": "usage_usec 3\nuser_usec 2\nsystem_usec 1\nnr_periods 100\nnr_throttled 40\nthrottled_usec 2500000\n",
    "memory.current": "1073741824\n",
    "memory.max": "2147483648\n",
    "memory.events": "low 0\nhigh 0\nmax 3\noom 1\noom_kill 1\noom_group_kill 0\n",
    "pids.current": "120\n",
}


def build(root: Path) -> Path:
    """Write the tree; /proc, /sys, the control groups and /dev are its folders."""
    root_group = {"cgroup.controllers": "cpu memory pids\n"}
    trees = {"proc": proc(), "sys": sys(), "cgroup": root_group, "cgroup/job_77": CGROUP, "dev": {"kmsg": ""}}
    for base, files in trees.items():
        for name, content in files.items():
            path = root / base / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(content)
    return root
