"""Size expressions: from sympy, as torch writes them, to SymInt as protobuf JSON."""

from __future__ import annotations

import math
from collections.abc import Callable
from fractions import Fraction
from typing import Any

import sympy
import torch
from torch.fx.experimental.symbolic_shapes import statically_known_true
from torch.utils._sympy import functions as sympy_functions

INT64_MIN, INT64_MAX = -(2**63), 2**63 - 1

# A float constant in a size is taken for the ratio that it is where both numbers are at most this:
# then products with sizes below 2^41 are exact in float64, and so is integer arithmetic instead.
_MAX_EXACT = 2**12

# What a size is taken for that torch has no value of: one that is worth a loop.
_UNKNOWN_SIZE = 1024


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


def specialize(expr: sympy.Basic, shape_env: Any) -> Any:
    """The value of `expr` for the sizes at hand, and a guard that captures anew for another one."""
    free = expr.free_symbols
    if shape_env.frozen or any(shape_env.is_unbacked_symint(symbol) for symbol in free):
        raise CaptureError(f"size expression {expr} has no counterpart")
    if expr.is_integer or not isinstance(expr, sympy.Expr):
        return shape_env.evaluate_expr(expr)
    # A guard on a float would compare what rounding may change: its sizes are guarded instead.
    return expr.xreplace({symbol: shape_env.evaluate_expr(symbol) for symbol in free})


def _values(shape_env: Any) -> dict[sympy.Symbol, Any]:
    """What torch traced each symbol with."""
    current = hasattr(shape_env, "backed_var_to_val")
    return shape_env.backed_var_to_val if current else shape_env.var_to_val


def _guard_divisor(divisor: sympy.Expr, shape_env: Any) -> None:
    """A guard that `divisor` is not 0, unless its range says so: eager raises there, whereas a program has
    a value for all sizes."""
    if shape_env.frozen or any(shape_env.is_unbacked_symint(s) for s in divisor.free_symbols):
        return
    shape_env.evaluate_expr(sympy.Ne(divisor, 0))


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
        self._given: set[sympy.Symbol] = set()
        self._symbol_numbers: dict[sympy.Symbol, int] = {}
        self._parts: list[tuple[str, tuple[int, ...]]] = []  # kind; operands, or a leaf's number
        self._numbers: dict[tuple[str, tuple[int, ...]], int] = {}
        self._of_sympy: dict[sympy.Expr, int] = {}
        self._messages: dict[int, dict[str, Any]] = {}

    def give(self, size: Any) -> None:
        """`size` is one of the graph's inputs or of their sizes: where it is a symbol, each call has its value,
        also where torch traced without one."""
        if isinstance(size, torch.SymInt) and size.node.expr.is_Symbol:
            self._given.add(size.node.expr)

    def sym_int(self, size: Any) -> dict[str, Any]:
        """SymInt of `size`: an int, a bool, a torch.SymInt, or a torch.SymBool as 0 or 1."""
        if not isinstance(size, (torch.SymInt, torch.SymBool)):
            return {"value": int(size)}
        if isinstance(size, torch.SymBool):
            return self._sym_int(self._condition(size.node.expr, size.node.shape_env))
        return self._sym_int(self._read(size.node.expr, size.node.shape_env))

    def integer(self, expr: sympy.Expr, shape_env: Any) -> dict[str, Any]:
        """SymInt of an integer expression."""
        return self._sym_int(self._read(expr, shape_env))

    def _is_known_one(self, expr: sympy.Expr, shape_env: Any) -> bool:
        """Whether a guard makes an expression 1. Later operators' sizes have the 1 already, and what
        loops over one of an earlier tensor's would go on where the result has no place for it."""
        if not expr.args or not expr.is_integer or expr.xreplace(_values(shape_env)) != 1:
            return False
        return statically_known_true(shape_env.create_symintnode(expr, hint=1) == 1)

    def _sym_int(self, number: int) -> dict[str, Any]:
        kind, operands = self._parts[number]
        if kind == "KIND_CONSTANT":
            return {"value": operands[0]}
        return {"expr": self._message(number)}

    def _symbol(self, symbol: sympy.Symbol, shape_env: Any) -> int:
        if symbol in self._symbol_numbers:
            return self._symbol_numbers[symbol]
        is_unbacked = shape_env.is_unbacked_symint(symbol)
        if is_unbacked and symbol not in self._given:
            raise CaptureError(f"size {symbol} depends on a tensor's values")
        bounds = shape_env.var_to_range.get(symbol)
        low, high = 0, INT64_MAX
        if bounds is not None:  # an argument of Python's has no least value
            low = int(bounds.lower) if bounds.lower > INT64_MIN else INT64_MIN
        if bounds is not None and bounds.upper.is_finite and bounds.upper < INT64_MAX:
            high = int(bounds.upper)
        if is_unbacked:
            hint = min(max(low, _UNKNOWN_SIZE), high)
        else:
            hint = _values(shape_env).get(symbol, max(low, 1))
        if not isinstance(hint, (int, sympy.Integer)):
            raise CaptureError(f"size {symbol} is that of a jagged dimension")
        self._symbol_numbers[symbol] = len(self.symbols)
        self.symbols.append({"name": str(symbol), "min": low, "max": high, "hint": int(hint)})
        return self._symbol_numbers[symbol]

    def _read(self, expr: sympy.Expr, shape_env: Any) -> int:
        if expr not in self._of_sympy:
            one = self._is_known_one(expr, shape_env)
            self._of_sympy[expr] = self._constant(1) if one else self._read_new(expr, shape_env)
        return self._of_sympy[expr]

    def _read_new(self, expr: sympy.Expr, shape_env: Any) -> int:
        if expr.is_Integer:
            return self._number("KIND_CONSTANT", (int(expr),))
        if expr.is_Symbol:
            return self._number("KIND_SYMBOL", (self._symbol(expr, shape_env),))
        if isinstance(expr, sympy_functions.Where):
            condition, chosen, otherwise = expr.args
            return self._choice(
                self._condition(condition, shape_env),
                self._read(chosen, shape_env),
                self._read(otherwise, shape_env),
            )
        for cls, rounded in _ROUNDINGS.items():
            if isinstance(expr, cls):
                ratio = self._ratio(expr.args[0], shape_env)
                return rounded(self, *ratio) if ratio else self._constant_of(expr, shape_env)
        for cls, kind in _EXPR_KINDS.items():
            if isinstance(expr, cls):
                if kind in ("KIND_FLOOR_DIV", "KIND_MOD"):
                    _guard_divisor(expr.args[1], shape_env)
                return self._make(kind, [self._read(arg, shape_env) for arg in expr.args])
        return self._read_other(expr, shape_env)

    def _read_other(self, expr: sympy.Expr, shape_env: Any) -> int:
        """Operations that are written with others."""
        if isinstance(expr, sympy_functions.Identity):
            return self._read(expr.args[0], shape_env)
        if isinstance(expr, sympy.Abs):
            x = self._read(expr.args[0], shape_env)
            return self._make("KIND_MAX", [x, self._negative(x)])
        if isinstance(expr, sympy_functions.ModularIndexing):
            base, divisor, modulus = (self._read(arg, shape_env) for arg in expr.args)
            return self._make("KIND_MOD", [self._make("KIND_FLOOR_DIV", [base, divisor]), modulus])
        if isinstance(expr, sympy_functions.CeilDiv):
            return self._ceil_div(*(self._read(arg, shape_env) for arg in expr.args))
        if isinstance(expr, (sympy_functions.LShift, sympy_functions.RShift)):
            left = isinstance(expr, sympy_functions.LShift)
            if expr.args[1].is_Integer and 0 <= int(expr.args[1]) < 62:
                power = self._constant(2 ** int(expr.args[1]))
                value = self._read(expr.args[0], shape_env)
                return self._make("KIND_MUL" if left else "KIND_FLOOR_DIV", [value, power])
        if isinstance(expr, (sympy.Pow, sympy_functions.PowByNatural)):
            exponent = expr.args[1]
            if exponent.is_Integer and 0 < int(exponent) <= 8:
                return self._make(
                    "KIND_MUL", [self._read(expr.args[0], shape_env)] * int(exponent)
                )
        return self._constant_of(expr, shape_env)

    def _constant_of(self, expr: sympy.Expr, shape_env: Any) -> int:
        """The value of `expr` now, and a guard: with another value the graph is captured anew."""
        return self._constant(int(specialize(expr, shape_env)))

    def _constant(self, value: int) -> int:
        return self._number("KIND_CONSTANT", (value,))

    def _negative(self, number: int) -> int:
        return self._make("KIND_MUL", [self._constant(-1), number])

    def _difference(self, a: int, b: int) -> int:
        return self._make("KIND_ADD", [a, self._negative(b)])

    def _at_least(self, a: int, b: int) -> int:
        """1 where a >= b, else 0."""
        above = self._make("KIND_ADD", [self._difference(a, b), self._constant(1)])
        zero, one = self._constant(0), self._constant(1)
        return self._make("KIND_MIN", [one, self._make("KIND_MAX", [zero, above])])

    def _not(self, condition: int) -> int:
        return self._difference(self._constant(1), condition)

    def _choice(self, condition: int, chosen: int, otherwise: int) -> int:
        step = self._make("KIND_MUL", [condition, self._difference(chosen, otherwise)])
        return self._make("KIND_ADD", [otherwise, step])

    def _condition(self, expr: sympy.Basic, shape_env: Any) -> int:
        """A truth value as 0 or 1."""
        if expr in (sympy.true, sympy.false):
            return self._constant(int(expr == sympy.true))
        if isinstance(expr, (sympy.And, sympy.Or, sympy.Not)):
            parts = [self._condition(arg, shape_env) for arg in expr.args]
            if isinstance(expr, sympy.Not):
                return self._not(parts[0])
            return self._make("KIND_MIN" if isinstance(expr, sympy.And) else "KIND_MAX", parts)
        if not isinstance(expr, sympy.core.relational.Relational) or not all(
            arg.is_integer for arg in expr.args
        ):
            return self._constant_of(expr, shape_env)
        a, b = (self._read(arg, shape_env) for arg in expr.args)
        if isinstance(expr, (sympy.Eq, sympy.Ne)):
            both = [self._at_least(a, b), self._at_least(b, a)]
            equal = self._make("KIND_MIN", both)
            return equal if isinstance(expr, sympy.Eq) else self._not(equal)
        if isinstance(expr, (sympy.Gt, sympy.Lt)):
            return self._not(self._at_least(*((b, a) if isinstance(expr, sympy.Gt) else (a, b))))
        return self._at_least(*((a, b) if isinstance(expr, sympy.Ge) else (b, a)))

    def _ratio(self, expr: sympy.Expr, shape_env: Any) -> tuple[int, int] | None:
        """Numerator and positive denominator of a float expression whose float64 value rounds to
        integers as the exact ratio does: one division of numbers that float64 holds exactly.

        Sizes are taken to be below 2^41. None where it is no such expression.
        """
        if isinstance(expr, sympy_functions.IntTrueDiv):
            above, below = (self._read(arg, shape_env) for arg in expr.args)
            return self._with_positive(above, below, expr.args[1], shape_env)
        if isinstance(expr, sympy_functions.FloatTrueDiv):
            dyadic = [self._dyadic(arg, shape_env) for arg in expr.args]
            if None in dyadic:
                return None
            (above, less), (below, scale) = dyadic
            above = self._make("KIND_MUL", [above, self._constant(scale)])
            below = self._make("KIND_MUL", [below, self._constant(less)])
            return self._with_positive(above, below, expr.args[1], shape_env)
        found = self._dyadic(expr, shape_env)
        return (found[0], self._constant(found[1])) if found else None

    def _with_positive(
        self, above: int, below: int, divisor: sympy.Expr, shape_env: Any
    ) -> tuple[int, int]:
        """`above` and `below`, which has the sign of `divisor`, both times that sign."""
        if shape_env.bound_sympy(divisor).lower > 0:
            return above, below
        _guard_divisor(divisor, shape_env)
        minus_one, one = self._constant(-1), self._constant(1)
        sign = self._make("KIND_MIN", [one, self._make("KIND_MAX", [minus_one, below])])
        size = self._make("KIND_MAX", [below, self._negative(below)])
        return self._make("KIND_MUL", [sign, above]), size

    def _dyadic(self, expr: sympy.Expr, shape_env: Any) -> tuple[int, int] | None:
        """An integer expression and the power of two that it is divided by: exact in float64."""
        if isinstance(expr, sympy_functions.ToFloat):
            return self._read(expr.args[0], shape_env), 1
        if isinstance(expr, sympy_functions.Identity):
            return self._dyadic(expr.args[0], shape_env)
        if expr.is_Number and expr.is_finite:
            value = Fraction(float(expr))
            exact = abs(value.numerator) <= _MAX_EXACT and value.denominator <= _MAX_EXACT
            return (self._constant(value.numerator), value.denominator) if exact else None
        if not isinstance(expr, (sympy.Add, sympy.Mul)):
            return None
        parts = [self._dyadic(arg, shape_env) for arg in expr.args]
        if any(part is None for part in parts):
            return None
        if isinstance(expr, sympy.Add):
            scale = max(below for _, below in parts)
            terms = [
                self._make("KIND_MUL", [above, self._constant(scale // below)])
                for above, below in parts
            ]
            return self._make("KIND_ADD", terms), scale
        scale = math.prod(below for _, below in parts)
        factors = [above for above, _ in parts]
        return (self._make("KIND_MUL", factors), scale) if scale <= _MAX_EXACT else None

    def _floor_div(self, above: int, below: int) -> int:
        return self._make("KIND_FLOOR_DIV", [above, below])

    def _ceil_div(self, above: int, below: int) -> int:
        less = self._make("KIND_ADD", [below, self._constant(-1)])
        return self._floor_div(self._make("KIND_ADD", [above, less]), below)

    def _trunc_div(self, above: int, below: int) -> int:
        zero = self._constant(0)
        up = self._make("KIND_MIN", [zero, self._ceil_div(above, below)])
        return self._make("KIND_ADD", [self._make("KIND_MAX", [zero, self._floor_div(above, below)]), up])

    def _round_div(self, above: int, below: int) -> int:
        """To the nearest integer, of two the even one."""
        two = self._constant(2)
        doubled = self._make("KIND_ADD", [self._make("KIND_MUL", [two, above]), below])
        span = self._make("KIND_MUL", [two, below])
        nearest = self._floor_div(doubled, span)
        tie = self._at_least(self._constant(0), self._make("KIND_MOD", [doubled, span]))
        odd = self._make("KIND_MOD", [nearest, two])
        return self._difference(nearest, self._make("KIND_MUL", [tie, odd]))

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


_ROUNDINGS: dict[type, Callable[[Sizes, int, int], int]] = {
    sympy_functions.FloorToInt: Sizes._floor_div,
    sympy_functions.CeilToInt: Sizes._ceil_div,
    sympy_functions.TruncToInt: Sizes._trunc_div,
    sympy_functions.RoundToInt: Sizes._round_div,
}
