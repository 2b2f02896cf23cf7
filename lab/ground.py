"""Makes the lab's ground: its files in the state directory, and the inits of head and nodes.

The host's /etc is copied, not overlaid: 0.1 s, and it works where overlayfs cannot be stacked
(containers). What belongs to the host's own services and secrets is left out of the copy.
"""

import os
import re
import secrets
import shutil
import stat
import time
from collections.abc import Callable
from pathlib import Path

from lab import configuration, processes
from lab.errors import LabError
from lab.layout import PEOPLE, USERS, LabPaths, LabSpec

NOT_COPIED = re.compile(
    "(slurm|munge|unicron|mysql|ssh|g?shadow|passwd|group|sub[ug]id|sudoers).*"
    "|hosts|hostname|resolv.conf|nsswitch.conf"
)
BOUND = ("etc", "opt", "home", "var/log", "var/spool", "var/lib")
UIDS = {"root": 0, **{user.name: user.uid for user in USERS}}

# Runs as the first process of the lab. The state directory is bound into the new /var/lib first,
# so that its path is the same inside and outside. Orphans are reaped by `wait`. libmariadb looks
# for the socket in /run/mysqld or, in newer Debians, in /run/mariadbd.
HEAD_INIT = f"""set -e
state=$4
echo head >/proc/sys/kernel/hostname
mount --bind "$state" "$state/root$state"
mount -t tmpfs -o mode=755 tmpfs /run
mkdir /run/munge /run/slurm /run/mysqld /run/unicron
ln -s mysqld /run/mariadbd
mount --bind "$state/root/run/munge" /run/munge
for folder in {" ".join(BOUND)}; do
    mount --rbind "$state/root/$folder" "/$folder"
done
mount -t tmpfs -o mode=1777 tmpfs /tmp
mount -t tmpfs -o mode=1777 tmpfs /dev/shm
chown slurm: /run/slurm; chown mysql: /run/mysqld; chown unicron: /run/unicron
: >/run/unicron-lab
trap : HUP INT TERM
while :; do sleep 3600 & wait; done
"""

# Runs as the first process of a node: what is the node's own is private, /home is shared like NFS.
NODE_INIT = """set -e
echo "$3" >/proc/sys/kernel/hostname
mount -t tmpfs -o mode=1777 tmpfs /tmp
mount -t tmpfs -o mode=1777 tmpfs /dev/shm
mount -t tmpfs -o mode=755 tmpfs /run
mkdir /run/munge /run/slurm
chown munge: /run/munge
: >/run/unicron-lab
trap : HUP INT TERM
while :; do sleep 3600 & wait; done
"""

UNSHARE = ["unshare", "--pid", "--fork", "--kill-child", "--mount-proc", "--net", "--mount",
           "--uts", "--ipc", "/bin/sh"]  # fmt: skip


def make_files(spec: LabSpec, paths: LabPaths, slurm_version: tuple[int, int]) -> None:
    """All files but the installed product; needs no namespace."""
    paths.state.parent.mkdir(mode=0o755, exist_ok=True)
    paths.state.mkdir(mode=0o755)
    paths.spec.write_text(spec.to_json())
    (paths.state / "head.sh").write_text(HEAD_INIT)
    (paths.state / "node.sh").write_text(NODE_INIT)
    _copy_etc(paths.inside("/etc"))
    _make_folders(paths)
    _make_devices(spec, paths)
    _write_accounts(paths)
    for name, text in _configuration_files(spec, paths, slurm_version).items():
        _write(paths.inside(name), text)
    _write(paths.inside("/etc/slurm/slurmdbd.conf"), configuration.slurmdbd_conf(), "slurm", 0o600)
    _write_key(paths.inside("/etc/munge/munge.key"), "munge")
    _write_key(paths.inside(configuration.TOKEN_KEY), "slurm")


def takes_tokens() -> bool:
    """Whether this machine's Slurm has the plugin."""
    return any(Path("/usr/lib").glob("*/slurm*/auth_jwt.so"))


def _copy_etc(target: Path) -> None:
    target.mkdir(parents=True)
    wanted = [
        str(entry) for entry in Path("/etc").iterdir() if not NOT_COPIED.fullmatch(entry.name)
    ]
    processes.run_here(["cp", "--archive", f"--target-directory={target}", *wanted])


def _make_folders(paths: LabPaths) -> None:
    owners = {
        "/opt/unicron": ("root", 0o755),
        "/etc/slurm": ("root", 0o755),
        "/etc/unicron": ("root", 0o755),
        "/etc/munge": ("munge", 0o700),
        "/run/munge": ("munge", 0o755),
        "/var/lib/munge": ("munge", 0o711),
        "/var/log/munge": ("munge", 0o755),
        "/var/lib/mysql": ("mysql", 0o700),
        "/var/log/mysql": ("mysql", 0o755),
        "/var/lib/unicron": ("unicron", 0o755),
        "/var/log/unicron": ("unicron", 0o755),
        "/var/spool/slurmctld": ("slurm", 0o755),
        "/var/spool/slurmd": ("root", 0o755),
        "/var/log/slurm": ("slurm", 0o755),
        **{user.home: (user.name, 0o755) for user in PEOPLE},
        f"{paths.state}": ("root", 0o755),
    }
    for name, (owner, mode) in owners.items():
        folder = paths.inside(name)
        folder.mkdir(parents=True, exist_ok=True)
        _give(folder, owner, mode)


def _make_devices(spec: LabSpec, paths: LabPaths) -> None:
    """Slurm counts GPUs by their device files: these are as empty as /dev/null."""
    paths.devices.mkdir()
    for number in range(spec.gpus_per_node):
        device = paths.devices / f"nvidia{number}"
        os.mknod(device, stat.S_IFCHR | 0o666, os.makedev(1, 3))


def _write_accounts(paths: LabPaths) -> None:
    etc = paths.inside("/etc")
    _write(etc / "passwd", configuration.passwd(Path("/etc/passwd").read_text()))
    _write(etc / "group", configuration.group(Path("/etc/group").read_text()))
    _write(etc / "shadow", configuration.shadow(), mode=0o600)


def _configuration_files(
    spec: LabSpec, paths: LabPaths, slurm_version: tuple[int, int]
) -> dict[str, str]:
    files = {
        "/etc/hosts": configuration.hosts(spec),
        "/etc/hostname": "head\n",
        "/etc/nsswitch.conf": configuration.nsswitch_conf(),
        "/etc/resolv.conf": "",
        "/etc/slurm/slurm.conf": configuration.slurm_conf(spec, takes_tokens()),
        "/etc/slurm/gres.conf": configuration.gres_conf(spec, paths),
        "/etc/slurm/topology.conf": configuration.topology_conf(spec),
        "/etc/unicron/unicron.toml": spec.unicron_toml or configuration.unicron_toml(),
        "/etc/unicron/agent.conf": configuration.agent_conf(),
        "/var/lib/mysql-grants.sql": configuration.database_grants(),
    }
    cgroup = configuration.cgroup_conf(slurm_version)
    return files if cgroup is None else {**files, "/etc/slurm/cgroup.conf": cgroup}


def _write(path: Path, text: str, owner: str = "root", mode: int = 0o644) -> None:
    path.write_text(text)
    _give(path, owner, mode)


def _write_key(path: Path, owner: str) -> None:
    path.write_bytes(secrets.token_bytes(128))
    _give(path, owner, 0o400)


def _give(path: Path, owner: str, mode: int) -> None:
    os.chown(path, UIDS[owner], UIDS[owner])
    path.chmod(mode)


def start_head(paths: LabPaths) -> int:
    """Start the lab's first process, wait for its mounts; its process id."""
    log = paths.log / "init.log"
    processes.run(_orphan(paths, log, "head.sh", processes.HEAD_MARK, "head"))
    return _await_init(lambda: processes.head_init(paths.name), "head", log)


def start_node(paths: LabPaths, head: int, node: str) -> int:
    """The same for a node, inside the lab."""
    log = paths.log / f"init-{node}.log"
    start = _orphan(paths, log, "node.sh", processes.NODE_MARK, node)
    processes.run(processes.enter(head, start))
    return _await_init(lambda: processes.node_inits(paths.name).get(node), node, log)


def _orphan(paths: LabPaths, log: Path, script: str, mark: str, host: str) -> list[str]:
    """Start an init that belongs to nobody: it outlives this process."""
    init = [*UNSHARE, f"{paths.state}/{script}", mark, paths.name, host, str(paths.state)]
    start = 'log=$1; shift; cd /; setsid "$@" </dev/null >>"$log" 2>&1 &'
    clean = ["env", "-i", f"PATH={os.environ['PATH']}"]
    return [*clean, "/bin/sh", "-c", start, "start", str(log), *init]


def _await_init(find: Callable[[], int | None], what: str, log: Path) -> int:
    deadline = time.monotonic() + 30
    while time.monotonic() < deadline:
        init = find()
        if init is not None and processes.ready(init):
            return init
        time.sleep(0.01)
    raise LabError(f"{what} did not come up: {log.read_text()[-1000:] or 'its log is empty'}")


def remove_files(paths: LabPaths) -> None:
    """The state directory, and the labs' common one if this was the last."""
    for attempt in range(20):
        shutil.rmtree(paths.state, ignore_errors=attempt < 19)
        if not paths.state.exists():
            break
        time.sleep(0.1)
    if paths.state.parent.exists() and not any(paths.state.parent.iterdir()):
        paths.state.parent.rmdir()
