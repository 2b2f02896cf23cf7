"""What `unicronctl doctor` finds in an installation; Slurm's answers are words here."""

from __future__ import annotations

from calendar import timegm
from pathlib import Path

import pytest

from db.schema import REVISIONS
from db.store import SqlStore
from unicrond import __version__
from unicrond.config import Settings
from unicrond.ctl import doctor
from unicrond.ctl.doctor import Finding
from unicrond.errors import SlurmUnavailable, Unavailable

NOON = float(timegm((2026, 11, 30, 12, 0, 0)))
WELL = {
    "scontrol --version": "slurm-wlm 22.05.8\n",
    "scontrol ping": "Slurmctld(primary) at head is UP\n",
    "scontrol show config": "Configuration data as of 2026-11-30T12:00:00\n",
    "munge -n": "MUNGE:x:",
}


class Told:
    """Commands by their words; those that are not known fail."""

    def __init__(self, **changed: str) -> None:
        self.answers = WELL | {name.replace("_", " "): text for name, text in changed.items()}

    def __call__(self, *words: str) -> str:
        line = " ".join(words)
        if words[0] == "sacctmgr":
            line = "sacctmgr"
        if line not in self.answers:
            raise SlurmUnavailable(f"{words[0]} cannot be started")
        return self.answers[line]


def only(found: object) -> Finding:
    [one] = list(found)  # type: ignore[call-overload]
    assert isinstance(one, Finding)
    return one


def test_a_slurm_that_answers_is_well_and_one_that_is_too_old_is_not() -> None:
    assert only(doctor.slurm(Told())).state == "ok"
    old = only(doctor.slurm(Told(**{"scontrol_--version": "slurm 21.08.8"})))
    assert (old.state, old.remedy) == ("wrong", "upgrade Slurm's commands here")


@pytest.mark.parametrize(
    ("level", "state"), [("Administrator", "ok"), ("Operator", "warning"), ("None", "wrong")]
)
def test_what_slurm_grants_decides_what_can_be_healed(level: str, state: str) -> None:
    found = only(doctor.rights(Told(sacctmgr=f"{level}\n")))
    assert found.state == state
    assert ("adminlevel=Admin" in found.remedy) == (state != "ok")


def test_a_slurm_without_accounting_is_a_warning() -> None:
    assert only(doctor.rights(Told())).state == "warning"


@pytest.mark.parametrize(("name", "state"), [("scavenge", "ok"), ("scavange", "wrong")])
def test_a_qos_for_companions_that_slurm_does_not_know_is_told(name: str, state: str) -> None:
    told = Told(sacctmgr="normal\nscavenge\n")
    assert only(doctor.companions(told, Settings(companion_qos=name))).state == state
    assert list(doctor.companions(told, Settings())) == []


def test_a_munged_that_is_away_is_told() -> None:
    assert only(doctor.munge(Told())).state == "ok"
    with_none = Told()
    del with_none.answers["munge -n"]
    assert only(doctor.munge(with_none)).state == "wrong"


@pytest.mark.parametrize(
    ("ahead", "state"), [(0.0, "ok"), (1.9, "ok"), (5.0, "wrong"), (-30, "wrong")]
)
def test_clocks_that_are_apart_are_told(ahead: float, state: str) -> None:
    assert only(doctor.clocks(Told(), NOON + ahead)).state == state


def test_tables_of_another_revision_are_told_with_the_command_that_mends_them(
    tmp_path: Path, url: str, store: SqlStore
) -> None:
    assert only(doctor.database(url)) == Finding(
        "database", "ok", f"{url} is at revision {REVISIONS[-1]}"
    )
    gone = only(doctor.database(f"sqlite:///{tmp_path}/none.db"))
    assert gone.state == "wrong"
    assert "unicronctl db upgrade" in gone.remedy


def health(**changed: object) -> dict[str, object]:
    well = {"loop": "alive", "slurm": "ok", "version": __version__, "mode": "observe"}
    return {**well, "agents_connected": 3, **changed}


@pytest.mark.parametrize(
    ("changed", "state"),
    [
        ({}, "ok"),
        ({"loop": "silent"}, "wrong"),
        ({"slurm": "no"}, "wrong"),
        ({"version": "0.0"}, "warning"),
    ],
)
def test_how_unicrond_is_comes_from_itself(changed: dict[str, object], state: str) -> None:
    assert only(doctor.daemon(lambda: health(**changed))).state == state


def test_an_api_that_is_silent_is_told() -> None:
    def silent() -> dict[str, object]:
        raise Unavailable("does not answer")

    assert only(doctor.daemon(silent)).state == "wrong"


def test_little_memory_is_told() -> None:
    assert only(doctor.memory("MemTotal: 9 kB\nMemAvailable:    900000 kB\n")).state == "wrong"
    assert only(doctor.memory("MemAvailable:    9000000 kB\n")).state == "ok"


def test_a_password_that_everybody_can_read_is_told(tmp_path: Path) -> None:
    path, secret = tmp_path / "unicron.toml", "postgresql://unicron:xyzzy@host/unicron"
    path.write_text("")
    path.chmod(0o644)
    settings = Settings(database_url=secret)
    found = only(doctor.configuration(path, settings))
    assert (found.state, "xyzzy" in found.says) == ("wrong", False)
    assert found.remedy.startswith(f"chmod 640 {path}")
    path.chmod(0o640)
    assert only(doctor.configuration(path, settings)).state == "ok"


def test_a_wrong_configuration_is_told_and_ends_the_rest(tmp_path: Path) -> None:
    path = tmp_path / "unicron.toml"
    path.write_text("databse_url = 1")
    found = list(doctor.findings(path, Told()))
    assert [one.state for one in found] == ["ok", "wrong"]
    assert "did you mean database_url?" in found[-1].says
