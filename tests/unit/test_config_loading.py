"""Where a key may stand, which place wins, and what is said about a wrong one."""

from __future__ import annotations

import json
from dataclasses import fields
from pathlib import Path

import pytest

from unicrond.config import (
    AccountSettings,
    PolicySettings,
    Settings,
    as_environment,
    keys,
    load_settings,
    read_flags,
)
from unicrond.core.policy import Policy
from unicrond.errors import BadInput
from unicrond.model.decision import Mode

ADMIN_GUIDE = Path(__file__).parents[2] / "docs" / "admin.md"


@pytest.fixture
def file(tmp_path: Path) -> Path:
    (tmp_path / "conf.d").mkdir()
    return tmp_path / "unicron.toml"


def refused(file: Path, text: str, environment: dict[str, str] | None = None) -> str:
    file.write_text(text)
    with pytest.raises(BadInput) as caught:
        load_settings(file, environment or {})
    return str(caught.value)


def test_without_any_file_the_defaults_hold() -> None:
    assert load_settings(None, {}) == Settings()
    assert Settings().as_policy() == Policy()


def test_every_number_of_the_policy_can_be_configured(file: Path) -> None:
    names = {field.name for field in fields(Policy) if type(field.default) in (int, float)}
    assert set(PolicySettings.model_fields) == names
    file.write_text("mode = 'active'\n[policy]\nsilence_seconds = 4\ndrains_per_hour = 0\n")
    policy = load_settings(file, {}).as_policy()
    assert policy == Policy(mode=Mode.ACTIVE, silence_seconds=4.0, drains_per_hour=0)


def test_what_companions_are_submitted_with_is_a_name_that_slurm_could_have(file: Path) -> None:
    file.write_text('companion_qos = "scavenge"\n')
    policy = load_settings(file, {}).as_policy()
    assert (policy.companion_qos, policy.companion_partition) == ("scavenge", "")
    said = refused(file, 'companion_partition = "a b"\n')
    assert "companion_partition: write a name as Slurm has it" in said


def test_flags_win_over_environment_over_conf_d_over_the_file(file: Path) -> None:
    file.write_text('cluster = "file"\nlog_level = "debug"\nadmins = ["a"]\nmode = "paused"\n')
    (file.parent / "conf.d" / "20.toml").write_text('cluster = "20"\nadmins = ["b"]\n')
    (file.parent / "conf.d" / "10.toml").write_text('cluster = "10"\nmode = "active"\n')
    environment = {"UNICRON_CLUSTER": "environment", "UNICRON_ADMINS": "carol, dave"}
    settings = load_settings(file, environment, {"cluster": "flag"})
    assert settings.cluster == "flag"
    assert settings.admins == ("carol", "dave")
    assert settings.mode is Mode.ACTIVE
    assert settings.log_level == "debug"


def test_a_section_may_be_filled_from_several_places(file: Path) -> None:
    file.write_text("[policy]\nsilence_seconds = 4\nlease_seconds = 6\n")
    environment = {"UNICRON_POLICY__LEASE_SECONDS": "7"}
    flags = {"policy.drains_per_hour": "1"}
    policy = load_settings(file, environment, flags).as_policy()
    assert (policy.silence_seconds, policy.lease_seconds, policy.drains_per_hour) == (4, 7, 1)


def test_variables_of_a_run_are_not_ours(file: Path) -> None:
    file.write_text("")
    run = {"UNICRON_SOCKET": "/tmp/rank.sock", "UNICRON_SECRET": "x", "UNICRON_RUN_ID": "1"}
    assert load_settings(file, run) == Settings()


def test_an_unknown_key_is_refused_with_the_nearest_right_one(file: Path) -> None:
    message = refused(file, 'databse_url = "x"')
    assert message == f"{file}: unknown key databse_url; did you mean database_url?"
    message = refused(file, "[policy]\nsilence = 3")
    assert message == f"{file}: unknown key policy.silence; did you mean policy.silence_seconds?"
    assert "the keys are: cluster," in refused(file, "zzzzzzz = 1")


def test_accounts_are_sections_of_their_own(file: Path) -> None:
    file.write_text("[accounts.physics]\nfloor_nodes = 8\n[accounts.bio]\nrun_ceiling_nodes = 4\n")
    (file.parent / "conf.d" / "bio.toml").write_text("[accounts.bio]\nceiling_nodes = 9\n")
    assert load_settings(file, {}).accounts == {
        "physics": AccountSettings(floor_nodes=8),
        "bio": AccountSettings(ceiling_nodes=9),
    }


def test_a_section_as_a_plain_key_is_refused(file: Path) -> None:
    assert "accounts is a section; write [accounts.NAME]" in refused(file, "accounts = 3")
    assert refused(file, "policy = 3") == (
        f"{file}: policy is a section; write [policy] and its keys below"
    )


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ('agent_listen = "7717"', 'agent_listen: write host:port, for example "0.0.0.0:7717"'),
        ('api_listen = "localhost:99999"', "api_listen: write host:port"),
        ('api_socket = "run/x.sock"', "api_socket: write an absolute path"),
        ("snapshot_seconds = 0", "snapshot_seconds: Input should be greater than 0, not 0"),
        ("snapshot_seconds = inf", "snapshot_seconds: Input should be a finite number"),
        ('mode = "on"', "mode: Input should be 'observe', 'active' or 'paused', not 'on'"),
        ("admins = 3", 'admins: write a list of names, for example ["alice", "bob"], not 3'),
        ("admins = [3]", "admins: write a list of names"),
        ("cluster = 5", "cluster: Input should be a valid string, not 5"),
        ("[policy]\nmany_silent_fraction = 2", "policy.many_silent_fraction: Input should be less"),
        ("[policy]\ndrains_per_hour = -1", "policy.drains_per_hour: Input should be greater"),
        ("[accounts.a]\nfloor = 1", "accounts.a.floor: Extra inputs are not permitted"),
        ("[accounts.a]\nfloor_nodes = -1", "accounts.a.floor_nodes: Input should be greater"),
        (
            "[accounts.a]\nrun_floor_nodes = 3\nrun_ceiling_nodes = 2",
            "accounts.a: run_ceiling_nodes 2 is less than run_floor_nodes",
        ),
    ],
)
def test_a_wrong_value_is_named_with_its_place_and_remedy(
    file: Path, text: str, words: str
) -> None:
    message = refused(file, text)
    assert message.startswith(f"{file}: ")
    assert words in message


def test_the_place_that_is_named_is_the_one_that_won(file: Path) -> None:
    message = refused(file, "snapshot_seconds = 1", {"UNICRON_SNAPSHOT_SECONDS": "soon"})
    assert message.startswith("UNICRON_SNAPSHOT_SECONDS: snapshot_seconds: ")


def test_several_mistakes_are_told_at_once(file: Path) -> None:
    assert len(refused(file, "snapshot_seconds = 0\nslurm_timeout_seconds = 0").splitlines()) == 2


def test_a_file_that_is_named_must_be_there_and_be_toml(file: Path) -> None:
    with pytest.raises(BadInput, match="No such file or directory; name another file"):
        load_settings(file, {})
    assert "not TOML" in refused(file, "cluster =")


def test_flags_are_written_as_keys_and_go_on_to_other_processes() -> None:
    flags = read_flags(["cluster=beta", "policy.drains_per_hour=2"])
    settings = load_settings(None, {"UNICRON_CLUSTER": "alpha"}, flags)
    assert (settings.cluster, settings.policy.drains_per_hour) == ("beta", 2)
    assert load_settings(None, as_environment(flags)) == settings
    with pytest.raises(BadInput, match="--set cluster: write KEY=VALUE"):
        read_flags(["cluster"])


def test_an_unknown_flag_is_refused() -> None:
    with pytest.raises(BadInput, match="--set clustre: unknown key clustre; did you mean cluster"):
        load_settings(None, {}, {"clustre": "x"})


def test_every_key_and_its_default_stand_in_the_admin_guide() -> None:
    ours = ADMIN_GUIDE.read_text().partition("\n## Database")[0]
    rows = [line.split("|") for line in ours.splitlines() if line.startswith("| `")]
    documented = {row[1].strip(" `"): row[2].strip(" `") for row in rows}
    assert documented == {".".join(key): json.dumps(value) for key, value in keys().items()}
