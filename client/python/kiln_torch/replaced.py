"""Functions of torch's that are others for as long as a graph is traced."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import Any


@contextlib.contextmanager
def replaced(owner: type | None, name: str, make: Callable[[Any], Any]) -> Iterator[None]:
    """Meanwhile, `owner`'s own attribute `name` is what `make` gives for its value. A torch that has it elsewhere
    traces as it would anyway. Not for two threads at a time: dynamo's lock is held where backends run."""
    written = vars(owner).get(name) if owner is not None else None
    if written is None:
        yield
        return
    setattr(owner, name, make(getattr(owner, name)))
    try:
        yield
    finally:
        setattr(owner, name, written)  # itself, such as a staticmethod
