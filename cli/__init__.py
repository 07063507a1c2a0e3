# SPDX-License-Identifier: MIT
"""cgpu and cgpu-smi: show the GPUs and their containers, change their settings."""
