"""A process that makes and checks programs: requests and answers are lines of JSON.

{"do": "generate", "seed": n} -> program; {"do": "check", "program": ..., "layer": ...} -> outcome;
{"do": "cut", "program": ..., "name": ...} -> the program with that value as an input, or null.

Every answer is made in a fork of the process, which has torch loaded and no threads: a crash costs
nothing but itself, and nothing adds up. Arguments are modules to load first.
"""

from __future__ import annotations

import importlib
import json
import os
import signal
import sys
from dataclasses import asdict

import torch

from builder import run
from checker import check
from generate import generate
from program import Input, Program


def cut(program: Program, name: str) -> Program | None:
    """`program` with a new input in the place of the statement that makes `name`."""
    at = next(i for i, s in enumerate(program.statements) if name in s.results)
    if len(program.statements[at].results) > 1:
        return None
    tensors = [run(program, world, False)[name] for world in program.worlds]
    sizes = []
    for dim in range(tensors[0].dim()):
        values = [tensor.size(dim) for tensor in tensors]
        letters = [s for s in program.worlds[0] if [w[s] for w in program.worlds] == values]
        if len(set(values)) > 1 and not letters:
            return None
        sizes.append(str(values[0]) if len(set(values)) == 1 else letters[0])
    dtype = str(tensors[0].dtype).removeprefix("torch.")
    shape = f"({', '.join(sizes)}{',' if len(sizes) == 1 else ''})"
    floating = tensors[0].is_floating_point()
    if floating and name in program.exact:
        base = f"(torch.randint(-16, 17, {shape}, generator=g) / 4).to(torch.{dtype})"
    elif floating:
        base = f"torch.randn({shape}, generator=g).to(torch.{dtype})"
    else:
        base = f"torch.randint(0, 2, {shape}, generator=g).to(torch.{dtype})"
    value = Input(name, base, "", floating, program.grad and floating)
    statements = program.statements[:at] + program.statements[at + 1 :]
    return program.with_(inputs=(*program.inputs, value), statements=statements)


def answer(request: dict):
    if request["do"] == "generate":
        return generate(request["seed"], request["length"], request["sizes"], request["repeats"]).to_json()
    program = Program.from_json(request["program"])
    if request["do"] == "cut":
        found = cut(program, request["name"])
        return found and found.to_json()
    return asdict(check(program, request.get("layer", "kiln")))


def reply(request: dict) -> dict:
    try:
        return {"ok": answer(request)}
    except Exception as error:  # a fault of the generator: named, and the next one tried
        return {"failed": f"{type(error).__name__}: {error}"[:500]}


def in_a_fork(request: dict) -> dict:
    """What a fork of this process replies, or how it ended instead."""
    reading, writing = os.pipe()
    process = os.fork()
    if process == 0:
        os.close(reading)
        with os.fdopen(writing, "w") as out:
            json.dump(reply(request), out)
        os._exit(0)
    os.close(writing)
    with os.fdopen(reading) as answered:
        text = answered.read()
    _, status = os.waitpid(process, 0)
    if os.WIFSIGNALED(status):
        return {"crash": signal.Signals(os.WTERMSIG(status)).name}
    return json.loads(text) if text else {"crash": f"exit code {os.waitstatus_to_exitcode(status)}"}


def load() -> None:
    """What torch loads when it first compiles, so that forks have it."""
    x = torch.ones(2, 3, requires_grad=True)
    torch.compile(lambda x: (x * 2).sum(0), backend="aot_eager", dynamic=True)(x)
    torch._dynamo.reset()


def main() -> None:
    # Answers have the pipe for themselves: whatever prints goes to standard error.
    out = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    torch.set_num_threads(1)
    load()
    for module in sys.argv[1:]:
        importlib.import_module(module)
    for line in sys.stdin:
        out.write(json.dumps(in_a_fork(json.loads(line))) + "\n")
        out.flush()


if __name__ == "__main__":
    main()
