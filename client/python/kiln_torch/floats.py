"""Floats that follow from sizes, such as a scale of n ** -0.5, as scalar tensors of a graph.

The wire has numbers and integer expressions. A float expression becomes nodes that compute it in
float64 on tensors of rank 0, with Python's meaning of each operation; kernels take them in.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import sympy
import torch
from torch.utils._sympy import functions as sympy_functions

from kiln_torch.sizes import Sizes, specialize

SCALAR_TYPE = {"tensor": {"dtype": "DTYPE_FLOAT64", "sizes": [], "strides": []}}

# Operators of as many tensors as the expression has operands.
_OPERATORS: dict[type, str] = {
    sympy.Add: "aten.add.Tensor",
    sympy.Mul: "aten.mul.Tensor",
    sympy_functions.FloatTrueDiv: "aten.div.Tensor",
    sympy_functions.IntTrueDiv: "aten.div.Tensor",
    sympy_functions.FloatPow: "aten.pow.Tensor_Tensor",
    sympy_functions.PowByNatural: "aten.pow.Tensor_Tensor",
    sympy_functions.TruncToFloat: "aten.trunc.default",
    sympy_functions.Max: "aten.maximum.default",
    sympy_functions.Min: "aten.minimum.default",
    sympy.Max: "aten.maximum.default",
    sympy.Min: "aten.minimum.default",
    sympy.Abs: "aten.abs.default",
}
_FUNCTIONS = ("sqrt", "exp", "log", "log2", "cos", "cosh", "sin", "sinh", "tan", "tanh")
for _name in (*_FUNCTIONS, "asin", "acos", "atan"):
    _class = getattr(sympy_functions, f"OpaqueUnaryFn_{_name}", None)
    if _class is not None:
        _OPERATORS[_class] = f"aten.{_name}.default"


class Floats:
    """Float expressions of one graph; equal ones are computed once.

    `add_node(op, args)` appends a node with one result of SCALAR_TYPE and returns its value number.
    """

    def __init__(self, sizes: Sizes, add_node: Callable[[str, list[dict[str, Any]]], int]) -> None:
        self._sizes = sizes
        self._add_node = add_node
        self._values: dict[sympy.Expr, int] = {}

    def define(self, value: torch.SymFloat, number: int) -> None:
        """Value `number`, a scalar tensor, is this float from here on."""
        self._values[value.node.expr] = number

    def argument(self, value: torch.SymFloat) -> dict[str, Any]:
        """Argument message: a number where it is constant, else a scalar tensor."""
        expr = value.node.expr
        if expr.is_Number:
            return {"float": float(expr)}
        return {"value": self._value(expr, value.node.shape_env)}

    def output(self, value: torch.SymFloat) -> dict[str, Any]:
        return {"value": self._value(value.node.expr, value.node.shape_env)}

    def constant(self, value: float) -> int:
        return self._scalar({"float": value})

    def _value(self, expr: sympy.Expr, shape_env: Any) -> int:
        if expr not in self._values:
            self._values[expr] = self._compute(expr, shape_env)
        return self._values[expr]

    def _compute(self, expr: sympy.Expr, shape_env: Any) -> int:
        if isinstance(expr, (sympy_functions.ToFloat, sympy_functions.Identity)):
            return self._value(expr.args[0], shape_env)
        if expr.is_integer:
            return self._scalar({"sym_int": self._sizes.integer(expr, shape_env)})
        if expr.is_Number and expr.is_finite:
            return self._scalar({"float": float(expr)})
        for cls, operator in _OPERATORS.items():
            if isinstance(expr, cls):
                return self._fold(operator, [self._value(arg, shape_env) for arg in expr.args])
        return self._scalar({"float": float(specialize(expr, shape_env))})

    def _scalar(self, number: dict[str, Any]) -> int:
        return self._add_node("aten.full.default", [{"list": {"items": []}}, number])

    def _fold(self, operator: str, operands: list[int]) -> int:
        if len(operands) == 1:
            return self._add_node(operator, [{"value": operands[0]}])
        result = operands[0]
        for operand in operands[1:]:
            result = self._add_node(operator, [{"value": result}, {"value": operand}])
        return result
