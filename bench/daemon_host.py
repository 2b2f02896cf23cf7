"""unicrond for `bench daemon`: the daemon itself, with the bench's key and a pretended Slurm.

python -m bench.daemon_host --config FILE --key HEX -- AGENTS NODES_PER_RUN RANKS_PER_NODE
python -m bench.daemon_host --watch -- ...     its watch process: snapshots on stdout
"""

from __future__ import annotations

import argparse
import asyncio
import cProfile
import logging
import select
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

from bench.daemon_cluster import DAEMON_UID, Cluster, KeyCredentials
from db.store import open_store
from unicrond.config import load_settings
from unicrond.daemon import Daemon
from unicrond.slurm.codec import Encoder, Look

LOOK_SECONDS = 2.0


def watch(cluster: Cluster) -> None:
    """Until its standard input is closed."""
    encoder = Encoder()
    for snapshot in cluster.snapshots(_moments()):
        print(encoder.encode(Look(snapshot, LOOK_SECONDS)), flush=True)


def _moments() -> Iterator[float]:
    yield time.time()
    while not select.select([sys.stdin], [], [], LOOK_SECONDS)[0]:
        yield time.time()


def host(config: Path, key: bytes, shape: list[str]) -> None:
    settings = load_settings(config)
    logging.basicConfig(
        level=settings.log_level.upper(), format="%(asctime)s %(levelname)s %(name)s %(message)s"
    )
    daemon = Daemon(
        settings,
        open_store(settings.database_url),
        config,
        credentials=KeyCredentials(key, DAEMON_UID),
        watch=[sys.executable, "-m", "bench.daemon_host", "--watch", "--", *shape],
    )
    asyncio.run(daemon.run())


def main() -> None:
    parser = argparse.ArgumentParser(prog="bench.daemon_host")
    parser.add_argument("--watch", action="store_true")
    parser.add_argument("--config", type=Path)
    parser.add_argument("--key", type=bytes.fromhex, default=b"")
    parser.add_argument("--profile", help="write what cProfile says here; it costs half as much")
    parser.add_argument("shape", nargs=3)
    asked = parser.parse_args()
    if asked.watch:
        watch(Cluster(*map(int, asked.shape)))
        return
    with ExitStack() as stack:
        if asked.profile:
            profile = stack.enter_context(cProfile.Profile(time.thread_time))
            stack.callback(lambda: profile.dump_stats(asked.profile))
        host(asked.config, asked.key, asked.shape)


if __name__ == "__main__":
    main()
