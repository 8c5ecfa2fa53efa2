"""Makes a failing program small: drops and simplifies parts of it for as long as it fails alike."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator

from program import Program, literal_names


def tidy(program: Program) -> Program | None:
    """Without what cannot run any more, and without inputs that nobody reads."""
    known = {item.name for item in program.inputs}
    statements = []
    for statement in program.statements:
        if set(statement.operands) <= known:
            statements.append(statement)
            known |= set(statement.results)
    outputs = tuple(name for name in program.outputs if name in known)
    read = set(outputs) | {name for s in statements for name in literal_names(s.text)}
    for item in reversed(program.inputs):
        read |= literal_names(item.base) if item.name in read else set()
    inputs = tuple(item for item in program.inputs if item.name in read)
    if not outputs or not inputs:
        return None
    return program.with_(inputs=inputs, statements=tuple(statements), outputs=outputs)


def _chunks(length: int) -> Iterator[tuple[int, int]]:
    """(first, count) of halves, quarters, ... of a list."""
    count = length // 2
    while count:
        for first in range(0, length, count):
            yield first, count
        count //= 2


def _unread(program: Program) -> Program:
    """Without statements whose results nobody reads. In-place ones stay."""
    read, kept = set(program.outputs), []
    for statement in reversed(program.statements):
        if not statement.results or read & set(statement.results):
            kept.append(statement)
            read |= literal_names(statement.text)
    return program.with_(statements=tuple(reversed(kept)))


def _simpler(program: Program, cut: Callable[[Program, str], Program | None]) -> Iterator[Program]:
    """Candidates, those that remove most first."""
    for first, count in _chunks(len(program.outputs)):
        left = program.outputs[:first] + program.outputs[first + count :]
        if left:
            yield _unread(program.with_(outputs=left))
    for first, count in _chunks(len(program.statements)):
        kept = program.statements[:first] + program.statements[first + count :]
        yield program.with_(statements=kept)
    if len(program.worlds) > 1:
        for world in program.worlds:
            yield program.with_(worlds=(world,))
    if program.dynamic:
        yield program.with_(dynamic=False)
    if program.grad:
        yield program.with_(grad=False)
    if program.autocast:
        yield program.with_(autocast=False)
    for statement in reversed(program.statements):
        if len(statement.results) == 1:
            shorter = cut(program, statement.results[0])
            if shorter is not None:
                yield _unread(shorter)
    for at, item in enumerate(program.inputs):
        for plain in ({"requires_grad": False}, {"view": ""}):
            if any(getattr(item, name) != value for name, value in plain.items()):
                changed = type(item)(**{**item.__dict__, **plain})
                yield program.with_(
                    inputs=(*program.inputs[:at], changed, *program.inputs[at + 1 :])
                )
    for letter in program.worlds[0]:
        for size in (2, 3):
            if all(world[letter] > size for world in program.worlds):
                worlds = [{**world, letter: size + i} for i, world in enumerate(program.worlds)]
                yield program.with_(worlds=tuple(worlds))


def shrink(
    program: Program,
    fails: Callable[[Program], bool],
    cut: Callable[[Program, str], Program | None],
    seconds: float,
) -> Program:
    """The smallest program found in that time for which `fails` is true, as it is for `program`."""
    deadline = time.monotonic() + seconds
    tried: set[str] = set()
    smaller = True
    while smaller:
        smaller = False
        for candidate in _simpler(program, cut):
            if time.monotonic() > deadline:
                return program
            tidied = tidy(candidate)
            if tidied is None or tidied == program or repr(tidied) in tried:
                continue
            tried.add(repr(tidied))
            if fails(tidied):
                program, smaller = tidied, True
                break
    return program
