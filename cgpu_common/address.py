# SPDX-License-Identifier: MIT
"""PURE: the key `metrics` of the configuration -> the address of the metrics server."""

from __future__ import annotations

import ipaddress
import posixpath
from dataclasses import dataclass

from cgpu_common.errors import ConfigError

# A scraper mounts the directory of the socket: not that of cgpud's own socket, which takes requests of root.
RESERVED = ("/run/cgpu", "/var/run/cgpu")


@dataclass(frozen=True, slots=True)
class Unix:
    path: str


@dataclass(frozen=True, slots=True)
class Tcp:
    host: str
    port: int


def parse(text: str) -> Unix | Tcp | None:
    """`unix:/path` or `address:port`; empty: no server. No host name. A wildcard address needs TLS: check_tls()."""
    if not text:
        return None
    if text.startswith("unix:"):
        path = text.removeprefix("unix:")
        if not path.startswith("/") or "\0" in path or len(path.encode()) > 107:
            raise ConfigError(f"metrics must be unix: and an absolute path of at most 107 bytes, not {text!r}")
        directory = posixpath.dirname(posixpath.normpath("/" + path.lstrip("/")))
        if any(f"{directory}/".startswith(f"{reserved}/") for reserved in RESERVED) or directory in (
            "/run",
            "/var/run",
        ):
            raise ConfigError(
                f"metrics must not be in {directory}, which a scraper would mount together with cgpud's own socket; "
                f"unix:/run/cgpu-metrics/metrics.sock is the usual place"
            )
        return Unix(path)
    host, colon, port = text.rpartition(":")
    if host.startswith("[") and host.endswith("]"):
        host = host[1:-1]
    elif ":" in host:
        raise ConfigError(f"metrics must have an IPv6 address in brackets, not {text!r}")
    try:
        address = ipaddress.ip_address(host)
    except ValueError:
        raise ConfigError(f"metrics must be unix:/path or an IP address and a port, not {text!r}") from None
    if address.is_multicast:
        raise ConfigError(f"metrics must name the address to be served on, not {text!r}")
    if not (colon and port.isascii() and port.isdecimal() and 0 < int(port) < 65536):
        raise ConfigError(f"metrics must have a port from 1 to 65535, not {text!r}")
    return Tcp(host, int(port))


def check_tls(where: Unix | Tcp | None, tls: str) -> None:
    """Every address of a node, without TLS, is one that the world may reach. Raises ConfigError. @tls: the folder of
    the certificates; "": none."""
    if isinstance(where, Unix) and tls:
        raise ConfigError(f"metrics_tls is for an IP address, and metrics is unix:{where.path}")
    if isinstance(where, Tcp) and not tls and ipaddress.ip_address(where.host).is_unspecified:
        raise ConfigError(
            f"metrics must name the address to be served on, or have metrics_tls, not {where.host!r} alone: every "
            f"host that reaches the node could read it"
        )
