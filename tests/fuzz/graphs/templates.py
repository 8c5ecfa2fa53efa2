"""Statements from templates: text with holes that the builder's values fill.

A hole is `<kind>`: f floating, i integer, m bool, n number, a any; a capital letter asks for an exact
value. After it `~`: broadcasts with the first; `=`: has the first's sizes; a digit: has at least so
many dimensions. `<0>`, `<1>`, ...: the operand of that number again. `<d>` a dimension of the first
operand, `<D>` a list of them, `<e>` a place for a new one; `<k>` an integer, `<c>` a floating number,
`<p>` a positive one, `<t>` a truth value, `<T>` a floating type, `<I>` an integer type.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from builder import Builder, Proposal
from program import Statement

_HOLE = re.compile(r"<(\w[~=]?\d?)>")
_KINDS = {"f": "f", "i": "i", "m": "b", "n": "fi", "a": "fib"}
_INTEGERS = ("-3", "-1", "0", "1", "2", "3", "5")
_FLOATS = ("-1.5", "-0.3", "0.25", "0.5", "2.0", "1.7", "3.0")
_POSITIVE = ("0.1", "0.5", "1.0", "1.3", "2.0")
_FLOAT_TYPES = ("torch.float32", "torch.float32", "torch.bfloat16", "torch.float16", "torch.float64")
_INTEGER_TYPES = ("torch.int64", "torch.int32", "torch.int16", "torch.int8", "torch.uint8")


@dataclass(frozen=True)
class Template:
    text: str
    exact: str = "no"
    results: int = 1  # 0: it writes its first operand

    def propose(self, b: Builder, family: str) -> Proposal | None:
        operands: list[str] = []
        missing = False

        def fill(match: re.Match) -> str:
            nonlocal missing
            filled = _fill(b, match[1], operands)
            missing = missing or filled is None
            return filled or "?"

        text = _HOLE.sub(fill, self.text)
        if missing:
            return None
        results = tuple(b.new() for _ in range(self.results))
        if results:
            text = f"{', '.join(results)} = {text}"
        return Proposal(Statement(family, text, results, tuple(operands)), self.exact)


def _fill(b: Builder, hole: str, operands: list[str]) -> str | None:
    rng = b.rng
    if hole.isdigit():
        return operands[int(hole)] if int(hole) < len(operands) else None
    scalars = {"k": _INTEGERS, "c": _FLOATS, "p": _POSITIVE, "t": ("True", "False"),
               "T": _FLOAT_TYPES, "I": _INTEGER_TYPES}
    if hole in scalars:
        return rng.choice(scalars[hole])
    if hole in ("d", "D", "e") and operands:
        return _dims(b, hole, operands[0])
    if hole not in ("d", "D", "e") and hole[1:2] in ("~", "=") and not operands:
        return None
    kinds = _KINDS.get(hole[0].lower())
    if kinds is None:
        return None
    least = int(hole[1:]) if hole[1:].isdigit() else 0
    relation = {"~": b.broadcasts, "=": b.same_sizes}.get(hole[1:])
    name = b.pick(
        kinds,
        exact=hole[0].isupper(),
        least_dims=least,
        where=(lambda n: relation(operands[0], n)) if relation else None,
    )
    if name is not None:
        operands.append(name)
    return name


def _dims(b: Builder, hole: str, name: str) -> str | None:
    rank, rng = b.rank(name), b.rng
    if hole == "e":
        return str(rng.randint(-rank - 1, rank))
    if rank == 0:
        return None
    if hole == "d":
        return str(rng.randint(-rank, rank - 1))
    count = rng.randint(1, rank)
    dims = rng.sample(range(rank), count)
    return str([dim - rank if rng.random() < 0.3 else dim for dim in dims])


def templates(text: str, exact: str = "no", results: int = 1) -> list[Template]:
    """One template a line."""
    return [Template(line.strip(), exact, results) for line in text.strip().splitlines()]
