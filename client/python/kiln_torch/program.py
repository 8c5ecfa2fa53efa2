"""The way from a captured graph to a program that runs here."""

from __future__ import annotations

import functools
from dataclasses import replace

import torch

from kiln_torch import _kiln
from kiln_torch.devices import CPU
from kiln_torch.library import LibraryStep
from kiln_torch.settings import FROM_LIBRARY, Settings


def make_client(
    settings: Settings, device: torch.device = CPU, debug: bool = False
) -> _kiln.Client:
    """A client for what runs on `device`: for CUDA one of the first GPU's architecture. Does not
    connect. Raises _kiln.Error for impossible settings."""
    given = dict(zip(FROM_LIBRARY, settings.from_library(), strict=True))
    return _kiln.Client(
        settings.server,
        settings.timeout_s,
        settings.threads,
        "" if debug else settings.debug_dir,
        debug,
        fail_on_miss=settings.fail_on_miss,
        prepare_memory=settings.prepare_memory,
        arch=settings.arch_of(device.type),
        target=settings.target_of(device.type),
        autotune=settings.mode == "max-autotune",
        libraries="torch" if settings.libraries == "torch" else "",
        **given,
    )


@functools.cache
def _client_of(settings: Settings, kind: str) -> _kiln.Client:
    return make_client(settings, torch.device(kind))


def client_of(settings: Settings, device: torch.device = CPU) -> _kiln.Client:
    """By all settings, so that another set gets another client; connections are shared below. One
    client serves all GPUs."""
    return _client_of(settings, device.type)


def load_program(graph: str, settings: Settings, device: torch.device = CPU) -> _kiln.Program:
    """The program of a captured graph, ready to run on `device`. Raises _kiln.Error."""
    program = client_of(settings, device).compile(graph)
    if device.type == "cuda":
        program.set_cuda_device(device.index)
    try:
        steps = [LibraryStep(step, device) for step in program.library_steps()]
    except Exception as error:
        # Such as an operator that this torch does not have.
        raise _kiln.Error(f"a library step cannot be called here: {error!r}") from error
    program.set_library_steps(steps)
    program.set_prepare_memory(settings.prepare_memory)
    if settings.prepare_memory > 0:
        program.set_unprepared(functools.partial(_unprepared, graph, settings, device))
    return program


def _unprepared(graph: str, settings: Settings, device: torch.device) -> _kiln.Program | None:
    """For parameters that come when others have taken the memory: what is not kept, every call
    would compute. None where the server does not give it."""
    try:
        return load_program(graph, replace(settings, prepare_memory=0), device)
    except _kiln.Error:
        return None
