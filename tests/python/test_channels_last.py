"""Graphs whose convolutions get channels last: what changes inside, and that nothing changes outside."""

import pytest
import torch
from functorch.compile import make_boxed_func
from torch._dynamo.backends.common import aot_autograd

from kiln_torch.channels_last import channels_last
from kiln_torch.decompositions import decompositions

nn = torch.nn
convolution = torch.ops.aten.convolution.default


class Residual(nn.Module):
    def __init__(self):
        super().__init__()
        self.stem = nn.Conv2d(3, 16, 7, stride=2, padding=3, bias=False)
        self.norm = nn.BatchNorm2d(16)
        self.body = nn.Conv2d(16, 16, 3, padding=1)
        self.pool = nn.MaxPool2d(3, stride=2, padding=1)
        self.head = nn.Linear(16, 5)

    def forward(self, x):
        x = self.pool(self.norm(self.stem(x)).relu())
        return self.head((x + self.body(x)).relu().mean((2, 3)))


class Upward(nn.Module):
    """Transposed convolution, concatenation, and an image among the outputs."""

    def __init__(self):
        super().__init__()
        self.down = nn.Conv2d(4, 8, 3, stride=2, padding=1)
        self.up = nn.ConvTranspose2d(8, 4, 2, stride=2)
        self.out = nn.Conv2d(8, 2, 1)

    def forward(self, x):
        inner = self.down(x).relu()
        return self.out(torch.cat([x, self.up(inner)], 1)), inner


class Flattened(nn.Module):
    """A view that no image with channels last has."""

    def __init__(self):
        super().__init__()
        self.conv = nn.Conv2d(3, 8, 3)
        self.linear = nn.Linear(8 * 6 * 6, 4)

    def forward(self, x):
        return self.linear(self.conv(x).relu().flatten(1))


class Patches(nn.Module):
    """Images as tokens: the order of dimensions that follows is the transformer's own."""

    def __init__(self):
        super().__init__()
        self.conv = nn.Conv2d(3, 16, 4, stride=4)
        self.norm = nn.LayerNorm(16)

    def forward(self, x):
        return self.norm(self.conv(x).flatten(2).transpose(1, 2))


def _rewritten(module, x):
    """The graph of `module` as AOTAutograd gives it, what becomes of it, and inputs for both."""
    graphs = []

    def keep(graph, _):
        graphs.append((graph, channels_last(graph)))
        return make_boxed_func(graph.forward)

    backend = aot_autograd(
        fw_compiler=keep, inference_compiler=keep, decompositions=decompositions("cuda")
    )
    with torch.no_grad():
        torch.compile(module, backend=backend, dynamic=False)(x)
    graph, new = graphs[0]
    places = [node.meta["val"] for node in graph.graph.nodes if node.op == "placeholder"]
    inputs = [torch.rand(p.shape, dtype=p.dtype).as_strided(p.shape, p.stride()) for p in places]
    return graph, new, inputs


def _orders(module):
    """Of each convolution, whether image, weight and result have channels last."""
    found = []
    for node in module.graph.nodes:
        if node.target == convolution:
            values = [arg.meta["val"] for arg in node.args[:2]] + [node.meta["val"]]
            found += [v.is_contiguous(memory_format=torch.channels_last) for v in values]
    return found


def _check(module, x, dtype):
    torch.manual_seed(0)
    graph, new, inputs = _rewritten(module.to(dtype).eval(), x.to(dtype))
    assert new is not graph and all(_orders(new))
    wide = graph(*(t.double() if t.dtype.is_floating_point else t for t in inputs))
    for got, eager, exact in zip(new(*inputs), graph(*inputs), wide, strict=True):
        assert got.dtype == eager.dtype and got.shape == eager.shape
        assert got.stride() == eager.stride()
        slack = 4 * float((eager.double() - exact).abs().max()) + torch.finfo(dtype).eps
        assert float((got.double() - exact).abs().max()) <= slack
    return new


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("module", [Residual, Upward, Flattened, Patches])
def test_results_and_their_strides_stay(module, dtype):
    channels = {Upward: 4}.get(module, 3)
    _check(module(), torch.randn(2, channels, 8, 8), dtype)


def test_views_that_the_order_forbids_are_of_copies():
    new = _check(Flattened(), torch.randn(2, 3, 8, 8), torch.float32)
    copied = [node for node in new.graph.nodes if node.target == torch.ops.aten.clone.default]
    assert any(node.kwargs["memory_format"] == torch.contiguous_format for node in copied)


def test_an_image_in_this_order_is_not_copied():
    image = torch.randn(2, 3, 8, 8).to(memory_format=torch.channels_last)
    _, new, _ = _rewritten(Residual().to(memory_format=torch.channels_last).eval(), image)
    assert all(_orders(new))
    assert not any(node.target == torch.ops.aten.clone.default for node in new.graph.nodes)


class Gradients(nn.Module):
    """Of a convolution, as a graph of inference may ask for them."""

    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(torch.randn(8, 3, 3, 3))
        self.grad = nn.Parameter(torch.randn(2, 8, 8, 8))

    def forward(self, x):
        numbers = [1, 1], [1, 1], [1, 1], False, [0, 0], 1, [True, True, False]
        return torch.ops.aten.convolution_backward(self.grad, x, self.weight, None, *numbers)[:2]


def test_gradients_of_convolutions_in_inference():
    graph, new, inputs = _rewritten(Gradients(), torch.randn(2, 3, 8, 8))
    assert new is not graph
    for ours, theirs in zip(new(*inputs), graph(*inputs), strict=True):
        torch.testing.assert_close(ours, theirs)
        assert ours.stride() == theirs.stride()


class Strided(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv = nn.Conv2d(3, 8, 3)

    def forward(self, x):
        return self.conv(x).as_strided((4, 4), (4, 1)) + 1


@pytest.mark.parametrize(
    ("module", "x"),
    [
        (nn.Conv2d(8, 8, 3, groups=8), torch.randn(2, 8, 8, 8)),
        (nn.Conv1d(3, 8, 3), torch.randn(2, 3, 8)),
        (nn.Linear(3, 8), torch.randn(2, 3)),
        (Strided(), torch.randn(2, 3, 8, 8)),
        (nn.Conv2d(3, 8, 3).double(), torch.randn(2, 3, 8, 8).double()),
    ],
    ids=["groups", "conv1d", "linear", "strided", "double"],
)
def test_graphs_that_stay_as_they_are(module, x):
    graph, new, _ = _rewritten(module.eval(), x)
    assert new is graph


def test_symbolic_sizes_stay_as_they_are():
    graphs = []

    def keep(graph, _):
        graphs.append(channels_last(graph) is graph)
        return make_boxed_func(graph.forward)

    backend = aot_autograd(fw_compiler=keep, inference_compiler=keep)
    with torch.no_grad():
        torch.compile(nn.Conv2d(3, 8, 3), backend=backend, dynamic=True)(torch.randn(2, 3, 8, 8))
    assert graphs == [True]
