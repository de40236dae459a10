"""InfiniBand, RoCE and others' adapters: links, traffic and congestion, whichever names they count under."""

import errno
import math
import os
from pathlib import Path

import pytest
from hindmost_agent.kernel_files import RESCAN
from hindmost_agent.sampler import Host
from hindmost_agent.samplers.infiniband import Infiniband

from tests.agent.folders import write
from tests.agent.readings import read


@pytest.fixture
def host(tmp_path: Path) -> Host:
    """An empty node."""
    return Host(proc=tmp_path / "proc", sys=tmp_path / "sys")


IB = "hindmost_node_infiniband_"
NO_PMA = {f"counters/{name}": "N/A (no PMA)\n" for name in ("port_xmit_data", "port_rcv_data", "symbol_error")}


def test_a_link_that_went_down_is_seen(host: Host) -> None:
    """Logical and physical state apart; a RoCE port's congestion counters; data counters are of 4-byte words."""
    port = host.sys / "class/infiniband/mlx5_0/ports/1"
    write(
        port,
        {
            "state": "1: DOWN\n",
            "phys_state": "3: Disabled\n",
            "rate": "100 Gb/sec (4X EDR)\n",
            "link_layer": "Ethernet\n",
            "counters/port_xmit_data": "1000\n",
            "hw_counters/np_ecn_marked_roce_packets": "12\n",
            "hw_counters/rp_cnp_handled": "9\n",
        },
    )
    sampler = Infiniband(host)
    found = {key[0].removeprefix("hindmost_node_infiniband_"): value for key, value in read(sampler).items()}
    assert (found["link_active"], found["link_up"], found["link_bytes_per_second"]) == (0, 0, 12.5e9)
    assert (found["transmit_bytes_total"], found["ecn_marked_packets_total"], found["cnp_handled_total"]) == (
        4000,
        12,
        9,
    )
    write(port, {"state": "4: ACTIVE\n", "phys_state": "5: LinkUp\n"})
    found = {key[0].removeprefix("hindmost_node_infiniband_"): value for key, value in read(sampler).items()}
    assert (found["link_active"], found["link_up"]) == (1, 1)


def test_an_adapter_that_counts_under_names_of_its_own(host: Host) -> None:
    """EFA has bytes, not words, among its hw_counters: the same metrics."""
    write(
        host.sys / "class/infiniband/rdmap0s6/ports/1",
        {
            "hw_counters/tx_bytes": "77\n",
            "hw_counters/retrans_pkts": "2\n",
            "hw_counters/impaired_remote_conn_events": "1\n",
        },
    )
    found = read(Infiniband(host))
    assert found["hindmost_node_infiniband_transmit_bytes_total", "rdmap0s6", "1"] == 77
    assert found["hindmost_node_infiniband_retransmitted_packets_total", "rdmap0s6", "1"] == 2
    assert found["hindmost_node_infiniband_impaired_connections_total", "rdmap0s6", "1"] == 1
    assert math.isnan(found["hindmost_node_infiniband_link_active", "rdmap0s6", "1"])


def test_a_counter_that_says_it_is_none_leaves_the_place_to_one_that_is(host: Host) -> None:
    """RoCE adapters have files of InfiniBand's counters, and their values in RoCE's own; the rest is missing."""
    broadcom = {
        "hw_counters/tx_bytes": "123\n",
        "hw_counters/to_retransmits": "7\n",
        "hw_counters/seq_err_naks_rcvd": "3\n",
    }
    intel = {"hw_counters/cnpSent": "5\n", "hw_counters/RxECNMrkd": "9\n"}
    write(host.sys / "class/infiniband/bnxt_re0/ports/1", {**NO_PMA, **broadcom})
    write(host.sys / "class/infiniband/irdma0/ports/1", {**NO_PMA, **intel})
    found = {key: value for key, value in read(Infiniband(host)).items() if "_total" in key[0]}
    assert found == {
        (f"{IB}transmit_bytes_total", "bnxt_re0", "1"): 123,
        (f"{IB}retransmit_timeouts_total", "bnxt_re0", "1"): 7,
        (f"{IB}sequence_errors_total", "bnxt_re0", "1"): 3,
        (f"{IB}cnp_sent_total", "irdma0", "1"): 5,
        (f"{IB}ecn_marked_packets_total", "irdma0", "1"): 9,
    }


def test_a_counter_that_cannot_be_asked_for_is_none(host: Host, monkeypatch: pytest.MonkeyPatch) -> None:
    """Some drivers answer "not supported" instead of a text; an error that may pass leaves the counter in its place."""
    port = host.sys / "class/infiniband/mlx5_0/ports/1"
    write(port, {"counters/port_xmit_data": "1\n", "counters/symbol_error": "1\n", "hw_counters/tx_bytes": "123\n"})
    codes = {"port_xmit_data": errno.EOPNOTSUPP, "symbol_error": errno.EIO}
    pread = os.pread

    def failing(fd: int, size: int, offset: int) -> bytes:
        name = Path(f"/proc/self/fd/{fd}").readlink().name
        if name in codes:
            raise OSError(codes[name], os.strerror(codes[name]))
        return pread(fd, size, offset)

    monkeypatch.setattr(os, "pread", failing)
    found = read(Infiniband(host))
    assert found[f"{IB}transmit_bytes_total", "mlx5_0", "1"] == 123
    assert math.isnan(found[f"{IB}symbol_errors_total", "mlx5_0", "1"])


def test_a_counter_that_is_full_says_nothing(host: Host) -> None:
    """An adapter without 64-bit counters stops at 2^32 - 1: its port is not idle from then on, but unknown."""
    port = host.sys / "class/infiniband/qib0/ports/1"
    write(port, {"counters/port_xmit_data": "4294967294\n", "counters/port_rcv_data": "4294967295\n"})
    sampler = Infiniband(host)
    found = read(sampler)
    assert found[f"{IB}transmit_bytes_total", "qib0", "1"] == 4 * 4294967294
    assert math.isnan(found[f"{IB}receive_bytes_total", "qib0", "1"])
    write(port, {"counters/port_rcv_data": "4294967296\n"})
    assert read(sampler)[f"{IB}receive_bytes_total", "qib0", "1"] == 4 * 4294967296


def test_adapters_that_stay_are_no_news(host: Host) -> None:
    """Looking for adapters again finds the same; a new one is taken on."""
    port = "class/infiniband/mlx5_{}/ports/1"
    files = {"state": "4: ACTIVE\n", "counters/port_xmit_data": "1000\n"}
    write(host.sys / port.format(0), files)
    sampler = Infiniband(host)
    sampler.sample()
    first = sampler.series
    for _ in range(RESCAN + 1):
        sampler.sample()
    assert sampler.series == first
    write(host.sys / port.format(1), files)
    for _ in range(RESCAN):
        values = sampler.sample()
    assert len(sampler.series) == len(values) == 2 * len(first)
