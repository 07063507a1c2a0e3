# SPDX-License-Identifier: MIT
"""The tests of tests/cluster with cgpu_km and the simulated driver, and what only the kernel can show."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from pathlib import Path

import docker_box as d
import pytest

pytest.register_assert_rewrite("cluster.scenarios", "cluster.stand")

from cluster import stand as s  # noqa: E402
from cluster.scenarios import run_readme  # noqa: E402
from cluster.stand import Stand, container, pod  # noqa: E402

pytestmark = pytest.mark.kube


@pytest.fixture(scope="session")
def stand() -> Iterator[Stand]:
    files = {"bin/busybox": Path("/bin/busybox"), "bin/simload": d.find_simload()}
    with Stand(Path(os.environ["CGPU_RUN"]), fake=False, files=files, seconds=240) as found:
        yield found


def test_the_limit_holds_in_a_pod(stand: Stand) -> None:
    """A program sees its slice as the card, gets what is in it, and no byte more."""
    body = pod("holder", container("main", "/bin/simload", "--hold", "--alloc-mib", "1024", "--seconds", "0", gib=3))
    found = stand.run(body)
    assert stand.check(found) == 0
    id_ = s.container_ids(found)["main"]
    limit = s.expected_bytes(0, 3)
    inside = ("task", "exec", "--exec-id", "probe")
    said = stand.ctr(*inside, id_, "/bin/simload", "--info", "--json")
    assert json.loads(said.splitlines()[-1])["total_bytes"] == limit
    done = d.call(
        *("ctr", "--address", str(stand.cluster.containerd_socket), "--namespace=k8s.io", *inside, id_),
        *("/bin/simload", "--no-context", "--seconds", "1", "--alloc-mib", str(limit // d.MIB - 1024)),
    )
    assert done.returncode == d.OVER_LIMIT, done


@pytest.mark.more
def test_share_mode_limits_nothing(stand: Stand) -> None:
    """The user guide's manifest on a node labelled `share`: the real nodes of one GPU, and all of its memory."""
    with stand.in_mode("share"):
        found = run_readme(stand)
        assert s.given_gpus(found) == {"binpack-1": 0}
        (id_,) = s.container_ids(found).values()
        said = stand.ctr("task", "exec", "--exec-id", "look", id_, "/bin/simload", "--info", "--json")
        assert json.loads(said.splitlines()[-1])["total_bytes"] == s.GPU_MIB[0] * d.MIB
        env = stand.environment(id_)
        assert (env["CGPU_DISABLE"], env["ALIYUN_COM_GPU_MEM_CONTAINER"]) == ("true", "3")
        assert not stand.slices()


from cluster.scenarios import *  # noqa: F403, E402 # after those: a boot that is too slow for all has run them
