"""The service against a bare gRPC echo of the same bytes; see README.md for the command.

Both are loaded by `kiln load`, in turns, on one machine whose cores the load generator shares.
No figure gates anything.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import pathlib
import statistics
import subprocess
import sys
import tempfile

HERE = pathlib.Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parent))

from bench import cpu_name, table  # noqa: E402
from conftest import BUILD, Server  # noqa: E402

ROUNDS = 3


@contextlib.contextmanager
def kilnd(*flags: str):
    with tempfile.TemporaryDirectory() as folder:
        server = Server(pathlib.Path(folder) / "data", "--anonymous-role=admin", *flags)
        try:
            yield server.address
        finally:
            server.stop()


@contextlib.contextmanager
def echo(size: int):
    process = subprocess.Popen(
        [str(BUILD / "bin" / "kiln_echo"), str(size)], stdout=subprocess.PIPE, text=True
    )
    try:
        yield process.stdout.readline().rpartition(" ")[2].strip()
    finally:
        process.kill()
        process.wait()


def load(address: str, *flags: object) -> dict:
    command = [str(BUILD / "bin" / "kiln"), "load", "fetch", "--server", address, "--json"]
    done = subprocess.run(
        command + [str(flag) for flag in flags], capture_output=True, text=True, check=False
    )
    if done.returncode != 0:
        raise RuntimeError(done.stderr)
    result = json.loads(done.stdout)
    failed = {code: count for code, count in result["codes"].items() if code != "OK"}
    if failed or result["unsent"]:
        raise RuntimeError(f"some requests failed: {failed}, not sent: {result['unsent']}")
    return result


def in_turns(size: int, keys: int, flags: list[object]) -> dict[str, list[dict]]:
    """What each server did in each round."""
    results = {"kilnd": [], "echo": []}
    with kilnd() as address, echo(size) as echo_address:
        load(address, "--size", size, "--keys", keys, "--duration", 1)  # puts the entries
        for _ in range(ROUNDS):
            for name, target in (("kilnd", address), ("echo", echo_address)):
                results[name].append(
                    load(target, "--size", size, "--keys", keys, "--no-prepare", *flags)
                )
    return results


def per_second(results: list[dict], size: int) -> tuple[float, float]:
    """Requests and gigabytes a second, the middle round's."""
    rate = statistics.median(r["ms"]["count"] / r["seconds"] for r in results)
    return rate, rate * size / 1e9


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seconds", type=float, default=5, help="of each measurement")
    seconds = parser.parse_args().seconds
    print(cpu_name())

    rows = []
    size = 64 << 10
    closed = in_turns(size, 1000, ["--duration", seconds, "--zipf", 0.9])
    rates = {name: per_second(results, size) for name, results in closed.items()}
    rows.append(["hits of 64 KiB per second, 32 under way", rates["kilnd"][0], rates["echo"][0]])
    large = 16 << 20
    one = ["--connections", 1, "--concurrency", 1, "--duration", seconds]
    streams = in_turns(large, 4, one)
    speeds = {name: per_second(results, large)[1] for name, results in streams.items()}
    rows.append(["16 MiB on one connection, GB/s", speeds["kilnd"], speeds["echo"]])
    table(
        "Throughput",
        ["what", "kilnd", "echo", "kilnd / echo"],
        [[*row, f"{100 * row[1] / row[2]:.0f} %"] for row in rows],
    )

    # What an open loop bears is less than what a closed one with many under way does, whose
    # requests come in batches. Two keep both sides busy: one with the server, one with the client.
    under_way = 2
    busy = in_turns(size, 1000, ["--duration", seconds, "--concurrency", under_way])
    rate = 0.7 * min(per_second(results, size)[0] for results in busy.values())
    for title, flags in (
        (f"an open loop of {rate:.0f} a second (70 % load)", ["--rate", rate]),
        ("one under way", ["--concurrency", 1]),
    ):
        latencies = in_turns(size, 1000, ["--duration", seconds, *flags])
        quantiles = ("p50", "p99", "p99.9")
        table(
            f"Latency of hits of 64 KiB, {title}, ms",
            ["server", *quantiles],
            [
                [name] + [statistics.median(r["ms"][q] for r in results) for q in quantiles]
                for name, results in latencies.items()
            ],
        )


if __name__ == "__main__":
    main()
