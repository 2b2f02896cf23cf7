"""Gradients of one process: local sums that stay as they are, and their sums over all members.

    local sums    where backward adds up, one flat tensor a bucket; kept until the train step counts
    sums          of the same shape: copied there and reduced there, bucket by bucket
Keeping both takes the gradients' memory once more. Without (`keeps=False`) buckets are reduced in
place: whoever has begun with it and fails computes its share anew. Uses torch.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Protocol

import torch
from torch import Tensor

BUCKET_BYTES = 25 << 20


class Work(Protocol):
    def wait(self) -> object: ...


class Bucket:
    """Some parameters of one kind, side by side."""

    def __init__(self, parameters: Sequence[Tensor], keeps: bool) -> None:
        self.parameters = parameters
        size = sum(one.numel() for one in parameters)
        first = parameters[0]
        self.local = torch.zeros(size, dtype=first.dtype, device=first.device)
        self._local_views = _views(self.local, parameters)
        self.sum, self._sum_views = self.local, self._local_views
        if keeps:
            self.renew_sum()

    def renew_sum(self) -> None:
        """A reduction that was given up may still write to the one that it was given."""
        self.sum = torch.zeros_like(self.local)
        self._sum_views = _views(self.sum, self.parameters)

    def renew_local(self) -> None:
        self.local = torch.zeros_like(self.local)
        self._local_views = _views(self.local, self.parameters)
        self.sum, self._sum_views = self.local, self._local_views

    def add_up_locally(self) -> None:
        for one, view in zip(self.parameters, self._local_views, strict=True):
            one.grad = view

    def gather(self) -> None:
        """What a script has put in other places is copied: it may have set gradients to None."""
        for one, view in zip(self.parameters, self._local_views, strict=True):
            if one.grad is not None and one.grad is not view:
                view.add_(one.grad)
            one.grad = None

    def use_sum(self) -> None:
        for one, view in zip(self.parameters, self._sum_views, strict=True):
            one.grad = view


def _views(flat: Tensor, parameters: Iterable[Tensor]) -> list[Tensor]:
    views, place = [], 0
    for one in parameters:
        views.append(flat[place : place + one.numel()].view(one.shape))
        place += one.numel()
    return views


class Gradients:
    def __init__(self, parameters: Iterable[Tensor], keeps: bool) -> None:
        self.keeps = keeps
        self._buckets = [Bucket(some, keeps) for some in _bucketed(parameters)]
        self.complete = 0  # a bit a bucket
        self.kept = True  # local sums are as backward left them
        self._works: list[Work] = []

    @property
    def layout(self) -> tuple[int, ...]:
        """Alike in all members."""
        return tuple(bucket.local.numel() for bucket in self._buckets)

    @property
    def all_complete(self) -> bool:
        return self.complete == (1 << len(self._buckets)) - 1

    def begin(self) -> None:
        """Backward adds to the local sums. Of complete buckets nothing more is needed."""
        for bucket in self._incomplete():
            bucket.add_up_locally()

    def pause(self) -> None:
        """Whatever the script does to gradients now, it does not reach the local sums."""
        for number, bucket in enumerate(self._buckets):
            if self.complete >> number & 1:
                for one in bucket.parameters:
                    one.grad = None
            else:
                bucket.gather()

    def reduce(self, reduce: Callable[[Tensor], Work]) -> None:
        """Raises what `reduce` raises; buckets that came through are complete all the same."""
        self.kept = self.keeps or self.all_complete
        numbers = [n for n in range(len(self._buckets)) if not self.complete >> n & 1]
        for number in numbers:
            bucket = self._buckets[number]
            if self.keeps:
                bucket.sum.copy_(bucket.local)
            self._works.append(reduce(bucket.sum))
        for number, work in zip(numbers, self._works, strict=True):
            work.wait()
            self.completed(number)
        self._works.clear()

    def drop_works(self) -> None:
        """They hold the group that they were begun in. What was waited for counts."""
        if self._works and self.keeps:
            for bucket in self._incomplete():
                bucket.renew_sum()
        self._works.clear()

    def use(self) -> None:
        for bucket in self._buckets:
            bucket.use_sum()

    def sum_of(self, number: int) -> Tensor:
        return self._buckets[number].sum

    def completed(self, number: int) -> None:
        self.complete |= 1 << number

    def forget_local(self) -> None:
        """Local sums that were reduced in place are no more: they begin at 0 again."""
        for bucket in self._incomplete():
            bucket.renew_local()
        self.kept = True

    def clear(self) -> None:
        """For the next train step."""
        self.complete, self.kept = 0, True
        for bucket in self._buckets:
            bucket.local.zero_()
            for one in bucket.parameters:
                one.grad = None

    def _incomplete(self) -> Iterator[Bucket]:
        for number, bucket in enumerate(self._buckets):
            if not self.complete >> number & 1:
                yield bucket


def _bucketed(parameters: Iterable[Tensor]) -> list[list[Tensor]]:
    """The last ones first: their gradients are ready first. A parameter that is shared is once."""
    unique = list({id(one): one for one in parameters if one.requires_grad}.values())
    buckets: list[list[Tensor]] = []
    kind, size = None, 0
    for one in reversed(unique):
        this, more = (one.dtype, one.device), one.numel() * one.element_size()
        if this != kind or size + more > BUCKET_BYTES:
            buckets.append([])
            kind, size = this, 0
        buckets[-1].append(one)
        size += more
    return buckets
