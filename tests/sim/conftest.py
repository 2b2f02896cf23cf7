"""Puts the simulated world within reach of its tests; how many seeds chaos is played with.

`pytest tests/sim --seeds 1000`: half an hour.
"""

import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    if "seed" in metafunc.fixturenames:
        metafunc.parametrize("seed", range(metafunc.config.getoption("seeds")))
