# SPDX-License-Identifier: MIT
"""The checks of cgpu doctor: facts of a node -> findings. Pure.

Each check tests one thing and returns one finding: ok, problem (it does not work), warning (it works, with a loss
that may be intended) or skipped (a part that it needs is missing, and another finding has the reason).
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence

from cgpu_common import mps as names
from cgpu_common.exits import ENROL
from cgpu_common.model import KernelGpu, Slot

from .branches import BRANCHES, COMPARED, LEAST_MINOR, rows_for
from .columns import cut
from .edit import TOOLKIT
from .facts import OK, PROBLEM, ROOT_ONLY, SKIPPED, WARNING, Facts, Finding
from .names import label as label_of

KERNEL_LEAST = (5, 10)
#: Why a release of a branch that has rows has none.
TOO_EARLY = {
    535: "exports no RM calls to other modules",
    550: "has other structures of nvidia-uvm than the call table",
}
#: The first releases with the fixes of NVIDIA's security bulletin 5861 of September 2026 (docs/security.md).
UNFIXED = "without the fixes of NVIDIA's bulletin 5861: a container can attack the driver"
DRIVER_FIXED = {580: (178, "580.178.04"), 595: (91, "595.91.07"), 610: (57, "610.57.04")}

#: Without CVE-2024-0132, CVE-2025-23359, CVE-2025-23266, CVE-2025-23267 and CVE-2026-24260.
TOOLKIT_FIXED = (1, 19, 1)

#: What to do about a driver that cannot be used; docs/user/start.md has the same.
DRIVER_REMEDIES = {
    "none": "modprobe nvidia; docs/user/install.md §2",
    "proprietary": "install the open kernel modules (nvidia-open)",
    "branch": f"install one of {', '.join(map(str, BRANCHES))}",
    "early": ", ".join(f"{branch}.{minor}" for branch, minor in LEAST_MINOR.items()) + " or later",
}
TOOLKIT_LEGACY_REMEDY = 'mode = "cdi", or legacy_hook_config: docs/user/daemon.md §1'

#: What to do about an error of NVML, by words in it.
NVML_REMEDIES = (
    ("library not found", "install libnvidia-ml1 of the driver's version"),
    ("version mismatch", "the driver was updated under the loaded one: boot, or unload and load nvidia"),
    ("not loaded", "modprobe nvidia; docs/user/install.md §2"),
    ("lost", "dmesg | grep NVRM names the card; reset it or boot"),
    ("fell off", "dmesg | grep NVRM names the card; reset it or boot"),
    ("permission", "be root on the host, outside any container"),
    ("no answer", "dmesg | grep NVRM; nvidia-smi hangs too"),
    ("python module", "install python3-pynvml"),
    ("copied tree", "run cgpu doctor on the node itself"),
)


def _version(text: str) -> tuple[int, ...]:
    return tuple(int(part) for part in re.findall(r"[0-9]{1,9}", text.partition("-")[0])[:3])


def kernel(facts: Facts) -> Finding:
    name = "kernel"
    if facts.machine != "x86_64":
        return Finding(name, PROBLEM, f"{facts.machine}: only x86-64 is supported", "docs/user/support.md")
    if _version(facts.kernel)[:2] < KERNEL_LEAST:
        return Finding(name, PROBLEM, f"{facts.kernel} is older than 5.10", "boot a kernel of 5.10 or later")
    if facts.kprobes is False:
        return Finding(name, PROBLEM, f"{facts.kernel} has no kprobes", "boot a kernel with CONFIG_KPROBES")
    return Finding(name, OK, facts.kernel)


def headers(facts: Facts) -> Finding:
    if facts.headers:
        return Finding("headers", OK, f"for {facts.kernel}")
    if facts.module_file or facts.module:
        remedy = "apt install linux-headers-amd64, for the next build"
        return Finding("headers", WARNING, f"no headers for {facts.kernel}; the modules are built already", remedy)
    return Finding("headers", PROBLEM, f"no headers for {facts.kernel}", f"apt install linux-headers-{facts.kernel}")


def dkms(facts: Facts) -> Finding:
    if facts.kernel in facts.dkms_kernels:
        return Finding("dkms", OK, f"has built the modules for {facts.kernel}")
    if facts.module_file:
        return Finding("dkms", OK, "the modules are installed without DKMS")
    if facts.module:
        text = f"cgpu_km is loaded, but not installed for {facts.kernel}: the next boot is without it"
        return Finding("dkms", WARNING, text, "install cgpu-dkms, or make install")
    if not facts.dkms:
        return Finding("dkms", PROBLEM, "not installed, and no module is", "apt install dkms, then cgpu-dkms")
    return Finding("dkms", PROBLEM, f"has not built the modules for {facts.kernel}", "dkms autoinstall; dkms status")


def next_boot(facts: Facts) -> Finding:
    """A kernel that was installed since the boot has modules only if DKMS has built them for it."""
    name, kernel_name = "next boot", facts.next_kernel
    if not kernel_name:
        return Finding(name, SKIPPED, "which kernel boots next is not known")
    if kernel_name == facts.kernel:  # what it lacks is a finding of its own
        return Finding(name, OK, f"{kernel_name}, the running kernel")
    remedy = f"dkms autoinstall -k {kernel_name}; dkms status"
    if "headers" in facts.next_lacks:
        remedy = f"apt install linux-headers-{kernel_name} (EL: dnf install kernel-devel-{kernel_name}), then {remedy}"
    modules = " and no ".join(one for one in facts.next_lacks if one != "headers")
    if not modules:
        return Finding(name, OK, f"{kernel_name}, with the modules")
    return Finding(name, WARNING, f"{kernel_name} boots next, and has no {modules}", remedy)


def secure_boot(facts: Facts) -> Finding:
    if not facts.signed_only:
        return Finding("secure boot", OK, "the kernel loads modules without a trusted signature")
    if facts.module:
        return Finding("secure boot", OK, "only trusted modules are loaded, and cgpu_km is")
    return Finding("secure boot", WARNING, "the kernel loads only modules whose key it trusts", ENROL)


def module(facts: Facts) -> Finding:
    if facts.module is None:
        remedy = "modprobe cgpu_km" + (f"; if its key is not trusted: {ENROL}" if facts.signed_only else "")
        return Finding("module", PROBLEM, "cgpu_km is not loaded", remedy)
    if facts.core is None:
        core = f"cgpu_core_{facts.module.replace('.', '_')}"
        return Finding("module", PROBLEM, f"cgpu_km {facts.module} has no core", f"modprobe {core}")
    if "unknown" not in (facts.package, facts.module) and facts.package != facts.module:
        text = f"cgpu_km {facts.module} and the package {facts.package} differ"
        return Finding("module", WARNING, text, "cgpu upgrade --cold --drain")
    return Finding("module", OK, f"cgpu_km {facts.module}, core {facts.core}")


def _worth(branch: int, rows: int) -> str:
    """What is known of the rows of @rows for a driver of @branch, which was not wholly compared."""
    known = "all" if rows in BRANCHES else "{} of {}".format(*COMPARED[rows])
    of = "that branch" if rows == branch else f"branch {rows}, not of {branch}"
    return f"the rows of {rows}, {known} of them compared with NVIDIA's sources of {of}"


def _refused_driver(branch: int, release: str, rows: int) -> Finding:
    why = "was compared with NVIDIA's sources in part" if rows == branch else "is not known to this version"
    remedy = f"any_driver=1 of cgpu_km accepts it with {_worth(branch, rows)}: docs/user/support.md"
    return Finding(
        "driver", PROBLEM, f"branch {branch} of {release} {why}", f"{remedy}; or {DRIVER_REMEDIES['branch']}"
    )


def driver(facts: Facts) -> Finding:
    name, text = "driver", facts.driver_text
    found = re.search(r"\b([0-9]{3})\.([0-9]{1,4})(?:\.[0-9]+)?\b", text)
    if not text:
        return Finding(name, PROBLEM, "the NVIDIA driver is not loaded", DRIVER_REMEDIES["none"])
    if "open" not in text.lower():
        why = f"{text}: proprietary, exports nothing to other modules"
        return Finding(name, PROBLEM, why, DRIVER_REMEDIES["proprietary"])
    if not found:
        why = f"no version in {text!r}: the module refuses a driver without one"
        return Finding(name, PROBLEM, why, DRIVER_REMEDIES["branch"])
    branch, minor = int(found[1]), int(found[2])
    if minor < LEAST_MINOR.get(branch, 0):
        return Finding(name, PROBLEM, f"{found[0]} {TOO_EARLY[branch]}", DRIVER_REMEDIES["early"])
    least, release = DRIVER_FIXED.get(branch, (0, ""))
    rows = rows_for(branch)
    if rows is None:
        why = f"branch {branch} of {found[0]} is older than the call table: any_driver=1 does not accept it either"
        return Finding(name, PROBLEM, why, DRIVER_REMEDIES["branch"])
    if branch not in BRANCHES:
        if not facts.any_driver:
            return _refused_driver(branch, found[0], rows)
        text = f"{found[0]} is accepted by any_driver=1, with {_worth(branch, rows)}"
        remedy = f"docs/user/support.md says what is open; or {DRIVER_REMEDIES['branch']}"
        return Finding(name, WARNING, text + (f"; it is {UNFIXED}" if minor < least else ""), remedy)
    if minor < least:
        return Finding(name, WARNING, f"{found[0]} is {UNFIXED}", f"{release} or later; docs/security.md")
    return Finding(name, OK, f"{found[0]}, open kernel modules")


def own_limits(facts: Facts) -> list[Finding]:
    """NVIDIA's own limits; no line with a driver that has none."""
    found, name = facts.own_limits, "NVIDIA's limits"
    if found is None:
        return []
    if found.leaked:
        group, reserved = found.leaked[0]
        text = f"{group} keeps {reserved >> 20} MiB for containers that have ended, by their soft limits"
        remedy = f"nvidia-smi memory-limits --set -n /sys/fs/cgroup{group} --soft-limit 0 --hard-limit max"
        return [Finding(name, WARNING, text, f"{remedy}; docs/user/coming-from.md")]
    if found.backend == "off":
        return [Finding(name, OK, "off (RmMemacctMode=0): slices alone limit memory")]
    if found.backend == "misc":
        text = "of the driver itself (misc); nvidia-smi memory-limits shows them, and beside a slice the smaller counts"
        return [Finding(name, OK, text)]
    if not found.cgroups:
        return [Finding(name, OK, "by cgroup (dmem), and no cgroup has one")]
    text = f"by cgroup (dmem): {_some(found.cgroups)}; beside a slice the smaller one counts"
    return [Finding(name, OK, text)]


def driver_nodes(facts: Facts) -> Finding:
    if not facts.driver_text:
        return Finding("driver's nodes", SKIPPED, "the driver is not loaded")
    missing = [name for name in ("nvidiactl", "nvidia-uvm") if name not in facts.driver_nodes]
    if missing:
        text = f"no /dev/{' and no /dev/'.join(missing)}: NVIDIA's libraries do not find the driver"
        return Finding("driver's nodes", WARNING, text, "nvidia-modprobe -c 0 -u; nvidia-persistenced at boot")
    return Finding("driver's nodes", OK, "/dev/nvidiactl, /dev/nvidia-uvm")


def container_nodes(facts: Facts) -> Finding:
    if facts.module is None:
        return Finding("containers' nodes", SKIPPED, "the module is not loaded")
    if facts.nodes_missing:
        return Finding("containers' nodes", PROBLEM, "/dev/cgpu is not mounted", "mount -t cgpu cgpu /dev/cgpu")
    return Finding("containers' nodes", OK, "/dev/cgpu is mounted")


def sharing(facts: Facts) -> Finding:
    """MIG, Confidential Computing, exclusive modes and MPS, with which a GPU cannot be sliced."""
    name = "sharing modes"
    if facts.mps:
        remedy = "echo quit | nvidia-cuda-mps-control"
        return Finding(name, PROBLEM, f"an MPS daemon has its pipes in {', '.join(facts.mps)}", remedy)
    if facts.cards is None:
        remedy = next((do for words, do in NVML_REMEDIES if words in facts.cards_error.lower()), "nvidia-smi; dmesg")
        return Finding(name, WARNING, f"unknown, no NVML: {facts.cards_error}", remedy)
    for card in facts.cards:
        if card.lost:
            return Finding(name, PROBLEM, f"GPU {card.index} does not answer NVML: {card.lost}", "dmesg | grep NVRM")
        if card.mig:
            return Finding(name, PROBLEM, f"GPU {card.index} is in MIG mode", f"nvidia-smi -i {card.index} -mig 0")
        if card.confidential:
            text = f"GPU {card.index} has Confidential Computing on, which cannot be sliced"
            return Finding(name, PROBLEM, text, "set the card's CC mode to off with NVIDIA's gpu-admin-tools")
        if card.uuid in facts.mps_units and card.compute_mode == names.EXCLUSIVE:
            text = f"GPU {card.index} has an MPS server for pods: {names.words(by_cgroup=False)}; it takes no slices"
            return Finding(name, WARNING, text, f"systemctl stop {names.unit(card.uuid)}")
        if card.compute_mode:
            text = f"GPU {card.index} is in compute mode {card.compute_mode}"
            return Finding(name, PROBLEM, text, f"nvidia-smi -i {card.index} -c DEFAULT")
    return Finding(name, OK, f"{len(facts.cards)} GPU{'s' * (len(facts.cards) != 1)} without MIG, MPS, exclusive mode")


def toolkit(facts: Facts) -> Finding:
    name = "container toolkit"
    if facts.toolkit is None:
        text = "not installed: containers get no libcuda.so.1, and without a slice no GPU"
        return Finding(name, WARNING, text, "install nvidia-container-toolkit, or use images that bring libcuda")
    if facts.toolkit_mode == "legacy" and not facts.legacy_hook_config:
        text = "in mode legacy (auto before 1.18) its hook would mount the real nodes: such containers are refused"
        return Finding(name, PROBLEM, text, TOOLKIT_LEGACY_REMEDY)
    if facts.toolkit_version and facts.toolkit_version < TOOLKIT_FIXED:
        text = f"{'.'.join(map(str, facts.toolkit_version))}: an image can leave its container through it (security.md)"
        return Finding(name, WARNING, text, f"nvidia-container-toolkit {'.'.join(map(str, TOOLKIT_FIXED))} or later")
    mode = f", mode {facts.toolkit_mode}" if facts.toolkit_mode else ""
    return Finding(name, OK, f"{facts.toolkit}{mode}")


def runtime(facts: Facts) -> Finding:
    if facts.runtime is None:
        return Finding("cgpu-runtime", PROBLEM, "not on the PATH", "install the package cgpu")
    return Finding("cgpu-runtime", OK, facts.runtime)


def engines(facts: Facts) -> Finding:
    """At least one way leads to cgpu-runtime."""
    name = "engines"
    for one in facts.engines:
        if one.installed and one.error:
            return Finding(name, PROBLEM, f"{one.name}: {one.error}", f"cgpu setup {one.name} --dry-run")
    below = next((one for one in facts.engines if one.name == TOOLKIT and one.installed), None)
    if below and below.ours:
        return Finding(name, OK, f"{TOOLKIT} calls cgpu-runtime")
    if below and below.first == "misplaced":
        text = f"{TOOLKIT} has cgpu-runtime, but not first: containers with the variables get whole GPUs"
        return Finding(name, PROBLEM, text, "put it first in runtimes")
    there = [one for one in facts.engines if one.installed]
    if not there:
        return Finding(name, WARNING, "no container engine is installed", "docs/user/engines.md")
    with_ours = [one.name for one in there if one.ours]
    without = [one.name for one in there if not one.ours and one.name != TOOLKIT]
    if below and without:
        return Finding(name, PROBLEM, f"{TOOLKIT} does not call cgpu-runtime", f"cgpu setup {TOOLKIT}")
    if without:
        status = WARNING if with_ours else PROBLEM
        text = f"not set up: {', '.join(without)}" + (f"; set up: {', '.join(with_ours)}" if with_ours else "")
        return Finding(name, status, text, "; ".join(f"cgpu setup {one}" for one in without))
    return Finding(name, OK, f"set up: {', '.join(with_ours)}")


def configuration(facts: Facts) -> Finding:
    if facts.config_error:
        return Finding("cgpu.toml", PROBLEM, facts.config_error, "correct it, then systemctl reload cgpud")
    if facts.unknown_gpus:
        text = f"[gpu.…] matches no GPU of this node: {', '.join(facts.unknown_gpus)}"
        return Finding("cgpu.toml", WARNING, text, "nvidia-smi -L lists numbers and UUIDs")
    if facts.config_is_read is False:
        text = "valid, and changed since cgpud has read it"
        return Finding("cgpu.toml", WARNING, text, "systemctl reload cgpud")
    if facts.drift:
        text = f"{facts.drift} value{'s' * (facts.drift != 1)} of the GPUs differ from it"
        return Finding("cgpu.toml", WARNING, text, "cgpu-smi names them; systemctl reload cgpud sets them")
    if not facts.config_file:
        return Finding("cgpu.toml", OK, "no file: the defaults hold")
    return Finding("cgpu.toml", OK, "valid" if facts.drift is None else "valid, and in force")


def daemon(facts: Facts) -> Finding:
    if facts.daemon_silence == ROOT_ONLY:
        return Finding("cgpud", SKIPPED, "not asked, since it answers root only", facts.daemon_remedy)
    if facts.daemon_silence:
        text = f"{facts.daemon_silence}: no container with the variables starts"
        return Finding("cgpud", PROBLEM, text, facts.daemon_remedy)
    if "unknown" not in (facts.package, facts.daemon_version or "unknown") and facts.daemon_version != facts.package:
        text = f"{facts.daemon_version} runs, and the package is {facts.package}"
        return Finding("cgpud", WARNING, text, "systemctl restart cgpud")
    if facts.draining:
        return Finding("cgpud", WARNING, "the node is drained: no container gets a slice", "cgpu uncordon")
    return Finding("cgpud", OK, "answers")


# ---- settings and slots of the GPUs ----


def _some(names: Sequence[str]) -> str:
    return ", ".join(names[:4]) + (f" and {len(names) - 4} more" if len(names) > 4 else "")


def _names(slots: Sequence[Slot]) -> str:
    return _some([label_of(slot.id, slot.name) for slot in slots])


def _of_gpu(gpu: KernelGpu) -> Finding:
    """The effect of the policy on the weights in use."""
    name, label = "policy", f"GPU {gpu.index}: {gpu.policy} ({gpu.facts.name})"
    live = [slot for slot in gpu.slots if not slot.dying]
    frozen = [slot for slot in live if slot.weight == 0]
    heavy = [slot for slot in live if slot.weight > 1]
    choose = f"cgpu set gpu {gpu.index} policy weighted"
    if frozen and gpu.facts.limits:
        text = f"{label}: weight 0, so no compute, for {_names(frozen)}"
        return Finding(name, PROBLEM, text, f"cgpu set container {label_of(frozen[0].id)} weight 1")
    if heavy and not gpu.facts.weights:
        return Finding(name, WARNING, f"{label} ignores the weights of {_names(heavy)}", choose)
    if not gpu.facts.limits:
        return Finding(name, OK, f"{label}: memory is divided, compute is not")
    return Finding(name, OK, f"{label}, {len(live)} of {gpu.max_inst}, weight {gpu.free_weight} free")


def policies(facts: Facts) -> list[Finding]:
    if facts.snapshot is None:
        return [Finding("policy", SKIPPED, "the module is not loaded")]
    if not facts.snapshot.gpus:
        return [Finding("policy", SKIPPED, "the module has not found the driver's GPUs yet")]
    return [_of_gpu(gpu) for gpu in facts.snapshot.gpus]


def controls(facts: Facts) -> list[Finding]:
    """Whether the controls that a policy needs were seen to act."""
    name, out = "controls", []
    for gpu in facts.snapshot.gpus if facts.snapshot else ():
        label = f"GPU {gpu.index}"
        needed = gpu.facts.control
        ineffective = facts.controls_ineffective.get(gpu.index, "none")
        if ineffective not in ("none", ""):
            text = f"{label}: {ineffective} had no effect and is not used"
            out.append(Finding(name, PROBLEM, text, "cgpu events; docs/reference/policies.md §6"))
        elif not needed:
            out.append(Finding(name, OK, f"{label}: policy {gpu.facts.name} needs none"))
        elif needed in gpu.control_seen.split(","):
            out.append(Finding(name, OK, f"{label}: {needed} was seen to act"))
        elif facts.effect_check.get(gpu.index) == "blind":
            text = f"{label}: no samples, or slices too short for them, so {needed} cannot be verified"
            out.append(Finding(name, WARNING, text, "compare the shares of two busy containers by hand"))
        else:
            out.append(Finding(name, OK, f"{label}: {needed} is not verified yet: that takes two busy containers"))
    return out or [Finding(name, SKIPPED, "no GPU is attached")]


def _lending(gpu: KernelGpu, source: str, errors: str) -> Finding:
    """What the run state of a GPU means for idle containers."""
    name, label = "run state", f"GPU {gpu.index}"
    failed = errors not in ("0", "none", "")
    if source != "none":
        text = f"{label}: {source} shows which containers have work"
        return Finding(name, OK, text + (f"; {errors} readings could not be used" if failed else ""))
    if failed:
        text = f"{label}: {errors} readings could not be used and no source is: idle containers keep their turns"
        return Finding(name, WARNING, text, f"dmesg has the reason; cgpu set gpu {gpu.index} policy N tries it again")
    if gpu.facts.lends and sum(slot.opened for slot in gpu.slots) > 1:
        text = f"{label}: none, so idle containers keep their turns"
        return Finding(name, WARNING, text, "docs/reference/proc.md, run_state_source; policy soft does without it")
    if not any(slot.opened for slot in gpu.slots):
        return Finding(name, OK, f"{label}: not known before a container opens the GPU")
    return Finding(name, OK, f"{label}: none; nothing is lent")


def run_states(facts: Facts) -> list[Finding]:
    """Whether idle time can be lent."""
    gpus = facts.snapshot.gpus if facts.snapshot else ()
    out = [_lending(gpu, facts.run_state.get(gpu.index, "none"), facts.run_state_errors.get(gpu.index, "0"))
           for gpu in gpus]  # fmt: skip
    return out or [Finding("run state", SKIPPED, "no GPU is attached")]


def stale(facts: Facts) -> Finding:
    name = "stale containers"
    if facts.snapshot is None:
        return Finding(name, SKIPPED, "the module is not loaded")
    dying = [label_of(one.id) for one in facts.snapshot.containers if one.dying]
    if facts.unfollowed:
        text = f"cgpud does not follow {', '.join(facts.unfollowed)}"
        return Finding(name, PROBLEM, text, "journalctl -u cgpud; cgpu destroy ID if the container has ended")
    if dying:
        text = f"destroyed, but a call has not returned: {', '.join(dying)}"
        return Finding(name, WARNING, text, "cgpu ps names the processes; fuser -v /dev/cgpu/*")
    if held := sum(gpu.stat.get("ended_bytes", 0) for gpu in facts.snapshot.gpus):
        text = f"{-(-held >> 20)} MiB of destroyed containers are held by dma-bufs or mappings of other processes"
        return Finding(name, WARNING, text, "/proc/cgpu_km/ended names them; lsof | grep -e dmabuf -e nvidia")
    return Finding(name, OK, f"none of {len(facts.snapshot.containers)}")


def bypass(facts: Facts) -> Finding:
    """Without cgpu-runtime nothing of ours sees a container's start, so nothing refuses it."""
    name = "past cgpu-runtime"
    if facts.past_us is None:
        return Finding(name, SKIPPED, "cgpud names no containers")
    if facts.past_us:
        text = f"with the variables and without a slice, so without limits: {_some(facts.past_us)}"
        remedy = "start with --runtime=nvidia (a pod: runtimeClassName), or cgpu setup ENGINE --default"
        return Finding(name, WARNING, text, f"{remedy}; docs/user/engines.md")
    return Finding(name, OK, "every container with the variables has its slice")


WHY_SHOWN = 160


def refused_starts(facts: Facts) -> Finding:
    """Docker restarts what has ended, and not what its runtime refused to start: after a boot with a mistake in
    cgpu.toml such containers stay down although cgpud runs again."""
    name = "refused starts"
    if facts.refused_starts is None:
        return Finding(name, SKIPPED, "no containers of Docker here")
    if not facts.refused_starts:
        return Finding(name, OK, "no container that is to restart was refused")
    names = [one.name for one in facts.refused_starts]
    why = cut(facts.refused_starts[0].why, WHY_SHOWN)
    text = f"Docker does not start again what was refused: {_some(names)} ({why})"
    first = "mend cgpud first, then " if facts.daemon_silence else ""
    return Finding(name, WARNING, text, f"{first}docker start {' '.join(names)}")


def libcuda(facts: Facts) -> Finding:
    name = "libcuda"
    if facts.without_libcuda is None:
        text = "cgpud names no containers" if facts.daemon_silence else "no running container is known to cgpud"
        return Finding(name, SKIPPED, text)
    if facts.without_libcuda:
        text = f"no libcuda.so.1 in its usual places in {', '.join(facts.without_libcuda)}"
        return Finding(name, PROBLEM, text, "install nvidia-container-toolkit, or mount the driver's libraries")
    return Finding(name, OK, "every running container has libcuda.so.1")


CHECKS: tuple[Callable[[Facts], Finding | list[Finding]], ...] = (
    kernel,
    headers,
    dkms,
    next_boot,
    secure_boot,
    module,
    driver,
    own_limits,
    driver_nodes,
    container_nodes,
    sharing,
    toolkit,
    runtime,
    engines,
    configuration,
    daemon,
    policies,
    controls,
    run_states,
    stale,
    bypass,
    refused_starts,
    libcuda,
)


def run(facts: Facts) -> list[Finding]:
    """Every finding, in the order of a start: kernel, module, driver, engines, daemon, containers."""
    found: list[Finding] = []
    for check in CHECKS:
        one = check(facts)
        found += one if isinstance(one, list) else [one]
    return found
