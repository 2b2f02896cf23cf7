"""Hostlists: what Slurm's own `scontrol show hostnames` answers, and the round trip."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from unicrond.slurm.hostlist import MAX_NAMES, BadHostlist, expand, fold

# Left: a hostlist; right: what Slurm 22.05 makes of it.
AS_SLURM = {
    "": "",
    "n1": "n1",
    "n[01-03,20]": "n01 n02 n03 n20",
    "r[0-1]n[08-11]": "r0n08 r0n09 r0n10 r0n11 r1n08 r1n09 r1n10 r1n11",
    "n[1-010]": "n1 n2 n3 n4 n5 n6 n7 n8 n9 n10",
    "n1,n1": "n1 n1",
    "n[3,1]": "n3 n1",
    "n[01-3]": "n01 n02 n03",
    "n[001,1]": "n001 n1",
    ",n1,,n2": "n1 n2",
    "n[1-2],[3-4]": "n1 n2 3 4",
    "n[1-2][3-4]": "n13 n14 n23 n24",
}


@pytest.mark.parametrize("text", AS_SLURM)
def test_expands_as_slurm_does(text: str) -> None:
    assert " ".join(expand(text)) == AS_SLURM[text]


def test_text_after_a_bracket_is_read_although_old_slurm_does_not() -> None:
    assert expand("n[1-2]-ib,a[1-2]b[3-4]c")[:4] == ("n1-ib", "n2-ib", "a1b3c", "a1b4c")


@pytest.mark.parametrize(
    "text", ["n[5-3]", "n[1-", "n[1,2", "n[a]", "n[]", "n1]", "n[[1]]", "n[1-2-3]"]
)
def test_what_is_no_hostlist_is_refused(text: str) -> None:
    with pytest.raises(BadHostlist):
        expand(text)


@pytest.mark.parametrize(
    "text",
    ["n[0-65536]", "n[0-65535],m1", "a[0-999]b[0-999]", "n[0-65535,0-65535]", "n[0-999999999]"],
)
def test_no_list_grows_beyond_the_limit(text: str) -> None:
    with pytest.raises(BadHostlist, match="65536"):
        expand(text)


def test_the_limit_itself_is_reached() -> None:
    assert len(expand(f"n[1-{MAX_NAMES}]")) == MAX_NAMES


def test_folds_ranges_and_keeps_order() -> None:
    names = ["n3", "n1", "n2", "n01", "n02", "a1-ib", "a2-ib", "n9", "n10", "n11", "login"]
    assert fold(names) == "n[3,1-2,01-02],a1-ib,a2-ib,n[9-11],login"


@pytest.mark.parametrize("name", ["", "n[1]", "n1,n2", "n1 State=DOWN", "n1\n"])
def test_a_name_that_would_change_the_list_is_not_folded(name: str) -> None:
    with pytest.raises(BadHostlist):
        fold([name])


NAMES = st.from_regex(r"[a-c]{0,2}[0-9]{1,3}(-ib)?|[a-z]{1,3}", fullmatch=True)


@given(st.lists(NAMES, max_size=40))
def test_folding_and_expanding_gives_the_same_names_in_the_same_order(names: list[str]) -> None:
    assert expand(fold(names)) == tuple(names)


@given(st.text("n19[],- ", max_size=30))
def test_any_text_is_expanded_or_refused_with_a_sentence(text: str) -> None:
    try:
        assert len(expand(text)) <= MAX_NAMES
    except BadHostlist as error:
        assert str(error)
