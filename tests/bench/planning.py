"""How planning grows with a graph: a captured BERT layer, stacked up to 50,000 nodes.

    PYTHONPATH=build/release/python KILN_BUILD=build/release python tests/bench/planning.py

Prints milliseconds of each planning stage as kilnd's metrics count them, with all kernels cached, and
draws tests/bench/planning.svg. Every layer has weights of its own.
"""

import argparse
import json
import os
import pathlib
import re
import subprocess
import tempfile
import urllib.request

import torch
import transformers
from bench import FreshServer, cpu_name, forget_artifacts, table
from bench_child import recorded_compiles

STAGES = ("import", "lower", "fuse", "tile", "plan_memory", "schedule", "emit", "assemble")


def captured_layer():
    """One encoder layer as kilnd gets it."""
    config = transformers.BertConfig(attn_implementation="sdpa")
    layer = transformers.models.bert.modeling_bert.BertLayer(config).eval()
    with torch.no_grad(), recorded_compiles() as asked:
        torch.compile(layer, backend="kiln", options={"fallback": "raise"})(torch.randn(1, 128, 768))
    ((graph, _),) = asked
    return json.loads(graph)


def stack(layer, count):
    """`count` copies, each of which takes what the one before it gives, and parameters of its own.

    Values are numbered: inputs first, then results in order of the nodes.
    """
    inputs, nodes = layer["inputs"], layer["nodes"]
    (user,) = [i for i, value in enumerate(inputs) if value["role"] == "ROLE_USER"]
    parameters = [i for i in range(len(inputs)) if i != user]
    number_in_copy = {value: i for i, value in enumerate(parameters)}
    results = sum(len(node["results"]) for node in nodes)
    first_result = 1 + count * len(parameters)
    out = dict(layer, name=f"stack_{count}", inputs=[inputs[user]], nodes=[])
    previous = 0
    for copy in range(count):

        def number(value):
            if value == user:
                return previous  # noqa: B023
            if value < len(inputs):
                return 1 + copy * len(parameters) + number_in_copy[value]  # noqa: B023
            return first_result + copy * results + value - len(inputs)  # noqa: B023

        def renumbered(part):
            if isinstance(part, list):
                return [renumbered(item) for item in part]  # noqa: B023
            if not isinstance(part, dict):
                return part
            return {
                key: number(item) if key == "value" and isinstance(item, int) else renumbered(item)  # noqa: B023
                for key, item in part.items()
            }

        out["inputs"] += [dict(inputs[i], name=f"{inputs[i]['name']}_{copy}") for i in parameters]
        for node in nodes:
            moved = {key: renumbered(node[key]) for key in ("args", "kwargs")}
            out["nodes"].append(dict(node, name=f"{node['name']}_{copy}", **moved))
        previous = number(layer["outputs"][0]["value"])
    out["outputs"] = [{"value": previous}]
    return out


def stage_seconds(http):
    with urllib.request.urlopen(f"http://{http}/metrics") as answer:
        text = answer.read().decode()
    found = re.findall(r'kiln_compile_stage_duration_seconds_sum\{stage="(\w+)"[^}]*\} (\S+)', text)
    return {stage: float(value) for stage, value in found}


def plan(graph, env, http):
    """Milliseconds of each stage."""
    from conftest import BUILD
    from kiln_torch import tools

    with tempfile.TemporaryDirectory() as folder:
        path = pathlib.Path(folder) / "stack.kgraph"
        path.write_bytes(tools._kiln.graph_to_bytes(json.dumps(graph)))
        before = stage_seconds(http)
        command = [str(BUILD / "bin" / "kiln"), "compile", str(path), "-o", f"{folder}/artifact"]
        subprocess.run(command, env={**os.environ, **env}, check=True, capture_output=True)
        after = stage_seconds(http)
    return {stage: (after[stage] - before.get(stage, 0)) * 1e3 for stage in STAGES}


def picture(points):
    """SVG of milliseconds over nodes, beside a straight line through the origin and the last point."""
    most_nodes, most_ms = points[-1][0], max(ms for _, ms in points)

    def place(nodes, ms):
        return f"{60 + 420 * nodes / most_nodes:.1f},{320 - 280 * ms / most_ms:.1f}"

    dots = "".join('<circle cx="{}" cy="{}" r="3"/>'.format(*place(*p).split(",")) for p in points)
    return (
        '<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 520 350" font-family="sans-serif" '
        'font-size="13"><rect width="520" height="350" fill="#fff"/>'
        '<path d="M60 40V320H480" fill="none" stroke="#333"/>'
        f'<text x="52" y="46" text-anchor="end">{most_ms:.0f} ms</text>'
        f'<text x="480" y="338" text-anchor="end">{most_nodes:,} nodes</text>'
        f'<polyline points="{place(0, 0)} {place(*points[-1])}" stroke="#9aa0a6" stroke-dasharray="4"/>'
        f'<polyline points="{" ".join(place(*p) for p in points)}" fill="none" stroke="#d62728"/>'
        f"{dots}</svg>\n"
    )


def main():
    arguments = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    arguments.add_argument("--layers", default="12,48,192,400,800,1220")
    arguments.add_argument("--svg", default=str(pathlib.Path(__file__).with_suffix(".svg")))
    options = arguments.parse_args()
    print(f"{cpu_name()}, torch {torch.__version__}")
    rows, points = [], []
    server = FreshServer()
    with server as env:
        os.environ.update(env)
        layer = captured_layer()
        for count in map(int, options.layers.split(",")):
            graph = stack(layer, count)
            plan(graph, env, server.http)  # its kernels
            forget_artifacts(env)
            stages = plan(graph, env, server.http)
            total = sum(stages.values())
            points.append((len(graph["nodes"]), total))
            rows.append([count, len(graph["nodes"]), *stages.values(), total, total / count])
    table("Planning, milliseconds", ["layers", "nodes", *STAGES, "all", "a layer"], rows)
    pathlib.Path(options.svg).write_text(picture(points))


if __name__ == "__main__":
    main()
