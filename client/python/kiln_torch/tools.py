"""save_graph and explain: what torch.compile captured, without running it compiled."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import torch
from functorch.compile import make_boxed_func

from kiln_torch import _kiln
from kiln_torch.backend import aot_backend
from kiln_torch.capture import capture
from kiln_torch.devices import graph_device
from kiln_torch.graphs import static_inputs
from kiln_torch.program import make_client
from kiln_torch.settings import Settings


def _capture_all(
    fn: Callable[..., Any], args: Sequence[Any], train: bool
) -> list[tuple[str, str, torch.device]]:
    """(kind, graph as protobuf JSON, its device) of every graph that one call of `fn` makes."""
    graphs: list[tuple[str, str, torch.device]] = []

    def record(module: torch.fx.GraphModule, _inputs: Sequence[Any], *, kind: str) -> Any:
        name = f"{kind}_{len(graphs)}"
        graph = capture(module, static_inputs(kind).__contains__, name)
        graphs.append((kind, graph, graph_device(module)))
        return make_boxed_func(module.forward)

    torch._dynamo.reset()
    compiled = torch.compile(fn, backend=aot_backend(record))
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
    of capture. With `train`, gradients are recorded and the backward graphs written as well. Weights
    are inputs of the graph and are not saved. Raises CaptureError for a graph that cannot be sent.
    """
    path = Path(path)
    graphs = _capture_all(fn_or_module, example_args, train)
    paths = [path] if len(graphs) == 1 else [
        path.with_name(f"{path.stem}.{i}{path.suffix or '.kgraph'}") for i in range(len(graphs))
    ]
    for target, (_, graph, _) in zip(paths, graphs, strict=True):
        target.write_bytes(_kiln.graph_to_bytes(graph))
    return paths


def explain(fn_or_module: Callable[..., Any], *args: Any) -> str:
    """What the server makes of one call: stages, kernels, library steps, fusion decisions."""
    settings = Settings.read(None)
    lines = []
    for kind, graph, device in _capture_all(fn_or_module, args, train=False):
        client = make_client(settings, device, debug=True)
        artifact = json.loads(client.compile(graph).describe_json())
        lines += [f"{kind} graph", *_describe(artifact)]
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
