"""A folder that shows a difference again: graph, inputs, expected outputs, and how to run them."""

from __future__ import annotations

import io
import json
import tempfile
import zipfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy
import torch

from kiln_torch import _kiln
from kiln_torch.compare import difference
from kiln_torch.devices import set_random_state, with_current
from kiln_torch.program import load_program
from kiln_torch.settings import Settings

_README = """{what}

    kiln run {folder}/graph.kgraph --inputs {folder}/inputs.npz --expect {folder}/expected.npz

compiles the graph on the server that KILN_SERVER names, runs it and compares the outputs' types, sizes
and values with eager's (strides are not in the file).
{library}"""

_LIBRARY = """
{count} of its operators are library steps ({ops}), which need torch: `kiln run` says so and stops.
repro.py beside this file runs the graph with them:

    python {folder}/repro.py
"""

_SCRIPT = '''"""Runs graph.json on inputs.npz through Kiln and compares with expected.npz."""

import sys
from pathlib import Path

from kiln_torch.repro import replay

sys.exit(0 if replay(Path(__file__).parent) else 1)
'''


def write_npz(path: Path, arrays: dict[str, Any]) -> None:
    """NumPy's format. It has no bfloat16: raw bytes of type "V2", as ml_dtypes writes them."""
    with zipfile.ZipFile(path, "w") as archive:
        for name, value in arrays.items():
            data = io.BytesIO()
            numpy.lib.format.write_array(data, _array(value))
            archive.writestr(f"{name}.npy", data.getvalue())


def read_npz(path: Path) -> dict[str, Any]:
    with numpy.load(path) as arrays:
        return {name: _tensor(arrays[name]) for name in arrays.files}


def _array(value: Any) -> numpy.ndarray:
    if not isinstance(value, torch.Tensor):
        return numpy.array(value, dtype=numpy.int64)
    value = value.detach().cpu().resolve_conj().resolve_neg().contiguous()
    if value.dtype == torch.bfloat16:
        return value.view(torch.int16).numpy().view("V2")
    return value.numpy()


def _tensor(array: numpy.ndarray) -> torch.Tensor:
    if array.dtype == numpy.dtype("V2"):
        return torch.from_numpy(array.view("int16")).view(torch.bfloat16)
    return torch.from_numpy(array)


def write_repro(
    folder: str,
    name: str,
    what: Sequence[str],
    graph: str,
    inputs: Sequence[Any],
    expected: Sequence[Any],
    library_ops: dict[str, int],
    state: torch.Tensor,
    device: torch.device,
) -> Path:
    """Writes the folder NAME-check of `folder`, or one of its own for temporary files.

    `graph` is protobuf JSON, `inputs` as before the call, `expected` what eager gives, empty where it
    raises, then what it leaves in the inputs that the graph updates; `state` is random_state(device) before the call.
    """
    if folder:
        path = Path(folder) / f"{name}-check"
    else:
        path = Path(tempfile.mkdtemp(prefix="kiln-check-"))
    path.mkdir(parents=True, exist_ok=True)
    names = [entry["name"] for entry in json.loads(graph)["inputs"]]
    (path / "graph.kgraph").write_bytes(_kiln.graph_to_bytes(graph))
    (path / "graph.json").write_text(graph)
    write_npz(path / "inputs.npz", dict(zip(names, inputs, strict=True)))
    strides = [v.stride() if isinstance(v, torch.Tensor) else None for v in inputs]
    (path / "strides.json").write_text(json.dumps(strides))
    (path / "device").write_text(str(device))
    given = {f"output_{i}": value for i, value in enumerate(expected) if value is not None}
    write_npz(path / "expected.npz", given)
    write_npz(path / "generator.npz", {"state": state})
    (path / "repro.py").write_text(_SCRIPT)
    library = ""
    if library_ops:
        ops = ", ".join(sorted(library_ops))
        library = _LIBRARY.format(count=sum(library_ops.values()), ops=ops, folder=path)
    (path / "README").write_text(
        _README.format(what="\n".join(what), folder=path, library=library)
    )
    return path


def _with_strides(
    value: torch.Tensor, strides: Sequence[int], device: torch.device
) -> torch.Tensor:
    """The same values with those strides, on `device`."""
    last = sum((n - 1) * step for n, step in zip(value.shape, strides, strict=True))
    base = torch.zeros(last + 1 if value.numel() else 0, dtype=value.dtype, device=device)
    whole = base.as_strided(value.shape, strides)
    once = whole
    for dim, step in enumerate(strides):
        if step == 0 and value.numel():
            value, once = value.narrow(dim, 0, 1), once.narrow(dim, 0, 1)
    once.copy_(value)
    return whole


def replay(folder: str | Path) -> bool:
    """Compiles a folder's graph, runs it on its inputs and prints how each output compares.

    Whether all are equal. The server is that of KILN_SERVER.
    """
    folder = Path(folder)
    graph = (folder / "graph.json").read_text()
    given, expected = read_npz(folder / "inputs.npz"), read_npz(folder / "expected.npz")
    described = json.loads(graph)
    device = torch.device((folder / "device").read_text())
    values: list[Any] = []
    layouts = json.loads((folder / "strides.json").read_text())
    for entry, strides in zip(described["inputs"], layouts, strict=True):
        value = given[entry["name"]]
        values.append(int(value) if strides is None else _with_strides(value, strides, device))
    run = load_program(graph, Settings.read(None), device).run
    if device.type == "cuda":
        run = with_current(run, device)
    set_random_state(read_npz(folder / "generator.npz")["state"], device)
    outputs = run(values)
    outputs += [values[mutation["input"]] for mutation in described["mutations"]]
    right = True
    for i, ours in enumerate(outputs):
        if f"output_{i}" not in expected:
            continue
        eager = expected[f"output_{i}"]
        if isinstance(ours, torch.Tensor):
            what = difference(ours.cpu().contiguous(), eager)
        else:
            what = difference(ours, int(eager))
        right = right and what is None
        print(f"output {i} {what or 'equals eager'}")
    return right
