"""Gradients of max pooling of images whose rows are contiguous, and of others."""

import pytest
import torch

F = torch.nn.functional
# name: (pooling, sizes of the image)
POOLINGS = {
    "1d": (lambda x: F.max_pool1d(x, 3, 2, 1), (2, 3, 41)),
    "overlapping": (lambda x: F.max_pool2d(x, 3, 2, 1), (2, 3, 19, 18)),
    "one image": (lambda x: F.max_pool2d(x, 2), (3, 8, 10)),
    "dilated": (lambda x: F.max_pool2d(x, 2, 1, 1, 2), (2, 3, 9, 8)),
    "ceil": (lambda x: F.max_pool2d(x, 3, 2, ceil_mode=True), (2, 3, 8, 11)),
    "3d": (lambda x: F.max_pool3d(x, 3, 2, 1), (2, 2, 7, 6, 9)),
    "adaptive": (lambda x: F.adaptive_max_pool2d(x, (3, 5)), (2, 3, 9, 8)),
}


def gradients(fn, x):
    x = x.detach().requires_grad_()
    out = fn(x)
    (out * torch.arange(1, out.numel() + 1).view_as(out)).sum().backward()
    return x.grad


@pytest.mark.parametrize("name", POOLINGS)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("dynamic", [False, True])
def test_gradients_of_max_pooling(name, dtype, dynamic):
    fn, sizes = POOLINGS[name]
    torch._dynamo.reset()
    pool = torch.compile(fn, backend="kiln", dynamic=dynamic, options={"fallback": "raise"})
    for batch in (sizes[0], sizes[0] + 1):
        x = torch.randint(-4, 4, (batch, *sizes[1:])).to(dtype)  # with equal elements
        for image in (x, x.transpose(-1, -2).contiguous().transpose(-1, -2)):
            actual = gradients(pool, image)
            expected = gradients(fn, image)
            exact = gradients(fn, image.double())
            bound = 3 * (expected.double() - exact).abs().max() + torch.finfo(dtype).eps * exact.abs().max()
            assert (actual.double() - exact).abs().max() <= bound
            assert actual.stride() == expected.stride()
