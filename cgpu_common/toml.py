# SPDX-License-Identifier: MIT
"""tomllib, which Python 3.10, Ubuntu 22.04's, takes from the package that it comes from."""

from __future__ import annotations

import sys

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

__all__ = ["tomllib"]
