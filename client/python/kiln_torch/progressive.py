"""Graphs that run eager until their program has arrived: in mode "progressive", and where the server
was away or full when it was asked."""

from __future__ import annotations

import os
import queue
import random
import threading
import time
from collections.abc import Callable
from typing import Any

from kiln_torch import _kiln
from kiln_torch.statistics import STATISTICS

# They only wait: the server does the work, and says how much of it at a time.
_MOST_THREADS = 8

# Seconds between two tries of a graph whose server is away: doubling, from the first to the second.
_PAUSES = (1.0, 60.0)

Run = Callable[[list[Any]], Any]


class _Background:
    """Threads that wait for compiles. They end with the process, whatever they wait for."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._tasks: queue.SimpleQueue[Callable[[], None]] = queue.SimpleQueue()
        self._waiting = 0
        self._threads = 0

    def start(self, task: Callable[[], None]) -> None:
        with self._lock:
            self._waiting += 1
            begin = self._threads < min(_MOST_THREADS, self._waiting)
            self._threads += begin
        self._tasks.put(task)
        if begin:
            threading.Thread(target=self._work, name="kiln-compile", daemon=True).start()

    def _work(self) -> None:
        while True:
            task = self._tasks.get()
            try:
                task()
            finally:
                with self._lock:
                    self._waiting -= 1


_background = _Background()


def _forget_threads() -> None:
    # A fork has none of its parent's threads; what they waited for stays eager there.
    global _background
    _background = _Background()


os.register_at_fork(after_in_child=_forget_threads)


class Progressive:
    """A boxed function: eager at first, what `obtain` returned from the call after it on.

    Thread-safe. A call runs the one or the other from begin to end. Where `obtain` fails, `give_up`
    says what to run from then on; what it raises, every later call raises.
    """

    def __init__(
        self, eager: Run, obtain: Callable[[], Run], give_up: Callable[[Any], Run]
    ) -> None:
        self._boxed_call = True  # of the object: AOTAutograd's wrappers copy no class's attributes
        self._eager = eager
        self._native: Run | None = None
        self._error: Exception | None = None
        STATISTICS.awaits()
        _background.start(lambda: self._switch(obtain, give_up))

    def _switch(self, obtain: Callable[[], Run], give_up: Callable[[Any], Run]) -> None:
        switched = False
        try:
            try:
                # One assignment: a call sees the old or the new, and nothing in between.
                self._native = obtain()
                switched = True
            except Exception as error:
                self._native = give_up(error)
        except Exception as error:
            self._error = error
        finally:
            STATISTICS.awaited(switched)

    def __call__(self, inputs: list[Any]) -> Any:
        native = self._native
        if native is not None:
            return native(inputs)
        if self._error is not None:
            raise self._error
        STATISTICS.ran_eager()
        return self._eager(inputs)


class Retried:
    """A boxed function for a graph whose server was away or full: eager, and what `obtain` returned
    from the call after it on. Thread-safe.

    A call that comes when a pause is over has it tried again in the background. It is given up where
    the server then refuses the graph.
    """

    def __init__(self, eager: Run, obtain: Callable[[], Run]) -> None:
        self._boxed_call = True
        self._eager = eager
        self._obtain = obtain
        self._native: Run | None = None
        self._lock = threading.Lock()
        self._pause = _PAUSES[0]
        self._due = time.monotonic() + self._pause
        STATISTICS.tries_again(self)

    def __call__(self, inputs: list[Any]) -> Any:
        native = self._native
        if native is not None:
            return native(inputs)
        if time.monotonic() >= self._due:
            self._try()
        return self._eager(inputs)

    def _try(self) -> None:
        with self._lock:
            if time.monotonic() < self._due:
                return  # another thread's call was first
            self._due = float("inf")
        _background.start(self._try_now)

    def _try_now(self) -> None:
        try:
            self._native = self._obtain()
        except _kiln.Unavailable:
            self._pause = min(2 * self._pause, _PAUSES[1])
            # Not all processes at once.
            self._due = time.monotonic() + self._pause * random.uniform(0.5, 1)
        except Exception as error:
            STATISTICS.tried_again(self, str(error))
        else:
            STATISTICS.tried_again(self, None)
