"""Where a graph runs: on the CPU, or on one CUDA device beside tensors that lie on the CPU.

torch lets a tensor of no dimensions on the CPU take part in a GPU's work, and indices of any; other tensors are
copied in the graph. A graph for a GPU has all of them on the GPU: those that come in are copied there before
the run, numbers by value, as eager hands them to its kernels; constants and what follows from them are computed
there. What would have to come back to the CPU, or is work of the CPU's own, is refused: mark_cpu_work says what to
leave to torch, for the rest to be a graph that is not.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch
from torch.utils._pytree import tree_leaves

from kiln_torch.sizes import CaptureError
from kiln_torch.updates import updates

CPU = torch.device("cpu")
# Operators that have no kernel of their own, or kernels for every device that give the same.
_ANYWHERE = ("aten", "prims")
_CPU_WORK = "kiln_cpu_work"  # in the meta of a node


def _tensors(node: torch.fx.Node) -> Iterator[torch.Tensor]:
    value = node.meta.get("val")
    if node.op == "get_attr" and value is None:
        value = node.graph.owning_module
        for part in str(node.target).split("."):
            value = getattr(value, part, None)
    return (leaf for leaf in tree_leaves(value) if isinstance(leaf, torch.Tensor))


def _is_on(node: Any, kind: str) -> bool:
    return isinstance(node, torch.fx.Node) and any(t.device.type == kind for t in _tensors(node))


def traced_device(module: torch.fx.GraphModule, inputs: Sequence[Any] = ()) -> torch.device:
    """The first CUDA device among the inputs and values of a graph that is not captured yet, as
    Dynamo or AOTAutograd made it; else the CPU."""
    values = [
        node.meta.get("val", node.meta.get("example_value")) for node in module.graph.nodes
    ]
    tensors = (t for t in tree_leaves([*inputs, *values]) if isinstance(t, torch.Tensor))
    return next((t.device for t in tensors if t.device.type == "cuda"), CPU)


def graph_device(module: torch.fx.GraphModule) -> torch.device:
    """The device that all of the graph can run on.

    Raises CaptureError, with the node at fault, for another device than the CPU and CUDA's, for
    several GPUs, and for a mixture that Kiln does not run as eager does.
    """
    places: dict[torch.device, torch.fx.Node] = {}
    for node in module.graph.nodes:
        for tensor in _tensors(node):
            places.setdefault(tensor.device, node)
    for device, node in places.items():
        if device.type not in ("cpu", "cuda"):
            raise CaptureError(f"{node.name} is on {device}: Kiln compiles for the CPU and CUDA")
    gpus = [device for device in places if device.type == "cuda"]
    if not gpus:
        return CPU
    if len(gpus) > 1:
        a, b = gpus[:2]
        raise CaptureError(
            f"{places[a].name} is on {a} and {places[b].name} on {b}: a graph runs on one GPU"
        )
    if CPU in places:
        _check_cpu_work(module, gpus[0])
    return gpus[0]


def mark_cpu_work(module: torch.fx.GraphModule) -> None:
    """Marks each call of a GPU's graph that gives a tensor on the CPU, for is_cpu_work, where graph_device
    refuses the graph."""
    try:
        graph_device(module)
    except CaptureError:
        for node in module.graph.nodes:
            if node.op == "call_function" and _is_on(node, "cpu"):
                node.meta[_CPU_WORK] = True


def is_cpu_work(node: torch.fx.Node) -> bool:
    return _CPU_WORK in node.meta


def _check_cpu_work(module: torch.fx.GraphModule, device: torch.device) -> None:
    """Raises CaptureError where what lies on the CPU cannot be on `device` instead."""
    for node in module.graph.nodes:
        if node.op == "call_function" and _is_on(node, "cpu"):
            _check_call(node, device)
    for target, _ in updates(module):
        if _is_on(target, "cpu"):
            raise CaptureError(
                f"the graph updates input {target.name} on the CPU from work on {device}"
            )
    passed = outputs_passed_on(module)
    for i, output in enumerate(_outputs(module)):
        if _is_on(output, "cpu") and i not in passed:
            raise CaptureError(f"output {output.name} is on the CPU, others are on {device}")


def _check_call(node: torch.fx.Node, device: torch.device) -> None:
    if any(_is_on(source, "cuda") for source in node.all_input_nodes):
        raise CaptureError(
            f"node {node.name} makes a tensor on the CPU from one on {device}: that waits for the GPU"
        )
    if node.kwargs.get("pin_memory"):
        raise CaptureError(f"node {node.name} makes pinned memory, others are on {device}")
    tags = getattr(node.target, "tags", ())
    if torch.Tag.nondeterministic_seeded in tags:
        raise CaptureError(
            f"node {node.name} draws random numbers on the CPU, others are on {device}"
        )
    if isinstance(node.target, torch._ops.OpOverload) and node.target.namespace not in _ANYWHERE:
        raise CaptureError(
            f"node {node.name} calls {node.target} on the CPU, others are on {device}"
        )


def _placeholders(module: torch.fx.GraphModule) -> list[torch.fx.Node]:
    return [node for node in module.graph.nodes if node.op == "placeholder"]


def _outputs(module: torch.fx.GraphModule) -> Sequence[Any]:
    return next(node for node in module.graph.nodes if node.op == "output").args[0]


def cpu_inputs(module: torch.fx.GraphModule) -> tuple[int, ...]:
    """Positions of the inputs of a GPU's graph that are tensors on the CPU."""
    return tuple(i for i, node in enumerate(_placeholders(module)) if _is_on(node, "cpu"))


def has_input_on_gpu(module: torch.fx.GraphModule) -> bool:
    return any(_is_on(node, "cuda") for node in _placeholders(module))


def is_replayable(module: torch.fx.GraphModule) -> bool:
    """Whether nothing but tensors' contents can differ from call to call of a GPU's graph."""
    return has_input_on_gpu(module) and all(
        isinstance(node.meta.get("val"), torch.Tensor) and not _has_symbols(node)
        for node in _placeholders(module)
    )


def _has_symbols(node: torch.fx.Node) -> bool:
    value = node.meta["val"]
    numbers = (*value.shape, *value.stride())
    return any(isinstance(number, torch.SymInt) for number in numbers)


def outputs_passed_on(module: torch.fx.GraphModule) -> dict[int, int]:
    """Input by output, positions: those that a graph hands on as they came, on the CPU."""
    positions = {node: i for i, node in enumerate(_placeholders(module))}

    def is_number(node: Any) -> bool:
        return isinstance(node, torch.fx.Node) and (
            _is_on(node, "cpu") or isinstance(node.meta.get("val"), (float, torch.SymFloat))
        )

    return {
        i: positions[output]
        for i, output in enumerate(_outputs(module))
        if is_number(output) and output in positions
    }


def on_device(value: torch.Tensor, device: torch.device) -> torch.Tensor:
    """A copy of a tensor on the CPU; of one without dimensions by value, which waits for nothing."""
    if value.dim() > 0:
        return value.to(device)
    return torch.full((), value.item(), dtype=value.dtype, device=device)


def random_state(device: torch.device) -> torch.Tensor:
    """Of torch's default generators of the CPU and, for a GPU, of `device`: bytes, one's after the
    other's."""
    state = torch.get_rng_state()
    return state if device == CPU else torch.cat([state, torch.cuda.get_rng_state(device)])


def set_random_state(state: torch.Tensor, device: torch.device) -> None:
    """To what random_state gave for `device`."""
    count = torch.get_rng_state().numel()
    torch.set_rng_state(state[:count])
    if device != CPU:
        torch.cuda.set_rng_state(state[count:], device)


def with_inputs_copied(
    run: Callable[[list[Any]], Any],
    positions: Sequence[int],
    passed: dict[int, int],
    device: torch.device,
) -> Callable[[list[Any]], Any]:
    """`run` for a graph on `device` whose inputs at `positions` come on the CPU; see
    outputs_passed_on."""

    def run_copied(inputs: list[Any]) -> Any:
        given = list(inputs)
        for i in positions:
            given[i] = on_device(inputs[i], device)
        outputs = list(run(given))
        for output, i in passed.items():
            outputs[output] = inputs[i]
        return outputs

    return run_copied


def with_current(
    run: Callable[[list[Any]], Any], device: torch.device
) -> Callable[[list[Any]], Any]:
    """`run` with `device` as torch's current one: operators that make tensors make them there, and
    so does a program that no tensor comes into."""

    def run_there(inputs: list[Any]) -> Any:
        before = torch.cuda._exchange_device(device.index)
        try:
            return run(inputs)
        finally:
            torch.cuda._maybe_exchange_device(before)

    return run_there
