# SPDX-License-Identifier: MIT
"""What Docker's users type for a whole GPU: `--gpus all`, `--device nvidia.com/gpu=all`, and Compose's
`deploy.resources.reservations.devices`. With the documented variables a slice and nothing beside it, or one sentence.

For `--gpus` Docker adds NVIDIA's legacy prestart hook, which it looks for when it starts. It is a stand-in here.
"""

from __future__ import annotations

import functools
import json
import os
import re
import shutil
from collections.abc import Iterator
from pathlib import Path

import cdi_spec
import docker_box as d
import engine_box as e
import engines_used
import pytest
from engine_box import Docker, Running, started, variables

pytestmark = pytest.mark.docker

HOME = Path("/run/toolkit")
STANDIN = Path(__file__).parents[1] / "box/nvidia_standin.py"
OURS = HOME / "nvidia-container-cli-cgpu"
HOOK_CONFIG = HOME / "hook.toml"
TAMED = f'legacy_hook_config = "{HOOK_CONFIG}"\n'
REFUSE = '[gpu]\nunsliced = "refuse"\n'
GPUS = ("--gpus", "all")
CDI = ("--device", "nvidia.com/gpu=all")
SENTENCE = "NVIDIA's legacy prestart hook would mount the whole GPU: start the container without --gpus"


@pytest.fixture(scope="module", autouse=True)
def engine() -> None:
    """Docker with NVIDIA's hook in its PATH, and with CDI, which it has since 25 and which is on since 28.3."""
    HOME.mkdir(parents=True, exist_ok=True)
    for name in ("nvidia-container-runtime-hook", "nvidia-container-cli"):
        (HOME / name).write_text(STANDIN.read_text())
        (HOME / name).chmod(0o755)
    OURS.unlink(missing_ok=True)
    OURS.symlink_to(d.RUNTIME)
    (HOME / "nvidia.json").write_text('{"mode": "legacy", "runtimes": []}')
    HOOK_CONFIG.write_text(f'[nvidia-container-cli]\npath = "{OURS}"\nno-cgroups = true\n')
    cdi_spec.lay()
    d.ensure_runtime()
    d.make_image()
    if has_cdi():
        d.settings(features={"cdi": True})
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PATH", f"{HOME}:{os.environ['PATH']}")
        d.restart_dockerd()  # the tests behind these ask for no GPU by --gpus, and so do not meet the hook


@pytest.fixture(autouse=True)
def handed_over() -> Iterator[None]:
    d.ensure_daemon()
    (HOME / "nvidia.log").write_text("")
    with e.hands_over_to("runc"):
        settings = f"ask = always\nnvidia-container-cli = {HOME / 'nvidia-container-cli'}\n"
        e.CONF.write_text(e.CONF.read_text() + settings)
        yield
        d.until(e.nothing_is_left, "nothing is left of the container")


def has_cdi() -> bool:
    return int(engines_used.version("docker").split(".")[0]) >= 25


def refusal(env: dict[str, str], *options: str) -> str:
    """The sentence of a container that did not start."""
    done, one = Docker().start(env, e.SLEEP, *options)
    Docker().remove(one.id)
    assert done.returncode == d.REFUSED, done.stdout
    assert not e.directories()
    assert "Traceback" not in done.stderr
    return done.stderr


def test_gpus_all_is_refused_beside_a_slice() -> None:
    assert SENTENCE in refusal(variables(6), *GPUS)
    assert not (HOME / "nvidia.log").read_text(), "NVIDIA's program has not run"


def test_gpus_all_is_a_slice_with_the_hook_pointed_elsewhere() -> None:
    with e.configured(TAMED), started(Docker(), variables(6), e.SLEEP, *GPUS) as one:
        (said,) = (HOME / "nvidia.log").read_text().splitlines()
        assert {"--no-devbind", "--no-cgroups"} <= set(said.split())
        one.check_slice(6)


def test_gpus_all_without_the_variables() -> None:
    """A whole GPU, which the stand-in gives, or none where the administrator refuses it."""
    with started(Docker(), {}, e.SLEEP, *GPUS) as one:
        assert not one.is_sliced()
        assert "--no-devbind" not in (HOME / "nvidia.log").read_text()
        assert one.sh("ls /dev/nvidia0").returncode == 0
    with e.configured(REFUSE):
        assert "GPU 0" in refusal({}, *GPUS)


def test_a_cdi_device() -> None:
    if not has_cdi():
        assert "nvidia.com/gpu=all" in refusal(variables(6), *CDI), "a path to Docker before 25"
        return
    with started(Docker(), variables(6), e.SLEEP, *CDI) as one:
        assert "CDI_WAS_HERE=1" in one.sh("cat /proc/1/environ").stdout.split("\0")
        one.check_slice(6)
    with started(Docker(), {}, e.SLEEP, *CDI) as one:
        assert one.nodes_come_from() == {"made"}
        assert one.reaches_the_driver(), "what the test above has found nothing of"
    with e.configured(REFUSE):
        assert "GPU 0" in refusal({}, *CDI)


# ---- Compose ----

NVIDIA_DEVICE = {"driver": "nvidia", "count": "all", "capabilities": ["gpu"]}
CDI_DEVICE = {"driver": "cdi", "device_ids": ["nvidia.com/gpu=all"], "capabilities": ["gpu"]}


@functools.cache
def compose() -> tuple[str, ...]:
    """Version 2 is a plugin of Docker's command line, version 1 a program."""
    if d.call("docker", "compose", "version").returncode == 0:
        return ("docker", "compose")
    assert shutil.which("docker-compose"), "no Compose is installed"
    return ("docker-compose",)


class Composed:
    """A project of one service, in a file as docs.docker.com shows it."""

    def __init__(self, device: dict[str, object], env: dict[str, str]) -> None:
        service = {
            "image": d.IMAGE,
            "runtime": "nvidia",
            "network_mode": "none",
            "command": list(e.SLEEP),
            "cap_add": ["MKNOD"],
            "environment": env,
            "deploy": {"resources": {"reservations": {"devices": [device]}}},
        }
        self.file = HOME / "compose.yaml"
        self.file.write_text(json.dumps({"services": {"job": service}}))  # which is YAML

    def __enter__(self) -> Running:
        """Docker's own commands see to the rest: version 1 of Compose takes seconds to start."""
        engines_used.note("docker")
        self.done = d.call(*compose(), "--project-name", "cgpu", "--file", str(self.file), "up", "--detach")
        ours = ("--filter=label=com.docker.compose.project=cgpu", "--all", "--quiet", "--no-trunc")
        self.one = Running(Docker(), d.must("docker", "ps", *ours).strip())
        return self.one

    def __exit__(self, *why: object) -> None:
        Docker().remove(self.one.id)


@pytest.mark.more
def test_compose_with_devices_is_refused_beside_a_slice() -> None:
    project = Composed(NVIDIA_DEVICE, variables(6))
    with project:
        assert project.done.returncode != 0, project.done.stdout
        assert SENTENCE in re.sub(r"\s+", " ", project.done.stderr)
        assert not e.directories()


def test_compose_with_devices_is_a_slice_with_the_hook_pointed_elsewhere() -> None:
    with e.configured(TAMED):
        project = Composed(NVIDIA_DEVICE, variables(6))
        with project as one:
            assert project.done.returncode == 0, project.done.stderr
            one.check_slice(6)


@pytest.mark.more
def test_compose_with_a_cdi_device() -> None:
    project = Composed(CDI_DEVICE, variables(6))
    with project as one:
        if not has_cdi():
            assert project.done.returncode != 0 and "cdi" in project.done.stderr, "no driver of Docker before 25"
            return
        assert project.done.returncode == 0, project.done.stderr
        assert "CDI_WAS_HERE=1" in one.sh("cat /proc/1/environ").stdout.split("\0")
        one.check_slice(6)
