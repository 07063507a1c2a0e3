# SPDX-License-Identifier: MIT
"""cgpud: the node daemon that admits containers to slices of a GPU and follows them to their end."""
