"""Compiles small models for a GPU that is not there: python ptx_models.py SERVER NAME...

Prints what became of each graph, as a line of JSON. A CPU's torch cannot trace models on CUDA devices, so they are traced on
the CPU; the driver is the unit tests' (KILN_LIBCUDA), which loads code and runs none.
"""

import json
import sys

import small_models
import torch
from functorch.compile import make_boxed_func
from torch._subclasses import FakeTensorMode
from torch.fx.experimental.proxy_tensor import make_fx

from kiln_torch import backend, program
from kiln_torch.capture import capture
from kiln_torch.decompositions import decompositions
from kiln_torch.settings import Settings


def graphs_of(name, dtype, training, is_empty=False):
    """Of each graph of the model: its steps, its kernels, and ATen's operators among the steps. If
    `is_empty`, of a batch of none of other sizes, which are symbols."""
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
    if is_empty:
        inputs = small_models.resized(name, inputs, 0, 1)
    with torch.set_grad_enabled(training):
        compiled = torch.compile(model, backend=backend.aot_backend(compile_graph), dynamic=is_empty)
        out = next(iter(compiled(**inputs).values()))
    if training:
        out.float().sum().backward()
    return found


def attention(op, dtype, dropout):
    """What is made of a GPU's attention, whose kernels give sizes, random states and padded sums.

    Without dropout only of its first result.
    """
    with FakeTensorMode():
        q = torch.empty(2, 3, 65, 64, device="cuda", dtype=dtype)
        given = (None, True) if op != "flash" else ()  # no bias; the sums are wanted
        run = getattr(torch.ops.aten, f"_scaled_dot_product_{op}_attention")

        def fn(q):
            results = run(q, q, q, *given, dropout, True)
            if dropout == 0:
                return (results[0] * 2,)
            return [r * 2 if r.is_floating_point() else r for r in results if isinstance(r, torch.Tensor)]

        module = make_fx(fn, tracing_mode="fake")(q)
    settings = Settings(server=sys.argv[1], fallback="raise", prepare_memory=0)
    graph = capture(module, lambda _: False)
    return program.load_program(graph, settings, torch.device("cuda", 0)).info()


def trained_attention(width):
    """What is made of cuDNN's operator where a graph of gradients is given all of its results."""
    with FakeTensorMode():
        q = torch.empty(2, 3, 2048, width, device="cuda", dtype=torch.bfloat16)
        run = torch.ops.aten._scaled_dot_product_cudnn_attention
        module = make_fx(
            lambda q: [r for r in run(q, q, q, None, True, 0.0, True) if isinstance(r, torch.Tensor)],
            tracing_mode="fake",
        )(q)
    settings = Settings(server=sys.argv[1], fallback="raise", prepare_memory=0)
    graph = capture(module, lambda _: False)
    return program.load_program(graph, settings, torch.device("cuda", 0)).info()


def attention_gradients(width, deterministic):
    """What is made of cuDNN's operator for attention's gradients, of two heads that share keys."""
    half = {"device": "cuda", "dtype": torch.bfloat16}
    with FakeTensorMode():
        q, k = (torch.empty(2, 2048, heads, width, **half).transpose(1, 2) for heads in (4, 2))
        sums = torch.empty(2, 4, 2048, 1, device="cuda")
        state = torch.empty((), dtype=torch.int64, device="cuda")
        run = torch.ops.aten._scaled_dot_product_cudnn_attention_backward.default

        def fn(q, k, v, grad, out, sums, state):
            return run(grad, q, k, v, out, sums, state, state, None, None, None, 2048, 2048, 0.0, True)

        module = make_fx(fn, tracing_mode="fake")(q, k, k, q, q, sums, state)
    settings = Settings(server=sys.argv[1], fallback="raise", prepare_memory=0)
    torch.use_deterministic_algorithms(deterministic)
    graph = capture(module, lambda _: False)
    torch.use_deterministic_algorithms(False)
    return program.load_program(graph, settings, torch.device("cuda", 0)).info()


def one_query(op, width, groups):
    """What is made of a GPU's attention of one query, whose heads share keys by groups."""
    with FakeTensorMode():
        half = {"device": "cuda", "dtype": torch.bfloat16}
        q, k = torch.empty(2, 2 * groups, 1, width, **half), torch.empty(2, 2, 2048, width, **half)
        given = (None, False) if op != "flash" else ()
        run = getattr(torch.ops.aten, f"_scaled_dot_product_{op}_attention")
        module = make_fx(lambda q, k, v: [run(q, k, v, *given)[0]], tracing_mode="fake")(q, k, k)
    settings = Settings(server=sys.argv[1], fallback="raise", prepare_memory=0)
    graph = capture(module, lambda _: False)
    return program.load_program(graph, settings, torch.device("cuda", 0)).info()


def attention_of(arch, libraries):
    """What is made of attention of 500 queries on an architecture, where libraries may take part or not."""
    with FakeTensorMode():
        q = torch.empty(2, 3, 500, 128, device="cuda", dtype=torch.float16)
        run = torch.ops.aten._scaled_dot_product_flash_attention.default
        module = make_fx(lambda q: [run(q, q, q, 0.0, True)[0]], tracing_mode="fake")(q)
    settings = Settings(server=sys.argv[1], fallback="raise", prepare_memory=0, arch=arch, libraries=libraries)
    graph = capture(module, lambda _: False)
    return program.load_program(graph, settings, torch.device("cuda", 0)).info()


def updates(tensors, sizes):
    """What is made of an optimizer's step, each tensor's by the squares of its gradient, `tensors` of each size."""
    with FakeTensorMode():
        params = [torch.empty(size, device="cuda") for size in sizes for _ in range(tensors)]

        def fn(params, grads):
            return [p - 0.1 * g / ((g * g).sum() + 1) for p, g in zip(params, grads, strict=True)]

        module = make_fx(fn, tracing_mode="fake")(params, params)
    settings = Settings(server=sys.argv[1], fallback="raise", prepare_memory=0)
    graph = capture(module, lambda _: False)
    return program.load_program(graph, settings, torch.device("cuda", 0)).info()


def cached(head_dim):
    """What is made of a step of decoding with transformers' static cache, which the graph updates in place."""
    import transformers

    config = transformers.LlamaConfig(
        vocab_size=96, hidden_size=256, intermediate_size=512, num_hidden_layers=2, num_attention_heads=4,
        num_key_value_heads=2, head_dim=head_dim,
    )  # fmt: skip
    model = transformers.LlamaForCausalLM(config).to(torch.bfloat16).eval()
    cache = transformers.StaticCache(config, max_cache_len=256)
    cache.early_initialization(1, 2, head_dim, torch.bfloat16, "cpu")
    found = []

    def compile_graph(module, _inputs, kind):
        settings = Settings(server=sys.argv[1], fallback="raise", prepare_memory=0)
        graph = capture(module, lambda _: False)
        found.append({"kind": kind, **program.load_program(graph, settings, torch.device("cuda", 0)).info()})
        return make_boxed_func(module.forward)

    def step(token):
        return model(token, past_key_values=cache, use_cache=True).logits

    with torch.no_grad():
        model(torch.arange(5)[None], past_key_values=cache, use_cache=True)
        compiled = torch.compile(step, backend=backend.aot_backend(compile_graph), dynamic=False)
        compiled(torch.tensor([[7]]))
    return {"head_dim": head_dim, "cache_bytes": cache.layers[0].keys.nbytes, **found[0]}


def decoding(rows):
    """What is made of products of a few rows, with weights of 16 and of 8 bits."""
    with FakeTensorMode():
        x = torch.empty(rows, 4096, device="cuda", dtype=torch.bfloat16)
        w = torch.empty(4096, 4096, device="cuda", dtype=torch.bfloat16)
        narrow = torch.empty(4096, 4096, device="cuda", dtype=torch.int8)
        scale = torch.empty(4096, device="cuda", dtype=torch.bfloat16)

        def fn(x, w, narrow, scale):
            y = torch.nn.functional.linear(x, w)
            z = torch.nn.functional.linear(y, narrow.to(y.dtype)) * scale
            return (torch.ops.aten._weight_int8pack_mm(z, narrow, scale),)

        table = decompositions("cuda")
        module = make_fx(fn, decomposition_table=table, tracing_mode="fake")(x, w, narrow, scale)
    settings = Settings(server=sys.argv[1], fallback="raise", prepare_memory=0)
    graph = capture(module, lambda _: False)
    return program.load_program(graph, settings, torch.device("cuda", 0)).info()


def packed(rows, inner, group):
    """What is made of a product with weights of 4 bits, and work on its result."""
    with FakeTensorMode():
        x = torch.empty(rows, 1024, device="cuda", dtype=torch.bfloat16)
        words = torch.empty(512, 1024 // 16 // inner, 32, inner // 2, device="cuda", dtype=torch.int32)
        scales = torch.empty(1024 // group, 4096, 2, device="cuda", dtype=torch.bfloat16)

        def fn(x, words, scales):
            y = torch.ops.aten._weight_int4pack_mm(x, words, group, scales)
            return (torch.nn.functional.silu(y),)

        table = decompositions("cuda")
        module = make_fx(fn, decomposition_table=table, tracing_mode="fake")(x, words, scales)
    settings = Settings(server=sys.argv[1], fallback="raise", prepare_memory=0)
    graph = capture(module, lambda _: False)
    return program.load_program(graph, settings, torch.device("cuda", 0)).info()


if sys.argv[2:] == ["packed"]:
    for rows, inner, group in ((1, 8, 128), (17, 2, 32), (64, 4, 256), (65, 8, 64)):
        print(json.dumps({"rows": rows, **packed(rows, inner, group)}, default=str), flush=True)
    sys.exit()
if sys.argv[2:] == ["updates"]:
    print(json.dumps(updates(20, (8000, 10000)), default=str), flush=True)
    sys.exit()
if sys.argv[2:] == ["decoding"]:
    for rows in (1, 3, 16, 64, 65):
        print(json.dumps({"rows": rows, **decoding(rows)}, default=str), flush=True)
    sys.exit()
if sys.argv[2:] == ["architectures"]:
    for arch in ("sm_80", "sm_86", "sm_89", "sm_90", "sm_90a"):
        for libraries in ("torch", "none"):
            line = {"arch": arch, "libraries": libraries}
            print(json.dumps({**line, **attention_of(arch, libraries)}, default=str), flush=True)
    sys.exit()
if sys.argv[2:] == ["cached"]:
    for head_dim in (64, 24):
        print(json.dumps(cached(head_dim), default=str), flush=True)
    sys.exit()
if sys.argv[2:] == ["trained_attention"]:
    for width in (64, 128, 80):
        print(json.dumps({"width": width, **trained_attention(width)}, default=str), flush=True)
    sys.exit()
if sys.argv[2:] == ["attention_gradients"]:
    for width, deterministic in ((64, False), (128, False), (80, False), (64, True)):
        line = {"width": width, "deterministic": deterministic}
        print(json.dumps({**line, **attention_gradients(width, deterministic)}, default=str), flush=True)
    sys.exit()
if sys.argv[2:] == ["queries"]:
    for op in ("flash", "cudnn"):
        for width, groups in ((128, 4), (64, 1), (256, 8), (40, 1), (128, 17)):
            line = {"op": op, "width": width, "groups": groups, **one_query(op, width, groups)}
            print(json.dumps(line, default=str), flush=True)
    sys.exit()
if sys.argv[2:] == ["empty"]:
    for name in ("unet", "mobilenet"):
        graphs = graphs_of(name, torch.float32, True, is_empty=True)
        print(json.dumps({"model": name, "graphs": graphs}, default=str), flush=True)
    sys.exit()
if sys.argv[2:] == ["attention"]:
    for op in ("flash", "efficient", "cudnn"):
        for dtype in (torch.float16, torch.bfloat16):
            for dropout in (0.1, 0.0):
                found = attention(op, dtype, dropout)
                print(json.dumps({"op": op, "dropout": dropout, **found}, default=str), flush=True)
    sys.exit()
for name in sys.argv[2:]:
    for dtype, training in ((torch.float32, False), (torch.bfloat16, False), (torch.float32, True)):
        graphs = graphs_of(name, dtype, training)
        line = {"model": name, "dtype": str(dtype)[6:], "training": training, "graphs": graphs}
        print(json.dumps(line, default=str), flush=True)
