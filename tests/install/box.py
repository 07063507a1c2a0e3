# SPDX-License-Identifier: MIT
"""A throw-away copy of this machine's root to install things in.

An overlay in memory over `/`, in a mount namespace of its own: programs and the package database are those of this
machine, and all written files are gone when the box is closed. /lib/modules has the kernels that were added, which for
packaging are their headers and an empty list of modules.
"""

from __future__ import annotations

import hashlib
import os
import shlex
import stat
import subprocess
from pathlib import Path
from types import TracebackType

REPO = Path(__file__).resolve().parents[2]
KERNELS = {
    kernel: (REPO / "build/kernels" / kernel / "release").read_text().strip()
    for kernel in ("6.1", "6.12")
    if (REPO / "build/kernels" / kernel / "release").exists()
}

SETUP = """
set -e
top=$(mktemp -d /tmp/cgpu-box.XXXXXX)
mount -t tmpfs -o mode=755 box "$top"
mkdir "$top/upper" "$top/work" "$top/root"
mount -t overlay -o "lowerdir=$below,upperdir=$top/upper,workdir=$top/work" box "$top/root"
root=$top/root
mount --rbind /proc "$root/proc"
mount --rbind /dev "$root/dev"
mkdir -p "$root/lib/modules" # which a machine without a kernel of its own may lack
rm -f "$root/var/lib/man-db/auto-update" # no index of manual pages: half a package's time
rm -f "$root"/usr/lib/bfd-plugins/LLVM* # which nm would load for each object of a module, where clang is
for dir in tmp run lib/modules; do mount -t tmpfs -o mode=755 box "$root/$dir"; done
chmod 1777 "$root/tmp"
mkdir -p "$root$repo"
mount --rbind "$repo" "$root$repo"
echo "$top"
cat # until the box is closed
"""

ADD_KERNEL = """
mkdir -p "/lib/modules/$release"
cp "build/kernels/$kernel/lib/modules"/*/modules.{builtin,builtin.modinfo,order} "/lib/modules/$release/"
ln -s "$PWD/build/kernels/$kernel/build" "/lib/modules/$release/build"
depmod "$release" 2>/dev/null
"""

#: Databases and caches of the package manager and other tools: not ours, and they change with every package. DKMS's
#: signing key belongs to the machine. DKMS runs rpm where there is one, and rpm makes a database for root.
NOT_OURS = (
    "var/lib/dpkg",
    "var/log",
    "var/cache",
    "var/lib/dkms/mok.key",
    "var/lib/dkms/mok.pub",
    "etc/ld.so.cache",
    "root/.rpmdb",
    "var/lib/systemd/deb-systemd-helper-enabled",
    "var/lib/systemd/deb-systemd-user-helper-enabled",
)


#: DKMS compiles the same files for one kernel in several tests, and again in the next run: ccache has what gcc made of
#: the same command, sources and headers. Its folder is in the repository, which boxes share.
ENVIRONMENT = {
    "PATH": "/usr/lib/ccache:/usr/sbin:/usr/bin:/sbin:/bin",
    "CCACHE_DIR": str(REPO / "build/ccache"),
    "CCACHE_MAXSIZE": "300M",
    "CCACHE_NOCOMPRESS": "1",
    "CCACHE_DEPEND": "1",  # a file that is not there costs what gcc takes, by the headers that gcc names
    "LC_ALL": "C.UTF-8",
    "DEBIAN_FRONTEND": "noninteractive",
}

#: Of gcc, for DKMS's builds: a third of the time. That the sources compile with a kernel's own flags is shown by `make
#: modules`. One value for all builds for 6.1, so that ccache has the later ones. 6.12's build makes BTF of the tables
#: of the debugger, unless make's environment says otherwise.
QUICK = "-g0 -O1"
QUICK_WITHOUT_BTF = {"KCFLAGS": QUICK, "MAKEFLAGS": "CONFIG_DEBUG_INFO_BTF_MODULES="}

#: What an administrator enables by hand, and where each of them is wanted then.
BY_HAND = ("cgpu-kube.service", "cgpu-kube-keep.service", "cgpu-mps@GPU-1.service", "cgpu-mps@GPU-2.service")
WANTED = "/etc/systemd/system/multi-user.target.wants"
FIND_BY_HAND = "find /etc/systemd -name 'cgpu-kube*' -o -name 'cgpu-mps*'"
WITNESS = """#!/bin/sh
echo "$* $([ -e %s ] && echo there || echo gone)" >>/tmp/asked
case "$*" in *able*) SYSTEMD_OFFLINE=1 exec systemctl.real "$@" ;; esac
"""
#: The calls of systemctl then, before the files of the units go.
STOPPED_BY_HAND = {
    "--quiet disable cgpu-kube.service cgpu-kube-keep.service cgpu-mps@.service there",
    "stop cgpu-kube.service cgpu-kube-keep.service cgpu-mps@*.service there",
}


class Box:
    """A root file system to spoil. `with Box() as box: box.must("dpkg -i …")`. @over: a settled box, of which it is a
    copy, but for /tmp, /run and /lib/modules."""

    def __init__(self, over: Box | None = None) -> None:
        self._over = over

    def __enter__(self) -> Box:
        alone = ["unshare", "--mount"] if os.geteuid() == 0 else ["unshare", "--mount", "--user", "--map-root-user"]
        below = "/"
        if self._over:
            alone, below = [*self._over._entered(), "unshare", "--mount"], f"{self._over.top}/upper:/"
        self._holder = subprocess.Popen(
            [*alone, "bash", "-c", SETUP],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env={**os.environ, "repo": str(REPO), "below": below},
        )
        assert self._holder.stdout
        self.top = Path(self._holder.stdout.readline().strip())
        if not self.top.name:
            raise RuntimeError("no box: an overlay in a mount namespace is needed (root, or user namespaces)")
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        assert self._holder.stdin
        self._holder.stdin.close()
        self._holder.wait()
        self.top.rmdir()

    def _entered(self) -> list[str]:
        """The words before a command in the box's namespaces."""
        return [
            *("nsenter", f"--target={self._holder.pid}", "--mount"),
            *(() if os.geteuid() == 0 else ("--user", "--preserve-credentials")),
        ]

    def settle(self) -> None:
        """From now on it is only there for boxes over it: a layer of two mounts must not change."""
        subprocess.run([*self._entered(), "umount", "--recursive", f"{self.top}/root"], check=True)

    def run(self, command: str, **variables: str) -> subprocess.CompletedProcess[str]:
        """A shell command in the box, as root, in the repository."""
        words = " ".join(f"{name}={shlex.quote(value)}" for name, value in variables.items())
        inside = f"cd {shlex.quote(str(REPO))} && export {words} HOME=/root && {command}"
        return subprocess.run(
            [*self._entered(), "chroot", f"{self.top}/root", "bash", "-c", inside],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            env=ENVIRONMENT,
            timeout=600,
        )

    def must(self, command: str, **variables: str) -> str:
        """The same; its output. Anything but status 0 fails the test."""
        done = self.run(command, **variables)
        assert done.returncode == 0, f"{command}: status {done.returncode}\n{done.stdout}"
        return done.stdout

    def enable_by_hand(self) -> None:
        self.must(f"systemctl enable {' '.join(BY_HAND)}")
        self.must(" && ".join(f"test -L {WANTED}/{unit}" for unit in BY_HAND))

    def check_units_by_hand(self, unit: str, update: str, remove: str) -> None:
        """An update leaves the links of units that were enabled by hand, and what runs; a removal stops and disables
        them while @unit, one of their files, is there: the links would outlive the files."""
        self.enable_by_hand()
        enabled = self.must(FIND_BY_HAND)
        self.witness_systemctl(unit)
        self.must(update)
        assert self.must(FIND_BY_HAND) == enabled
        assert not STOPPED_BY_HAND & set(self.must("cat /tmp/asked").splitlines())
        self.must(remove)
        assert self.must(FIND_BY_HAND) == ""
        assert set(self.must("cat /tmp/asked").splitlines()) >= STOPPED_BY_HAND

    def witness_systemctl(self, unit: str) -> None:
        """From now on systemctl logs its arguments in /tmp/asked, and whether the file of @unit is there. It enables
        and disables, and starts and stops nothing: the box has no systemd."""
        self.must("mkdir -p /run/systemd/system && mv /usr/bin/systemctl /usr/bin/systemctl.real")
        self.must('printf %s "$script" >/usr/bin/systemctl && chmod 755 /usr/bin/systemctl', script=WITNESS % unit)

    def add_kernel(self, kernel: str, release: str = "") -> str:
        """A kernel of build/kernels with its headers, by its own name or as @release; its release."""
        release = release or KERNELS[kernel]
        self.must(ADD_KERNEL, kernel=kernel, release=release)
        return release

    def tree(self) -> dict[str, str]:
        """Every path that is missing or different on the machine itself, and all of /lib/modules, except NOT_OURS."""
        top = Path(f"/proc/{self._holder.pid}/root{self.top}")
        # A folder of the machine with a written file in it is in the overlay, too.
        found = {
            path: what
            for path, what in tree(top / "upper").items()
            if what != "directory" or not Path("/", path).exists()
        }
        found |= {f"lib/modules/{path}": what for path, what in tree(top / "root/lib/modules").items()}
        return {path: what for path, what in found.items() if not path.startswith(NOT_OURS)}


def tree(top: Path) -> dict[str, str]:
    """Paths below `top` with their state: mode and content of files, target of links."""
    found = {}
    for folder, folders, files in os.walk(top):
        for name in (*folders, *files):
            path = Path(folder, name)
            found[str(path.relative_to(top))] = describe(path)
    return found


def describe(path: Path) -> str:
    """The state of a path in one or two words."""
    about = path.lstat()
    if stat.S_ISLNK(about.st_mode):
        return f"link {path.readlink()}"
    if stat.S_ISDIR(about.st_mode):
        return "directory"
    if stat.S_ISREG(about.st_mode):
        return f"{stat.S_IMODE(about.st_mode):o} {hashlib.sha256(path.read_bytes()).hexdigest()}"
    return "other"
