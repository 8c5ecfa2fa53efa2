"""What a module calls the inputs of a graph: its parameters, its buffers and its arguments."""

from __future__ import annotations

import contextlib
import inspect
import re
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

import torch

# Of a node's meta: the names of the input.
MODULE_NAMES = "kiln_module_names"

Names = Mapping[int, tuple[str, ...]]

_STEP = r"\._(?:modules|parameters|buffers)\['([^']+)'\]"
_OF_MODULE = re.compile(rf"(.*?)((?:\._modules\['[^']+'\])*\._(?:parameters|buffers)\['[^']+'\])")
_ARGUMENT = re.compile(r"L\['(?:\w+'\]\[')?(\w+)'\]")  # of **kwargs, too
_LAST_WORD = re.compile(r"(?:\['|\.)(\w+)(?:'\])?$")


def _source_text(source: Any) -> str:
    """As Dynamo writes where a value comes from: "L['self']._modules['encoder']._parameters['weight']"."""
    name = getattr(source, "name", "")
    return str(name() if callable(name) else name)


def _from_sources(texts: Mapping[int, str]) -> dict[int, str]:
    """Qualified names in the module that they are of. Where a function uses several, the variable that
    holds a module stands first."""
    found = {i: match for i, text in texts.items() if (match := _OF_MODULE.fullmatch(text))}
    roots = {match[1] for match in found.values()}
    names = {}
    for i, match in found.items():
        parts = re.findall(_STEP, match[2])
        if len(roots) > 1:
            variable = _LAST_WORD.search(match[1])
            parts.insert(0, variable[1] if variable else match[1])
        names[i] = ".".join(parts)
    return names


def known_names(owner: Any, args: Sequence[Any]) -> dict[int, list[str]]:
    """By the identity of a tensor, its names in a call owner(*args): those of named_parameters() and
    named_buffers() where `owner` is a module, all of them where one is tied, and of its arguments."""
    names: dict[int, list[str]] = {}
    function = owner
    if isinstance(owner, torch.nn.Module):
        function = owner.forward
        for members in (owner.named_parameters, owner.named_buffers):
            for name, tensor in members(remove_duplicate=False):
                names.setdefault(id(tensor), []).append(name)
    taken = {name for of_tensor in names.values() for name in of_tensor}
    with contextlib.suppress(TypeError, ValueError):  # no signature, or one for other arguments
        for name, value in inspect.signature(function).bind(*args).arguments.items():
            if isinstance(value, torch.Tensor) and name not in taken:
                names.setdefault(id(value), [name])
    return names


def module_names(
    module: torch.fx.GraphModule, known: Mapping[int, Sequence[str]] | None = None
) -> Names:
    """By the position of an input of Dynamo's graph, what the module calls it.

    What is not among `known` (known_names) is called as the module that Dynamo found it in calls it,
    or as the argument that it is, where no parameter has that name. A name that two inputs would
    have is none.
    """
    placeholders = [node for node in module.graph.nodes if node.op == "placeholder"]
    arguments = {i: node.meta.get("grapharg") for i, node in enumerate(placeholders)}
    names: dict[int, tuple[str, ...]] = {}
    for position, argument in arguments.items():
        if (found := (known or {}).get(id(getattr(argument, "example", None)))) is not None:
            names[position] = tuple(found)
    sources = {
        position: _source_text(getattr(argument, "source", None))
        for position, argument in arguments.items()
        if position not in names
    }
    names |= {position: (name,) for position, name in _from_sources(sources).items()}
    count = Counter(name for of_input in names.values() for name in of_input)
    names = {
        position: tuple(name for name in of_input if count[name] == 1)
        for position, of_input in names.items()
    }
    for position, text in sources.items():
        match = _ARGUMENT.fullmatch(text)
        if match and position not in names and match[1] not in count:
            names[position] = (match[1],)
            count[match[1]] += 1
    return names


def name_inputs(module: torch.fx.GraphModule, names: Names) -> None:
    """Writes `names` to the inputs of a graph of AOTAutograd's, each of which says in its meta which
    input of Dynamo's graph it is. Those of a torch that does not say stay without a name."""
    for node in module.graph.nodes:
        if node.op == "placeholder":
            position = getattr(node.meta.get("desc"), "idx", None)
            node.meta[MODULE_NAMES] = names.get(position, ())
