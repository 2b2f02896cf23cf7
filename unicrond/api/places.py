"""Where a page begins, how long it is, and how one is put together."""

from __future__ import annotations

import json
from bisect import bisect_right
from collections.abc import Callable
from typing import Annotated, Any, TypeVar

from fastapi import Path, Query

from db.queries import Page
from unicrond.api.view import Listing
from unicrond.errors import BadInput

T = TypeVar("T")
After = Annotated[str, Query(max_length=300, description="`next` of the page before")]
Limit = Annotated[int, Query(ge=1, le=1000)]
Number = Annotated[int, Path(ge=0, lt=2**63)]
RunId = Annotated[int | None, Query(ge=0, lt=2**63)]
Name = Annotated[str, Query(max_length=255)]
Moment = Annotated[float, Query(ge=0, le=1e12, description="Unix seconds")]
ROWS_AT_ONCE = 500
MOST_CHUNKS = 20  # of rows that are looked through for one page of the store's


def number_place(after: str) -> int | None:
    """Newest first: the place of a number in such a list."""
    if not after:
        return None
    if not after.isascii() or not after.isdigit() or len(after) > 18:
        raise BadInput("after: not a place in this list; copy it from `next` of the page before")
    return -int(after)


def name_place(after: str) -> str | None:
    return after or None


def page_of(
    listing: Listing[T], after: Any, limit: int, keep: Callable[[T], bool], current: bool
) -> bytes | None:
    """A page as JSON; None where the store has to be asked. `current`: older ones cannot match."""
    complete = current or listing.complete
    end = len(listing.entries) if complete else listing.gapless
    found: list[int] = []
    for index in range(0 if after is None else bisect_right(listing.places, after), end):
        if keep(listing.entries[index].value):
            found.append(index)
            if len(found) > limit:
                break
    if len(found) <= limit and not complete:
        return None
    items = b",".join(listing.entries[index].json for index in found[:limit])
    last = listing.places[found[limit - 1]] if len(found) > limit else None
    told = None if last is None else str(abs(last) if isinstance(last, int) else last)
    return b'{"items":[%b],"next":%b}' % (items, json.dumps(told).encode())


def looked_through(
    fetch: Callable[[str, int], Page[T]],
    after: str,
    limit: int,
    keep: Callable[[T], bool],
    key: Callable[[T], int],
) -> Page[T]:
    """A page of what is kept among the store's; it may be short, and `next` goes on behind it."""
    found: list[T] = []
    for _ in range(MOST_CHUNKS):
        page = fetch(after, ROWS_AT_ONCE)
        for item in page.items:
            if keep(item):
                found.append(item)
                if len(found) == limit:
                    last = page.next is None and item is page.items[-1]
                    return Page(tuple(found), None if last else str(key(item)))
        if page.next is None:
            return Page(tuple(found), None)
        after = page.next
    return Page(tuple(found), after)
