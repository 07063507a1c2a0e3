# SPDX-License-Identifier: MIT
"""Everything that can go wrong, by whose turn it is to act. Factored out to avoid import loops."""


class CgpuError(Exception):
    """Root of all errors of this package; the text is one sentence for a person."""


class Refused(CgpuError):
    """The container must not start; the sentence goes to whoever started it."""


class BadVariable(Refused):
    """An environment variable has a value that is not allowed."""

    def __init__(self, name: str, value: str, allowed: str) -> None:
        super().__init__(f"{name}={value} is not allowed: it must be {allowed}")
        self.name = name
        self.value = value


class ConfigError(CgpuError):
    """The configuration file has a key or value that is not allowed."""


class ProtocolError(CgpuError):
    """A peer on the socket sent something that is no request."""


class KernelMissing(Refused):
    """The generic netlink family is not there."""

    def __init__(self) -> None:
        super().__init__("the kernel module cgpu_km is not loaded; cgpu status tells how to load it")


class KernelRefused(Refused):
    """The kernel module said no; `code` is the errno."""

    def __init__(self, code: int, text: str) -> None:
        super().__init__(text)
        self.code = code


class Resync(CgpuError):
    """Events were lost: what is known must be read again from the kernel."""
