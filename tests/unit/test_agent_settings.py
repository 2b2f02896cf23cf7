"""agent.conf: where it is looked for, what it may hold."""

from __future__ import annotations

from pathlib import Path

import pytest

from unicrond.agent.settings import Settings, load, paths
from unicrond.errors import BadInput


def written(folder: Path, text: str, name: str = "agent.conf") -> Path:
    file = folder / name
    file.write_text(text)
    return file


def test_without_a_file_training_runs_without_unicrond(tmp_path: Path) -> None:
    assert load((tmp_path / "none.conf",)) == Settings()
    assert Settings().unicrond == ()


def test_a_later_file_wins_key_by_key(tmp_path: Path) -> None:
    first = written(tmp_path, "[agent]\nlease_seconds = 9\nunicrond_user = a\n", "first")
    second = written(tmp_path, "[agent]\nlease_seconds = 7\n", "second")
    found = load((first, second))
    assert (found.lease_seconds, found.unicrond_user) == (7.0, "a")


def test_addresses_may_lack_a_port_and_may_be_ipv6(tmp_path: Path) -> None:
    file = written(tmp_path, "[agent]\nunicrond = head:1, standby, [fe80::1]:7\n")
    assert load((file,)).unicrond == (("head", 1), ("standby", 7717), ("fe80::1", 7))


def test_the_standby_process_can_be_switched_off(tmp_path: Path) -> None:
    assert Settings().standby
    assert not load((written(tmp_path, "[agent]\nstandby = no\n"),)).standby


def test_copies_on_other_nodes_have_a_number_a_bandwidth_and_a_signature(tmp_path: Path) -> None:
    lines = "replicas = 2\nreplica_bytes_per_second = 5e9\nreplicas_signed = yes\n"
    found = load((written(tmp_path, "[agent]\n" + lines),))
    numbers = found.replicas, found.replica_bytes_per_second
    assert (*numbers, found.replicas_signed) == (2, 5e9, True)


def test_files_are_looked_for_in_the_installation_and_in_etc() -> None:
    assert paths({"UNICRON_HOME": "/x"}) == (
        Path("/x/etc/agent.conf"),
        Path("/etc/unicron/agent.conf"),
    )


@pytest.mark.parametrize(
    ("line", "names"),
    [
        ("lease_seconds = soon", "lease_seconds"),
        ("lease_seconds = 0", "lease_seconds"),
        ("lease_seconds = nan", "lease_seconds"),
        ("unicrond = head:port", "unicrond"),
        ("unicrond = head:70000", "unicrond"),
        ("standby = 1", "standby = '1': must be yes or no"),
        ("replicas = 4", "replicas = '4': must be from 0 to 3"),
        ("replica_bytes_per_second = 0", "must be a number of bytes above 0"),
        ("replicas_signed = 1", "replicas_signed = '1': must be yes or no"),
        ("lease = 5", "lease_margin_seconds"),
        ("no equals sign", "agent.conf"),
    ],
)
def test_a_bad_line_is_named_with_its_file(tmp_path: Path, line: str, names: str) -> None:
    with pytest.raises(BadInput, match=names) as caught:
        load((written(tmp_path, f"[agent]\n{line}\n"),))
    assert "agent.conf" in str(caught.value)
