"""Who speaks for a node must speak from it: the address in the credential against Slurm's."""

from __future__ import annotations

import threading
import time

from unicrond.link.handshake import Verdict
from unicrond.link.origin import KNOWN_SECONDS, Origins

DNS = {"n1": frozenset({"10.0.0.1", "10.1.0.1"}), "n1-ib": frozenset({"10.1.0.1"})}


class Names:
    """A name service that answers at once, and counts who asks."""

    def __init__(self) -> None:
        self.asked: list[str] = []
        self.now = 0.0
        self.origins = Origins(self._look_up, lambda: self.now)

    def _look_up(self, name: str) -> frozenset[str]:
        self.asked.append(name)
        return DNS.get(name, frozenset())

    def judge(self, origin: str, node: str = "n1", address: str = "n1") -> Verdict:
        """What comes of it in the end; a sensor tries again when it is told to."""
        end = time.monotonic() + 5
        while (verdict := self.origins.judge(origin, node, address)).answer == "retry":
            assert time.monotonic() < end
            time.sleep(0.001)
        return verdict


def test_the_address_that_slurm_knows_needs_no_look_up() -> None:
    names = Names()
    assert names.judge("10.0.0.7", address="10.0.0.7") == Verdict("ok")
    assert names.asked == []


def test_any_address_of_the_nodes_name_or_of_its_name_in_slurm_will_do() -> None:
    names = Names()
    assert names.judge("10.0.0.1").answer == "ok"
    assert names.judge("10.1.0.1", "node-of-no-name", "n1-ib").answer == "ok"


def test_a_credential_of_another_host_is_refused_with_what_to_do() -> None:
    verdict = Names().judge("10.0.0.2")
    assert verdict.answer == "refused"
    assert "sealed on 10.0.0.2, not on n1" in verdict.sentence
    assert "--origin" in verdict.sentence


def test_a_credential_of_no_known_host_and_one_of_loopback_are_refused() -> None:
    assert Names().judge("").answer == "refused"
    assert Names().judge("127.0.0.1").answer == "refused"


def test_nobody_waits_for_a_name_service_that_is_slow() -> None:
    answers = threading.Event()

    def look_up(name: str) -> frozenset[str]:
        answers.wait(5)
        return DNS[name]

    origins = Origins(look_up)
    assert origins.judge("10.0.0.1", "n1", "n1").answer == "retry"
    answers.set()
    origins.close()


def test_names_are_asked_for_once_a_minute() -> None:
    names = Names()
    for _ in range(5):
        names.judge("10.0.0.1")
    assert names.asked == ["n1"]
    names.now += KNOWN_SECONDS
    names.judge("10.0.0.1")
    assert names.asked == ["n1", "n1"]
