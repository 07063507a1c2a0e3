# SPDX-License-Identifier: MIT
"""The exceptions of the daemon. A module of their own avoids import cycles."""


class CgpuError(Exception):
    """Base class of all errors of this package; the text is one sentence for the user."""


class Refused(CgpuError):
    """The container must not start; the engine shows the sentence to the user."""


class ContainerGone(Refused):
    """The engine has given the container up during its start and removed its bundle; nothing was refused."""

    def __init__(self, bundle: str) -> None:
        super().__init__(f"the engine gave the container up during its start: {bundle} is gone; nothing is held for it")


class BadVariable(Refused):
    """An environment variable has a value that is not allowed."""

    def __init__(self, name: str, value: str, allowed: str) -> None:
        super().__init__(f"{name}={value} is not allowed: it must be {allowed}")
        self.name = name
        self.value = value


class ConfigError(CgpuError):
    """The configuration file has a key or value that is not allowed."""


class ProtocolError(CgpuError):
    """A peer on the socket sent an invalid request."""


class KernelMissing(Refused):
    """The generic netlink family is not registered."""

    def __init__(self) -> None:
        super().__init__("the kernel module cgpu_km is not loaded; cgpu-smi shows how to load it")


class KernelRefused(Refused):
    """The kernel module refused a request; `code` is the errno."""

    def __init__(self, code: int, text: str) -> None:
        super().__init__(text)
        self.code = code


class Resync(CgpuError):
    """Events were lost: the state has to be read again from the kernel."""
