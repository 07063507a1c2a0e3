# SPDX-License-Identifier: MIT
"""The Debian packages on a throw-away Debian: installed, used, met by a new kernel, purged. The order matters."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from box import KERNELS, QUICK, QUICK_WITHOUT_BTF, REPO, Box

VERSION = (REPO / "VERSION").read_text().strip()
CORE = f"cgpu_core_{VERSION.replace('.', '_')}"
DEBS = " ".join(str(path) for path in sorted((REPO / "build/deb").glob(f"cgpu*_{VERSION}_*.deb")))

#: A revision of 6.1 that an update brings.
LATER = "6.1.0-99-amd64"

#: What cgpu_cli/top.py imports of it.
DRAWING = "\n".join(
    line.strip() for line in (REPO / "cli/top.py").read_text().splitlines() if line.strip().startswith("from rich")
)


class Installed:
    """The box with the packages in it, and its content before."""

    def __init__(self, box: Box) -> None:
        self.box = box
        self.release = box.add_kernel("6.1")
        # Otherwise DKMS builds for the kernel that runs, which is this machine's.
        box.must("echo autoinstall_all_kernels=1 >/etc/dkms/framework.conf.d/all.conf")
        self.before = box.tree()
        self.said = box.must(f"dpkg -i {DEBS}", KCFLAGS=QUICK)


@pytest.fixture(scope="module")
def on() -> Iterator[Installed]:
    with Box() as box:
        yield Installed(box)


def test_lintian_finds_nothing() -> None:
    """Errors and warnings; overrides have their reasons in debian/."""
    with Box() as box:
        box.must(f"lintian --allow-root --fail-on error,warning build/deb/cgpu_{VERSION}_amd64.changes")


def test_both_modules_are_built_and_signed(on: Installed) -> None:
    assert on.box.must(f"dkms status cgpu/{VERSION}").splitlines() == [
        f"cgpu/{VERSION}, {on.release}, x86_64: installed"
    ]
    for module in ("cgpu_km", CORE):
        assert on.box.must(f"modinfo -k {on.release} -F version {module}").strip() == VERSION
        assert on.box.must(f"modinfo -k {on.release} -F signer {module}").strip() == "DKMS module signing key"


def test_loading_the_shell_loads_the_core(on: Installed) -> None:
    """cgpu_km decides nothing without it, and nothing in it needs the core's symbols."""
    order = on.box.must(f"modprobe -S {on.release} --show-depends --ignore-install {CORE}").split()
    assert [Path(word).name for word in order if word.endswith(".ko")] == ["cgpu_km.ko", f"{CORE}.ko"]
    rule = on.box.must(f"grep '^softdep cgpu_km ' /lib/modules/{on.release}/modules.softdep").strip()
    assert rule == f"softdep cgpu_km pre: nvidia nvidia-uvm post: {CORE}"
    # A rule in modprobe.d takes the place of the module's own.
    assert on.box.run("grep -rhE '^softdep +cgpu_km' /etc/modprobe.d /lib/modprobe.d").stdout == ""


def test_the_programs_run_on_what_they_brought(on: Installed) -> None:
    assert on.box.must("cgpu --version").strip() == f"cgpu {VERSION}"
    assert on.box.must("cgpu-smi --version").strip() == f"cgpu-smi {VERSION}"
    assert "GPU by GPU" in on.box.must("kubectl-inspect-cgpu --help")
    assert on.box.must("cgpud --check") == ""
    assert on.box.run("cgpu-smi").returncode == 3, "no module: exit 3"
    inside = (
        'import sys; sys.path.insert(0, "/usr/lib/cgpu"); import cgpud.__main__, cgpu_common.netlink, cgpud.inventory; '
    )
    names = '("click", "msgspec", "pyroute2", "pynvml", "structlog", "prometheus_client")'
    told = on.box.must(
        f"""python3 -I -c '{inside}print(*(sys.modules[n].__file__ for n in {names} if n in sys.modules))'"""
    )
    assert len(told.split()) >= 5
    assert not [path for path in told.split() if not path.startswith("/usr/lib/cgpu/")]
    # rich draws cgpu-smi top without the parts that scripts/build-wheels leaves out.
    live = 'Live(Text("one"), console=Console(force_terminal=True), screen=True, auto_refresh=False)'
    draw = f'with {live} as live: live.update(Text("two"), refresh=True)'
    script = f'import sys; sys.path.insert(0, "/usr/lib/cgpu")\n{DRAWING}\n{draw}\n'
    assert "two" in on.box.must('python3 -I -c "$script"', script=script)
    on.box.must("test ! -e /usr/lib/cgpu/pygments")
    on.box.must("ldd /usr/bin/cgpu-runtime 2>&1 | grep -q 'not a dynamic executable'")
    assert "runc" in on.box.must("cgpu-runtime --version"), "it becomes the runtime behind it"


def test_the_simulator_has_its_sources(on: Installed) -> None:
    told = on.box.must(
        "cgpu simulate --json --policy weighted --container name=a,weight=2 --container name=b", CGPU_CACHE="/tmp/c"
    )
    assert '"a"' in told


def test_completion_answers(on: Installed) -> None:
    script = "source /usr/share/bash-completion/completions/cgpu; COMP_WORDS=(cgpu stat) COMP_CWORD=1; "
    assert on.box.must(f"bash -c '{script} _cgpu_completion cgpu; echo \"${{COMPREPLY[@]}}\"'").strip() == "stats"


@pytest.mark.parametrize("page", ["cgpu.1", "cgpu-smi.1", "cgpu.toml.5", "cgpud.8", "cgpu-runtime.8"])
def test_manual_pages_are_well_formed(on: Installed, page: str) -> None:
    name, _, section = page.rpartition(".")
    path = f"/usr/share/man/man{section}/{page}.gz"
    assert on.box.must(f"man --warnings -E UTF-8 -l -Tutf8 -Z {path} 2>&1 >/dev/null") == ""
    assert name in on.box.must(f"man -l {path}")


def test_the_service_is_enabled(on: Installed) -> None:
    link = on.box.must("readlink /etc/systemd/system/multi-user.target.wants/cgpud.service").strip()
    assert link == "/lib/systemd/system/cgpud.service"
    for path in ("/usr/bin/cgpud", "/usr/bin/cgpu-runtime", "/etc/cgpu/cgpu.toml", "/usr/lib/tmpfiles.d/cgpu.conf"):
        on.box.must(f"test -s {path}")


@pytest.mark.parametrize(
    ("kernel", "name"), [("6.1", LATER), pytest.param("6.12", KERNELS["6.12"], marks=pytest.mark.more)]
)
def test_a_new_kernel_gets_its_modules(on: Installed, kernel: str, name: str) -> None:
    """By the hook that Debian's kernel packages run. What gcc makes for a later revision of 6.1, ccache has."""
    release = on.box.add_kernel(kernel, name)
    quick = {"KCFLAGS": QUICK} if kernel == "6.1" else QUICK_WITHOUT_BTF
    on.box.must(f"/etc/kernel/postinst.d/dkms {release}", **quick)
    assert f"cgpu/{VERSION}, {release}, x86_64: installed" in on.box.must("dkms status")
    assert on.box.must(f"modinfo -k {release} -F version cgpu_km").strip() == VERSION


def test_a_kernel_before_5_10_gets_none(on: Installed) -> None:
    """77 is DKMS's status for it. Debian 12's own `autoinstall` does not support it yet and reports a failure."""
    old = "5.4.0-190-generic"
    on.box.must(f"mkdir /lib/modules/{old} && ln -s $PWD/build/kernels/6.1/build /lib/modules/{old}/build")
    done = on.box.run(f"dkms build cgpu/{VERSION} -k {old}")
    assert done.returncode == 77, done.stdout
    assert "BUILD_EXCLUSIVE" in done.stdout
    assert old not in on.box.must("dkms status")
    on.box.must(f"rm -r /lib/modules/{old}")


def test_purge_leaves_nothing(on: Installed) -> None:
    """Not even where a configuration was changed: that is what purge means. `remove` keeps it."""
    on.box.must("echo 'lease_s = 60' >/etc/cgpu/cgpu.toml")
    on.box.must("cgpu setup podman")
    on.box.must("dpkg --remove cgpu cgpu-dkms && test -s /etc/cgpu/cgpu.toml")
    on.box.must("dpkg --purge cgpu cgpu-dkms")
    others = tuple(f"lib/modules/{release}" for release in (LATER, KERNELS["6.12"]))  # they came later
    after = {path: what for path, what in on.box.tree().items() if not path.startswith(others)}
    assert {path: what for path, what in after.items() if on.before.get(path) != what} == {}
    assert set(on.before) == set(after)
    assert on.box.must("find /lib/modules -name '*cgpu*' -o -name dkms") == ""
