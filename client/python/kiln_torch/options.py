"""What torch.compile is given for this backend, looked at when it is given.

torch hands a backend its mode and options with the first graph, in the middle of the first call, where
an error comes late and wrapped. So they are read where torch.compile keeps them, in a class of torch's
own; a torch without that class has them looked at in the first call.
"""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable, Mapping
from types import CodeType
from typing import Any

import torch

from kiln_torch import _kiln, backend, entries
from kiln_torch.compiles import Compiles
from kiln_torch.dynamo import Lighter
from kiln_torch.garbage import Pause
from kiln_torch.program import client_of
from kiln_torch.settings import Settings, as_options, set_latest


def _is_ours(chosen: Any) -> bool:
    return getattr(chosen, "compiler_fn", chosen) is backend.kiln_backend


_COMPILES = Compiles(_is_ours, (Pause(), Lighter()))
entries.install(_is_ours)


def check(mode: str | None, options: Mapping[str, Any] | None) -> None:
    """Raises ValueError for settings that can be of no use: it names the option and what it may be."""
    given = as_options(mode, options)
    settings = Settings.read(given)
    if not settings.device:  # whether its runtime is here shows when it is used
        try:
            client_of(settings)
        except _kiln.Error as error:
            raise ValueError(f"kiln: {error}") from None
    set_latest(given)
    _COMPILES.install()


def _checked(construct: Callable[..., None]) -> Callable[..., None]:
    @functools.wraps(construct)
    def construct_checked(
        self: Any, backend_given: Any, mode: Any, options: Any, *rest: Any, **more: Any
    ) -> None:
        construct(self, backend_given, mode, options, *rest, **more)
        if self.compiler_fn is backend.kiln_backend:
            check(mode, options)

    return construct_checked


def _install() -> CodeType | None:
    """Has the constructor checked from now on; its code, for the call that is under way."""
    wrapper = getattr(torch, "_TorchCompileWrapper", None)
    if wrapper is None:
        return None
    construct = wrapper.__init__
    wrapper.__init__ = _checked(construct)
    return construct.__code__


_constructor = _install()


def __getattr__(name: str) -> Any:
    """The entry point, which torch looks up in its first torch.compile for this backend: that call's
    options are checked here."""
    if name != "kiln_backend":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    frame = sys._getframe(1)
    while frame is not None:
        if frame.f_code is _constructor:
            check(frame.f_locals.get("mode"), frame.f_locals.get("options"))
        frame = frame.f_back
    return backend.kiln_backend
