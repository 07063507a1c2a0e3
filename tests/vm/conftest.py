# SPDX-License-Identifier: MIT
"""The harness's own tests run here; guest_tests run in the machine (`make test-vm`)."""

import os

collect_ignore = [] if "CGPU_VM" in os.environ else ["guest_tests"]
