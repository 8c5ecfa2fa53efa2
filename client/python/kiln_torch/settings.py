"""Options of the backend: what torch.compile is given, else the environment, else a default."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, fields
from dataclasses import field as dataclass_field
from typing import Any

DEFAULT_SERVER = "127.0.0.1:7461"
# The library takes from the environment what is not given of these: a token that is given goes
# before a token file of the environment.
SECURITY = ("tls_ca", "tls_cert", "tls_key", "token", "token_file", "public_key", "known_servers")


@dataclass(frozen=True)
class Settings:
    server: str = DEFAULT_SERVER
    fallback: str = "eager"  # or "raise"
    timeout_s: float = 600.0  # of one compile
    threads: int = 0  # 0: one a core
    debug_dir: str = ""
    # Security; client/README.md says what each means.
    tls_ca: str = ""
    tls_cert: str = ""
    tls_key: str = ""
    token: str = dataclass_field(default="", repr=False)
    token_file: str = ""
    public_key: str = ""
    known_servers: str = ""

    def security(self) -> tuple[str, ...]:
        """The values of SECURITY, in that order."""
        return tuple(getattr(self, name) for name in SECURITY)

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
            variable = None if name in SECURITY else os.environ.get(f"KILN_{name.upper()}")
            value = options.get(name, variable)
            if value is None or value == "":
                continue
            kind = type(field.default)
            try:
                values[name] = kind(value)
            except (TypeError, ValueError):
                raise ValueError(
                    f"kiln option {name} is {value!r}; expected {kind.__name__}"
                ) from None
        settings = cls(**values)
        if settings.fallback not in ("eager", "raise"):
            raise ValueError(
                f"kiln option fallback is {settings.fallback!r}; expected 'eager' or 'raise'"
            )
        return settings
