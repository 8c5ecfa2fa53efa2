"""Size expressions: from sympy, as torch writes them, to SymInt as protobuf JSON."""

from __future__ import annotations

from typing import Any

import sympy
import torch
from torch.utils._sympy import functions as sympy_functions

INT64_MAX = 2**63 - 1


class CaptureError(Exception):
    """This graph cannot be sent to a server; the message says why."""


# The kinds of SymExpr and the sympy classes they stand for.
_EXPR_KINDS: dict[type, str] = {
    sympy.Add: "KIND_ADD",
    sympy.Mul: "KIND_MUL",
    sympy_functions.FloorDiv: "KIND_FLOOR_DIV",
    sympy_functions.PythonMod: "KIND_MOD",
    sympy_functions.Mod: "KIND_MOD",
    sympy_functions.Min: "KIND_MIN",
    sympy_functions.Max: "KIND_MAX",
    sympy.Min: "KIND_MIN",
    sympy.Max: "KIND_MAX",
}


def _without(numbers: list[int], leave_out: list[int]) -> list[int] | None:
    """`numbers` less each of `leave_out` once; None where one of them is missing."""
    rest = list(numbers)
    for number in leave_out:
        if number not in rest:
            return None
        rest.remove(number)
    return rest


class Sizes:
    """Numbers sympy symbols in order of first use and writes size expressions.

    Views of views give quotients such as (s * s) // s, nested many times over, which sympy leaves
    as they are. Common factors are divided out here, on expressions that exist once each and are
    known by number, so that finding equal ones costs nothing.
    """

    def __init__(self) -> None:
        self.symbols: list[dict[str, Any]] = []
        self._symbol_numbers: dict[sympy.Symbol, int] = {}
        self._parts: list[tuple[str, tuple[int, ...]]] = []  # kind; operands, or a leaf's number
        self._numbers: dict[tuple[str, tuple[int, ...]], int] = {}
        self._of_sympy: dict[sympy.Expr, int] = {}
        self._messages: dict[int, dict[str, Any]] = {}

    def sym_int(self, size: Any) -> dict[str, Any]:
        """SymInt of `size`, an int or a torch.SymInt."""
        if not isinstance(size, torch.SymInt):
            return {"value": int(size)}
        number = self._read(size.node.expr, size.node.shape_env)
        kind, operands = self._parts[number]
        if kind == "KIND_CONSTANT":
            return {"value": operands[0]}
        return {"expr": self._message(number)}

    def _symbol(self, symbol: sympy.Symbol, shape_env: Any) -> int:
        if symbol in self._symbol_numbers:
            return self._symbol_numbers[symbol]
        if shape_env.is_unbacked_symint(symbol):
            raise CaptureError(f"size {symbol} depends on a tensor's values")
        bounds = shape_env.var_to_range.get(symbol)
        low = int(bounds.lower) if bounds is not None else 0
        high = INT64_MAX
        if bounds is not None and bounds.upper.is_finite and bounds.upper < INT64_MAX:
            high = int(bounds.upper)
        current = hasattr(shape_env, "backed_var_to_val")
        values = shape_env.backed_var_to_val if current else shape_env.var_to_val
        hint = int(values.get(symbol, max(low, 1)))
        self._symbol_numbers[symbol] = len(self.symbols)
        self.symbols.append({"name": str(symbol), "min": low, "max": high, "hint": hint})
        return self._symbol_numbers[symbol]

    def _read(self, expr: sympy.Expr, shape_env: Any) -> int:
        if expr not in self._of_sympy:
            self._of_sympy[expr] = self._read_new(expr, shape_env)
        return self._of_sympy[expr]

    def _read_new(self, expr: sympy.Expr, shape_env: Any) -> int:
        if expr.is_Integer:
            return self._number("KIND_CONSTANT", (int(expr),))
        if expr.is_Symbol:
            return self._number("KIND_SYMBOL", (self._symbol(expr, shape_env),))
        operands = [self._read(arg, shape_env) for arg in expr.args]
        for cls, kind in _EXPR_KINDS.items():
            if isinstance(expr, cls):
                return self._make(kind, operands)
        if isinstance(expr, sympy_functions.ModularIndexing):
            base, divisor, modulus = operands
            return self._make("KIND_MOD", [self._make("KIND_FLOOR_DIV", [base, divisor]), modulus])
        if isinstance(expr, (sympy.Pow, sympy_functions.PowByNatural)):
            exponent = expr.args[1]
            if exponent.is_Integer and 0 < int(exponent) <= 8:
                return self._make("KIND_MUL", [operands[0]] * int(exponent))
        raise CaptureError(f"size expression {expr} has no counterpart")

    def _number(self, kind: str, operands: tuple[int, ...]) -> int:
        number = self._numbers.setdefault((kind, operands), len(self._parts))
        if number == len(self._parts):
            self._parts.append((kind, operands))
        return number

    def _make(self, kind: str, operands: list[int]) -> int:
        if kind == "KIND_MUL":
            return self._product([factor for part in operands for factor in self._factors(part)])
        if kind == "KIND_FLOOR_DIV":
            return self._quotient(*operands)
        if kind == "KIND_ADD":
            return self._sum(operands)
        return self._number(kind, tuple(operands))

    def _factors(self, number: int) -> list[int]:
        return self._operands(number, "KIND_MUL")

    def _operands(self, number: int, of_kind: str) -> list[int]:
        kind, operands = self._parts[number]
        return list(operands) if kind == of_kind else [number]

    def _product(self, factors: list[int]) -> int:
        if not factors:
            return self._number("KIND_CONSTANT", (1,))
        return factors[0] if len(factors) == 1 else self._number("KIND_MUL", tuple(factors))

    def _sum(self, terms: list[int]) -> int:
        # x - x % n is n * (x // n), which a division by n then undoes.
        for term in terms:
            found = self._negated_mod(term)
            if found is None:
                continue
            x, n = found
            rest = _without(terms, [term, *self._operands(x, "KIND_ADD")])
            if rest is not None:
                rounded = self._make("KIND_MUL", [n, self._quotient(x, n)])
                return self._sum([*rest, rounded]) if rest else rounded
        return self._number("KIND_ADD", tuple(terms))

    def _negated_mod(self, number: int) -> tuple[int, int] | None:
        """(x, n) where `number` is -1 * (x % n)."""
        minus_one = self._number("KIND_CONSTANT", (-1,))
        factors = _without(self._factors(number), [minus_one]) or []
        kind, operands = self._parts[factors[0]] if len(factors) == 1 else ("", ())
        return (operands[0], operands[1]) if kind == "KIND_MOD" else None

    def _quotient(self, dividend: int, divisor: int) -> int:
        # (a * b) // (a * c) is b // c whatever the signs; a is not 0, or the size would not exist.
        above, below = self._factors(dividend), []
        for factor in self._factors(divisor):
            if factor in above:
                above.remove(factor)
            else:
                below.append(factor)
        if not below:
            return self._product(above)
        return self._number("KIND_FLOOR_DIV", (self._product(above), self._product(below)))

    def _message(self, number: int) -> dict[str, Any]:
        if number not in self._messages:
            kind, operands = self._parts[number]
            message: dict[str, Any] = {"kind": kind}
            if kind == "KIND_CONSTANT":
                message["constant"] = operands[0]
            elif kind == "KIND_SYMBOL":
                message["symbol"] = operands[0]
            else:
                message["operands"] = [self._message(operand) for operand in operands]
            self._messages[number] = message
        return self._messages[number]
