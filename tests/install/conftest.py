# SPDX-License-Identifier: MIT
"""The folder on the path, for box.py and blocks.py."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent))
