# SPDX-License-Identifier: MIT
"""The parts of a machine: variables in, the arguments of QEMU or of User-Mode Linux out.

Nothing here starts anything or looks at the disk.
"""

from __future__ import annotations

import shlex
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

#: Linux as a program of this machine (scripts/build-uml), and kernels in QEMU.
UML = ("uml", "uml-debug", "uml-smp")
KERNELS = (*UML, "6.1", "6.12", "debug", "5.10", "7.2", "7.3")

#: Either home of a kernel, by the name that BACKEND chooses it by: its default kernel.
BACKENDS = {"uml": "uml", "qemu": "6.1"}

#: What only a machine in QEMU has, or one with more processors: the arguments of the marker `needs`.
NEEDS = ("ftrace", "instructions", "pci", "smp", "uml")

#: Branches of NVIDIA's own user space that scripts/setup-nvidia gets.
BRANCHES = ("535", "550", "555")

#: Container engines newer than this machine's, by the suite that scripts/setup-engines gets them from.
ENGINE_SETS = ("trixie", "sid")

#: With ICOUNT one instruction takes this long, whatever it is.
ICOUNT_SHIFT = 2
ICOUNT_NS = 1 << ICOUNT_SHIFT

#: Where simulated cards have their memory: RAM of the machine that its kernel leaves alone. Registers are below 2 GiB,
#: where q35 splits its RAM in two; each card's video memory is behind them, aligned to its size.
CARD_REGISTERS_MIB = 1920
CARD_APERTURE_GIB = 16
CARD_CHIPS = ("TU104", "GA100", "GA102", "AD102", "GH100")

#: How many of nvsim's GPUs have a PCI device, at the addresses that nvsim gives to its first GPUs: 0000:01:00.0 and so
#: on. The device is one with 16 MiB of RAM as BAR0, as large as a real GPU's registers.
BOARDS = 2

#: The guest's ends of the virtio-serial ports, by name: the command's two
#: streams and, on a wire of its own, the verdict.
PORTS = ("out", "err", "status")

#: The same in User-Mode Linux, and a shell's terminal, by the number of its serial line.
UML_LINES = {"out": 0, "err": 1, "status": 2, "tty": 3}


class BadVariable(Exception):
    """A variable of `make vm` has a value that no machine can be made of."""


@dataclass(frozen=True)
class Machine:
    """One virtual machine, as the variables of the Makefile describe it."""

    kernel: str = "uml"
    cpus: int = 1
    cpu_features: str = ""  #: more than every machine has, as QEMU names them
    memory: str = "2G"
    icount: bool = False
    nvsim: bool = True
    bare: bool = False
    daemon: bool = True
    docker: bool = False
    tutorial: bool = False  #: for a shell: Docker, and the image and runtime of docs/user/tutorial.md
    docker_config: str = ""
    systemd: bool = False
    nvidia: str = ""  #: the branch of NVIDIA's own user space that is there, and that nvsim then serves
    engines: str = ""  #: of ENGINE_SETS; empty: this machine's own
    kernel_driver: str = ""  #: the branch of NVIDIA's own kernel driver, over simulated cards in place of nvsim
    chips: str = ""  #: of those cards
    profile: str = ""
    gpus: str = ""
    mem_mib: str = ""
    driver: str = ""
    module_args: str = ""
    shell: bool = False
    append: str = ""
    checks: bool = True  #: lockdep, and the allocator's checks of files and mappings too

    @property
    def debug(self) -> bool:
        """Whether the kernel is one with KASAN, lockdep and kmemleak."""
        return self.kernel.endswith("debug")

    @property
    def uml(self) -> bool:
        """Whether it is User-Mode Linux, a process, and not QEMU."""
        return self.kernel in UML

    @property
    def offers(self) -> tuple[str, ...]:
        """Which of NEEDS it has."""
        has = {
            "ftrace": not self.uml,
            "instructions": self.icount and not self.uml,
            "pci": boards(self) > 0,
            "smp": self.cpus > 1,
            "uml": self.uml,
        }
        return tuple(need for need in NEEDS if has[need])


@dataclass(frozen=True)
class Paths:
    """Where on the host the machine finds its parts."""

    repo: Path
    run: Path
    vmlinuz: Path  #: in User-Mode Linux the program
    initrd: Path  #: of QEMU


@dataclass(frozen=True)
class Wires:
    """The machine's ends of the sockets that the guest's ports are; a shell has no `out`."""

    fds: Mapping[str, int] = field(default_factory=dict)


def flag(value: str) -> bool:
    """`1`, `yes`, `on` are true; `0`, `no`, `off` and nothing are false."""
    lowered = value.strip().lower()
    if lowered in ("", "0", "no", "off", "false"):
        return False
    if lowered in ("1", "yes", "on", "true"):
        return True
    raise BadVariable(f"{value!r} is neither yes nor no")


def from_variables(variables: Mapping[str, str], **fixed) -> Machine:
    """The machine described by KERNEL, CPUS, GPUS and the others."""

    def text(name: str, default: str = "") -> str:
        return variables.get(name, "").strip() or default

    tutorial = flag(text("TUTORIAL"))
    docker = flag(text("DOCKER")) or tutorial
    systemd = flag(text("SYSTEMD")) or fixed.get("systemd", False)
    kernel_driver = fixed.get("kernel_driver") or text("KERNEL_DRIVER")
    kernel = text("KERNEL", default_kernel(text("BACKEND"), text("CPUS"), bool(kernel_driver)))
    if kernel not in KERNELS:
        raise BadVariable(f"KERNEL={kernel}: choose one of {', '.join(KERNELS)}")
    if kernel in UML and kernel_driver:
        raise BadVariable(f"KERNEL={kernel}: NVIDIA's own driver needs a machine in QEMU, KERNEL=6.1")
    icount = flag(text("ICOUNT"))
    chips = text("CHIPS", "TU104")
    if kernel_driver and kernel_driver not in ("535", "550"):
        raise BadVariable(f"KERNEL_DRIVER={kernel_driver}: choose 535 or 550")
    if unknown := [chip for chip in chips.split(",") if chip not in CARD_CHIPS]:
        raise BadVariable(f"CHIPS={chips}: {unknown[0]} is none of {', '.join(CARD_CHIPS)}")
    cpus = text("CPUS", "1" if icount or kernel in ("uml", "uml-debug") else "2")
    if not cpus.isdigit() or int(cpus) < 1:
        raise BadVariable(f"CPUS={cpus} is not a number of processors")
    if kernel in ("uml", "uml-debug") and cpus != "1":
        raise BadVariable(f"CPUS={cpus}: KERNEL={kernel} has one processor; KERNEL=uml-smp and those of QEMU have more")
    if kernel == "uml-smp" and (icount or fixed.get("icount")):
        raise BadVariable("ICOUNT=1: KERNEL=uml-smp has no exact time, KERNEL=uml has")
    if icount and cpus != "1":
        raise BadVariable(f"CPUS={cpus}: ICOUNT=1 is exact only with one processor")
    nvidia = text("NVIDIA")
    if nvidia and nvidia not in BRANCHES:
        raise BadVariable(f"NVIDIA={nvidia}: choose one of {', '.join(BRANCHES)}")
    engines = text("ENGINES")
    if engines and engines not in ENGINE_SETS:
        raise BadVariable(f"ENGINES={engines}: choose one of {', '.join(ENGINE_SETS)}")
    if systemd and engines:
        raise BadVariable(f"ENGINES={engines}: a machine with SYSTEMD=1 has the engines that are installed")
    if systemd and (docker or flag(text("BARE"))):
        raise BadVariable("SYSTEMD=1 loads the modules itself and has Docker as a unit: neither BARE=1 nor DOCKER=1")
    settings = {
        "kernel": kernel,
        "cpus": int(cpus),
        "cpu_features": text("CPU_FEATURES"),
        "memory": text("VM_MEM", "4G" if docker or systemd else "2G"),
        "icount": icount,
        "nvsim": flag(text("NVSIM", "" if kernel_driver else "1")),
        "kernel_driver": kernel_driver,
        "chips": chips if kernel_driver else "",
        "bare": flag(text("BARE")),
        "daemon": flag(text("DAEMON", "1")),
        "docker": docker,
        "tutorial": tutorial,
        "docker_config": text("DOCKER_CONFIG", f"build/cuda/daemon-{nvidia}.json" if nvidia else ""),
        "systemd": systemd,
        "nvidia": nvidia,
        "engines": engines,
        "profile": text("PROFILE"),
        "gpus": text("GPUS"),
        "mem_mib": text("MEM_MIB"),
        "driver": text("DRIVER"),
        "module_args": text("MODULE_ARGS"),
        "append": text("APPEND"),
    }
    return Machine(**(settings | fixed))


def default_kernel(backend: str, cpus: str, qemu_only: bool) -> str:
    """The kernel where KERNEL names none: User-Mode Linux, but for what only QEMU has."""
    if backend and backend not in BACKENDS:
        raise BadVariable(f"BACKEND={backend}: choose one of {', '.join(BACKENDS)}")
    if qemu_only or cpus not in ("", "1"):
        return BACKENDS["qemu"]
    return BACKENDS[backend or "uml"]


def common_arguments(machine: Machine, paths: Paths) -> list[str]:
    """The words of the command line that a kernel gets in either home."""
    words = ["loglevel=6", f"cgpu.repo={paths.repo}", f"cgpu.run={paths.run}"]
    if not machine.debug:
        # The debug kernel goes on, so that a splat is charged to its test.
        words += ["panic_on_warn=1"]
    if not machine.debug and not machine.icount and not machine.systemd:
        # The allocator's own debugging is most of the cost of a call: off where time is measured and for systemd,
        # elsewhere for the caches that this module uses. On all caches it would slow everything down by a quarter.
        # The traces of allocations (U) are left to the debug kernel: they unwind the stack at each.
        words += ["slub_debug=FZP,cgpu_*,ckm_*" + (",kmalloc-*,filp,vm_area_struct" if machine.checks else "")]
    if machine.systemd:
        # The console is the kernel's; a fresh Debian 12 has cgroup v2.
        words += ["systemd.show_status=0", "systemd.unified_cgroup_hierarchy=1", "audit=0"]
    return words


def kernel_arguments(machine: Machine, paths: Paths) -> list[str]:
    """The kernel command line in QEMU, word by word."""
    words = [
        "console=ttyS0",
        "panic=-1",  # reboot at once, which -no-reboot turns into the end
        "oops=panic",
        "apparmor=0",
        "mitigations=off",
        "no_timer_check",  # a starved guest misses the ten ticks that it waits for, and panics
        # The emulator finds translated code by its address, also the virtual one: code that every program has at the
        # same address is translated once, and not at each start.
        "norandmaps",
        "tsc=reliable",  # emulated, in step on all processors
        "random.trust_cpu=1",
        "cryptomgr.notests=1",
        # A busy host starves the guest; only a stall far longer is a finding.
        "rcupdate.rcu_cpu_stall_timeout=120",
        "watchdog_thresh=60",
        *common_arguments(machine, paths),
    ]
    if machine.icount:
        # Guest time leaps over every wait for the host; a stall means nothing.
        words += ["nowatchdog", "rcupdate.rcu_cpu_stall_suppress=1"]
    if machine.kernel_driver:
        # Cards in the machine's RAM; without PAT their two mappings, cached and not, need not agree.
        words += [f"mem={CARD_REGISTERS_MIB}M", "nopat"]
    return words + machine.append.split()


def uml_arguments(machine: Machine, paths: Paths, wires: Wires) -> list[str]:
    """The whole command line of User-Mode Linux. Its console is the program's stdout."""
    argv = [str(paths.vmlinuz), f"mem={memory_size(machine)}", "rootfstype=hostfs", "rootflags=/", "ro"]
    argv += [f"init={paths.repo}/tests/uml/init", f"uml_dir={paths.run}", "umid=uml"]
    # Its processes stop at their system calls by seccomp, twice as fast as by ptrace.
    argv += ["seccomp=on", "con=null", "con0=null,fd:1", "ssl=null"]
    argv += [f"ssl{number}=null,fd:{wires.fds[port]}" for port, number in UML_LINES.items() if port in wires.fds]
    if machine.shell:
        argv += [f"ssl{UML_LINES['tty']}=fd:0,fd:2"]
    if machine.icount:
        argv += ["time-travel=inf-cpu"]
    if machine.cpus > 1:
        argv += [f"ncpus={machine.cpus}"]
    return argv + common_arguments(machine, paths) + machine.append.split()


def qemu_arguments(machine: Machine, paths: Paths, wires: Wires) -> list[str]:
    """The whole command line of QEMU."""
    argv = ["qemu-system-x86_64", "-nodefaults", "-no-user-config", "-no-reboot", "-display", "none"]
    argv += ["-M", "q35", "-m", memory_size(machine), "-smp", str(machine.cpus)]
    if machine.kernel_driver:
        # More than a host may have: a page that nobody touches is none of its memory.
        argv += ["-machine", "memory-backend=ram"]
        argv += ["-object", f"memory-backend-ram,id=ram,size={memory_size(machine)},reserve=off"]
    # Plain enough to emulate fast, yet with the guards that catch a kernel
    # touching user memory outside of its accessors.
    processor = "qemu64,+smap,+smep,+rdrand,+rdseed,+umip,+x2apic"
    argv += ["-cpu", ",".join(filter(None, (processor, machine.cpu_features)))]
    argv += ["-accel", "tcg"]
    if machine.icount:
        argv += ["-icount", f"shift={ICOUNT_SHIFT},sleep=off"]
    for number in range(1, 1 + boards(machine)):
        argv += ["-device", f"pcie-root-port,id=slot{number},chassis={number},hotplug=off"]
        argv += ["-device", f"bochs-display,bus=slot{number},romfile="]
    argv += ["-nic", "none", "-device", "virtio-rng-pci"]
    argv += ["-kernel", str(paths.vmlinuz), "-initrd", str(paths.initrd)]
    argv += ["-append", " ".join(kernel_arguments(machine, paths))]
    argv += share("root", "/", readonly=True)
    argv += share("repo", str(paths.repo), readonly=False)
    argv += ["-chardev", f"file,id=console,path={paths.run}/console.log", "-serial", "chardev:console"]
    argv += ["-device", "virtio-serial-pci,max_ports=4"]
    for number, (port, fd) in enumerate(sorted(wires.fds.items()), start=1):
        argv += ["-chardev", f"socket,id={port},fd={fd}"]
        argv += ["-device", f"virtserialport,chardev={port},nr={number},name=cgpu.{port}"]
    if machine.shell:
        argv += ["-chardev", "stdio,id=tty,signal=off", "-serial", "chardev:tty"]
    return argv


def memory_size(machine: Machine) -> str:
    """RAM in QEMU's notation: with cards up to the end of the last one's video memory, above the hole of 2 GiB."""
    if not machine.kernel_driver:
        return machine.memory
    return f"{CARD_APERTURE_GIB * (1 + len(machine.chips.split(','))) - 2}G"


def boards(machine: Machine) -> int:
    """Where systemd runs, udev would load a driver for them."""
    return BOARDS if machine.nvsim and not machine.systemd and not machine.uml else 0


def share(tag: str, path: str, readonly: bool) -> list[str]:
    """A directory of the host that the guest mounts by `tag` over 9p."""
    end = ",readonly=on" if readonly else ""
    return [
        "-fsdev",
        f"local,id={tag},path={path},security_model=none,multidevs=remap{end}",
        "-device",
        f"virtio-9p-pci,fsdev={tag},mount_tag={tag}",
    ]


def guest_environment(machine: Machine, repo: Path, release: str) -> str:
    """The file that boot/init sources: assignments, one a line, quoted for the shell."""
    yes_no = {True: "1", False: ""}
    values = {
        "CGPU_VM": "1",
        "KERNEL": machine.kernel,
        "KERNEL_RELEASE": release,
        "OFFERS": " ".join(machine.offers),
        "UML": yes_no[machine.uml],
        "LOCKDEP_OFF": yes_no[machine.uml and not machine.debug and not machine.checks],
        "UML_LINES": " ".join(f"{port}={line}" for port, line in UML_LINES.items()) if machine.uml else "",
        "CGPU_REPO": str(repo),
        "CGPU_MODULES": str(repo / "build/modules" / machine.kernel),
        "NVSIM": yes_no[machine.nvsim],
        "BARE": yes_no[machine.bare],
        "DAEMON": yes_no[machine.daemon],
        "DOCKER": yes_no[machine.docker],
        "TUTORIAL": yes_no[machine.tutorial],
        "SYSTEMD": yes_no[machine.systemd],
        "ICOUNT": yes_no[machine.icount],
        "VM_SHELL": yes_no[machine.shell],
        "NVIDIA": machine.nvidia,
        "ENGINES": machine.engines,
        "KERNEL_DRIVER": machine.kernel_driver,
        "CHIPS": machine.chips,
        "PROFILE": machine.profile,
        "GPUS": machine.gpus,
        "MEM_MIB": machine.mem_mib,
        "DRIVER": machine.driver,
        "MODULE_ARGS": machine.module_args,
    }
    return "".join(f"export {name}={shlex.quote(value)}\n" for name, value in values.items())


def docker_settings(extra: Mapping) -> dict:
    """dockerd's configuration in a machine without network and disks."""
    return {
        "bridge": "none",
        "iptables": False,
        "ip6tables": False,
        "storage-driver": "overlay2",
    } | dict(extra)
