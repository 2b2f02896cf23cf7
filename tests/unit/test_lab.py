"""The pure parts of the lab, and what it installs: no root, no Slurm."""

import subprocess
from pathlib import Path

import pytest

from lab import LabError, LabSpec
from lab.configuration import (
    agent_conf,
    cgroup_conf,
    gres_conf,
    hosts,
    passwd,
    slurm_conf,
    topology_conf,
)
from lab.faults import FAULTS, Place, Target, inject
from lab.install import install
from lab.layout import LabPaths

PATHS = LabPaths("demo")


def test_a_lab_name_cannot_lead_out_of_the_labs_folder() -> None:
    for name in ("", "..", "a/b", "-x", "Lab", "x" * 32):
        with pytest.raises(LabError, match="use a-z"):
            LabPaths(name)


@pytest.mark.parametrize(("field", "value"), [("nodes", 0), ("nodes", 201), ("gpus_per_node", -1)])
def test_a_size_out_of_range_names_its_field_and_the_range(field: str, value: int) -> None:
    with pytest.raises(LabError, match=f"{field} is {value}: choose a number from"):
        LabSpec(**{field: value})  # type: ignore[arg-type]


def test_a_spec_survives_its_file() -> None:
    spec = LabSpec(nodes=3, gpus_per_node=1, unicron_toml='mode = "observe"\n')
    assert LabSpec.from_json(spec.to_json()) == spec


def test_every_node_has_an_address_in_slurm_and_in_hosts() -> None:
    spec = LabSpec(nodes=2, gpus_per_node=4)
    assert "NodeName=n2 NodeHostname=n2 NodeAddr=10.77.0.2 CPUs=32" in slurm_conf(spec)
    assert "Gres=gpu:4" in slurm_conf(spec)
    assert "10.77.0.2 n2\n" in hosts(spec)


@pytest.mark.parametrize(
    ("nodes", "gpus", "line"),
    [
        (6, 8, "NodeName=n[1-6] Name=gpu File=/var/lib/unicron-lab/demo/dev/nvidia[0-7]\n"),
        (1, 1, "NodeName=n1 Name=gpu File=/var/lib/unicron-lab/demo/dev/nvidia0\n"),
        (6, 0, ""),
    ],
)
def test_gpus_are_device_files_of_the_lab(nodes: int, gpus: int, line: str) -> None:
    assert gres_conf(LabSpec(nodes=nodes, gpus_per_node=gpus), PATHS) == line


def test_nodes_hang_on_switches_where_some_are_wanted() -> None:
    spec = LabSpec(nodes=3, nodes_per_switch=2)
    assert "TopologyPlugin=topology/tree\n" in slurm_conf(spec)
    assert topology_conf(spec) == (
        "SwitchName=s1 Nodes=n1,n2\nSwitchName=s2 Nodes=n3\nSwitchName=top Switches=s[1-2]\n"
    )
    assert topology_conf(LabSpec()) == ""
    assert "Topology" not in slurm_conf(LabSpec())


def test_cgroups_are_disabled_where_slurm_knows_how() -> None:
    assert cgroup_conf((22, 5)) is None
    assert cgroup_conf((24, 11)) == "CgroupPlugin=disabled\n"


def test_accounts_are_the_systems_and_the_labs_and_no_persons() -> None:
    host = "root:x:0:0:root:/root:/bin/bash\nslurm:x:64030:64030::/:/bin/sh\n"
    host += "carol:x:1000:1000::/home/carol:/bin/bash\nnobody:x:65534:65534::/:/bin/sh\n+::::::\n"
    names = [line.split(":")[0] for line in passwd(host).splitlines()]
    assert names == ["root", "nobody", "slurm", "munge", "mysql", "unicron", "alice", "bob"]


def test_agents_find_unicrond_at_the_head() -> None:
    assert "unicrond = 10.77.0.254:7717\n" in agent_conf()


def test_what_is_installed_runs_from_where_it_will_be(tmp_path: Path) -> None:
    source = tmp_path / "checkout"
    (source / "unicrond").mkdir(parents=True)
    (source / "unicrond/__init__.py").write_text("")
    (source / "slurm_plugins").mkdir()
    (source / "slurm_plugins/unicron-run").write_text("#!/bin/bash\nUNICRON_HOME=${X:-/y}\n")
    target = tmp_path / "opt"
    install(target, source)
    assert (target / "bin/unicron-run").read_text() == "#!/bin/bash\nUNICRON_HOME=/opt/unicron\n"
    assert list((target / "lib/unicrond/__pycache__").iterdir()), "bytecode is made beforehand"
    launcher = (target / "bin/unicrond").read_text()
    assert "PYTHONPATH=/opt/unicron/lib" in launcher
    subprocess.run(["sh", "-n", target / "bin/unicrond"], check=True, timeout=5)


def test_a_wrapper_without_its_home_line_is_refused(tmp_path: Path) -> None:
    (tmp_path / "slurm_plugins").mkdir()
    (tmp_path / "slurm_plugins/unicron-run").write_text("#!/bin/bash\n")
    with pytest.raises(LabError, match="has no line UNICRON_HOME="):
        install(tmp_path / "opt", tmp_path)


def test_a_fault_without_its_target_says_what_to_give() -> None:
    place = Place(PATHS, LabSpec(nodes=2), head=1)
    for kind, sentence in {
        "burn": "there are: kill-rank",
        "cut-link": "which node",
        "kill-rank": "which rank",
        "kill-agent": "which agent",
    }.items():
        with pytest.raises(LabError, match=sentence):
            inject(kind, place, Target())


def test_the_faults_are_those_that_the_module_lists() -> None:
    import lab.faults

    rows = (line.partition("  ") for line in (lab.faults.__doc__ or "").splitlines()[2:])
    assert set(FAULTS) == {word for _, _, faults in rows for word in faults.split()}
