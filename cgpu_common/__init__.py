# SPDX-License-Identifier: MIT
"""What the daemon, the command line and cgpu-kube have in common. It imports none of them."""
