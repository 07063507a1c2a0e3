# SPDX-License-Identifier: MIT
"""PURE: the documented fractions of a GPU -> bytes."""

from cgpu_common.model import MIB

#: ctx_reserve_mib of cgpu_km: the least that it charges for a context. What contexts take is in the GPU's stat.
CONTEXT_MIB = 32


def limit_mib(total_mib: int, container: int, dev: int) -> int:
    """floor(total x CONTAINER / DEV): "1 GiB" is one DEV-th of the card, not 2^30 bytes."""
    return total_mib * container // dev


def limit_bytes(total_mib: int, container: int, dev: int) -> int:
    return limit_mib(total_mib, container, dev) * MIB
