"""The scripts for Slurm, by real submissions: what they are for, and that none can hurt a job."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from stage import LOCKSTEP, NODES, Stage, until
from typer.testing import CliRunner

from lab import nvml, processes, services
from lab.hardware import KERNEL_LOG, SYS
from unicrond.ctl.plugins import app

pytestmark = pytest.mark.slurm

FOLDER = "/etc/slurm"
SWITCHED_ON = f"""
Prolog={FOLDER}/unicron-prolog
Epilog={FOLDER}/unicron-epilog
TaskProlog={FOLDER}/unicron-taskprolog
CliFilterPlugins=lua
JobSubmitPlugins=lua
"""
SITES_OWN = """pcall(dofile, "/etc/slurm/job_submit_unicron.lua")
function slurm_job_submit(job_desc, part_list, submit_uid)
    if unicron_job_submit then pcall(unicron_job_submit, job_desc) end
    return slurm.SUCCESS
end
function slurm_job_modify(job_desc, job_rec, part_list, modify_uid)
    return slurm.SUCCESS
end
"""
BROKEN = {"gone": None, "broken": "#!/bin/sh\necho '&&& export X='\nexit 7\n",
          "slow": "#!/bin/sh\nsleep 60\n"}  # fmt: skip
WITHIN_SECONDS = 15.0  # prolog and epilog take 5 s each at most


@pytest.fixture(scope="module")
def cluster(raised_stage: Stage) -> Iterator[Stage]:
    raised_stage.make_whole()
    folder = raised_stage.lab.paths.inside(FOLDER)
    conf = folder / "slurm.conf"
    before = conf.read_text()
    assert CliRunner().invoke(app, ["--into", str(folder)]).exit_code == 0
    (folder / "job_submit.lua").write_text(SITES_OWN)
    conf.write_text(before + SWITCHED_ON)
    restart(raised_stage)
    yield raised_stage
    raised_stage.make_whole()
    conf.write_text(before)
    restart(raised_stage)


@pytest.fixture(autouse=True)
def whole(cluster: Stage) -> Iterator[None]:
    cluster.make_whole()
    for node in NODES:
        cluster.lab.fault("mend-hardware", node=node)
    cluster.agent_conf()
    conf = cluster.lab.paths.inside("/etc/unicron/agent.conf")
    library = f"/opt/unicron/lib/{nvml.NAME}"
    more = f"kernel_log = {KERNEL_LOG}\nsys_root = {SYS}\nnvml_library = {library}\n"
    conf.write_text(conf.read_text() + more)
    yield
    cluster.cancel_all()


def restart(stage: Stage) -> None:
    stage.lab.fault("stop-slurmctld")
    stage.lab.fault("start-slurmctld")
    ping = ["scontrol", "ping"]
    until("slurmctld answers", lambda: "is UP" in stage.lab.exec(ping, check=False).stdout)
    stage.scontrol("reconfigure")
    until("the nodes are idle", lambda: set(stage.node_states().values()) == {"IDLE"})


def submit(stage: Stage, *options: str, script: str = "#!/bin/bash\nsrun hostname\n") -> int:
    folder = f"/home/alice/{time.monotonic_ns()}"
    stage.lab.exec(["mkdir", folder], user="alice")
    command = ["sbatch", "--parsable", *options]
    done = stage.lab.exec(command, user="alice", folder=folder, text_in=script)
    return int(done.stdout)


def shown(stage: Stage, job: int) -> str:
    return stage.scontrol("show", "job", "-o", str(job))


def output(stage: Stage, job: int) -> str:
    words = shown(stage, job).split()
    name = next(word for word in words if word.startswith("StdOut=")).removeprefix("StdOut=")
    return stage.lab.paths.inside(name).read_text()


def completed(stage: Stage, job: int) -> None:
    until("it is done", lambda: "JobState=COMPLETED" in shown(stage, job), WITHIN_SECONDS)


def spoil(program: Path, text: str | None) -> bytes:
    before = program.read_bytes()
    if text is None:
        program.unlink()
    else:
        program.write_text(text)
    return before


@pytest.mark.parametrize("how", BROKEN)
def test_a_prolog_and_epilog_that_cannot_ask_hurt_no_job(cluster: Stage, how: str) -> None:
    program = cluster.lab.paths.inside("/opt/unicron/bin/unicron-sensor")
    before = spoil(program, BROKEN[how])
    try:
        job = submit(cluster, "-N2")
        completed(cluster, job)
        until("its nodes are idle", lambda: set(cluster.node_states().values()) == {"IDLE"}, 10)
        assert cluster.reasons() == {}
        assert len(output(cluster, job).split()) == 2
    finally:
        program.write_bytes(before)
        program.chmod(0o755)


def test_a_node_that_a_prolog_finds_broken_is_drained_and_the_run_moves_off(cluster: Stage) -> None:
    """What happened while nobody looked: the sensor of n2 does not run."""
    (sensor,) = (p for p in cluster.inside("n2") if "unicrond.sensor" in p.arguments)
    processes.kill_and_wait(sensor)
    completed(cluster, submit(cluster, "-w", "n2"))  # its first look is not about the past
    try:
        cluster.lab.fault("xid", node="n2")
        training = cluster.submit(LOCKSTEP, "--min-nodes=2")
        training.until("n2 is drained", lambda: "DRAIN" in cluster.node_states()["n2"], 20)
        assert cluster.reason("n2").startswith("unicron: GPU fell off the bus incident=")
        training.until(
            "the run is elsewhere",
            lambda: (
                (n := training.newest())
                and {s.node for s in training.of(n.generation)} == {"n1", "n3"}
            ),
        )
    finally:
        services.start_sensor("n2", processes.node_inits(cluster.name)["n2"])


def test_an_epilog_ends_what_a_job_left_behind(cluster: Stage) -> None:
    script = "#!/bin/bash\nsetsid -f setsid sleep 12345 </dev/null >/dev/null 2>&1\nsleep 1\n"
    completed(cluster, submit(cluster, "-w", "n4", script=script))
    until(
        "nothing is left", lambda: not any("12345" in p for p in cluster.processes_of_users("n4"))
    )
    assert cluster.reasons() == {}


def test_tasks_find_the_wrapper_on_their_path(cluster: Stage) -> None:
    job = submit(
        cluster, script="#!/bin/bash\ncommand -v unicron-run\nsrun printenv UNICRON_HOME\n"
    )
    completed(cluster, job)
    assert output(cluster, job).split() == ["/opt/unicron/bin/unicron-run", "/opt/unicron"]


def lives_without(cluster: Stage, job: int, node: str) -> bool:
    return "JobState=RUNNING" in shown(cluster, job) and node not in shown(cluster, job)


@pytest.mark.parametrize("opted", ["comment", "environment", "nobody"])
def test_who_opts_in_keeps_the_job_when_a_node_is_lost(cluster: Stage, opted: str) -> None:
    """Slurm shows --no-kill nowhere; what it does is seen by killing a node."""
    options = ["-N2", "-w", "n5,n6", "--no-requeue"]
    options += ['--comment={"unicron": {}}'] if opted == "comment" else []
    options += ["--export=ALL,UNICRON=1"] if opted == "environment" else []
    folder = f"/home/alice/{time.monotonic_ns()}"
    cluster.lab.exec(["mkdir", folder], user="alice")
    done = cluster.lab.exec(
        ["sbatch", "--parsable", *options], user="alice", folder=folder,
        env={"UNICRON": "1"} if opted == "environment" else None,
        text_in="#!/bin/bash\nsleep 300\n",
    )  # fmt: skip
    job = int(done.stdout)
    until("it runs", lambda: "JobState=RUNNING" in shown(cluster, job))
    cluster.scontrol("update", "NodeName=n6", "State=DOWN", "Reason=a test")
    if opted == "nobody":
        until("it is over", lambda: "JobState=NODE_FAIL" in shown(cluster, job), 20)
        return
    until("it lost the node", lambda: "NodeList=n5 " in shown(cluster, job), 20)
    assert "JobState=RUNNING" in shown(cluster, job)


def test_a_job_that_opted_in_is_requeued_and_appends_to_its_output(cluster: Stage) -> None:
    comment = '--comment={"unicron": {}}'
    opted, other = (submit(cluster, "--hold", *words) for words in ([comment], ["--no-requeue"]))
    assert "Requeue=1" in shown(cluster, opted)
    assert "Requeue=0" in shown(cluster, other)


@pytest.mark.parametrize("text", [None, "this is no Lua (", "error('at once')",
                                  "function unicron_job_submit() error('later') end"])  # fmt: skip
def test_a_snippet_that_is_gone_or_broken_lets_every_job_through(
    cluster: Stage, text: str | None
) -> None:
    snippet = cluster.lab.paths.inside(f"{FOLDER}/job_submit_unicron.lua")
    before = spoil(snippet, text)
    try:
        restart(cluster)
        completed(cluster, submit(cluster, '--comment={"unicron": {}}'))
    finally:
        snippet.write_bytes(before)
        restart(cluster)
