# SPDX-License-Identifier: MIT OR GPL-2.0-only
"""cgpu_common/policies.py, which daemon and commands read, against the engine's own policies."""

import pytest
from corelib import FREEZE, TIMESLICE, C, ffi, lib

from cgpu_common import policies
from cgpu_common.policies import TABLE, Policy

CONTROLS = {"": 0, "freeze": FREEZE, "timeslice": TIMESLICE}


def slices(engine, weight: int) -> int:
    """Of a container with that weight that has opened the GPU."""
    entity = ffi.new("struct cgpu_sched_entity *", {"weight": weight, "channels": 1})
    return engine.slices(entity)


def test_each_number_has_a_row_and_an_engine():
    assert list(TABLE) == list(Policy) == list(range(lib.CGPU_POLICY_COUNT))
    assert lib.cgpu_policy_get(len(TABLE)) == ffi.NULL
    assert [facts.name for facts in TABLE.values()] == [policy.name.lower() for policy in Policy]


@pytest.mark.parametrize("policy", Policy)
def test_the_row_says_what_the_engine_does(policy):
    facts, engine = TABLE[policy], lib.cgpu_policy_get(policy)
    assert engine.controls == CONTROLS[facts.control]
    assert bool(engine.limits) is facts.limits
    assert bool(engine.fixed_round) is facts.fixed_round
    assert bool(engine.ceilings) is facts.ceilings
    assert (engine.max_inst or C.CGPU_MAX_INST_MAX) == facts.max_inst
    assert (engine.slices != ffi.NULL and slices(engine, 3) > slices(engine, 1)) is facts.weights
    assert (engine.timeslice_us != ffi.NULL) is (facts.control == "timeslice")


def test_a_number_of_a_newer_module_claims_nothing():
    facts = policies.of(len(TABLE))
    assert facts is policies.UNKNOWN
    assert not (facts.weights or facts.ceilings or facts.lends)
    assert policies.of(-1) is policies.UNKNOWN


@pytest.mark.parametrize(
    ("text", "number"),
    [
        ("fair", 0),
        ("Burst", 6),
        ("3", 3),
        (str(len(TABLE)), None),
        ("-1", None),
        ("", None),
        ("wieghted", None),
        ("٣", None),
    ],
)
def test_a_policy_is_named_or_numbered(text, number):
    assert policies.number(text) == number
