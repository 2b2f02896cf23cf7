"""Who is let in, as whom, and who is not."""

from __future__ import annotations

import asyncio
import json
import os
import shutil
from collections.abc import Callable, Iterator
from contextlib import closing
from dataclasses import dataclass, field, replace
from functools import cache
from pathlib import Path
from typing import Any

import httpx
import jwt
import pytest
from cryptography.hazmat.primitives.asymmetric.ec import SECP256R1, EllipticCurvePrivateKey
from cryptography.hazmat.primitives.asymmetric.ec import generate_private_key as new_key
from fastapi import FastAPI
from jwt.algorithms import ECAlgorithm

from db.audit import Audited
from db.queries import Queries
from db.store import SqlStore, open_store
from tests.contract.test_store_contract import ALLOCATION, INCIDENT, NODE, RUN, snapshot
from unicrond.api.app import create_app
from unicrond.api.callers import Role
from unicrond.api.directory import Directory, Known, admin_levels, coordinators, private_data
from unicrond.api.gate import Gate, munge_payload
from unicrond.api.limits import Limit, Rate, TooMany
from unicrond.api.tokens import MOST_BYTES, Tokens, check_file
from unicrond.errors import BadInput, Refused, SlurmUnavailable, Unavailable
from unicrond.link.fakecredentials import FakeRealm
from unicrond.model.decision import Mode
from unicrond.model.incident import Proof
from unicrond.model.pause import Pause, PauseScope
from unicrond.ports import Changes

NOW = 1_700_000_000.0
LATER = 4_000_000_000  # in PyJWT's own time, which nobody sets
SECRET = "a key that only slurmctld and those who mint tokens have"


@cache
def key() -> EllipticCurvePrivateKey:
    return new_key(SECP256R1())


def public(name: str = "k1", of: EllipticCurvePrivateKey | None = None) -> dict[str, Any]:
    told: dict[str, Any] = json.loads(ECAlgorithm.to_jwk((of or key()).public_key()))
    return told | {"kid": name, "alg": "ES256", "use": "sig"}


@pytest.fixture
def jwks(tmp_path: Path) -> Path:
    path = tmp_path / "jwks.json"
    path.write_text(json.dumps({"keys": [public()]}))
    return path


def token(by: EllipticCurvePrivateKey | None = None, kid: str = "k1", **claims: Any) -> str:
    words = {"sun": "alice", "exp": LATER} | claims
    return jwt.encode(words, by or key(), algorithm="ES256", headers={"kid": kid})


def by_secret(secret: str = SECRET, **claims: Any) -> str:
    return jwt.encode({"sun": "alice", "exp": NOW + 600, "iat": 1} | claims, secret)


@dataclass
class Slurmctld:
    """Takes tokens that were made with its key; counts how often it was asked."""

    asked: int = 0
    away: bool = False

    def __call__(self, words: str) -> None:
        self.asked += 1
        if self.away:
            raise Unavailable("no answer")
        try:
            jwt.decode(words, SECRET, algorithms=["HS256"], options={"verify_exp": False})
        except jwt.PyJWTError:
            raise Refused("authentication failed") from None


def test_a_token_of_this_cluster_names_its_user(jwks: Path) -> None:
    tokens = Tokens(jwks, None)
    assert tokens.user(token()) == "alice"
    assert tokens.user(token(sun=None, preferred_username="bob")) == "bob"


@pytest.mark.parametrize(
    ("forged", "words"),
    [
        (lambda: token(exp=1), "expired"),
        (lambda: token(by=new_key(SECP256R1())), "Signature verification failed"),
        (lambda: token(kid="of another cluster"), "signed by no key of this cluster's"),
        (lambda: token()[:-8] + "AAAAAAAA", "Signature verification failed"),
        (lambda: _with_other_user(token()), "Signature verification failed"),
        (lambda: jwt.encode({"sun": "root", "exp": LATER}, None, algorithm="none"), "algorithm"),
        (lambda: token(nbf=LATER), "not yet valid"),
        (lambda: token(sun=7), "names no user"),
        (lambda: jwt.encode({"sun": "a"}, key(), "ES256", {"kid": "k1"}), 'missing the "exp"'),
        (lambda: jwt.encode({"sun": "a", "exp": LATER}, SECRET), "HS256 tokens are not taken"),
        (lambda: "words", "Not enough segments"),
        (lambda: "x" * (MOST_BYTES + 1), "too long"),
    ],
)
def test_a_token_that_is_not_of_this_cluster_is_refused(
    jwks: Path, forged: Callable[[], str], words: str
) -> None:
    with pytest.raises(Refused, match=words):
        Tokens(jwks, None).user(forged())


def _with_other_user(good: str) -> str:
    head, _, signature = good.split(".")
    other = token(sun="root").split(".")[1]
    return ".".join((head, other, signature))


def test_keys_that_are_rotated_are_read_anew(jwks: Path) -> None:
    tokens, other = Tokens(jwks, None), new_key(SECP256R1())
    assert tokens.user(token()) == "alice"
    jwks.write_text(json.dumps({"keys": [public("k2", other)]}))
    os.utime(jwks, (1, 1))
    assert tokens.user(token(by=other, kid="k2")) == "alice"
    with pytest.raises(Refused, match="signed by no key"):
        tokens.user(token())
    jwks.write_text("{}")
    with pytest.raises(Unavailable, match="keys cannot be read"):
        tokens.user(token())
    with pytest.raises(BadInput, match="name a JWKS file"):
        check_file(str(jwks))


def test_slurm_is_asked_once_about_a_token_and_not_about_one_that_is_over() -> None:
    slurm = Slurmctld()
    clock = [NOW]
    tokens = Tokens(None, slurm, lambda: clock[0])
    good = by_secret()
    assert [tokens.user(good), tokens.user(good), slurm.asked] == ["alice", "alice", 1]
    for _ in range(2):
        with pytest.raises(Refused, match="Slurm refuses the token"):
            tokens.user(by_secret("another cluster's key, or a guess at ours", sun="root"))
    assert slurm.asked == 2
    clock[0] += 61
    assert (tokens.user(good), slurm.asked) == ("alice", 3)
    clock[0] += 600
    with pytest.raises(Refused, match="expired"):
        tokens.user(good)
    with pytest.raises(Refused, match=r"api_jwks names no file"):
        tokens.user(token())
    assert slurm.asked == 3


def test_whether_a_token_is_good_is_unknown_while_slurm_is_away() -> None:
    tokens = Tokens(None, Slurmctld(away=True), lambda: NOW)
    with pytest.raises(Unavailable, match="no answer"):
        tokens.user(by_secret())


def test_who_is_who_is_read_from_slurms_own_words() -> None:
    assert admin_levels("root|Administrator\nbob|Operator\neve|None\n\n") == {
        "root": Role.ADMIN, "bob": Role.OPERATOR,
    }  # fmt: skip
    assert coordinators("ml|alice,bob\nbio|\nchem|alice\n") == {
        "alice": {"ml", "chem"}, "bob": {"ml"},
    }  # fmt: skip
    assert private_data("PriorityType = x\nPrivateData             = jobs,usage\n") == {
        "jobs", "usage",
    }  # fmt: skip
    assert private_data("PrivateData = none\n") == frozenset()
    assert private_data("") is None


def test_what_slurm_told_last_holds_while_it_is_away() -> None:
    answers = {"config": "PrivateData = jobs", "user": "bob|Operator", "account": "ml|alice"}
    away = False

    def run(*words: str) -> str:
        if away:
            raise SlurmUnavailable("no answer")
        return next(answers[word] for word in words if word in answers)

    directory = Directory(run)
    directory.look()
    before = directory.known
    assert before == Known(
        {"bob": Role.OPERATOR}, {"alice": frozenset({"ml"})}, frozenset({"jobs"})
    )
    away = True
    directory.look()
    assert directory.known == before


def test_a_bucket_is_refilled_with_time() -> None:
    now = [0.0]
    limit = Limit(Rate("questions", 2.0, 3.0), lambda: now[0])
    for _ in range(3):
        limit.take("alice")
    with pytest.raises(TooMany, match=r"too many questions: wait 0\.5 s"):
        limit.take("alice")
    limit.take("bob")
    now[0] = 0.5
    limit.take("alice")


@dataclass
class Told:
    """A Control that notes what reaches it."""

    modes: list[tuple[Mode, int | None, str]] = field(default_factory=list)
    notes: list[Audited] = field(default_factory=list)
    pauses: list[tuple[str, str, bool]] = field(default_factory=list)

    def set_mode(self, mode: Mode, run_id: int | None, who: str, why: str) -> None:
        self.modes.append((mode, run_id, who))

    def review(self, incident_id: int, proof: Proof, who: str, official: bool, why: str) -> None:
        raise AssertionError

    def set_share(
        self, run_id: int, weight: float | None, floor_nodes: int | None, who: str, why: str
    ) -> None:
        raise AssertionError

    def resize(self, run_id: int, nodes: int, who: str, why: str) -> None:
        raise AssertionError

    def note(self, entry: Audited) -> None:
        self.notes.append(entry)

    def node(self, name: str, drain: bool, who: str, why: str) -> None:
        self.pauses.append((name, why, drain))

    def pause(self, pause: Pause, on: bool) -> None:
        self.pauses.append((pause.scope, pause.value, on))


@dataclass
class World:
    """One application for all of these tests: to make one takes longer than most of them."""

    app: FastAPI
    control: Told
    store: SqlStore


@pytest.fixture(scope="module")
def world(empty_database: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    path = tmp_path_factory.mktemp("gate") / "unicron.db"
    shutil.copy(empty_database, path)
    bobs = replace(RUN, run_id=9, user="bob", uid=-7)
    jobs = (ALLOCATION, replace(ALLOCATION, job_id=9, user="bob", uid=-7, account="bio"))
    url = f"sqlite:///{path}"
    with closing(open_store(url)) as store, closing(Queries(url)) as queries:
        store.save(Changes(runs=(RUN, bobs), incidents=(INCIDENT,), snapshot=snapshot(NOW, *jobs)))
        control = Told()
        yield World(create_app(queries, control, now=lambda: NOW), control, store)


class Site:
    """The application, asked over TLS."""

    def __init__(self, world: World, jwks: Path, **known: Any) -> None:
        self.control, self.realm, self._app = world.control, FakeRealm(), world.app
        for told in (self.control.modes, self.control.notes, self.control.pauses):
            told.clear()
        self.gate = Gate(
            "alpha", ["root"], ["olga"],
            Directory(known=Known(private=known.pop("private", frozenset()), **known)),
            Tokens(jwks, None), self.realm.user(0),
        )  # fmt: skip
        world.app.state.gate = self.gate

    def ask(self, path: str, body: Any = None, scheme: str = "https", **headers: str) -> Any:
        async def asked() -> httpx.Response:
            transport = httpx.ASGITransport(self._app, client=("10.0.0.7", 4))
            async with httpx.AsyncClient(
                transport=transport, base_url=f"{scheme}://unicrond"
            ) as client:
                method = "GET" if body is None else "POST"
                return await client.request(method, f"/v1{path}", json=body, headers=headers)

        return asyncio.run(asked())

    def as_user(self, user: str, path: str, body: Any = None) -> Any:
        return self.ask(path, body, Authorization=f"Bearer {token(sun=user)}")


def test_over_tls_nobody_is_anonymous(world: World, jwks: Path) -> None:
    site = Site(world, jwks)
    answer = site.ask("/runs")
    assert (answer.status_code, answer.json()["code"]) == (401, "unauthenticated")
    assert site.as_user("bob", "/runs").status_code == 200
    own = {"X-SLURM-USER-TOKEN": token()}
    assert site.ask("/runs", **own).status_code == 200
    assert site.ask("/runs", scheme="http").status_code == 200


def test_a_munge_credential_is_taken_once_and_for_this_cluster_alone(
    world: World, jwks: Path
) -> None:
    site = Site(world, jwks)
    sealed = site.realm.user(RUN.uid).seal(munge_payload("alpha"), None)
    credential = {"Authorization": f"MUNGE {sealed}"}
    body = {"mode": "paused", "run_id": 4711}
    assert site.ask("/mode", body, **credential).status_code == 200
    assert "used before" in site.ask("/mode", body, **credential).text
    for payload in (munge_payload("beta"), b"something else"):
        other = site.realm.user(0).seal(payload, None)
        answer = site.ask("/runs", Authorization=f"MUNGE {other}")
        assert (answer.status_code, "for something else" in answer.text) == (401, True)


@pytest.mark.parametrize(
    ("user", "body", "status"),
    [
        ("root", {"mode": "active"}, 200),
        ("ada", {"mode": "active"}, 200),
        ("olga", {"mode": "paused"}, 200),
        ("olga", {"mode": "active"}, 403),
        ("oscar", {"mode": "paused", "run_id": 9}, 200),
        ("bob", {"mode": "paused", "run_id": 9}, 200),
        ("bob", {"mode": "paused", "run_id": 4711}, 403),
        ("bob", {"mode": "paused"}, 403),
        ("cora", {"mode": "paused", "run_id": 9}, 200),
        ("cora", {"mode": "paused", "run_id": 4711}, 403),
    ],
)
def test_rights_follow_from_slurm_and_the_configuration(
    world: World, jwks: Path, user: str, body: dict[str, Any], status: int
) -> None:
    site = Site(
        world, jwks, roles={"ada": Role.ADMIN, "oscar": Role.OPERATOR},
        accounts={"cora": frozenset({"bio"})},
    )  # fmt: skip
    assert site.as_user(user, "/mode", body).status_code == status
    assert len(site.control.modes) == (status == 200)
    assert [(n.who, n.via, n.origin, bool(n.refusal)) for n in site.control.notes] == [
        (user, "token", "10.0.0.7", status != 200)
    ]


def test_private_data_is_kept_from_strangers(world: World, jwks: Path) -> None:
    site = Site(world, jwks, private=frozenset({"jobs", "nodes"}))

    def seen(user: str, path: str, key: str) -> list[int]:
        return [item[key] for item in site.as_user(user, path).json()["items"]]

    assert seen("bob", "/runs", "run_id") == [9]
    assert seen("bob", "/allocations", "job_id") == [9]
    assert seen("bob", "/incidents", "incident_id") == []
    assert seen("olga", "/runs", "run_id") == [4711, 9]
    for path in ("/runs/4711", "/incidents/1", "/why/4711", "/why/n1", "/nodes", "/nodes/n1",
                 "/cluster", "/decisions", "/decisions?run_id=4711", "/plan",
                 "/runs/4711/model"):  # fmt: skip
        assert site.as_user("bob", path).status_code == 403, path
        assert site.as_user("olga", path).status_code in (200, 404), path
    assert NODE.name in site.as_user("olga", "/nodes").text


def test_what_slurm_has_not_told_yet_is_private_from_afar(world: World, jwks: Path) -> None:
    site = Site(world, jwks, private=None)
    assert [r["run_id"] for r in site.as_user("bob", "/runs").json()["items"]] == [9]
    assert len(site.ask("/runs", scheme="http").json()["items"]) == 2


def test_who_guesses_is_slowed_down_and_who_commands_too_much_too(world: World, jwks: Path) -> None:
    site = Site(world, jwks)
    site.gate.failures = Limit(Rate("wrong credentials", 0.001, 2.0))
    site.gate.commands = Limit(Rate("commands", 0.001, 1.0))
    codes = [site.ask("/runs", Authorization="Bearer x").status_code for _ in range(3)]
    assert codes == [401, 401, 429]
    assert site.as_user("bob", "/runs").status_code == 429  # from the same address
    site.gate.failures = Limit(Rate("wrong credentials", 0.001, 2.0))
    body = {"mode": "paused", "run_id": 9}
    assert [site.as_user("bob", "/mode", body).status_code for _ in range(2)] == [200, 429]


def test_commands_are_listed_for_those_who_gave_them_and_for_operators(
    world: World, jwks: Path
) -> None:
    for who in ("alice", "bob"):
        world.store.audit(
            Audited(NOW, who, "user", "unix", "uid 1", "mode paused", "run 9", "tests")
        )
    site = Site(world, jwks)
    assert [e["who"] for e in site.as_user("bob", "/audit").json()["items"]] == ["bob"]
    assert [e["who"] for e in site.as_user("olga", "/audit").json()["items"]] == ["bob", "alice"]
    assert [e["who"] for e in site.as_user("olga", "/audit?who=alice").json()["items"]] == ["alice"]
    assert site.ask("/audit", scheme="http").status_code == 403


@pytest.mark.parametrize(
    ("user", "path", "body", "status"),
    [
        ("olga", "/pause", {"scope": "partition", "value": "gpu", "why": "new cables"}, 200),
        ("olga", "/unpause", {"scope": "action", "value": "drain"}, 200),
        ("bob", "/pause", {"scope": "partition", "value": "gpu"}, 403),
        ("root", "/pause", {"scope": "action", "value": "stop_ranks"}, 400),
        ("root", "/pause", {"scope": "rack", "value": "r1"}, 400),
    ],
)
def test_operators_pause_a_partition_or_a_kind_of_action(
    world: World, jwks: Path, user: str, path: str, body: Any, status: int
) -> None:
    site = Site(world, jwks)
    assert site.as_user(user, path, body).status_code == status
    told = [(body["scope"], body["value"], path == "/pause")] if status == 200 else []
    assert site.control.pauses == told


def test_what_is_paused_is_listed(world: World, jwks: Path) -> None:
    world.store.save(
        Changes(pauses=(Pause(PauseScope.ACTION, "drain", 5.0, "ada", "broken probe"),))
    )
    items = Site(world, jwks).as_user("bob", "/pauses").json()["items"]
    assert items == [
        {"scope": "action", "value": "drain", "at": 5.0, "who": "ada", "why": "broken probe"}
    ]


@pytest.mark.parametrize(
    ("user", "path", "status"),
    [
        ("root", "/nodes/n1/drain", 200),
        ("root", "/nodes/n1/resume", 403),
        ("root", "/nodes/n77/drain", 404),
        ("olga", "/nodes/n1/drain", 403),
    ],
)
def test_admins_drain_nodes(world: World, jwks: Path, user: str, path: str, status: int) -> None:
    site = Site(world, jwks)
    assert site.as_user(user, path, {"why": "new memory"}).status_code == status
    assert site.control.pauses == ([("n1", "new memory", True)] if status == 200 else [])
    assert len(site.control.notes) == 1
