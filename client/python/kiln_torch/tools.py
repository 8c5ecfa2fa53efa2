"""save_graph and explain: what torch.compile captured, without running it compiled."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import torch
from functorch.compile import make_boxed_func

from kiln_torch import _kiln
from kiln_torch.backend import aot_backend, has_eager_random
from kiln_torch.graphs import capture_graph, prepare_memory
from kiln_torch.names import known_names
from kiln_torch.program import make_client
from kiln_torch.runner import CapturedGraph
from kiln_torch.settings import Settings


def _capture_all(
    fn: Callable[..., Any], args: Sequence[Any], settings: Settings, train: bool
) -> list[CapturedGraph]:
    """Every graph that one call of `fn` makes, as torch.compile with `settings` sends it."""
    graphs: list[CapturedGraph] = []
    eager_random = has_eager_random(settings)

    def record(module: torch.fx.GraphModule, _inputs: Sequence[Any], *, kind: str) -> Any:
        graphs.append(capture_graph(module, kind, f"{kind}_{len(graphs)}", eager_random))
        return make_boxed_func(module.forward)

    torch._dynamo.reset()
    known = known_names(getattr(fn, "_orig_mod", fn), args)
    compiled = torch.compile(fn, backend=aot_backend(record, eager_random, known_names=known))
    if not train:
        with torch.no_grad():
            compiled(*args)
        return graphs
    outputs = compiled(*args)
    flat = torch.utils._pytree.tree_leaves(outputs)
    total = sum(
        leaf.float().sum()
        for leaf in flat
        if isinstance(leaf, torch.Tensor) and leaf.requires_grad
    )
    if isinstance(total, torch.Tensor):
        total.backward()
    return graphs


def save_graph(
    fn_or_module: Callable[..., Any],
    example_args: Sequence[Any],
    path: str | Path,
    train: bool = False,
) -> list[Path]:
    """Writes every graph that one call captures as .kgraph files and returns their paths.

    One graph goes to `path`; several go beside it as NAME.0.kgraph, NAME.1.kgraph, ... in the order
    of capture; `kiln compile` asks for them as this process would. With `train`, gradients are
    recorded and the backward graphs written as well. Weights are inputs of the graph and are not
    saved: each has its qualified names in the module (`kiln run --weights` takes the file that
    `safetensors` writes of them). Raises CaptureError for a graph that cannot be sent.
    """
    path, settings = Path(path), Settings.read(None)
    graphs = _capture_all(fn_or_module, example_args, settings, train)
    paths = [path] if len(graphs) == 1 else [
        path.with_name(f"{path.stem}.{i}{path.suffix or '.kgraph'}") for i in range(len(graphs))
    ]
    for target, graph in zip(paths, graphs, strict=True):
        asked = _asked(["torch"], prepare_memory(graph, settings))
        _write_whole(target, _kiln.graph_to_bytes(graph.text) + asked)
    return paths


def _write_whole(path: Path, data: bytes) -> None:
    """Beside the file first, which has all of it or what it had before."""
    path = path.resolve()
    if path.exists() and not path.is_file():  # a pipe or a device
        path.write_bytes(data)
        return
    draft = path.with_name(f"{path.name}.part-{os.getpid()}")
    try:
        draft.write_bytes(data)
        draft.replace(path)
    finally:
        draft.unlink(missing_ok=True)


def _varint(number: int) -> bytes:
    """As protobuf writes a number that is not negative."""
    out = bytearray()
    while number > 127:
        out.append(number & 127 | 128)
        number >>= 7
    return bytes([*out, number])


def _asked(libraries: Sequence[str], prepare_bytes: int) -> bytes:
    """kiln.v1.SavedGraph with what torch.compile asks for a graph with, to follow the graph's bytes."""
    texts = [library.encode() for library in libraries]
    message = b"".join(b"\x0a" + _varint(len(text)) + text for text in texts)
    if prepare_bytes > 0:
        message += b"\x10" + _varint(prepare_bytes)
    return _varint(1000 << 3 | 2) + _varint(len(message)) + message


def explain(fn_or_module: Callable[..., Any], *args: Any) -> str:
    """What the server makes of one call: stages, kernels, library steps, fusion decisions."""
    settings = Settings.read(None)
    lines = []
    for graph in _capture_all(fn_or_module, args, settings, train=False):
        client = make_client(settings, graph.convention.device, debug=True)
        artifact = json.loads(client.compile(graph.text).describe_json())
        lines += [f"{graph.kind} graph", *_describe(artifact)]
    return "\n".join(lines) if lines else "nothing was captured"


def _describe(artifact: dict[str, Any]) -> Iterator[str]:
    header, debug = artifact.get("header", {}), artifact.get("debug", {})
    for stage in header.get("stages", []):
        yield f"  stage {stage['stage']}: {int(stage.get('duration_ns', 0)) / 1e6:.2f} ms"
    ops = {kernel["symbol"]: kernel.get("ops", []) for kernel in debug.get("kernels", [])}
    for kernel in header.get("kernels", []):
        cached = "cached" if kernel.get("cached") else f"{int(kernel['compile_ns']) / 1e6:.1f} ms"
        made_of = ", ".join(ops.get(kernel["symbol"], []))
        yield f"  kernel {kernel['symbol']}: {cached}: {made_of}"
    for step in artifact.get("program", {}).get("steps", []):
        if "library" in step:
            yield f"  library step {step['library']['op']} for {step['library'].get('node', '')}"
    for decision in debug.get("decisions", []):
        verb = "fused" if decision.get("fused") else "not fused"
        yield (
            f"  {verb}: {decision.get('producer', '')} -> {decision.get('consumer', '')}: "
            f"{decision.get('reason', '')}"
        )
