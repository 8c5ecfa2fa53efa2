"""`python -m kiln_torch`: what works here, in a screen, and what to send with a bug report."""

from __future__ import annotations

import json
import os
import platform
import time
import warnings
from collections.abc import Callable, Iterator
from typing import Any

import torch

import kiln_torch
from kiln_torch import _kiln, backend
from kiln_torch.program import make_client
from kiln_torch.settings import Settings

_WIDE = 88
# Of a CPU's features, those that say how wide its kernels are.
_TOLD = ("avx2", "fma", "avx512f", "avx512bf16", "avx512fp16", "amx-bf16", "amx-int8")


def _line(name: str, text: str) -> str:
    return f"{name:<9} {text}"


def _versions() -> str:
    system = f"Python {platform.python_version()}, {platform.platform(terse=True)}"
    return f"kiln_torch {kiln_torch.__version__}, torch {torch.__version__}, {system}"


def _device(settings: Settings, kind: str) -> str:
    found = json.loads(make_client(settings, torch.device(kind)).device_json())
    features = [f for f in _TOLD if f in found.get("features", ())]
    parts = [found.get("model_name", ""), found.get("arch", ""), *features]
    if "processors" in found:
        parts.append(f"{found['processors']} threads")
    return f"{kind}: " + ", ".join(part for part in parts if part)


def _devices(settings: Settings) -> Iterator[str]:
    for kind in ("cpu", "cuda") if torch.cuda.is_available() else ("cpu",):
        try:
            yield _device(settings, kind)
        except _kiln.Error as error:
            yield f"{kind}: {error}"


def _server(settings: Settings) -> tuple[bool, str]:
    given = "KILN_SERVER" if os.environ.get("KILN_SERVER") else "no server is named; KILN_SERVER would"
    where = f"{settings.server or 'an own one'} ({given})"
    try:
        begin = time.perf_counter()
        info = json.loads(make_client(settings).server_info_json())
        took = (time.perf_counter() - begin) * 1e3
    except _kiln.Error as error:
        return False, f"{where}: {error}"
    state = ", shutting down" if info.get("draining") else ""
    targets = ", ".join(t.removeprefix("TARGET_").lower() for t in info.get("targets", ()))
    signed = "signs" if info.get("public_key") else "does not sign"
    return True, (
        f"{where}: kilnd {info.get('version')}, build {info.get('compiler_build', '')[:12]}{state}, "
        f"{took:.0f} ms; targets {targets}; {info.get('workers', 0)} workers; {signed}"
    )


def _caches(settings: Settings) -> Iterator[str]:
    local = settings.local_cache or os.environ.get("KILN_LOCAL_CACHE", "")
    yield f"artifacts on this disk: {local or 'none; option local_cache, KILN_LOCAL_CACHE'}"
    caches = backend.torch_caches()
    if caches is None:
        yield f"torch's: not used with torch {torch.__version__}, every process captures its graphs"
    else:
        folder = caches.cache_dir()
        is_used = "used" if caches.is_own(folder) else "not used, others may write there"
        yield f"torch's: {is_used}, {folder}"


def _timed_compile(settings: Settings) -> tuple[bool, str]:
    """One small function of numbers that no cache has seen, so that it is captured and compiled."""
    number = time.time_ns() % 10**9 / 1e9

    def fn(x: torch.Tensor) -> torch.Tensor:
        return torch.softmax(x * number, -1).sum(0)

    kiln_torch.reset()
    x = torch.randn(64, 64)
    begin = time.perf_counter()
    with warnings.catch_warnings(), torch.no_grad():
        warnings.simplefilter("ignore")
        result = torch.compile(fn, backend="kiln")(x)
    took = (time.perf_counter() - begin) * 1e3
    stats = kiln_torch.stats()
    if stats["fallbacks"]:
        return False, f"ran in eager mode: {stats['fallbacks'][0]['reason']}"
    error = (result - fn(x)).abs().max().item()
    whole = f"{took:.0f} ms: capture {sum(stats['capture_ms']):.1f}, compile "
    whole += f"{sum(stats['compile_ms']):.0f}, the rest is torch's; largest difference {error:.1e}"
    return error < 1e-5, whole


def _attention(x: torch.Tensor) -> torch.Tensor:
    heads = x.view(1, 4, 16, 64)
    return torch.nn.functional.scaled_dot_product_attention(heads, heads, heads)


# What people ask for, each a function of 4096 numbers of a dtype.
_PROBES: tuple[tuple[str, Callable[[torch.Tensor], Any], torch.dtype], ...] = (
    ("float32", lambda x: torch.nn.functional.gelu(x) * 2, torch.float32),
    ("bfloat16", lambda x: torch.nn.functional.gelu(x) * 2, torch.bfloat16),
    ("products", lambda x: x.view(64, 64) @ x.view(64, 64), torch.float32),
    ("attention", _attention, torch.float32),
    ("random", lambda x: torch.nn.functional.dropout(x, 0.5), torch.float32),
    ("linalg", lambda x: torch.linalg.svdvals(x.view(64, 64)), torch.float32),
    ("complex", lambda x: torch.view_as_real(torch.fft.fft(x)), torch.float32),
)


def _how(fn: Callable[[torch.Tensor], Any], x: torch.Tensor) -> str:
    torch._dynamo.reset()
    kiln_torch.reset()
    try:
        with warnings.catch_warnings(), torch.no_grad():
            warnings.simplefilter("ignore")
            torch.compile(fn, backend="kiln")(x)
    except Exception as error:  # whatever is wrong with a probe is what is to be told
        return f"error: {error}"
    stats = kiln_torch.stats()
    if stats["fallbacks"]:
        return f"eager: {stats['fallbacks'][0]['reason']}"
    library = ", ".join(stats["library_ops"])
    return f"native, and through torch {library}" if library else "native"


def _probes(kind: str) -> Iterator[str]:
    native = []
    for name, fn, dtype in _PROBES:
        how = _how(fn, torch.randn(4096).to(dtype).to(kind))
        if how == "native":
            native.append(name)
        else:
            yield f"{kind}: {name}: {how.splitlines()[0][:_WIDE]}"
    yield f"{kind}: native: {', '.join(native) or 'none'}"


def report() -> Iterator[tuple[bool, str]]:
    """Lines, and whether what each says is as it should be."""
    yield True, _versions()
    try:
        settings = Settings.read(None)
        make_client(settings)
    except (ValueError, _kiln.Error) as error:
        yield False, _line("settings", f"of the environment: {error}")
        return
    for line in _devices(settings):
        yield True, _line("device", line)
    reached, line = _server(settings)
    yield reached, _line("server", line)
    for line in _caches(settings):
        yield True, _line("cache", line)
    if not reached:
        yield False, _line("compile", "not tried; until there is a server, functions run in eager mode")
        return
    works, line = _timed_compile(settings)
    yield works, _line("compile", line)
    for kind in ("cpu", "cuda") if torch.cuda.is_available() else ("cpu",):
        for line in _probes(kind):
            yield True, _line("runs", line)


def main() -> int:
    """0 where all works."""
    works = True
    for good, line in report():
        print(line if good else f"{line}   <- wrong", flush=True)
        works = works and good
    return 0 if works else 1
