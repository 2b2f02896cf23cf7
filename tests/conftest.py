"""For all tests: what importing and collecting left is not searched for garbage again and again."""

import gc

import pytest


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--seeds", type=int, default=5, help="of each kind of simulated chaos")


def pytest_collection_finish() -> None:
    gc.collect()
    gc.freeze()
