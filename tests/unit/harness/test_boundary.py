# SPDX-License-Identifier: MIT
"""docs/develop/boundary.md against the code: every table of operations that the module gives to the kernel."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

REPO = next(p for p in Path(__file__).resolve().parents if (p / "VERSION").exists())
PAGE = (REPO / "docs/develop/boundary.md").read_text()

#: Structs of the kernel by which it calls a module on behalf of a process.
KINDS = (
    "file_operations",
    "vm_operations_struct",
    "super_operations",
    "inode_operations",
    "dentry_operations",
    "address_space_operations",
    "fs_context_operations",
    "mmu_interval_notifier_ops",
    "mmu_notifier_ops",
    "dma_buf_ops",
    "proc_ops",
    "seq_operations",
    "genl_small_ops",
    "genl_ops",
    "attribute_group",
    "proto_ops",
    "bin_attribute",
)
TABLE = re.compile(rf"^(?:static )?(?:const )?struct (?:{'|'.join(KINDS)}) (\w+)(?:\[\])? = {{(.*?)}};", re.M | re.S)
ROW = re.compile(r"^\| `([\w>-]+)` \(`(cgpu_km/[\w/.]+)`\) \| ([\w, ]+) \| ", re.M)


def operations(body: str) -> set[str]:
    """The members that a table sets; of commands their handlers."""
    handlers = re.findall(r"\.(?:doit|dumpit) = (\w+)", body)
    members = re.findall(r"\.(\w+)\s*=", body)
    return set(handlers) if handlers else {m.removeprefix("proc_") for m in members if m != "owner"}


def tables_of(text: str) -> dict[str, set[str]]:
    return {name: operations(body) for name, body in TABLE.findall(text)}


def written() -> dict[tuple[str, str], set[str]]:
    """(table, file): operations, as the page has them."""
    return {(table, file): set(words.split(", ")) for table, file, words in ROW.findall(PAGE)}


def test_each_table_of_operations_is_on_the_page():
    there = {}
    for path in sorted((REPO / "cgpu_km").rglob("*.c")):
        for table, words in tables_of(path.read_text()).items():
            there[table, str(path.relative_to(REPO))] = words
    assert len(there) > 7
    page = {key: words for key, words in written().items() if "->" not in key[0]}
    assert page == there


def test_what_is_set_by_a_member_is_on_the_page():
    """A table inside another struct: `guard.release = …`, `ops.release = …`."""
    there: dict[str, set[str]] = {}
    for path in sorted((REPO / "cgpu_km").rglob("*.c")):
        text = path.read_text()
        for variable, member, word in re.findall(r"\b(\w+)->(guard|(?:view_)?ops)\.(\w+) = ", text):
            there.setdefault(f"{variable}->{member}", set()).add(word)
    page = {table: words for (table, _), words in written().items() if "->" in table}
    assert page == {table: words - {"owner"} for table, words in there.items()}


@pytest.mark.parametrize("kind", KINDS)
def test_a_table_of_that_kind_would_be_found(kind: str):
    text = f"static const struct {kind} some = {{\n\t.first\t= a,\n\t.owner = b,\n}};\n"
    assert tables_of(text) == {"some": {"first"}}


#: Of the OCI runtime specification 1.3, config.md and config-linux.md.
PARTS = {
    *("ociVersion", "root", "mounts", "hostname", "domainname", "hooks", "annotations", "vm"),
    *(
        f"process.{name}"
        for name in (
            *("terminal", "consoleSize", "cwd", "env", "args", "user", "rlimits", "apparmorProfile", "capabilities"),
            *("noNewPrivileges", "oomScoreAdj", "scheduler", "selinuxLabel", "ioPriority", "execCPUAffinity"),
        )
    ),
    *(
        f"linux.{name}"
        for name in (
            *("namespaces", "uidMappings", "gidMappings", "timeOffsets", "devices", "netDevices", "cgroupsPath"),
            *("resources", "rootfsPropagation", "maskedPaths", "readonlyPaths", "mountLabel", "personality"),
            *("intelRdt", "memoryPolicy", "sysctl", "seccomp"),
        )
    ),
}


def test_each_part_of_a_containers_configuration_is_on_the_page():
    section = PAGE.partition("\n## 4. ")[2].partition("\nA file that is damaged")[0]
    rows = [line.split(" | ")[0] for line in section.splitlines() if line.startswith("| `")]
    named = [name for row in rows for name in re.findall(r"`([\w.]+)`", row)]
    assert sorted(named) == sorted(PARTS)


def test_the_tests_that_the_page_names_exist():
    files = sorted((REPO / "tests").rglob("test_*.py"))
    there = {path.stem for path in files}
    there |= {
        found for path in files for found in re.findall(r"^(?:async )?def (test_\w+)", path.read_text(), re.MULTILINE)
    }
    named = set(re.findall(r"\btest_\w+", PAGE))
    assert len(named) > 15 and not named - there
