"""The GPUs of a lab: a libnvidia-ml.so.1 built from nvml.c, and the file that drives it."""

import shutil
from pathlib import Path

from lab import processes

SOURCE = Path(__file__).with_name("nvml.c")
NAME = "libnvidia-ml.so.1"
STATE = "/run/unicron-nvml"


def build(target: Path) -> bool:
    """False where there is no gcc: then the lab's nodes have no driver."""
    if shutil.which("gcc") is None:
        return False
    processes.run_here(
        ["gcc", "-O2", "-shared", "-fPIC", f"-Wl,-soname,{NAME}", "-o", str(target), str(SOURCE)]
    )
    return True
