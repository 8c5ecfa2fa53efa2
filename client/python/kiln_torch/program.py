"""The way from a captured graph to a program that runs here."""

from __future__ import annotations

import functools
from dataclasses import replace

from kiln_torch import _kiln
from kiln_torch.library import LibraryStep
from kiln_torch.settings import FROM_LIBRARY, Settings


def make_client(settings: Settings, debug: bool = False) -> _kiln.Client:
    """Raises _kiln.Error for impossible settings. Does not connect."""
    given = dict(zip(FROM_LIBRARY, settings.from_library(), strict=True))
    return _kiln.Client(
        settings.server,
        settings.timeout_s,
        settings.threads,
        "" if debug else settings.debug_dir,
        debug,
        fail_on_miss=settings.fail_on_miss,
        prepare_memory=settings.prepare_memory,
        arch=settings.arch,
        **given,
    )


# By all settings, so that another set gets another client; connections are shared below.
client_of = functools.cache(make_client)


def load_program(graph: str, settings: Settings) -> _kiln.Program:
    """The program of a captured graph, ready to run. Raises _kiln.Error."""
    program = client_of(settings).compile(graph)
    try:
        steps = [LibraryStep(step) for step in program.library_steps()]
    except Exception as error:
        # Such as an operator that this torch does not have.
        raise _kiln.Error(f"a library step cannot be called here: {error!r}") from error
    program.set_library_steps(steps)
    program.set_prepare_memory(settings.prepare_memory)
    if settings.prepare_memory > 0:
        program.set_unprepared(functools.partial(_unprepared, graph, settings))
    return program


def _unprepared(graph: str, settings: Settings) -> _kiln.Program | None:
    """For parameters that come when others have taken the memory: what is not kept, every call
    would compute. None where the server does not give it."""
    try:
        return load_program(graph, replace(settings, prepare_memory=0))
    except _kiln.Error:
        return None
