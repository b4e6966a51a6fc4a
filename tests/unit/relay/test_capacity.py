"""`relay capacity`: counting, and measuring on this machine."""

import json
import subprocess
import sys

import pytest

from relay import capacity
from relay.capacity import Cost, Site, Voice, plan

COST = Cost(up_us=2.0, down_us=4.0)


def test_what_a_million_sessions_take() -> None:
    result = plan(1_000_000, COST, Voice(50, 102), Site(cores=16, nic_gbit_s=10, load=0.5))
    each_way_s = 1_000_000 * (50 + capacity.CHECKS_PER_S)
    assert result.packets_per_s == 2 * each_way_s
    assert result.busy_cores == pytest.approx(each_way_s * 6e-6)
    assert result.hosts_by_cpu == 38  # 302.4 cores, of which a host has 8 at half load
    assert result.public_gbit_s == pytest.approx(each_way_s * (102 + 28 + 38) * 8 / 1e9)
    assert result.internal_gbit_s - result.public_gbit_s == pytest.approx(each_way_s * 38 * 8 / 1e9)
    assert result.spare_hosts == 2
    assert result.hosts == max(result.hosts_by_cpu, result.hosts_by_network) + 2
    assert result.redis_writes_per_s == pytest.approx(1_000_000 / 15)


def test_a_small_site_has_a_host_to_spare() -> None:
    result = plan(1, COST)
    assert (result.hosts, result.spare_hosts, result.sessions_per_host) == (2, 1, 1)


def test_the_network_can_be_what_is_short() -> None:
    result = plan(1_000_000, Cost(0.1, 0.1))
    assert result.hosts_by_network > result.hosts_by_cpu
    assert result.hosts == result.hosts_by_network + result.spare_hosts


def test_the_flows_of_lost_hosts_fit_the_others() -> None:
    result = plan(1_000_000, COST)
    working = result.hosts - result.spare_hosts
    assert result.flows_per_host * working >= 1_000_000 * capacity.FLOWS_PER_SESSION


@pytest.mark.parametrize("site", [Site(cores=0), Site(nic_gbit_s=0), Site(load=0), Site(load=1.5)])
def test_an_impossible_site(site: Site) -> None:
    with pytest.raises(ValueError, match="nothing to plan for"):
        plan(1, COST, site=site)


def run(*arguments: str) -> str:
    command = [sys.executable, "-m", "relay", "capacity", *arguments]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_given_figures() -> None:
    output = run("--sessions", "20000000", "--up-us", "2", "--down-us", "4")
    assert "2.00 µs up, 4.00 µs down (given)" in output
    assert "20,000,000" in output


def test_json_of_figures_measured_here() -> None:
    facts = json.loads(run("--sessions", "10000", "--json"))
    assert 0.1 < facts["up_us"] < 500
    assert 0.1 < facts["down_us"] < 500
    assert facts["sessions"] == 10000
