"""Library steps: ATen operators that the server did not lower, called here through torch."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch

from kiln_torch.capture import DTYPE_NAMES

_DTYPES = {name: dtype for dtype, name in DTYPE_NAMES.items()}


class _Slot:
    """Stands for the next tensor, or the next size, in the order of the step's arguments."""


_TENSOR = _Slot()
_SIZE = _Slot()


def _find_op(name: str) -> torch._ops.OpOverload:
    namespace, op, overload = name.split(".")
    return getattr(getattr(getattr(torch.ops, namespace), op), overload)


def _scalar(message: dict[str, Any]) -> Any:
    """An Argument message; values travel beside the step."""
    if "int" in message:
        return int(message["int"])
    if "float" in message:
        return float(message["float"])  # also of "Infinity" and "NaN"
    if "bool" in message:
        return message["bool"]
    if "string" in message:
        return message["string"]
    if "dtype" in message:
        return _DTYPES[message["dtype"]]
    if "sym_int" in message:
        return _SIZE
    return None


def _decode(message: dict[str, Any]) -> Any:
    if "tensor" in message:
        return _TENSOR
    if "list" in message:
        return [_decode(item) for item in message["list"].get("items", [])]
    return _scalar(message.get("scalar", {}))


def _typed(value: Any, parameter: torch._C.Argument) -> Any:
    """Devices, layouts and memory formats travel as strings."""
    if not isinstance(value, str):
        return value
    kind = str(parameter.real_type)
    if "str" in kind:
        return value  # also where it reads like a name in torch: "torch.linalg.solve"
    if "Device" in kind:
        return torch.device(value)
    if value.startswith("torch."):
        return getattr(torch, value.removeprefix("torch."))
    return value


def _fill(value: Any, tensors: Iterator[torch.Tensor], sizes: Iterator[int]) -> Any:
    if value is _TENSOR:
        return next(tensors)
    if value is _SIZE:
        return next(sizes)
    if isinstance(value, list):
        return [_fill(item, tensors, sizes) for item in value]
    return value


def make_step(
    step_json: str,
) -> Callable[[Sequence[torch.Tensor], Sequence[int]], list[torch.Tensor]]:
    """A function that executes one kiln.v1.LibraryStep, given as protobuf JSON.

    It takes the step's tensors and its sizes, each in the order of the arguments, and returns its
    results, tensors only, with storage of their own. Errors are those of the operator.
    """
    step = json.loads(step_json)
    op = _find_op(step["op"])
    parameters = op._schema.arguments
    by_name = {parameter.name: parameter for parameter in parameters}
    args = [
        _typed(_decode(message), parameter)
        for message, parameter in zip(step.get("args", []), parameters, strict=False)
    ]
    kwargs = {
        named["name"]: _typed(_decode(named["value"]), by_name[named["name"]])
        for named in step.get("kwargs", [])
    }

    def run(tensors: Sequence[torch.Tensor], sizes: Sequence[int]) -> list[torch.Tensor]:
        next_tensor, next_size = iter(tensors), iter(sizes)
        filled_args = [_fill(arg, next_tensor, next_size) for arg in args]
        filled_kwargs = {n: _fill(arg, next_tensor, next_size) for n, arg in kwargs.items()}
        with torch.no_grad():
            result = op(*filled_args, **filled_kwargs)
        if result is None:
            return []  # An operator with an effect only, such as a check.
        results = list(result) if isinstance(result, (tuple, list)) else [result]
        # The program reuses the arguments' storage, so no result may live in it.
        storages = {tensor.untyped_storage().data_ptr() for tensor in tensors}
        return [r.clone() if r.untyped_storage().data_ptr() in storages else r for r in results]

    return run
