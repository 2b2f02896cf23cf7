"""What a configuration that was read anew changes in a unicrond that runs. Pure.

at once               numbers of [policy], log_level; what unicronctl alone reads: api_urls, api_ca
by a new process      what only the API or the planner read: admins, operators, cluster, api_tls_*,
                      api_jwks, api_slurm_tokens, api_munge, [accounts.NAME]
after a restart       the rest: addresses, the database, how Slurm is asked
never                 mode: it is set by `unicronctl mode`, and remembered
"""

from __future__ import annotations

from dataclasses import dataclass, field

from unicrond.config import Settings

OF_OTHER_PROCESSES = frozenset(
    {
        "admins", "operators", "cluster", "accounts", "api_jwks", "api_slurm_tokens", "api_munge",
        "api_tls_listen", "api_tls_certificate", "api_tls_key",
    }
)  # fmt: skip
AT_ONCE = frozenset({"policy", "log_level", "api_urls", "api_ca"})
NEVER = frozenset({"mode"})


@dataclass(frozen=True, slots=True)
class Difference:
    policy: dict[str, float] = field(default_factory=dict)
    changed: tuple[str, ...] = ()  # keys that hold now
    waiting: tuple[str, ...] = ()  # keys that need a restart of unicrond

    @property
    def starts_processes(self) -> bool:
        return not OF_OTHER_PROCESSES.isdisjoint(self.changed)

    def __str__(self) -> str:
        numbers = [f"policy.{name} = {value:g}" for name, value in self.policy.items()]
        others = [name for name in self.changed if name != "policy"]
        held = ", ".join([*numbers, *others]) or "nothing changed"
        if not self.waiting:
            return held
        return f"{held}; after a restart of unicrond: {', '.join(self.waiting)}"


def difference(old: Settings, new: Settings) -> Difference:
    names = [n for n in Settings.model_fields if getattr(old, n) != getattr(new, n)]
    before, after = old.policy.model_dump(), new.policy.model_dump()
    known = OF_OTHER_PROCESSES | AT_ONCE
    return Difference(
        {name: value for name, value in after.items() if value != before[name]},
        tuple(name for name in names if name in known),
        tuple(name for name in names if name not in known | NEVER),
    )
