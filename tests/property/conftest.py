"""How long property tests look; `pytest tests/property --hypothesis-profile=thorough`: minutes.

Puts plannerworld.py within their reach too.
"""

import sys
from pathlib import Path

from hypothesis import settings

sys.path.insert(0, str(Path(__file__).parents[1] / "unit"))

settings.register_profile("quick", max_examples=100, deadline=None)
settings.register_profile("thorough", max_examples=5000, deadline=None)
settings.load_profile("quick")
