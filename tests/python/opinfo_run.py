"""All of torch's op_db through torch.compile(backend="kiln") against eager, forward and backward.

    PYTHONPATH=build/release/python KILN_BUILD=build/release python tests/python/opinfo_run.py

Prints what is not equal and is on no list (opinfo_gaps.py), what is listed but equal by now, and how
many cases there are of each outcome by dtype and direction. Exits 1 where there is anything of the
first two. A whole run takes about an hour on two cores.
"""

import argparse
import collections
import dataclasses
import json
import os
import pathlib
import queue
import re
import select
import signal
import subprocess
import sys
import tempfile
import threading
import time
import warnings
import zlib

HERE = pathlib.Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parent))

COLUMNS = ("equal", "fell back", "differs", "error", "crash", "not applicable")
BAD = ("fell back", "differs", "error", "crash")


class Worker:
    """A process that runs case after case; what kills it costs one case."""

    def __init__(self, timeout_s, samples, device):
        self._timeout_s = timeout_s
        self._arguments = ["--samples", str(samples), "--device", device]
        self._process = None

    def run(self, case):
        if self._process is None:
            self._start()
        self._process.stdin.write(json.dumps(dataclasses.asdict(case)) + "\n")
        self._process.stdin.flush()
        ready, _, _ = select.select([self._answers], [], [], self._timeout_s)
        line = self._answers.readline() if ready else ""
        if line:
            outcome = json.loads(line)
            if outcome["status"] == "crash":  # it has ended
                self.stop()
            return outcome
        self.stop()
        if not ready:
            return {"status": "error", "why": f"no answer within {self._timeout_s} s"}
        code = self._process_code
        name = signal.Signals(-code).name if code < 0 else f"exit status {code}"
        return {"status": "crash", "why": name}

    def _start(self):
        read, write = os.pipe()
        self._process = subprocess.Popen(
            [sys.executable, __file__, "--worker", str(write), *self._arguments],
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            pass_fds=[write],
            text=True,
            env={"OMP_NUM_THREADS": "1", **os.environ},
        )
        os.close(write)
        self._answers = os.fdopen(read)
        # Importing torch and its tests is not part of a case.
        if not self._answers.readline():
            raise RuntimeError(f"no worker starts: try {__file__} --worker 1")

    def stop(self):
        if self._process is None:
            return
        self._process.stdin.close()
        try:
            self._process_code = self._process.wait(timeout=5)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process_code = self._process.wait()
        self._answers.close()
        self._process = None


def work(answers, samples, device):
    """The worker's side: cases come on standard input, outcomes go to `answers`."""
    warnings.filterwarnings("ignore")
    import torch

    torch.backends.cudnn.allow_tf32 = False  # torch's tests, imported next, freeze such flags
    from opinfo_case import Case, Outcome, infos, run_case

    infos()
    with os.fdopen(answers, "w", buffering=1) as out:
        out.write("ready\n")
        for line in sys.stdin:
            outcome = run_case(Case(**json.loads(line)), samples, device)
            broken = device_fault() if device == "cuda" else ""
            if broken:
                outcome = Outcome("crash", f"{broken} ({outcome.status}: {outcome.why})")
            out.write(json.dumps(dataclasses.asdict(outcome)) + "\n")
            if broken:  # for good, in this process
                return


def device_fault():
    """What a kernel of the last case did to the GPU, or nothing."""
    import torch

    try:
        torch.cuda.synchronize()
    except Exception as error:
        return str(error).strip().splitlines()[0]
    return ""


def select_cases(options):
    from opinfo_case import all_cases, infos
    from opinfo_names import LOWERED

    wanted = re.compile(options.ops)
    return [
        case
        for case in all_cases(options.device)
        if wanted.fullmatch(case.op)
        and (not options.lowered or infos()[case.op].name in LOWERED)
        and (not options.dtype or case.dtype in options.dtype)
        and (not options.direction or case.direction == options.direction)
    ]


def run_all(cases, options, outcomes, record):
    """Fills `outcomes`, by case, for `options.within` seconds; each goes to `record` as it comes."""
    end = time.monotonic() + options.within
    waiting = queue.SimpleQueue()
    # In an order that mixes everything: what a run had time for says something about the rest.
    for case in sorted(cases, key=lambda case: zlib.crc32(str(case).encode())):
        waiting.put(case)
    lock = threading.Lock()

    def serve():
        worker = Worker(options.timeout, options.samples, options.device)
        while time.monotonic() < end:
            try:
                case = waiting.get_nowait()
            except queue.Empty:
                break
            outcome = worker.run(case)
            with lock:
                outcomes[str(case)] = outcome
                record.write(json.dumps({"case": str(case), **outcome}) + "\n")
                record.flush()
                if sys.stderr.isatty():
                    print(f"\r{len(outcomes)} {str(case)[:100]:100}", end="", file=sys.stderr)
        worker.stop()

    threads = [threading.Thread(target=serve) for _ in range(options.jobs)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


def recorded(path):
    """The outcomes, by case, that an earlier run left in a file."""
    outcomes = {}
    if path.exists():
        for line in path.read_text().splitlines():
            outcome = json.loads(line)
            outcomes[outcome.pop("case")] = outcome
    return outcomes


def report(cases, outcomes, device="cpu"):
    """Prints everything; whether all is as the list says."""
    from opinfo_case import DIRECTIONS, DTYPES, all_cases
    from opinfo_gaps import GAPS, gap

    fine = True
    bad_of = collections.Counter()  # by entry of the list
    run_of = collections.Counter()
    for case in cases:
        outcome = outcomes[str(case)]
        entry = gap(case.op, case.dtype, case.direction)
        run_of[entry] += 1
        bad_of[entry] += outcome["status"] in BAD
        if outcome["status"] in BAD and entry is None:
            fine = False
            print(f"{case}: {outcome['status']}: {' '.join(outcome['why'].split())[:300]}")
    all_of = collections.Counter(
        gap(case.op, case.dtype, case.direction) for case in all_cases(device)
    )
    for entry, reason in GAPS.items():
        if all_of[entry] == 0:
            fine = False
            print(f"{' '.join(entry)} is listed, and no case")
        elif run_of[entry] == all_of[entry] and bad_of[entry] == 0:
            fine = False
            print(f"{' '.join(entry)} is equal by now; it was listed for: {reason}")
    print(f"\n{'':20}" + "".join(f"{column:>16}" for column in COLUMNS))
    for dtype in DTYPES:
        for direction in DIRECTIONS:
            of = [c for c in cases if c.dtype == dtype and c.direction == direction]
            counts = collections.Counter(outcomes[str(case)]["status"] for case in of)
            if of:
                row = "".join(f"{counts[column]:>16}" for column in COLUMNS)
                print(f"{dtype + ' ' + direction:20}{row}")
    listed = sum(count for entry, count in bad_of.items() if entry is not None)
    print(f"\n{len(cases)} cases, {listed} of them listed in opinfo_gaps.py")
    return fine


def main():
    parser = argparse.ArgumentParser(
        description=__doc__.partition("\n\n")[0],
        epilog=__doc__.partition("\n\n")[2],
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--ops", default=".*", help="a regular expression for operators' names")
    parser.add_argument("--dtype", action="append", help="float32, ...; may be repeated")
    parser.add_argument("--direction", choices=("forward", "backward"))
    parser.add_argument("--lowered", action="store_true", help="operators lowered natively alone")
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu")
    parser.add_argument("--jobs", type=int, default=os.cpu_count(), help="processes at a time")
    parser.add_argument("--samples", type=int, default=2, help="of each case (default 2)")
    parser.add_argument("--timeout", type=float, default=300, help="seconds for a case")
    parser.add_argument("--within", type=float, default=float("inf"),
                        help="seconds after which no case is begun")  # fmt: skip
    parser.add_argument("--results", help="a file that outcomes go to, one JSON object a line; "
                        "what it has already is not run again")  # fmt: skip
    parser.add_argument("--worker", type=int, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.worker is not None:
        return work(options.worker, options.samples, options.device)

    from kilnd import Server

    begin = time.monotonic()
    cases = select_cases(options)
    with tempfile.TemporaryDirectory() as folder:
        results = pathlib.Path(options.results or f"{folder}/results.jsonl")
        outcomes = recorded(results)
        server = Server(pathlib.Path(folder) / "data")
        os.environ["KILN_SERVER"] = server.address
        try:
            with results.open("a") as record:
                missing = [case for case in cases if str(case) not in outcomes]
                run_all(missing, options, outcomes, record)
        finally:
            server.stop()
    run = [case for case in cases if str(case) in outcomes]
    fine = report(run, outcomes, options.device) and len(run) == len(cases)
    if len(run) < len(cases):
        print(f"{len(cases) - len(run)} cases had no time")
    print(f"{time.monotonic() - begin:.0f} s")
    return 0 if fine else 1


if __name__ == "__main__":
    sys.exit(main())
