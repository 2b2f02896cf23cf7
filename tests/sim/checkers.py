"""Cluster-wide truths, checked after every turn of a simulated world."""

from __future__ import annotations

from collections import defaultdict

from world import World

from unicrond.model.decision import ActionKind
from unicrond.model.run import Phase

_RANKS = (Phase.STARTING, Phase.RUNNING)


class Checkers:
    """Keeps what must be compared between turns."""

    def __init__(self) -> None:
        self._generation: dict[int, int] = {}
        self._seen = 0
        self._places: dict[tuple[int, str], tuple[str, int]] = {}  # of members, by run
        self._dead: set[tuple[int, str]] = set()

    def __call__(self, world: World) -> None:
        self.generations_never_fall(world)
        self.one_generation_of_a_run_has_ranks(world)
        self.members_live_once_and_stay_where_they_are(world)
        self.no_node_is_in_two_runs(world)
        self.actions_are_sound(world)

    def generations_never_fall(self, world: World) -> None:
        for run in world.core.state.runs.values():
            assert run.generation >= self._generation.get(run.run_id, 0)
            self._generation[run.run_id] = run.generation

    @staticmethod
    def one_generation_of_a_run_has_ranks(world: World) -> None:
        for job in world.agents.jobs.values():
            alive = {a.generation for a in job.agents.values() if a.alive and a.phase in _RANKS}
            assert len(alive) <= 1, f"run {job.wish.run_id}: ranks of generations {alive} at once"

    def members_live_once_and_stay_where_they_are(self, world: World) -> None:
        """A process keeps its node and its GPU, and nobody who died comes back under his name."""
        alive = {
            (job.wish.run_id, slot.member): (agent.agent, slot.local_rank)
            for job in world.agents.jobs.values()
            for agent in job.agents.values()
            for slot in agent.slots()
        }
        assert not alive.keys() & self._dead
        for member, place in alive.items():
            assert self._places.setdefault(member, place) == place, member
        self._dead |= self._places.keys() - alive.keys()

    @staticmethod
    def no_node_is_in_two_runs(world: World) -> None:
        users: dict[str, set[int]] = defaultdict(set)
        for run_id, job in world.agents.jobs.items():
            for agent in job.agents.values():
                if agent.alive and agent.phase in _RANKS and agent.node not in world.agents.cut:
                    users[agent.node].add(run_id)
        assert all(len(runs) == 1 for runs in users.values()), dict(users)

    def actions_are_sound(self, world: World) -> None:
        nodes = world.slurm.snapshot().nodes or {}
        for action in world.performed[self._seen :]:
            assert action.key.incident_id > 0
            if action.kind is ActionKind.START_RANKS and action.node in nodes:
                assert not nodes[action.node].reason.startswith("unicron: "), action
        self._seen = len(world.performed)
