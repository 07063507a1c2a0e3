# SPDX-License-Identifier: MIT
"""The certificates of the metrics server: a folder with tls.crt and tls.key, its own pair, and ca.crt, the authority of
its clients. A client without a certificate of that authority gets nothing."""

from __future__ import annotations

import ssl
from pathlib import Path

from cgpu_common.errors import CgpuError

FILES = ("tls.crt", "tls.key", "ca.crt")


def stamps(folder: str) -> tuple[tuple[int, int] | None, ...]:
    """Time and size of each file, None where it cannot be read: another value after a renewal."""
    found: list[tuple[int, int] | None] = []
    for name in FILES if folder else ():
        try:
            one = Path(folder, name).stat()
        except OSError:
            found.append(None)
        else:
            found.append((one.st_mtime_ns, one.st_size))
    return tuple(found)


def context(folder: str) -> ssl.SSLContext:
    """Raises CgpuError with the file that is bad."""
    found = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    found.minimum_version = ssl.TLSVersion.TLSv1_2
    found.verify_mode = ssl.CERT_REQUIRED
    certificate, key, authority = (Path(folder, name) for name in FILES)
    try:
        found.load_cert_chain(certificate, key)
    except (OSError, ssl.SSLError) as error:
        raise CgpuError(f"{certificate}, {key}: {_why(error)}") from error
    try:
        found.load_verify_locations(authority)
    except (OSError, ssl.SSLError) as error:
        raise CgpuError(f"{authority}: {_why(error)}") from error
    return found


def _why(error: OSError) -> str:
    """SSLError is an OSError, with a sentence in place of an errno's."""
    return error.strerror or str(error)
