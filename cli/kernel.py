# SPDX-License-Identifier: MIT
"""Changes to the module: by netlink, whose refusals have a sentence, or by the files of a copied tree.

The libraries of netlink take longer to import than everything else, so only a change imports them.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Callable, Coroutine, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Protocol

from cgpu_common.exits import CgpuError, Exit, not_permitted, refused
from cgpu_common.model import Container, SlotWant
from cgpu_common.proc import LIVE, Paths, is_loaded, no_module, read_node, write_node

if TYPE_CHECKING:
    from cgpu_common.link import KernelLink

PREFIX = "cgpu_km: "


class Kernel(Protocol):
    """Each method raises CgpuError, and then has changed nothing."""

    def create(self, container_id: str, cookie: int | None, slots: Sequence[SlotWant]) -> None: ...

    def destroy(self, container: Container, what: str) -> None: ...

    def set_container(self, container: Container, gpus: Sequence[int], node: str, value: int, what: str) -> None: ...

    def set_gpu(self, gpu: int, node: str, value: int, what: str) -> None: ...


def open_link() -> KernelLink:
    from cgpu_common.netlink import NetlinkLink

    return NetlinkLink()


def in_words(what: str, node: str, code: int, text: str) -> CgpuError:
    """The error for a refusal: the module's sentence, where it has one, else the words for the errno."""
    plain = refused(what, node, OSError(code, os.strerror(code)))
    sentence = text.removeprefix(PREFIX)
    if plain.code is Exit.NOT_PERMITTED or sentence == os.strerror(code):
        return plain
    of_node = sentence.removeprefix(f"{node}: ")
    if code == errno.EINVAL and of_node != sentence:
        return CgpuError(plain.code, what, "out of range", of_node, code)
    return CgpuError(plain.code, what, of_node, plain.hint if code in (errno.ENOSPC, errno.EBUSY) else "", code)


class Netlink:
    """The running module."""

    def __init__(self, paths: Paths) -> None:
        self._paths = paths

    def _run(self, what: str, node: str, call: Callable[[KernelLink], Coroutine[Any, Any, Any]]) -> Any:
        import asyncio

        from cgpu_common.errors import KernelMissing, KernelRefused

        try:
            return asyncio.run(call(open_link()))
        except KernelMissing:
            if not is_loaded(self._paths):
                raise no_module(self._paths, what) from None
            hint = "run it in the host's, or write to /proc/cgpu_km"
            raise CgpuError(
                Exit.NOT_PERMITTED, what, "the module is not seen from this network namespace", hint
            ) from None
        except KernelRefused as error:
            raise in_words(what, node, error.code, str(error)) from None
        except OSError as error:
            if error.errno in (errno.EPERM, errno.EACCES):
                raise not_permitted(what) from None
            raise

    def create(self, container_id: str, cookie: int | None, slots: Sequence[SlotWant]) -> None:
        self._run(f"create {container_id}", "", lambda link: link.create(container_id, cookie or 0, slots))

    def destroy(self, container: Container, what: str) -> None:
        """By the cookie: a container that has taken the id meanwhile is another one."""
        if not self._run(what, "", lambda link: link.destroy(container.id, container.cookie)):
            raise CgpuError(Exit.NOT_FOUND, what, "it has just ended", "cgpu ps")

    def set_container(self, container: Container, gpus: Sequence[int], node: str, value: int, what: str) -> None:
        from cgpu_common.kernel_abi import S

        attr = {
            "weight": S.WEIGHT,
            "memsize": S.LIMIT,
            "highprio": S.HIGHPRIO,
            "ceiling": S.CEILING,
            "host_memsize": S.HOST_LIMIT,
        }[node]
        values = {gpu: {attr: value} for gpu in gpus}
        self._run(what, node, lambda link: link.set(container.id, container.cookie, values))

    def set_gpu(self, gpu: int, node: str, value: int, what: str) -> None:
        from cgpu_common.kernel_abi import G

        self._run(what, node, lambda link: link.set_gpu(gpu, {G[node.upper()]: value}))


class Files:
    """A copied tree, for tests: the same changes as writes of its files."""

    def __init__(self, paths: Paths) -> None:
        self._proc = paths.proc

    def create(self, container_id: str, cookie: int | None, slots: Sequence[SlotWant]) -> None:
        lists: Mapping[str, list[int]] = {
            "gpu": [one.gpu for one in slots],
            "memsize": [one.limit for one in slots],
            "weight": [one.weight for one in slots],
        }
        if any(one.ceiling for one in slots):
            lists = {**lists, "ceiling": [one.ceiling for one in slots]}
        words = [f"{name}={','.join(map(str, values))}" for name, values in lists.items()]
        words += ["highprio=1"] if any(one.highprio for one in slots) else []
        words += [f"cookie={cookie:#x}"] if cookie is not None else []
        write_node(self._proc / "inst_ctl", " ".join(["create", container_id, *words]), f"create {container_id}")

    def destroy(self, container: Container, what: str) -> None:
        write_node(self._proc / "inst_ctl", f"destroy {container.id} cookie={container.cookie:#x}", what)

    def set_container(self, container: Container, gpus: Sequence[int], node: str, value: int, what: str) -> None:
        done: list[tuple[int, str]] = []
        for gpu in gpus:
            path = self._proc / str(gpu) / container.dir / node
            try:
                before = read_node(path)
                write_node(path, str(value), what)
                done.append((gpu, before))
            except CgpuError:
                for earlier, old in reversed(done):
                    write_node(self._proc / str(earlier) / container.dir / node, old, f"undo {what}")
                raise

    def set_gpu(self, gpu: int, node: str, value: int, what: str) -> None:
        text = ("deny", "account")[value] if node == "uvm" else str(value)
        write_node(self._proc / str(gpu) / node, text, what)


def kernel(paths: Paths) -> Kernel:
    return Netlink(paths) if paths.proc == LIVE else Files(paths)
