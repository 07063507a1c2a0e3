# SPDX-License-Identifier: MIT
"""cgpu and cgpu-smi: what is on the GPUs, and the few things an administrator changes."""
