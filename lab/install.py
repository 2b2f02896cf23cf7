"""Installs the product into a lab's /opt/unicron: from this checkout, which users may not reach, or
from the environment that it is installed in.

/opt/unicron/lib        the packages and their bytecode       /opt/unicron/agent.pyz
                        pynvml.py, and libnvidia-ml.so.1 (lab/nvml)
/opt/unicron/bin        unicrond, unicronctl, unicron-run      /opt/unicron/examples
                        unicron-sensor
/opt/unicron/env        the Python environment (a link to the one that runs this)
"""

import importlib.util
import re
import shutil
import sys
from collections.abc import Sequence
from pathlib import Path

from lab import nvml, processes
from lab.errors import LabError

SOURCE = Path(__file__).resolve().parent.parent
SHARED = Path(sys.prefix) / "share/unicron"
PACKAGES = ("unicrond", "detectors", "planner", "transition", "db", "unicron", "lab")
INSIDE = "/opt/unicron"
PROGRAMS = {
    "unicrond": "unicrond.daemon",
    "unicronctl": "unicrond.ctl",
    "unicron-sensor": "unicrond.sensor",
}
LAUNCHER = """#!/bin/sh
PYTHONPATH={home}/lib${{PYTHONPATH:+:$PYTHONPATH}} exec {home}/env/bin/python -m {module} "$@"
"""


def install(target: Path, source: Path = SOURCE) -> None:
    """Parts that are not there are left out."""
    files = source if (source / "slurm_plugins").is_dir() else SHARED
    library, programs = target / "lib", target / "bin"
    for folder in (library, programs):
        folder.mkdir(parents=True)
    for package in PACKAGES:
        _copy_tree(source / package, library / package)
    _copy_tree(files / "examples", target / "examples")
    (target / "env").symlink_to(sys.prefix)
    _copy_pynvml(library)
    _compile(library)
    nvml.build(library / nvml.NAME)
    _build_agent(library, target / "agent.pyz")
    for name, module in PROGRAMS.items():
        _write_program(programs / name, LAUNCHER.format(home=INSIDE, module=module))
    _install_wrapper(files / "slurm_plugins/unicron-run", programs / "unicron-run")
    health_check = files / "slurm_plugins/unicron-healthcheck"
    if health_check.exists():
        shutil.copy(health_check, programs)
    processes.run_here(["chmod", "-R", "a+rX", str(target)])


def _copy_tree(source: Path, target: Path) -> None:
    if source.is_dir():
        shutil.copytree(source, target, ignore=shutil.ignore_patterns("__pycache__", "*.pyc"))


def _copy_pynvml(library: Path) -> None:
    """A single file; agents run under the node's Python, which rarely has it."""
    found = importlib.util.find_spec("pynvml")
    if found is not None and found.origin is not None:
        shutil.copy(found.origin, library / "pynvml.py")


def _compile(library: Path) -> None:
    """The daemon's account cannot write bytecode there, and a start without it takes longer."""
    python(["-m", "compileall", "-q", str(library)])


def _build_agent(library: Path, zipapp: Path) -> None:
    if (library / "unicrond/agent/build.py").exists():
        python(["-m", "unicrond.agent.build", str(zipapp)], library)


def python(arguments: Sequence[str], library: Path = SOURCE) -> None:
    command = ["env", "-C", "/", f"PYTHONPATH={library}", sys.executable, *arguments]
    processes.run_here(command, timeout_seconds=120)


def _write_program(path: Path, text: str) -> None:
    path.write_text(text)
    path.chmod(0o755)


def _install_wrapper(source: Path, target: Path) -> None:
    if not source.exists():
        return
    text, changed = re.subn(
        r"(?m)^UNICRON_HOME=.*$", f"UNICRON_HOME={INSIDE}", source.read_text(), count=1
    )
    if not changed:
        raise LabError(f"{source} has no line UNICRON_HOME=: the wrapper cannot be installed")
    _write_program(target, text)
