"""A program as a script that can be run by itself."""

from __future__ import annotations

from program import Program

_SCRIPT = '''"""{title}

Shows a program of tests/fuzz/graphs: eager and torch.compile(backend="kiln") side by side.
"""

import torch
import torch.nn.functional as F


{inputs}

{function}

def gradients(values, outputs):
    outputs = [o for o in outputs if o.requires_grad and o.is_floating_point()]
    leaves = [x for x in values if x.requires_grad]
    if not outputs or not leaves:
        return []
    g = torch.Generator().manual_seed({seed})
    weights = [(torch.randint(-8, 9, o.shape, generator=g) / 8).to(o.dtype) for o in outputs]
    return torch.autograd.grad(outputs, leaves, weights, allow_unused=True)


def run(function, sizes):
    values = inputs(**sizes)
    with torch.set_grad_enabled({grad}), torch.autocast("cpu", enabled={autocast}):
        outputs = function(*values)
    found = {{f"output {{i}}": value for i, value in enumerate(outputs)}}
    found |= {{f"input {{i}}": value for i, value in enumerate(values)}}
    return found | {{f"gradient {{i}}": x for i, x in enumerate(gradients(values, outputs))}}


if __name__ == "__main__":
    compiled = torch.compile(fn, backend="kiln", dynamic={dynamic})
    for sizes in {worlds}:
        eager, ours = run(fn, sizes), run(compiled, sizes)
        for name, value in eager.items():
            print(name, "eager", value, getattr(value, "stride", tuple)())
            print(name, "kiln ", ours[name], getattr(ours[name], "stride", tuple)())
'''


def script(program: Program, title: str) -> str:
    return _SCRIPT.format(
        title=title.replace("\\", "\\\\").replace('"""', "'''"),
        inputs=program.inputs_function(),
        function=program.function(),
        seed=program.seed,
        grad=program.grad,
        autocast=program.autocast,
        dynamic=program.dynamic or None,
        worlds=list(program.worlds),
    )
