# SPDX-License-Identifier: MIT
"""kernel_abi.py against cgpu_km/uapi.h, which only the preprocessor has to read."""

from __future__ import annotations

import re
import shutil
import subprocess
from pathlib import Path

import pytest

from cgpu_common import kernel_abi as abi
from cgpu_common import policies

HEADER = Path(__file__).resolve().parents[3] / "cgpu_km/uapi.h"


def _evaluate(text: str) -> dict[str, int]:
    """Every enumerator; one without a value gets the value that C gives it."""
    values: dict[str, int] = {}
    for body in re.findall(r"enum\s+\w+\s*\{(.*?)\}", text, re.S):
        current = -1
        for entry in filter(None, (part.strip() for part in body.split(","))):
            name, _, number = (part.strip() for part in entry.partition("="))
            current = int(number, 0) if number else current + 1
            values[name] = current
    return values


@pytest.fixture(scope="module")
def header() -> dict[str, int | str]:
    cc = shutil.which("cc") or shutil.which("gcc")
    if cc is None:
        pytest.skip("no C compiler")
    enums = subprocess.run([cc, "-E", "-P", str(HEADER)], capture_output=True, text=True, check=True).stdout
    macros = subprocess.run([cc, "-E", "-dM", str(HEADER)], capture_output=True, text=True, check=True).stdout
    values: dict[str, int | str] = dict(_evaluate(enums))
    for name, value in re.findall(r"^#define (CGPU_\w+) +(\S.*)$", macros, re.M):
        values[name] = value.strip('"') if value.startswith('"') else int(value, 0)
    return values


def mirror() -> dict[str, int | str]:
    out: dict[str, int | str] = {
        f"CGPU_{name}": value
        for name, value in vars(abi).items()
        if name.isupper() and isinstance(value, int | str) and not isinstance(value, type)
    }
    for prefix, kind in (
        ("CGPU_POLICY_", policies.Policy),
        ("CGPU_CMD_", abi.Cmd),
        ("CGPU_EVENT_", abi.Event),
        ("CGPU_A_", abi.A),
        ("CGPU_S_", abi.S),
        ("CGPU_G_", abi.G),
    ):
        out.update({prefix + member.name: int(member) for member in kind})
    out["CGPU_POLICY_COUNT"], out["CGPU_POLICIES_WIDE"] = len(policies.Policy), policies.WIDE
    out["CGPU_S_COUNT"], out["CGPU_G_COUNT"] = max(abi.S) + 1, max(abi.G) + 1
    return out


def test_every_number_is_mirrored(header: dict[str, int | str]) -> None:
    ignored = {"CGPU_UAPI_H"}
    assert {name: value for name, value in header.items() if name not in ignored} == mirror()


PUTS = {"u8": "u8", "u32": "u32", "u64": "u64_64bit", "string": "string"}


@pytest.mark.parametrize("kind", [abi.A, abi.S, abi.G])
def test_every_attribute_is_sent_by_the_module_as_its_type(kind: type[abi.Attribute]) -> None:
    """A number that no message carries would be read as its default."""
    sources = "".join(path.read_text() for path in sorted(HEADER.parent.rglob("*.c")))
    sent = re.findall(rf"nla_put_(\w+)\(skb, CGPU_{kind.__name__}_(\w+)", sources)
    sent += [("nest", name) for name in re.findall(rf"nla_nest_start\(skb, CGPU_{kind.__name__}_(\w+)", sources)]
    wanted = {(PUTS.get(one.type, one.type), one.name) for one in kind if one.name not in ("UNSPEC", "PAD")}
    assert set(sent) == wanted, "cgpu_km/admin/netlink.c, cgpu_km/state/notify.c or cgpu_common/kernel_abi.py"


@pytest.mark.parametrize("kind", [abi.A, abi.S, abi.G])
def test_the_header_and_the_page_have_each_type(kind: type[abi.Attribute]) -> None:
    """The header where its comment begins with one."""
    page = (HEADER.parents[1] / "docs/reference/netlink.md").read_text()
    letter, wanted = kind.__name__, {one.name: one.type for one in kind if one.name != "UNSPEC"}
    assert dict(re.findall(rf"^\| {letter}_(\w+) \| \d+ \| (\w*) ?\|", page, re.M)) == wanted, "netlink.md section 2"
    said = dict(re.findall(rf"CGPU_{letter}_(\w+)\s*= \d+,\s*/\* (u8|u32|u64|string|nest)\b", HEADER.read_text()))
    assert {name: wanted[name] for name in said} == said, "cgpu_km/uapi.h"
    assert len(said) > 5


def test_what_can_be_set_of_a_gpu_is_the_same_everywhere() -> None:
    """An attribute that only the policy of netlink.c has would be accepted and ignored."""
    root = HEADER.parents[1]
    types = {one.name: one.type for one in abi.G}
    macro = re.search(r"#define CKM_GPU_SETTABLE\b(.*?)\n\n", (root / "cgpu_km/admin/settings.h").read_text(), re.S)
    body = re.search(r" gpu_policy\[.*?\n};", (root / "cgpu_km/admin/netlink.c").read_text(), re.S)
    assert macro and body
    settable = set(re.findall(r"BIT\(CGPU_G_(\w+)\)", macro[1]))
    parsed = dict(re.findall(r"\[CGPU_G_(\w+)\]\s*= { \.type = NLA_(\w+) }", body[0]))
    assert {name: kind.lower() for name, kind in parsed.items()} == {name: types[name] for name in (*settable, "INDEX")}
    values = (root / "cgpu_km/admin/settings.c").read_text()
    assert set(re.findall(r"\tcase CGPU_G_(\w+):", values)) == settable, "try_value()"
    assert set(re.findall(r"CGPU_G_(\w+)\s*= \d+,\s*/\* [^*]*; set\b", HEADER.read_text())) == settable, "uapi.h"
    page = (root / "docs/reference/netlink.md").read_text()
    assert set(re.findall(r"^\| G_(\w+) \| .*\bset\b", page, re.M)) == settable, "netlink.md section 2"


def test_the_pages_have_the_range_of_max_inst() -> None:
    """That of the table in policies.py, and the kernel's own sentence."""
    folder = HEADER.parents[1] / "docs/reference"
    above = f"max_inst is above {abi.MAX_INST_MAX}, which only {policies.WIDE} takes"
    netlink = " ".join((folder / "netlink.md").read_text().split())
    assert f"policy: {above}" in netlink and f"max_inst: {policies.MAX_INST_RANGE};" in netlink
    (row,) = re.findall(r"^\| `N/max_inst` \|.*", (folder / "proc.md").read_text(), re.M)
    wide = f"{abi.MAX_INST_MIN}…{abi.MAX_INST_MAX}, under {policies.WIDE} to {abi.MAX_INST_BURST_MAX}"
    assert f"| {wide} ({abi.MAX_INST_MAX} containers); {abi.MAX_INST_DEFAULT} |" in row
    row = f"| `policy` | EBUSY | `max_inst`{above.removeprefix('max_inst')} |"
    assert row in (folder / "policies.md").read_text().splitlines()


def test_policy_names_stand_once() -> None:
    """The header's, in policies.py."""
    root = HEADER.parents[1]
    sources = sorted([*root.glob("cgpu_common/**/*.py"), *root.glob("cgpud/**/*.py"), *root.glob("cli/**/*.py")])
    assert len(sources) > 40
    assert [p.name for p in sources if re.search(r"[\"']fair[\"'],", p.read_text())] == ["policies.py"]
