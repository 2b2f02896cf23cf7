"""The text of every configuration file of a lab. Pure: from a LabSpec to strings."""

from lab import nvml
from lab.hardware import SYS
from lab.layout import (
    AGENT_PORT,
    HEAD_ADDRESS,
    USERS,
    LabPaths,
    LabSpec,
    node_address,
)

TOKEN_KEY = "/etc/slurm/jwt_hs256.key"
TOKENS = f"AuthAltTypes=auth/jwt\nAuthAltParameters=jwt_key={TOKEN_KEY}\n"
CGROUP_OPTIONAL_SINCE = (23, 11)


def slurm_conf(spec: LabSpec, takes_tokens: bool = False) -> str:
    gres = f"Gres=gpu:{spec.gpus_per_node} " if spec.gpus_per_node else ""
    topology = "TopologyPlugin=topology/tree\n" if spec.nodes_per_switch else ""
    tokens = TOKENS if takes_tokens else ""
    nodes = "\n".join(
        f"NodeName={node} NodeHostname={node} NodeAddr={node_address(node)} "
        f"CPUs={spec.cpus_per_node} RealMemory=64000 {gres}State=UNKNOWN"
        for node in spec.node_names
    )
    return f"""ClusterName=lab
SlurmctldHost=head({HEAD_ADDRESS})
SlurmUser=slurm
SlurmdUser=root
AuthType=auth/munge
{tokens}StateSaveLocation=/var/spool/slurmctld
SlurmdSpoolDir=/var/spool/slurmd/%n
SlurmctldPidFile=/run/slurm/slurmctld.pid
SlurmdPidFile=/run/slurmd.pid
SlurmctldLogFile=/var/log/slurm/slurmctld.log
SlurmdLogFile=/var/log/slurm/slurmd-%n.log

# A cut node is noticed after 30 to 50 s. With 10 s a single cut took down nodes that were well.
SlurmdTimeout={spec.slurmd_timeout_seconds}
SlurmctldTimeout=30
MessageTimeout=5
KillWait={spec.kill_wait_seconds}
UnkillableStepTimeout=30
InactiveLimit=0
WaitTime=0
MinJobAge=300
ReturnToService=1
JobRequeue=1

SchedulerType=sched/backfill
SchedulerParameters=batch_sched_delay=0,sched_interval=5,bf_interval=5
SelectType=select/cons_tres
SelectTypeParameters=CR_CPU
{topology}PriorityType=priority/basic

# The nodes are namespaces of one machine: no cgroups of their own, and more CPUs than there are.
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
JobAcctGatherType=jobacct_gather/none
SlurmdParameters=config_overrides
MpiDefault=none

AccountingStorageType=accounting_storage/slurmdbd
AccountingStorageHost={HEAD_ADDRESS}
AccountingStorageTRES=gres/gpu
GresTypes=gpu

{nodes}
PartitionName=main Nodes=ALL Default=YES MaxTime=INFINITE State=UP
"""


def gres_conf(spec: LabSpec, paths: LabPaths) -> str:
    if spec.gpus_per_node == 0:
        return ""
    last = spec.gpus_per_node - 1
    numbers = "0" if last == 0 else f"[0-{last}]"
    nodes = f"n[1-{spec.nodes}]" if spec.nodes > 1 else "n1"
    return f"NodeName={nodes} Name=gpu File={paths.devices}/nvidia{numbers}\n"


def topology_conf(spec: LabSpec) -> str:
    """Switches s1, s2, … of the nodes in their order, under one."""
    names, each = spec.node_names, spec.nodes_per_switch
    groups = [names[i : i + each] for i in range(0, len(names), each)] if each else []
    leaves = [f"SwitchName=s{i} Nodes={','.join(g)}\n" for i, g in enumerate(groups, start=1)]
    return "".join([*leaves, f"SwitchName=top Switches=s[1-{len(leaves)}]\n"] if leaves else [])


def cgroup_conf(slurm_version: tuple[int, int]) -> str | None:
    """Older versions know no such setting, and need none."""
    return "CgroupPlugin=disabled\n" if slurm_version >= CGROUP_OPTIONAL_SINCE else None


def slurmdbd_conf() -> str:
    return """AuthType=auth/munge
DbdHost=head
SlurmUser=slurm
PidFile=/run/slurm/slurmdbd.pid
LogFile=/var/log/slurm/slurmdbd.log
StorageType=accounting_storage/mysql
StorageHost=localhost
StorageUser=slurm
StorageLoc=slurm_acct_db
"""


def database_grants() -> str:
    """Run by MariaDB itself at its start; the socket proves who slurmdbd is.

    The database is made here, not by slurmdbd: libmariadb 11.8.9 answers no query on a handle whose
    first connection failed, as slurmdbd's does where its database is missing.
    """
    return (
        "CREATE DATABASE IF NOT EXISTS slurm_acct_db;\n"
        "CREATE USER IF NOT EXISTS slurm@localhost IDENTIFIED VIA unix_socket;\n"
        "GRANT ALL ON slurm_acct_db.* TO slurm@localhost;\n"
    )


def hosts(spec: LabSpec) -> str:
    nodes = "".join(f"{node_address(node)} {node}\n" for node in spec.node_names)
    return f"127.0.0.1 localhost\n{HEAD_ADDRESS} head\n{nodes}"


def nsswitch_conf() -> str:
    """Nothing is asked over a network that the lab does not have."""
    return "".join(
        f"{what}: files\n" for what in ("passwd", "group", "shadow", "hosts", "services")
    )


def passwd(host_passwd: str) -> str:
    """The system's own accounts as on the host, the lab's in place of people."""
    lab = "".join(f"{u.name}:x:{u.uid}:{u.uid}::{u.home}:{u.shell}\n" for u in USERS)
    return _system_entries(host_passwd) + lab


def group(host_group: str) -> str:
    return _system_entries(host_group) + "".join(f"{u.name}:x:{u.uid}:\n" for u in USERS)


def shadow() -> str:
    return "".join(f"{name}:*:19000:0:99999:7:::\n" for name in ("root", *(u.name for u in USERS)))


def _system_entries(text: str) -> str:
    ours = {user.name for user in USERS}
    entries = [line.split(":") for line in text.splitlines() if line.count(":") >= 3]
    kept = [e for e in entries if e[0] not in ours and _is_system_number(e[2])]
    return "".join(":".join(entry) + "\n" for entry in kept)


def _is_system_number(text: str) -> bool:
    return text.isdigit() and (int(text) < 1000 or int(text) == 65534)


def unicron_toml() -> str:
    return f"""mode = "active"
database_url = "sqlite:////var/lib/unicron/unicron.db"
agent_listen = "{HEAD_ADDRESS}:{AGENT_PORT}"
"""


def agent_conf() -> str:
    return (
        f"[agent]\nunicrond = {HEAD_ADDRESS}:{AGENT_PORT}\n"
        f"sys_root = {SYS}\nnvml_library = /opt/unicron/lib/{nvml.NAME}\n"
    )
