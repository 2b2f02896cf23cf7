"""Installing the scripts for Slurm: copied whole, the site's own files left alone."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

from unicrond.ctl.plugins import SWITCHES, app, source
from unicrond.errors import BadInput


def install(*words: object) -> Result:
    done = CliRunner().invoke(app, [str(word) for word in words])
    if done.exception and not isinstance(done.exception, SystemExit):
        raise done.exception
    return done


def test_every_plugin_is_copied_and_its_switch_printed(tmp_path: Path) -> None:
    said = install("--into", tmp_path).output
    assert {path.name for path in tmp_path.iterdir()} == set(SWITCHES)
    assert f"Prolog={tmp_path}/unicron-prolog" in said
    assert (tmp_path / "unicron-prolog").stat().st_mode & 0o777 == 0o755


def test_a_dry_run_writes_nothing(tmp_path: Path) -> None:
    assert "would write" in install("--into", tmp_path, "--dry-run").output
    assert list(tmp_path.iterdir()) == []


def test_a_file_of_the_sites_own_is_left_alone(tmp_path: Path) -> None:
    own = tmp_path / "cli_filter.lua"
    own.write_text("-- of the site\n")
    assert f"left alone: {own}" in install("--into", tmp_path).output
    assert own.read_text() == "-- of the site\n"


def test_another_home_is_written_into_the_scripts(tmp_path: Path) -> None:
    install("--into", tmp_path, "--home", "/srv/unicron")
    assert "/srv/unicron" in (tmp_path / "unicron-epilog").read_text()
    assert "/opt/unicron" not in (tmp_path / "unicron-epilog").read_text()


def test_a_folder_that_is_not_there_is_named_with_the_remedy(tmp_path: Path) -> None:
    with pytest.raises(BadInput, match=r"--into .*none: no such folder; make it"):
        install("--into", tmp_path / "none")


def test_whatever_is_installed_or_not_a_script_ends_with_0(tmp_path: Path) -> None:
    for name in ("unicron-prolog", "unicron-epilog", "unicron-taskprolog", "unicron-healthcheck"):
        environment = {"UNICRON_HOME": str(tmp_path), "PATH": "/usr/bin:/bin"}
        done = subprocess.run([source() / name], env=environment, capture_output=True, check=False)
        assert (done.returncode, done.stdout) == (0, b""), name
