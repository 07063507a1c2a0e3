# SPDX-License-Identifier: MIT
"""What users type for a whole GPU, `--device nvidia.com/gpu=all` and podman's `--gpus all`, and a pod's CDI device.

With the documented variables that is a slice and nothing beside it; without them a whole GPU, or a sentence where the
administrator refuses those.
"""

from __future__ import annotations

from collections.abc import Iterator

import cdi_spec
import docker_box as d
import engine_box as e
import engines_used
import grpc
import pytest
from cri import Cri
from engine_box import Podman, Running, started, variables

pytestmark = pytest.mark.engines

POD = "cdi"
REFUSE = '[gpu]\nunsliced = "refuse"\n'
ASKED = {"device": ("--device=nvidia.com/gpu=all",), "gpus": ("--gpus=all",)}


@pytest.fixture(scope="module", autouse=True)
def parts() -> None:
    e.make_rootfs()
    cdi_spec.lay()


@pytest.fixture(autouse=True)
def handed_over() -> Iterator[None]:
    d.ensure_daemon()
    with e.hands_over_to("crun"):
        e.CONF.write_text(e.CONF.read_text() + "ask = always\n")
        yield
        d.until(e.nothing_is_left, "nothing is left of the container")


def older(engine: str, *than: int) -> bool:
    """Whether the engine of this machine has a lower version."""
    words = engines_used.version(engine).split(".")[: len(than)]
    return tuple(int(word) for word in words) < than


def was_edited(one: Running) -> bool:
    """Whether the engine made the changes of the specification; process 1 of a pod is the pause container."""
    return "CDI_WAS_HERE=1" in one.sh("cat /proc/1/environ /proc/self/environ").stdout.split("\0")


def gives(asked: str) -> bool:
    """podman 4 has `--gpus` for scripts that were written for Docker, and ignores it."""
    return asked == "device" or not older("podman", 5)


@pytest.mark.parametrize("asked", ASKED)
def test_podman_with_the_variables(asked: str) -> None:
    with started(Podman(), variables(6), e.SLEEP, *ASKED[asked]) as one:
        assert was_edited(one) == gives(asked)
        one.check_slice(6)


@pytest.mark.parametrize("asked", ASKED)
def test_podman_without_them(asked: str) -> None:
    """The whole GPU shows that the specification gives one, which the test above has found nothing of."""
    with started(Podman(), {}, e.SLEEP, *ASKED[asked]) as one:
        assert not one.is_sliced()
        assert one.reaches_the_driver() == gives(asked)
    with e.configured(REFUSE):
        done, two = Podman().start({}, e.SLEEP, *ASKED[asked])
        Podman().remove(two.id)
        assert (done.returncode != 0) == gives(asked)
        assert ("GPU 0" in done.stderr) == gives(asked), done.stderr


# ---- a pod ----


@pytest.fixture
def pod(cri: Cri) -> Iterator[str]:
    with cri.pod(POD, "nvidia") as found:
        yield found


def pods_have_cdi() -> bool:
    """An older containerd passes over the devices' names."""
    return not older("containerd", 1, 7)


def test_a_pod_with_a_cdi_device(cri: Cri, pod: str) -> None:
    """As a kubelet sends it for a device plugin or a claim that answers with CDI names."""
    sliced = cri.create(pod, POD, "sliced", e.IMAGE, e.SLEEP, variables(6), cdi=("nvidia.com/gpu=all",))
    cri.start(sliced)
    one = Running(cri, sliced)
    assert was_edited(one) == pods_have_cdi()
    one.check_slice(6)
    cri.stop(sliced)
    whole = cri.create(pod, POD, "whole", e.IMAGE, e.SLEEP, {}, cdi=("nvidia.com/gpu=0",))
    cri.start(whole)
    assert Running(cri, whole).reaches_the_driver() == pods_have_cdi()
    cri.stop(whole)


def test_a_pod_where_whole_gpus_are_refused(cri: Cri, pod: str) -> None:
    with e.configured(REFUSE):
        whole = cri.create(pod, POD, "refused", e.IMAGE, e.SLEEP, {}, cdi=("nvidia.com/gpu=0",))
        if pods_have_cdi():
            with pytest.raises(grpc.RpcError) as refused:
                cri.start(whole)
            assert "GPU 0" in str(refused.value)
        sliced = cri.create(pod, POD, "allowed", e.IMAGE, e.SLEEP, variables(6), cdi=("nvidia.com/gpu=0",))
        cri.start(sliced)
        Running(cri, sliced).check_slice(6)
        cri.stop(sliced)
