"""For every run and whatever was measured: intervals hold the estimate, and widen away from it."""

import math
from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from planner.iteration import SIDE, Fit, Measured, fit
from unicrond.model.workload import BatchScaling, Layout, Workload

LAYOUTS = st.sampled_from([(Layout(),), (Layout(2, 1),), (Layout(2, 2), Layout(4, 1))])
WORKLOADS = st.builds(
    Workload,
    flops_per_iteration=st.sampled_from([0.0, 1e12, 1e17]),
    scaling=st.sampled_from(BatchScaling),
    micro_batches=st.sampled_from([0, 4096]),
    parameters=st.sampled_from([0.0, 7e9]),
    layouts=LAYOUTS,
    workers=st.sampled_from([4, 16, 64]),
)
SIZES = st.sampled_from([4, 8, 16, 32, 64])
SEEN = st.builds(Measured, SIZES, st.lists(st.floats(1e-3, 1e3), min_size=1, max_size=6).map(tuple))
MEASURED = st.lists(SEEN, min_size=1, max_size=4, unique_by=lambda m: m.workers)


def half_width(found: Fit, workers: int) -> float:
    estimate = found.estimate(workers)
    assert estimate is not None
    assert 0 < estimate.low <= estimate.rate <= estimate.high < math.inf
    return math.log(estimate.high / estimate.rate)


@given(WORKLOADS, MEASURED, st.sampled_from(["", "h100"]))
def test_the_interval_widens_away_from_what_was_seen(
    workload: Workload, measured: list[Measured], gpu: str
) -> None:
    found = fit(workload, measured, gpu)
    assert found is not None
    largest = max(measured, key=lambda m: m.workers).workers
    # one doubling after the other; noise may be more than the departure there
    widths = [half_width(found, largest * 2**i) for i in range(6)]
    unseen = widths[1:]
    assert all(a <= b * (1 + 1e-6) for a, b in pairwise(unseen))
    assert widths[1] >= widths[0] * (1 - 1e-6)


@given(WORKLOADS, MEASURED, st.sampled_from(["", "h100"]))
def test_a_size_that_was_measured_is_as_sure_as_its_measurement(
    workload: Workload, measured: list[Measured], gpu: str
) -> None:
    found = fit(workload, measured, gpu)
    assert found is not None
    for seen in measured:
        assert half_width(found, seen.workers) <= SIDE * seen.noise * (1 + 1e-6)
