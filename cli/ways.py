# SPDX-License-Identifier: MIT
"""The table of docs/user/start.md: what a node has, what holds there, what to type. Pure.

Its branches, remedies and engines are those of cgpu doctor: a test compares the page with markdown(), so that page and
program cannot disagree.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from .checks import BRANCHES, DRIVER_REMEDIES, KERNEL_LEAST, LEAST_MINOR, TOOLKIT_LEGACY_REMEDY
from .edit import TOOLKIT
from .engines import ELSEWHERE, ENGINES, OPERATOR_HINT

BEGIN, END = "<!-- begin: cli/ways.py -->\n", "<!-- end: cli/ways.py -->\n"
ALL = "memory limits and shares"
NONE = "nothing: no container with a slice starts"


@dataclass(frozen=True)
class Way:
    part: str
    have: str
    holds: str
    do: str


def _kernels() -> Iterator[Way]:
    least = ".".join(map(str, KERNEL_LEAST))
    packages = "`make deb`, then `dpkg -i build/deb/cgpu-dkms_*_all.deb build/deb/cgpu_*_amd64.deb`"
    yield Way("kernel", f"{least} or later, x86-64; Debian", ALL, packages)
    others = "`make rpm` there and the files of `build/rpm`, or `make install` ([install.md](install.md) §4)"
    yield Way("kernel", f"{least} or later, x86-64; Ubuntu, EL 9 and its kin", ALL, others)
    yield Way("kernel", "Secure Boot", ALL, "enrol the key of DKMS first ([install.md](install.md) §3)")
    yield Way("kernel", f"before {least}; arm64", NONE, "–")
    yield Way("kernel", "managed nodes whose image loads no module of yours (GKE's COS, Bottlerocket)", NONE, "–")


def _drivers() -> Iterator[Way]:
    early = ", ".join(f"{branch} before {branch}.{minor}" for branch, minor in LEAST_MINOR.items())
    yield Way("driver", f"open modules, {', '.join(map(str, BRANCHES))}", ALL, "nothing")
    yield Way("driver", f"open modules, {early}", NONE, DRIVER_REMEDIES["early"])
    yield Way("driver", "open modules, another branch", NONE, DRIVER_REMEDIES["branch"])
    yield Way("driver", "proprietary modules", NONE, DRIVER_REMEDIES["proprietary"])
    yield Way("driver", "not loaded", NONE, DRIVER_REMEDIES["none"])


def _cards() -> Iterator[Way]:
    yield Way("card", "Turing or later: T4, A10, A100, L4, L40, H100, H200", ALL, "nothing; [support.md](support.md)")
    yield Way("card", "in MIG mode, or an exclusive compute mode", NONE, "`nvidia-smi -i N -mig 0`, `-c DEFAULT`")
    yield Way("card", "Volta or earlier", NONE, "–")


def _engines() -> Iterator[Way]:
    yield Way("engine", "any, with NVIDIA's container toolkit", ALL, f"`cgpu setup {TOOLKIT}`")
    yield Way("engine", "the toolkit in mode legacy (auto before 1.18)", NONE, TOOLKIT_LEGACY_REMEDY)
    yield Way("engine", "the GPU Operator's toolkit", ALL, OPERATOR_HINT)
    for name, engine in ENGINES.items():
        if name != TOOLKIT:
            then = f", then `{engine.then}`" if engine.then else ""
            yield Way("engine", f"{name} without the toolkit", ALL, f"`cgpu setup {name}`{then}")
    for one in ELSEWHERE:
        holds = "what you set up by hand" if one.works else NONE
        yield Way("engine", f"{one.name}, which reads `/{one.seen}`", holds, one.remedy)


def _clusters() -> Iterator[Way]:
    page = "[kubernetes.md](kubernetes.md)"
    yield Way(
        "Kubernetes", "1.20 to 1.29", f"`aliyun.com/gpu-mem`; {page}", "`kubectl apply -k deploy/kubernetes/base`"
    )
    yield Way("Kubernetes", "1.30 to 1.33", "the same, and admission policies", "the same, and `…/policies`")
    yield Way("Kubernetes", "1.34 or later", "the same, and claims (DRA)", "`kubectl apply -k deploy/kubernetes`")


def ways() -> list[Way]:
    return [*_kernels(), *_drivers(), *_cards(), *_engines(), *_clusters()]


def markdown() -> str:
    rows = [f"| {one.part} | {one.have} | {one.holds} | {one.do} |" for one in ways()]
    return "\n".join(["| | what you have | what holds | what to type |", "|---|---|---|---|", *rows]) + "\n"
