"""For all tests: what importing and collecting left is not searched for garbage again and again."""

import gc


def pytest_collection_finish() -> None:
    gc.collect()
    gc.freeze()
