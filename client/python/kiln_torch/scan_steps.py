"""Steps of torch's `scan` whose results share memory, in training.

Beside its results a step gives what its backward needs. Where that is one of the results, or a view of one, as
tanh and softmax need theirs, torch refuses its own graph of the step: a scan's results may not share memory.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from importlib import import_module
from typing import Any

import torch
from torch.multiprocessing.reductions import StorageWeakRef

from kiln_torch.replaced import replaced

Node = torch.fx.Node


def _clone_shared(step: torch.fx.GraphModule) -> None:
    """Gives each result of `step` memory of its own. It knows values by `meta["val"]`."""
    output = next(iter(step.graph.find_nodes(op="output")))
    seen: set[Any] = set()
    results = []
    for result in output.args[0]:
        if isinstance(result, Node):
            value = result.meta.get("val")
            is_known = isinstance(value, torch.Tensor)
            memory = StorageWeakRef(value.untyped_storage()) if is_known else result
            if memory in seen:
                with step.graph.inserting_before(output):
                    copy = step.graph.call_function(torch.ops.aten.clone.default, (result,))
                copy.meta = dict(result.meta)
                result = copy
            seen.add(memory)
        results.append(result)
    output.args = (tuple(results),)
    step.recompile()


def separate_scan_results() -> AbstractContextManager[None]:
    """While a graph is traced, each result of a scan's step has memory of its own. As `replaced`."""
    # The module's name is that of a function, too.
    scan = getattr(import_module("torch._higher_order_ops.scan"), "ScanAutogradImpl", None)

    def make(original: Callable[[Any], None]) -> Callable[[Any], None]:
        def optimize(self: Any) -> None:
            original(self)
            _clone_shared(self.hop_partitioned_graph.fw_gm)

        return optimize

    return replaced(scan, "_optimize_forward_intermediates", make)
