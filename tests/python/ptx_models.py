"""Compiles small models for a GPU that is not there: python ptx_models.py SERVER NAME...

Prints what became of each graph, as a line of JSON. A CPU's torch cannot trace models on CUDA devices, so they are traced on
the CPU; the driver is the unit tests' (KILN_LIBCUDA), which loads code and runs none.
"""

import json
import sys

import small_models
import torch
from functorch.compile import make_boxed_func

from kiln_torch import backend, program
from kiln_torch.capture import capture
from kiln_torch.settings import Settings


def graphs_of(name, dtype, training):
    """Of each graph of the model: its steps, its kernels, and ATen's operators among the steps."""
    found = []

    def compile_graph(module, _inputs, kind):
        settings = Settings(server=sys.argv[1], fallback="raise", prepare_memory=0)
        graph = capture(module, lambda _: False)
        info = program.load_program(graph, settings, torch.device("cuda", 0)).info()
        found.append({"kind": kind, **info})
        return make_boxed_func(module.forward)

    torch._dynamo.reset()
    model, inputs = getattr(small_models, name)()
    model = model.train(training).to(dtype)
    inputs = {k: v.to(dtype) if v.is_floating_point() else v for k, v in inputs.items()}
    with torch.set_grad_enabled(training):
        compiled = torch.compile(model, backend=backend.aot_backend(compile_graph), dynamic=False)
        out = compiled(**inputs)[0]
    if training:
        out.float().sum().backward()
    return found


for name in sys.argv[2:]:
    for dtype, training in ((torch.float32, False), (torch.bfloat16, False), (torch.float32, True)):
        graphs = graphs_of(name, dtype, training)
        line = {"model": name, "dtype": str(dtype)[6:], "training": training, "graphs": graphs}
        print(json.dumps(line, default=str), flush=True)
