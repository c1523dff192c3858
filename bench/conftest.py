"""Makes `bench` and `e2e` importable when the tests are run from anywhere."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent.parent))
