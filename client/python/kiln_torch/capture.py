"""From an FX graph, as AOTAutograd hands it to a compiler, to kiln.v1.Graph as protobuf JSON.

The graph holds ATen overloads only; sizes are numbers or sympy expressions over symbols. Everything
that cannot be sent raises CaptureError with a sentence that says what and where.
"""

from __future__ import annotations

import base64
import json
import math
import operator
import re
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch._dynamo import compiled_autograd
from torch._dynamo.utils import detect_fake_mode
from torch._higher_order_ops.effects import with_effects
from torch._prims.rng_prims import run_and_save_rng_state, run_with_rng_state
from torch._subclasses.fake_tensor import unset_fake_temporarily

from kiln_torch.devices import graph_device
from kiln_torch.floats import SCALAR_TYPE, Floats
from kiln_torch.handed_on import handed_on
from kiln_torch.names import MODULE_NAMES
from kiln_torch.seeds import SEED, SEEDED
from kiln_torch.sizes import CaptureError, Sizes, specialize
from kiln_torch.storages import from_own_beginning
from kiln_torch.updates import COPY, is_writable, updates

FORMAT_VERSION = 1
MAX_CONSTANT_BYTES = 64 * 1024

DTYPE_NAMES: dict[torch.dtype, str] = {
    torch.bool: "DTYPE_BOOL",
    torch.uint8: "DTYPE_UINT8",
    torch.int8: "DTYPE_INT8",
    torch.int16: "DTYPE_INT16",
    torch.int32: "DTYPE_INT32",
    torch.int64: "DTYPE_INT64",
    torch.float16: "DTYPE_FLOAT16",
    torch.bfloat16: "DTYPE_BFLOAT16",
    torch.float32: "DTYPE_FLOAT32",
    torch.float64: "DTYPE_FLOAT64",
    torch.complex64: "DTYPE_COMPLEX64",
    torch.complex128: "DTYPE_COMPLEX128",
    torch.complex32: "DTYPE_COMPLEX32",
    torch.uint16: "DTYPE_UINT16",
    torch.uint32: "DTYPE_UINT32",
    torch.uint64: "DTYPE_UINT64",
    torch.float8_e4m3fn: "DTYPE_FLOAT8_E4M3FN",
    torch.float8_e4m3fnuz: "DTYPE_FLOAT8_E4M3FNUZ",
    torch.float8_e5m2: "DTYPE_FLOAT8_E5M2",
    torch.float8_e5m2fnuz: "DTYPE_FLOAT8_E5M2FNUZ",
    torch.float8_e8m0fnu: "DTYPE_FLOAT8_E8M0FNU",
}


def _effect_tokens(graph: torch.fx.Graph) -> frozenset[torch.fx.Node]:
    """Values that only order operators with effects: a graph's steps keep their order anyway."""
    tokens: set[torch.fx.Node] = set()
    for node in graph.nodes:
        if node.target is with_effects:
            tokens.add(node.args[0])
            tokens.update(user for user in node.users if _is_item(user, 0))
    return frozenset(tokens)


def has_effects(module: torch.fx.GraphModule) -> bool:
    return bool(_effect_tokens(module.graph))


def _left_out(graph: torch.fx.Graph) -> frozenset[torch.fx.Node]:
    return _effect_tokens(graph) | handed_on(graph)


def left_out_inputs(module: torch.fx.GraphModule) -> tuple[int, ...]:
    """Positions of the inputs that are not in the graph: effect tokens, which are None in a call, and
    what the graph only hands on."""
    left_out = _left_out(module.graph)
    placeholders = [node for node in module.graph.nodes if node.op == "placeholder"]
    return tuple(i for i, node in enumerate(placeholders) if node in left_out)


def lazy_inputs(module: torch.fx.GraphModule, kind: str) -> list[int]:
    """Numbers of the graph's inputs that may be lazy views (conjugated or negated) in a call.

    Dynamo guards that bit of what a user gives, and what a program gives is plain. Nobody guards the
    gradients that autograd hands to a backward graph, nor anything in compiled autograd.
    """
    unguarded = getattr(compiled_autograd, "in_compiled_autograd_region", True)
    left_out = _left_out(module.graph)
    inputs = [n for n in module.graph.nodes if n.op == "placeholder" and n not in left_out]

    def may_be_lazy(node: torch.fx.Node) -> bool:
        value = _value_of(node)
        if not isinstance(value, torch.Tensor):
            return False
        is_gradient = kind == "backward" and "tangents" in str(node.target)
        return unguarded or is_gradient or value.is_neg() or value.is_conj()

    return [i for i, node in enumerate(inputs) if may_be_lazy(node)]


# Activation checkpointing runs a random operator again from the state that its first run had: (op,
# arguments...) -> (state, results), and (state, op, arguments...) -> results.
RANDOM_AGAIN = {run_and_save_rng_state: 0, run_with_rng_state: 1}


def _random_again_value(node: torch.fx.Node) -> Any:
    """What such a node gives, as fake tensors: the partitioner that writes it leaves that out."""
    position = RANDOM_AGAIN[node.target]
    op = node.args[position]
    fakes = torch.fx.map_arg(
        (node.args[position + 1 :], node.kwargs), lambda argument: argument.meta["val"]
    )
    values = [arg.meta["val"] for arg in node.all_input_nodes] + [
        user.meta.get("val") for user in node.users
    ]
    with detect_fake_mode(values):
        result = op(*fakes[0], **fakes[1])
        return result if position else (torch.get_rng_state(), result)


def number_inputs(module: torch.fx.GraphModule) -> tuple[int, ...]:
    """Positions of the inputs that are floats: scalar tensors in the graph."""
    placeholders = [node for node in module.graph.nodes if node.op == "placeholder"]
    return tuple(
        i for i, node in enumerate(placeholders) if isinstance(_value_of(node), _FLOATS)
    )


def number_outputs(module: torch.fx.GraphModule) -> dict[int, type]:
    """float or bool by position: outputs that are scalar tensors or sizes in the graph."""
    outputs = next(node for node in module.graph.nodes if node.op == "output").args[0]
    found = {}
    for i, output in enumerate(outputs):
        value = _value_of(output) if isinstance(output, torch.fx.Node) else output
        if isinstance(value, (*_FLOATS, *_BOOLS)):
            found[i] = float if isinstance(value, _FLOATS) else bool
    return found


_FLOATS = (torch.SymFloat, float)
_BOOLS = (torch.SymBool, bool)
_NUMBERS = (torch.SymInt, int, *_FLOATS, *_BOOLS)


def _value_of(node: torch.fx.Node) -> Any:
    return node.meta.get("val")


def _is_item(node: torch.fx.Node, index: int) -> bool:
    return node.target is operator.getitem and node.args[1] == index


def _float(value: float) -> float | str:
    if math.isnan(value):
        return "NaN"
    if math.isinf(value):
        return "Infinity" if value > 0 else "-Infinity"
    return value


def source_location(node: torch.fx.Node) -> str:
    """ "model.py:15 in forward": where in the user's source, without folders."""
    trace = node.meta.get("stack_trace") or ""
    frames = re.findall(r'File "(?:[^"]*[/\\])?([^"/\\]+)", line (\d+), in (\S+)', trace)
    return "{}:{} in {}".format(*frames[-1]) if frames else ""


class _Capture:
    def __init__(
        self,
        module: torch.fx.GraphModule,
        is_parameter: Callable[[int], bool],
        eager_random: bool,
    ) -> None:
        self._module = module
        self._is_parameter = is_parameter
        self._device = graph_device(module)
        self._eager_random = eager_random or self._device.type == "cuda"
        self._seed_value: int | None = None
        self._sizes = Sizes()
        self._floats = Floats(self._sizes, self._add_float)
        self._left_out = _left_out(module.graph)
        self._values: dict[torch.fx.Node, int | list[Any]] = {}
        self._next_value = 0
        self._inputs: list[dict[str, Any]] = []
        self._constants: list[dict[str, Any]] = []
        self._nodes: list[dict[str, Any]] = []
        self._outputs: list[dict[str, Any]] = []
        self._mutations: list[dict[str, Any]] = []

    def graph(self, name: str) -> dict[str, Any]:
        nodes = list(self._module.graph.nodes)
        # The numbering wants inputs, then constants, then results.
        placeholders = [node for node in nodes if node.op == "placeholder"]
        for position, node in enumerate(placeholders):
            if node not in self._left_out:
                self._add_input(node, self._is_parameter(position))
        for node in nodes:
            if node.op == "get_attr":
                self._add_constant(node)
        for node in nodes:
            if node.op == "call_function":
                self._add_call(node)
            elif node.op == "output":
                self._add_outputs(node.args[0])
            elif node.op not in ("placeholder", "get_attr"):
                raise CaptureError(f"node {node.name} is a {node.op}, which cannot be sent")
        self._add_updates()
        # Elsewhere nothing is added up in another order from one run to the next.
        deterministic = self._device.type == "cuda" and torch.are_deterministic_algorithms_enabled()
        return {
            "format_version": FORMAT_VERSION,
            "name": name,
            "symbols": self._sizes.symbols,
            "inputs": self._inputs,
            "constants": self._constants,
            "nodes": self._nodes,
            "outputs": self._outputs,
            "mutations": self._mutations,
            **({"deterministic": True} if deterministic else {}),
        }

    def _new_value(self) -> int:
        self._next_value += 1
        return self._next_value - 1

    def _tensor_type(self, value: torch.Tensor, where: str) -> dict[str, Any]:
        if value.dtype not in DTYPE_NAMES:
            raise CaptureError(f"{where} has dtype {value.dtype}")
        if value.layout != torch.strided or value.is_quantized:
            raise CaptureError(f"{where} is not a plain strided tensor")
        sym_int = self._sizes.sym_int
        # A graph's tensors come as pointers to their first element, so the offset is none of ours.
        return {
            "dtype": DTYPE_NAMES[value.dtype],
            "sizes": [sym_int(size) for size in value.shape],
            "strides": [sym_int(stride) for stride in value.stride()],
        }

    def _value_type(self, value: Any, where: str) -> dict[str, Any]:
        if isinstance(value, torch.Tensor):
            return {"tensor": self._tensor_type(value, where)}
        if isinstance(value, (torch.SymInt, torch.SymBool, int)) and not isinstance(value, bool):
            return {"sym_int": self._sizes.sym_int(value)}
        raise CaptureError(f"{where} is a {type(value).__name__}, which cannot be sent")

    def _add_float(self, op: str, args: list[dict[str, Any]]) -> int:
        name = f"float_{len(self._nodes)}"
        kwargs = []
        if op == "aten.full.default":
            kwargs.append({"name": "dtype", "value": {"dtype": "DTYPE_FLOAT64"}})
        message = {"name": name, "op": op, "args": args, "kwargs": kwargs, "results": [SCALAR_TYPE]}
        self._nodes.append(message)
        return self._new_value()

    def _add_input(self, node: torch.fx.Node, is_parameter: bool) -> None:
        value = _value_of(node)
        for size in value.shape if isinstance(value, torch.Tensor) else (value,):
            self._sizes.give(size)
        if isinstance(value, _FLOATS):
            if isinstance(value, torch.SymFloat):
                self._floats.define(value, self._next_value)
            kind = SCALAR_TYPE
        else:
            kind = self._value_type(value, f"input {node.name}")
        if "sym_int" in kind:
            role = "ROLE_SYMBOL"
        else:
            role = "ROLE_PARAMETER" if is_parameter else "ROLE_USER"
        names = list(node.meta.get(MODULE_NAMES, ()))
        self._inputs.append(
            {"name": node.name, "role": role, "type": kind, "module_names": names}
        )
        self._values[node] = self._new_value()

    def _add_constant(self, node: torch.fx.Node) -> None:
        value: Any = self._module
        for part in str(node.target).split("."):
            value = getattr(value, part)
        if not isinstance(value, torch.Tensor):
            raise CaptureError(
                f"constant {node.target} is a {type(value).__name__}, which cannot be sent"
            )
        if value.numel() * value.element_size() > MAX_CONSTANT_BYTES:
            raise CaptureError(f"constant {node.target} is larger than {MAX_CONSTANT_BYTES} bytes")
        # The constant is real, though the graph is captured with fake tensors.
        with unset_fake_temporarily():
            value = value.detach().contiguous().cpu()
            data = bytes(value.reshape(-1).view(torch.uint8).numpy()) if value.numel() else b""
        kind = self._tensor_type(value, f"constant {node.target}")
        encoded = base64.b64encode(data).decode()
        self._constants.append({"name": str(node.target), "type": kind, "data": encoded})
        self._values[node] = self._new_value()

    def _add_call(self, node: torch.fx.Node) -> None:
        value = node.meta.get("val")
        if node in self._left_out:
            return
        target, args = node.target, node.args
        if target is COPY:
            self._values[node] = self._values[args[1]]
            return
        if target is with_effects:
            # (token, operator, arguments...) -> (token, results...)
            target, args = args[1], args[2:]
            value = [item for item in value[1:] if item is not None]
        if target in RANDOM_AGAIN:
            value = _random_again_value(node)
        if node.target is operator.getitem:
            source, index = node.args
            results = self._values.get(source)
            if isinstance(results, list):
                self._values[node] = results[index - (source.target is with_effects)]
                return
        if isinstance(value, _NUMBERS):
            # A number that follows from sizes: those who use it write its expression. One that a
            # tensor holds, as a Python float does that differs from call to call, is that tensor.
            if target is torch.ops.aten._local_scalar_dense.default:
                self._define_item(value, args[0])
            return
        if not isinstance(target, torch._ops.OpOverload) and target not in RANDOM_AGAIN:
            raise CaptureError(f"node {node.name} calls {target}, which is no ATen operator")
        if value is None and target not in RANDOM_AGAIN and not target._schema.returns:
            value = ()  # a check, which only raises
        # First, for arguments may be nodes of their own, which take numbers before the results do.
        call = self._call(node, target, from_own_beginning(node, target, args))
        results: list[dict[str, Any]] = []
        self._values[node] = self._add_results(value, f"result of {node.name}", results)
        self._nodes.append(
            {
                "name": node.name,
                "op": f"higher_order.{target.name()}" if target in RANDOM_AGAIN else str(target),
                "location": source_location(node),
                **call,
                "results": results,
            }
        )

    def _add_results(
        self, value: Any, where: str, results: list[dict[str, Any]]
    ) -> int | list[Any]:
        """Numbers what a call gives, nested as `value` is, and appends the types to `results`."""
        if isinstance(value, (tuple, list)):
            return [self._add_results(item, where, results) for item in value]
        # A result that this call does not make takes a number, and nobody uses it.
        results.append({} if value is None else self._value_type(value, where))
        return self._new_value()

    def _call(self, node: torch.fx.Node, target: Any, args: Sequence[Any]) -> dict[str, Any]:
        if target not in RANDOM_AGAIN:
            call = self._arguments(node, target, args)
            if target in SEEDED and not self._eager_random:
                call["kwargs"].append({"name": SEED, "value": {"value": self._seed()}})
            return call
        position = RANDOM_AGAIN[target]
        inner = self._arguments(node, args[position], args[position + 1 :])
        first = [self._argument(arg, node) for arg in args[:position]]
        return {**inner, "args": [*first, {"string": str(args[position])}, *inner["args"]]}

    def _seed(self) -> int:
        """One number that torch's default generator draws in each run, for all of the graph."""
        if self._seed_value is not None:
            return self._seed_value
        call = {
            "args": [{"int": 0}, {"int": 2**63 - 1}, {"list": {"items": [{"int": 1}]}}],
            "kwargs": [{"name": "dtype", "value": {"dtype": "DTYPE_INT64"}}],
            "results": [{"tensor": {"dtype": "DTYPE_INT64", "sizes": [{"value": 1}], "strides": [{"value": 1}]}}],
        }
        self._nodes.append({"name": "random_seed", "op": "aten.randint.low", **call})
        self._seed_value = self._new_value()
        return self._seed_value

    def _define_item(self, value: Any, source: torch.fx.Node) -> None:
        number = self._values.get(source)
        if isinstance(value, torch.SymFloat) and isinstance(number, int):
            if _value_of(source).dtype == torch.float64 and _value_of(source).dim() == 0:
                self._floats.define(value, number)

    def _arguments(
        self, node: torch.fx.Node, target: torch._ops.OpOverload, given: Sequence[Any]
    ) -> dict[str, Any]:
        """Positional arguments in schema order, and the keyword-only ones by name."""
        args = list(given)
        kwargs = dict(node.kwargs)
        keyword_only = {}
        kinds = {parameter.name: str(parameter.real_type) for parameter in target._schema.arguments}
        names = [p.name for p in target._schema.arguments if not p.kwarg_only]
        for position, parameter in enumerate(target._schema.arguments):
            if parameter.kwarg_only:
                if parameter.name in kwargs:
                    keyword_only[parameter.name] = kwargs[parameter.name]
            elif position >= len(args):
                rest = target._schema.arguments[position:]
                if not any(p.name in kwargs for p in rest if not p.kwarg_only):
                    continue
                default = parameter.default_value if parameter.has_default_value() else None
                args.append(kwargs.get(parameter.name, default))
        return {
            "args": [
                self._argument(arg, node, kinds[name])
                for name, arg in zip(names, args, strict=False)
            ],
            "kwargs": [
                {"name": name, "value": self._argument(arg, node, kinds[name])}
                for name, arg in keyword_only.items()
            ],
        }

    def _argument(self, arg: Any, node: torch.fx.Node, kind: str = "Tensor") -> dict[str, Any]:
        """`kind`: the parameter's type, as the operator's schema has it."""
        if isinstance(arg, torch.fx.Node):
            value = _value_of(arg)
            if arg in self._values and isinstance(value, float):
                return {"value": self._values[arg]}
            if isinstance(value, _NUMBERS):
                return self._number(value, kind)
            number = self._values.get(arg)
            if not isinstance(number, int):
                raise CaptureError(f"node {node.name} takes {arg.name}, which cannot be sent")
            return {"value": number}
        if arg is None:
            return {"none": {}}
        if isinstance(arg, bool):
            return {"bool": arg}
        if isinstance(arg, int):
            return {"int": arg}
        if isinstance(arg, float):
            return {"float": _float(arg)}
        if isinstance(arg, complex):
            return {"complex": {"real": _float(arg.real), "imag": _float(arg.imag)}}
        if isinstance(arg, (torch.SymInt, torch.SymFloat, torch.SymBool)):
            return self._number(arg, kind)
        if isinstance(arg, str):
            return {"string": arg}
        if isinstance(arg, torch.dtype) and arg in DTYPE_NAMES:
            return {"dtype": DTYPE_NAMES[arg]}
        if isinstance(arg, torch.device):
            # Without the index: every rank has the same graph. What torch makes on the CPU for a
            # GPU's graph is made there.
            return {"string": "cuda" if self._device.type == "cuda" else arg.type}
        if isinstance(arg, (torch.layout, torch.memory_format)):
            return {"string": str(arg)}
        if isinstance(arg, (tuple, list)):
            return {"list": {"items": [self._argument(item, node, kind) for item in arg]}}
        raise CaptureError(
            f"node {node.name} takes {arg}, a {type(arg).__name__}, which cannot be sent"
        )

    def _number(self, value: Any, kind: str) -> dict[str, Any]:
        """A number that follows from sizes, as a parameter of type `kind` takes it."""
        if isinstance(value, torch.SymInt):
            return {"sym_int": self._sizes.sym_int(value)}
        takes_tensors = "Tensor" in kind or "number" in kind
        if isinstance(value, torch.SymFloat):
            if takes_tensors:
                return self._floats.argument(value)
            return {"float": _float(float(specialize(value.node.expr, value.node.shape_env)))}
        if isinstance(value, torch.SymBool):
            if takes_tensors:
                return {"sym_int": self._sizes.sym_int(value)}
            return {"bool": bool(specialize(value.node.expr, value.node.shape_env))}
        if isinstance(value, bool):
            return {"bool": value}
        return {"float": _float(value)} if isinstance(value, float) else {"int": value}

    def _output_number(self, value: Any) -> dict[str, Any]:
        if isinstance(value, torch.SymFloat):
            return self._floats.output(value)
        if isinstance(value, float):
            return {"value": self._floats.constant(value)}
        return {"sym_int": self._sizes.sym_int(value)}

    def _add_outputs(self, outputs: Sequence[Any]) -> None:
        for output in outputs:
            if output is None or output in self._left_out:
                self._outputs.append({"none": {}})
            elif isinstance(output, _NUMBERS):
                self._outputs.append(self._output_number(output))
            elif isinstance(_value_of(output), _FLOATS) and output in self._values:
                self._outputs.append({"value": self._values[output]})
            elif isinstance(_value_of(output), _NUMBERS):
                self._outputs.append(self._output_number(_value_of(output)))
            else:
                argument = self._argument(output, output)
                self._outputs.append(argument)

    def _add_updates(self) -> None:
        for target, source in updates(self._module):
            if is_writable(target):
                value = self._values[source]
                self._mutations.append({"input": self._values[target], "value": value})
            else:
                self._outputs.append(self._argument(source, source))


def capture(
    module: torch.fx.GraphModule,
    is_parameter: Callable[[int], bool],
    name: str = "graph",
    eager_random: bool = False,
) -> str:
    """kiln.v1.Graph of `module` as protobuf JSON.

    `module` has one placeholder for each input, with `meta["val"]` on every node. Effect tokens and what
    is only handed on are left out of the inputs (see left_out_inputs) and none among the outputs. What the graph copies
    into its inputs at its end are mutations, or further outputs (see updated_inputs).
    `is_parameter(i)` says whether input i keeps its storage from call to call. Random operators give
    the numbers that eager makes where `eager_random`, else the server may make its own; those of a
    GPU's generator are eager's always. graph_device(module) says where the graph runs.
    Raises CaptureError for what cannot be sent.
    """
    return json.dumps(_Capture(module, is_parameter, eager_random).graph(name), separators=(",", ":"))
