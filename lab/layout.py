"""What a lab is made of: its size, names, addresses, users and paths. Touches nothing.

        head 10.77.0.254   mariadbd munged slurmdbd slurmctld unicrond
          |
         br0 ---- v1 ---- n1 10.77.0.1   slurmd, the jobs' processes
           \\---- v2 ---- n2 10.77.0.2   ...

Paths are those of an installed system (/etc/slurm, /run/munge, /opt/unicron ...), seen from inside;
on the host's side all of them lie under the lab's state directory.
"""

import json
import re
from dataclasses import asdict, dataclass
from pathlib import Path

from lab.errors import LabError

LABS = Path("/var/lib/unicron-lab")
HEAD_ADDRESS = "10.77.0.254"
AGENT_PORT = 7717
MOST_NODES = 200
MOST_GPUS = 32


@dataclass(frozen=True)
class User:
    """An account of the lab; it exists in the lab's own /etc alone."""

    name: str
    uid: int
    home: str
    shell: str = "/usr/sbin/nologin"


# The numbers lie between those that Debian, systemd and directories hand out.
SERVICE_USERS = (
    User("slurm", 60911, "/nonexistent"),
    User("munge", 60912, "/nonexistent"),
    User("mysql", 60913, "/nonexistent"),
    User("unicron", 60914, "/var/lib/unicron", "/bin/bash"),
)
PEOPLE = (
    User("alice", 60921, "/home/alice", "/bin/bash"),
    User("bob", 60922, "/home/bob", "/bin/bash"),
)
USERS = SERVICE_USERS + PEOPLE
USER_NAMES = ("root", *(user.name for user in USERS))


@dataclass(frozen=True)
class LabSpec:
    """What `up` is asked for."""

    nodes: int = 6
    gpus_per_node: int = 8
    nodes_per_switch: int = 0  # 0: no topology is told
    cpus_per_node: int = 32
    slurmd_timeout_seconds: int = 30
    kill_wait_seconds: int = 5
    unicrond: bool = False
    unicron_toml: str | None = None

    def __post_init__(self) -> None:
        _within("nodes", self.nodes, 1, MOST_NODES)
        _within("gpus_per_node", self.gpus_per_node, 0, MOST_GPUS)
        _within("nodes_per_switch", self.nodes_per_switch, 0, MOST_NODES)
        _within("cpus_per_node", self.cpus_per_node, 1, 1024)
        _within("slurmd_timeout_seconds", self.slurmd_timeout_seconds, 5, 3600)
        _within("kill_wait_seconds", self.kill_wait_seconds, 1, 600)

    @property
    def node_names(self) -> list[str]:
        return [f"n{number}" for number in range(1, self.nodes + 1)]

    def to_json(self) -> str:
        return json.dumps(asdict(self), indent=1)

    @staticmethod
    def from_json(text: str) -> "LabSpec":
        return LabSpec(**json.loads(text))


def _within(field: str, value: int, least: int, most: int) -> None:
    if not least <= value <= most:
        raise LabError(f"{field} is {value}: choose a number from {least} to {most}")


def node_number(node: str) -> int:
    return int(node.removeprefix("n"))


def node_address(node: str) -> str:
    return f"10.77.0.{node_number(node)}"


def link_name(node: str) -> str:
    """The head's end of the node's cable."""
    return f"v{node_number(node)}"


@dataclass(frozen=True)
class LabPaths:
    """Where a lab's files are, as the host sees them."""

    name: str

    def __post_init__(self) -> None:
        if not re.fullmatch(r"[a-z0-9][a-z0-9-]{0,30}", self.name):
            raise LabError(f"lab name {self.name!r}: use a-z, 0-9 and -, at most 31 characters")

    @property
    def state(self) -> Path:
        return LABS / self.name

    @property
    def root(self) -> Path:
        """Holds etc, opt, home ...: each is bound over the directory of that name."""
        return self.state / "root"

    @property
    def home(self) -> Path:
        return self.root / "home"

    @property
    def log(self) -> Path:
        return self.root / "var/log"

    @property
    def devices(self) -> Path:
        return self.state / "dev"

    @property
    def spec(self) -> Path:
        return self.state / "spec.json"

    @property
    def complete(self) -> Path:
        """Exists once `up` has gone through."""
        return self.state / "complete"

    def inside(self, path: str) -> Path:
        """The host's path of a file that the lab calls by an absolute path."""
        return self.root / path.lstrip("/")
