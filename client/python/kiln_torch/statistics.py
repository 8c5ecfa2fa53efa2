"""What this process has compiled, fetched and run; `kiln_torch.stats()` shows it."""

from __future__ import annotations

import threading
import warnings
from collections import Counter
from typing import Any
from weakref import WeakSet


class Statistics:
    """Counters behind one lock. Thread-safe."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._waiting = 0  # goes on over clear(): what is awaited still comes
        self.clear()

    def clear(self) -> None:
        with self._lock:
            self._graphs = 0
            self._hits = {"memory": 0, "local": 0, "server": 0}
            self._compiles = 0
            self._fallbacks: list[dict[str, str]] = []
            self._steps = {"native": 0, "library": 0}
            self._library_ops: Counter[str] = Counter()
            self._capture_ms: list[float] = []
            self._compile_ms: list[float] = []
            self._fetch_ms: list[float] = []
            self._retries = 0
            self._progressive = {"switched": 0, "eager_calls": 0}
            self._trying: WeakSet[Any] = WeakSet()
            self._recovered = 0
            self._given_up: list[str] = []
            self._checks = {"graphs": 0, "calls": 0, "differences": 0}
            self._warned: set[str] = set()
            self._programs: list[Any] = []

    def captured(self, milliseconds: float) -> None:
        """Counts a graph that this process has captured itself, and the time that took."""
        with self._lock:
            self._capture_ms.append(milliseconds)

    def loaded(self, program: Any) -> None:
        """Counts a graph that was compiled or fetched; `program` is a _kiln.Program."""
        info = program.info()
        with self._lock:
            self._graphs += 1
            self._programs.append(program)
            self._steps["native"] += info["native_steps"]
            self._steps["library"] += info["library_steps"]
            self._library_ops.update(info["library_ops"])
            self._retries += info["retries"]
            if info["source"] == "compiled":
                self._compiles += 1
                self._compile_ms.append(info["compile_ms"])
            else:
                kinds = {"local": "memory", "local_disk": "local"}
                self._hits[kinds.get(info["source"], "server")] += 1
                self._fetch_ms.append(info["fetch_ms"])

    def fell_back(self, graph: str, reason: str) -> None:
        """Counts a graph that runs in eager mode, and warns once for each reason."""
        with self._lock:
            self._graphs += 1
            self._fallbacks.append({"graph": graph, "reason": reason})
            first = reason not in self._warned
            self._warned.add(reason)
        if first:
            warnings.warn(f"kiln: {graph} runs in eager mode: {reason}", stacklevel=2)

    def awaits(self) -> None:
        """Counts a graph that runs eager until its program arrives."""
        with self._lock:
            self._waiting += 1

    def awaited(self, switched: bool) -> None:
        """The end of that: whether its program has come."""
        with self._lock:
            self._waiting -= 1
            self._progressive["switched"] += switched

    def ran_eager(self) -> None:
        with self._lock:
            self._progressive["eager_calls"] += 1

    def tries_again(self, graph: Any) -> None:
        """Counts a graph that fell back because its server was away, and is tried again."""
        with self._lock:
            self._trying.add(graph)

    def tried_again(self, graph: Any, refusal: str | None) -> None:
        """The end of that: its program has come, unless the server refused it."""
        with self._lock:
            if graph not in self._trying:
                return  # it fell back before the last clear()
            self._trying.remove(graph)
            if refusal is None:
                self._recovered += 1
                self._graphs -= 1  # it was counted when it fell back
            else:
                self._given_up.append(refusal)

    def checks(self, what: str) -> None:
        """Counts for option check: "graphs" that are checked, "calls" of them, "differences"."""
        with self._lock:
            self._checks[what] += 1

    def snapshot(self) -> dict[str, Any]:
        with self._lock:
            return {
                "graphs": self._graphs,
                "hits": dict(self._hits),
                "compiles": self._compiles,
                "fallbacks": [dict(fallback) for fallback in self._fallbacks],
                "steps": dict(self._steps),
                "library_ops": dict(self._library_ops),
                "capture_ms": list(self._capture_ms),
                "compile_ms": list(self._compile_ms),
                "fetch_ms": list(self._fetch_ms),
                "retries": self._retries,
                "progressive": {"waiting": self._waiting, **self._progressive},
                "away": {
                    "trying": len(self._trying),
                    "recovered": self._recovered,
                    "given_up": list(self._given_up),
                },
                "checks": dict(self._checks),
                "prepared": {
                    "bytes": sum(program.prepared_bytes for program in self._programs),
                    "preparations": sum(program.preparations for program in self._programs),
                },
                "run_calls": sum(program.run_calls for program in self._programs),
                "launches_timed": sum(program.launches_timed for program in self._programs),
            }


STATISTICS = Statistics()
