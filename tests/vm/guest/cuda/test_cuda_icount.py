# SPDX-License-Identifier: MIT
"""Shares of NVIDIA's own libcuda, in exact guest time: two plain containers, 1 : 2 by weight."""

from __future__ import annotations

import pytest
from exact_box import ALONE, LOAD, TOLERANCE_PCT, one_to_two

pytestmark = pytest.mark.cuda_icount

#: Two clients of an MPS server of their own; what a line of the second says is not counted twice.
MPS = f"""
export CUDA_MPS_PIPE_DIRECTORY=$(mktemp -d) CUDA_MPS_LOG_DIRECTORY=$(mktemp -d)
nvidia-cuda-mps-control -d
{LOAD} >$CUDA_MPS_LOG_DIRECTORY/second & second=$!
{LOAD} || exit
wait $second || exit
grep -q ACTIVE $CUDA_MPS_LOG_DIRECTORY/server.log || exit
sed 's/^/second /' $CUDA_MPS_LOG_DIRECTORY/second
echo quit | nvidia-cuda-mps-control
"""


@pytest.mark.parametrize("first", [ALONE, MPS], ids=["alone", "two clients of MPS"])
def test_one_to_two(first: str) -> None:
    error, clients = one_to_two(first)
    assert clients == [1 + (first == MPS), 1]
    assert error <= TOLERANCE_PCT
