"""unicron-run and the zipapp, as a shell sees them; srun here only prints what it was given."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

from unicrond.agent.build import build

WRAPPER = Path(__file__).parents[2] / "slurm_plugins/unicron-run"
SRUN = """#!/bin/sh
printf '%s\\n' "$@" >{folder}/srun-arguments
env >{folder}/srun-environment
echo started >>{folder}/srun-starts
{act}
"""
SCONTROL = """#!/bin/sh
case "$1 $2" in
"show hostnames") printf 'n1\\nn2\\n' ;;
"show config")
    printf '%s\\n' 'SlurmdTimeout = 90 sec' 'KillWait = 7 sec' 'SlurmUser = slurm(64)'
    echo 'TaskPlugin = {task}' ;;
"show node") echo 'NodeName=n1 Arch=x Gres=gpu:a100:2 NodeAddr=10.0.0.1 NodeHostName=n1' ;;
"requeue 41") echo requeued >>{folder}/requeues ; exit 1 ;;
"write batch_script") printf '#!/bin/bash\\n{script}\\n' ;;
esac
"""


class Site:
    def __init__(self, folder: Path, agent: Path) -> None:
        self.folder = folder
        self.submit = folder / "submit"
        self.submit.mkdir()
        (folder / "home").mkdir()
        (folder / "home/agent.pyz").symlink_to(agent)
        self.slurm()

    def slurm(
        self,
        act: str = "exit 0",
        script: str = "",
        task: str = "task/none",
        sacct: str = "echo sbatch -N2 job.sh",
    ) -> None:
        programs = {
            "srun": SRUN.format(folder=self.folder, act=act),
            "scontrol": SCONTROL.format(script=script, task=task, folder=self.folder),
            "sacct": f"#!/bin/sh\n{sacct}\n",
        }
        for name, text in programs.items():
            path = self.folder / "bin" / name
            path.parent.mkdir(exist_ok=True)
            path.write_text(text)
            path.chmod(0o755)

    def run(
        self, *arguments: str, wrapper: Path = WRAPPER, job: bool = True, **extra: str
    ) -> subprocess.CompletedProcess[str]:
        environment = {
            "PATH": f"{self.folder / 'bin'}:/usr/bin:/bin",
            "UNICRON_HOME": str(self.folder / "home"),
            **extra,
        }
        if job:
            environment |= {
                "SLURM_JOB_ID": "41",
                "SLURM_JOB_NUM_NODES": "2",
                "SLURM_JOB_NODELIST": "n[1-2]",
                "SLURM_GPUS_ON_NODE": "2",
                "SLURMD_NODENAME": "n1",
                "SLURM_SUBMIT_DIR": str(self.submit),
            }
        return subprocess.run(
            [str(wrapper), *arguments],
            env=environment,
            cwd=self.submit,
            capture_output=True,
            text=True,
            timeout=30,
        )

    def srun_arguments(self) -> list[str]:
        return (self.folder / "srun-arguments").read_text().splitlines()

    def srun_environment(self) -> dict[str, str]:
        lines = (self.folder / "srun-environment").read_text().splitlines()
        return dict(line.partition("=")[::2] for line in lines)

    def requeues(self) -> int:
        file = self.folder / "requeues"
        return len(file.read_text().splitlines()) if file.exists() else 0

    def starts(self) -> int:
        file = self.folder / "srun-starts"
        return len(file.read_text().splitlines()) if file.exists() else 0


@pytest.fixture(scope="session")
def agent(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("zipapp") / "agent.pyz"
    build(path)
    return path


@pytest.fixture
def site(tmp_path: Path, agent: Path) -> Site:
    return Site(tmp_path, agent)


def test_help_tells_how_it_is_used(site: Site) -> None:
    done = site.run("--help", job=False)
    assert done.returncode == 0 and "--min-nodes" in done.stdout


def test_help_after_the_dashes_is_the_programs(site: Site) -> None:
    site.run("--", "sh", "--help")
    assert site.srun_arguments()[-1] == "--help"


def test_outside_a_job_it_says_how_to_submit_it(site: Site) -> None:
    done = site.run("--", "true", job=False)
    assert done.returncode == 2 and "sbatch" in done.stderr


def test_agents_are_started_on_every_node_beside_other_steps(site: Site) -> None:
    done = site.run("--weight", "2", "--", "sh", "-c", "echo '$HOME'  \"x\"", "")
    assert done.returncode == 0, done.stderr
    arguments = site.srun_arguments()
    wanted = {"--overlap", "--no-kill", "--kill-on-bad-exit=0", "--wait=0", "--ntasks-per-node=1"}
    assert wanted <= set(arguments)
    assert arguments[arguments.index("-N") + 1] == "2"
    assert f"--output={site.submit}/unicron-41/agent-%N.log" in arguments
    assert (site.submit / "unicron-41").is_dir()
    assert arguments[-7:] == ["--weight", "2", "--", "sh", "-c", "echo '$HOME'  \"x\"", ""]


def test_agents_get_a_secret_and_what_slurm_was_asked_once(site: Site) -> None:
    site.run("--", "true")
    first = site.srun_environment()
    site.run("--", "true")
    assert len(first["UNICRON_SECRET"]) == 44
    assert first["UNICRON_SECRET"] != site.srun_environment()["UNICRON_SECRET"]
    assert '"slurmd_timeout_seconds":90' in first["UNICRON_FACTS"]
    assert '"addresses":{"n1":"10.0.0.1"}' in first["UNICRON_FACTS"]
    assert first["UNICRON_BATCH_HOST"] == "n1"


@pytest.mark.parametrize(("task", "bound"), [("task/none", False), ("task/cgroup", True)])
def test_cpus_are_unbound_where_slurm_binds_them(site: Site, task: str, bound: bool) -> None:
    site.slurm(task=task)
    site.run("--", "true")
    assert ("--cpu-bind=none" in site.srun_arguments()) is bound


@pytest.mark.parametrize(
    ("arguments", "names"),
    [
        (["--weight", "-1", "--", "true"], "--weight"),
        (["--min-nodes", "3", "--", "true"], "--min-nodes"),
        (["--min-nodes", "2", "--max-nodes", "1", "--", "true"], "--max-nodes"),
        (["--", "no-such-program"], "no-such-program"),
        (["true"], "`--`"),
    ],
)
def test_bad_input_is_named_and_nothing_is_started(
    site: Site, arguments: list[str], names: str
) -> None:
    done = site.run(*arguments)
    assert done.returncode == 2 and names in done.stderr
    assert site.starts() == 0


def test_a_missing_installation_or_python_is_named(site: Site) -> None:
    done = site.run("--", "true", UNICRON_HOME="/no/such/place")
    assert done.returncode == 2 and "UNICRON_HOME" in done.stderr
    done = site.run("--", "true", UNICRON_PYTHON="false")
    assert done.returncode == 2 and "UNICRON_PYTHON" in done.stderr


def test_a_script_without_no_kill_is_warned_about(site: Site) -> None:
    assert "--no-kill" in site.run("--", "true").stderr


@pytest.mark.parametrize("line", ["#SBATCH --no-kill", "#SBATCH -N2 -k", "#SBATCH -Hk"])
def test_a_script_with_no_kill_is_not(site: Site, line: str) -> None:
    site.slurm(script=line)
    assert "WARNING" not in site.run("--", "true").stderr


def test_no_kill_on_the_command_line_counts_though_accounting_is_late(site: Site) -> None:
    seen = site.folder / "seen"
    site.slurm(sacct=f"[ ! -e {seen} ] || echo sbatch -N2 --no-kill job.sh\ntouch {seen}")
    assert "WARNING" not in site.run("--", "true").stderr


def test_as_the_batch_script_it_brings_its_own_options(site: Site) -> None:
    script = site.folder / "slurm_script"
    shutil.copy(WRAPPER, script)
    assert "WARNING" not in site.run("--", "true", wrapper=script).stderr
    text = WRAPPER.read_text().splitlines()
    assert text[1:4] == ["#SBATCH --no-kill", "#SBATCH --requeue", "#SBATCH --open-mode=append"]


def test_the_agents_verdict_counts_more_than_sruns_code(site: Site) -> None:
    site.slurm(act='echo 0 >"$UNICRON_OUTPUT_DIR/verdict"; exit 137')
    assert site.run("--", "true").returncode == 0
    site.slurm(act='echo 93 >"$UNICRON_OUTPUT_DIR/verdict"; exit 0')
    assert site.run("--", "true").returncode == 93


def test_an_old_verdict_does_not_count(site: Site) -> None:
    (site.submit / "unicron-41").mkdir()
    (site.submit / "unicron-41/verdict").write_text("0\n")
    site.slurm(act="exit 5")
    assert site.run("--", "true").returncode == 5


def test_where_all_agents_were_killed_they_are_started_again_but_not_for_ever(site: Site) -> None:
    site.slurm(act="exit 137")
    assert site.run("--", "true").returncode == 137
    assert site.starts() == 3


def test_a_run_that_ended_with_a_kill_is_not_started_again(site: Site) -> None:
    site.slurm(act='echo 137 >"$UNICRON_OUTPUT_DIR/verdict"; exit 137')
    assert site.run("--", "true").returncode == 137
    assert site.starts() == 1


def test_a_cancelled_job_is_not_started_again(site: Site) -> None:
    site.slurm(act="exit 143")
    assert site.run("--", "true").returncode == 143
    assert site.starts() == 1


def test_a_requeued_job_in_which_no_step_can_start_is_queued_again_but_not_for_ever(
    site: Site,
) -> None:
    site.slurm(act="exit 1")
    for expected in (1, 2, 2):
        assert site.run("--", "true", SLURM_RESTART_COUNT="1").returncode == 1
        assert site.requeues() == expected


def test_a_job_that_was_not_requeued_or_has_a_verdict_is_not_queued_again(site: Site) -> None:
    site.slurm(act="exit 1")
    assert site.run("--", "true").returncode == 1
    site.slurm(act='echo 1 >"$UNICRON_OUTPUT_DIR/verdict"; exit 1')
    assert site.run("--", "true", SLURM_RESTART_COUNT="1").returncode == 1
    assert site.requeues() == 0


def test_parts_of_nodes_are_mentioned(site: Site) -> None:
    assert "whole nodes" not in site.run("--", "true").stderr
    site.slurm()
    text = (site.folder / "bin/scontrol").read_text().replace("gpu:a100:2", "gpu:a100:8")
    (site.folder / "bin/scontrol").write_text(text)
    assert "2 of the 8 GPUs" in site.run("--", "true").stderr


def test_the_zipapp_is_the_same_each_time_and_needs_nothing_else(tmp_path: Path) -> None:
    one, two = tmp_path / "one.pyz", tmp_path / "two.pyz"
    build(one)
    build(two)
    assert one.read_bytes() == two.read_bytes()
    done = subprocess.run(
        ["/usr/bin/python3", "-I", str(one), "check"], capture_output=True, text=True, timeout=30
    )
    assert done.returncode == 2 and "usage" in done.stderr
