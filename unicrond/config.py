"""The configuration: flag > environment > conf.d/*.toml > unicron.toml > default.

Every key is documented in docs/admin.md, which a test holds against this file. In the environment
a key is written UNICRON_DATABASE_URL, one of [policy] UNICRON_POLICY__SILENCE_SECONDS. Anything
that is wrong raises BadInput, which says where it stands, what is wrong and what to write instead.
"""

from __future__ import annotations

import dataclasses
import difflib
import os
import re
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Annotated, Any, Literal

import tomllib
from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    ValidationError,
    create_model,
    model_validator,
)
from pydantic_core import ErrorDetails

from unicrond.core.policy import Policy
from unicrond.errors import BadInput
from unicrond.link.messages import MOST_NODES
from unicrond.model.decision import Mode

DEFAULT_PATH = Path("/etc/unicron/unicron.toml")
PREFIX = "UNICRON_"
NESTED = "__"
LEAST_LEASE_SECONDS = 2.0
SECTIONS = {"policy": "policy", "accounts": "accounts.NAME"}

Key = tuple[str, ...]
Found = tuple[Key, object, str]  # key, value, where it stands


def _host_and_port(value: str) -> str:
    host, _, port = value.rpartition(":")
    if not host or not port.isdigit() or not 0 < int(port) < 65536:
        raise ValueError('write host:port, for example "0.0.0.0:7717"')
    return value


def _absolute(value: str) -> str:
    if not value.startswith("/") or len(value.encode()) > 107:
        raise ValueError("write an absolute path of at most 107 bytes, as sockets demand")
    return value


def _file_path(value: str) -> str:
    if value and not value.startswith("/"):
        raise ValueError("write an absolute path")
    return value


def _slurm_name(value: str) -> str:
    if value and not re.fullmatch(r"[A-Za-z0-9][\w.-]{0,254}", value, re.ASCII):
        raise ValueError("write a name as Slurm has it, of letters, digits, . _ and -")
    return value


def _lease(value: float) -> float:
    if value and not value >= LEAST_LEASE_SECONDS:
        raise ValueError(f"write {LEAST_LEASE_SECONDS:g} or more, or 0 for one unicrond alone")
    return value


def _urls(value: tuple[str, ...]) -> tuple[str, ...]:
    for url in value:
        if not re.fullmatch(r"https://[^/@\s]+/?", url):
            raise ValueError('write https://host:port, for example "https://head:7719"')
    return value


def _names(value: object) -> object:
    if isinstance(value, str):
        return tuple(value.replace(",", " ").split())
    if not isinstance(value, list | tuple) or not all(isinstance(name, str) for name in value):
        raise ValueError('write a list of names, for example ["alice", "bob"]')
    return value


Address = Annotated[str, AfterValidator(_host_and_port)]
MaybeAddress = Annotated[str, AfterValidator(lambda value: value and _host_and_port(value))]
File = Annotated[str, AfterValidator(_file_path)]
SlurmName = Annotated[str, AfterValidator(_slurm_name)]
SocketPath = Annotated[str, AfterValidator(_absolute)]
Names = Annotated[tuple[str, ...], BeforeValidator(_names)]
Urls = Annotated[Names, AfterValidator(_urls)]
Seconds = Annotated[float, Field(gt=0, allow_inf_nan=False)]
LeaseSeconds = Annotated[float, Field(le=3600), AfterValidator(_lease)]


def _policy_field(field: dataclasses.Field[Any]) -> Any:
    """The rule of a number follows from its unit."""
    if field.name.endswith("_seconds"):
        return Seconds, field.default
    if field.name.endswith("_fraction"):
        return Annotated[float, Field(gt=0, le=1)], field.default
    return Annotated[int, Field(ge=0)], field.default


class _Section(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


_NUMBERS = [f for f in dataclasses.fields(Policy) if type(f.default) in (int, float)]
_policy_fields = {f.name: _policy_field(f) for f in _NUMBERS}
PolicySettings: Any = create_model("PolicySettings", __base__=_Section, **_policy_fields)


Nodes = Annotated[int, Field(ge=0, le=MOST_NODES)]


class AccountSettings(_Section):
    """What plans leave the runs of a Slurm account in any case, and what they give them at most."""

    floor_nodes: Nodes = 0
    ceiling_nodes: Nodes | None = None
    run_floor_nodes: Nodes = 0  # each run of it
    run_ceiling_nodes: Nodes | None = None

    @model_validator(mode="after")
    def _upwards(self) -> AccountSettings:
        for name in ("", "run_"):
            floor = getattr(self, f"{name}floor_nodes")
            ceiling = getattr(self, f"{name}ceiling_nodes")
            if ceiling is not None and ceiling < floor:
                raise ValueError(f"{name}ceiling_nodes {ceiling} is less than {name}floor_nodes")
        return self


class Settings(_Section):
    cluster: str = "cluster"
    database_url: str = "sqlite:////var/lib/unicron/unicron.db"
    agent_listen: Address = "0.0.0.0:7717"
    api_listen: Address = "127.0.0.1:7718"
    api_socket: SocketPath = "/run/unicron/unicrond.sock"
    control_socket: SocketPath = "/run/unicron/control.sock"
    snapshot_seconds: Seconds = 2.0
    slurm_timeout_seconds: Seconds = 10.0
    leader_lease_seconds: LeaseSeconds = 0.0  # 0: one unicrond alone
    companion_qos: SlurmName = ""  # "": the base's
    companion_partition: SlurmName = ""
    keep_freed_nodes: bool = False
    history_days: Annotated[int, Field(ge=0)] = 90  # 0: nothing is ever forgotten
    admins: Names = ()
    operators: Names = ()
    api_tls_listen: MaybeAddress = ""  # "": nowhere
    api_tls_certificate: File = ""
    api_tls_key: File = ""
    api_urls: Urls = ()  # for unicronctl
    api_ca: File = ""
    api_jwks: File = ""
    api_slurm_tokens: bool = False
    api_munge: bool = True
    proof_key: File = ""  # "": agents are proved by MUNGE alone
    notify_webhook: str = Field(default="", repr=False)  # may hold a secret
    notify_smtp: MaybeAddress = ""
    notify_mail_from: str = "unicron"
    notify_mail_to: Names = ()
    log_level: Literal["debug", "info", "warning", "error"] = "info"
    mode: Mode = Mode.OBSERVE
    policy: PolicySettings = Field(default_factory=PolicySettings)
    accounts: dict[str, AccountSettings] = Field(default={})

    def as_policy(self) -> Policy:
        return Policy(
            mode=self.mode,
            companion_qos=self.companion_qos,
            companion_partition=self.companion_partition,
            keep_freed_nodes=self.keep_freed_nodes,
            **self.policy.model_dump(),
        )


def load_settings(
    path: Path | None = None,
    environment: Mapping[str, str] | None = None,
    flags: Mapping[str, object] | None = None,
    *,
    files: bool = True,
) -> Settings:
    """`path` None: the usual file, which may be absent. `flags` name keys as "policy.drains_…"."""
    environment = os.environ if environment is None else environment
    found = [
        *(_files(path) if files else ()),
        *_environment(environment),
        *((tuple(key.split(".")), value, f"--set {key}") for key, value in (flags or {}).items()),
    ]
    for key, _, where in found:
        _check_known(key, where)
    try:
        return Settings.model_validate(_nested(found))
    except ValidationError as error:
        raise BadInput("\n".join(_sentence(e, found) for e in error.errors())) from None


def keys() -> dict[Key, Any]:
    """Every key with its default."""
    top = {(n,): f.default for n, f in Settings.model_fields.items() if n != "policy"}
    fields = PolicySettings.model_fields.items()
    return top | {("policy", name): field.default for name, field in fields}


def read_flags(given: Iterable[str]) -> dict[str, object]:
    """`--set KEY=VALUE` of a command line, by key."""
    flags: dict[str, object] = {}
    for text in given:
        key, equals, value = text.partition("=")
        if not equals:
            raise BadInput(f"--set {text}: write KEY=VALUE, such as policy.drains_per_hour=2")
        flags[key.strip()] = value
    return flags


def as_environment(flags: Mapping[str, object]) -> dict[str, str]:
    """For processes that are started: what was set for this one holds for them."""
    return {PREFIX + NESTED.join(k.split(".")).upper(): str(v) for k, v in flags.items()}


def _files(path: Path | None) -> Iterator[Found]:
    main = path or DEFAULT_PATH
    if path is not None or main.exists():
        yield from _file(main)
    for extra in sorted((main.parent / "conf.d").glob("*.toml")):
        yield from _file(extra)


def _file(path: Path) -> Iterator[Found]:
    try:
        data = tomllib.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise BadInput(f"{path}: {error.strerror}; name another file with --config") from None
    except ValueError as error:
        raise BadInput(f"{path}: not TOML: {error}") from None
    for name, value in data.items():
        if name in SECTIONS and isinstance(value, dict):
            yield from (((name, inner), item, str(path)) for inner, item in value.items())
        else:
            yield (name,), value, str(path)


def _environment(environment: Mapping[str, str]) -> Iterator[Found]:
    """Only our own keys: a run's processes carry other variables with the same prefix."""
    for key in keys():
        variable = PREFIX + NESTED.join(key).upper()
        if variable in environment:
            yield key, environment[variable], variable


def _check_known(key: Key, where: str) -> None:
    known = [".".join(k) for k in keys()]
    name = ".".join(key)
    if name in SECTIONS:
        raise BadInput(f"{where}: {name} is a section; write [{SECTIONS[name]}] and its keys below")
    if name in known or key[0] == "accounts":
        return
    near = difflib.get_close_matches(name, known, n=1, cutoff=0.5)
    hint = f"did you mean {near[0]}?" if near else f"the keys are: {', '.join(known)}"
    raise BadInput(f"{where}: unknown key {name}; {hint}")


def _nested(found: list[Found]) -> dict[str, Any]:
    """The last one of a key wins."""
    result: dict[str, Any] = {}
    for key, value, _ in found:
        section = result.setdefault(key[0], {}) if len(key) == 2 else result
        section[key[-1]] = value
    return result


def _sentence(error: ErrorDetails, found: list[Found]) -> str:
    key = tuple(str(part) for part in error["loc"])
    places = [place for name, _, place in found if key[: len(name)] == name]
    message = error["msg"].removeprefix("Value error, ")
    where = places[-1] if places else "configuration"
    return f"{where}: {'.'.join(key)}: {message}, not {error['input']!r}"
