"""FLOP/s by number of workers."""

import numpy as np
import pytest

from planner.throughput import Curve, Model


def test_a_curve_is_straight_between_its_points_and_unknown_outside() -> None:
    flops = Curve([(2, 10.0), (4, 18.0), (8, 20.0)]).table(10)
    assert np.isnan(flops[[0, 1, 9, 10]]).all()
    assert flops[[2, 3, 4, 6, 8]].tolist() == [10.0, 14.0, 18.0, 19.0, 20.0]


def test_a_model_counts_the_micro_batches_of_the_busiest_replica() -> None:
    flops = Model(flops_per_iteration=12.0, micro_batches=6, micro_batch_seconds=1.0).table(8)
    assert flops[[1, 2, 3]].tolist() == [2.0, 4.0, 6.0]
    assert flops[4] == flops[5] == flops[3], "six micro-batches on 4 or 5 replicas: two rounds too"
    assert flops[6] == 12.0
    assert np.isnan(flops[[0, 7, 8]]).all(), "a replica without a micro-batch is of no use"


def test_a_replica_may_span_workers_and_pays_for_its_all_reduce() -> None:
    model = Model(12.0, micro_batches=2, micro_batch_seconds=1.0, allreduce_seconds=2.0)
    wide = Model(12.0, 2, 1.0, allreduce_seconds=2.0, replica_workers=4)
    assert model.table(2)[[1, 2]] == pytest.approx([6.0, 6.0])
    assert wide.table(9)[[4, 8]] == pytest.approx([6.0, 6.0])
    assert np.isnan(wide.table(9)[[1, 2, 3, 5, 6, 7, 9]]).all()
