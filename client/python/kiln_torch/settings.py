"""Options of the backend: what torch.compile is given, else the environment, else a default."""

from __future__ import annotations

import os
import threading
from collections.abc import Mapping
from dataclasses import dataclass, fields
from dataclasses import field as dataclass_field
from typing import Any

import torch

SCHEMES = ("http", "https", "unix")
# The library takes from the environment what is not given of these, and says what is wrong with
# them: a token that is given goes before a token file of the environment.
FROM_LIBRARY = (
    *("tls_ca", "tls_cert", "tls_key", "token", "token_file", "public_key", "known_servers"),
    *("local_cache", "tenant", "priority"),
)
# Never written to torch's caches.
SECRET = ("token",)
# How a graph's program is come by and run: no graph is another for them.
NOT_OF_GRAPH = frozenset(
    (
        *("server", "fallback", "timeout_s", "threads", "debug_dir", "fail_on_miss"),
        *("prepare_memory", "record_runtime_overhead", *FROM_LIBRARY),
    )
)
MODES = ("blocking", "progressive", "reduce-overhead", "max-autotune")
# Others of torch.compile's, by what they are here: nothing, or what TorchInductor has apart.
_OTHER_MODES = {"default": None, "lite": None, "max-autotune-no-cudagraphs": "max-autotune"}


_given = threading.local()


def latest() -> Mapping[str, Any] | None:
    """The options of this thread's last torch.compile with this backend."""
    return getattr(_given, "options", None)


def set_latest(options: Mapping[str, Any]) -> None:
    _given.options = options


def as_options(mode: str | None, options: Mapping[str, Any] | None) -> dict[str, Any]:
    """torch.compile's mode and options together; raises ValueError for a mode that nobody knows."""
    given = dict(options or {})
    if mode is not None and mode not in MODES and mode not in _OTHER_MODES:
        known = ", ".join(map(repr, (*MODES, *_OTHER_MODES)))
        raise ValueError(f"kiln knows no mode {mode!r}; modes are {known}")
    own = _OTHER_MODES.get(mode, mode)
    if own is not None:
        given.setdefault("mode", own)
    return given


def _truth(value: Any) -> bool:
    text = str(value).lower()
    if text in ("1", "true"):
        return True
    if text in ("0", "false"):
        return False
    raise ValueError


@dataclass(frozen=True)
class Settings:
    # Several are comma-separated: the next where one is away. "": the user's own, which is started
    # where it does not run.
    server: str = ""
    fallback: str = "eager"  # or "raise"
    timeout_s: float = 600.0  # of one compile, with all its retries
    threads: int = 0  # of kernels; 0: torch.get_num_threads() when the graph is compiled
    # LLVM's name of the oldest CPU that is to run the kernels, such as "x86-64-v3": machines of
    # several kinds then share them. "": this machine's. One that begins with "sm_" is a GPU's
    # instead, for graphs on CUDA devices, such as "sm_80".
    arch: str = ""
    # Or "none": no step of a graph is left to torch's operators, however fast those are; a graph with
    # an operator that only they have falls back. What runs without torch is compiled like that.
    libraries: str = "torch"
    # What graphs on the CPU run on instead: a GCU, by the name of its profile, such as "gcu-16m".
    device: str = ""
    debug_dir: str = ""
    # Or "progressive": eager until the artifact arrives. "reduce-overhead": a GPU's inference graphs
    # are replayed as one CUDA graph. "max-autotune": first runs time several schedules of a kernel,
    # where no client of the server has, and the server keeps the fastest.
    mode: str = "blocking"
    check: bool = False  # run every graph eager as well; raise CheckFailed where it differs
    fallback_random: bool = False  # random operators give the numbers that eager makes, by torch
    fail_on_miss: bool = False  # raise CacheMiss instead of compiling, whatever fallback says
    # Bytes that the process keeps of what inference graphs compute from their parameters alone, such
    # as weights laid out for matrix products, until it sees one change; 0: nothing.
    prepare_memory: int = 1 << 30
    # Calls open the region "Pregraph bytecode" for torch.profiler, as with torch._dynamo.config's
    # switch of that name; without, that is so of graphs that are compiled while a profiler records.
    record_runtime_overhead: bool = False
    local_cache: str = ""  # "DIR" or "DIR:SIZE": keep artifacts on this machine's disk
    tenant: str = ""  # whose share of the server
    priority: str = ""  # "interactive" or "warmup"
    # Security; client/README.md says what each means.
    tls_ca: str = ""
    tls_cert: str = ""
    tls_key: str = ""
    token: str = dataclass_field(default="", repr=False)
    token_file: str = ""
    public_key: str = ""
    known_servers: str = ""

    def arch_of(self, device_type: str) -> str:
        """Of the compiler, for "cpu" or "cuda"; "": what this machine has."""
        if self.device and device_type == "cpu":
            return self.device
        return self.arch if self.arch.startswith("sm_") == (device_type == "cuda") else ""

    def target_of(self, device_type: str) -> str:
        """The compiler's name of what runs a graph on "cpu" or "cuda"."""
        if device_type == "cuda":
            return "ptx"
        return "gcu" if self.device else "cpp"

    def of_graph(self) -> dict[str, Any]:
        """The options that may make another graph, or another way to run it."""
        names = (field.name for field in fields(self))
        return {name: getattr(self, name) for name in names if name not in NOT_OF_GRAPH}

    def from_library(self) -> tuple[str, ...]:
        """The values of FROM_LIBRARY, in that order."""
        return tuple(getattr(self, name) for name in FROM_LIBRARY)

    @classmethod
    def read(cls, options: Mapping[str, Any] | None) -> Settings:
        """Raises ValueError for an unknown option or a value of the wrong kind."""
        options = dict(options or {})
        known = {field.name: field for field in fields(cls)}
        for name in options:
            if name not in known:
                names = ", ".join(sorted(known))
                raise ValueError(f"kiln has no option {name!r}; it has: {names}")
        values: dict[str, Any] = {}
        for name, field in known.items():
            variable = None if name in FROM_LIBRARY else os.environ.get(f"KILN_{name.upper()}")
            value = options.get(name, variable)
            if value is None or value == "":
                continue
            kind = type(field.default)
            try:
                values[name] = _truth(value) if kind is bool else kind(value)
            except (TypeError, ValueError):
                raise ValueError(
                    f"kiln option {name} is {value!r}; expected {kind.__name__}"
                ) from None
        if values.get("threads", 0) == 0:
            values["threads"] = torch.get_num_threads()
        settings = cls(**values)
        if settings.prepare_memory < 0:
            raise ValueError(
                f"kiln option prepare_memory is {settings.prepare_memory}; expected 0 or more bytes"
            )
        if settings.device and not settings.device.startswith("gcu-"):
            raise ValueError(
                f"kiln option device is {settings.device!r}; expected a GCU's profile, as 'gcu-16m'"
            )
        for address in settings.server.split(","):
            scheme, separator, _ = address.strip().partition("://")
            if separator and scheme not in SCHEMES:
                known = " or ".join(f"{known}://" for known in SCHEMES)
                raise ValueError(
                    f"kiln option server is {settings.server!r}; expected {known} or HOST:PORT alone"
                )
        known_values = (("fallback", ("eager", "raise")), ("mode", MODES), ("libraries", ("torch", "none")))
        for name, choices in known_values:
            value = getattr(settings, name)
            if value not in choices:
                expected = " or ".join(map(repr, choices))
                raise ValueError(f"kiln option {name} is {value!r}; expected {expected}")
        return settings
