"""Runs a program through torch.compile and compares everything that a user can see with eager."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from dataclasses import dataclass, field

import torch
from kiln_torch.compare import finite_parts
from torch._dynamo.utils import same

from program import Program

# Of the root mean square, by whether types of 16 bits take part.
_TOLERANCE = {False: 1e-4, True: 4e-2}


@dataclass
class Outcome:
    """`kind` is "" where all is equal; else "error", or what differs; `what` says where."""

    kind: str = ""
    what: str = ""
    fallbacks: list[str] = field(default_factory=list)
    graphs: int = 0
    backward: bool = False


class Execution:
    """One execution: inputs after it, outputs, gradients."""

    def __init__(self, program: Program, world: dict[str, int], reference: bool) -> None:
        env: dict = {"torch": torch, "F": torch.nn.functional}
        exec(program.inputs_function(reference) + program.function(reference), env)
        self._program, self._reference = program, reference
        self.inputs = env["inputs"](**world)
        self.fn = env["fn"]
        self.outputs: list = []
        self.gradients: list = []

    def call(self, fn: Callable | None = None) -> Execution:
        torch.set_default_dtype(torch.float64 if self._reference else torch.float32)
        try:
            cast = self._program.autocast and not self._reference
            with (
                torch.set_grad_enabled(self._program.grad),
                torch.autocast("cpu", enabled=cast),
            ):
                self.outputs = list((fn or self.fn)(*self.inputs))
        finally:
            torch.set_default_dtype(torch.float32)
        return self

    def backward(self) -> Execution:
        outputs = [
            o for o in self.outputs
            if isinstance(o, torch.Tensor) and o.requires_grad and o.is_floating_point()
        ]
        leaves = [x for x in self.inputs if x.requires_grad and x.is_leaf]
        if outputs and leaves:
            g = torch.Generator().manual_seed(self._program.seed)
            weights = [
                (torch.randint(-8, 9, o.shape, generator=g) / 8).to(o.dtype) for o in outputs
            ]
            self.gradients = list(
                torch.autograd.grad(outputs, leaves, weights, allow_unused=True)
            )
        return self


def _cell(tensor: torch.Tensor) -> int:
    return tensor.untyped_storage()._cdata


def _aliases(run: Execution) -> list[tuple[int, int]]:
    """Pairs of values, inputs first, that share storage with something in it."""
    tensors = [t for t in run.inputs + run.outputs]
    cells = [
        _cell(t) if isinstance(t, torch.Tensor) and t.numel() else None
        for t in tensors
    ]
    return [
        (i, j)
        for j in range(len(cells))
        for i in range(j)
        if cells[i] is not None and cells[i] == cells[j]
    ]


def _steps(tensor: torch.Tensor) -> list[int]:
    """Strides of the dimensions that take steps: AOTAutograd alters the others freely."""
    return [s for n, s in zip(tensor.shape, tensor.stride(), strict=True) if n > 1]


def _difference(ours, eager, reference, exact: bool, tolerance: float) -> tuple[str, str]:
    """("", "") or the kind of difference and a sentence."""
    if not isinstance(eager, torch.Tensor):
        return ("", "") if type(ours) is type(eager) and ours == eager else (
            "value", f"is {ours!r}; eager gives {eager!r}")
    for name in ("dtype", "shape", "requires_grad", "device"):
        if getattr(ours, name) != getattr(eager, name):
            return name, f"has {name} {getattr(ours, name)}; eager's has {getattr(eager, name)}"
    if eager.numel() > 0 and _steps(ours) != _steps(eager):
        strides = f"strides {ours.stride()}; eager's has {eager.stride()}"
        return "stride", f"of {tuple(eager.shape)} has {strides}"
    ours, eager = ours.detach(), eager.detach()
    reference = reference.detach().to(torch.float64) if eager.is_floating_point() else None
    exact = exact or not eager.is_floating_point()
    if exact and (reference is None or torch.equal(reference, eager.double())):
        if torch.equal(ours, eager) or same(eager, ours, tol=0, equal_nan=True, exact_dtype=True):
            return "", ""
    elif _near(ours, eager, reference, tolerance):
        return "", ""
    error = (ours.double() - eager.double()).abs()
    at = int(error.nan_to_num(torch.inf).argmax())
    return "value", (
        f"{tuple(eager.shape)} {str(eager.dtype)[6:]} differs, most at element {at}: "
        f"{ours.reshape(-1)[at].item()!r}, eager {eager.reshape(-1)[at].item()!r}"
        + (f", float64 {reference.reshape(-1)[at].item()!r}" if reference is not None else "")
        + (" (must be exact)" if exact else "")
    )


def _near(ours, eager, reference, tolerance: float) -> bool:
    """As torch compares, and no element far off where float64 says that it is well determined."""
    finite = finite_parts(ours, eager, reference)
    if finite is None:
        return False
    ours, eager, reference = finite
    if not same(eager, ours, fp64_ref=reference, tol=tolerance, equal_nan=True):
        return False
    if eager.numel() == 0:
        return True
    ours, eager = ours.double(), eager.double()
    scale = reference.square().mean().sqrt()
    allowed = 5 * (eager - reference).abs().max() + 5 * tolerance * (reference.abs() + scale)
    return bool(((ours - reference).abs() <= allowed + 1e-7).all())


def _compare(
    program: Program, ours: Execution, eager: Execution, reference: Execution
) -> tuple[str, str]:
    tolerance = _TOLERANCE[program.low()]
    if len(ours.outputs) != len(eager.outputs):
        return "count", f"{len(ours.outputs)} outputs; eager gives {len(eager.outputs)}"
    names = [f"output {i} ({name})" for i, name in enumerate(program.outputs)]
    groups = [
        (names, program.outputs, ours.outputs, eager.outputs, reference.outputs),
        ([f"input {i.name} afterwards" for i in program.inputs],
         [i.name for i in program.inputs], ours.inputs, eager.inputs, reference.inputs),
    ]
    for labels, values, *sides in groups:
        for label, value, a, e, r in zip(labels, values, *sides, strict=True):
            kind, what = _difference(a, e, r, value in program.exact, tolerance)
            if kind:
                return kind, f"{label} {what}"
    if _aliases(ours) != _aliases(eager):
        labels = [i.name for i in program.inputs] + names
        differ = sorted(set(_aliases(ours)) ^ set(_aliases(eager)))
        i, j = differ[0]
        verb = "share" if (i, j) in _aliases(ours) else "do not share"
        return "alias", f"{labels[i]} and {labels[j]} {verb} storage, unlike eager's"
    return "", ""


def _compare_gradients(
    program: Program, ours: Execution, eager: Execution, reference: Execution
) -> tuple[str, str]:
    tolerance = _TOLERANCE[program.low()] * 5
    leaves = [i.name for i in program.inputs if i.requires_grad]
    for name, a, e, r in zip(
        leaves, ours.gradients, eager.gradients, reference.gradients, strict=False
    ):
        if e is None or a is None:
            left = a if a is not None else e
            if left is not None and bool((left != 0).any()):
                return "gradient", f"gradient of {name} is only there in one of both"
            continue
        if not e.isfinite().all() or not r.isfinite().all():
            continue  # eager's own overflow
        error = (e.double() - r).square().mean().sqrt() if e.numel() else 0
        if e.numel() and error > tolerance * r.square().mean().sqrt() + tolerance / 10:
            continue  # too badly conditioned to say
        # AOTAutograd lets a gradient have any strides.
        kind, what = _difference(a.contiguous(), e.contiguous(), r, False, tolerance)
        if kind:
            return "gradient", f"gradient of {name} {what}"
    return "", ""


def backend_of(layer: str):
    """What stands in for the compiler: nothing ("kiln"), eager after the same capture, or eager."""
    if layer == "capture":
        from functorch.compile import make_boxed_func
        from kiln_torch.backend import aot_backend

        return aot_backend(lambda module, inputs, kind: make_boxed_func(module.forward))
    return {"kiln": "kiln", "torch": "aot_eager"}[layer]


def check(program: Program, layer: str = "kiln") -> Outcome:
    """Compiles `program` and compares in each of its worlds."""
    import kiln_torch

    outcome = Outcome()
    torch._dynamo.reset()
    kiln_torch.reset()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            first = Execution(program, program.worlds[0], False)
            compiled = torch.compile(
                first.fn,
                backend=backend_of(layer),
                dynamic=program.dynamic or None,
                # Beside each other, though this process has one thread.
                options={"threads": 2} if layer == "kiln" else None,
            )
            for world in program.worlds:
                outcome.kind, outcome.what = _check_world(program, world, compiled, outcome)
                if outcome.kind:
                    outcome.what += f", with sizes {world}"
                    break
        except _EagerFailed as error:
            outcome.kind, outcome.what = "eager", str(error)
    stats = kiln_torch.stats()
    outcome.graphs = stats["graphs"]
    outcome.fallbacks = [fallback["reason"] for fallback in stats["fallbacks"]]
    if not outcome.kind and outcome.fallbacks:
        outcome.kind, outcome.what = "fallback", outcome.fallbacks[0]
    return outcome


class _EagerFailed(Exception):
    pass


def _check_world(
    program: Program, world: dict[str, int], compiled: Callable, outcome: Outcome
) -> tuple[str, str]:
    try:
        eager = Execution(program, world, False).call()
        reference = Execution(program, world, True).call()
    except Exception as error:
        raise _EagerFailed(str(error)) from error
    ours = Execution(program, world, False)
    try:
        ours.call(compiled)
        kind, what = _compare(program, ours, eager, reference)
    except Exception as error:
        return "error", _first_line(error)
    if kind or not program.grad:
        return kind, what
    try:
        eager.backward()
        reference.backward()
    except Exception:
        return "", ""  # a value that eager's backward needs was written in place
    outcome.backward = outcome.backward or bool(eager.gradients)
    try:
        ours.backward()
        return _compare_gradients(program, ours, eager, reference)
    except Exception as error:
        return "error", "in backward: " + _first_line(error)


def _first_line(error: Exception) -> str:
    while error.__cause__ is not None:
        error = error.__cause__
    lines = [line for line in str(error).splitlines() if line.strip()]
    # Dynamo and AOTAutograd say where before they say what.
    text = next((line for line in lines if not line.endswith(" raised:")), "")
    return f"{type(error).__name__}: {text[:300]}"
