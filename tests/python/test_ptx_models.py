"""Models on target ptx without a GPU: what runs by kernels of ours and what by libraries; see ptx_models.py."""

import json
import os
import pathlib
import subprocess
import sys

import pytest
from conftest import BUILD

HERE = pathlib.Path(__file__).parent
# Products, convolutions, attention, scatters, scans, and what draws random numbers: what libraries have faster, or eager's bits of.
OF_LIBRARIES = {
    "aten.addmm.default",
    "aten.bmm.default",
    "aten.convolution.default",
    "aten.convolution_backward.default",
    "aten.cumsum.default",
    "aten.embedding_dense_backward.default",
    "aten.mm.default",
    "aten.randint.low",
    "aten._scaled_dot_product_flash_attention_for_cpu.default",
    "aten._scaled_dot_product_flash_attention_for_cpu_backward.default",
}


def compiled(server, name):
    """The lines of JSON that ptx_models.py prints for `name`."""
    driver = BUILD / "tests" / "libkiln_fake_cuda.so"
    if not driver.exists():
        pytest.skip("the unit tests are not built")
    done = subprocess.run(
        [sys.executable, HERE / "ptx_models.py", server.address, name],
        env={**os.environ, "KILN_LIBCUDA": str(driver), "PYTHONPATH": os.pathsep.join(sys.path)},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    return [json.loads(line) for line in done.stdout.splitlines()]


@pytest.mark.parametrize("name", ["bert", "gpt2", "resnet"])
def test_all_but_products_is_kernels(name, server):
    lines = compiled(server, name)
    assert [(line["dtype"], line["training"]) for line in lines] == [
        ("float32", False),
        ("bfloat16", False),
        ("float32", True),
    ]
    for line in lines:
        assert [g["kind"] for g in line["graphs"]] == (
            ["forward", "backward"] if line["training"] else ["inference"]
        )
        for graph in line["graphs"]:
            assert set(graph["library_ops"]) <= OF_LIBRARIES, graph
            assert graph["native_steps"] > 0, graph


def test_a_batch_of_none_is_compiled(server):
    for line in compiled(server, "empty"):
        assert [g["kind"] for g in line["graphs"]] == ["forward", "backward"]


def test_attention_of_a_gpu_with_dropout_is_a_library_step(server):
    """Without, it is a kernel, and what comes after it another one."""
    lines = compiled(server, "attention")
    assert [line["op"] for line in lines] == [op for op in ("flash", "efficient", "cudnn") for _ in "abcd"]
    for line in lines:
        if line["dropout"] == 0:
            assert line["library_ops"] == {} and line["native_steps"] == 2, line
            continue
        assert line["library_ops"] == {f"aten._scaled_dot_product_{line['op']}_attention.default": 1}
        assert line["native_steps"] > 0


def test_attention_is_a_kernel_where_no_library_is(server):
    """Whose scores lie in no memory; with torch, whose flash attention is as fast there, only on sm_90a."""
    lines = compiled(server, "architectures")
    assert len(lines) == 10
    for line in lines:
        is_own = line["libraries"] == "none" or line["arch"] == "sm_90a"
        assert sum(line["library_ops"].values()) == (0 if is_own else 1), line
        assert line["native_steps"] == (1 if is_own else 0), line
        assert line["workspace_bytes"] < 500 * 500, line


def test_attention_in_training_is_a_kernel(server):
    """And another one makes the states of random numbers, which nobody reads; of 80 elements it is a library's."""
    lines = compiled(server, "trained_attention")
    assert [line["width"] for line in lines] == [64, 128, 80]
    for line in lines:
        is_own = line["width"] != 80
        assert sum(line["library_ops"].values()) == (0 if is_own else 1), line
        assert line["native_steps"] == (2 if is_own else 0), line


def test_attentions_gradients_are_a_kernel(server):
    """Between one for the rows' dots and one for the queries' gradient; a library's where torch is to be
    deterministic, or of 80 elements."""
    lines = compiled(server, "attention_gradients")
    assert len(lines) == 4
    for line in lines:
        is_own = line["width"] != 80 and not line["deterministic"]
        assert sum(line["library_ops"].values()) == (0 if is_own else 1), line
        assert line["native_steps"] == (3 if is_own else 0), line


def test_attention_of_one_query_is_a_kernel(server):
    """Of heads of whole lines, of which not too many share keys; else a library's."""
    lines = compiled(server, "queries")
    assert len(lines) == 10
    for line in lines:
        is_own = line["width"] >= 64 and line["groups"] <= 16
        assert sum(line["library_ops"].values()) == (0 if is_own else 1), line
        assert line["native_steps"] == (1 if is_own else 0), line


def test_a_cache_is_updated_in_place_or_by_libraries(server):
    """With an attention of a library's, which may fail, after it the cache is copied: by a library, too."""
    own, other = compiled(server, "cached")
    assert own["library_ops"] == {} and own["workspace_bytes"] < own["cache_bytes"], own
    assert other["library_ops"]["aten.index_copy.default"] == 4, other
    assert len(other["library_ops"]) == 2, other


def test_products_with_packed_weights_of_few_rows_are_one_kernel(server):
    """Of more rows a library's, whose weights a kernel has unpacked."""
    for line in compiled(server, "packed"):
        is_few = line["rows"] <= 64
        assert line["library_ops"] == ({} if is_few else {"aten.mm.default": 1}), line
        assert line["native_steps"] == (1 if is_few else 2), line


def test_products_of_few_rows_are_kernels(server):
    """Weights of 8 bits, too, which are read as they are; of more rows all three products are a library's."""
    for line in compiled(server, "decoding"):
        is_few = line["rows"] <= 64
        assert sum(line["library_ops"].values()) == (0 if is_few else 3), line
        assert line["native_steps"] == (3 if is_few else 2), line


def test_updates_of_equal_tensors_are_one_launch(server):
    """Of tensors of one size; the client takes a launch of so many buffers."""
    (line,) = compiled(server, "updates")
    assert line["library_ops"] == {} and line["native_steps"] == 2, line
