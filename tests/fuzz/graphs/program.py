"""A random program: inputs and statements as Python text, so that it prints, replays and shrinks."""

from __future__ import annotations

import re
from dataclasses import asdict, dataclass, replace

FLOATS = ("float16", "bfloat16", "float32", "float64")
_FLOAT_NAME = re.compile(r"torch\.(?:float16|bfloat16|float32)\b")


@dataclass(frozen=True)
class Input:
    """`name = (base)view`; base names the sizes a, b, c, ... and the generator g."""

    name: str
    base: str
    view: str
    floating: bool
    requires_grad: bool = False

    def text(self, reference: bool = False) -> str:
        double = ".double()" if reference and self.floating else ""
        grad = ".requires_grad_()" if self.requires_grad else ""
        base = f"({self.base})" if " " in self.base and not self.base.endswith(")") else self.base
        return f"{self.name} = {base}{double}{self.view}{grad}"


@dataclass(frozen=True)
class Statement:
    family: str
    text: str
    results: tuple[str, ...]
    operands: tuple[str, ...]

    def reference(self) -> str:
        """The same in float64. A cast copies there as well, where all floating types are one."""
        text = re.sub(
            r"\.to\(torch\.(?:float16|bfloat16|float32)\)",
            ".to(torch.float64, copy=True)",
            self.text,
        )
        return _FLOAT_NAME.sub("torch.float64", text)


@dataclass(frozen=True)
class Program:
    seed: int
    worlds: tuple[dict[str, int], ...]  # values of the sizes, one call each
    inputs: tuple[Input, ...]
    statements: tuple[Statement, ...]
    outputs: tuple[str, ...]
    exact: tuple[str, ...]  # values that every right execution gives bit by bit
    dynamic: bool = False
    grad: bool = False
    autocast: bool = False  # to bfloat16, around everything

    def low(self) -> bool:
        """Whether a type of 16 bits takes part."""
        text = " ".join([i.base for i in self.inputs] + [s.text for s in self.statements])
        names = ("torch.float16", "torch.bfloat16", "autocast(")
        return self.autocast or any(name in text for name in names)

    def function(self, reference: bool = False) -> str:
        names = ", ".join(i.name for i in self.inputs)
        lines = [f"def fn({names}):"]
        lines += [f"    {s.reference() if reference else s.text}" for s in self.statements]
        comma = "," if len(self.outputs) == 1 else ""
        return "\n".join([*lines, f"    return ({', '.join(self.outputs)}{comma})", ""])

    def inputs_function(self, reference: bool = False) -> str:
        sizes = ", ".join(self.worlds[0]) if self.worlds else ""
        lines = [f"def inputs({sizes}):", f"    g = torch.Generator().manual_seed({self.seed})"]
        lines += [f"    {i.text(reference)}" for i in self.inputs]
        return "\n".join([*lines, f"    return [{', '.join(i.name for i in self.inputs)}]", ""])

    def to_json(self) -> dict:
        return asdict(self)

    @classmethod
    def from_json(cls, data: dict) -> Program:
        data = dict(data)
        data["inputs"] = tuple(Input(**i) for i in data["inputs"])
        data["statements"] = tuple(
            Statement(s["family"], s["text"], tuple(s["results"]), tuple(s["operands"]))
            for s in data["statements"]
        )
        for name in ("worlds", "outputs", "exact"):
            data[name] = tuple(data[name])
        return cls(**data)

    def with_(self, **changes) -> Program:
        return replace(self, **changes)


def literal_names(text: str) -> set[str]:
    """The values v0, v1, ... and x0, x1, ... that `text` names."""
    return set(re.findall(r"\b[vx]\d+\b", text))
