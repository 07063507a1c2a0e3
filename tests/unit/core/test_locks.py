# SPDX-License-Identifier: MIT OR GPL-2.0-only
"""No lock for which several containers wait can be held by a task that sleeps: the table of docs/develop/bounds.md."""

import re
from pathlib import Path

ROOT = Path(__file__).resolve().parents[3]
PAGE = (ROOT / "docs/develop/bounds.md").read_text()
SOURCES = [
    path
    for path in sorted((ROOT / "cgpu_km").rglob("*.[ch]"))
    if "core" not in path.relative_to(ROOT / "cgpu_km").parts
]
MEMBER = re.compile(r"^\tstruct (mutex|rw_semaphore) (\w+);|^\t(spinlock)_t (\w+);")
STATIC = re.compile(r"^(?:static )?(?:DEFINE|DECLARE)_(MUTEX|SPINLOCK|RWSEM)\((\w+)\);")
KINDS = {"MUTEX": "mutex", "SPINLOCK": "spinlock", "RWSEM": "rw_semaphore"}
TAKEN = re.compile(r"\b(?:mutex_lock\w*|down_read|down_write)\(&(?:\w+(?:->|\.))*(\w+)[,)]")


def declared() -> dict[str, str]:
    """Each lock of the module, a member by its struct, and its kind."""
    found: dict[str, str] = {}
    for path in SOURCES:
        inside = ""
        for line in path.read_text().splitlines():
            if opened := re.match(r"struct (\w+) {", line):
                inside = opened[1]
            elif line.startswith("}"):
                inside = ""
            elif member := MEMBER.match(line):
                kind, name = member[1] or member[3], member[2] or member[4]
                found[f"{inside}.{name}"] = kind
            elif static := STATIC.match(line):
                found[static[2]] = KINDS[static[1]]
    return found


def rows() -> dict[str, tuple[str, str]]:
    """Lock of the page -> its kind, and whose tasks take it."""
    table = PAGE.split("\n## Locks\n")[1].split("\n## ")[0]
    found: dict[str, tuple[str, str]] = {}
    for line in re.findall(r"^\| `.*\|$", table, re.M):
        names, kind, tasks = (cell.strip() for cell in line.strip("|").split("|"))
        found |= dict.fromkeys(re.findall(r"`([\w.]+)`", names), (kind, tasks))
    return found


def test_the_page_has_every_lock():
    assert declared() == {name: kind for name, (kind, _) in rows().items()}
    assert len(rows()) > 15


def test_a_lock_that_several_containers_take_is_a_spinlock():
    """A task that holds a mutex can be throttled by its cgroup before it drops it."""
    assert [n for n, (kind, tasks) in rows().items() if tasks.startswith("each container") and kind != "spinlock"] == []


def functions() -> list[tuple[str, str]]:
    function = re.compile(r"^\w[^\n;]*?(\w+)\([^\n;]*\n\{\n(.*?)^\}", re.M | re.S)
    return [found for path in SOURCES for found in function.findall(path.read_text())]


def test_a_driver_call_under_the_lock_of_opens_is_a_workers():
    """A reader of N/stat would hold up attach, detach and the system's sleep while its cgroup throttles it."""
    found = [name for name, body in functions() if "down_read(&gpu->open_lock)" in body]
    assert sorted(found) == ["heap_work", "read_samples"], "read_samples() is a part of check_work()"


def test_tasks_that_wait_for_a_worker_do_not_take_all():
    """An item on the stack is one for each task that waits: any user of the host may read N/stat, by any number."""
    found = {name: body for name, body in functions() if "INIT_WORK_ONSTACK" in body}
    assert "freeze_new" in found
    assert [name for name, body in found.items() if not re.search(r"mutex_lock\(.*queue_work\(", body, re.S)] == []


def test_a_tenants_call_takes_no_other_mutex():
    """In the layer of the calls. uvm_late.c is a work item."""
    own = {name.rpartition(".")[2] for name, (_, tasks) in rows().items() if tasks.startswith("one container")}
    for path in SOURCES:
        if "intercept" in path.parts and path.name != "uvm_late.c":
            assert set(TAKEN.findall(path.read_text())) - own == set(), path
