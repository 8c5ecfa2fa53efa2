"""What the parts of check.py share: cases that are counted, and how results are compared."""

from __future__ import annotations

import copy
import pathlib
import traceback
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from kilnd import Server
from torch.utils._pytree import tree_leaves, tree_map

Tensors = list[torch.Tensor]
WIDE = torch.float64
# A result may be this many times as far from float64's as eager's is, or so many units of its
# type's precision at the largest magnitude of the result.
TIMES_EAGER, UNITS = 3.0, 8.0


class Results:
    """Counts cases; prints one line for each. Parts keep outcomes in `folder`, and compile on
    `server`."""

    def __init__(self, folder: pathlib.Path, server: Server) -> None:
        self.folder = folder
        self.server = server
        folder.mkdir(parents=True, exist_ok=True)
        self.passed = 0
        self.failed: list[str] = []

    @contextmanager
    def case(self, name: str, quiet: bool = False) -> Iterator[None]:
        """With `quiet` a case that passes prints nothing."""
        try:
            yield
        except Exception as error:
            self.failed.append(name)
            place = traceback.extract_tb(error.__traceback__)[-1]
            text = " | ".join(str(error).split("\n\n", 1)[0].strip().splitlines())
            print(f"FAIL {name}: {type(error).__name__}: {text} ({place.name}:{place.lineno})")
        else:
            self.passed += 1
            if not quiet:
                print(f"ok   {name}")

    def summary(self) -> int:
        print(f"{self.passed} passed, {len(self.failed)} failed")
        for name in self.failed:
            print(f"  {name}")
        return 1 if self.failed else 0


def compiled(fn: Callable[..., Any], **options: Any) -> Callable[..., Any]:
    """`fn` by Kiln, with nothing left of earlier cases; a graph that falls back is an error."""
    dynamic = options.pop("dynamic", False)
    torch._dynamo.reset()
    return torch.compile(
        fn, backend="kiln", dynamic=dynamic, options={"fallback": "raise", **options}
    )


def widened(value: Any) -> Any:
    """In float64, a copy; what has no floating type stays."""
    if isinstance(value, torch.nn.Module):
        return copy.deepcopy(value).to(WIDE)
    if isinstance(value, torch.Tensor) and value.is_floating_point():
        return value.detach().to(WIDE).requires_grad_(value.requires_grad)
    return value


def _clone(value: Any) -> Any:
    if isinstance(value, torch.nn.Module):
        return copy.deepcopy(value)
    if isinstance(value, torch.Tensor):
        return value.detach().clone().requires_grad_(value.requires_grad)
    return value


def _leaves(args: Sequence[Any]) -> Tensors:
    found: Tensors = []
    for arg in args:
        found += arg.parameters() if isinstance(arg, torch.nn.Module) else tree_leaves(arg)
    return [t for t in found if isinstance(t, torch.Tensor) and t.requires_grad]


def results(fn: Callable[..., Any], args: Sequence[Any]) -> Tensors:
    """Outputs of fn(*args), the gradients of all that require one, and changed buffers."""
    outputs = [t for t in tree_leaves(fn(*args)) if isinstance(t, torch.Tensor)]
    found = list(outputs)
    leaves = _leaves(args)
    differentiable = [t for t in outputs if t.requires_grad]
    if leaves and differentiable:
        generator = torch.Generator("cpu").manual_seed(1)
        grads = [
            torch.randn(t.shape, generator=generator).to(t.device, t.dtype) for t in differentiable
        ]
        gradients = torch.autograd.grad(differentiable, leaves, grads, allow_unused=True)
        found += [g for g in gradients if g is not None]
    for module in (arg for arg in args if isinstance(arg, torch.nn.Module)):
        found += list(module.buffers())
    return [t.detach() for t in found]


def compare(
    ours: Tensors, eager: Tensors, reference: Tensors, times: float = TIMES_EAGER
) -> None:
    """Raises AssertionError, with the numbers, where a result is wrong."""
    assert len(ours) == len(eager) == len(reference), (len(ours), len(eager), len(reference))
    for i, (a, e, r) in enumerate(zip(ours, eager, reference, strict=True)):
        for what in ("device", "dtype", "shape"):
            x, y = getattr(a, what), getattr(e, what)
            assert x == y, f"result {i}: {what} {x}, eager's {y}"
        if not a.is_floating_point():
            assert torch.equal(a, e), f"result {i}: {int((a != e).sum())} elements differ"
            continue
        if a.numel() == 0:
            continue
        a, e, r = a.to(WIDE), e.to(WIDE), r.to(WIDE)
        assert torch.equal(a.isnan(), e.isnan()), f"result {i}: NaN elsewhere than eager's"
        assert torch.equal(a.isinf(), e.isinf()), f"result {i}: infinity elsewhere than eager's"
        finite = e.isfinite() & r.isfinite()
        if not bool(finite.any()):
            continue
        a, e, r = a[finite], e[finite], r[finite]
        unit = torch.finfo(eager[i].dtype).eps * float(r.abs().max())
        ours_off, eager_off = float((a - r).abs().max()), float((e - r).abs().max())
        limit = times * eager_off + UNITS * unit
        assert ours_off <= limit, (
            f"result {i} of {len(ours)}: off by {ours_off:.3g}, eager by {eager_off:.3g}, "
            f"largest {float(r.abs().max()):.3g}"
        )


def check(
    fn: Callable[..., Any],
    args: Sequence[Any],
    times: float = TIMES_EAGER,
    given: Sequence[Any] | None = None,
    **options: Any,
) -> None:
    """fn(*args) and its gradients by Kiln against eager's of `given`, if they are others, and float64's; three calls."""
    given = list(args if given is None else given)
    reference = results(fn, tree_map(widened, given))
    eager = results(fn, [_clone(arg) for arg in given])
    run = compiled(fn, **options)
    for _ in range(3):
        compare(results(run, [_clone(arg) for arg in args]), eager, reference, times)
