"""Dynamo's code before a graph, without the region for torch's profiler that each call opens there.

Where torch._dynamo.config.record_runtime_overhead is on, as it is by default, Dynamo writes two calls
of Python around what it does before a graph, so that a profiler can show "Pregraph bytecode". They take
2 us of every call, profiler or not, which is a fifth of what a small graph's takes. Dynamo reads that
switch when it writes the code that calls a graph. For graphs of Kiln's it finds the switch off, but where
a profiler records just then or the user's option asks for the region. Other backends' code is as ever.
"""

from __future__ import annotations

import functools
import inspect
import logging
from collections.abc import Callable
from typing import Any, TypeVar

import torch
from torch._dynamo import codegen, config
from torch._dynamo.eval_frame import innermost_fn
from torch.autograd import profiler

_LOG = logging.getLogger("kiln_torch")
_MARK = "_kiln_without_region"
Graph = TypeVar("Graph", bound=Callable[..., Any])


def without_region(graph: Graph) -> Graph:
    """`graph`, which a backend returns to Dynamo, marked."""
    try:
        # torch keeps Dynamo out of a function by wrapping its innermost one, with its attributes.
        setattr(innermost_fn(graph), _MARK, True)
    except (AttributeError, TypeError) as error:
        _LOG.info("a graph's calls open the profiler's region: %s", error)
    return graph


def _finds_switch(write: Callable[..., None]) -> Callable[..., None]:
    @functools.wraps(write)
    def write_call(self: codegen.PyCodegen, fn_name: str) -> None:
        graph = self.tx.output.global_scope.get(fn_name)
        if getattr(graph, _MARK, False) and not profiler._is_profiler_enabled:
            with config.patch(record_runtime_overhead=False):
                write(self, fn_name)
        else:
            write(self, fn_name)

    return write_call


def _install() -> None:
    write = getattr(codegen.PyCodegen, "make_call_generated_code", None)
    names = list(inspect.signature(write).parameters) if write is not None else []
    if names == ["self", "fn_name"] and hasattr(config, "record_runtime_overhead"):
        codegen.PyCodegen.make_call_generated_code = _finds_switch(write)
    else:
        _LOG.info("torch %s: calls of graphs open the profiler's region", torch.__version__)


_install()
