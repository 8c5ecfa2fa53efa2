"""The parts of check.py that show where a model's or a training step's time goes: its kernels on the GPU,
by total time, the launches, and the processor's time, by Inductor and by Kiln."""

from __future__ import annotations

import collections
import time

import torch
from bench import MODELS, TRAINED, Run, sides, training_step
from measure import Results
from torch.profiler import ProfilerActivity

_CALLS, _ROWS = 3, 40


def _show(name: str, run: Run) -> None:
    for _ in range(3):
        run()
    torch.cuda.synchronize()
    begin = time.perf_counter()
    for _ in range(_CALLS):
        run()
    on_cpu = time.perf_counter() - begin
    torch.cuda.synchronize()
    elapsed = time.perf_counter() - begin
    activities = [ProfilerActivity.CUDA, ProfilerActivity.CPU]
    with torch.profiler.profile(activities=activities) as profile:
        for _ in range(_CALLS):
            run()
        torch.cuda.synchronize()
    busy: collections.Counter[str] = collections.Counter()
    launches: collections.Counter[str] = collections.Counter()
    spans = sorted(
        (event.time_range.start, event.time_range.end, event.name)
        for event in profile.events()
        if event.device_type == torch.autograd.DeviceType.CUDA and not event.is_user_annotation
    )
    until = 0.0
    for begin, end, kernel in spans:
        # A kernel that is launched early waits for the one before.
        busy[kernel] += max(0.0, end - max(begin, until))
        launches[kernel] += 1
        until = max(until, end)
    print(
        f"\n{name}: {elapsed / _CALLS * 1e3:.2f} ms a step, {on_cpu / _CALLS * 1e3:.2f} ms of the "
        f"CPU, GPU busy {busy.total() / _CALLS / 1e3:.2f} ms, {launches.total() / _CALLS:.0f} kernels"
    )
    for kernel, us in busy.most_common(_ROWS):
        print(f"{us / _CALLS:9.1f} us {launches[kernel] / _CALLS:6.1f}x  {kernel[:100]}")


def models(run: Results) -> None:
    torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = True
    for name, make in MODELS.items():
        for side in ("inductor", "kiln"):
            with run.case(f"profile {name} {side}"), torch.no_grad():
                torch._dynamo.reset()
                module, x, dtype = make()
                compiled = sides()[side](module.cuda().to(dtype).eval())
                _show(f"{name}, {side}", lambda compiled=compiled, x=x: compiled(x))


def training(run: Results) -> None:
    torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = True
    for name, kind in TRAINED:
        for side in ("inductor", "kiln"):
            with run.case(f"profile {name} {side}"):
                torch._dynamo.reset()
                step = training_step(name, kind, sides()[side])
                _show(f"{name} {kind}, {side}", step)
