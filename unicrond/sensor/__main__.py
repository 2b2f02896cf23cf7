"""unicron-sensor [--once [--gpus]]: follows the kernel log and the memory's error counts, or has
one look at them, and at the GPUs, and ends with 0.

As Slurm's HealthCheckProgram, Prolog or Epilog it must never end with another code: that drains
nodes.
"""

from __future__ import annotations

import argparse
import asyncio
import logging
import os
import secrets
import signal
import socket
import sys
import time
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

from detectors.readings import Sighting
from unicrond.agent import settings
from unicrond.agent.agent import trusted_uids
from unicrond.agent.sensors.nvml import Nvml
from unicrond.agent.sensors.runner import SensorOff, Sensors, body
from unicrond.errors import BadInput
from unicrond.link.client import DaemonLink
from unicrond.link.handshake import NO_RUN, Identity
from unicrond.link.munge import MungeCredentials
from unicrond.model.incident import SignalKind
from unicrond.sensor.edac import Edac
from unicrond.sensor.kernellog import KernelLog
from unicrond.sensor.mark import Mark

TICK_SECONDS = 0.25
ONCE_WAIT_SECONDS = 0.05  # for the log: a job may wait for this look
TELL_SECONDS = 10.0  # for what one look found to be stored
MARK = Path("/run/unicron-sensor.position")  # where the last single look ended


def parser() -> argparse.ArgumentParser:
    options = argparse.ArgumentParser(prog="unicron-sensor", description=__doc__.split("\n\n")[0])
    options.add_argument("--once", action="store_true", help="one look since the last one")
    options.add_argument("--gpus", action="store_true", help="with --once: the GPUs too")
    options.add_argument("--kernel-log", type=Path, metavar="FILE", help="(agent.conf: kernel_log)")
    options.add_argument("--node", default="", help="this node's name in Slurm")
    return options


def link_of(node: str, site: settings.Settings) -> DaemonLink:
    if not site.unicrond:
        raise BadInput("agent.conf: `unicrond` is not set: nobody to tell")
    name = node or os.environ.get("SLURMD_NODENAME", "") or socket.gethostname().split(".")[0]
    who = Identity(NO_RUN, name, f"sensor-{os.getpid()}-{secrets.token_hex(4)}")
    trusted = trusted_uids(site.unicrond_user, 0)
    link = DaemonLink(site.unicrond, who, dict, lambda _: None, MungeCredentials(), trusted)
    link.beat({})
    return link


def last_mark() -> Mark:
    try:
        return Mark.from_text(MARK.read_text())
    except (OSError, ValueError):
        return Mark()


def tell(link: DaemonLink, sighting: Sighting, count: int) -> None:
    logging.warning("signal count=%d %s: %s", count, sighting.kind, sighting.evidence)
    said = {"kind": SignalKind.HARDWARE.value, "age": 0.0, "generation": 0}
    link.send("signal", said | body(sighting, count))


async def follow(link: DaemonLink, log: KernelLog, edac: Edac) -> None:
    stop, loop = asyncio.Event(), asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop.set)
    sensors = Sensors([log, edac], lambda sighting, count: tell(link, sighting, count))
    sensors.start(loop)
    dialing = loop.create_task(link.run())
    while not stop.is_set():
        sensors.check(time.monotonic())
        await asyncio.sleep(TICK_SECONDS)
    sensors.stop()
    dialing.cancel()


async def look_once(link: DaemonLink, log: KernelLog, edac: Edac, gpus: Nvml | None) -> None:
    """What could not be told is looked at again the next time."""
    seen = await asyncio.to_thread(log.look) + found(edac)
    for sighting, count in (seen + found(gpus) if gpus else seen).items():
        tell(link, sighting, count)
    dialing = asyncio.get_running_loop().create_task(link.run())
    if await link.drain(TELL_SECONDS):
        MARK.write_text(Mark(log.position, edac.counts).to_text())
    dialing.cancel()


def gpus_of(site: settings.Settings) -> Nvml:
    home = os.environ.get("UNICRON_HOME", "/opt/unicron")
    return Nvml(site.nvml_library, Path(home, "lib"), events=False)


def found(sensor: Edac | Nvml) -> Counter[Sighting]:
    try:
        return Counter(sensor.look())
    except SensorOff as off:
        logging.info("sensor=%s off: %s", sensor.name, off)
        return Counter()


def main(arguments: Sequence[str]) -> int:
    options = parser().parse_args(arguments)
    logging.basicConfig(format="%(asctime)s %(levelname)s %(message)s", level=logging.INFO)
    try:
        site = settings.load(settings.paths(os.environ))
        link, last = link_of(options.node, site), last_mark() if options.once else Mark()
        edac = Edac(Path(site.sys_root), last.counts)
        path = options.kernel_log or Path(site.kernel_log)
        if options.once:
            log = KernelLog(path, last.position, ONCE_WAIT_SECONDS)
            asyncio.run(look_once(link, log, edac, gpus_of(site) if options.gpus else None))
        else:
            asyncio.run(follow(link, KernelLog(path), edac))
    except (BadInput, SensorOff) as error:
        print(f"unicron-sensor: {error}", file=sys.stderr)
        return 0 if options.once else 2
    return 0


def run() -> int:
    return main(sys.argv[1:])


if __name__ == "__main__":
    sys.exit(run())
