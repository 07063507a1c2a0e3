# SPDX-License-Identifier: MIT
"""Measurements on a machine with a GPU, or on the simulated driver: tests/hardware/README.md. Standard library only."""
