# SPDX-License-Identifier: MIT
"""PURE: the keys of cgpu.toml. One row for each: its values, default, meaning and node in /proc/cgpu_km.

cgpu_common/config.py checks the files by these rows, settings.py sets what they say in the kernel, and
scripts/config-doc writes systemd/cgpu.toml.example and the tables of docs/reference/configuration.md from them;
cgpu.toml(5) is made from them too. A test holds docs/reference/proc.md to the same ranges and defaults.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

from cgpu_common import address, policies
from cgpu_common.kernel_abi import (
    MAX_INST_BURST_MAX,
    MAX_INST_DEFAULT,
    MAX_INST_MAX,
    MAX_INST_MIN,
    OVERCOMMIT_MAX,
    OVERCOMMIT_MIN,
    PRIO_RATIO_DEFAULT,
    PRIO_RATIO_MAX,
    PRIO_RATIO_MIN,
    SLICE_US_MAX,
    SLICE_US_MIN,
    UVM_NAMES,
    G,
)

MIB_MAX = 1 << 30  # a petabyte: only a bound
WAIT_MAX_S = 45  # cgpu-runtime waits 60 s for an answer
DAY_S = 86400
SLICE_AUTO = 0


@dataclass(frozen=True, slots=True)
class Kind:
    """The values of a key: a test of one, and the same in words, for "it must be …"."""

    takes: Callable[[Any], bool]
    words: str
    least: int | None = None  #: of a number
    most: int | None = None
    page: str = ""  #: words for the example and the pages, if `words` would list all policies

    @property
    def shown(self) -> str:
        """In the example and on the pages."""
        return self.page or self.words


def _listed(words: Iterable[str]) -> str:
    *first, last = words
    return f"{', '.join(first)} or {last}" if first else last


def _is_whole(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def _is_path(value: Any) -> bool:
    return isinstance(value, str) and (value == "" or value.startswith("/")) and not {"\n", "\0"} & set(value)


def _is_part(value: Any) -> bool:
    return not isinstance(value, bool) and isinstance(value, (int, float)) and math.isfinite(value) and 0 < value <= 1


def whole(least: int, most: int, unit: str = "", word: str = "") -> Kind:
    """A whole number in a range, or the word."""
    of = f"a whole number{f' of {unit}' if unit else ''}"
    span = f", at least {least}" if most == MIB_MAX else f" from {least} to {most}"
    return Kind(
        lambda value: (word != "" and value == word) or (_is_whole(value) and least <= value <= most),
        f"{of}{span}{f', or {word}' if word else ''}",
        least,
        most,
    )


def one_of(*names: str) -> Kind:
    return Kind(lambda value: isinstance(value, str) and value in names, _listed(names))


FLAG = Kind(lambda value: isinstance(value, bool), "true or false")
PATH = Kind(_is_path, 'an absolute path, or ""')
FOLDER = Kind(_is_path, 'the absolute path of a folder, or ""')
ADDRESS = Kind(lambda value: isinstance(value, str), 'unix:/path, an IP address and a port, or ""')
PART = Kind(_is_part, "a part of the GPU's memory, above 0 and up to 1")
POLICY = Kind(
    lambda value: (_is_whole(value) and 0 <= value < len(policies.NAMES)) or value in policies.NAMES,
    policies.ALLOWED,
    0,
    len(policies.NAMES) - 1,
    "the name or the number of a policy, which `cgpu policy list` prints",
)


@dataclass(frozen=True, slots=True)
class Key:
    """A key, in the units of the file."""

    kind: Kind
    default: Any  #: None: it has none, and `unset` is what holds without the key
    about: str  #: whole sentences, for the example and the pages
    example: Any = None  #: of a key without a default
    unset: str = ""
    see: str = ""  #: a page, and its section
    node: str = ""  #: below N/ in /proc/cgpu_km
    attr: G | None = None  #: of netlink; None: the kernel does not have it
    check: Callable[[Any], object] | None = None  #: raises ConfigError

    @property
    def shown(self) -> str:
        """The default or the example, as TOML."""
        return toml(self.example if self.default is None else self.default)


def toml(value: object) -> str:
    if isinstance(value, bool):
        return str(value).lower()
    return f'"{value}"' if isinstance(value, str) else str(value)


NODE = {
    "allow_privileged": Key(
        FLAG, False,
        "Slices for --privileged containers and for those with CAP_SYS_ADMIN and similar capabilities, which can evade "
        "their slice; and whole GPUs for --privileged containers, regardless of `unsliced`.",
        see="docs/user/daemon.md §3",
    ),
    "legacy_hook_config": Key(
        PATH, "",
        'config.toml for NVIDIA\'s legacy prestart hook, without devices; "" refuses the start.',
        see="docs/user/daemon.md §1",
    ),
    "runtime_path": Key(
        PATH, "", 'Program of the hooks in config.json; "" is the cgpu-runtime that sent the request.'
    ),
    "lease_s": Key(
        whole(1, DAY_S, "seconds"), 120, "Within this time a prepared container must be bound.",
        see="docs/user/daemon.md §5",
    ),
    "reconcile_s": Key(
        whole(1, DAY_S, "seconds"), 60, "Between two reconciliations.", see="docs/user/daemon.md §5"
    ),
    "nvml_wait_s": Key(
        whole(1, WAIT_MAX_S, "seconds"), 20,
        "The most that a start waits for NVML. After that, GPUs for which NVML has not answered get no new containers.",
        see="docs/user/daemon.md §3",
    ),
    "kube_wait_s": Key(
        whole(1, WAIT_MAX_S, "seconds"), 30,
        "The most that a start of a pod's container waits while cgpu-kube does not listen, as during an update of its "
        "DaemonSet.",
    ),
    "log_level": Key(one_of("debug", "info", "warning", "error"), "info", "What the daemon's log has."),
    "metrics": Key(
        ADDRESS, "",
        'Address of /metrics, as "unix:/run/cgpu-metrics/metrics.sock" or "127.0.0.1:9400"; "": it is not served.',
        see="docs/user/metrics.md", check=address.parse,
    ),
    "metrics_tls": Key(
        FOLDER, "",
        "A folder with tls.crt, tls.key and the clients' authority, ca.crt: /metrics by TLS, for clients with a "
        'certificate of it; "": no TLS. "[::]:9400" and "0.0.0.0:9400" need it.',
        see="docs/user/metrics.md",
    ),
}  # fmt: skip
GPU = {
    "policy": Key(
        POLICY, policies.NAMES[policies.DEFAULT], "How containers share the GPU's time.",
        see="docs/reference/policies.md", node="policy", attr=G.POLICY,
    ),
    "max_inst": Key(
        whole(MAX_INST_MIN, MAX_INST_BURST_MAX), MAX_INST_DEFAULT,
        f"Containers on a GPU at most, and slices per round; above {MAX_INST_MAX} only under {policies.WIDE}, for "
        f"{MAX_INST_MAX} containers all the same.",
        node="max_inst", attr=G.MAX_INST,
    ),
    "prio_ratio": Key(
        whole(PRIO_RATIO_MIN, PRIO_RATIO_MAX, "percent"), PRIO_RATIO_DEFAULT,
        "The part of the time that high priority may take from the others: of each 100 ms, or of several seconds where "
        "the run state is known.",
        see="docs/reference/policies.md §5", node="prio_ratio", attr=G.PRIO_RATIO,
    ),
    "slice_us": Key(
        whole(SLICE_US_MIN, SLICE_US_MAX, "microseconds", "auto"), "auto",
        'Length of a slice; "auto": by the latency of the driver\'s calls.',
        node="slice_us", attr=G.SLICE_US,
    ),
    "uvm": Key(
        one_of(*UVM_NAMES), "deny",
        'Managed memory: refused ("deny"), or charged by its address ranges ("account").',
        see="docs/reference/proc.md §7", node="uvm", attr=G.UVM,
    ),
    "overcommit": Key(
        whole(OVERCOMMIT_MIN, OVERCOMMIT_MAX, "percent"), 100,
        "The most that memory limits add up to, of what the driver and processes outside of containers leave of the "
        "GPU. Above 100 an allocation within its limit can fail.",
        node="overcommit", attr=G.OVERCOMMIT,
    ),
    "default_memsize_mib": Key(
        whole(0, MIB_MAX, "MiB"), 0,
        "For containers that name GPUs (ALIYUN_COM_GPU_VISIBLE_DEVICES) but no ALIYUN_COM_GPU_MEM_CONTAINER; 0: they "
        "get no slice and a warning, whatever /proc/cgpu_km/default_memsize has.",
        node="default_memsize", attr=G.DEFAULT_MEMSIZE,
    ),
    "unsliced": Key(
        one_of("allow", "refuse"), "allow",
        'Containers that get a whole GPU. "refuse" needs `ask = always` in /etc/cgpu/runtime.conf.',
        see="docs/user/daemon.md §3",
    ),
}  # fmt: skip
_WEIGHT = whole(1, MAX_INST_BURST_MAX)
_NO_CAP = "no cap"
CONTAINER = {
    "max_memory_mib": Key(whole(1, MIB_MAX, "MiB"), None, "Memory of a slice.", 8192, _NO_CAP),
    "max_memory_fraction": Key(
        PART, None, "The same as a part (0.5: half); with both the smaller counts.", 1.0, _NO_CAP
    ),
    "max_weight": Key(_WEIGHT, None, "ALIYUN_COM_GPU_SCHD_WEIGHT.", 25, _NO_CAP),
    "ceiling": Key(
        _WEIGHT, None,
        'Under policy "burst", the most slices per round of each container. A container of a larger weight has its '
        "weight. ALIYUN_COM_GPU_SCHD_CEILING, grants and claims ask for less, never for more.",
        25, "no ceiling", see="docs/reference/policies.md §11",
    ),
    "highprio": Key(one_of("allow", "refuse"), "allow", "ALIYUN_COM_GPU_HIGH_PRIO=1."),
    "disable": Key(
        one_of("allow", "deny"), None,
        "CGPU_DISABLE=true, or a size of 0, with which a container or its image declines the slice.",
        "allow", '"deny" if a key above sets a limit, else "allow"', see="docs/user/daemon.md §3",
    ),
    "nvidia_memory_limit": Key(
        one_of("ignore", "slice"), "ignore",
        "NVIDIA_GPU_MEMORY_LIMIT or _REQUEST (MiB) of a container without a size of ours: no slice, and NVIDIA's own "
        'limit where the driver has one ("ignore"), or a slice of that size of each of its GPUs ("slice"). Beside a '
        "size of ours the smaller one counts, whatever this says.",
        see="docs/user/coming-from.md",
    ),
    "grants": Key(
        one_of("optional", "required"), "optional",
        'A slice without a grant of an orchestrator: a container\'s variables request it ("optional"), or only grants '
        'count ("required").',
        see="docs/user/daemon.md §3",
    ),
}  # fmt: skip
