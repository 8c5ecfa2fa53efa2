"""Library steps: ATen operators that the server did not lower, called here through torch."""

from __future__ import annotations

import functools
import json
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch
from torch.utils._python_dispatch import _disable_current_modes

from kiln_torch.capture import DTYPE_NAMES
from kiln_torch.devices import CPU, on_device
from kiln_torch.products import aligned_product
from kiln_torch.seeds import SEED

_DTYPES = {name: dtype for dtype, name in DTYPE_NAMES.items()}


class _Slot:
    """Stands for the next tensor, or the next size, in the order of the step's arguments."""


_TENSOR = _Slot()
_NUMBER = _Slot()  # the element of the next tensor: a number that the graph computes
_SIZE = _Slot()


def _find_op(name: str) -> torch._ops.OpOverload:
    return functools.reduce(getattr, name.split("."), torch.ops)


_HIGHER_ORDER = "higher_order."  # such as one that runs another operator from a given random state


def _find_call(name: str, args: list[Any]) -> tuple[Callable[..., Any], list[Any], list[Any]]:
    """A callable by its name, its arguments, and the parameter that says how each is to be read."""
    call = _find_op(name)
    if not name.startswith(_HIGHER_ORDER):
        return call, args, call._schema.arguments
    # The operator among the arguments is their first string; its own follow it.
    position = next(i for i, arg in enumerate(args) if isinstance(arg, str))
    op = _find_op(args[position])
    before = [None] * (position + 1)
    return call, [*args[:position], op, *args[position + 1 :]], [*before, *op._schema.arguments]


def _scalar(message: dict[str, Any]) -> Any:
    """An Argument message; values travel beside the step."""
    if "int" in message:
        return int(message["int"])
    if "float" in message:
        return float(message["float"])  # also of "Infinity" and "NaN"
    if "complex" in message:
        parts = message["complex"]
        return complex(float(parts.get("real", 0)), float(parts.get("imag", 0)))
    if "bool" in message:
        return message["bool"]
    if "string" in message:
        return message["string"]
    if "dtype" in message:
        return _DTYPES[message["dtype"]]
    if "sym_int" in message:
        return _SIZE
    return None


def _fixed_scalar(message: dict[str, Any]) -> Any:
    """The same; a size that is the same in each call is itself."""
    size = message.get("sym_int")
    return _scalar(message) if size is None or "expr" in size else int(size.get("value", 0))


def _decode(message: dict[str, Any], scalar: Callable[[dict[str, Any]], Any] = _scalar) -> Any:
    if "tensor" in message:
        return _TENSOR
    if "list" in message:
        return [_decode(item, scalar) for item in message["list"].get("items", [])]
    return scalar(message.get("scalar", {}))


def _typed(value: Any, parameter: torch._C.Argument) -> Any:
    """Devices, layouts and memory formats travel as strings, computed numbers as tensors."""
    if value is _TENSOR and "number" in str(parameter.real_type):
        return _NUMBER
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
    if value is _NUMBER:
        return next(tensors).item()
    if value is _SIZE:
        return next(sizes)
    if isinstance(value, list):
        return [_fill(item, tensors, sizes) for item in value]
    return value


def _has_slot(value: Any) -> bool:
    if isinstance(value, list):
        return any(map(_has_slot, value))
    return isinstance(value, _Slot)


class StepError(Exception):
    """A library step gave no results that fit the graph. Its cause: the operator's own error."""


class _NoTensor(Exception):
    """An operator returned something else where the graph has a tensor."""


def _plain(result: Any, device: torch.device) -> torch.Tensor:
    """`result` as memory that can be shown: on `device`, strided, its values as they lie there."""
    if not isinstance(result, torch.Tensor):
        raise _NoTensor(f"a {type(result).__name__} where the graph has a tensor")
    if result.device != device:
        result = on_device(result, device)
    if result.is_quantized:
        raise _NoTensor("a quantized tensor")
    if result.layout != torch.strided:
        result = result.to_dense()
    if result._is_zerotensor():
        return result.clone()  # It stands for zeros without having any.
    return result.resolve_conj().resolve_neg()


def _span(tensor: torch.Tensor) -> tuple[int, int]:
    """Addresses of the storage's first byte and past its last."""
    storage = tensor.untyped_storage()
    begin = storage.data_ptr()
    return begin, begin + storage.nbytes()


def _overlaps(span: tuple[int, int], others: Sequence[tuple[int, int]]) -> bool:
    return any(begin < span[1] and span[0] < end for begin, end in others)


def _copy(tensor: torch.Tensor) -> torch.Tensor:
    """A copy; where elements share places (expand, unfold), they share them in the copy, too."""
    if tensor.numel() == 0:
        return tensor.clone()
    steps = zip(tensor.shape, tensor.stride(), strict=True)
    reach = 1 + sum((size - 1) * stride for size, stride in steps)
    if reach >= tensor.numel():
        return tensor.clone()
    return tensor.as_strided((reach,), (1,)).clone().as_strided(tensor.shape, tensor.stride())


def _flat(returned: Any) -> list[Any]:
    """Results in the order of their numbers in the graph."""
    if not isinstance(returned, (tuple, list)):
        return [returned]
    return [item for part in returned for item in _flat(part)]


def _describe(tensor: torch.Tensor) -> str:
    return f"{str(tensor.dtype).removeprefix('torch.')}{list(tensor.shape)}"


def _bag_of_each(tensors: Sequence[torch.Tensor]) -> torch.Tensor:
    """For each index of an embedding bag, the number of its bag."""
    _, indices, offsets = tensors[:3]
    numbers = torch.arange(indices.numel(), dtype=offsets.dtype, device=offsets.device)
    return (torch.searchsorted(offsets, numbers, right=True) - 1).to(offsets.dtype)


# Results that a kernel may leave empty though its meta function gives them a size: by operator and
# position, what their readers would make of the empty one.
_MEANING_THE_SAME: dict[
    tuple[torch._ops.OpOverload, int], Callable[[Sequence[torch.Tensor]], torch.Tensor]
] = {
    (torch.ops.aten._embedding_bag.default, 1): _bag_of_each,
    (torch.ops.aten._embedding_bag_forward_only.default, 1): _bag_of_each,
}


# Operators whose random state lies on the CPU, where their first pass has drawn it, unless a CUDA
# graph is being captured: the parameters that hold it. They read it there only with a dropout.
_STATE_ON_CPU: dict[torch._ops.OpOverload, tuple[str, ...]] = {
    op.default: ("philox_seed", "philox_offset")
    for op in (
        torch.ops.aten._scaled_dot_product_efficient_attention_backward,
        torch.ops.aten._efficient_attention_backward,
    )
}


# Operators of torch's own with kernels of its own, which return plain tensors of new memory on the
# device of their arguments: nothing of theirs is looked at after a call.
_PLAIN_RESULTS = frozenset(
    getattr(torch.ops.aten, name).default
    for name in """
    _flash_attention_backward _flash_attention_forward _scaled_dot_product_cudnn_attention
    _scaled_dot_product_cudnn_attention_backward _scaled_dot_product_flash_attention
    _scaled_dot_product_flash_attention_backward addmm baddbmm bmm convolution
    convolution_backward mm
    """.split()
    if hasattr(torch.ops.aten, name)
)
# Of these, the functions that torch generates for them: a call of an operator itself looks its
# arguments up in its schema, which takes twice as long as the rest of a small product.
_FUNCTIONS = {
    op: getattr(torch, op.overloadpacket.__name__)
    for op in _PLAIN_RESULTS
    if hasattr(torch, op.overloadpacket.__name__)
}


def _with_state_on_cpu(
    op: torch._ops.OpOverload, args: list[Any], names: Sequence[str]
) -> list[Any]:
    """The arguments of `op`, as it wants them: a copy to the CPU, which waits for the GPU."""
    if torch.cuda.is_current_stream_capturing():
        return args
    given = {p.name: i for i, p in enumerate(op._schema.arguments)}
    probability = args[given["dropout_p"]] if given["dropout_p"] < len(args) else 0.0
    if probability == 0:
        return args
    moved = list(args)
    for name in names:
        moved[given[name]] = args[given[name]].cpu()
    return moved


def _finish(op: Callable[..., Any], results: Sequence[Any]) -> None:
    """Waits for what `op` has only begun. Collectives write their results later and may read their arguments until
    then, by torch's own memory alone: the operator that waits for them would be given the program's."""
    if getattr(op, "namespace", "") != "_c10d_functional":
        return
    for result in results:
        if isinstance(result, torch.Tensor):
            torch.ops._c10d_functional.wait_tensor(result)


def unobserved() -> AbstractContextManager[Any]:
    """Without dispatch modes, as kernels run: torch's own answer may depend on whether one looks on.

    AOTAutograd checks custom operators with one in each graph's first call; `linalg.pinv` of complex
    numbers is wrong under any.
    """
    return _disable_current_modes() if torch._C._len_torch_dispatch_stack() else nullcontext()


def _is_observed() -> bool:
    """Whether autograd or a dispatch mode would see an operator's call."""
    return torch.is_grad_enabled() or torch._C._len_torch_dispatch_stack() > 0


class LibraryStep:
    """Executes one kiln.v1.LibraryStep, given as protobuf JSON, on `device`."""

    def __init__(self, step_json: str, device: torch.device = CPU) -> None:
        self._device = device
        step = json.loads(step_json)
        self._name = f"library step {step['op']} (node '{step.get('node', '')}')"
        args = [_decode(message) for message in step.get("args", [])]
        self._op, args, parameters = _find_call(step["op"], args)
        by_name = {p.name: p for p in parameters if p is not None}
        self._args = [
            arg if p is None else _typed(arg, p)
            for arg, p in zip(args, parameters, strict=False)
        ]
        self._kwargs = {
            named["name"]: _typed(_decode(named["value"]), by_name[named["name"]])
            if named["name"] != SEED
            else _TENSOR
            for named in step.get("kwargs", [])
        }
        self._taken = step.get("positions") or range(len(step.get("results", [])))
        # Where each tensor goes, if nothing else differs from call to call.
        self._slots = [i for i, arg in enumerate(self._args) if arg is _TENSOR]
        self._fixed = []
        if self._op in _PLAIN_RESULTS:
            messages = zip(step.get("args", []), parameters, strict=False)
            self._fixed = [_typed(_decode(m, _fixed_scalar), p) for m, p in messages]
        is_fixed = not self._kwargs and not any(
            _has_slot(arg) for arg in self._fixed if arg is not _TENSOR
        )
        self._is_plain = is_fixed and self._op in _PLAIN_RESULTS
        self._call = _FUNCTIONS.get(self._op, self._op)
        views = [arg["tensor"] for arg in step.get("args", []) if "tensor" in arg]
        product = None
        if self._is_plain and device.type == "cuda":
            product = aligned_product(self._op, views)
            self._call = product or self._call
        # Elements at the ends of rows that are no part of what the operator takes.
        self._has_padding = any(view.get("row_padding") for view in views)
        if self._has_padding and product is None:
            raise StepError(f"{self._name} takes rows with padding, which {self._op} does not")

    def __call__(
        self, tensors: Sequence[torch.Tensor], sizes: Sequence[int]
    ) -> list[torch.Tensor]:
        """The results that the step takes, for its tensors and its sizes, each in the order of the
        arguments. They are plain memory of their own. Raises StepError; its cause is the operator's
        own error.
        """
        if self._is_plain and not _is_observed():
            return self._call_plain(tensors)
        next_tensor, next_size = iter(tensors), iter(sizes)
        args = [_fill(arg, next_tensor, next_size) for arg in self._args]
        kwargs = {name: _fill(arg, next_tensor, next_size) for name, arg in self._kwargs.items()}
        kwargs.pop(SEED, None)  # the operator draws by itself
        try:
            with torch.no_grad(), unobserved():
                if self._op in _STATE_ON_CPU:
                    args = _with_state_on_cpu(self._op, args, _STATE_ON_CPU[self._op])
                call = self._call if self._has_padding else self._op
                results = _flat(call(*args, **kwargs))
                _finish(self._op, results)
                results = [_plain(results[position], self._device) for position in self._taken]
        except _NoTensor as error:
            raise StepError(f"{self._name} gave {error}") from None
        except Exception as error:
            raise StepError(f"{self._name} failed: {error}") from error
        # The program reuses the arguments' storage, so no result may lie in it.
        spans = [_span(tensor) for tensor in tensors]
        return [_copy(r) if _overlaps(_span(r), spans) else r for r in results]

    def _call_plain(self, tensors: Sequence[torch.Tensor]) -> list[torch.Tensor]:
        """What __call__ does, for an operator of _PLAIN_RESULTS."""
        args = self._fixed.copy()
        for slot, tensor in zip(self._slots, tensors, strict=True):
            args[slot] = tensor
        try:
            results = self._call(*args)
        except Exception as error:
            raise StepError(f"{self._name} failed: {error}") from error
        if isinstance(results, torch.Tensor):
            return [results]
        return [results[position] for position in self._taken]

    def fit(
        self,
        number: int,
        result: torch.Tensor,
        declared: torch.Tensor,
        tensors: Sequence[torch.Tensor],
    ) -> None:
        """Writes taken result `number` to `declared`, which is of the type that the graph has.

        An operator's kernel and its meta function may disagree in the dtype, as where statistics
        are float32 whatever the input is: then the graph goes on with what it was made for. Raises
        StepError where the sizes differ, too, and no other value means the same. `tensors` are the
        call's.
        """
        position = self._taken[number]
        if result.shape != declared.shape and (self._op, position) in _MEANING_THE_SAME:
            result = _MEANING_THE_SAME[self._op, position](tensors)
        if result.shape != declared.shape:
            raise StepError(
                f"{self._name} gave {_describe(result)} as result {position}; "
                f"the graph has {_describe(declared)}"
            )
        declared.copy_(result)
