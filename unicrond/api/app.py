"""The application: its parts put together. What they read is the view and the store; what they are
told to do goes to the loop."""

from __future__ import annotations

import time
from collections.abc import Callable, Collection

from fastapi import FastAPI
from prometheus_client import CollectorRegistry

from db.queries import Queries
from unicrond import __version__
from unicrond.api import (
    commands,
    errors,
    knowledge,
    lists,
    live,
    metrics,
    pausing,
    stories,
    summary,
    trust,
    usage,
    web,
    whatif,
)
from unicrond.api.commands import Commands
from unicrond.api.control import Control
from unicrond.api.gate import Gate
from unicrond.api.view import Viewer


def create_app(
    queries: Queries,
    control: Control,
    *,
    cluster: str = "",
    admins: Collection[str] = (),
    now: Callable[[], float] = time.time,
    viewer: Viewer | None = None,
    gate: Gate | None = None,
    holder: str = "",
) -> FastAPI:
    app = FastAPI(
        title="unicrond", version=__version__, openapi_url="/v1/openapi.json", docs_url=None,
        redoc_url=None,
    )  # fmt: skip
    errors.install(app)
    viewer = viewer or Viewer(queries)

    app.state.gate = gate or Gate(cluster, admins)
    told = Commands(queries, viewer, control, now)
    for router in (
        summary.routes(queries, viewer, cluster, now, holder),
        lists.routes(queries, viewer),
        stories.routes(queries, viewer),
        live.routes(queries, viewer),
        knowledge.routes(queries),
        usage.routes(queries, now),
        whatif.routes(queries, whatif.Planner()),
        trust.routes(queries, viewer),
        commands.routes(told),
        pausing.routes(told),
    ):
        app.include_router(router, prefix="/v1", responses=errors.RESPONSES)
    registry = CollectorRegistry()
    registry.register(metrics.Present(queries, viewer, cluster, now, usage.LastDay(queries, now)))
    app.include_router(metrics.routes(registry, metrics.Heals(registry), viewer))
    app.add_middleware(metrics.Answers, registry=registry)
    app.include_router(web.routes())
    return app
