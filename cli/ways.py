# SPDX-License-Identifier: MIT
"""The table of docs/user/start.md: what a node has, what holds there, what was tried, what to type. Pure.

Its branches, remedies and engines are those of cgpu doctor: a test compares the page with markdown(), so that page and
program cannot disagree.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from . import checks
from .branches import BRANCHES, LEAST_MINOR
from .checks import DRIVER_REMEDIES, KERNEL_LEAST, TOOLKIT_LEGACY_REMEDY
from .edit import TOOLKIT
from .engines import ELSEWHERE, ENGINES, OPERATOR_HINT
from .facts import PROBLEM, Facts

BEGIN, END = "<!-- begin: cli/ways.py -->\n", "<!-- end: cli/ways.py -->\n"
ALL = "memory limits and shares"
NONE = "nothing: no container with a slice starts"
DEB = "`make deb`, then `dpkg -i build/deb/cgpu-dkms_*_all.deb build/deb/cgpu_*_amd64.deb`"
RPM = "`make rpm SYSTEM_PYTHON=/usr/bin/python3.11`, then `dnf install ./build/rpm/*.rpm`"
INSTALL = "`make install PREFIX=/usr` ([install.md](install.md) §4)"
NEVER, SIMULATED = "by source only", "on a simulated card"
MANAGED = "managed nodes whose image loads no module of yours (GKE's COS, Bottlerocket)"
PROVIDERS = "managed nodes with the provider's Ubuntu or EL (GKE, AKS)"
INSTALLER = "the node installer ([kubernetes-node.md](kubernetes-node.md#the-node-installer))"
UBUNTUS = "5.15 and 6.8 built; the others by source only"
CARDS = ("T4", "A10", "A100", "L4", "L40", "H100", "H200")


@dataclass(frozen=True)
class Way:
    part: str
    have: str
    holds: str
    do: str
    tried: str = "–"


def _kernels() -> Iterator[Way]:
    least = ".".join(map(str, KERNEL_LEAST))
    yield Way("kernel", f"{least} or later, x86-64; Debian", ALL, DEB, "6.1 and 6.12; 5.10, 7.2 and 7.3 once")
    yield Way("kernel", f"{least} or later, x86-64; Ubuntu", ALL, INSTALL, UBUNTUS)
    yield Way("kernel", f"{least} or later, x86-64; EL 9 and its kin", ALL, f"{RPM}, or {INSTALL}", NEVER)
    yield Way(
        "kernel", "Secure Boot", ALL, "enrol DKMS's key first ([install.md](install.md) §3)", "lockdown set by hand"
    )
    yield Way("kernel", f"before {least}; arm64", NONE, "–")
    yield Way("kernel", MANAGED, NONE, "–")
    yield Way("kernel", PROVIDERS, ALL, INSTALLER, "the installer, on no provider's node")


DRIVERS_TRIED = f"{SIMULATED}: user space of 550 (535, 555: `make test-all`), kernel modules of 550; the others {NEVER}"


def _drivers() -> Iterator[Way]:
    early = ", ".join(f"{branch} before {branch}.{minor}" for branch, minor in LEAST_MINOR.items())
    yield Way("driver", f"open modules, {', '.join(map(str, BRANCHES))}", ALL, "nothing", DRIVERS_TRIED)
    yield Way("driver", f"open modules, {early}", NONE, DRIVER_REMEDIES["early"])
    yield Way("driver", "open modules, another branch", NONE, DRIVER_REMEDIES["branch"])
    yield Way("driver", "proprietary modules", NONE, DRIVER_REMEDIES["proprietary"])
    yield Way("driver", "not loaded", NONE, DRIVER_REMEDIES["none"])


def _cards() -> Iterator[Way]:
    yield Way(
        "card",
        f"Turing or later: {', '.join(CARDS)}",
        ALL,
        "nothing; [support.md](support.md)",
        f"T4, simulated; the others {NEVER}",
    )
    yield Way("card", "in MIG mode, or an exclusive compute mode", NONE, "`nvidia-smi -i N -mig 0`, `-c DEFAULT`")
    yield Way("card", "with Confidential Computing on", NONE, "set its CC mode to off with NVIDIA's gpu-admin-tools")
    yield Way("card", "Volta or earlier", NONE, "–")


def _set_up(engine: str) -> str:
    then = ENGINES[engine].then
    return f"`cgpu setup {engine}`" + (f", then `{then}`" if then else "")


#: The version that make test has (docs/user/engines.md).
ENGINES_TRIED = {"docker": "20.10", "podman": "4.3", "containerd": "1.6"}


def _engines() -> Iterator[Way]:
    stand_in = "its modes, by a stand-in for NVIDIA's programs"
    yield Way("engine", "any, with NVIDIA's container toolkit", ALL, f"`cgpu setup {TOOLKIT}`", stand_in)
    yield Way("engine", "the toolkit in mode legacy (auto before 1.18)", NONE, TOOLKIT_LEGACY_REMEDY)
    yield Way("engine", "the GPU Operator's toolkit", ALL, OPERATOR_HINT, NEVER)
    for name in ENGINES:
        if name != TOOLKIT:
            yield Way("engine", f"{name} without the toolkit", ALL, _set_up(name), ENGINES_TRIED[name])
    for one in ELSEWHERE:
        holds = "what you set up by hand" if one.works else NONE
        yield Way("engine", f"{one.name}, which reads `/{one.seen}`", holds, one.remedy, NEVER if one.works else "–")


SAME = "the same, and "
#: The first minor version of Kubernetes 1 of each row: what holds, what to apply, what was tried.
CLUSTERS = {
    20: ("`aliyun.com/gpu-mem`; [kubernetes.md](kubernetes.md)", "`kubectl apply -k deploy/kubernetes/base`", "1.20"),
    22: (
        f"{SAME}at an update a node's next agent starts before the last one ends",
        "`kubectl apply -k deploy/kubernetes/surge`",
        NEVER,
    ),
    30: (f"{SAME}admission policies", f"{SAME}`kubectl apply -k deploy/kubernetes/policies`", NEVER),
    34: (
        "the same, and claims (DRA); before 1.36 with the feature gate DRAConsumableCapacity",
        "`kubectl apply -k deploy/kubernetes`",
        "1.36 by recorded objects",
    ),
}


def applied(minor: int) -> list[str]:
    """What to apply to Kubernetes 1.@minor."""
    found: list[str] = []
    for _, do, _ in (row for first, row in CLUSTERS.items() if first <= minor):
        found = [*found, do.removeprefix(SAME)] if do.startswith(SAME) else [do]
    return found


def _clusters() -> Iterator[Way]:
    firsts = sorted(CLUSTERS)
    for first, following in zip(firsts, [*firsts[1:], None], strict=True):
        have = f"1.{first} to 1.{following - 1}" if following else f"1.{first} or later"
        yield Way("Kubernetes", have, *CLUSTERS[first])


def ways() -> list[Way]:
    return [*_kernels(), *_drivers(), *_cards(), *_engines(), *_clusters()]


def _table(heads: tuple[str, ...], rows: Iterable[tuple[str, ...]]) -> str:
    lines = [f"| {' | '.join(one)} |" for one in (heads, *rows)]
    return "\n".join([lines[0], "|---" * len(heads) + "|", *lines[1:]]) + "\n"


def markdown() -> str:
    rows = [(one.part, one.have, one.holds, one.tried, one.do) for one in ways()]
    return _table(("", "what you have", "what holds", "tried", "what to type"), rows)


# ---- whole nodes ----


@dataclass(frozen=True)
class Site:
    """A node, as an administrator describes it. @driver as /proc/driver/nvidia/version has it. @minor of Kubernetes 1;
    0: none. @use: lines beside those that set it up. @section of docs/user/start.md has all of them."""

    have: str
    section: str
    kernel: str
    driver: str
    install: str
    engine: str
    tried: str
    minor: int = 0
    use: str = ""
    loads_modules: bool = True
    #: The image and its boot are the provider's: nothing is typed on the node.
    by_installer: bool = False


_OPEN = "NVRM version: NVIDIA UNIX Open Kernel Module for x86_64"
SITES = (
    Site(
        "H100, driver 580 (open modules), Ubuntu 22.04, containerd 2, Kubernetes 1.33: inference beside training",
        "inference-beside-training-on-kubernetes-133",
        "5.15.0-130-generic", f"{_OPEN}  580.178.04", INSTALL, "containerd", f"the kernel built; the rest {NEVER}", 33,
        'the service\'s pod has the annotation `cgpu.io/priority: high`, its GPU `policy = "preemptive"`',
    ),
    Site(
        "T4, driver 535 (open modules), Debian 12, Docker", "two-containers-with-docker",
        "6.1.0-56-amd64", f"{_OPEN}  535.261.03", DEB, "docker", SIMULATED,
        use="`docker run --runtime=nvidia -e ALIYUN_COM_GPU_…`",
    ),
    Site(
        "A10, driver 550 (open modules), EL 9, podman", "podman-on-el-9",
        "5.14.0-503.el9.x86_64", f"{_OPEN}  550.163.01", RPM, "podman", NEVER,
        use="`podman run --runtime=nvidia -e ALIYUN_COM_GPU_…`",
    ),
    Site(
        "any card on managed nodes, as GKE's with COS", "managed-nodes",
        "6.6.0", f"{_OPEN}  550.90.07", "", "containerd", "–", 30, loads_modules=False,
    ),
    Site(
        "any card on managed nodes with the provider's Ubuntu (GKE, AKS)", "the-providers-own-image",
        "6.8.0-1020-gke", f"{_OPEN}  580.178.04", "", "containerd", f"the installer; GKE and AKS {NEVER}", 33,
        use=f"{INSTALLER}: needs the open modules", by_installer=True,
    ),
)  # fmt: skip


def holds(site: Site) -> tuple[str, str]:
    """What cgpu doctor's checks of kernel and driver say about the node; and what must change, "": nothing."""
    if not site.loads_modules:
        found = next(one for one in ways() if one.have == MANAGED)
        return found.holds, "an image that you build (Ubuntu, EL), with your own driver"
    facts = Facts(kernel=site.kernel, machine="x86_64", driver_text=site.driver)
    for check in (checks.kernel, checks.driver):
        finding = check(facts)
        if finding.status == PROBLEM:
            return NONE, finding.remedy
    claims = f"; `aliyun.com/gpu-mem`{', claims' if site.minor >= 34 else ''}" if site.minor else ""
    return ALL + claims, ""


def _do(site: Site) -> str:
    _, change = holds(site)
    if change:
        return change
    if site.by_installer:
        return f"{site.use}; all lines: the link"
    steps = [site.install, f"{_set_up(TOOLKIT)}, without NVIDIA's toolkit {_set_up(site.engine)}"]
    if site.minor:
        steps += applied(site.minor)
    return "; ".join(filter(None, [*steps, site.use])) + "; all lines: the link"


def sites_markdown(page: str) -> str:
    """@page: the path of start.md from the page that has the table; "": that page itself."""
    rows = []
    for one in SITES:
        do = _do(one)
        for beside in ("install.md", "kubernetes-node.md"):
            do = do.replace(f"({beside}", f"({_beside(page)}{beside}")
        rows.append((f"[{one.have}]({page}#{one.section})", holds(one)[0], one.tried, do))
    return _table(("what you have", "what holds", "tried", "what to type, in short"), rows)


def _beside(page: str) -> str:
    return page[: page.rindex("/") + 1] if "/" in page else ""
