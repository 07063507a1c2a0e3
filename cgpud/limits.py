# SPDX-License-Identifier: MIT
"""PURE: the documented fractions of a GPU -> bytes."""

from cgpu_common.model import MIB


def limit_mib(total_mib: int, container: int, dev: int) -> int:
    """floor(total x CONTAINER / DEV): "1 GiB" is one DEV-th of the card, not 2^30 bytes."""
    return total_mib * container // dev


def limit_bytes(total_mib: int, container: int, dev: int) -> int:
    return limit_mib(total_mib, container, dev) * MIB
