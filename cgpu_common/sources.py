# SPDX-License-Identifier: MIT
"""What a limit of connections by source counts."""

from __future__ import annotations

import ipaddress


def source(host: str) -> str:
    """What a limit by source counts: an IPv4 address, or a host's network of IPv6, of which it has all addresses."""
    address = ipaddress.ip_address(host.partition("%")[0])
    if isinstance(address, ipaddress.IPv4Address):
        return str(address)
    if address.ipv4_mapped is not None:
        return str(address.ipv4_mapped)
    return str(ipaddress.IPv6Network((address, 64), strict=False))
