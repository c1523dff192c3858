"""This folder is called as a module of the standard library is: `operator`.

pytest (importmode=importlib) names test modules after their folders, and puts the folder in place of the standard
module as their parent, once: when it loads this file. Here the standard one comes back, and is the parent of
`operator.tests` besides.
"""

from __future__ import annotations

import sys
from importlib.machinery import PathFinder
from importlib.util import module_from_spec
from pathlib import Path

_spec = PathFinder.find_spec("operator")
assert _spec is not None
assert _spec.loader is not None
_standard = module_from_spec(_spec)
_spec.loader.exec_module(_standard)
_standard.__path__ = [str(Path(__file__).parent.parent)]
sys.modules["operator"] = _standard
