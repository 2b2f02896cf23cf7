"""The unit agrees with the program and with itself."""

from __future__ import annotations

import re
import shutil
import subprocess
from collections import defaultdict
from pathlib import Path

import pytest
import tomllib

from unicrond.config import DEFAULT_PATH, Settings, keys

SYSTEMD = Path(__file__).parents[2] / "systemd"


def unit() -> dict[str, list[str]]:
    """Read by hand: a key may stand more than once, which configparser refuses."""
    found = defaultdict(list)
    for line in (SYSTEMD / "unicrond.service").read_text().splitlines():
        name, equals, value = line.partition("=")
        if equals and not line.startswith("#"):
            found[name].append(value)
    return found


def test_every_place_that_unicrond_writes_by_default_is_one_it_may_write() -> None:
    settings, service = Settings(), unit()
    assert service["ProtectSystem"] == ["strict"]
    state, run = (
        f"/var/lib/{service['StateDirectory'][0]}/",
        f"/run/{service['RuntimeDirectory'][0]}/",
    )
    assert settings.database_url.startswith(f"sqlite:///{state}")
    assert settings.api_socket.startswith(run)
    assert settings.control_socket.startswith(run)


def test_the_unit_reads_the_configuration_where_the_program_looks_for_it() -> None:
    assert unit()["ExecStart"] == [f"/opt/unicron/bin/unicrond --config {DEFAULT_PATH}"]


def test_a_wrong_configuration_is_not_tried_again() -> None:
    assert unit()["RestartPreventExitStatus"] == ["2"]


def test_users_can_reach_the_api_and_only_unicron_the_state() -> None:
    lines = (SYSTEMD / "unicron.tmpfiles").read_text().splitlines()
    made = {words[1]: words[2:5] for words in map(str.split, lines) if words[0] == "d"}
    assert made["/run/unicron"] == ["0755", "unicron", "unicron"]
    assert made["/var/lib/unicron"] == ["0750", "unicron", "unicron"]
    assert made["/etc/unicron"] == ["0750", "root", "unicron"]
    assert unit()["RuntimeDirectoryMode"] == ["0755"]
    assert unit()["User"] == ["unicron"]


@pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="no systemd here")
def test_systemd_finds_no_fault_in_the_units(tmp_path: Path) -> None:
    units = [tmp_path / path.name for path in sorted(SYSTEMD.glob("*.service"))]
    for unit_file in units:
        text = (SYSTEMD / unit_file.name).read_text()
        unit_file.write_text(re.sub(r"/opt/unicron/bin/\S+", "/bin/true", text))  # is not here
    done = subprocess.run(
        ["systemd-analyze", "verify", *map(str, units)], capture_output=True, text=True, timeout=30
    )
    assert len(units) == 2
    assert (done.returncode, done.stderr) == (0, "")


@pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="no systemd here")
@pytest.mark.parametrize("unit_file", sorted(SYSTEMD.glob("*.service")), ids=lambda path: path.stem)
def test_a_unit_may_do_little_beside_its_work(unit_file: Path) -> None:
    done = subprocess.run(
        ["systemd-analyze", "security", "--offline=true", "--threshold=25", str(unit_file)],
        capture_output=True, text=True, timeout=30,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout[-200:]


def test_the_configuration_that_is_installed_changes_nothing_and_names_real_keys() -> None:
    text = (SYSTEMD / "unicron.toml").read_text()
    assert tomllib.loads(text) == {}
    wanted = re.sub(r"^#(?=\S)", "", text, flags=re.MULTILINE)
    names = set(tomllib.loads(wanted)) | {
        "policy." + key for key in tomllib.loads(wanted)["policy"]
    }
    assert names - {"policy"} <= {".".join(key) for key in keys()}
