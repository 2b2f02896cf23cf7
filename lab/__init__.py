"""A real Slurm cluster on one machine, with faults to inject.

Everything of one lab lives under one init process with namespaces of its own: processes, mounts,
network. Ending that process is how a lab goes away, also one whose making was interrupted. Nothing
of the host's own Slurm, munge or MariaDB is used or touched.

    lab = Lab("demo")
    lab.up(LabSpec(nodes=6))
    lab.exec(["sbatch", "job.sh"], user="alice")
    lab.fault("cut-link", node="n3")
    lab.down()
"""

from lab.cluster import Lab
from lab.errors import LabError
from lab.faults import FAULTS, Injection
from lab.layout import LabSpec
from lab.status import LabStatus, NodeStatus

__all__ = ["FAULTS", "Injection", "Lab", "LabError", "LabSpec", "LabStatus", "NodeStatus"]
