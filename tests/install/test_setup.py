# SPDX-License-Identifier: MIT
"""Requirements of the targets for a GPU host: packages by name, none removed, and none without apt."""

from __future__ import annotations

import re
import subprocess
from collections.abc import Iterator

import pytest
from box import REPO, Box

#: Stand-ins: apt-get logs its arguments, dpkg-query finds no package.
STAND_INS = """
printf '#!/bin/sh\\necho "$@" >>/tmp/asked\\n' >/usr/bin/apt-get
printf '#!/bin/sh\\nexit 1\\n' >/usr/bin/dpkg-query
chmod 755 /usr/bin/apt-get /usr/bin/dpkg-query
"""
NO_APT = "rm -f /usr/bin/apt-get /usr/bin/dpkg-query"


@pytest.fixture
def box() -> Iterator[Box]:
    with Box() as box:
        yield box


@pytest.mark.parametrize(
    ("target", "wanted"),
    [
        ("wheel", ["install"]),
        ("install", ["install"]),
        ("deb", ["deb", "install"]),
        ("node-image", ["image", "install"]),
        ("sysext", ["image", "install"]),
        ("modules-image", ["image"]),
    ],
)
def test_a_target_of_the_page_sets_up_no_more_than_it_needs(target: str, wanted: list[str]) -> None:
    told = subprocess.run(["make", "-n", target], cwd=REPO, capture_output=True, text=True, check=True).stdout
    verbs = re.findall(r"^scripts/setup ?(\S*)$", told, re.MULTILINE)
    assert verbs == wanted


@pytest.mark.parametrize("verb", ["install", "deb", "image", ""])
def test_apt_may_take_no_package_away(box: Box, verb: str) -> None:
    box.must(STAND_INS)
    box.must(f"scripts/setup {verb}")
    asked = [line.split() for line in box.must("cat /tmp/asked").splitlines()]
    installs = [words for words in asked if words[0] == "install"]
    assert installs and all("--no-remove" in words for words in installs)
    named = {word for words in installs for word in words}
    assert {"build-essential", "musl-tools", "python3-venv"} <= named
    assert ("debhelper" in named) is (verb == "deb")
    assert ({"patchelf", "kmod", "openssl"} <= named) is (verb == "image")
    assert bool({"docker.io", "podman", "containerd", "runc", "qemu-system-x86"} & named) is (verb == "")


def test_without_apt_it_goes_on(box: Box) -> None:
    box.must(NO_APT)
    assert box.must("scripts/setup install") == ""
    for verb, why in (("deb", "packages are made on Debian"), ("", "the tests need a Debian 12")):
        done = box.run(f"scripts/setup {verb}")
        assert done.returncode == 1
        assert done.stdout.startswith(f"setup: {why}, and there is no apt here") and done.stdout.count("\n") == 1


def test_without_apt_it_names_what_is_missing(box: Box) -> None:
    box.must(NO_APT)
    box.must("rm -f /usr/bin/rsync /usr/bin/musl-gcc && ln -sf /bin/false /usr/bin/cc")
    done = box.run("scripts/setup install")
    assert done.returncode == 1
    compiler = "a C compiler that links statically (musl-gcc, or cc with a static libc)"
    assert done.stdout == f"setup: this is not there: rsync, {compiler}\n"
    box.must("rm -f /usr/bin/patchelf /usr/sbin/depmod /usr/bin/openssl")
    done = box.run("scripts/setup image")
    assert done.returncode == 1
    assert done.stdout == f"setup: this is not there: rsync, patchelf, depmod, openssl, {compiler}\n"


def test_an_old_python_is_named(box: Box) -> None:
    box.must("rm /usr/bin/python3 && printf '#!/bin/sh\\nexit 1\\n' >/usr/bin/python3 && chmod 755 /usr/bin/python3")
    done = box.run("scripts/setup install")
    assert done.returncode == 1
    assert done.stdout == (
        "setup: this is not there: /usr/bin/python3 of 3.10 or later with venv"
        " (SYSTEM_PYTHON=/usr/bin/python3.11 names another one)\n"
    )


def test_engines_that_were_set_up_by_hand_are_named(box: Box) -> None:
    """Without the program a container does not start, or starts without its limit; `cgpu setup` knows of neither."""
    files = {
        "/etc/docker/daemon.json": '{"runtimes": {"nvidia": {"path": "/usr/bin/cgpu-runtime"}}}',
        "/etc/crio/crio.conf.d/10-cgpu": 'runtime_path = "/usr/bin/cgpu-runtime"',
        "/etc/nvidia-container-runtime/config.toml": 'runtimes = ["/usr/bin/cgpu-runtime", "runc", "crun"]',
        "/etc/containers/containers.conf": "# nothing of ours",
    }
    for path, text in files.items():
        box.must(f'mkdir -p {path.rpartition("/")[0]} && printf %s "$text" >{path}', text=text)
    said = box.must("sh scripts/undo-engines").splitlines()
    assert [line.split()[1] for line in said] == list(files)[:3]
    assert all("still names cgpu-runtime" in line for line in said)
    assert "does not start then" in said[0] and "without a slice" in said[2]
    assert all(box.must(f"cat {path}") == text for path, text in files.items())
