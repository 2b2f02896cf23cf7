"""Wishes in a job's comment: `sbatch --comment='{"unicron": {"weight": 2, "min_nodes": 2}}'`. Pure.

The options of unicron-run with `_` for `-`. What stands on the command line wins; other keys of the
comment, and comments that are no JSON, belong to others.
"""

from __future__ import annotations

import json
from collections.abc import Mapping

from unicrond.errors import BadInput

VARIABLE = "UNICRON_WISHES"
KEYS = (
    "weight", "min_nodes", "max_nodes", "ranks_per_node", "name", "flops_per_iteration",
    "parameters", "micro_batches", "layouts", "batch_scaling",
)  # fmt: skip
_OURS = ("companion_of",)


def comment_of(record: str) -> str:
    """Of `scontrol --oneliner show job`: what the job's user wrote, if that is a JSON object."""
    start = record.find(" Comment={")
    if start < 0:
        return ""
    text = record[start + len(" Comment=") :]
    try:
        _, end = json.JSONDecoder().raw_decode(text)
    except ValueError:
        return ""
    return text[:end]


def options_of(comment: str) -> list[str]:
    """To stand before the user's own options. Raises BadInput that names the key."""
    try:
        wished = json.loads(comment).get("unicron", {})
    except (ValueError, AttributeError):
        return []
    if not isinstance(wished, dict):
        raise BadInput('--comment: "unicron" must be an object such as {"min_nodes": 2}')
    found: list[str] = []
    for key, value in wished.items():
        if key in _OURS:
            continue
        if key not in KEYS:
            raise BadInput(f'--comment: "unicron" has no {key!r}; known: {", ".join(KEYS)}')
        if isinstance(value, bool) or not isinstance(value, (str, int, float)):
            raise BadInput(f"--comment: {key} must be a number or a text, not {value!r}")
        found += [f"--{key.replace('_', '-')}", str(value)]
    return found


def handed_on(environment: Mapping[str, str]) -> list[str]:
    """By the wrapper's check, to all agents of the run, those in companions too."""
    try:
        told = json.loads(environment.get(VARIABLE, "") or "[]")
    except ValueError:
        return []
    return [str(word) for word in told] if isinstance(told, list) else []
