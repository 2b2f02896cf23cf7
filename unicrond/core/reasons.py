"""Why Slurm took a node out of service, where it says so. A person's drain is no failure.

set by slurmd, slurmctld or a health check that names broken hardware   every run leaves the node
set by them for anything else                        kept a while: it may be why a rank ends there
set by a person, or by us                            left alone
"""

from __future__ import annotations

from collections.abc import Mapping

from detectors.classification import classify
from detectors.verdict import Kind
from unicrond.core.cycle import Cycle
from unicrond.core.guards import OUR_REASON
from unicrond.core.hardware import BY_SLURM, on_hardware
from unicrond.model.cluster import Node, NodeState
from unicrond.model.incident import Signal, SignalKind

# Slurm's daemons, and what they run: a health check is root's. So may a person be, whose words
# then fit no rule, as "maintenance" fits none.
DAEMONS = ("slurm", "root")
NO_RULE = ("guess.", "unknown", "harmless")


def on_nodes(cycle: Cycle, before: Mapping[str, Node]) -> None:
    """Each reason once, when it is new; what was so before we came is known."""
    for node in cycle.state.nodes.values():
        known = before.get(node.name)
        if known is None or not node.reason or known.reason == node.reason:
            continue
        signal = _told(node, cycle.now)
        if signal is not None:
            on_hardware(cycle, signal)


def _told(node: Node, now: float) -> Signal | None:
    """None for what is no failure, and for a lost connection, which is noticed otherwise."""
    if node.state is NodeState.UP or node.reason_user not in DAEMONS:
        return None
    verdict = classify(BY_SLURM, node.reason)
    unsure = verdict.rule.startswith(NO_RULE) or node.reason.startswith(OUR_REASON)
    if unsure or not verdict.is_failure or verdict.kind is Kind.LOST:
        return None
    data: dict[str, object] = {
        "source": BY_SLURM, "kind": str(verdict.kind), "severity": str(verdict.severity),
    }  # fmt: skip
    return Signal(now, SignalKind.HARDWARE, None, node.name, text=node.reason, data=data)
