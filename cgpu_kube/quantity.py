# SPDX-License-Identifier: MIT
"""PURE: quantities of Kubernetes, as `6Gi`, `1536Mi`, `500m`, `1e3`.

The grammar and the canonical form are those of resource.Quantity (k8s.io/apimachinery, pkg/api/resource/quantity.go):
a signed decimal number and a binary suffix (Ki to Ei), a decimal one (n, u, m, k, M to E) or an exponent.
"""

from __future__ import annotations

import re
from fractions import Fraction

from cgpu_kube.errors import BadQuantity

MIB = 1 << 20
LENGTH_MAX = 64  # a bound for the arithmetic: exponents make numbers long
EXPONENT_MAX = 18
BINARY = {suffix: 1 << (10 * power) for power, suffix in enumerate(("Ki", "Mi", "Gi", "Ti", "Pi", "Ei"), start=1)}
DECIMAL = {
    "n": Fraction(1, 10**9),
    "u": Fraction(1, 10**6),
    "m": Fraction(1, 10**3),
    "": Fraction(1),
    **{suffix: Fraction(10 ** (3 * power)) for power, suffix in enumerate("kMGTPE", start=1)},
}
_QUANTITY = re.compile(r"([+-]?(?:[0-9]+\.?[0-9]*|\.[0-9]+))([KMGTPE]i|[numkMGTPE]?|[eE][+-]?[0-9]{1,2})\Z", re.ASCII)


def parse(text: object) -> Fraction:
    """The exact value; bytes for memory. Raises BadQuantity."""
    shown = str(text)[:LENGTH_MAX]
    if isinstance(text, bool) or not isinstance(text, str | int) or len(str(text)) > LENGTH_MAX:
        raise BadQuantity(f"{shown!r} is not a quantity")
    found = _QUANTITY.match(str(text))
    if found is None:
        raise BadQuantity(f"{shown!r} is not a quantity: a number with a unit, as 6Gi or 1536Mi")
    number, suffix = Fraction(found[1]), found[2]
    if suffix in BINARY:
        return number * BINARY[suffix]
    if suffix in DECIMAL:
        return number * DECIMAL[suffix]
    exponent = int(suffix[1:])
    if abs(exponent) > EXPONENT_MAX:
        raise BadQuantity(f"{shown!r} has an exponent above {EXPONENT_MAX}")
    return number * Fraction(10) ** exponent


def whole(text: object) -> int:
    """A quantity that must be a whole number of at least 0, as a number of devices. Raises BadQuantity."""
    value = parse(text)
    if value.denominator != 1 or value < 0:
        raise BadQuantity(f"{str(text)[:LENGTH_MAX]!r} is not a whole number of at least 0")
    return int(value)


def mib(text: object) -> int:
    """Bytes as whole MiB, rounded up. Raises BadQuantity for 0 and less."""
    value = parse(text)
    if value <= 0:
        raise BadQuantity(f"{str(text)[:LENGTH_MAX]!r} is not an amount of memory above 0")
    return int(-(-value // MIB))


def of_mib(value: int) -> str:
    """The canonical form of a number of MiB: the largest binary unit without a fraction (6144 -> 6Gi)."""
    if value == 0:
        return "0"
    for suffix in ("Ei", "Pi", "Ti", "Gi"):
        unit = BINARY[suffix] // MIB
        if value % unit == 0:
            return f"{value // unit}{suffix}"
    return f"{value}Mi"
