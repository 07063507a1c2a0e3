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
    out["CGPU_POLICY_COUNT"] = len(policies.Policy)
    out["CGPU_S_COUNT"], out["CGPU_G_COUNT"] = max(abi.S) + 1, max(abi.G) + 1
    return out


def test_every_number_is_mirrored(header: dict[str, int | str]) -> None:
    ignored = {"CGPU_UAPI_H"}
    assert {name: value for name, value in header.items() if name not in ignored} == mirror()


@pytest.mark.parametrize("prefix", ["CGPU_S_", "CGPU_G_"])
def test_every_attribute_is_sent_by_the_module(header: dict[str, int | str], prefix: str) -> None:
    """A number that no message carries is read as its default."""
    sources = "".join((HEADER.parent / name).read_text() for name in ("admin/netlink.c", "state/notify.c"))
    names = {name for name in header if name.startswith(prefix)}
    sent = set(re.findall(rf"nla_put_\w+\(skb, ({prefix}\w+)", sources))
    assert sent == names - {f"{prefix}{name}" for name in ("UNSPEC", "PAD", "COUNT")}


def test_policy_names_stand_once() -> None:
    """The header's, in policies.py."""
    root = HEADER.parents[1]
    sources = sorted([*root.glob("cgpu_common/**/*.py"), *root.glob("cgpud/**/*.py"), *root.glob("cli/**/*.py")])
    assert len(sources) > 40
    assert [p.name for p in sources if re.search(r"[\"']fair[\"'],", p.read_text())] == ["policies.py"]
