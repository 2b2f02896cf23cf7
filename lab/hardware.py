"""The hardware of a lab's nodes: files that the sensors read in place of a driver and a kernel.

/run/unicron-nvml   what libnvidia-ml.so.1 answers    /run/unicron-sys  InfiniBand, cgroup events,
/run/unicron-kmsg   the kernel log, as of /dev/kmsg                     memory controllers
Each node has a /run of its own, so each has hardware of its own; it is well after a power-on.
"""

from dataclasses import dataclass
from pathlib import Path

from lab import nvml, processes

KERNEL_LOG = "/run/unicron-kmsg"
SYS = "/run/unicron-sys"
PORT = "class/infiniband/mlx5_0/ports/1"
MEMORY = "devices/system/edac/mc/mc0"
POWER_BRAKE = 0x88
XID = 0x08
DOUBLE_BIT_ECC = 0x02
WORDS = {
    13: "pid={pid}, name=python3, Graphics Exception: ESR 0x505730=0x109 0x505734=0x24",
    31: "pid={pid}, name=python3, Ch 00000008, intr 00000000. MMU Fault: ENGINE GRAPHICS"
    " GPCCLIENT_T1_0 faulted @ 0x7f3c_1a000000. Fault is of type FAULT_PDE ACCESS_TYPE_VIRT_READ",
    43: "pid={pid}, name=python3, Ch 00000008",
    45: "pid={pid}, name=python3, Ch 00000008",
    48: "pid='<unknown>', name=<unknown>, An uncorrectable double bit error (DBE) has been detected"
    " on GPU in the framebuffer at partition 1, subpartition 0.",
    74: "pid='<unknown>', name=<unknown>, NVLink: fatal error detected on link 3(0x0, 0x10000)",
    79: "pid='<unknown>', name=<unknown>, GPU has fallen off the bus.",
    94: "pid={pid}, name=python3, Contained: CE User Channel (0x9). RST: No, D-RST: No",
    119: "pid={pid}, name=python3, Timeout after 6s of waiting for RPC response from GPU0 GSP!",
}


@dataclass(frozen=True)
class Hardware:
    """That of the node with this init, seen from the host."""

    init: int

    def make(self, gpus: int) -> None:
        self._file(nvml.STATE).write_text(f"gpus {gpus}\n")
        self._file(KERNEL_LOG).touch()
        self._port("4: ACTIVE", "5: LinkUp")
        self._memory_events()
        memory = self._file(f"{SYS}/{MEMORY}")
        memory.mkdir(parents=True, exist_ok=True)
        for count in ("ue_count", "ce_count"):
            (memory / count).write_text("0\n")

    # GPUs
    def gpu(self, number: int, name: str, value: int) -> None:
        self._driver(f"{number} {name} {value}\n")

    def count(self, number: int, name: str) -> None:
        """One more of them."""
        told = self._file(nvml.STATE).read_text().count(f"{number} {name} ")
        self.gpu(number, name, told + 1)

    def event(self, gpu: int, kind: int, value: int) -> None:
        events = self._file(nvml.STATE).read_text().count("event ")
        self._driver(f"event {events + 1} {gpu} {kind} {value}\n")

    def xid(self, gpu: int, code: int, pid: int) -> None:
        """As the driver: to whoever waits for it, and to the kernel log."""
        self.event(gpu, XID, code)
        words = WORDS.get(code, "pid={pid}, name=python3").format(pid=pid)
        self.kernel(f"NVRM: Xid (PCI:0000:{(gpu + 1) * 16:02x}:00): {code}, {words}")

    def _driver(self, text: str) -> None:
        with self._file(nvml.STATE).open("a") as file:
            file.write(text)

    # the rest
    def port(self, active: bool) -> None:
        if active:
            self._port("4: ACTIVE", "5: LinkUp")
        else:
            self._port("1: DOWN", "3: Disabled")
            downs = self._file(f"{SYS}/{PORT}/counters/link_downed")
            downs.write_text(f"{int(downs.read_text()) + 1}\n")

    def _port(self, state: str, physical: str) -> None:
        folder = self._file(f"{SYS}/{PORT}")
        (folder / "counters").mkdir(parents=True, exist_ok=True)
        (folder / "state").write_text(state + "\n")
        (folder / "phys_state").write_text(physical + "\n")
        downs = folder / "counters/link_downed"
        if not downs.exists():
            downs.write_text("0\n")

    def oom_kill(self) -> None:
        """In the cgroup's own count, which the lab has no cgroup for."""
        for file in self._file(f"{SYS}/fs/cgroup").rglob("memory.*"):
            kills = int(file.read_text().split()[1])
            file.write_text(f"oom_kill {kills + 1}\n")

    def _memory_events(self) -> None:
        """For the cgroups that everything in the node is in: Slurm makes none here."""
        names = {"memory": "memory.oom_control", "": "memory.events"}
        for line in (processes.PROC / str(self.init) / "cgroup").read_text().splitlines():
            _, controller, path = line.split(":", 2)
            if controller in names:
                folder = self._file(f"{SYS}/fs/cgroup/{controller}") / path.lstrip("/")
                folder.mkdir(parents=True, exist_ok=True)
                (folder / names[controller]).write_text("oom_kill 0\n")

    def memory_error(self) -> None:
        """One that was not corrected, in the controller's count alone."""
        errors = self._file(f"{SYS}/{MEMORY}/ue_count")
        errors.write_text(f"{int(errors.read_text()) + 1}\n")

    def kernel(self, message: str) -> None:
        log = self._file(KERNEL_LOG)
        number = log.read_text().count("\n")
        with log.open("a") as file:
            file.write(f"4,{number},{number},-;{message}\n")

    def _file(self, path: str) -> Path:
        return processes.PROC / str(self.init) / "root" / path.lstrip("/")
