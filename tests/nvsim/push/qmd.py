# SPDX-License-Identifier: MIT
"""QMDs by the fields of the public headers: clc5c0qmd.h, clc6c0qmd.h, clcbc0qmd.h."""

from __future__ import annotations

from dataclasses import dataclass

TURING, AMPERE, HOPPER = 0xC5C0, 0xC6C0, 0xCBC0


@dataclass
class Layout:
    """Fields by name: (high bit, low bit), as the headers' MW(high:low)."""

    cls: int
    version: tuple[int, int]
    words: int
    fields: dict[str, tuple[int, int]]

    def make(self, **values: int) -> bytes:
        """A QMD with these fields; the others are zero."""
        bits = 0
        values = {"major": self.version[0], "minor": self.version[1], **values}
        for name, value in values.items():
            high, low = {"major": (583, 580), "minor": (579, 576), **self.fields}[name]
            assert 0 <= value < 1 << high - low + 1, name
            bits |= value << low
        return bits.to_bytes(self.words * 4, "little")


GRID = {"x": (415, 384), "y": (431, 416), "z": (463, 448)}
V02 = {
    **GRID, "release0": (138, 138), "release1": (139, 139), "address0": (775, 736), "address1": (871, 832),
    "op0": (790, 788), "signed0": (793, 792), "reduce0": (794, 794), "one_word0": (799, 799), "payload0": (831, 800),
    "one_word1": (895, 895), "payload1": (927, 896), "next": (141, 141), "pointer": (511, 480),
}  # fmt: skip
V02_03 = Layout(TURING, (2, 3), 64, {**V02, "action": (142, 142)})
V02_04 = Layout(AMPERE, (2, 4), 64, {**V02, "action": (144, 142), "counter": (157, 151)})
V03_00 = Layout(AMPERE, (3, 0), 64, {
    **GRID, "release0": (823, 823), "address0": (807, 768), "op0": (822, 820), "signed0": (825, 824),
    "reduce0": (826, 826), "trap0": (828, 827), "wide0": (829, 829), "one_word0": (831, 830), "payload0": (895, 832),
    "release1": (951, 951), "address1": (935, 896), "one_word1": (959, 958), "payload1": (1023, 960),
    "release2": (1719, 1719), "address2": (1703, 1664), "one_word2": (1727, 1726), "payload2": (1791, 1728),
    "next": (512, 512), "action": (515, 513), "pointer": (511, 480), "counter": (157, 142),
})  # fmt: skip
V04_00 = Layout(HOPPER, (4, 0), 96, {
    "x": (1055, 1024), "y": (1071, 1056), "z": (1103, 1088), "type": (25, 23), "counter": (15, 0), "live": (303, 288),
    "release0": (320, 320), "one_word0": (322, 321), "reduce0": (324, 324), "op0": (327, 325), "signed0": (329, 328),
    "trap0": (331, 330), "wide0": (332, 332), "address0": (696, 640), "payload0": (767, 704),
    "release1": (336, 336), "one_word1": (338, 337), "address1": (824, 768), "payload1": (895, 832),
    "release2": (352, 352), "one_word2": (354, 353), "address2": (952, 896), "payload2": (1023, 960),
    "next": (368, 368), "action": (371, 369), "pointer": (479, 448),
    "next1": (373, 373), "action1": (376, 374), "pointer1": (511, 480),
})  # fmt: skip
LAYOUTS = [V02_03, V02_04, V03_00, V04_00]
