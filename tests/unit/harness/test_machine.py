# SPDX-License-Identifier: MIT
"""Variables in, arguments out."""

import itertools
import shlex
from dataclasses import replace
from pathlib import Path

import pytest
from vm.harness import suite
from vm.harness.machine import (
    BadVariable,
    Machine,
    Paths,
    Wires,
    docker_settings,
    from_variables,
    guest_environment,
    kernel_arguments,
    qemu_arguments,
    uml_arguments,
)

PATHS = Paths(Path("/repo"), Path("/repo/build/vm/1"), Path("/k/vmlinuz"), Path("/k/initrd.img"))
WIRES = Wires({"out": 7, "err": 8, "status": 9})


QEMU = Machine(kernel="6.1", cpus=2)


def test_no_variables_make_the_default_machine():
    assert from_variables({}) == Machine()
    assert Machine().uml and Machine().cpus == 1


def test_empty_variables_are_as_good_as_none():
    names = ("KERNEL", "CPUS", "ICOUNT", "BARE", "DAEMON", "DOCKER", "VM_MEM", "GPUS", "NVSIM")
    assert from_variables(dict.fromkeys(names, "")) == Machine()


@pytest.mark.parametrize(
    ("variables", "changed"),
    [
        ({"KERNEL": "6.12"}, {"kernel": "6.12", "cpus": 2}),
        ({"ICOUNT": "1"}, {"icount": True, "cpus": 1}),
        ({"BARE": "yes"}, {"bare": True}),
        ({"DAEMON": "0"}, {"daemon": False}),
        ({"DOCKER": "1"}, {"docker": True, "memory": "4G"}),
        ({"ENGINES": "sid"}, {"engines": "sid"}),
        ({"DOCKER": "1", "VM_MEM": "3G"}, {"docker": True, "memory": "3G"}),
        ({"TUTORIAL": "1"}, {"tutorial": True, "docker": True, "memory": "4G"}),
        ({"SYSTEMD": "1"}, {"kernel": "uml", "cpus": 1, "systemd": True, "memory": "4G"}),
        ({"SYSTEMD": "1", "BACKEND": "qemu"}, {"kernel": "6.1", "cpus": 2, "systemd": True, "memory": "4G"}),
        ({"BACKEND": "qemu"}, {"kernel": "6.1", "cpus": 2}),
        ({"BACKEND": "uml"}, {"kernel": "uml", "cpus": 1}),
        ({"CPUS": "2"}, {"kernel": "6.1", "cpus": 2}),
        ({"KERNEL": "uml-smp"}, {"kernel": "uml-smp", "cpus": 2}),
        ({"KERNEL": "debug", "CPUS": "1"}, {"kernel": "debug", "cpus": 1}),
        (
            {"KERNEL_DRIVER": "550"},
            {"kernel": "6.1", "cpus": 2, "nvsim": False, "kernel_driver": "550", "chips": "TU104"},
        ),
        ({"GPUS": "2", "PROFILE": "a100", "MEM_MIB": "512"}, {"gpus": "2", "profile": "a100", "mem_mib": "512"}),
        ({"DRIVER": "550.163.01"}, {"driver": "550.163.01"}),
        ({"CPU_FEATURES": "+ssse3,+popcnt"}, {"cpu_features": "+ssse3,+popcnt"}),
    ],
)
def test_each_variable(variables, changed):
    assert from_variables(variables) == Machine(**changed)


@pytest.mark.parametrize(
    "variables",
    [
        {"KERNEL": "5.4"},
        {"CPUS": "many"},
        {"CPUS": "0"},
        {"BARE": "perhaps"},
        {"ICOUNT": "1", "CPUS": "2"},
        {"SYSTEMD": "1", "DOCKER": "1"},
        {"SYSTEMD": "1", "BARE": "1"},
        {"KERNEL": "uml", "KERNEL_DRIVER": "550"},
        {"KERNEL": "uml-debug", "KERNEL_DRIVER": "550"},
        {"KERNEL": "uml", "CPUS": "2"},
        {"KERNEL": "uml-smp", "ICOUNT": "1", "CPUS": "1"},
        {"BACKEND": "xen"},
        {"ENGINES": "bullseye"},
        {"ENGINES": "sid", "SYSTEMD": "1"},
    ],
)
def test_what_no_machine_can_be_made_of(variables):
    with pytest.raises(BadVariable):
        from_variables(variables)


@pytest.mark.parametrize(
    ("machine", "offers"),
    [
        (Machine(), ("uml",)),
        (Machine(kernel="uml-smp", cpus=2), ("smp", "uml")),
        (Machine(icount=True), ("uml",)),
        (QEMU, ("ftrace", "pci", "smp")),
        (Machine(kernel="6.1", icount=True), ("ftrace", "instructions", "pci")),
        (Machine(kernel="6.1", systemd=True), ("ftrace",)),
    ],
)
def test_what_a_machine_offers(machine, offers):
    assert machine.offers == offers
    assert f"export OFFERS={shlex.quote(' '.join(offers))}\n" in guest_environment(machine, Path("/repo"), "7.3.4")


def test_user_mode_linux_is_one_program():
    argv = uml_arguments(Machine(append="loglevel=8"), PATHS, WIRES)
    assert argv[0] == "/k/vmlinuz" and argv[-1] == "loglevel=8"
    assert {"mem=2G", "init=/repo/tests/uml/init", "seccomp=on", "con0=null,fd:1"} <= set(argv)
    assert {"ssl0=null,fd:7", "ssl1=null,fd:8", "ssl2=null,fd:9"} <= set(argv)
    assert {"cgpu.repo=/repo", "cgpu.run=/repo/build/vm/1", "panic_on_warn=1"} <= set(argv)
    assert not any(word.startswith(("time-travel", "ncpus", "ssl3")) for word in argv)


def test_exact_time_in_user_mode_linux_costs_code_nothing():
    argv = uml_arguments(from_variables({"ICOUNT": "1"}), PATHS, WIRES)
    assert "time-travel=inf-cpu" in argv
    assert not any(word.startswith("slub_debug") for word in argv)


def test_user_mode_linux_has_processors_and_a_terminal_on_request():
    assert "ncpus=3" in uml_arguments(from_variables({"KERNEL": "uml-smp", "CPUS": "3"}), PATHS, WIRES)
    assert "ssl3=fd:0,fd:2" in uml_arguments(Machine(shell=True), PATHS, Wires())
    assert "panic_on_warn=1" not in uml_arguments(Machine(kernel="uml-debug"), PATHS, WIRES)


def test_a_stock_kernel_stops_at_the_first_warning():
    words = kernel_arguments(QEMU, PATHS)
    assert {"panic_on_warn=1", "oops=panic", "panic=-1", "apparmor=0", "norandmaps"} <= set(words)
    assert any(word.startswith("slub_debug=FZP,") for word in words)


def test_exact_time_is_not_the_time_of_the_allocators_debugging():
    words = kernel_arguments(Machine(kernel="6.1", icount=True), PATHS)
    assert "panic_on_warn=1" in words
    assert not any(word.startswith("slub_debug") for word in words)


def test_engines_are_spared_what_plain_boots_check():
    """cgpu's own objects are checked for use after free everywhere; orders of locks in the plain boot."""
    plain, engines = Machine(), Machine(**suite.settings("engines", {}))
    (word,) = (word for word in uml_arguments(engines, PATHS, WIRES) if word.startswith("slub_debug"))
    assert word == "slub_debug=FZP,cgpu_*,ckm_*"
    assert "export LOCKDEP_OFF=1" in guest_environment(engines, Path("/repo"), "7.3")
    cuda = Machine(**suite.settings("cuda", {"NVIDIA": "550"}))
    assert "export LOCKDEP_OFF=1" in guest_environment(cuda, Path("/repo"), "7.3")
    others = [
        Machine(**suite.settings(*of))
        for of in (("icount", {}), ("cuda", {"NVIDIA": "535"}), ("docker", {"ENGINES": "sid"}))
    ]
    for other in (plain, *others, replace(engines, kernel="uml-debug"), QEMU):
        assert "export LOCKDEP_OFF=''" in guest_environment(other, Path("/repo"), "7.3")
    assert any("filp" in word for word in uml_arguments(plain, PATHS, WIRES))


def test_systemd_has_its_own_words():
    for words in (
        kernel_arguments(Machine(kernel="6.1", systemd=True), PATHS),
        uml_arguments(Machine(systemd=True), PATHS, WIRES),
    ):
        assert {"panic_on_warn=1", "systemd.show_status=0"} <= set(words)
    assert not any(word.startswith("slub_debug") for word in words)
    assert not any(word.startswith("systemd.") for word in kernel_arguments(QEMU, PATHS))
    assert "export SYSTEMD=1\n" in guest_environment(Machine(systemd=True), Path("/repo"), "6.1.0")


def test_the_debug_kernel_goes_on_to_name_the_test():
    assert "panic_on_warn=1" not in kernel_arguments(Machine(kernel="debug"), PATHS)


def after(argv: list[str], option: str) -> list[str]:
    return [value for name, value in itertools.pairwise(argv) if name == option]


def test_kvm_is_never_used():
    for machine in (QEMU, Machine(kernel="6.1", icount=True)):
        argv = qemu_arguments(machine, PATHS, WIRES)
        assert after(argv, "-accel") == ["tcg"]
        assert not any("kvm" in word for word in argv)


def test_icount_is_exact_time():
    argv = qemu_arguments(from_variables({"ICOUNT": "1", "KERNEL": "6.1"}), PATHS, WIRES)
    assert after(argv, "-icount") == ["shift=2,sleep=off"]
    assert after(argv, "-smp") == ["1"]


def test_the_first_simulated_gpus_have_a_pci_device_each():
    """At 0000:01:00.0 and 0000:02:00.0: a root port for each, and no other bridge."""
    devices = after(qemu_arguments(QEMU, PATHS, WIRES), "-device")
    assert [word for word in devices if "pcie-root-port" in word] == [
        f"pcie-root-port,id=slot{number},chassis={number},hotplug=off" for number in (1, 2)
    ]
    assert [word for word in devices if "bochs" in word] == [
        f"bochs-display,bus=slot{number},romfile=" for number in (1, 2)
    ]


@pytest.mark.parametrize(
    "machine",
    [
        Machine(kernel="6.1", systemd=True),
        Machine(kernel="6.1", nvsim=False),
        Machine(kernel="6.1", nvsim=False, kernel_driver="550"),
    ],
)
def test_a_machine_without_nvsim_or_with_udev_has_no_such_device(machine):
    assert not any("bochs" in word for word in qemu_arguments(machine, PATHS, WIRES))


def test_features_are_added_to_those_of_every_machine():
    (plain,) = after(qemu_arguments(QEMU, PATHS, WIRES), "-cpu")
    (more,) = after(qemu_arguments(Machine(cpu_features="+ssse3,+popcnt"), PATHS, WIRES), "-cpu")
    assert more == plain + ",+ssse3,+popcnt"


def test_the_host_is_read_only_and_the_repository_is_not():
    shares = after(qemu_arguments(QEMU, PATHS, WIRES), "-fsdev")
    assert any("path=/," in share and "readonly=on" in share for share in shares)
    assert any("path=/repo," in share and "readonly" not in share for share in shares)


def test_each_wire_is_a_port_of_its_own():
    argv = qemu_arguments(QEMU, PATHS, WIRES)
    for port, fd in WIRES.fds.items():
        assert f"socket,id={port},fd={fd}" in argv
        assert any(f"name=cgpu.{port}" in word for word in argv)


def test_only_a_shell_has_the_terminal():
    assert not any("stdio" in word for word in qemu_arguments(QEMU, PATHS, WIRES))
    assert any("stdio" in word for word in qemu_arguments(Machine(shell=True), PATHS, Wires()))


def test_the_environment_survives_the_shell():
    text = guest_environment(Machine(module_args="a='b c' $(reboot)"), Path("/a repo"), "6.1.0")
    values = dict(line.removeprefix("export ").split("=", 1) for line in text.splitlines())
    assert shlex.split(values["MODULE_ARGS"]) == ["a='b c' $(reboot)"]
    assert shlex.split(values["CGPU_MODULES"]) == ["/a repo/build/modules/uml"]


def test_dockers_own_settings_win():
    assert docker_settings({"storage-driver": "vfs"})["storage-driver"] == "vfs"
    assert docker_settings({})["bridge"] == "none"
