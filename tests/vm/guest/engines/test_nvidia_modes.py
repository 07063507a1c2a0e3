# SPDX-License-Identifier: MIT
"""cgpu-runtime below NVIDIA's: whatever a mode writes into config.json, a sliced container gets its slice only.

NVIDIA's programs are stand-ins (nvidia_standin.py): they are not in Debian's archive.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import docker_box as d
import engine_box as e
import pytest
from engine_box import ByHand, Podman, started, variables

pytestmark = pytest.mark.engines

HOME = e.ROOT / "nvidia"
RUNTIME = HOME / "nvidia-container-runtime"
CLI_OF_OURS = HOME / "nvidia-container-cli-cgpu"
HOOK_CONFIG = HOME / "hook.toml"
SOURCE = Path(__file__).parents[1] / "box/nvidia_standin.py"
GPU = {"NVIDIA_VISIBLE_DEVICES": "all"}


@pytest.fixture(scope="module", autouse=True)
def toolkit() -> None:
    e.make_rootfs()
    HOME.mkdir(parents=True, exist_ok=True)
    for name in ("nvidia-container-runtime", "nvidia-container-runtime-hook", "nvidia-container-cli"):
        (HOME / name).write_text(SOURCE.read_text())
        (HOME / name).chmod(0o755)
    CLI_OF_OURS.symlink_to(d.RUNTIME)
    HOOK_CONFIG.write_text(f'[nvidia-container-cli]\npath = "{CLI_OF_OURS}"\nno-cgroups = true\n')


@pytest.fixture(autouse=True)
def handed_over() -> Iterator[None]:
    with e.hands_over_to("runc"):
        e.CONF.write_text(e.CONF.read_text() + f"nvidia-container-cli = {HOME / 'nvidia-container-cli'}\n")
        yield
        d.until(e.nothing_is_left, "nothing is left of the container")


def use(mode: str, runtimes: tuple[str, ...] = (str(d.RUNTIME), "/usr/sbin/runc")) -> ByHand:
    (HOME / "nvidia.json").write_text(json.dumps({"mode": mode, "runtimes": runtimes}))
    (HOME / "nvidia.log").write_text("")
    return ByHand(f"nvidia-{mode}", str(RUNTIME))


@pytest.fixture
def tamed_hook() -> Iterator[None]:
    """As in docs/user/daemon.md for the legacy mode."""
    with e.configured(f'legacy_hook_config = "{HOOK_CONFIG}"\n'):
        yield


@pytest.mark.parametrize("mode", ["cdi", pytest.param("jit-cdi", marks=pytest.mark.more)])
def test_nodes_and_rules_in_the_file(mode: str) -> None:
    with started(use(mode), variables(6) | GPU) as one:
        one.check_slice(6)
        assert one.sh("cat /lib/libcuda.so.1").stdout == "not a library\n", "the driver's files are there"


@pytest.mark.parametrize("mode", ["cdi", pytest.param("jit-cdi", marks=pytest.mark.more), "legacy"])
def test_a_whole_gpu_stays_whole(mode: str) -> None:
    """Without the variables the changes of NVIDIA's runtime are kept; this also proves that the stand-in makes them."""
    with started(use(mode), GPU) as one:
        assert "cgpu" not in one.nodes_come_from()
        assert not e.directories()
        assert mode == "legacy" or one.reaches_the_driver()


def test_legacy_is_refused_as_it_is() -> None:
    done, one = use("legacy").start(variables(6) | GPU, e.SLEEP)
    assert done.returncode != 0
    assert "legacy_hook_config in cgpu.toml" in done.stderr
    assert one.bundle


def test_legacy_with_its_hook_pointed_elsewhere(tamed_hook: None) -> None:
    with started(use("legacy"), variables(6) | GPU) as one:
        (asked,) = (HOME / "nvidia.log").read_text().splitlines()
        assert {"--no-devbind", "--no-cgroups"} <= set(asked.split())
        one.check_slice(6)


def test_variables_without_the_toolkits_own() -> None:
    """An image that does not set NVIDIA_VISIBLE_DEVICES: NVIDIA's runtime does nothing, the slice is there."""
    with started(use("jit-cdi"), variables(6)) as one:
        one.check_slice(6)


@pytest.mark.more
def test_under_podman() -> None:
    use("jit-cdi")
    podman = Podman()
    podman.words[podman.words.index(str(d.RUNTIME))] = str(RUNTIME)
    with started(podman, variables(6) | GPU) as one:
        one.check_slice(6)
