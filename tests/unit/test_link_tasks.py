"""Tasks end, also those that forget that they were told to."""

from __future__ import annotations

import asyncio

import pytest

from unicrond.link.tasks import end_all, reap


def test_a_task_that_forgets_a_cancellation_is_told_again() -> None:
    async def forgetful() -> None:
        for _ in range(2):
            try:
                await asyncio.sleep(60)
            except asyncio.CancelledError:
                continue
        await asyncio.sleep(60)

    async def story() -> None:
        tasks = [asyncio.create_task(forgetful()), asyncio.create_task(asyncio.sleep(60))]
        await asyncio.sleep(0)
        assert await end_all(tasks)
        assert all(task.cancelled() for task in tasks)

    asyncio.run(story())


def test_nothing_to_end_is_no_trouble() -> None:
    assert asyncio.run(end_all([]))


def test_a_child_is_waited_for_though_its_keeper_is_cancelled() -> None:
    async def keeper(child: asyncio.subprocess.Process) -> None:
        await reap(child)

    async def main() -> None:
        child = await asyncio.create_subprocess_exec(
            "sh", "-c", "sleep 0.1", stdin=asyncio.subprocess.PIPE, stdout=asyncio.subprocess.PIPE
        )
        task = asyncio.create_task(keeper(child))
        await asyncio.sleep(0)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert child.returncode == 0

    asyncio.run(main())
