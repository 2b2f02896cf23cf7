"""The start-up hook in real Python processes: it watches, chains the user's own, breaks nothing."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from unicron import page

ROOT = Path(__file__).parents[2]
FAKE_TORCH = """
class Optimizer:
    hooks = []
    def step(self):
        for hook in self.hooks:
            hook(self, (), {})
def register_optimizer_step_post_hook(hook):
    Optimizer.hooks.append(hook)
"""
FAKE_PARALLEL = """
class Logger:
    iteration = 0
    def _get_ddp_logging_data(self):
        self.iteration += 1
        waits = {"backward_comm_time": 9_000_000, "backward_compute_comm_overlap_time": 2_000_000}
        self.ints_map = {"iteration": self.iteration, **waits}
        return self
class DistributedDataParallel:
    device_type = "cpu"
    def __init__(self, module, rate=None):
        self.logger, self.rate = Logger(), rate
    def _set_ddp_runtime_logging_sample_rate(self, rate):
        self.rate = rate
"""
FAKE_GROUPS = """
def init_process_group(*a, **k): pass
def destroy_process_group(*a, **k): pass
def all_reduce(tensor, op=None, group=None):
    if tensor == "stuck":
        raise SystemExit
def barrier(group=None): pass
def all_gather_object(*a): all_reduce(None)
"""


class Rank:
    """A Python process started as the agent starts it; what it says on the socket is kept."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.page = folder / "page"
        page.make(self.page)
        self.said: list[dict[str, object]] = []
        self._listener = socket.socket(socket.AF_UNIX)
        self._listener.bind(str(folder / "sock"))
        self._listener.listen()
        threading.Thread(target=self._listen, daemon=True).start()
        for name, text in (
            ("optim/optimizer.py", FAKE_TORCH),
            ("distributed/distributed_c10d.py", FAKE_GROUPS),
            ("nn/parallel/distributed.py", FAKE_PARALLEL),
        ):
            path = folder / "lib/torch" / name
            path.parent.mkdir(parents=True, exist_ok=True)
            for package in path.relative_to(folder / "lib").parents[:-1]:
                (folder / "lib" / package / "__init__.py").touch()
            path.write_text(text)

    def _listen(self) -> None:
        while True:
            try:
                connection, _ = self._listener.accept()
            except OSError:
                return
            with connection, connection.makefile() as lines:
                self.said += [json.loads(line) for line in lines]

    def run(self, script: str, *flags: str, **environment: str) -> subprocess.CompletedProcess[str]:
        path = self.folder / "train.py"
        path.write_text(script)
        paths = f"{ROOT / 'unicron/hook'}:{self.folder / 'lib'}"
        return subprocess.run(
            [sys.executable, *flags, str(path)],
            env={**os.environ, "PYTHONPATH": paths, "UNICRON_PAGE": str(self.page),
                 "UNICRON_SOCKET": str(self.folder / "sock"), "UNICRON_MEMBER": "m.1",
                 **environment},
            stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=60, check=False,
        )  # fmt: skip

    def close(self) -> None:
        self._listener.close()


@pytest.fixture
def rank(tmp_path: Path) -> Rank:
    return Rank(tmp_path)


TRAIN = """
from torch.optim.optimizer import Optimizer
from torch.distributed import distributed_c10d as dist
dist.init_process_group()
model, other = Optimizer(), Optimizer()
for _ in range(7):
    model.step(); other.step(); other.step()
"""


def test_iterations_are_the_period_of_one_optimizer(rank: Rank) -> None:
    assert rank.run(TRAIN).returncode == 0
    seen = page.read(rank.page)
    assert seen is not None
    assert (seen.count, seen.explicit) == (7, False)
    assert seen.joined_ns


PARALLEL = """
import time
from torch.nn.parallel.distributed import DistributedDataParallel
from torch.optim.optimizer import Optimizer
model, optimizer = DistributedDataParallel(object()), Optimizer()
for _ in range(4):
    time.sleep(0.26)
    optimizer.step()
print(model.rate)
"""


def test_what_a_rank_waits_for_its_peers_is_taken_from_torchs_own_measurement(rank: Rank) -> None:
    assert rank.run(PARALLEL).stdout == "1\n"
    seen = page.read(rank.page)
    assert seen is not None
    assert [lap.waited_seconds for lap in seen.laps(0)] == [0.007] * 3


def test_a_torch_that_measures_otherwise_breaks_nothing(rank: Rank) -> None:
    other = "DistributedDataParallel.logger = property(lambda _: None, lambda *_: None)\n"
    done = rank.run(PARALLEL.replace("model, opt", other + "model, opt"))
    assert (done.stdout, done.stderr) == ("1\n", "")
    on_gpu = "DistributedDataParallel.device_type = 'cuda'\n"
    assert rank.run(PARALLEL.replace("model, opt", on_gpu + "model, opt")).stdout == "None\n"


def test_an_uncaught_exception_is_told_before_the_process_ends(rank: Rank) -> None:
    done = rank.run(TRAIN + "raise ValueError('boom')")
    assert "boom" in done.stderr
    assert [m["type"] for m in rank.said] == ["hello", "exception"]
    assert "ValueError: boom" in str(rank.said[1]["text"])
    assert rank.said[1]["where"] == "raised"


def test_an_exception_in_flight_is_told_before_the_group_is_destroyed(rank: Rank) -> None:
    rank.run(TRAIN + "try:\n    1 / 0\nfinally:\n    dist.destroy_process_group()\n")
    assert "in flight" in str(rank.said[1]["where"])
    assert len(rank.said) == 2  # and not once more when it reaches the top


def test_a_child_process_does_not_speak_for_the_rank(rank: Rank) -> None:
    child = "import subprocess, sys\nsubprocess.run([sys.executable, '-c', '1/0'])\n"
    rank.run(TRAIN + child)
    assert rank.said == []


def test_the_users_own_sitecustomize_runs_too(rank: Rank) -> None:
    (rank.folder / "lib/sitecustomize.py").write_text("print('mine ran')\n")
    assert "mine ran" in rank.run("import sys; assert 'unicron/hook' not in str(sys.path)").stdout


def test_the_switch_turns_it_off(rank: Rank) -> None:
    rank.run(TRAIN + "raise ValueError('boom')", UNICRON_WATCH="0")
    seen = page.read(rank.page)
    assert seen is not None
    assert seen.count == 0
    assert rank.said == []


def test_a_page_that_cannot_be_had_breaks_nothing(rank: Rank) -> None:
    done = rank.run(TRAIN + "print('trained')", UNICRON_PAGE="/nonexistent/page")
    assert done.stdout == "trained\n"
    assert done.stderr == ""


def test_heartbeats_replace_counted_iterations_and_outside_a_run_do_nothing(rank: Rank) -> None:
    script = "import unicron\n" + TRAIN + "unicron.heartbeat(500)\nmodel.step()\n"
    assert rank.run(script).returncode == 0
    seen = page.read(rank.page)
    assert seen is not None
    assert (seen.iteration, seen.explicit) == (500, True)
    paths = {"PYTHONPATH": str(ROOT), "UNICRON_PAGE": ""}
    alone = rank.run("import unicron; unicron.heartbeat(1); unicron.heartbeat(2)", **paths)
    assert alone.stderr.count("not inside a run") == 1


GROUPS = """
from torch.distributed import distributed_c10d as dist
dist.init_process_group()
"""


@pytest.mark.parametrize(
    ("call", "words"),
    [
        ("", "past collective 1, barrier at train.py:5"),
        ("dist.all_reduce('stuck')", "in collective 2, all_reduce at train.py:6"),
        ("dist.all_gather_object()", "past collective 2, all_reduce at train.py:6"),
        (
            "dist.all_reduce('stuck', group='some ranks')",
            "past collective 1, barrier at train.py:5",
        ),
        ("dist.all_reduce('stuck', None, 'some')", "past collective 1, barrier at train.py:5"),
    ],
)
def test_a_rank_leaves_its_last_collective_in_its_page(rank: Rank, call: str, words: str) -> None:
    assert rank.run(f"{GROUPS}\ndist.barrier()\n{call}\n").stderr == ""
    seen = page.read(rank.page)
    assert seen is not None
    assert str(seen.collective()) == words


def test_of_two_workers_of_a_launcher_the_first_one_counts(rank: Rank) -> None:
    (rank.folder / "worker.py").write_text(TRAIN + "import sys\nprint(flush=True)\ninput()\n")
    launcher = """
import subprocess, sys
workers = []
for _ in range(2):
    one = subprocess.Popen([sys.executable, sys.argv[0].replace("train", "worker")],
                           stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    one.stdout.readline()
    workers.append(one)
for one in workers:
    one.communicate(b"\\n")
print(workers[0].pid)
"""
    done = rank.run(launcher)
    seen = page.read(rank.page)
    assert seen is not None
    assert (seen.pid, seen.count) == (int(done.stdout), 7)


def test_what_a_rank_forks_or_starts_counts_no_iterations_for_it(rank: Rank) -> None:
    children = """
import os, subprocess, sys
child = os.fork()
if not child:
    model.step()
    os._exit(0)
os.waitpid(child, 0)
code = "from torch.optim.optimizer import Optimizer; Optimizer().step()"
subprocess.run([sys.executable, "-c", code], check=True)
"""
    assert rank.run(TRAIN + children).returncode == 0
    seen = page.read(rank.page)
    assert seen is not None
    assert (seen.count, bool(seen.pid)) == (7, True)


def test_after_a_program_that_prepares_the_one_that_trains_counts(rank: Rank) -> None:
    rank.run("print('prepared')")
    before = page.read(rank.page)
    rank.run("from torch.optim.optimizer import Optimizer\nOptimizer().step()\n")
    after = page.read(rank.page)
    assert before is not None
    assert after is not None
    assert (after.pid != before.pid, after.count) == (True, 1)


@pytest.mark.parametrize(
    "dies",
    [
        "import threading\nt = threading.Thread(target=int, args=('x',))\nt.start(); t.join()",
        "import multiprocessing as m\n"
        "p = m.get_context('fork').Process(target=int, args=('x',))\np.start(); p.join()",
        "from concurrent.futures import ProcessPoolExecutor as Pool\n"
        "import multiprocessing as m\n"
        "with Pool(1, m.get_context('fork')) as pool: print(pool.submit(int, 'x').exception())",
    ],
    ids=["a thread", "a forked worker", "a worker of a pool"],
)
def test_what_a_thread_or_a_worker_dies_of_is_no_exception_of_the_rank(
    rank: Rank, dies: str
) -> None:
    done = rank.run(f"{TRAIN}\n{dies}\n")
    assert (done.returncode, rank.said) == (0, [])
    assert "ValueError" in done.stderr or "invalid literal" in done.stdout


@pytest.mark.parametrize("flag", ["-I", "-S", "-E"])
def test_where_python_runs_no_start_up_hook_the_program_runs_all_the_same(
    rank: Rank, flag: str
) -> None:
    script = f"import sys\nsys.path.insert(0, {str(rank.folder / 'lib')!r})\n{TRAIN}print('ran')\n"
    done = rank.run(script, flag)
    assert (done.stdout, done.stderr) == ("ran\n", "")
    seen = page.read(rank.page)
    assert seen is not None
    assert seen.count == 0


def test_what_is_raised_at_a_prompt_is_no_exception_of_the_rank(rank: Rank) -> None:
    (rank.folder / "startup.py").write_text("print('mine ran')\n")
    done = rank.run("1 / 0", "-i", PYTHONSTARTUP=str(rank.folder / "startup.py"))
    assert "ZeroDivisionError" in done.stderr
    assert rank.said == []


def test_without_the_hook_a_script_that_tells_its_iterations_is_seen(rank: Rank) -> None:
    script = f"import sys\nsys.path.insert(0, {str(ROOT)!r})\nimport unicron\n"
    assert rank.run(script + "unicron.heartbeat(41)\n", "-I").returncode == 0
    seen = page.read(rank.page)
    assert seen is not None
    assert (seen.iteration, bool(seen.pid)) == (41, True)


def test_a_sitecustomize_that_fails_does_so_as_without_us(rank: Rank) -> None:
    (rank.folder / "lib/sitecustomize.py").write_text("raise OSError('mine failed')\n")
    done = rank.run("print('ran')")
    assert (done.returncode, done.stdout) == (0, "ran\n")
    assert "mine failed" in done.stderr


def test_programs_in_an_archive_and_in_an_environment_of_their_own_are_watched(
    rank: Rank,
) -> None:
    import venv
    import zipfile

    venv.create(rank.folder / "venv")
    with zipfile.ZipFile(rank.folder / "program.pyz", "w") as archive:
        archive.writestr("__main__.py", TRAIN)
    again = """
import subprocess, sys
folder = sys.argv[0].rpartition("/")[0]
sys.exit(subprocess.run([folder + "/venv/bin/python", folder + "/program.pyz"]).returncode)
"""
    assert rank.run(again, "-S").returncode == 0
    seen = page.read(rank.page)
    assert seen is not None
    assert (seen.count, bool(seen.pid)) == (7, True)


def test_a_child_that_is_not_the_rank_imports_nothing_for_the_watch(rank: Rank) -> None:
    script = """
import subprocess, sys
code = "import sys; print([m for m in sys.modules if m.startswith('unicron') or m == 'pathlib'])"
print(subprocess.run([sys.executable, "-c", code], capture_output=True, text=True).stdout)
"""
    assert rank.run(script).stdout.strip() == "[]"
