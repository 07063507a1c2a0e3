# SPDX-License-Identifier: MIT
"""Effect check: an ineffective control is detected under load, and no effective one is reported.

In exact guest time (`make test-vm KIND=icount`); the decisions themselves are in tests/unit/core/test_effect_check.py.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator

import nvclient
import pytest
from sharebox import GPU, KERNEL_US, NATIVE, PREEMPTIVE, SOFT, WEIGHTED, Tenant, put, shares
from slicebox import until

pytestmark = pytest.mark.icount

GONE_PIDS = 16  # CKM_GONE_PIDS


def stat(key: str) -> str:
    return dict(line.split() for line in (GPU / "stat").read_text().splitlines())[key]


def policy() -> int:
    return int((GPU / "policy").read_text())


def control_news(kernel_log) -> list[str]:
    """The module's log lines about its controls since the last call."""
    return [line for line in kernel_log.news().splitlines() if "moves no share" in line or "moved" in line]


def test_working_freezes_are_seen_and_nobody_is_held_for_it(tenants, kernel_log):
    a, b = tenants().start(), tenants(weight=2).start()
    assert (stat("control_seen"), stat("control_ineffective")) == ("none", "none"), "not checked since the attach"
    put("policy", WEIGHTED)
    until(lambda: stat("effect_check") == "watching", 10)
    until(lambda: stat("control_seen") == "freeze", 40, step=0.5)
    assert a.box.stat("enforced") == b.box.stat("enforced") == 1
    assert control_news(kernel_log) == []
    put("policy", NATIVE)
    until(lambda: stat("effect_check") == "idle", 10)


@pytest.mark.parametrize("number", [PREEMPTIVE, WEIGHTED])
def test_ineffective_freezes_end_in_native(tenants, personality, kernel_log, number):
    personality(control_ineffective=2)
    a, b = tenants().start(), tenants(weight=2).start()
    kernel_log.news()
    put("policy", number)
    until(lambda: a.box.stat("enforced") == 0, 40, step=0.5)
    assert policy() in (number, NATIVE)
    until(lambda: policy() == NATIVE, 40, step=0.5)
    assert (stat("control"), stat("control_ineffective")) == ("timeslice", "freeze")
    assert [line for line in control_news(kernel_log) if "GPU 0: freezing" in line and "taken away" in line]
    with pytest.raises(OSError, match="not supported"):
        put("policy", number)
    # All containers run again, and the driver divides the time.
    assert min(shares(a, b, seconds=1)) > 40


def test_a_lost_control_is_asked_for_again_at_the_next_attach(tenants):
    """The previous test's containers are gone, and the findings about the driver with them."""
    tenants()
    assert (stat("control"), stat("control_ineffective"), stat("control_seen")) == ("freeze,timeslice", "none", "none")


def test_ineffective_timeslices_are_in_doubt(tenants, personality, kernel_log):
    """They are not taken away: a container that leaves the GPU by itself shows the same."""
    personality(control_ineffective=1)
    a, b = tenants().start(), tenants().start("--processes", 7)
    kernel_log.news()
    put("policy", SOFT)
    until(lambda: a.box.stat("enforced") == 0, 90, step=1)
    assert b.box.stat("enforced") == 0
    time.sleep(20)
    assert (policy(), a.box.stat("enforced"), b.box.stat("enforced")) == (SOFT, 0, 0)
    assert (stat("control"), stat("control_ineffective")) == ("freeze,timeslice", "none")
    news = [line for line in control_news(kernel_log) if "GPU 0: timeslices" in line]
    assert len(news) == 1 and "in doubt" in news[0]


HARMLESS = {
    "restart fails": {"disable_needs_restart": 1, "err40_pct": 30},
    "slow calls": {"tail_pct": 30},
}


@pytest.mark.parametrize("name", HARMLESS)
def test_other_personalities_take_no_control_away(tenants, personality, name):
    personality(**HARMLESS[name])
    tenants().start()
    tenants(weight=2).start()
    put("policy", WEIGHTED)
    time.sleep(15)
    assert policy() == WEIGHTED
    assert (stat("control"), stat("control_ineffective")) == ("freeze,timeslice", "none")


@pytest.mark.parametrize("needs_restart", [0, 1])
def test_a_stubborn_tenant_takes_no_control_away(tenants, personality, needs_restart):
    """Kernels of 50 ms that ignore preemption; with needs_restart the freeze is answered while one still runs."""
    personality(disable_needs_restart=needs_restart)
    good, bad = tenants().start(), tenants()
    bad.load = bad.box.simload("--seconds", 0, "--kernel-us", 50_000, "--depth", 4, "--stubborn", "--interval", 1000)
    bad.load.stdout.readline()
    put("policy", PREEMPTIVE)
    time.sleep(20)
    assert policy() == PREEMPTIVE
    assert (stat("control"), stat("control_ineffective")) == ("freeze,timeslice", "none")
    assert good.box.stat("enforced") == 1


def held_part(tenant: Tenant, seconds: float) -> float:
    """Part of the time in which it was frozen."""
    begin = time.monotonic(), tenant.box.stat("wait_ns")
    time.sleep(seconds)
    return (tenant.box.stat("wait_ns") - begin[1]) / 1e9 / (time.monotonic() - begin[0])


@contextlib.contextmanager
def one_process(one: Tenant, two: Tenant, *works: Tenant) -> Iterator[None]:
    """This process has channels in both, as with the files of the other one that came over a socket."""
    with one.box.client() as first, two.box.client() as second:
        for tenant, client in ((one, first), (two, second)):
            channel = client.gpu(0).space().group().channel(entries=16)
            for _ in range(12 if tenant in works else 0):
                channel.submit(kernel_ns=5_000_000_000)
        yield


def test_a_process_in_two_containers_without_high_priority_holds_none(tenants):
    """High priority that uses 3 % of the GPU, of unknown run state, beside a tenant that has two containers."""
    service, one, two = tenants(highprio=1), tenants(), tenants()
    put("policy", PREEMPTIVE)
    brief_service(service)
    with one_process(one, two, one, two):
        time.sleep(5)
        assert held_part(service, 3) < 0.01


def brief_loads(tenant: Tenant, seconds: float, idle: int = 0) -> None:
    """Processes one after the other, each of which is gone before the samples of its time are read.

    After each one there are `idle` others, with a channel each.
    """
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        load = tenant.box.simload("--seconds", 0.3, "--kernel-us", KERNEL_US, "--depth", 64)
        load.communicate(timeout=60)
        for _ in range(idle):
            other = tenant.box.simload("--hold", "--seconds", 1e-6)
            other.communicate(timeout=60)
            assert other.returncode == 0


def brief_service(tenant: Tenant) -> None:
    """High priority that uses 3 % of the GPU, of unknown run state."""
    tenant.load = tenant.box.simload(
        *("--seconds", 0, "--interval", 1000, "--request-us", "500x10"),
        *("--requests-per-s", 6, "--depth", 16, "--poll-us", 200),
    )
    tenant.load.stdout.readline()


@pytest.mark.parametrize("idle", [0, GONE_PIDS])
def test_processes_that_are_gone_before_their_samples_are_read_hold_no_high_priority(tenants, idle):
    """Their container has none: what they did is not taken for high priority's, however many there were since."""
    service, low = tenants(highprio=1), tenants()
    put("policy", PREEMPTIVE)
    brief_service(service)
    brief_loads(low, 5, idle)
    begin = time.monotonic(), service.box.stat("wait_ns")
    brief_loads(low, 4, idle)
    held = (service.box.stat("wait_ns") - begin[1]) / 1e9 / (time.monotonic() - begin[0])
    assert held < 0.01


@pytest.mark.parametrize("idle", [0, GONE_PIDS])
def test_processes_of_high_priority_that_are_gone_are_held_to_the_ceiling(tenants, idle):
    """As one that stays: what they did is not taken for that of a neighbour whose processes end as well."""
    high, low, other = tenants(highprio=1), tenants(), tenants()
    put("policy", PREEMPTIVE)
    other.start()
    with one_process(high, low):
        brief_loads(low, 1, idle)
        brief_loads(high, 12, idle)  # the credit of before is used up, though samples between processes add to it
        begin = time.monotonic(), high.box.stat("wait_ns")
        brief_loads(high, 4, idle)
        held = (high.box.stat("wait_ns") - begin[1]) / 1e9 / (time.monotonic() - begin[0])
    assert held == pytest.approx(0.2, abs=0.06)


def test_a_process_with_a_channel_in_another_container_is_held_to_the_ceiling(tenants):
    """What it does counts as high priority's, whichever of its channels works."""
    high, low, other = tenants(highprio=1), tenants(), tenants()
    put("policy", PREEMPTIVE)
    other.start()
    with one_process(high, low, high):
        time.sleep(5)
        assert held_part(high, 3) == pytest.approx(0.2, abs=0.03)


def test_the_samples_are_not_for_tenants(tenants):
    """The samples name the neighbours' processes."""
    tenant = tenants()
    refused = tenant.box.stat("refused_calls")
    with tenant.box.client() as client:
        gpu = client.gpu(0)
        status, _ = client.control(gpu.subdevice, 0x20802096, bytearray(55888))
    assert status == nvclient.NV_ERR_NOT_SUPPORTED
    assert tenant.box.stat("refused_calls") == refused + 1
