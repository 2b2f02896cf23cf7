"""Reading what was decided and not carried out, with what became of it."""

from __future__ import annotations

from dataclasses import dataclass

from sqlalchemy import select

from db import schema
from db.queries import NO_INCIDENT, Queries, read_doc
from unicrond.model.decision import Decision
from unicrond.model.incident import Incident
from unicrond.model.run import Run


@dataclass(frozen=True, slots=True)
class Observed:
    """`gpus`: of the run as it is known now, 0 where it is forgotten."""

    decision: Decision
    incident: Incident
    gpus: int


@dataclass(frozen=True, slots=True)
class _Doc:
    doc: str


def observed(queries: Queries, most: int) -> list[Observed]:
    """Of the newest `most` decisions on incidents, the last on each that was not carried out."""
    d, i, r = schema.decisions.c, schema.incidents.c, schema.runs.c
    query = (
        select(d.doc.label("decision"), i.doc.label("incident"), r.doc.label("run"))
        .join(schema.incidents, i.incident_id == d.incident_id)
        .join(schema.runs, r.run_id == d.run_id, isouter=True)
        .where(d.incident_id != NO_INCIDENT)
        .order_by(d.id.desc())
        .limit(most)
    )
    decision_of, incident_of, run_of = read_doc(Decision), read_doc(Incident), read_doc(Run)
    found: dict[int, Observed] = {}
    for row in queries.rows(query):
        decision = decision_of(_Doc(row.decision))
        if decision.incident_id in found or decision.acts or decision.choice == "observe":
            continue
        run = run_of(_Doc(row.run)) if row.run else None
        gpus = len(run.nodes) * run.ranks_per_node if run else 0
        found[decision.incident_id] = Observed(decision, incident_of(_Doc(row.incident)), gpus)
    return list(found.values())
