"""GPUs as NVIDIA's management library tells of them: Xid events at once, ECC errors and lost GPUs
within a second, all else within five.

What this GPU or driver does not support, or this user may not ask, reads as in good health.
"""

from __future__ import annotations

import ctypes
import importlib
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any, TypeVar

from detectors.readings import Gpu, Sighting, first_gpu, gpu_changed, gpu_crept, xid_seen
from unicrond.agent.sensors.runner import SensorOff
from unicrond.model.incident import Severity

LIBRARY = "libnvidia-ml.so.1"
CREEP_SECONDS = 60.0
LOOK_SECONDS = 1.0
FULL_LOOK_SECONDS = 5.0
COUNT_SECONDS = 20.0  # link errors, which are judged by the minute: hundreds of calls
MOST_LINKS = 18
RECOVERY_FIELD = 230  # NVML_FI_DEV_GET_GPU_RECOVERY_ACTION
SLOWED = 0x08 | 0x40 | 0x80  # by hardware: at all, for heat, for power
XID_EVENT, ECC_EVENT = 0x08, 0x02
_T = TypeVar("_T")


class Nvml:
    """`library`, where the loader does not find it; `folder` may hold a pynvml.py; `events` are
    waited for."""

    name = "nvml"
    timeout_seconds = 15.0  # the driver holds a lock for seconds while it resets a GPU
    pause_seconds = 0.0  # `look` waits for events

    def __init__(self, library: str, folder: Path | None, events: bool = True) -> None:
        self._library, self._folder, self._waits = library, folder, events
        self._api: Any = None
        self._gpus: dict[str, Any] = {}
        self._buses: dict[str, str] = {}
        self._links: dict[str, tuple[int, ...]] = {}
        self._last: dict[str, Gpu] = {}
        self._marks: dict[str, Gpu] = {}
        self._slowed_since: dict[str, float] = {}
        self._marked_at = self._looked_at = self._full_at = self._counted_at = 0.0
        self._events: Any = None

    def look(self) -> Iterator[Sighting]:
        if self._api is None:
            self._open()
        if self._waits:
            yield from self._event()
        now = time.monotonic()
        if now < self._looked_at + LOOK_SECONDS:
            return
        self._looked_at = now
        full = now >= self._full_at + FULL_LOOK_SECONDS
        self._full_at = now if full else self._full_at
        counted = full and now >= self._counted_at + COUNT_SECONDS
        self._counted_at = now if counted else self._counted_at
        for where, handle in self._gpus.items():
            gpu = self._read(where, handle, now, full)
            if counted:
                gpu = replace(gpu, link_errors=self._link_errors(where, handle, gpu.link_errors))
            yield from gpu_changed(where, self._last.get(where) or first_gpu(gpu), gpu)
            yield from gpu_crept(where, self._marks.get(where, gpu), gpu)
            self._last[where] = gpu
        if not self._marks or now >= self._marked_at + CREEP_SECONDS:
            self._marks, self._marked_at = dict(self._last), now

    # opening
    def _open(self) -> None:
        """A library that is loaded already is the one that pynvml gets by that name."""
        try:
            ctypes.CDLL(self._library or LIBRARY)
        except OSError as error:
            raise SensorOff(f"no GPU driver here ({error})") from error
        api = pynvml_from(self._folder)
        try:
            api.nvmlInit()
            count = api.nvmlDeviceGetCount()
        except api.NVMLError as error:
            raise SensorOff(f"NVML does not start: {error}") from error
        self._api = api
        for index in range(count):
            self._add(f"gpu {index}", index)
        if not self._gpus:
            raise SensorOff("NVML knows of no GPU that this user may see")
        self._listen()

    def _add(self, where: str, index: int) -> None:
        handle = self._ask(None, self._api.nvmlDeviceGetHandleByIndex, index)
        if handle is None:
            return
        self._gpus[where] = handle
        self._buses[where] = self._bus(handle)
        state = self._api.nvmlDeviceGetNvLinkState
        links = [n for n in range(MOST_LINKS) if self._ask(None, state, handle, n) is not None]
        self._links[where] = tuple(links)

    def _bus(self, handle: Any) -> str:
        """Some versions of pynvml give bytes."""
        pci = self._ask(None, self._api.nvmlDeviceGetPciInfo, handle)
        bus = pci.busId if pci else ""
        return bus.decode() if isinstance(bus, bytes) else str(bus)

    def _listen(self) -> None:
        self._events = self._ask(None, self._api.nvmlEventSetCreate)
        if self._events is None:
            return
        for handle in self._gpus.values():
            kinds = self._ask(0, self._api.nvmlDeviceGetSupportedEventTypes, handle)
            wanted = kinds & (XID_EVENT | ECC_EVENT)
            if wanted:
                self._ask(None, self._api.nvmlDeviceRegisterEvents, handle, wanted, self._events)

    # looking
    def _event(self) -> Iterator[Sighting]:
        """Waits up to a second for one; an ECC event has us look at once."""
        if self._events is None:
            time.sleep(LOOK_SECONDS)
            return
        milliseconds = int(LOOK_SECONDS * 1000)
        started = time.monotonic()
        event = self._ask(None, self._api.nvmlEventSetWait_v2, self._events, milliseconds)
        if event is None:
            # with a GPU lost the call may fail at once, over and over
            time.sleep(max(0.0, started + LOOK_SECONDS / 2 - time.monotonic()))
            return
        self._looked_at = 0.0
        bus = self._bus(event.device)
        where = next((name for name, known in self._buses.items() if known == bus), "gpu")
        if event.eventType == XID_EVENT:
            sighting = xid_seen(where, bus, int(event.eventData))
            if sighting.severity is not Severity.NONE:
                yield sighting

    def _read(self, where: str, handle: Any, now: float, full: bool) -> Gpu:
        api = self._api
        ecc, uncorrected = api.nvmlDeviceGetTotalEccErrors, api.NVML_MEMORY_ERROR_TYPE_UNCORRECTED
        last = self._last.get(where, Gpu())  # a count that cannot be read now has not changed
        ask = self._ask
        try:
            volatile = ecc(handle, uncorrected, api.NVML_VOLATILE_ECC)
        except api.NVMLError_GpuIsLost:
            return replace(last, lost=True)
        except api.NVMLError:
            volatile = last.ecc_volatile
        aggregate = ask(last.ecc_aggregate, ecc, handle, uncorrected, api.NVML_AGGREGATE_ECC)
        if not full:
            return replace(last, lost=False, ecc_volatile=volatile, ecc_aggregate=aggregate)
        known = 0, 0, last.remap_pending, last.remap_failed
        _, _, pending, failed = ask(known, api.nvmlDeviceGetRemappedRows, handle)
        return Gpu(
            ecc_volatile=volatile,
            ecc_aggregate=aggregate,
            remap_pending=bool(pending),
            remap_failed=bool(failed),
            links=self._links_up(where, handle),
            link_errors=last.link_errors,
            pcie_replays=ask(last.pcie_replays, api.nvmlDeviceGetPcieReplayCounter, handle),
            slowed_seconds=self._slowed(where, handle, now),
            recovery=self._recovery(handle),
        )

    def _links_up(self, where: str, handle: Any) -> frozenset[int]:
        state, links = self._api.nvmlDeviceGetNvLinkState, self._links[where]
        return frozenset(n for n in links if self._ask(1, state, handle, n))

    def _link_errors(self, where: str, handle: Any, last: int) -> int:
        api, links = self._api, self._links[where]
        counters = (
            api.NVML_NVLINK_ERROR_DL_REPLAY,
            api.NVML_NVLINK_ERROR_DL_RECOVERY,
            api.NVML_NVLINK_ERROR_DL_CRC_FLIT,
        )
        count = api.nvmlDeviceGetNvLinkErrorCounter
        errors = [self._ask(-1, count, handle, n, kind) for n in links for kind in counters]
        return last if -1 in errors else sum(errors)

    def _slowed(self, where: str, handle: Any, now: float) -> float:
        reasons = self._ask(0, self._api.nvmlDeviceGetCurrentClocksThrottleReasons, handle)
        if not reasons & SLOWED:
            self._slowed_since.pop(where, None)
            return 0.0
        return now - self._slowed_since.setdefault(where, now)

    def _recovery(self, handle: Any) -> int:
        values = self._ask(None, self._api.nvmlDeviceGetFieldValues, handle, [RECOVERY_FIELD])
        return int(values[0].value.uiVal) if values and values[0].nvmlReturn == 0 else 0

    def _ask(self, otherwise: _T, call: Callable[..., Any], *arguments: Any) -> _T | Any:
        try:
            return call(*arguments)
        except self._api.NVMLError:
            return otherwise


def pynvml_from(folder: Path | None) -> Any:
    """The one that was shipped beside the agent, else the node's own."""
    shipped = folder is not None and (folder / "pynvml.py").is_file()
    if shipped:
        sys.path.insert(0, str(folder))
    try:
        api = importlib.import_module("pynvml")
    except ImportError as error:
        raise SensorOff(f"no pynvml: {error}") from error
    finally:
        if shipped:
            sys.path.remove(str(folder))
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None)
    if trim is not None:  # without bytecode of this Python beside it, compiling it took 15 MB
        trim(0)
    return api
