# ruff: noqa: E501 - files of a kernel, line by line as it writes them
"""Files of three typical cluster nodes, made up: RHEL 8 with HDR InfiniBand and Lustre, RoCE, and an old one with NFS;
and of one that has much of everything. None of them was recorded by us, and the numbers are made up. Which files there
are, their names, columns, units and orders of magnitude come from captures that others keep: procfs, node_exporter and
hwloc (mlx4, mlx5, qib, i40iw and hfi1 adapters, NFS, NUMA, diskstats, hwmon), lustre_exporter and lustrefs-exporter
(llite of 2.10 and 2.14), ``rdma statistic`` of a ConnectX in an issue; and from sources: mlx5, bnxt_re and sysfs of
RDMA in Linux, all branches of Lustre from 2.10 on. Which names /proc/vmstat has in which kernel, Slurm's groups and
files of 3.10 are as we know them. What a kernel refuses to read (pressure on RHEL 8) cannot be put into a file and is
left out."""

from collections.abc import Callable
from pathlib import Path

LUSTRE_2_15 = """snapshot_time             1710759783.271040288 secs.nsecs
start_time                1710700000.000000000 secs.nsecs
elapsed_time              59783.271040288 secs.nsecs
read_bytes                1843022 samples [bytes] 1 4194304 7730165571584 32418900173193216
write_bytes               9211 samples [bytes] 512 4194304 38629539840 162009012345600
read                      1843030 samples [usecs] 3 812044 5203114500 944203117781234
write                     9211 samples [usecs] 9 1306648 42117300 9123344512
ioctl                     114 samples [reqs]
open                      35955 samples [usecs] 0 172939 33936516 88367300333
close                     35955 samples [usecs] 63 194037 5402095 11956065309
page_fault                610 samples [usecs] 1 4120 81210 220113455
seek                      22 samples [usecs] 0 9 44 128
readdir                   60 samples [usecs] 0 2242 34741 52343869
getattr                   35956 samples [usecs] 0 85505 23170241 904252691
opencount                 35955 samples [reqs] 1 2 40433 49388
openclosetime             17977 samples [usecs] 34302 20804335 4185265858 2084188699
inode_permission          629305 samples [usecs] 0 147014 196719 76130795
"""
#: What autofs and others that keep no statistics have, and two mounts; RDMA has eight columns more than TCP, and with
#: nconnect a mount has several transports.
NFS_V3 = """device rootfs mounted on / with fstype rootfs
device /etc/auto.home mounted on /home with fstype autofs
no device mounted on /misc with fstype autofs
device nas1:/vol/home/ada mounted on /home/ada with fstype nfs statvers=1.1
\topts:\trw,vers=3,rsize=65536,wsize=65536,namlen=255,acregmin=3,acregmax=60,acdirmin=30,acdirmax=60,hard,nolock,proto=tcp,timeo=600,retrans=2,sec=sys,mountaddr=192.0.2.9,mountvers=3,mountport=4046,mountproto=tcp,local_lock=all
\tage:\t1396811
\tcaps:\tcaps=0x3fe7,wtmult=4096,dtsize=65536,bsize=0,namlen=255
\tsec:\tflavor=1,pseudoflavor=1
\tevents:\t52 226 0 0 1 13 398 0 0 331 0 47 0 0 77 0 0 77 0 0 0 0 0 0 0 0 0
\tbytes:\t1207640230 90210 524288000 0 1210214218 90210 295483 23
\tRPC iostats version: 1.0  p/v: 100003/3 (nfs)
\txprt:\ttcp 832 0 1 0 11 6428 6428 0 12154 0 24 26 5726
\tper-op statistics
\t        NULL: 0 0 0 0 0 0 0 0
\t     GETATTR: 3204 3204 0 410112 358848 12 1700 1788
\t      LOOKUP: 811 811 0 116784 194640 2 420 431
\t        READ: 1298 1301 1 207680 1210292152 6 79386 79407
\t       WRITE: 4 4 0 91000 640 0 12 12
\t  READDIRPLUS: 3 3 0 468 2100 0 4 4

"""
NFS_V4_RDMA = """device nas2:/data mounted on /data with fstype nfs4 statvers=1.1
\topts:\tro,vers=4.2,rsize=1048576,wsize=1048576,namlen=255,acregmin=3,acregmax=60,acdirmin=30,acdirmax=60,hard,proto=rdma,nconnect=2,port=20049,timeo=600,retrans=2,sec=sys,clientaddr=192.0.2.7,local_lock=none
\tage:\t86400
\timpl_id:\tname='',domain='',date='0,0'
\tcaps:\tcaps=0x3ffbffff,wtmult=512,dtsize=1048576,bsize=0,namlen=255
\tnfsv4:\tbm0=0xfdffbfff,bm1=0xf9be3e,bm2=0x68800,acl=0x3,sessions,pnfs=not configured,lease_time=90,lease_expired=0
\tsec:\tflavor=1,pseudoflavor=1
\tevents:\t18 4410 0 0 9 31 4480 0 0 18 0 9 0 0 9 0 0 9 0 0 0 0 0 0 0 0 0
\tbytes:\t0 0 5497558138880 0 5497558138880 0 0 0
\tRPC iostats version: 1.1  p/v: 100003/4 (nfs)
\txprt:\trdma 0 0 5 0 11 2621441 2621441 0 5242882 0 2621440 0 0 1099511627776 0 0 0 0 0 0 0 0 0 0 0 0 0 0
\txprt:\trdma 0 0 5 0 11 2621440 2621440 0 5242880 0 2621440 0 0 1099511627776 0 0 0 0 0 0 0 0 0 0 0 0 0 0
\tper-op statistics
\t        NULL: 1 1 0 44 24 0 0 0 0
\t        READ: 5242880 5242880 0 1132462080 5498396999680 210000 31457280 31700000 0
\t       WRITE: 0 0 0 0 0 0 0 0 0
\t        OPEN: 18 18 0 6120 7344 0 9 9 0
\tOPEN_CONFIRM: 0 0 0 0 0 0 0 0 0
\t  READ_PLUS: 0 0 0 0 0 0 0 0 0

"""


PID, START = 31415, 91827
SLURM_V1 = "/slurm/uid_1000/job_77/step_0/task_0"

#: A part of the names in /proc/vmstat, in order: those that are read, their neighbours, and those that differ by version.
VMSTAT_3_10 = "nr_free_pages nr_dirty numa_hit numa_miss numa_foreign pgpgin pgpgout pswpin pswpout pgalloc_normal pgfree pgactivate pgdeactivate pgfault pgmajfault pgscan_direct_normal pgscan_direct_throttle zone_reclaim_failed pageoutrun allocstall pgrotated pgmigrate_success pgmigrate_fail compact_stall thp_fault_alloc"
VMSTAT_4_18 = "nr_free_pages nr_dirty numa_hit numa_miss numa_foreign pgpgin pgpgout pswpin pswpout pgalloc_dma pgalloc_dma32 pgalloc_normal pgalloc_movable allocstall_dma allocstall_dma32 allocstall_normal allocstall_movable pgfree pgactivate pgdeactivate pglazyfree pgfault pgmajfault pgsteal_kswapd pgsteal_direct pgscan_kswapd pgscan_direct oom_kill numa_pages_migrated pgmigrate_success pgmigrate_fail compact_stall thp_fault_alloc"
VMSTAT_6_8 = "nr_free_pages nr_dirty numa_hit numa_miss numa_foreign pgpgin pgpgout pswpin pswpout pgalloc_dma pgalloc_dma32 pgalloc_normal pgalloc_movable pgalloc_device allocstall_dma allocstall_dma32 allocstall_normal allocstall_movable allocstall_device pgfree pgactivate pgfault pgmajfault pgsteal_kswapd pgsteal_direct pgsteal_khugepaged pgscan_kswapd pgscan_direct oom_kill numa_pages_migrated pgmigrate_success pgmigrate_fail thp_migration_success compact_stall thp_fault_alloc"
PMA = "symbol_error link_error_recovery link_downed port_rcv_errors port_rcv_remote_physical_errors port_rcv_switch_relay_errors port_xmit_discards port_xmit_constraint_errors port_rcv_constraint_errors local_link_integrity_errors excessive_buffer_overrun_errors VL15_dropped port_xmit_wait port_xmit_data port_rcv_data port_xmit_packets port_rcv_packets"
MLX5_QUEUE = "rx_write_requests rx_read_requests rx_atomic_requests rx_dct_connect out_of_buffer out_of_sequence duplicate_request rnr_nak_retry_err packet_seq_err implied_nak_seq_err local_ack_timeout_err resp_local_length_error resp_cqe_error req_cqe_error req_remote_invalid_request req_remote_access_errors resp_remote_access_errors resp_cqe_flush_error req_cqe_flush_error roce_adp_retrans roce_adp_retrans_to roce_slow_restart roce_slow_restart_cnps roce_slow_restart_trans"
MLX5_CONGESTION = "rp_cnp_ignored rp_cnp_handled np_ecn_marked_roce_packets np_cnp_sent rx_icrc_encapsulated"
BNXT_RE = "active_pds active_qps rx_pkts rx_bytes tx_pkts tx_bytes recoverable_errors rx_roce_errors rx_roce_discards to_retransmits seq_err_naks_rcvd max_retry_exceeded rnr_naks_rcvd oos_drop_count rx_out_of_buffer tx_cnp_pkts rx_cnp_pkts rx_ecn_marked_pkts"


def counted(folder: str, names: str, known: str = "") -> dict[str, str]:
    """A file for each name, with its number in it: 0 where none is ``known``, as ``name=number``."""
    numbers = dict(one.split("=") for one in known.split())
    return {f"{folder}/{name}": f"{numbers.get(name, 0)}\n" for name in names.split()}


def table(names: str, **known: int) -> str:
    """A line for each name: the name, and a number."""
    return "".join(f"{name} {known.get(name, place * 11)}\n" for place, name in enumerate(names.split()))


def processors(cores: int, domains: int, version: int) -> dict[str, str]:
    """/proc/stat with its interrupts, and /proc/schedstat with its domains."""
    each = "".join(f"cpu{core} 81203{core} 310 20412 9120033 2204 0 811 0 0 0\n" for core in range(cores))
    stat = f"cpu  {812030 * cores} {310 * cores} {20412 * cores} {9120033 * cores} {2204 * cores} 0 {811 * cores} 0 0 0\n{each}"
    stat += f"intr 90210334 {'0 ' * 300}\nctxt 402113344\nbtime 1710700000\nprocesses 88123\nprocs_running 9\nprocs_blocked 1\nsoftirq 1 0 0 0 0 0 0 0 0 0 0\n"
    lines = "".join(
        f"cpu{core} 0 0 0 0 0 0 {8 * 10**12} {3 * 10**9} 120033\n"
        + "".join(f"domain{domain} ffffffff {'0 ' * 36}\n" for domain in range(domains))
        for core in range(cores)
    )
    return {
        "proc/stat": stat,
        "proc/schedstat": f"version {version}\ntimestamp 4306881233\n{lines}",
        "proc/loadavg": "8.91 8.40 7.77 9/1204 31999\n",
    }


def rank(groups: str, *, children: bool) -> dict[str, str]:
    """One rank with two threads, and the control groups it is in."""
    fields = "S 1 31415 31415 0 -1 4194304 202117 0 12 0 512344 20331 0 0 20 0 2 0 {} 92233720368 2622144 18446744073709551615 1 1 0 0 0 0 0 16781312 134235746 0 0 0 17 3 0 0 0 0 0 0 0 0 0 0 0 0 0\n"
    files = {}
    for task, name in ((PID, "python"), (PID + 1, "pt_autograd_0")):
        folder = f"proc/{PID}/task/{task}"
        files[f"{folder}/stat"] = f"{task} ({name}) " + fields.format(START)
        files[f"{folder}/schedstat"] = "53000000000 1500000000 40000\n"
        if children:  # not on RHEL 7: CONFIG_PROC_CHILDREN
            files[f"{folder}/children"] = ""
    return files | {
        f"proc/{PID}/stat": f"{PID} (python) " + fields.format(START),
        f"proc/{PID}/schedstat": "53000000000 1500000000 40000\n",
        f"proc/{PID}/io": "rchar: 5203114500\nwchar: 9211\nsyscr: 1843022\nsyscw: 812\nread_bytes: 73728\nwrite_bytes: 0\ncancelled_write_bytes: 0\n",
        f"proc/{PID}/status": "Name:\tpython\nState:\tS (sleeping)\nThreads:\t2\nCpus_allowed_list:\t0-3\nvoluntary_ctxt_switches:\t8123\nnonvoluntary_ctxt_switches:\t99\n",
        f"proc/{PID}/cgroup": groups,
    }


def groups_v1(kills: str) -> dict[str, str]:
    """Slurm's groups of version 1: the job has the limits, the task has none; cpu and cpuacct are mounted as one."""
    files = {}
    for level, limit in (("job_77", "137438953472"), ("job_77/step_0/task_0", "9223372036854771712")):
        memory = f"cgroup/memory/slurm/uid_1000/{level}"
        files |= {f"{memory}/memory.usage_in_bytes": "64424509440\n", f"{memory}/memory.limit_in_bytes": f"{limit}\n"}
        files |= {
            f"{memory}/memory.failcnt": "41\n",
            f"{memory}/memory.oom_control": f"oom_kill_disable 0\nunder_oom 0\n{kills}",
        }
    files["cgroup/cpu/cpu.stat"] = "nr_periods 0\nnr_throttled 0\nthrottled_time 0\n"
    return files | {"cgroup/cpu/cpu.cfs_quota_us": "-1\n", "cgroup/cpu/cpu.cfs_period_us": "100000\n"}


def port(
    adapter: str, link_layer: str, rate: str, firmware: str = "20.39.3004", board: str = "MT_0000000223"
) -> dict[str, str]:
    device = f"sys/class/infiniband/{adapter}"
    files = {
        f"{device}/fw_ver": f"{firmware}\n",
        f"{device}/board_id": f"{board}\n",
        f"{device}/ports/1/rate": f"{rate}\n",
    }
    return files | {
        f"{device}/ports/1/{name}": f"{text}\n"
        for name, text in (("state", "4: ACTIVE"), ("phys_state", "5: LinkUp"), ("link_layer", link_layer))
    }


def numa(nodes: int, gib: int) -> dict[str, str]:
    """Memory of each NUMA node."""
    files = {}
    for node in range(nodes):
        folder = f"sys/devices/system/node/node{node}"
        kib = {"MemTotal": 1.0, "MemFree": 0.25, "MemUsed": 0.75, "FilePages": 0.125, "AnonPages": 0.5}
        lines = [f"Node {node} {name}: {int(share * (gib << 20)):>15} kB\n" for name, share in kib.items()]
        files[f"{folder}/meminfo"] = "".join([*lines, f"Node {node} HugePages_Total:     0\n"])
        files[f"{folder}/cpulist"] = f"{node * 16}-{node * 16 + 15}\n"
        files[f"{folder}/numastat"] = (
            f"numa_hit {193460335812 + node}\nnuma_miss 12624528\nnuma_foreign 59858623\ninterleave_hit 57146\nlocal_node 193454780853\nother_node 18179487\n"
        )
    return files


def common(kernel: str, gib: int) -> dict[str, str]:
    """What all three have in the same form."""
    kib = {
        "MemTotal": gib << 20, "MemFree": gib << 18, "MemAvailable": gib * 3 << 18, "Buffers": 2204, "Cached": gib << 17,
        "SwapCached": 0, "Dirty": 1204, "Writeback": 0, "AnonPages": gib << 19, "Shmem": 77120, "Slab": 402113,
        "SwapTotal": 4194300, "SwapFree": 4194300,
    }  # fmt: skip
    return {
        "proc/sys/kernel/osrelease": f"{kernel}\n",
        "proc/meminfo": "".join(f"{name + ':':<16}{size:>9} kB\n" for name, size in kib.items()) + "HugePages_Total:       0\nHugepagesize:       2048 kB\n",
        "proc/net/dev": "Inter-|   Receive                                                |  Transmit\n face |bytes    packets errs drop fifo frame compressed multicast|bytes    packets errs drop fifo colls carrier compressed\n    lo:  420074    1809    0    0    0     0          0         0   420074    1809    0    0    0     0       0          0\n   em1:9120033000 8123344    0    7    0     0          0     90210 402113344  810033    0    0    0     0       0          0\n   ib0:  812030    4021    0    0    0     0          0         0   700112    3990    0    3    0     0       0          0\n",
        "proc/net/snmp": "Tcp: RtoAlgorithm RtoMin RtoMax MaxConn ActiveOpens PassiveOpens AttemptFails EstabResets CurrEstab InSegs OutSegs RetransSegs InErrs OutRsts InCsumErrors\nTcp: 1 200 120000 -1 799 792 6 0 50 180934 180948 4 0 0 0\n",
        "proc/net/netstat": "TcpExt: SyncookiesSent ListenOverflows ListenDrops TCPLostRetransmit TCPTimeouts TCPBacklogDrop\nTcpExt: 0 2 2 5 1 0\nIpExt: InNoRoutes InOctets OutOctets\nIpExt: 0 628639697 278626434\n",
        "sys/class/net/em1/device/vendor": "0x14e4\n", "sys/class/net/em1/carrier": "1\n", "sys/class/net/em1/speed": "25000\n", "sys/class/net/em1/mtu": "1500\n"
    }  # fmt: skip


def rhel8() -> dict[str, str]:
    """RHEL 8 (4.18), two sockets, HDR InfiniBand, Lustre 2.15, control groups of version 1 made by Slurm."""
    groups = f"11:pids:/\n10:memory:{SLURM_V1}\n6:cpuset:{SLURM_V1}\n4:cpu,cpuacct:/\n3:freezer:{SLURM_V1}\n1:name=systemd:/system.slice/slurmd.service\n"
    ib = "sys/class/infiniband/mlx5_0/ports/1"
    files = (
        common("4.18.0-553.el8_10.x86_64", 512)
        | processors(64, 3, 15)
        | numa(2, 256)
        | rank(groups, children=True)
        | groups_v1("oom_kill 2\n")
    )
    files |= port("mlx5_0", "InfiniBand", "200 Gb/sec (4X HDR)")
    words = "port_xmit_data=2880761508848 port_rcv_data=18126345378 port_xmit_wait=4294967295 link_downed=1"
    packets = "port_xmit_packets=10907922116 port_rcv_packets=541889824"
    files |= counted(f"{ib}/counters", PMA, f"{words} {packets}")
    errors = "local_ack_timeout_err=131 roce_adp_retrans=99 packet_seq_err=1 out_of_sequence=1 rx_read_requests=3125"
    files |= counted(f"{ib}/hw_counters", MLX5_QUEUE, errors) | {f"{ib}/hw_counters/lifespan": "12\n"}
    for core in range(64):
        files[f"sys/devices/system/cpu/cpu{core}/cpufreq/scaling_cur_freq"] = "2593906\n"
        files[f"sys/devices/system/cpu/cpu{core}/cpufreq/cpuinfo_max_freq"] = "3200000\n"
        files[f"sys/devices/system/cpu/cpu{core}/thermal_throttle/core_throttle_count"] = "0\n"
        files[f"sys/devices/system/cpu/cpu{core}/thermal_throttle/package_throttle_count"] = "3\n"
    for chip in range(2):
        folder = f"sys/class/hwmon/hwmon{chip + 1}"
        files |= {
            f"{folder}/name": "coretemp\n",
            f"{folder}/temp1_input": "61000\n",
            f"{folder}/temp1_label": f"Package id {chip}\n",
            f"{folder}/temp1_crit": "100000\n",
        }
        counts = "ce_count ce_noinfo_count ue_count ue_noinfo_count"
        files |= counted(f"sys/devices/system/edac/mc/mc{chip}", counts, f"ce_count={262 * chip}")
    return files | {
        "proc/vmstat": table(VMSTAT_4_18, oom_kill=2, allocstall_normal=30, allocstall_movable=400, allocstall_dma=0, allocstall_dma32=0, pgmajfault=507162),
        "proc/diskstats": "   8       0 sda 25354637 34367663 1003346126 18492372 28444756 11134226 505697032 63877960 0 9653880 82621804 0 0 0 0\n   8       1 sda1 250 0 2000 36 0 0 0 0 0 36 36 0 0 0 0\n 253       0 dm-0 59910002 0 1003337218 46229572 39231014 0 505696880 1158557800 0 11325968 1206301256 0 0 0 0\n",
        "proc/self/mounts": "/dev/mapper/rhel-root / xfs rw,seclabel,relatime,attr2,inode64,noquota 0 0\n10.0.0.1@o2ib:10.0.0.2@o2ib:/scratch /scratch lustre rw,seclabel,flock,lazystatfs,encrypt 0 0\ntmpfs /dev/shm tmpfs rw,seclabel,nosuid,nodev 0 0\n",
        "proc/self/mountstats": "device 10.0.0.1@o2ib:10.0.0.2@o2ib:/scratch mounted on /scratch with fstype lustre\n",
        "sys/kernel/debug/lustre/llite/scratch-ffff9a01c7f4e800/stats": LUSTRE_2_15,
        "sys/fs/lustre/llite/scratch-ffff9a01c7f4e800/uuid": "f1cd4bd8-0000-4b7a-0000-000000000000\n"
    }  # fmt: skip


def roce_adapters() -> dict[str, str]:
    """RoCE of three makers, each with counters of its own."""
    mlx = "sys/class/infiniband/mlx5_0/ports/1"
    files = port("mlx5_0", "Ethernet", "200 Gb/sec (4X HDR)", "28.39.1002", "MT_0000000838")
    data = "port_xmit_data=80530636800 port_rcv_data=80530636801"
    files |= counted(f"{mlx}/counters", f"{PMA} unicast_rcv_packets multicast_rcv_packets", data)
    marked = "rp_cnp_handled=144 np_ecn_marked_roce_packets=1543 np_cnp_sent=1541"
    errors = "rnr_nak_retry_err=1543 local_ack_timeout_err=15 roce_adp_retrans=148"
    files |= counted(f"{mlx}/hw_counters", f"{MLX5_QUEUE} {MLX5_CONGESTION}", f"{marked} {errors}")
    files |= port("bnxt_re0", "Ethernet", "100 Gb/sec (4X EDR)", "230.0.157.0", "bnxt_re0")
    traffic = "tx_bytes=402113344 rx_bytes=402113345 tx_pkts=98123 rx_pkts=98124"
    errors = "to_retransmits=7 oos_drop_count=3 tx_cnp_pkts=2 rx_ecn_marked_pkts=4"
    files |= counted("sys/class/infiniband/bnxt_re0/ports/1/hw_counters", BNXT_RE, f"{traffic} {errors}")
    files |= port("irdma0", "Ethernet", "100 Gb/sec (4X EDR)", "1.71", "Intel IRDMA Board ID")
    names = "ip4InOctets ip4OutOctets cnpHandled cnpIgnored cnpSent RxECNMrkd lifespan"
    folder = "sys/class/infiniband/irdma0/ports/1/hw_counters"
    return files | counted(folder, names, "ip4InOctets=9 cnpSent=5 RxECNMrkd=9")


def groups_v2() -> dict[str, str]:
    """Slurm's groups of version 2: the job has the limit, what is below it none."""
    files = {}
    job = "system.slice/slurmstepd.scope/job_77"
    for below, limit in (
        ("", "137438953472"),
        ("/step_0", "max"),
        ("/step_0/user", "max"),
        ("/step_0/user/task_0", "max"),
    ):
        folder = f"cgroup/{job}{below}"
        files |= {
            f"{folder}/memory.current": "64424509440\n",
            f"{folder}/memory.max": f"{limit}\n",
            f"{folder}/memory.events": "low 0\nhigh 0\nmax 12\noom 0\noom_kill 0\noom_group_kill 0\n",
            f"{folder}/cpu.stat": "usage_usec 532675000\nuser_usec 512344000\nsystem_usec 20331000\ncore_sched.force_idle_usec 0\nnr_periods 0\nnr_throttled 0\nthrottled_usec 0\nnr_bursts 0\nburst_usec 0\n",
        }
    return files


def roce() -> dict[str, str]:
    """Linux 6.8 with RoCE of three makers and NFS over RDMA, control groups of version 2, pressure of interrupts too."""
    files = (
        common("6.8.0-47-generic", 1024)
        | processors(16, 2, 16)
        | numa(2, 512)
        | roce_adapters()
        | groups_v2()
        | rank("0::/system.slice/slurmstepd.scope/job_77/step_0/user/task_0\n", children=True)
    )
    averages = "avg10=0.00 avg60=0.05 avg300=0.02"
    for resource in ("cpu", "io", "memory"):
        files[f"proc/pressure/{resource}"] = f"some {averages} total=14036781\nfull {averages} total=0\n"
    return files | {
        "proc/pressure/irq": f"full {averages} total=8494\n",
        "cgroup/cgroup.controllers": "cpuset cpu io memory hugetlb pids rdma misc\n",
        "proc/vmstat": table(VMSTAT_6_8, oom_kill=0, allocstall_device=1, allocstall_movable=4, allocstall_normal=0, allocstall_dma=0, allocstall_dma32=0),
        "proc/diskstats": "   7       0 loop0 0 0 0 0 0 0 0 0 0 0 0 0 0 0 0 0 0\n 259       0 nvme0n1 47114 4 4643973 21650 1078320 43950 39451633 1011053 0 222766 1032546 0 0 0 0 4021 812\n 259       1 nvme0n1p1 1140 0 9370 16 1 0 1 0 0 16 16 0 0 0 0 0 0\n",
        "proc/self/mounts": "/dev/nvme0n1p2 / ext4 rw,relatime 0 0\nnas2:/data /data nfs4 ro,vers=4.2,proto=rdma 0 0\n",
        "proc/self/mountstats": NFS_V4_RDMA
    }  # fmt: skip


def rhel7() -> dict[str, str]:
    """RHEL 7 (3.10): version 1 without a count of kills, one kind of stall, ConnectX-3, NFS 3, chips' older folders."""
    groups = (
        f"11:cpuacct,cpu:/\n9:memory:{SLURM_V1}\n4:cpuset:{SLURM_V1}\n1:name=systemd:/system.slice/slurmd.service\n"
    )
    files = common("3.10.0-1160.el7.x86_64", 64) | processors(8, 2, 15) | rank(groups, children=False) | groups_v1("")
    ib = "sys/class/infiniband/mlx4_0/ports/1"
    files |= port("mlx4_0", "InfiniBand", "40 Gb/sec (4X QDR)", "2.31.5050", "SM_1141000001000")
    full = "port_xmit_data=4294967295 port_rcv_data=4294967295 link_error_recovery=255 symbol_error=65535"
    files |= counted(f"{ib}/counters", PMA.replace("port_xmit_wait ", ""), full)
    wide = "port_xmit_data_64 port_rcv_data_64 port_xmit_packets_64 port_rcv_packets_64 port_unicast_rcv_packets"
    data = "port_xmit_data_64=26509113295 port_rcv_data_64=2221223609"
    files |= counted(f"{ib}/counters_ext", wide, data)
    files |= numa(1, 64)
    return files | {
        "proc/vmstat": table(VMSTAT_3_10, allocstall=83165),
        "proc/diskstats": "   8       0 sda 25354637 34367663 1003346126 18492372 28444756 11134226 505697032 63877960 0 9653880 82621804\n  11       0 sr0 0 0 0 0 0 0 0 0 0 0 0\n",
        "proc/self/mounts": "rootfs / rootfs rw 0 0\n/dev/sda2 / ext4 rw,relatime,data=ordered 0 0\nnas1:/vol/home/ada /home/ada nfs rw,vers=3 0 0\n",
        "proc/self/mountstats": NFS_V3,
        "sys/class/hwmon/hwmon0/device/name": "coretemp\n",
        "sys/class/hwmon/hwmon0/device/temp1_input": "47000\n",
        "sys/class/hwmon/hwmon0/device/temp1_label": "Physical id 0\n"
    }  # fmt: skip


def whole() -> dict[str, str]:
    """Much of everything: what the first two have together, huge pages, and a kernel log that is empty."""
    files = rhel8() | roce() | {"dev/kmsg": "", "sys/class/net/em1/carrier_down_count": "2\n"}
    job = "cgroup/system.slice/slurmstepd.scope/job_77"
    files |= {f"{job}/cpu.max": "800000 100000\n", f"{job}/pids.current": "120\n"}
    for size, pages in ((2048, 1024), (1_048_576, 0)):
        folder = f"sys/kernel/mm/hugepages/hugepages-{size}kB"
        names = "nr_hugepages free_hugepages resv_hugepages surplus_hugepages"
        files |= counted(folder, names, f"nr_hugepages={pages}")
    return files


NODES: dict[str, Callable[[], dict[str, str]]] = {"rhel8": rhel8, "roce": roce, "rhel7": rhel7, "whole": whole}


def build(name: str, root: Path) -> Path:
    """Write the tree of a node: /proc, /sys and the control groups are its folders."""
    for place, content in NODES[name]().items():
        path = root / place
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(content)
    return root
