"""Which sensors look on this node: those that agent.conf leaves on."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from pathlib import Path

from unicrond.agent.sensors.cgroup import Cgroup
from unicrond.agent.sensors.infiniband import InfiniBand
from unicrond.agent.sensors.nvml import Nvml
from unicrond.agent.sensors.printed import PrintedLines
from unicrond.agent.sensors.runner import Sensor
from unicrond.agent.settings import Settings


def sensors_of(settings: Settings, home: str, files: Callable[[], Iterable[Path]]) -> list[Sensor]:
    """`home`: where Unicron is installed, "" when that is not known; `files` that ranks write."""
    root = Path(settings.sys_root)
    made: list[Sensor] = []
    if "nvml" in settings.sensors:
        made.append(Nvml(settings.nvml_library, Path(home, "lib") if home else None))
    if "infiniband" in settings.sensors:
        made.append(InfiniBand(root))
    if "cgroup" in settings.sensors:
        made.append(Cgroup(root, Path("/proc/self/cgroup").read_text()))
    if "output" in settings.sensors:
        made.append(PrintedLines(files))
    return made
