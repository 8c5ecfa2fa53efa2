"""Compiled graphs in torch's own caches, so that a second process neither traces nor captures.

An entry of AOTAutogradCache, and of what Dynamo's precompile saves, holds for each graph what was
captured and what its calls look like. The program is not in there: its key follows from what was
captured, the device and the compiler at hand, so it comes from Kiln's caches, verified as ever, or is
compiled again. torch pickles its entries; they are read from the user's own folder only.

This follows private interfaces of torch. Where they are not those of a version that the tests have
seen, `usable` says no, and every process captures its graphs itself.
"""

from __future__ import annotations

import contextlib
import functools
import hashlib
import logging
import os
import pickle
import stat
import threading
import zlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextvars import ContextVar
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from torch._dynamo import compiled_autograd
from torch._functorch._aot_autograd.aot_autograd_result import GenericAOTAutogradResult
from torch._functorch._aot_autograd.autograd_cache import BypassAOTAutogradCache
from torch._functorch._aot_autograd.schemas import SerializableAOTDispatchCompiler
from torch._guards import TracingContext
from torch._inductor import codecache
from torch._inductor.codecache import init_backend_registration
from torch._inductor.output_code import OutputCode
from torch._inductor.runtime.runtime_utils import cache_dir
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import is_traceable_wrapper_subclass
from torch.utils._pytree import tree_leaves
from torch.utils._sympy.symbol import SymT, symbol_is_type

from kiln_torch.devices import traced_device
from kiln_torch.graphs import Deferred, next_name, ready_to_run
from kiln_torch.overlaps import shared_places
from kiln_torch.replaced import replaced
from kiln_torch.runner import CapturedGraph, Eager, Run
from kiln_torch.settings import SECRET, Settings, latest
from kiln_torch.torch_key import remember

_LOG = logging.getLogger("kiln_torch")

# Operators of these come with torch. What others are made of is Python of the user's, which no key
# of torch's covers: a gradient, or an implementation that tracing looks into.
_NAMESPACES = frozenset(
    "aten prims prim _c10d_functional kiln quantized quantized_decomposed torchvision".split()
)

# Of the torch.compile at hand; None where torch loads an entry on its own.
_settings: ContextVar[Settings | None] = ContextVar("kiln_settings", default=None)
# Whether what the trace at hand makes of a graph is for some values of a Python float alone.
_took_float: ContextVar[Callable[[], bool]] = ContextVar("kiln_took_float", default=lambda: False)


@functools.wraps(init_backend_registration)
def _register_for_others() -> None:
    """torch's key of a graph has the passes that Inductor's code generators bring along, and imports
    all of those first: half a second for a program that none of them makes. Keys of Kiln's do without;
    whoever else asks gets them as ever. After that Kiln's keys of this process are others, so that a
    graph may be captured once more."""
    if _settings.get() is None:
        init_backend_registration()


codecache.init_backend_registration = _register_for_others


class StaleEntry(RuntimeError):
    """An entry of another Kiln or of other options; torch then compiles anew."""


@functools.cache
def _package_digest() -> str:
    """Of this package's sources: decompositions, passes and capture are all in there."""
    digest = hashlib.sha256()
    for path in sorted(Path(__file__).parent.glob("*.py")):
        content = path.read_bytes()
        digest.update(f"{path.name} {len(content)}\n".encode() + content)
    return digest.hexdigest()


def _stamp(settings: Settings) -> str:
    """What made a graph what it is, its user's model aside."""
    made_of = f"{_package_digest()} {settings.of_graph()!r}"
    return hashlib.sha256(made_of.encode()).hexdigest()


def _ambient() -> tuple[Any, ...]:
    """torch's settings that tracing follows and that torch's own key does not have."""
    cuda, cudnn = torch.backends.cuda, torch.backends.cudnn
    return (
        getattr(compiled_autograd, "in_compiled_autograd_region", True),
        (cuda.flash_sdp_enabled(), cuda.mem_efficient_sdp_enabled()),
        (cuda.math_sdp_enabled(), cuda.cudnn_sdp_enabled()),
        (cudnn.enabled, cudnn.deterministic, cudnn.benchmark, cudnn.allow_tf32),
        torch.backends.mkldnn.is_available() and torch.backends.mkldnn.enabled,
        torch.get_float32_matmul_precision(),
    )


def _ranges(inputs: Sequence[Any]) -> list[str]:
    """Of every symbol among the inputs' sizes: a program is compiled for them."""
    found = set()
    for value in tree_leaves(list(inputs)):
        sizes = [value] if isinstance(value, torch.SymInt) else getattr(value, "shape", ())
        for size in sizes:
            if isinstance(size, torch.SymInt):
                ranges = size.node.shape_env.var_to_range
                found.update(f"{s} {ranges.get(s)}" for s in size.node.expr.free_symbols)
    return sorted(found)


def is_own(folder: str) -> bool:
    """Whether only this user can have written there; a folder that is not there yet is made so."""
    try:
        found = os.stat(folder)
    except FileNotFoundError:
        return True
    return found.st_uid == os.getuid() and not found.st_mode & (stat.S_IWGRP | stat.S_IWOTH)


@functools.cache
def _trusts(folder: str) -> bool:
    if is_own(folder):
        return True
    _LOG.warning(
        "torch's cache folder %s is not this user's alone, so compiled graphs are neither kept nor "
        "looked for there; TORCHINDUCTOR_CACHE_DIR names another",
        folder,
    )
    return False


def _is_known(node: torch.fx.Node) -> bool:
    """Whether torch's key says all that a node of Dynamo's graph does."""
    if node.op == "get_attr":
        value: Any = node.graph.owning_module
        for part in str(node.target).split("."):
            value = getattr(value, part, None)
        return not isinstance(value, torch.Tensor)  # the key has its type, not its elements
    target = node.target
    if isinstance(target, torch._ops.OpOverload):
        return target.namespace in _NAMESPACES
    if isinstance(target, torch._ops.OpOverloadPacket):
        return target._qualified_op_name.partition("::")[0] in _NAMESPACES
    return True


def can_keep(module: torch.fx.GraphModule, inputs: Sequence[Any], settings: Settings) -> bool:
    """Whether torch's caches may keep what is compiled of Dynamo's graph `module`."""
    if settings.check or not _trusts(cache_dir()):
        return False
    if any(
        isinstance(value, torch.Tensor) and is_traceable_wrapper_subclass(value)
        for value in tree_leaves(list(inputs))
    ):
        return False
    parts = (part for part in module.modules() if isinstance(part, torch.fx.GraphModule))
    return all(_is_known(node) for part in parts for node in part.graph.nodes)


def _float_guards(module: torch.fx.GraphModule) -> Callable[[], bool]:
    """A function that says whether there is by now a guard on one of the Python floats of `module`. Dynamo
    hands a float that changes to AOTAutograd as a tensor; where it is needed as a number, the graph gets
    its value and the frame a guard. An entry has guards on inputs that are numbers, not on these, so a
    call with another float would find it, and run with the old one."""
    values = (node.meta.get("example_value") for node in module.graph.nodes)
    numbers = [v.node for v in values if isinstance(v, (torch.SymInt, torch.SymFloat, torch.SymBool))]
    floats = {
        symbol
        for number in numbers
        for symbol in number._expr.free_symbols  # `expr` has the value of one that is guarded
        if symbol_is_type(symbol, SymT.FLOAT)
    }
    if not floats:
        return lambda: False
    guards = numbers[0].shape_env.guards
    return lambda: any(floats & guard.expr.free_symbols for guard in guards)


def _metadata_of_entries() -> contextlib.AbstractContextManager[None]:
    """Leaves the metadata of an entry that torch loads where a trace leaves that of a graph. As `replaced`."""

    def make(original: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(original)
        def wrap_post_compile(self: Any, *args: Any, **kwargs: Any) -> Any:
            context = TracingContext.try_get()
            if context is not None and context.fw_metadata is None:
                context.fw_metadata = self.runtime_metadata
            return original(self, *args, **kwargs)

        return wrap_post_compile

    return replaced(GenericAOTAutogradResult, "wrap_post_compile", make)


@contextlib.contextmanager
def kept(
    module: torch.fx.GraphModule, inputs: Sequence[Any], settings: Settings
) -> Iterator[None]:
    """While AOTAutograd traces: its cache is used, with a key that has all that Kiln adds."""
    remember(cache_dir())
    added = (
        _stamp(settings),
        _ambient(),
        _ranges(inputs),
        shared_places(inputs),
        str(traced_device(module, inputs)),
    )
    tag = f"{torch.compiler.config.cache_key_tag} kiln {added!r}"
    token, floats_token = _settings.set(settings), _took_float.set(_float_guards(module))
    try:
        with (
            torch.compiler.config.patch(cache_key_tag=tag),
            # An entry is complete with its backward graph, and has its graphs in itself.
            torch._functorch.config.patch(
                bundled_autograd_cache=True, force_non_lazy_backward_lowering=True
            ),
            _metadata_of_entries(),
        ):
            yield
    finally:
        _took_float.reset(floats_token)
        _settings.reset(token)


def allow_second_runs() -> None:
    """Of the backward graph that is being lowered: that is so early that nobody knows whether it runs
    twice (retain_graph). torch forbids that where a compiler may write over what the forward pass
    saved; a program does not."""
    context = TracingContext.try_get()
    if context is not None and context.fw_metadata is not None:
        context.fw_metadata.bw_donated_idxs = []


def keeper(compile_graph: Callable[..., StoredGraph]) -> SerializableAOTDispatchCompiler:
    """What AOTAutograd takes for a compiler whose results it may keep."""
    return SerializableAOTDispatchCompiler(StoredGraph, compile_graph)


class _CallsOfGraph(TorchFunctionMode):
    """Every call of an operator is of the graph that `tracer` reads: torch would make those without a tensor, such
    as one of rand, there and then, or refuse them for their sizes."""

    def __init__(self, tracer: torch.fx.Tracer) -> None:
        super().__init__()
        self._tracer = tracer

    def __torch_function__(
        self, function: Any, types: Any, args: Any = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        kwargs = kwargs or {}
        if isinstance(function, torch._ops.OpOverload):
            return self._tracer.create_proxy("call_function", function, args, kwargs)
        return function(*args, **kwargs)


class _Reader(torch.fx.Tracer):
    """What reads a pickled module's code."""

    def trace(self, *args: Any, **kwargs: Any) -> torch.fx.Graph:
        with _CallsOfGraph(self):
            return super().trace(*args, **kwargs)


class _Unpickled(Eager):
    """A graph's pickled module, which is read where it is needed."""

    def __init__(self, content: bytes) -> None:
        self._boxed_call = True
        self.content = content

    @functools.cached_property
    def module(self) -> torch.fx.GraphModule:
        names, module = pickle.loads(self.content)
        nodes = list(module.graph.nodes)
        if len(nodes) == len(names):  # what is wrong with one is told by the name that was sent
            for node, name in zip(nodes, names, strict=True):
                node.name = name
        return module


def _pickled(module: torch.fx.GraphModule) -> bytes:
    plain = torch.fx.GraphModule(module, module.graph)
    plain.meta = {}
    plain._tracer_cls = _Reader
    return pickle.dumps(([node.name for node in module.graph.nodes], plain))


class StoredGraph(OutputCode):
    """A boxed function of one graph, which torch can pickle; unpickled it runs after post_compile."""

    # Each object's own, in a slot of the class: Python finds the function that runs the graph there
    # without a call in between, which would be a tenth of what ours costs of a small graph's.
    __slots__ = ("__call__",)

    def __init__(
        self,
        graph: CapturedGraph | None,
        eager: Eager,
        run: Run,
        settings: Settings,
        given: Mapping[str, Any],
    ) -> None:
        """`graph` is None where it cannot be sent, and then nothing is kept. `given` are the options of
        torch.compile."""
        super().__init__()
        self._boxed_call = True
        self._graph = graph
        self._eager = eager
        self.__call__ = run
        self._stamp = _stamp(settings)
        self._options = {name: value for name, value in given.items() if name not in SECRET}

    @property
    def direct(self) -> Any:
        return getattr(self.__call__, "direct", None)

    def __getstate__(self) -> dict[str, Any]:
        if self._graph is None:
            raise BypassAOTAutogradCache("the graph runs in eager mode")
        if _took_float.get()():
            raise BypassAOTAutogradCache("the graph is for some values of a Python float")
        eager = self._eager
        return {
            "graph": replace(self._graph, text=""),
            "text": zlib.compress(self._graph.text.encode(), 1),
            "module": eager.content if isinstance(eager, _Unpickled) else _pickled(eager.module),
            "stamp": self._stamp,
            "options": self._options,
        }

    def __setstate__(self, state: dict[str, Any]) -> None:
        OutputCode.__init__(self)
        self._boxed_call = True
        self._options = state["options"]
        self._stamp = state["stamp"]
        if self._stamp != _stamp(self._settings()):
            raise StaleEntry("compiled by another version of Kiln or with other options")
        self._graph = replace(state["graph"], text=zlib.decompress(state["text"]).decode())
        self._eager = _Unpickled(state["module"])

    def _settings(self) -> Settings:
        """Of the torch.compile that this is for, as far as that shows; else what it was made with."""
        settings = _settings.get()
        if settings is not None:
            return settings
        given = latest() if torch._dynamo.config.caching_precompile else None
        return Settings.read(self._options if given is None else given)

    def prepare_for_serialization(self) -> None:
        """Nothing: __getstate__ leaves out what belongs to this process."""

    def post_compile(self, example_inputs: Any, constants: Any, graph_kwargs: Any) -> None:
        """Gets the program; of a backward graph in its first call, which may never come."""
        name, settings = next_name(self._graph.kind), self._settings()

        def make() -> Run:
            return ready_to_run(self._graph, name, self._eager, settings)

        self.__call__ = Deferred(make) if self._graph.kind == "backward" else make()

    def set_triton_bundle(self, triton_bundle: Any) -> None:
        """Nothing: there is none."""
