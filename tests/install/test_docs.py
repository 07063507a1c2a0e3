# SPDX-License-Identifier: MIT
"""docs/user/install.md: its marked blocks run, in a throw-away root; docs/user/support.md agrees with the code."""

from __future__ import annotations

import re

import pytest
from blocks import BadMark, marked, unmarked
from box import QUICK, REPO, Box

INSTALL = (REPO / "docs/user/install.md").read_text()
UPGRADE = (REPO / "docs/user/upgrade.md").read_text()
SUPPORT = (REPO / "docs/user/support.md").read_text()

#: Blocks of docs/user/install.md that no test runs, by their first command, and why.
NOT_RUN = {
    "make demo": "ten minutes of a virtual machine, which may not be in one: it is a program for people",
    'modinfo -F license nvidia        # "Dual MIT/GPL": open; "NVIDIA": proprietary': "needs NVIDIA's driver",
    "apt install dkms linux-headers-$(uname -r)": "needs the archive; the box has them already",
    "mokutil --sb-state": "needs firmware with Secure Boot, and a person at the next boot",
    (
        "dnf install epel-release dnf-plugins-core                "
        "# RHEL itself: EPEL by its URL, and codeready-builder for crb"
    ): "needs EL 9",
    "systemctl daemon-reload": "needs systemd as process 1, where the packages are (test_systemd.py)",
}

#: DKMS builds for the kernel of `uname -r` unless one is given.
RUNNING = """
mv /usr/bin/uname /usr/bin/uname.real
printf '#!/bin/sh\\n[ "$1" = -r ] && echo %s || exec uname.real "$@"\\n' "$release" >/usr/bin/uname
chmod 755 /usr/bin/uname
"""


def test_blocks_of_one_name_are_one_sequence() -> None:
    a, b = "<!-- tested: a -->\n```\n", "<!-- tested: b -->\n```sh\n"
    page = f"```\nno\n```\n{a}one\n\ntwo # why\n```\ntext\n{b}three\n```\n{a}four\n```\n"
    assert marked(page) == {"a": ["one", "two # why", "four"], "b": ["three"]}


@pytest.mark.parametrize(
    ("page", "why"),
    [
        ("<!-- tested: a -->\ntext\n", "no block of code"),
        ("<!-- tested: a -->", "no block of code"),
        ("<!-- tested: a -->\n```\none\n", "no end"),
        ("<!-- tested: a b -->\n```\none\n```\n", "no name"),
        ("<!-- tested: -->\n```\none\n```\n", "no name"),
    ],
)
def test_a_mark_without_a_block_is_an_error(page: str, why: str) -> None:
    with pytest.raises(BadMark, match=why):
        marked(page)


def test_blocks_without_a_mark_are_found() -> None:
    page = "<!-- tested: a -->\n```\none\n```\ntext\n```\ntwo\nthree\n```\n- four:\n\n  ```sh\n  five\n  ```\n"
    assert unmarked(page + "```\nsix\n```\n") == ["two", "five", "six"]
    assert unmarked("```\nseven\n```\n") == ["seven"], "the first line of the page"


@pytest.mark.parametrize("name", ["packages", "prefix"])
def test_the_commands_of_the_page_run_and_leave_nothing(name: str) -> None:
    """The packages find no kernel with headers here: nothing is compiled; test_deb.py does that."""
    with Box() as box:
        if name == "prefix":
            box.must(RUNNING, release=box.add_kernel("6.1"))
        before = box.tree()
        for command in marked(INSTALL)[name]:
            box.must(command, KCFLAGS=QUICK)
        after = {path: what for path, what in box.tree().items() if what != "directory"}
        assert {path: what for path, what in after.items() if before.get(path) != what} == {}


def test_every_mark_is_somebodys() -> None:
    """Blocks that need the module run in a virtual machine: test_systemd_update.py, test_uninstall.py."""
    assert set(marked(INSTALL)) == {"packages", "prefix", "loaded", "again", "unloaded"}
    assert set(marked(UPGRADE)) == {"hot", "cold", "drain"}


def test_a_block_is_marked_or_cannot_be_run() -> None:
    assert unmarked(INSTALL) == list(NOT_RUN)


def test_no_module_is_unloaded_with_its_dependencies() -> None:
    """modprobe -r cgpu_km takes an unused driver along, and does not find a core that an update has replaced."""
    for commands in marked(INSTALL).values():
        assert not [command for command in commands if "modprobe -r" in command]


def test_every_target_it_names_exists() -> None:
    makefile = (REPO / "Makefile").read_text()
    for target in set(re.findall(r"(?:^|`)make ([a-z-]+)", INSTALL + SUPPORT, re.MULTILINE)):
        assert re.search(rf"^{target}:", makefile, re.MULTILINE), f"make {target}"


def test_the_least_kernel_is_the_same_everywhere() -> None:
    conf = (REPO / "dkms.conf").read_text()
    least = re.search(r'BUILD_EXCLUSIVE_KERNEL_MIN="(.*)"', conf)
    assert least
    assert f"Supported: {least[1]} " in (REPO / "cgpu_km/compat.h").read_text()
    for page in (INSTALL, SUPPORT):
        assert f"{least[1]} or later" in page


def test_the_branches_are_those_of_the_call_table() -> None:
    table = (REPO / "cgpu_km/core/nv_branch.c").read_text()
    numbers = re.search(r"cgpu_branches\[\] = \{([^}]*)\}", table)
    assert numbers
    branches = re.findall(r"\d+", numbers[1])
    for page in (INSTALL, SUPPORT):
        assert f"branch from {branches[0]} on that [abi.md](../reference/abi.md" in page
