"""Kiln for PyTorch: `torch.compile(model, backend="kiln")`.

Nothing needs to be imported for that: installing the package registers the backend. This module
shows what happened (stats), saves captured graphs (save_graph) and explains compiles (explain).
"""

from __future__ import annotations

from typing import Any

from kiln_torch import _kiln, options as options
from kiln_torch.backend import kiln_backend
from kiln_torch.capture import CaptureError
from kiln_torch.check import CheckFailed
from kiln_torch.runner import RunError
from kiln_torch.statistics import STATISTICS
from kiln_torch.tools import explain, save_graph

CacheMiss = _kiln.CacheMiss  # with fail_on_miss, where no cache has a graph's program

__all__ = [
    "CacheMiss",
    "CaptureError",
    "CheckFailed",
    "RunError",
    "explain",
    "kiln_backend",
    "reset",
    "save_graph",
    "stats",
]
__version__ = "0.1.0"


def stats() -> dict[str, Any]:
    """Counts since the start or the last reset().

    graphs; hits {memory, local, server}: answers without a compile, from programs that this process
    has loaded (memory), a cache on this machine's disk (local), or the server; compiles; fallbacks
    [{graph, reason}]; away {trying, recovered, given_up}: of these, graphs whose server was away and
    that are tried again, whose program has come since, and the server's reasons for the rest; steps
    {native, library}; library_ops {op: count}; capture_ms, one entry a graph that was captured here
    and not found in torch's caches; compile_ms and fetch_ms, one entry a graph; run_calls; retries: calls to servers after a compile's first; progressive
    {waiting, switched, eager_calls}: graphs whose program is awaited and has come, and the calls
    that ran eager until then; checks {graphs, calls, differences}, of option check.
    """
    return STATISTICS.snapshot()


def reset() -> None:
    """Forgets loaded programs and the statistics. torch._dynamo.reset() is the caller's to call."""
    _kiln.clear_programs()
    STATISTICS.clear()
