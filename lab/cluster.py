"""The lab as one object: up, down, commands inside, faults. Needs root."""

import contextlib
import os
import shutil
import socket
import subprocess
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import Any

from lab import faults, ground, install, network, processes, services
from lab.errors import LabError
from lab.faults import Injection, Place, Target
from lab.layout import LABS, PEOPLE, USER_NAMES, USERS, LabPaths, LabSpec
from lab.status import LabStatus, read_status, slurm_states

NEEDED = ("slurmctld", "slurmd", "slurmdbd", "sacctmgr", "munged", "mariadbd",
          "mariadb-install-db", "ip", "tc", "nft", "unshare", "nsenter", "setpriv")  # fmt: skip
HOMES = {"root": "/root", **{user.name: user.home for user in USERS}}
SILENT: Callable[[str], None] = lambda _: None  # noqa: E731


class Lab:
    """A lab by its name; the object holds nothing that a second one of that name would not find."""

    def __init__(self, name: str = "lab") -> None:
        self.paths = LabPaths(name)

    @property
    def name(self) -> str:
        return self.paths.name

    def up(self, spec: LabSpec | None = None, tell: Callable[[str], None] = SILENT) -> None:
        """Make the lab and wait until every node is idle. What an interrupted `up` left goes."""
        require_root_and_packages()
        with self._alone():
            if self.is_up():
                raise LabError(f"lab {self.name} is up already: take it down first")
            self._clear()
            try:
                self._make(spec or LabSpec(), tell)
            except LabError as error:
                remedy = f"logs are in {self.paths.log}; `lab down` removes what is there"
                raise LabError(f"{error}\n{remedy}") from error

    def _make(self, spec: LabSpec, tell: Callable[[str], None]) -> None:
        tell("files")
        ground.make_files(spec, self.paths, services.slurm_version())
        head = ground.start_head(self.paths)
        network.set_up_head(head)
        place = Place(self.paths, spec, head)
        tell("database, nodes, product")
        _make_in_parallel(place)
        tell("waiting for the nodes")
        _await_idle(place)
        if spec.unicrond:
            services.start_unicrond(head)
            for node, init in processes.node_inits(self.name).items():
                services.start_sensor(node, init)
            tell("waiting for unicrond")
            services.await_unicrond(head)
        self.paths.complete.touch()

    def down(self) -> None:
        """End everything of this lab, and of one that is half made."""
        require_root()
        with self._alone():
            self._clear()

    def is_up(self) -> bool:
        return self.paths.complete.exists() and processes.head_init(self.name) is not None

    def status(self) -> LabStatus:
        place = self._place()
        return read_status(self.name, self.paths.complete.exists(), place.spec, place.head)

    def fault(self, kind: str, target: Target | None = None, **fields: Any) -> Injection:
        """`lab.fault("cut-link", node="n3")`; the fields are those of Target."""
        try:
            aim = replace(target or Target(), **fields)
        except TypeError:
            known = ", ".join(Target.__dataclass_fields__)
            raise LabError(f"a fault's target has {known}; got {', '.join(fields)}") from None
        return faults.inject(kind, self._place(), aim)

    def exec(
        self,
        argv: Sequence[str],
        *,
        user: str = "root",
        node: str | None = None,
        env: Mapping[str, str] | None = None,
        folder: str | None = None,
        text_in: str | None = None,
        timeout_seconds: float = 60,
        check: bool = True,
    ) -> subprocess.CompletedProcess[str]:
        """Run a command inside, on the head or a node; with `check`, failure is a LabError."""
        command = self.command(argv, user=user, node=node, env=env, folder=folder)
        try:
            done = subprocess.run(
                command, input=text_in or "", capture_output=True, text=True,
                timeout=timeout_seconds, check=False,
            )  # fmt: skip
        except subprocess.TimeoutExpired:
            raise LabError(f"no end after {timeout_seconds:g} s: {' '.join(argv)}") from None
        if check and done.returncode != 0:
            raise LabError(
                f"{' '.join(argv)} (as {user} on {node or 'head'}): exit code {done.returncode}: "
                f"{(done.stderr or done.stdout).strip()[-2000:]}"
            )
        return done

    def popen(
        self,
        argv: Sequence[str],
        *,
        user: str = "root",
        node: str | None = None,
        env: Mapping[str, str] | None = None,
        folder: str | None = None,
    ) -> subprocess.Popen[str]:
        """Start a long-running command; its stdout and stderr come through one pipe."""
        return subprocess.Popen(
            self.command(argv, user=user, node=node, env=env, folder=folder),
            stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
        )  # fmt: skip

    def command(
        self,
        argv: Sequence[str],
        *,
        user: str = "root",
        node: str | None = None,
        env: Mapping[str, str] | None = None,
        folder: str | None = None,
    ) -> list[str]:
        """The host's command line for it."""
        if user not in USER_NAMES:
            raise LabError(f"user {user!r} is not in the lab, which has {', '.join(USER_NAMES)}")
        place = self._place()
        init = place.init(Target(node=node)) if node is not None else place.head
        home = HOMES[user] if HOMES[user] != "/nonexistent" else "/"
        variables = {"HOME": home, "USER": user, "LOGNAME": user, "SHELL": "/bin/bash"}
        variables |= services.VARIABLES | dict(env or {})
        return processes.enter(init, processes.as_user(user, argv, variables, folder or home))

    def start_unicrond(self) -> None:
        services.start_unicrond(self._place().head)

    def stop_unicrond(self) -> None:
        services.stop_unicrond(self._place().head)

    def _place(self) -> Place:
        require_root()
        head = processes.head_init(self.name)
        if head is None or not self.paths.spec.exists():
            raise LabError(f"lab {self.name} is not up: `lab up` makes it")
        return Place(self.paths, LabSpec.from_json(self.paths.spec.read_text()), head)

    def _clear(self) -> None:
        processes.end_all(self.name)
        ground.remove_files(self.paths)

    @contextlib.contextmanager
    def _alone(self) -> Iterator[None]:
        """One `up` or `down` of a name at a time. An abstract socket leaves no file, ever."""
        with socket.socket(socket.AF_UNIX) as lock:
            deadline = time.monotonic() + 60
            while True:
                try:
                    lock.bind(f"\0unicron-lab.{self.name}")
                    break
                except OSError:
                    if time.monotonic() > deadline:
                        raise LabError(f"another up or down of lab {self.name} runs") from None
                    time.sleep(0.1)
            yield


def labs() -> list[str]:
    """The names of all labs of this machine, interrupted ones too."""
    return sorted(folder.name for folder in LABS.iterdir()) if LABS.exists() else []


def require_root() -> None:
    if os.geteuid() != 0:
        raise LabError("the lab makes namespaces and mounts: run this as root")


def require_root_and_packages() -> None:
    require_root()
    missing = [name for name in NEEDED if shutil.which(name) is None]
    if missing:
        raise LabError(f"not installed: {', '.join(missing)}. scripts/setup installs all of it")


def _make_in_parallel(place: Place) -> None:
    """The database, the nodes and the product have nothing to do with each other."""
    with ThreadPoolExecutor(3) as pool:
        product = pool.submit(install.install, place.paths.inside("/opt/unicron"))
        accounting = pool.submit(_start_accounting, place.head)
        inits = {node: faults.boot(place, node) for node in place.spec.node_names}
        accounting.result()
        services.start_slurmctld(place.head)
        for node, init in inits.items():
            services.start_slurmd(node, init)
        product.result()


def _start_accounting(head: int) -> None:
    services.start_munge(head)
    services.start_database(head)
    services.start_slurmdbd(head)
    services.fill_accounting(head, [person.name for person in PEOPLE])


def _await_idle(place: Place) -> None:
    deadline = time.monotonic() + 60
    while True:
        states = slurm_states(place.head)
        if all(states.get(node) == "IDLE" for node in place.spec.node_names):
            return
        if time.monotonic() > deadline:
            raise LabError(f"the nodes did not become idle within 60 s: {states}")
        time.sleep(0.1)
