"""Grows a program statement by statement, each tried in eager mode first.

A program lives in several worlds: assignments of its sizes. A statement is kept if it runs in all of
them, and if its values are ones that two right executions agree on: finite, of modest size, and near
to the same computed in float64. What depends on single bits (comparisons, rounding, indices) only
reads values that are exact, which no order of operations or wider type would alter.
"""

from __future__ import annotations

import math
import random
from collections.abc import Callable
from dataclasses import dataclass

import torch

from program import FLOATS, Input, Program, Statement, literal_names

MOST_DIMS = 5
LARGEST = 1e4
# How far eager itself may be from float64, as a part of the root mean square.
EAGER_ERROR = {False: 2e-6, True: 2e-2}
# Bits of the significand, by type.
_BITS = {torch.float16: 11, torch.bfloat16: 8, torch.float32: 24, torch.float64: 53}


@dataclass(frozen=True)
class Proposal:
    statement: Statement
    exact: str = "no"  # "yes": where its operands are and nothing was rounded; "sum": same, of sums


def kind_of(tensor: torch.Tensor) -> str:
    if tensor.dtype == torch.bool:
        return "b"
    return "f" if tensor.is_floating_point() else "i"


def _storage(tensor: torch.Tensor) -> int:
    return tensor.untyped_storage()._cdata


def _significant_bits(tensor: torch.Tensor) -> float:
    """log2 of the largest magnitude in units of the finest binary place in use; inf for many."""
    if tensor.numel() == 0:
        return 0
    values = tensor.detach().double()
    for places in range(9):
        scaled = values * 2.0**places
        if torch.equal(scaled, scaled.round()):
            return math.log2(max(scaled.abs().max().item(), 1))
    return math.inf


class Rejected(Exception):
    """A statement that eager refuses or whose values are of no use."""


class Builder:
    def __init__(self, seed: int, worlds: list[dict[str, int]], dynamic: bool, grad: bool,
                 autocast: bool = False) -> None:
        self.rng = random.Random(seed)
        self.seed = seed
        self.worlds = worlds
        self.dynamic = dynamic
        self.grad = grad
        self.autocast = autocast
        self.low = False
        self.most_elements = 4096
        self.inputs: list[Input] = []
        self.statements: list[Statement] = []
        self.exact: set[str] = set()
        self.names: list[str] = []
        self._count = 0
        self._envs: list[dict] = []
        self._refs: list[dict] = []

    # What statements are made of.

    def tensor(self, name: str, world: int = 0) -> torch.Tensor:
        return self._envs[world][name]

    def tensors(self, name: str) -> list[torch.Tensor]:
        return [env[name] for env in self._envs]

    def rank(self, name: str) -> int:
        return self.tensor(name).dim()

    def new(self) -> str:
        self._count += 1
        return f"v{self._count - 1}"

    def pick(
        self,
        kinds: str = "fib",
        *,
        exact: bool = False,
        least_dims: int = 0,
        most_dims: int = MOST_DIMS,
        where: Callable[[str], bool] | None = None,
    ) -> str | None:
        """A value of one of these kinds; recent ones more often."""
        found = [
            name
            for name in self.names
            if kind_of(self.tensor(name)) in kinds
            and least_dims <= self.rank(name) <= most_dims
            and (not exact or self.is_exact(name))
            and (where is None or where(name))
        ]
        if not found:
            return None
        recent = found[-4:]
        return self.rng.choice(recent if self.rng.random() < 0.6 else found)

    def is_exact(self, name: str) -> bool:
        return kind_of(self.tensor(name)) != "f" or name in self.exact

    def broadcasts(self, name: str, other: str) -> bool:
        for a, b in zip(self.tensors(name), self.tensors(other), strict=True):
            try:
                shape = torch.broadcast_shapes(a.shape, b.shape)
            except RuntimeError:
                return False
            if math.prod(shape) > self.most_elements:
                return False
        return True

    def same_sizes(self, name: str, other: str) -> bool:
        pairs = zip(self.tensors(name), self.tensors(other), strict=True)
        return all(a.shape == b.shape for a, b in pairs)

    def size_name(self, name: str, dim: int) -> str | None:
        """The size as an input would be declared with it: a letter or a number."""
        sizes = [tensor.size(dim) for tensor in self.tensors(name)]
        if len(set(sizes)) == 1:
            return str(sizes[0])
        letters = [s for s in self.worlds[0] if [w[s] for w in self.worlds] == sizes]
        return letters[0] if letters else None

    def size(self, name: str, dim: int) -> str:
        """The size as a statement writes it."""
        sizes = {tensor.size(dim) for tensor in self.tensors(name)}
        if len(sizes) > 1 or self.rng.random() < 0.2:
            return f"{name}.size({dim})"
        return str(sizes.pop())

    def least_size(self, name: str, dim: int) -> int:
        return min(tensor.size(dim) for tensor in self.tensors(name))

    # Inputs.

    def add_input(self, base: str, view: str, dtype: str, requires_grad: bool, exact: bool) -> str:
        name = f"x{len(self.inputs)}"
        floating = dtype in FLOATS
        self.inputs.append(Input(name, base, view, floating, requires_grad and floating))
        if exact and floating:
            self.exact.add(name)
        self.names.insert(0, name)
        self.rebuild()
        return name

    def add_weight(self, sizes: list[str | None]) -> str | None:
        """A plain float32 input of these sizes."""
        if any(size is None for size in sizes):
            return None
        grad = self.grad and self.rng.random() < 0.7
        base = f"torch.randn({', '.join(map(str, sizes))}, generator=g)"
        return self.add_input(base, "", "float32", grad, exact=False)

    # Growth.

    def rebuild(self) -> None:
        """Runs everything again, as the statements are now."""
        program = self.program((self.names[0],) if self.names else ())
        self._envs = [run(program, world, False) for world in self.worlds]
        self._refs = [run(program, world, True) for world in self.worlds]

    def program(self, outputs: tuple[str, ...]) -> Program:
        return Program(
            seed=self.seed,
            worlds=tuple(self.worlds),
            inputs=tuple(self.inputs),
            statements=tuple(self.statements),
            outputs=outputs,
            exact=tuple(n for n in self.names if n in self.exact),
            dynamic=self.dynamic,
            grad=self.grad,
            autocast=self.autocast,
        )

    def add(self, proposal: Proposal) -> bool:
        """Whether the statement was taken."""
        statement = proposal.statement
        operands = [n for n in statement.operands if n in self._envs[0]]
        was_exact = all(self.is_exact(name) for name in operands)
        bits = [_significant_bits(t) for n in operands for t in self.tensors(n)]
        numel = max((t.numel() for n in operands for t in self.tensors(n)), default=1)
        try:
            for env, ref in zip(self._envs, self._refs, strict=True):
                self._try(statement, env, ref)
            changed = self._changed(statement)
            for name in changed:
                self._check(name)
        except Rejected:
            self._forget(statement)
            return False
        exact = was_exact and proposal.exact != "no"
        if exact and proposal.exact == "sum":
            # Of products of two values, summed over everything: no partial sum may round.
            types = [self.tensor(name).dtype for name in changed if self._floats(name)]
            room = min((_BITS[dtype] for dtype in types), default=24)
            exact = sum(sorted(bits)[-2:]) + math.log2(max(numel, 1)) < min(room, 24)
        for name in changed:
            if exact and self._unrounded(name):
                self.exact.add(name)
            else:
                self.exact.discard(name)
        self.statements.append(statement)
        self.names += [n for n in statement.results if n not in self.names]
        return True

    def _floats(self, name: str) -> bool:
        return kind_of(self.tensor(name)) == "f"

    def _try(self, statement: Statement, env: dict, ref: dict) -> None:
        try:
            with torch.autocast("cpu", enabled=self.autocast):
                step(statement, env, False)
            step(statement, ref, True)
        except Exception as error:
            raise Rejected(str(error)) from None

    def _changed(self, statement: Statement) -> list[str]:
        """Results, and the values whose storage an in-place statement may have written."""
        if statement.results:
            return list(statement.results)
        written = {_storage(self.tensor(name)) for name in statement.operands[:1]}
        return [name for name in self.names if _storage(self.tensor(name)) in written]

    def _check(self, name: str) -> None:
        low = self.program((name,)).low()
        for env, ref in zip(self._envs, self._refs, strict=True):
            value, wanted = env[name], ref[name]
            if not isinstance(value, torch.Tensor) or value.is_complex():
                raise Rejected("no tensor")
            if value.numel() > self.most_elements or value.dim() > MOST_DIMS:
                raise Rejected("too large")
            if value.shape != wanted.shape:
                raise Rejected("other sizes in float64")
            if not value.is_floating_point():
                if not torch.equal(value, wanted.to(value.dtype)):
                    raise Rejected("not exact")
                continue
            value, wanted = value.detach().double(), wanted.detach().double()
            if not (value.isfinite().all() and wanted.isfinite().all()):
                raise Rejected("not finite")
            if value.numel() == 0:
                continue
            if wanted.abs().max() > LARGEST:
                raise Rejected("large")
            scale = wanted.square().mean().sqrt()
            error = (value - wanted).square().mean().sqrt()
            if error > EAGER_ERROR[low] * scale + 1e-12:
                raise Rejected("ill-conditioned")

    def _unrounded(self, name: str) -> bool:
        return all(
            torch.equal(env[name].detach().double(), ref[name].detach().double())
            for env, ref in zip(self._envs, self._refs, strict=True)
        )

    def _forget(self, statement: Statement) -> None:
        if not statement.results or literal_names(statement.text) & set(statement.operands[:1]):
            self.rebuild()
        for env in self._envs + self._refs:
            for name in statement.results:
                env.pop(name, None)


def run(program: Program, world: dict[str, int], reference: bool) -> dict:
    """All values of a program after its last statement, in eager mode."""
    env: dict = {"torch": torch, "F": torch.nn.functional, **world}
    env["g"] = torch.Generator().manual_seed(program.seed)
    for item in program.inputs:
        exec(item.text(reference), env)
    with torch.autocast("cpu", enabled=program.autocast and not reference):
        for statement in program.statements:
            step(statement, env, reference)
    return env


def step(statement: Statement, env: dict, reference: bool) -> None:
    """One statement. In float64, what has no type of its own is float64, too."""
    if not reference:
        exec(statement.text, env)
        return
    torch.set_default_dtype(torch.float64)
    try:
        exec(statement.reference(), env)
    finally:
        torch.set_default_dtype(torch.float32)
