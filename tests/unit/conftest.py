"""Puts linkworld.py within reach of the tests of the link."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))
