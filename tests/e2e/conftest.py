"""One lab for all end-to-end tests; each test gets it whole: nodes idle, unicrond active."""

import os
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))

from stage import Stage


@pytest.fixture(scope="session")
def raised_stage() -> Iterator[Stage]:
    stage = Stage(os.environ.get("UNICRON_E2E_LAB", "e2e"))  # so that two may run at once
    stage.up()
    yield stage
    stage.down()


@pytest.fixture
def stage(raised_stage: Stage) -> Iterator[Stage]:
    raised_stage.make_whole()
    yield raised_stage
    raised_stage.cancel_all()
