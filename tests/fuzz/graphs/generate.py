"""A random program from a seed."""

from __future__ import annotations

import random
import warnings
from collections.abc import Sequence
from dataclasses import replace

import torch

from builder import Builder, Proposal
from checker import Execution
from operators import FAMILIES
from program import FLOATS, Program, Statement

_SIZES = (2, 3, 4, 5, 6, 7, 8, 9, 16, 17, 33)
_TRIES = 25  # proposals for one statement


def _worlds(rng: random.Random, dynamic: bool, sizes: Sequence[int]) -> list[dict[str, int]]:
    """Values of the sizes. Static programs have one, at times with an empty or a single dimension."""
    letters = "abc"
    if not dynamic:
        small = [rng.choice((0, 1)) if rng.random() < 0.08 else None for _ in letters]
        return [{s: rng.choice(sizes) if n is None else n
                 for s, n in zip(letters, small, strict=True)}]
    worlds = [dict(zip(letters, rng.sample(sizes, len(letters)), strict=True)) for _ in range(2)]
    if rng.random() < 0.3:
        last = dict(zip(letters, rng.sample(sizes, len(letters)), strict=True))
        last[rng.choice(letters)] = rng.choice((0, 1))
        worlds.append(last)
    return worlds


def _values(rng: random.Random, sizes: str, dtype: str) -> tuple[str, bool]:
    """An expression for a tensor of these sizes, and whether its values are exact."""
    if dtype == "bool":
        return f"torch.randint(0, 2, {sizes}, generator=g) > 0", True
    if dtype not in FLOATS:
        low = 0 if dtype == "uint8" else -9
        high = rng.choice((10, 10, 120))
        low = low if high == 10 else 0 if dtype == "uint8" else -high
        return f"torch.randint({low}, {high}, {sizes}, generator=g, dtype=torch.{dtype})", True
    if rng.random() < 0.5:
        text = f"torch.randint(-16, 17, {sizes}, generator=g) / 4"
        return (text if dtype == "float32" else f"({text}).to(torch.{dtype})"), True
    text = f"torch.randn({sizes}, generator=g)"
    return (text if dtype == "float32" else f"{text}.to(torch.{dtype})"), True


def _tuple(sizes: list[str]) -> str:
    return f"({', '.join(sizes)}{',' if len(sizes) == 1 else ''})"


def _layout(rng: random.Random, sizes: list[str]) -> tuple[list[str], str]:
    """Sizes of a base and the view of it that has `sizes`."""
    rank, chance = len(sizes), rng.random()
    if rank == 0 or chance < 0.55:
        return sizes, ""
    if chance < 0.7 and rank > 1:
        order = list(range(rank))
        rng.shuffle(order)
        inverse = [order.index(d) for d in range(rank)]
        return [sizes[d] for d in order], f".permute({', '.join(map(str, inverse))})"
    dim = rng.randrange(rank)
    before = ":, " * dim
    if chance < 0.8:
        return [f"2 * {s}" if d == dim else s for d, s in enumerate(sizes)], f"[{before}::2]"
    if chance < 0.9:
        return [f"{s} + 1" if d == dim else s for d, s in enumerate(sizes)], f"[{before}1:]"
    if chance < 0.95:
        base = ["1" if d == dim else s for d, s in enumerate(sizes)]
        return base, f".expand({', '.join(sizes)})"
    if rank == 4:
        return sizes, ".contiguous(memory_format=torch.channels_last)"
    return sizes, ""


def _add_inputs(b: Builder, low: bool) -> None:
    rng = b.rng
    floats = ["float32"] * 5 + ["float64"] + (["bfloat16", "bfloat16", "float16"] if low else [])
    dtypes = [rng.choice(floats)]
    for _ in range(rng.randint(0, 3)):
        other = rng.choice(("int64", "int64", "int32", "bool", "bool", "uint8", "int8", "int16"))
        dtypes.append(rng.choice(floats) if rng.random() < 0.6 else other)
    for dtype in dtypes:
        rank = rng.choice((0, 1, 1, 2, 2, 2, 3, 3, 4))
        sizes = [rng.choice(("a", "b", "c", "a", "b", "1", "4")) for _ in range(rank)]
        if rank == 4:
            sizes[0] = "2"
        base, view = _layout(rng, sizes)
        text, exact = _values(rng, _tuple(base), dtype)
        # A leaf with expanded storage gets gradients from torch that depend on how it is viewed.
        grad = b.grad and ".expand" not in view and rng.random() < 0.7
        b.add_input(text, view, dtype, grad, exact)
    if rng.random() < 0.15:
        _add_alias(b)


def _add_alias(b: Builder) -> None:
    """An input in the memory of another one, of which neither is a leaf with gradients."""
    plain = [i for i in b.inputs if not i.requires_grad and b.rank(i.name) > 0]
    if not plain:
        return
    of, rank = b.rng.choice(plain), 0
    rank = b.rank(of.name)
    views = ["", "[1:]", "[::2]", "[-1]", ".flatten()"] + [".t()", "[:, 1:]", "[:, 0]"] * (rank == 2)
    view = b.rng.choice(views)
    exact = b.is_exact(of.name)
    name = b.add_input(f"{of.name}.detach()", view, "", False, False)
    b.inputs[-1] = replace(b.inputs[-1], floating=of.floating)
    if exact and of.floating:
        b.exact.add(name)


def _convolution(b: Builder) -> Proposal | None:
    """A convolution or a linear layer, with weights as inputs of their own."""
    rng = b.rng
    name = b.pick("f", least_dims=2, most_dims=4)
    if name is None or b.tensor(name).dtype != torch.float32:
        return None
    rank = b.rank(name)
    channels = b.size_name(name, 1)
    if rank == 2:
        weight = b.add_weight(["3", channels])
        return weight and _single(b, "matmul", f"F.linear({name}, {weight})", (name, weight))
    kernel = [rng.choice(("1", "2", "3")) for _ in range(rank - 2)]
    options = f"stride={rng.choice((1, 1, 2))}, padding={rng.choice((0, 1, 2))}"
    dilation = f", dilation={rng.choice((1, 2))}"
    if rng.random() < 0.25:
        weight = b.add_weight([channels, "2", *kernel])
        call = f"F.conv_transpose{rank - 2}d({name}, {{}}, {options}{dilation})"
    elif rng.random() < 0.25:
        weight = b.add_weight([channels, "1", *kernel])
        call = f"F.conv{rank - 2}d({name}, {{}}, {options}{dilation}, groups={name}.size(1))"
    else:
        weight = b.add_weight(["4", channels, *kernel])
        call = f"F.conv{rank - 2}d({name}, {{}}, {options}{dilation})"
    return weight and _single(b, "window", call.format(weight), (name, weight))


def _single(b: Builder, family: str, call: str, operands: tuple[str, ...]) -> Proposal:
    result = b.new()
    return Proposal(Statement(family, f"{result} = {call}", (result,), operands))


def _again(b: Builder) -> Proposal | None:
    """An earlier statement once more, with what its operands are now."""
    again = [s for s in b.statements if len(s.results) == 1 and s.text.startswith(f"{s.results[0]} = ")]
    if not again:
        return None
    statement = b.rng.choice(again[-6:])
    call = statement.text.partition(" = ")[2]
    return _single(b, statement.family, call, statement.operands)


def _grow(b: Builder, length: int, repeats: float) -> None:
    names, weights = list(FAMILIES), [weight for _, weight in FAMILIES.values()]
    for _ in range(length):
        if repeats > 0 and b.rng.random() < repeats:
            proposal = _again(b)
            if proposal is not None and b.add(proposal):
                continue
        for _ in range(_TRIES):
            family = b.rng.choices(names, weights)[0]
            if family == "in_place" and b.grad and b.rng.random() < 0.6:
                continue  # mostly of what a gradient needs
            if family == "window" and b.rng.random() < 0.5:
                proposal = _convolution(b)
            else:
                proposal = b.rng.choice(FAMILIES[family][0]).propose(b, family)
            if proposal is not None and b.add(_within(b, proposal)):
                break


def _within(b: Builder, proposal: Proposal) -> Proposal:
    """At times the statement under a context of its own."""
    contexts = ['torch.autocast("cpu")'] if b.low else []
    contexts += ['torch.autocast("cpu", enabled=False)'] if b.autocast else []
    contexts += ["torch.no_grad()"] if b.grad else []
    if not contexts or b.rng.random() > 0.05:
        return proposal
    statement = proposal.statement
    text = f"with {b.rng.choice(contexts)}: {statement.text}"
    return replace(proposal, statement=replace(statement, text=text))


def _outputs(b: Builder) -> tuple[str, ...]:
    """What nobody else reads, some of the rest, at times an input, in any order."""
    rng = b.rng
    read = {name for statement in b.statements for name in statement.operands}
    made = [name for statement in b.statements for name in statement.results]
    found = [n for n in made if n not in read or rng.random() < 0.15]
    found += [item.name for item in b.inputs if rng.random() < 0.05]
    rng.shuffle(found)
    if found and rng.random() < 0.05:
        found.insert(0, rng.choice(found))
    return tuple(found[:12]) or (b.names[0],)


def _with_backward(program: Program) -> Program:
    """Without gradients where eager refuses them: a value that they need was written in place."""
    try:
        if program.grad:
            Execution(program, program.worlds[0], reference=False).call().backward()
        return program
    except RuntimeError:
        return program.with_(grad=False)


def generate(
    seed: int, length: int = 14, sizes: Sequence[int] | None = None, repeats: float = 0
) -> Program:
    """The program of `seed`. Statements number up to about `length`, of which a share of `repeats`
    comes twice; dimensions have `sizes`."""
    sizes = sizes or _SIZES
    rng = random.Random(f"kiln {seed}")
    dynamic, grad, low = rng.random() < 0.35, rng.random() < 0.45, rng.random() < 0.3
    autocast = rng.random() < 0.1
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        b = Builder(seed, _worlds(rng, dynamic, sizes), dynamic, grad, autocast)
        b.rng = rng
        b.low = low
        b.most_elements = max(b.most_elements, 8 * max(sizes) ** 2)
        b.rebuild()
        with torch.set_grad_enabled(grad):
            _add_inputs(b, low)
            _grow(b, rng.randint(2, length), repeats)
            return _with_backward(b.program(_outputs(b)))
