"""FLOPs of an iteration that a run's own ranks counted, where its user told none. Pure.

Each agent beats the sum of its ranks; once all nodes of the generation have told, it is the run's.
"""

from __future__ import annotations

from dataclasses import replace

from unicrond.core.cycle import Cycle
from unicrond.model.run import Run
from unicrond.model.workload import BatchScaling

SAME = 0.01  # a smaller difference between generations is none


def counted(cycle: Cycle, run: Run) -> Run:
    """The run with what its ranks counted, scaled to the workers that its workload is told for."""
    told, assignment = run.workload, run.assignment
    if assignment is None or (told.flops_per_iteration and not told.counted):
        return run
    views = [run.agents.get(node) for node in assignment.nodes]
    flops = [v.flops if v and v.generation == run.generation else 0.0 for v in views]
    if not all(flops):
        return run
    workers = told.workers or assignment.world_size
    grows = told.scaling is BatchScaling.PER_RANK
    whole = sum(flops) * (workers / assignment.world_size if grows else 1.0)
    if abs(whole - told.flops_per_iteration) <= SAME * whole:
        return run
    workload = replace(told, flops_per_iteration=whole, workers=workers, counted=True)
    run = cycle.put(replace(run, workload=workload))
    what = f"its ranks counted {sum(flops):.3g} FLOPs an iteration on {assignment.world_size} GPUs"
    cycle.note("note", what, run)
    return run
