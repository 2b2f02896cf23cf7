"""The site's settings for agents, from agent.conf. No file means defaults and no unicrond."""

from __future__ import annotations

import configparser
from collections.abc import Mapping
from dataclasses import dataclass, fields
from pathlib import Path

from unicrond.errors import BadInput
from unicrond.link.jobproof import check_key

DEFAULT_PORT = 7717
SENSORS = ("nvml", "infiniband", "cgroup", "output")
_TEXTS = ("unicrond_user", "sys_root", "nvml_library", "kernel_log")
_SWITCHES = ("standby", "replicas_signed")
MOST_REPLICAS = 3


@dataclass(frozen=True, slots=True)
class Settings:
    unicrond: tuple[tuple[str, int], ...] = ()  # where to find it; empty: training without it
    unicrond_user: str = "unicron"
    unicrond_key: str = ""  # where there is no MUNGE: see `unicronctl proof-key`
    lease_seconds: float = 5.0
    lease_margin_seconds: float = 1.0
    unattended_timeout_seconds: float = 60.0
    start_timeout_seconds: float = 120.0  # for all agents to come, at the first generation
    stop_grace_seconds: float = 2.0  # between SIGTERM and SIGKILL
    progress_seconds: float = 60.0  # a generation that lived this long made progress
    slurmd_timeout_margin_seconds: float = 10.0
    sensors: tuple[str, ...] = SENSORS  # the others are off
    sys_root: str = "/sys"
    kernel_log: str = "/dev/kmsg"
    standby: bool = True  # a warm process on each node, from which ranks are forked
    nvml_library: str = ""  # libnvidia-ml.so.1, where the loader does not find it
    replicas: int = 1  # other nodes that keep each node's copies too, 0: none
    replica_bytes_per_second: float = 1e9  # that a node sends to these, at most
    replicas_signed: bool = False  # their bytes too, not only what is said of them


def paths(environment: Mapping[str, str]) -> tuple[Path, ...]:
    """Where settings are read from; what stands in a later file wins."""
    home = environment.get("UNICRON_HOME", "/opt/unicron")
    return Path(home, "etc/agent.conf"), Path("/etc/unicron/agent.conf")


def load(files: tuple[Path, ...]) -> Settings:
    """Raises BadInput that names file, key and remedy."""
    parser = configparser.ConfigParser(interpolation=None)
    values: dict[str, object] = {}
    for file in files:
        try:
            if not parser.read(file, encoding="utf-8"):
                continue
        except (configparser.Error, UnicodeDecodeError) as error:
            raise BadInput(f"{file}: {error}") from error
        if parser.has_section("agent"):
            values.update(_values(file, dict(parser["agent"])))
    return Settings(**values)  # type: ignore[arg-type]


def _values(file: Path, given: dict[str, str]) -> dict[str, object]:
    known = {field.name for field in fields(Settings)}
    values: dict[str, object] = {}
    for key, text in given.items():
        if key not in known:
            raise BadInput(f"{file}: unknown key {key!r}; known: {', '.join(sorted(known))}")
        values[key] = _value(file, key, text)
    return values


def _value(file: Path, key: str, text: str) -> object:
    if key in _TEXTS:
        return text
    if key == "unicrond_key":
        return _public_key(file, text)
    if key == "sensors":
        return _sensors(file, text)
    if key in _SWITCHES:
        return _switch(file, key, text)
    if key == "unicrond":
        return tuple(_address(file, part.strip()) for part in text.split(",") if part.strip())
    if key == "replicas":
        if text not in map(str, range(MOST_REPLICAS + 1)):
            raise BadInput(f"{file}: {key} = {text!r}: must be from 0 to {MOST_REPLICAS}")
        return int(text)
    unit = "bytes" if key == "replica_bytes_per_second" else "seconds"
    try:
        seconds = float(text)
    except ValueError:
        seconds = -1.0
    if not 0 < seconds < (1e12 if unit == "bytes" else 1e7):
        raise BadInput(f"{file}: {key} = {text!r}: must be a number of {unit} above 0")
    return seconds


def _switch(file: Path, key: str, text: str) -> bool:
    if text not in ("yes", "no"):
        raise BadInput(f"{file}: {key} = {text!r}: must be yes or no")
    return text == "yes"


def _public_key(file: Path, text: str) -> str:
    try:
        return text and check_key(text)
    except ValueError as error:
        raise BadInput(
            f"{file}: unicrond_key: {error}; take the line that `unicronctl proof-key` prints"
        ) from None


def _sensors(file: Path, text: str) -> tuple[str, ...]:
    names = tuple(name for part in text.split(",") if (name := part.strip()))
    if unknown := [name for name in names if name not in SENSORS]:
        known = ", ".join(SENSORS)
        raise BadInput(f"{file}: sensors = {text!r}: no sensor {unknown[0]!r}; known: {known}")
    return names


def _address(file: Path, text: str) -> tuple[str, int]:
    host, _, port = text.rpartition(":") if ":" in text else (text, "", str(DEFAULT_PORT))
    if not host or not port.isdigit() or not 0 < int(port) < 65536:
        raise BadInput(f"{file}: unicrond = {text!r}: must be host:port[,host:port]")
    return host.strip("[]"), int(port)
