"""Watches a training process that need not know of it: iterations, exceptions, stacks.

    iterations    torch's optimizer hook; an iteration is the recurring period of one optimizer
    waiting       what DistributedDataParallel measures of itself: how long it waits for peers
    collectives   which was called last, and where: it stands in the page when the rank is stopped
    exceptions    the audit event of sys.excepthook, and what is in flight as a group is destroyed
    stacks        faulthandler on a real-time signal (NCCL takes SIGUSR1), to a file beside the page
    launched      torch's own count of collectives, when a byte comes in the pipe beside the page
    imported      after start-up, which modules: for the standby process (unicron/standby.py)
    start         no garbage collection while torch is imported: saves up to a tenth of a start

It lives in every Python child of a rank; only the process that joined a process group counts, and
before that the first one.
"""

from __future__ import annotations

import contextlib
import faulthandler
import functools
import gc
import importlib.util
import os
import signal
import sys
import threading
import time
import weakref
from collections.abc import Callable, Iterator, Sequence
from types import ModuleType
from typing import TYPE_CHECKING, Any, cast

from unicron import page

if TYPE_CHECKING:  # at run time it costs every Python child some ms
    from importlib.abc import Loader
    from importlib.machinery import ModuleSpec

STACK_SIGNAL = signal.SIGRTMIN + 8
SWITCH = "UNICRON_WATCH"  # "0": nothing of this is installed
ASK_EVERY_SECONDS = 0.25
NOT_AS_WE_KNOW_IT = (AttributeError, KeyError, RuntimeError, TypeError)  # of torch's inner parts
COLLECTIVES = (
    "all_reduce", "broadcast", "reduce", "all_gather", "all_gather_into_tensor", "gather",
    "scatter", "reduce_scatter", "reduce_scatter_tensor", "all_to_all", "all_to_all_single",
    "barrier",
)  # fmt: skip
RAISED = "raised"
MOST_FRAMES = 20  # of torch's own
STARTED_STEPS = 2  # of any optimizer, after which a rank has imported what it needs
FORGOTTEN_STEPS = 100  # of other optimizers, after which the counted one is given up

_stacks: Any = None  # faulthandler keeps writing to it
_asked: int | None = None  # the pipe in which the agent asks


def install() -> None:
    """Once a process; does nothing outside a run or where it is switched off."""
    mine = page.of_this_process()
    if mine is None or os.environ.get(SWITCH) == "0":
        return
    mine.claim_if_free()
    watcher = Watcher(mine)
    sys.addaudithook(watcher.audit)
    wanted: dict[str, Callable[[ModuleType], None]] = {
        "torch": lambda _: None,
        "torch._dynamo": lambda _: None,  # as heavy as torch; every optimizer imports it
        "torch.optim.optimizer": watcher.count_steps,
        "torch.distributed.distributed_c10d": watcher.wrap_groups,
        "torch.nn.parallel.distributed": watcher.time_waiting,
    }
    sys.meta_path.insert(0, AfterImport(wanted))


class Watcher:
    """What one process notices of itself."""

    def __init__(self, mine: page.Page) -> None:
        self._page = mine
        self._optimizer: int = 0  # id of the one that is counted
        self._others = 0
        self._reported = False
        self._thread = threading.get_ident()  # the main one
        self._parallel: Callable[[], Any] = lambda: None  # the newest DistributedDataParallel
        self._asked_at, self._measured = 0.0, 0
        self._steps = 0

    # iterations
    def count_steps(self, module: ModuleType) -> None:
        module.register_optimizer_step_post_hook(self._stepped)

    def _stepped(self, optimizer: object, *_: object) -> None:
        self._steps += 1
        if self._steps == STARTED_STEPS and self._page.mine:
            from unicron import imported

            imported.tell(os.environ[page.VARIABLE])
        self._tell_waiting()
        if self._page.explicit:
            return
        if id(optimizer) != self._optimizer:
            self._others += 1
            if self._optimizer and self._others < FORGOTTEN_STEPS:
                return
            self._optimizer = id(optimizer)
        self._others = 0
        self._page.iterated()

    # waiting
    def time_waiting(self, module: ModuleType) -> None:
        parallel = module.DistributedDataParallel
        make = parallel.__init__

        @functools.wraps(make)
        def __init__(one: Any, *args: Any, **options: Any) -> None:  # noqa: N807
            make(one, *args, **options)
            with contextlib.suppress(*NOT_AS_WE_KNOW_IT):
                if one.device_type == "cpu":  # on a GPU measuring waits for it: torch's own rate
                    one._set_ddp_runtime_logging_sample_rate(1)
                self._parallel = weakref.ref(one)

        parallel.__init__ = __init__

    def _tell_waiting(self) -> None:
        """Of the last complete iteration. Asking takes time, so short ones are sampled."""
        one, now = self._parallel(), time.monotonic()
        if one is None or now < self._asked_at + ASK_EVERY_SECONDS:
            return
        self._asked_at = now
        with contextlib.suppress(*NOT_AS_WE_KNOW_IT):
            seen = one.logger._get_ddp_logging_data().ints_map
            if seen["iteration"] != self._measured:
                self._measured = seen["iteration"]
                waits = seen["backward_comm_time"] - seen["backward_compute_comm_overlap_time"]
                self._page.waited(waits // 1000)

    # exceptions
    def audit(self, event: str, arguments: tuple[Any, ...]) -> None:
        if event == "sys.excepthook":
            self._tell(arguments[1], arguments[2], arguments[3], RAISED)

    def _tell(self, kind: Any, value: Any, trace: Any, where: str) -> None:
        if self._reported or not self._page.mine or threading.get_ident() != self._thread:
            return  # what a thread dies of, its process survives
        if where == RAISED and (sys.flags.interactive or hasattr(sys, "ps1")):
            return  # so does an interpreter with a prompt, whatever is raised there
        if not issubclass(kind, (KeyboardInterrupt, SystemExit)):
            from unicron import report  # what it needs costs every Python child some ms

            self._reported = report.exception(kind, value, trace, where)

    # process groups
    def wrap_groups(self, module: ModuleType) -> None:
        start, end = module.init_process_group, module.destroy_process_group

        def init_process_group(*args: Any, **options: Any) -> Any:
            result = start(*args, **options)
            self._page.joined()
            _open_stacks()
            _answer(self._page, module)
            return result

        def destroy_process_group(*args: Any, **options: Any) -> Any:
            in_flight = sys.exc_info()
            if in_flight[0] is not None:
                self._tell(*in_flight, "in flight while the group is destroyed")
            return end(*args, **options)

        for wrapper, wrapped in ((init_process_group, start), (destroy_process_group, end)):
            wrapper.__doc__, wrapper.__wrapped__ = wrapped.__doc__, wrapped  # type: ignore[attr-defined]
        module.init_process_group = init_process_group  # type: ignore[attr-defined]
        module.destroy_process_group = destroy_process_group  # type: ignore[attr-defined]
        for name in COLLECTIVES:
            if callable(collective := getattr(module, name, None)):
                setattr(module, name, self._noted(name, collective))

    def _noted(self, name: str, collective: Callable[..., Any]) -> Callable[..., Any]:
        """Those of smaller groups are not noted: ranks would number them differently."""

        from inspect import signature

        known = list(signature(collective).parameters)
        place = known.index("group") if "group" in known else len(known)

        @functools.wraps(collective)
        def call(*args: Any, **options: Any) -> Any:
            if (args[place] if len(args) > place else options.get("group")) is not None:
                return collective(*args, **options)
            self._page.begins(name, _line_of_script())
            result = collective(*args, **options)
            self._page.ends()
            return result

        return call


def _line_of_script() -> str:
    """Who called torch."""
    frame = sys._getframe(2)
    for _ in range(MOST_FRAMES):
        if frame.f_back is None or "/torch/" not in frame.f_code.co_filename:
            break
        frame = frame.f_back
    return f"{frame.f_code.co_filename.rpartition('/')[2]}:{frame.f_lineno}"


def _open_stacks() -> None:
    """From here on the real-time signal writes every thread's stack beside the page."""
    global _stacks
    path = os.environ[page.VARIABLE] + ".stacks"
    try:
        _stacks = open(path, "w")  # noqa: PTH123, SIM115 - stays open for faulthandler
    except OSError:
        return  # a full disk: the rank then has no stacks to show, and trains on
    faulthandler.register(STACK_SIGNAL, file=_stacks, all_threads=True, chain=False)


def _answer(mine: page.Page, module: ModuleType) -> None:
    """From here on a byte in the pipe makes a thread tell how many collectives torch has launched:
    the main thread may be stuck in one."""
    global _asked
    path = os.environ[page.VARIABLE] + ".asked"
    if _asked is not None or not mine.mine:
        return
    try:
        os.mkfifo(path, 0o600)
        _asked = os.open(path, os.O_RDWR | os.O_CLOEXEC)  # its own writer: reading never ends
    except OSError:
        return
    threading.Thread(
        target=_tell_launched, args=(_asked, mine, module), name="unicron-watch", daemon=True
    ).start()


def _tell_launched(pipe: int, mine: page.Page, module: ModuleType) -> None:
    while os.read(pipe, 1):
        with contextlib.suppress(*NOT_AS_WE_KNOW_IT):
            world = module.GroupMember.WORLD
            if world is not None:
                mine.launched(world._get_sequence_number_for_group())


class AfterImport:
    """Imports some modules without garbage collection, and calls a function with each right after;
    costs others one look-up."""

    def __init__(self, wanted: dict[str, Callable[[ModuleType], None]]) -> None:
        self._wanted = wanted

    def find_spec(
        self, name: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        then = self._wanted.pop(name, None)
        if then is None:
            return None
        spec = importlib.util.find_spec(name)
        if spec is not None and spec.loader is not None:
            spec.loader = cast("Loader", _Loader(spec.loader, then))
        return spec


class _Loader:
    def __init__(self, inner: Loader, then: Callable[[ModuleType], None]) -> None:
        self._inner, self._then = inner, then

    def create_module(self, spec: ModuleSpec) -> ModuleType | None:
        return self._inner.create_module(spec)

    def exec_module(self, module: ModuleType) -> None:
        with _no_collection():
            self._inner.exec_module(module)
        self._then(module)

    def __getattr__(self, name: str) -> Any:  # get_source and others, for tracebacks and pickle
        return getattr(self._inner, name)


@contextlib.contextmanager
def _no_collection() -> Iterator[None]:
    """An import makes many objects and hardly any garbage: collecting walks them in vain."""
    if not gc.isenabled():
        yield
        return
    gc.disable()
    try:
        yield
    finally:
        gc.enable()
