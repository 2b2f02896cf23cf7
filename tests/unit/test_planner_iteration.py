"""How long iterations take: what is learned, what stays prior, and how sure it is."""

import math
from dataclasses import replace

import numpy as np
import pytest

from planner.iteration import Estimate, Fit, Measured, fit
from unicrond.model.workload import BatchScaling, Layout, Workload

TOLD = Workload(
    flops_per_iteration=1.7e17, scaling=BatchScaling.FIXED, micro_batches=512, workers=64
)


def learned(workload: Workload, *measured: Measured, gpu: str = "h100") -> Fit:
    found = fit(workload, measured, gpu)
    assert found is not None
    return found


def at(found: Fit, workers: int) -> Estimate:
    estimate = found.estimate(workers)
    assert estimate is not None
    return estimate


def test_without_flops_and_measurements_nothing_is_known() -> None:
    assert fit(Workload(), ()) is None


def test_before_anything_is_measured_the_prior_speaks_within_a_factor_of_three() -> None:
    found = at(learned(TOLD), 64)
    assert found.seconds == pytest.approx(1.7e17 / (0.4 * 989e12 * 64), rel=0.2)
    assert 2 < found.high / found.rate < 4
    assert not found.measured


def test_an_unknown_gpu_makes_the_prior_wider() -> None:
    known, unknown = at(learned(TOLD), 64), at(learned(TOLD, gpu="abacus"), 64)
    assert unknown.high / unknown.rate > 2 * known.high / known.rate


def test_what_was_measured_is_what_is_said_of_that_size() -> None:
    found = at(learned(TOLD, Measured(64, (9.0, 9.1, 8.9, 9.0))), 64)
    assert found.seconds == pytest.approx(9.0, rel=0.005)
    assert found.rate == pytest.approx(1.7e17 / 9.0, rel=0.005)
    assert found.low < found.rate < found.high < 1.03 * found.rate
    assert found.measured


def test_one_window_with_a_checkpoint_in_it_hardly_counts() -> None:
    found = at(learned(TOLD, Measured(64, (9.0, 9.1, 30.0, 8.9, 9.0))), 64)
    assert found.seconds == pytest.approx(9.0, rel=0.01)


def test_two_sizes_tell_compute_from_communication() -> None:
    def seconds(replicas: int) -> float:
        return 512 / replicas * 0.02 + 0.06 * (replicas - 1) / replicas

    one = learned(TOLD, Measured(64, (seconds(64),) * 4))
    two = learned(TOLD, Measured(64, (seconds(64),) * 4), Measured(16, (seconds(16),) * 4))
    assert two.parameters()[1].from_data > one.parameters()[1].from_data + 0.2
    for found in (one, two):
        assert at(found, 256).low < 1.7e17 / seconds(256) < at(found, 256).high
    near = abs(math.log(at(two, 256).seconds / seconds(256)))
    assert near < abs(math.log(at(one, 256).seconds / seconds(256)))


def test_a_fixed_batch_takes_as_long_as_its_fullest_replica() -> None:
    few = replace(TOLD, micro_batches=10, workers=5)
    found = learned(few, Measured(5, (2.0,) * 8))
    five, nine, ten = (at(found, size) for size in (5, 9, 10))
    assert nine.seconds > 0.95 * five.seconds  # two micro-batches each, for somebody
    assert ten.seconds < 0.75 * nine.seconds  # one each
    assert found.estimate(11) is None  # there is nothing to do for the eleventh


def test_a_batch_that_grows_with_the_world_takes_as_long_on_more_workers() -> None:
    found = learned(Workload(), Measured(8, (1.0,) * 4), gpu="")
    assert found.unit == "samples/s"
    assert at(found, 64).seconds == pytest.approx(1.0, rel=0.1)
    assert at(found, 64).rate == pytest.approx(64.0, rel=0.1)


def test_flops_told_for_a_growing_batch_grow_with_it() -> None:
    told = replace(TOLD, scaling=BatchScaling.PER_RANK, micro_batches=0)
    found = learned(told, Measured(64, (9.0,) * 4))
    assert at(found, 32).rate == pytest.approx(1.7e17 / 2 / at(found, 32).seconds)


def test_a_fixed_batch_without_flops_is_counted_in_iterations() -> None:
    found = learned(Workload(scaling=BatchScaling.FIXED), Measured(8, (1.0,) * 4))
    assert found.unit == "iterations/s"
    assert at(found, 8).rate == pytest.approx(1.0, rel=0.01)
    assert 0.5 < at(found, 16).seconds < 0.8


def test_only_legal_layouts_are_counted_on() -> None:
    layouts = (Layout(4, 2), Layout(8, 2))
    found = learned(replace(TOLD, layouts=layouts), Measured(64, (9.0,) * 4))
    assert found.estimate(4) is None and found.estimate(12) is None
    assert found.estimate(8) is not None and found.estimate(24) is not None


def test_what_reality_contradicts_is_not_believed() -> None:
    found = learned(replace(TOLD, layouts=(Layout(3, 1),)), Measured(64, (9.0,) * 4))
    assert found.doubt.startswith("it ran on 64 workers")
    assert at(found, 64).measured and found.estimate(5) is not None
    assert learned(TOLD, Measured(64, (9.0,) * 4)).doubt == ""


def test_few_micro_batches_fill_a_pipeline_badly() -> None:
    short = replace(TOLD, micro_batches=16, workers=16, layouts=(Layout(1, 4),))
    found = learned(short, Measured(16, (1.0,) * 8))
    # 4 replicas: 4 + 3 slots of time for 4 micro-batches; 16 replicas: 1 + 3 slots for one
    assert at(found, 64).seconds == pytest.approx(4 / 7, rel=0.15)


def test_the_models_size_narrows_what_communication_may_take() -> None:
    plain, sized = learned(TOLD), learned(replace(TOLD, parameters=7e9))
    wide = [p.high / p.low for p in (plain.parameters()[1], sized.parameters()[1])]
    assert wide[1] < wide[0]


def test_noise_of_the_measurements_moves_the_estimate_by_no_more_than_itself() -> None:
    rng = np.random.default_rng(5)
    steady = at(learned(TOLD, Measured(64, (9.0,) * 16)), 128).rate
    for _ in range(20):
        noisy = tuple(9.0 * np.exp(0.05 * rng.standard_normal(16)))
        assert at(learned(TOLD, Measured(64, noisy)), 128).rate == pytest.approx(steady, rel=0.06)
