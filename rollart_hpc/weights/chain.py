"""A broadcast along a chain: every rank passes each piece on to the next one while the following piece arrives.

    rank 0 --piece 3--> rank 1 --piece 2--> rank 2 --piece 1--> ...

Every connection carries each byte once, so the source sends its weights once, however many ranks there are; gloo's own
broadcast is a tree, whose root sends log2 of their number. Small tensors take less time in the tree.
"""

from __future__ import annotations

from concurrent.futures import Future, ThreadPoolExecutor
from datetime import timedelta
from typing import Any

import torch

LEAST_BYTES = 256 << 10  # of a tensor
PIECE_BYTES = 4 << 20  # the last rank is this many bytes per rank behind the first


class Chain:
    """`group`: torch's gloo group. Its connections stay open at most until the piece in flight, or the deadline."""

    def __init__(self, group: Any, deadline: timedelta) -> None:
        self._group = group
        self._deadline = deadline
        self._tag = 0  # every piece has its own; all ranks count alike
        self._is_closed = False
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="chain")

    def takes(self, tensor: torch.Tensor) -> bool:
        """Must be the same on all ranks."""
        return bool(self._group.size() > 2 and tensor.nbytes >= LEAST_BYTES)

    def start(self, tensor: torch.Tensor) -> Future[str]:
        """The result is what torch said if a neighbour is lost or silent, else empty."""
        pieces = tensor.view(torch.uint8).view(-1).split(PIECE_BYTES)
        first, self._tag = self._tag + 1, self._tag + len(pieces)
        return self._thread.submit(self._try, self._group, pieces, first)

    def close(self) -> None:
        """Doesn't wait for what is under way."""
        self._is_closed, self._group = True, None
        self._thread.shutdown(wait=False, cancel_futures=True)

    def _try(self, group: Any, pieces: tuple[torch.Tensor, ...], first: int) -> str:
        """An error would hold the group, and so its connections, as long as somebody holds the error."""
        try:
            self._run(group, pieces, first)
        except RuntimeError as error:
            return str(error)
        return ""

    def _run(self, group: Any, pieces: tuple[torch.Tensor, ...], first: int) -> None:
        rank, last = group.rank(), group.size() - 1
        tags = range(first, first + len(pieces))
        coming = [group.recv([piece], rank - 1, tag) for piece, tag in zip(pieces, tags, strict=True)] if rank else []
        going = []
        for index, (piece, tag) in enumerate(zip(pieces, tags, strict=True)):
            if coming:
                coming[index].wait(self._deadline)
            if self._is_closed:
                return
            if rank != last:
                going.append(group.send([piece], rank + 1, tag))
        for work in going:
            work.wait(self._deadline)
