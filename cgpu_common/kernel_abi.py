# SPDX-License-Identifier: MIT
"""The numbers of cgpu_km/uapi.h. A test compares every one with the header."""

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


class A(IntEnum):
    """enum cgpu_attr"""

    UNSPEC = 0
    PAD = 1
    ID = 2
    COOKIE = 3
    DIR = 4
    MAJOR = 5
    CTL_MINOR = 6
    UVM_MINOR = 7
    STATE = 8
    SLOTS = 9
    SLOT = 10
    EVENT = 11
    GPU = 12
    PID = 13
    ASKED = 14
    LIMIT = 15
    USED = 16
    OLD = 17
    NEW = 18
    INEFFECTIVE = 19
    CONTROL = 20
    STATUS = 21
    OVERRUNS = 22
    PREEMPT_SLOW = 23
    SUPPRESSED = 24
    LOST = 25
    CORE = 26
    CANDIDATE = 27
    ERRNO = 28
    WHY = 29
    RESOURCE = 30


class S(IntEnum):
    """enum cgpu_slot_attr"""

    UNSPEC = 0
    PAD = 1
    GPU = 2
    MINOR = 3
    NV_MINOR = 4
    LIMIT = 5
    USED = 6
    WEIGHT = 7
    HIGHPRIO = 8
    CEILING = 9
    HOST_LIMIT = 10


class G(IntEnum):
    """enum cgpu_gpu_attr"""

    UNSPEC = 0
    PAD = 1
    INDEX = 2
    UUID = 3
    PCI = 4
    NV_MINOR = 5
    TOTAL = 6
    POLICY = 7
    MAX_INST = 8
    FREE_WEIGHT = 9
    PRIO_RATIO = 10
    SLICE_US = 11
    INSTANCES = 12
    UVM = 13
    DEFAULT_MEMSIZE = 14
    OVERCOMMIT = 15
    SLICE_IS_SET = 16
    USED = 17
    DRIVER_FREE = 18
    BORN = 19
    LIMITS = 20
