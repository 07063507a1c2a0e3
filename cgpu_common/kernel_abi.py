# SPDX-License-Identifier: MIT
"""The numbers of cgpu_km/uapi.h. A test compares every one with the header."""

from __future__ import annotations

from enum import IntEnum

ID_MAX = 128
DIR_LEN = 12
MAX_INST_MIN = 1
MAX_INST_MAX = 25
MAX_INST_BURST_MAX = 100
MAX_INST_DEFAULT = 20
MAX_GPUS = 32
PRIO_RATIO_MIN = 20
PRIO_RATIO_MAX = 99
PRIO_RATIO_DEFAULT = 80
SLICE_US_MIN = 1000
SLICE_US_MAX = 100000
OVERCOMMIT_MIN = 100
OVERCOMMIT_MAX = 1000
UVM_NAMES = ("deny", "account")  # by number
MIB = 1048576

GENL_NAME = "cgpu"
GENL_VERSION = 1
GENL_MCGRP_EVENTS = "events"


class Cmd(IntEnum):
    UNSPEC = 0
    CREATE = 1
    DESTROY = 2
    LIST = 3
    SET = 4
    GPUS = 5
    EVENT = 6
    SET_GPU = 7


class Event(IntEnum):
    CREATED = 1
    DYING = 2
    GONE = 3
    REFUSED = 4
    CHANGED = 5
    OVERRUN = 6
    CONTROL_FAILED = 7
    CONTROLS = 8
    POLICY = 9
    ATTACHED = 10
    DETACHED = 11
    CORE = 12
    REDIRECTIONS = 13
    QUOTA = 14


class Attribute(IntEnum):
    """A number, and the type that its content has: u8, u32, u64, string or nest."""

    type: str

    def __new__(cls, number: int, content: str = "") -> Attribute:
        one = int.__new__(cls, number)
        one._value_ = number
        one.type = content
        return one


class A(Attribute):
    """enum cgpu_attr"""

    UNSPEC = 0
    PAD = 1
    ID = 2, "string"
    COOKIE = 3, "u64"
    DIR = 4, "string"
    MAJOR = 5, "u32"
    CTL_MINOR = 6, "u32"
    UVM_MINOR = 7, "u32"
    STATE = 8, "u8"
    SLOTS = 9, "nest"
    SLOT = 10, "nest"
    EVENT = 11, "u32"
    GPU = 12, "nest"
    PID = 13, "u32"
    ASKED = 14, "u64"
    LIMIT = 15, "u64"
    USED = 16, "u64"
    OLD = 17, "u32"
    NEW = 18, "u32"
    INEFFECTIVE = 19, "u32"
    CONTROL = 20, "u32"
    STATUS = 21, "u32"
    OVERRUNS = 22, "u64"
    PREEMPT_SLOW = 23, "u64"
    SUPPRESSED = 24, "u32"
    LOST = 25, "u64"
    CORE = 26, "string"
    CANDIDATE = 27, "string"
    ERRNO = 28, "u32"
    WHY = 29, "string"
    RESOURCE = 30, "string"


class S(Attribute):
    """enum cgpu_slot_attr"""

    UNSPEC = 0
    PAD = 1
    GPU = 2, "u32"
    MINOR = 3, "u32"
    NV_MINOR = 4, "u32"
    LIMIT = 5, "u64"
    USED = 6, "u64"
    WEIGHT = 7, "u32"
    HIGHPRIO = 8, "u8"
    CEILING = 9, "u32"
    HOST_LIMIT = 10, "u64"


class G(Attribute):
    """enum cgpu_gpu_attr"""

    UNSPEC = 0
    PAD = 1
    INDEX = 2, "u32"
    UUID = 3, "string"
    PCI = 4, "string"
    NV_MINOR = 5, "u32"
    TOTAL = 6, "u64"
    POLICY = 7, "u32"
    MAX_INST = 8, "u32"
    FREE_WEIGHT = 9, "u32"
    PRIO_RATIO = 10, "u32"
    SLICE_US = 11, "u32"
    INSTANCES = 12, "u32"
    UVM = 13, "u32"
    DEFAULT_MEMSIZE = 14, "u64"
    OVERCOMMIT = 15, "u32"
    SLICE_IS_SET = 16, "u32"
    USED = 17, "u64"
    DRIVER_FREE = 18, "u64"
    BORN = 19, "u64"
    LIMITS = 20, "u64"
