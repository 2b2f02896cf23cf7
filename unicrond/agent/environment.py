"""The environment of one rank: as torchrun sets it, Slurm's rank variables rewritten. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from unicron.page import VARIABLE as PAGE
from unicrond.model.run import Assignment, Slot

MARKER = "UNICRON_RANKS_OF"  # by this a rank's stray children are found
MEMBER = "UNICRON_MEMBER"
WAITS = "UNICRON_WAITS"  # says so to a rank that is prepared, and in no generation yet
# a job that a rank submits is none of ours
_HIDDEN = (
    "UNICRON_SECRET",
    "UNICRON_FACTS",
    "UNICRON_SPAWNED",
    "UNICRON_BASE",
    "UNICRON_WISHES",
)


@dataclass(frozen=True, slots=True)
class Place:
    """What all ranks of one agent share in one generation."""

    run_id: int
    marker: str
    master_address: str
    master_port: int
    socket: str


def marker(run_id: int, node: str, agent: str = "") -> str:
    """Of one agent's ranks; without an agent, how the markers of all agents there begin."""
    return f"{run_id}/{node}/{agent}"


def rank_environment(
    base: Mapping[str, str], assignment: Assignment, slot: Slot, place: Place
) -> dict[str, str]:
    environment = {key: value for key, value in base.items() if key not in _HIDDEN}
    environment.setdefault("OMP_NUM_THREADS", "1")
    environment.update(of_generation(assignment, slot, place))
    environment.update(
        {
            "PYTHONUNBUFFERED": "1",
            "UNICRON_SOCKET": place.socket,
            MEMBER: slot.member,
            MARKER: place.marker,
        }
    )
    return environment


def of_generation(assignment: Assignment, slot: Slot, place: Place) -> dict[str, str]:
    """What changes with the generation: a member that is kept is told it anew."""
    return {
        **_torchrun(assignment, slot, place),
        **_slurm(assignment, slot),
        "UNICRON_GENERATION": str(assignment.generation),
    }


def of_each_rank(environment: Mapping[str, str]) -> dict[str, str]:
    """Of a rank's environment what no other rank has alike."""
    return {name: value for name, value in environment.items() if name in OF_EACH_RANK}


def _torchrun(assignment: Assignment, slot: Slot, place: Place) -> dict[str, str]:
    nodes = assignment.nodes
    local = sum(1 for other in assignment.slots if other.node == slot.node)
    world = str(assignment.world_size)
    return {
        "RANK": str(slot.rank),
        "LOCAL_RANK": str(slot.local_rank),
        "WORLD_SIZE": world,
        "LOCAL_WORLD_SIZE": str(local),
        "GROUP_RANK": str(nodes.index(slot.node)),
        "GROUP_WORLD_SIZE": str(len(nodes)),
        "ROLE_NAME": "default",
        "ROLE_RANK": str(slot.rank),
        "ROLE_WORLD_SIZE": world,
        "MASTER_ADDR": place.master_address,
        "MASTER_PORT": str(place.master_port),
        "TORCHELASTIC_RUN_ID": str(place.run_id),
        "TORCHELASTIC_RESTART_COUNT": str(assignment.generation - 1),
        "TORCHELASTIC_MAX_RESTARTS": "1000000",
        "TORCHELASTIC_USE_AGENT_STORE": "False",
    }


def _slurm(assignment: Assignment, slot: Slot) -> dict[str, str]:
    """Under one srun task a node all ranks would see the same numbers; Lightning believes them."""
    return {
        "SLURM_PROCID": str(slot.rank),
        "SLURM_LOCALID": str(slot.local_rank),
        "SLURM_NTASKS": str(assignment.world_size),
        "SLURM_NPROCS": str(assignment.world_size),
        "SLURM_NODEID": str(assignment.nodes.index(slot.node)),
    }


_ANY = Slot(0, "", "", 0)
_OF_GENERATION = of_generation(Assignment(0, "", (_ANY,)), _ANY, Place(0, "", "", 0, ""))
OF_EACH_RANK = frozenset({*_OF_GENERATION, MARKER, MEMBER, PAGE, WAITS})
