"""What inference graphs compute from their parameters alone is computed once, until one changes."""

import gc
import pathlib
import resource
import threading
import time

import numpy
import pytest
import torch
from compare import assert_same

import kiln_torch
from kiln_torch import graphs

ROWS, WIDTH, OUT = 24, 40, 56


def prepared():
    return kiln_torch.stats()["prepared"]


def model(seed=0, dtype=torch.float32):
    torch.manual_seed(seed)
    layers = [torch.nn.Linear(WIDTH, OUT), torch.nn.GELU(), torch.nn.Linear(OUT, WIDTH)]
    return torch.nn.Sequential(*layers).to(dtype).eval()


def rows(seed=1, dtype=torch.float32):
    return torch.randn(ROWS, WIDTH, generator=torch.Generator().manual_seed(seed)).to(dtype)


def compiled(module, **options):
    return torch.compile(module, backend="kiln", options={"fallback": "raise", **options})


def check(fn, module, *args):
    """One call against eager in float64, which no rounding of ours can hide a stale weight from."""
    with torch.no_grad():
        actual, expected = fn(*args), module(*args)
    assert_same(actual, expected)
    return actual


def test_weights_are_prepared_once():
    module = model()
    fn = compiled(module)
    for seed in range(4):
        check(fn, module, rows(seed))
    weights = sum(p.numel() for p in module.parameters() if p.dim() == 2) * 4
    assert prepared()["preparations"] == 1
    assert weights <= prepared()["bytes"] <= 2 * weights


def _no_grad_copy(module):
    with torch.no_grad():
        module[0].weight.copy_(torch.randn_like(module[0].weight))


def _view_write(module):
    with torch.no_grad():
        module[0].weight[3, 5] += 7  # an element that no sample holds


def _optimizer_step(module):
    optimizer = torch.optim.AdamW(module.parameters(), lr=0.1)
    module(rows()).square().sum().backward()
    optimizer.step()
    module.zero_grad()


def _load_state_dict(module):
    module.load_state_dict(model(seed=9).state_dict())


def _assign_state_dict(module):
    module.load_state_dict(model(seed=9).state_dict(), assign=True)


def _data_add(module):
    module[0].weight.data.add_(0.5)


def _data_replaced(module):
    module[0].weight.data = torch.randn_like(module[0].weight)


def _data_dropped_and_replaced(module):
    weight = module[0].weight
    shape = weight.shape
    weight.data = torch.empty(0)
    weight.data = torch.randn(shape)  # may come to lie where the old one was


def _new_parameter(module):
    module[0].weight = torch.nn.Parameter(torch.randn_like(module[0].weight))


def _numpy_write(module):
    module[0].weight.detach().numpy()[...] = numpy.float32(0.25)


def _swapped_data(module):
    ours, theirs = module[0].weight, model(seed=5)[0].weight
    ours.data, theirs.data = theirs.data, ours.data


CHANGES = [
    _no_grad_copy,
    _view_write,
    _optimizer_step,
    _load_state_dict,
    _assign_state_dict,
    _data_add,
    _data_replaced,
    _data_dropped_and_replaced,
    _new_parameter,
    _numpy_write,
    _swapped_data,
]


@pytest.mark.parametrize("change", CHANGES)
def test_a_change_is_seen(change):
    module = model()
    fn = compiled(module)
    before = check(fn, module, rows())
    for _ in range(2):
        change(module)
        after = check(fn, module, rows())
    assert not torch.equal(before, after)
    assert prepared()["preparations"] >= 2


def test_a_step_that_kiln_compiled_is_seen():
    module = model()
    fn = compiled(module)
    optimizer = torch.optim.SGD(module.parameters(), lr=0.1)
    step = compiled(optimizer.step)
    before = check(fn, module, rows())
    module(rows()).square().sum().backward()
    step()
    after = check(fn, module, rows())
    assert not torch.equal(before, after)


def test_modules_that_share_a_program_keep_their_own():
    class Stack(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.layers = torch.nn.ModuleList(model(seed) for seed in range(3))

        def forward(self, x):
            for layer in self.layers:
                x = layer(x)
            return x

    stack, alone = Stack().eval(), Stack().eval()
    layers = list(stack.layers)
    for i, layer in enumerate(layers):
        stack.layers[i] = compiled(layer)
    alone.layers = torch.nn.ModuleList(layers)
    for _ in range(3):
        check(stack, alone, rows())
    assert prepared()["preparations"] == 3
    _view_write(layers[1])
    check(stack, alone, rows())
    assert prepared()["preparations"] == 4


def test_what_is_prepared_goes_with_its_module():
    module = model()
    fn = compiled(module)
    check(fn, module, rows())
    assert prepared()["bytes"] > 0
    weights = [torch._C._WeakTensorRef(p) for p in module.parameters()]
    del module, fn
    torch._dynamo.reset()
    gc.collect()
    assert all(weight.expired() for weight in weights)
    assert prepared()["bytes"] == 0


def test_bfloat16_and_a_module_that_moves_to_it():
    module = model()
    fn = compiled(module)
    check(fn, module, rows())
    module.bfloat16()
    x = rows(dtype=torch.bfloat16)
    for _ in range(2):
        check(fn, module, x)
    assert prepared()["preparations"] == 2


def test_casts_under_autocast():
    module = model()
    fn = compiled(module)

    def call(run):
        with torch.no_grad(), torch.autocast("cpu", dtype=torch.bfloat16):
            return run(rows())

    for _ in range(3):
        assert_same(call(fn), call(module))
    _view_write(module)
    assert_same(call(fn), call(module))
    assert prepared()["preparations"] == 2


def test_parameters_that_differ_in_every_call_are_not_prepared_every_time():
    module = model()
    fn = compiled(module)
    for _ in range(24):
        _view_write(module)
        check(fn, module, rows())
    assert 2 <= prepared()["preparations"] <= 8
    for _ in range(80):
        fn_out = check(fn, module, rows())
    count = prepared()["preparations"]
    assert torch.equal(fn_out, check(fn, module, rows()))
    assert prepared()["preparations"] == count <= 9


def test_tied_weights():
    class Tied(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.embedding = torch.nn.Embedding(80, WIDTH)
            self.head = torch.nn.Linear(WIDTH, 80, bias=False)
            self.head.weight = self.embedding.weight

        def forward(self, tokens):
            return self.head(self.embedding(tokens))

    module = Tied().eval()
    fn = compiled(module)
    tokens = torch.arange(ROWS) % 80
    check(fn, module, tokens)
    with torch.no_grad():
        module.embedding.weight[7].add_(1)
    check(fn, module, tokens)
    assert prepared()["preparations"] == 2


@pytest.mark.parametrize(
    "weight",
    [
        lambda base: base[: WIDTH * OUT].view(OUT, WIDTH),
        lambda base: base.as_strided((OUT, WIDTH), (8, 1)),  # rows overlap
        lambda base: base[:OUT].view(OUT, 1).expand(OUT, WIDTH),
        lambda base: base[: WIDTH * OUT].view(WIDTH, OUT).t(),
    ],
)
def test_weights_that_are_views_of_one_memory(weight):
    class Views(torch.nn.Module):
        def __init__(self):
            super().__init__()
            base = torch.randn(WIDTH * OUT, generator=torch.Generator().manual_seed(3))
            self.register_buffer("base", base)
            self.register_buffer("weight", weight(base))

        def forward(self, x):
            return torch.nn.functional.linear(x, self.weight) + self.base[:OUT]

    module = Views().eval()
    fn = compiled(module)
    check(fn, module, rows())
    module.base[1] += 3
    check(fn, module, rows())


def test_batch_norm_and_its_statistics():
    torch.manual_seed(0)
    layers = [torch.nn.Conv2d(3, 20, 3), torch.nn.BatchNorm2d(20), torch.nn.Sigmoid()]
    module = torch.nn.Sequential(*layers).eval()
    fn = compiled(module)
    x = torch.randn(2, 3, 12, 12)
    check(fn, module, x)
    with torch.no_grad():  # in training mode the statistics are updated, by kiln's own program
        module.train()
        fn(x * 3 + 1)
        module.eval()
    check(fn, module, x)
    module.train()
    module(x * 5 - 2)  # and by eager
    module.eval()
    check(fn, module, x)
    assert prepared()["preparations"] >= 3


def test_sizes_that_change_from_call_to_call():
    module = model()
    fn = torch.compile(module, backend="kiln", dynamic=True, options={"fallback": "raise"})
    for count in (24, 9, 51, 24):
        x = torch.randn(count, WIDTH)
        torch._dynamo.mark_dynamic(x, 0)
        check(fn, module, x)
    assert prepared()["preparations"] == 1


def test_the_option_turns_it_off():
    module = model()
    fn = compiled(module, prepare_memory=0)
    check(fn, module, rows())
    _no_grad_copy(module)
    check(fn, module, rows())
    assert prepared() == {"bytes": 0, "preparations": 0}
    with pytest.raises(ValueError, match="prepare_memory is -1; expected 0 or more bytes"):
        kiln_torch.settings.Settings.read({"prepare_memory": -1})


def test_what_exceeds_the_budget_is_not_prepared(monkeypatch):
    module = model()
    one_weight = OUT * WIDTH * 4
    fn = compiled(module, prepare_memory=one_weight * 3 // 2)
    for _ in range(2):
        check(fn, module, rows())
    assert 0 < prepared()["bytes"] <= one_weight * 3 // 2
    # The process has no room for another module's, which is compiled without.
    before = prepared()
    other = model(seed=4)
    loads = []
    load = kiln_torch.program.load_program

    def record(graph, settings, device):
        loads.append(settings.prepare_memory)
        return load(graph, settings, device)

    monkeypatch.setattr(kiln_torch.program, "load_program", record)
    second = compiled(other, prepare_memory=one_weight * 3 // 2)
    for _ in range(3):
        check(second, other, rows())
        check(fn, module, rows())
    assert prepared() == before and loads == [0]
    # Until the first one is gone.
    del fn, module, second, other
    torch._dynamo.reset()
    kiln_torch.reset()
    gc.collect()
    third = model(seed=5)
    fn = compiled(third, prepare_memory=one_weight * 3 // 2)
    check(fn, third, rows())
    assert prepared()["preparations"] == 1


def resident():
    return int(pathlib.Path("/proc/self/statm").read_text().split()[1]) * resource.getpagesize()


def test_its_memory_is_taken_before_a_run_that_is_expected(monkeypatch):
    programs, load = [], graphs.load_program

    def keep(*args):
        programs.append(load(*args))
        return programs[-1]

    monkeypatch.setattr(graphs, "load_program", keep)
    module = torch.nn.Linear(4096, 4096, bias=False).eval()
    fn = compiled(module)
    x = torch.randn(32, 4096)
    with torch.no_grad():
        expected = fn(x)
    (program,) = programs
    size = program.prepared_bytes
    assert size >= 4096 * 4096 * 4 and program.preparations == 1

    def grows():
        before = resident()
        program.expect_run()
        end = time.monotonic() + 3
        while resident() < before + size * 0.9 and time.monotonic() < end:
            time.sleep(0.01)
        return resident() >= before + size * 0.9

    program.set_prepare_memory(size * 3 // 2)  # not two of them
    assert not grows()
    program.set_prepare_memory(size * 4)
    assert grows()
    with torch.no_grad():
        module.weight.mul_(2)
        assert torch.equal(fn(x), expected * 2)  # prepared in that memory
    assert program.preparations == 2


def test_training_prepares_nothing():
    module = model().train()
    fn = compiled(module)
    optimizer = torch.optim.SGD(module.parameters(), lr=0.1)
    for _ in range(2):
        assert_same(fn(rows()), module(rows()))
        fn(rows()).square().sum().backward()
        optimizer.step()
        optimizer.zero_grad()
    assert prepared() == {"bytes": 0, "preparations": 0}


def test_inference_tensors_have_no_versions():
    with torch.inference_mode():
        module = model()
        fn = compiled(module)
        for _ in range(2):
            assert_same(fn(rows()), module(rows()))
            module[0].weight[3, 5] += 7
    assert prepared()["preparations"] == 0


def test_threads_call_while_another_writes():
    """Each result is that of some state that the parameters had: of the one before or after."""
    module = model()
    with torch.no_grad():
        module[0].bias.zero_()
    fn = compiled(module)
    x = rows()
    check(fn, module, x)
    start = module[2].weight.detach().clone()
    scales = [1.0, 3.0]
    with torch.no_grad():
        expected = []
        for scale in scales:
            module[2].weight.copy_(start * scale)
            expected.append(module(x))
    wrong, stop = [], threading.Event()

    def call():
        while not stop.is_set():
            with torch.no_grad():
                actual = fn(x)
            if not torch.isfinite(actual).all() or actual.abs().max() > 4 * expected[1].abs().max():
                wrong.append(actual)

    callers = [threading.Thread(target=call) for _ in range(3)]
    for caller in callers:
        caller.start()
    for turn in range(20):
        with torch.no_grad():
            module[2].weight.copy_(start * scales[turn % 2])
            # Calls that begin after the write see it, whoever prepared.
            assert_same(fn(x), expected[turn % 2])
    stop.set()
    for caller in callers:
        caller.join()
    assert not wrong
    assert prepared()["preparations"] > 0
