"""Which operator of a graph met an index outside of its dimension or divided an integer by zero, and
where the user wrote it.

A kernel is many operators, and says only that some index or divisor was wrong. A failed run has
written nothing that its caller sees, so the graph runs once more, operator by operator, until one
refuses.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

import torch

from kiln_torch import _kiln
from kiln_torch.devices import random_state, set_random_state
from kiln_torch.reference import copies

_MOST_NAMED = 4
_ZERO_DIVISION = "ZeroDivisionError"  # in the text of a RuntimeError of ATen's
# What reads or writes at positions that a tensor holds.
_WORDS = ("embedding", "index", "gather", "scatter", "take", "put", "nll_loss")


class _Refused(Exception):
    def __init__(self, node: torch.fx.Node, error: Exception) -> None:
        super().__init__(node.name)
        self.node = node
        self.error = error


class _UntilRefused(torch.fx.Interpreter):
    def run_node(self, n: torch.fx.Node) -> Any:
        try:
            return super().run_node(n)
        except Exception as error:
            raise _Refused(n, error) from error


def _refusal(
    module: torch.fx.GraphModule, inputs: Sequence[Any], device: torch.device
) -> _Refused | None:
    state = random_state(device)
    try:
        with torch.no_grad():
            _UntilRefused(module).run(*copies(inputs))
    except _Refused as refused:
        return refused
    except Exception:  # another run may lack memory for what is kept between operators
        return None
    finally:
        set_random_state(state, device)
    return None


def _describe(name: str, nodes: dict[str, dict[str, Any]]) -> str:
    node = nodes.get(name, {})
    where = f", {node['location']}" if node.get("location") else ""
    return f"{node.get('op', 'an operator')} (node '{name}'){where}"


def _as_eager(error: Exception, text: str) -> Exception:
    """ATen's is a RuntimeError where an integer is divided by zero."""
    if isinstance(error, _kiln.DivisionByZero) or str(error).startswith(_ZERO_DIVISION):
        return RuntimeError(text)
    return IndexError(text)


def named(
    error: IndexError | _kiln.DivisionByZero,
    inputs: Sequence[Any],
    module: torch.fx.GraphModule,
    text: str,
    device: torch.device,
) -> Exception:
    """`error` of a run on `inputs` as eager has it, with the operator at fault and its line. `text`
    is the graph as protobuf JSON. On a GPU, where a wrong index in one of torch's kernels would end
    the process' use of it, with the operators that take indices."""
    nodes = {node["name"]: node for node in json.loads(text)["nodes"]}
    if device.type == "cpu":
        refused = _refusal(module, inputs, device)
        if refused is not None:
            described = f"{_describe(refused.node.name, nodes)}: {refused.error}"
            return _as_eager(refused.error, described)
    if isinstance(error, _kiln.DivisionByZero):
        return _as_eager(error, f"{_ZERO_DIVISION}: {error}")
    takers = [
        name for name, node in nodes.items() if any(word in node["op"] for word in _WORDS)
    ]
    if not takers:
        return error
    some = "; ".join(_describe(name, nodes) for name in takers[:_MOST_NAMED])
    more = f"; {len(takers) - _MOST_NAMED} more" if len(takers) > _MOST_NAMED else ""
    return IndexError(f"{error}. Indices go to {some}{more}")
