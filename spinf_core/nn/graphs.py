"""CUDA graphs of a model's layers: the device runs a small pass in less time than the host takes to launch its kernels.

A graph is recorded for a number of rows, and room for a number of tiles, the second time a pass of that kind comes; the first
time its kernels have been compiled and their libraries set up. Replaying runs the same kernels on the same shapes, so no bit
differs.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from contextvars import ContextVar
from typing import Any
from weakref import WeakSet

import attrs
import torch
from torch import Tensor

from spinf_core.nn.attention import TreeAttention, tree_attention
from spinf_core.nn.layout import TreeLayout, rows_to_read
from spinf_core.nn.transfer import room, to_device

MOST_ROWS = 4096  # of a recorded pass; in larger ones the host is ahead of the device anyway
MOST_GRAPHS = 96

Layers = Callable[[Tensor, Tensor, TreeAttention, Tensor | None], Tensor]
"""ids [N], positions [A, N], the pass's attention and the rows wanted [W] to their [W, hidden], or [N, hidden] where none are
named; by work on the device alone."""
Kind = tuple[tuple[int, ...], ...]


_unrecorded = ContextVar("unrecorded", default=False)


@contextmanager
def unrecorded() -> Iterator[None]:
    """Passes of this thread are launched kernel by kernel meanwhile, so that Python code among a model's layers runs."""
    token = _unrecorded.set(True)
    try:
        yield
    finally:
        _unrecorded.reset(token)


_all: WeakSet[PassGraphs] = WeakSet()


def forget_recorded() -> None:
    """Give back the memory of every recorded pass of the process; each is recorded anew when it comes again."""
    for graphs in list(_all):
        graphs.forget()


@attrs.frozen(eq=False)
class _Recorded:
    graph: torch.cuda.CUDAGraph
    inputs: Tensor
    output: Tensor


class PassGraphs:
    """Runs a model's layers, recorded where that is quicker.

    Args:
        record: whether the layers may be recorded: all they do is on the device, whatever the values are.
    """

    def __init__(self, *, record: bool = True) -> None:
        self._record = record
        self._recorded: OrderedDict[Kind, _Recorded | None] = OrderedDict()  # None: seen once
        self._pool: Any = None  # of the memory that the recorded passes share
        _all.add(self)

    def forget(self) -> None:
        """Give back the memory of the recorded passes, none of which may be running."""
        self._recorded.clear()
        self._pool = None

    def run(self, layout: TreeLayout, layers: Layers) -> Tensor:
        """[R, hidden], the layers' output at the rows that a pass without a past reads."""
        pass_ = layout.pass_
        wanted = None if _unrecorded.get() else rows_to_read(pass_)
        inputs = {"ids": pass_.ids, "positions": pass_.positions, "rows": pass_.reads if wanted is None else wanted}

        def run(moved: dict[str, Tensor], attention: TreeAttention) -> Tensor:
            rows = moved["rows"]
            found = layers(moved["ids"], moved["positions"], attention, None if wanted is None else rows)
            return found.index_select(0, rows) if wanted is None else found

        if layout.device.type != "cuda":
            return run(to_device(inputs, layout.device), tree_attention(layout))[: len(pass_.reads)]
        from spinf_core.nn.kernels.tables import TileTables, tile_arrays, with_room
        from spinf_core.nn.kernels.tree_attention import TritonTreeAttention

        assert layout.kept is None
        arrays = tile_arrays(layout)

        def launch(moved: dict[str, Tensor]) -> Tensor:
            tables = TileTables(**{name: moved[name] for name in arrays}, in_place=True)
            return run(moved, TritonTreeAttention(tables))

        if not self._record or layout.rows > MOST_ROWS or _unrecorded.get():
            return launch(to_device(inputs | arrays, layout.device))[: len(pass_.reads)]
        packed = inputs | with_room(arrays)
        kind = tuple(array.shape for array in packed.values())
        if kind not in self._recorded:
            self._recorded[kind] = None
            while len(self._recorded) > MOST_GRAPHS:
                self._recorded.popitem(last=False)
            return launch(to_device(packed, layout.device))[: len(pass_.reads)]
        self._recorded.move_to_end(kind)
        recorded = self._recorded[kind]
        if recorded is None:
            buffer = torch.empty(room(packed), dtype=torch.int32, device=layout.device)
            recorded = self._recorded[kind] = self._capture(launch, to_device(packed, layout.device, into=buffer), buffer)
        else:
            to_device(packed, layout.device, into=recorded.inputs)
        recorded.graph.replay()
        return recorded.output[: len(pass_.reads)].clone()  # the next pass of its kind overwrites it

    def _capture(self, run: Callable[[dict[str, Tensor]], Tensor], inputs: dict[str, Tensor], buffer: Tensor) -> _Recorded:
        graph = torch.cuda.CUDAGraph()
        if self._pool is None:
            self._pool = torch.cuda.graph_pool_handle()
        stream: Any = torch.cuda.Stream()  # type: ignore[no-untyped-call]
        stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(stream):
            # Other threads may wait for events of the device meanwhile.
            graph.capture_begin(pool=self._pool, capture_error_mode="thread_local")
            try:
                output = run(inputs)
            except BaseException:
                with suppress(RuntimeError):  # that the recording is broken; what broke it goes up
                    graph.capture_end()
                raise
            graph.capture_end()
        torch.cuda.current_stream().wait_stream(stream)
        return _Recorded(graph, buffer, output)
