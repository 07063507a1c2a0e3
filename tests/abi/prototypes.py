# SPDX-License-Identifier: MIT
"""The functions of the driver that the module calls or stands in for: their arguments against NVIDIA's prototypes.

A layout that is wrong shows in the first call; an argument that is missing is whatever was in its register. Compared
are the number of arguments, and of each one whether it is a pointer, and its width.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import ogkm

KM = Path(__file__).resolve().parents[2] / "cgpu_km"
#: Bytes of each type that a prototype here or there has.
WIDTHS = {
    "void": 0,
    **dict.fromkeys(("u8", "bool", "NvU8", "NvBool"), 1),
    **dict.fromkeys(("u32", "s32", "int", "NvU32", "NvS32", "NV_STATUS", "NvHandle", "unsigned int"), 4),
    **dict.fromkeys(("nv_power_state_t", "nv_pm_action_depth_t", "nv_ioctl_export_to_dma_buf_fd_t"), 4),
    **dict.fromkeys(("u64", "NvU64", "NvP64", "size_t", "unsigned long"), 8),
}
#: Types that are pointers without a star.
POINTERS = {"nvidia_modeset_stack_ptr", "uvmGpuDeviceHandle", "uvmGpuAddressSpaceHandle", "uvmGpuSessionHandle"}
#: Functions that the module calls by their address: return, arguments.
CALLED = {
    "nv_get_adapter_state": "void *(u32 domain, u8 bus, u8 slot)",
    "nv_get_dev_minor": "u32 (void *nv)",
    "nvidia_get_rm_ops": "u32 (void *ops)",
    "os_unlock_user_pages": "u32 (u64 count, void *pages, u32 flags)",
    "rm_client_free_os_events": "void (u32 client)",
}
#: Of those, the ones that older releases have without the last argument, which they then do not read.
ONE_LESS = {"os_unlock_user_pages"}
#: Members of struct nv_rm_ops that hold from that branch on, in place of another one.
SINCE = {"open_gpu_595": ("open_gpu", 595), "close_gpu_595": ("close_gpu", 595)}

#: The first branch that no longer has the function.
UNTIL = {"uvm_api_create_range_group": 610, "uvm_api_destroy_range_group": 610}


@dataclass(frozen=True)
class Prototype:
    """Widths in bytes; a pointer is "p"."""

    returns: int | str
    arguments: tuple[int | str, ...]


def width(text: str) -> int | str:
    """Of one argument or return type, with or without its name."""
    words = [w for w in re.findall(r"\w+|\*|\[", text) if w not in ("const", "struct", "enum", "extern", "static")]
    words = [w for w in words if w not in ("NV_API_CALL", "noinline", "__user")]
    if "*" in words or "[" in words or words[0] in POINTERS:
        return "p"
    for name in (" ".join(words[:2]), words[0]):
        if name in WIDTHS:
            return WIDTHS[name]
    raise ValueError(f"the width of {text.strip()!r} is not known")


def prototype(returns: str, arguments: str) -> Prototype:
    parts = [part.strip() for part in arguments.split(",")]
    return Prototype(width(returns), () if parts in ([""], ["void"]) else tuple(map(width, parts)))


def bare(text: str) -> str:
    return re.sub(r"/\*.*?\*/|//[^\n]*", " ", text, flags=re.S)


def members(text: str) -> dict[str, Prototype]:
    """The pointers to functions of a struct."""
    found = re.findall(r"^\s*([\w ]+[ *])\(\*(\w+)\)\(([^;]*)\);", bare(text), re.M)
    return {name: prototype(returns, arguments) for returns, name, arguments in found}


def stand_ins() -> Iterator[tuple[str, Prototype]]:
    """(the driver's function, ours in its place) of every table of redirections."""
    for path in sorted(KM.rglob("*.c")):
        text = path.read_text()
        for symbol, ours in re.findall(r'\{ "(\w+)", (\w+)(?:,\s*\w+)? \}', text):
            body = re.search(rf"^static ([\w *]+?){ours}\(([^)]*)\)\n{{", text, re.M)
            if body and "ckm_redirection" in text:
                yield symbol, prototype(body[1], body[2])


def ours(branch: int) -> dict[str, Prototype]:
    """What the module takes the functions of that branch to be."""
    text = (KM / "driver/rm_ops.h").read_text()
    block = re.search(r"^struct nv_rm_ops {\n(.*?)^};", text, re.M | re.S)[1]
    found = members(block)
    for name, (instead, since) in SINCE.items():
        newer = found.pop(name)
        if branch >= since:
            found[instead] = newer
    replaced = {name: mine for name, mine in stand_ins() if branch < UNTIL.get(name, branch + 1)}
    return found | written(CALLED) | replaced


def written(texts: dict[str, str]) -> dict[str, Prototype]:
    """Of lines as CALLED has them."""
    return {name: prototype(*re.fullmatch(r"(.*?)\((.*)\)", text).groups()) for name, text in texts.items()}


def theirs(tree: ogkm.Tree, names: set[str]) -> dict[str, Prototype]:
    """The driver's own prototypes of those functions."""
    headers = [p for folder in (ogkm.COMMON, ogkm.UVM, ogkm.UNIX) for p in sorted((tree.root / folder).rglob("*.h"))]
    found = {}
    for path in headers:
        text = bare(path.read_text(errors="replace"))
        if path.name == "nv-modeset-interface.h":
            found |= {k: v for k, v in members(text).items() if k in names}
        for returns, name, arguments in re.findall(r"^([\w \t*]+[\s*])(\w+)\s*\(([^;{}()]*)\)\s*;", text, re.M):
            if name in names and name not in found:
                found[name] = prototype(returns, arguments)
    return found


def differences(here: dict[str, Prototype], there: dict[str, Prototype]) -> list[str]:
    """A result may be wider than the driver's: its caller looks at its part. What stands in for a function may have
    more arguments than an old release has: it hands them on to that function, which does not read them.
    """
    handed_on = {name for name, _ in stand_ins()}
    wrong = []
    for name, mine in here.items():
        if name not in there:
            wrong.append(f"{name}: no prototype in the headers")
            continue
        other = there[name]
        fits = mine.returns == other.returns or (
            "p" not in (mine.returns, other.returns) and int(mine.returns) >= int(other.returns)
        )
        count = len(mine.arguments)
        if name in handed_on or (name in ONE_LESS and len(other.arguments) == count - 1):
            count = len(other.arguments)
        if mine.arguments[:count] != other.arguments or not fits:
            wrong.append(f"{name}: {mine.arguments} -> {mine.returns} here, {other.arguments} -> {other.returns} there")
    return wrong
