"""Faults of hardware: what a driver, a port or the kernel says when something is broken.

GPU       xid ecc nvlink gpu-lost throttle         port      ib-down ib-flap
memory    oom                                   as new    mend-hardware
Nothing really breaks: whether ranks die of it is up to `kill-rank`, except for oom.
"""

import signal
import time
from collections.abc import Callable

from lab.errors import LabError
from lab.hardware import DOUBLE_BIT_ECC, POWER_BRAKE, Hardware
from lab.processes import Process, send_signal

FLAP_SECONDS = 1.0


def xid(node: Hardware, gpu: int, code: int) -> None:
    node.xid(gpu, code, pid=4711)


def ecc(node: Hardware, gpu: int) -> None:
    node.count(gpu, "ecc")
    node.event(gpu, DOUBLE_BIT_ECC, 0)
    node.xid(gpu, 48, pid=4711)


def nvlink(node: Hardware, gpu: int) -> None:
    node.gpu(gpu, "links", (1 << 18) - 1 - (1 << 3))
    node.xid(gpu, 74, pid=4711)


def gpu_lost(node: Hardware, gpu: int) -> None:
    node.gpu(gpu, "lost", 1)
    node.xid(gpu, 79, pid=4711)


def throttle(node: Hardware, gpu: int) -> None:
    node.gpu(gpu, "throttle", POWER_BRAKE)


def ib_down(node: Hardware) -> None:
    node.port(active=False)
    node.kernel("mlx5_core 0000:41:00.0 ibp65s0: Link down")


def ib_flap(node: Hardware) -> None:
    node.port(active=False)
    node.kernel("mlx5_core 0000:41:00.0 ibp65s0: Link down")
    time.sleep(FLAP_SECONDS)
    node.port(active=True)
    node.kernel("mlx5_core 0000:41:00.0 ibp65s0: Link up")


def oom(node: Hardware, rank: Process) -> None:
    """The kernel's killer: the rank is gone, its cgroup has counted, the log tells of it."""
    node.oom_kill()
    if not send_signal(rank, signal.SIGKILL):
        raise LabError("that rank has ended already")
    node.kernel(
        f"Memory cgroup out of memory: Killed process {rank.inner_pid} (python3)"
        " total-vm:33554432kB, anon-rss:16777216kB, file-rss:0kB, shmem-rss:0kB"
    )


GPU_FAULTS: dict[str, Callable[[Hardware, int], None]] = {
    "ecc": ecc,
    "nvlink": nvlink,
    "gpu-lost": gpu_lost,
    "throttle": throttle,
}
PORT_FAULTS: dict[str, Callable[[Hardware], None]] = {"ib-down": ib_down, "ib-flap": ib_flap}
