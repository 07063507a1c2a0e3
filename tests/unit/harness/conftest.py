# SPDX-License-Identifier: MIT
"""The harness's own tests: `vm.harness` lies beside them."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))
