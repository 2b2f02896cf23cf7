"""Every number that the decisions depend on. Units last; defaults are conservative."""

from __future__ import annotations

from dataclasses import dataclass

from unicrond.model.decision import Mode


@dataclass(frozen=True, slots=True)
class Policy:
    mode: Mode = Mode.OBSERVE
    # noticing
    silence_seconds: float = 3.0  # of an agent, before it is suspected
    lease_seconds: float = 5.0  # after which a cut agent has stopped its ranks
    lease_margin_seconds: float = 1.0
    startup_grace_seconds: float = 5.0  # for agents to find unicrond again after its restart
    close_grace_seconds: float = 1.0  # for an agent whose connection broke to dial anew
    many_silent_fraction: float = 0.5  # of all agents of two or more runs: call a person instead
    many_silent_minimum: int = 4
    many_silent_wait_seconds: float = 10.0  # for the run's own word on them, before the call
    many_lost_fraction: float = 0.5  # of a run's nodes, lost at once and missed by its survivors
    terminated_grace_seconds: float = 10.0  # for the others, when Slurm ends a job
    # steps of a heal
    regroup_timeout_seconds: float = 10.0  # for survivors to wait, and then to take new places
    prepare_timeout_seconds: float = 120.0  # for ranks of nodes that join to load what they need
    stop_timeout_seconds: float = 15.0
    start_timeout_seconds: float = 60.0
    spawn_timeout_seconds: float = 30.0
    confirm_timeout_seconds: float = 90.0  # past it an unconfirmed loss is left undrained
    release_timeout_seconds: float = 90.0  # for lost nodes to leave the job before its requeue
    requeue_timeout_seconds: float = 120.0
    resend_seconds: float = 5.0  # an order without an outcome is sent again
    # nodes that go and come
    leave_before_seconds: float = 300.0  # ahead of a maintenance window
    companion_timeout_seconds: float = 120.0  # for a companion job to start
    companion_limit_seconds: float = 14_400.0  # of a companion job: Slurm backfills short ones
    companion_qos: str = ""  # that a companion is submitted with, "": its base's
    companion_partition: str = ""
    keep_freed_nodes: bool = False  # for a run that is requeued, by a reservation of two minutes
    return_settle_seconds: float = 60.0  # a lost node must be well for so long before it is used
    quarantine_seconds: float = 21_600.0  # the same, where it was lost three times in a day
    # plans (plans.py)
    plan_seconds: float = 30.0  # what it was made from is older: dropped
    regrow_seconds: float = 300.0  # after a run gave nodes back, or could not grow
    hands_off_seconds: float = 3_600.0  # after a person changed its size
    # giving up
    progress_seconds: float = (
        60.0  # a generation without iterations that lived this long progressed
    )
    restarts_without_progress: int = 3
    # budgets
    drains_per_hour: int = 4
    returns_per_hour: int = 4  # of nodes that we drained when they were lost
    restarts_per_hour: int = 20  # of one run
    resizes_per_hour: int = 30  # by plans, of all runs
    user_resizes_per_hour: int = 12  # by plans, of all runs of one user
    user_moves_per_hour: int = 8  # of all runs of one user, on the word of its agents alone
