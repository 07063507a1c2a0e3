# SPDX-License-Identifier: MIT
"""A pod through containerd's CRI, with the kubelet's requests: one slice for the container with the variables."""

from __future__ import annotations

from collections.abc import Iterator

import docker_box as d
import engine_box as e
import grpc
import pytest
from cri import Cri

pytestmark = pytest.mark.engines

POD = "trainer"


@pytest.fixture(scope="module", autouse=True)
def handed_over() -> Iterator[None]:
    with e.hands_over_to("runc"):
        yield


@pytest.fixture
def pod(cri: Cri) -> Iterator[str]:
    with cri.pod(POD, "nvidia") as found:
        yield found
    d.until(e.nothing_is_left, "nothing is left of the pod")


def add(cri: Cri, pod: str, name: str, command: tuple[str, ...] = e.SLEEP, **env: object) -> str:
    container = cri.create(pod, POD, name, e.IMAGE, command, {key: str(value) for key, value in env.items()})
    cri.start(container)
    return container


def gpu_nodes(cri: Cri, container: str) -> list[str]:
    return [name for name in cri.run_in(container, "/bin/ls", "/dev").stdout.split() if name.startswith("nvidia")]


def test_one_sliced_of_five(cri: Cri, pod: str) -> None:
    """pause, init, sidecar, and two that work, one of them with a slice."""
    assert not e.directories(), "the pause container gets no slice"
    init = add(cri, pod, "init", ("/bin/true",))
    sidecar = add(cri, pod, "sidecar")
    sliced = add(cri, pod, "sliced", **e.variables(6))
    other = add(cri, pod, "other")
    assert set(e.directories()) == {sliced}
    e.Running(cri, sliced).check_slice(6)
    assert gpu_nodes(cri, sidecar) == gpu_nodes(cri, other) == []
    # Stopped, and removed only later: the slice is gone with the last process, not with the record.
    cri.stop(sliced)
    d.until(lambda: not e.directories(), "the slice is gone")
    cri.remove(sliced)
    cri.remove(init)


def test_a_container_that_crashes_gets_a_slice_again(cri: Cri, pod: str) -> None:
    """The kubelet makes a new container for it, with a new id."""
    first = add(cri, pod, "sliced", ("/bin/sh", "-c", "exit 3"), **e.variables(6))
    d.until(lambda: first not in e.directories(), "the first one's slice is gone")
    second = add(cri, pod, "again", **e.variables(6))
    assert set(e.directories()) == {second}


def test_the_kubelet_is_told_why(cri: Cri, pod: str) -> None:
    container = cri.create(pod, POD, "greedy", e.IMAGE, e.SLEEP, e.variables(16))
    with pytest.raises(grpc.RpcError) as refused:
        cri.start(container)
    assert "asks for 16 of the 15 GiB" in str(refused.value)
    assert not e.directories()


def test_an_engine_that_dies_takes_no_slice_along(containerd: e.Containerd, cri: Cri, pod: str) -> None:
    """containerd is killed and comes back; the shim, the container and its slice live on."""
    sliced = add(cri, pod, "sliced", e.HOLD, **e.variables(6))
    containerd.kill()
    assert set(e.directories()) == {sliced}
    containerd.start()
    d.until(cri.serves, "CRI has found its pods again")
    assert e.Running(cri, sliced).total_bytes() == d.total_mib() * 6 // 15 * d.MIB
    cri.stop(sliced)
    d.until(lambda: not e.directories(), "the slice is gone")
