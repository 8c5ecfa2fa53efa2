"""What a user does with the wheel, in a Python that has it and torch: nothing is imported, set or
started before torch.compile. Run by wheel_machine.py and by hand; prints what it saw, fails by itself."""

import subprocess
import sys
import time

import torch


def main() -> None:
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(64, 128), torch.nn.GELU(), torch.nn.Linear(128, 8))
    x = torch.randn(4, 64)
    compiled = torch.compile(model, backend="kiln")
    start = time.perf_counter()
    with torch.no_grad():
        torch.testing.assert_close(compiled(x), model(x), rtol=1e-4, atol=1e-5)
    first_s = time.perf_counter() - start
    compiled(x).sum().backward()

    import kiln_torch

    stats = kiln_torch.stats()
    assert stats["graphs"] > 0 and not stats["fallbacks"], stats
    kiln = f"{sys.prefix}/bin/kiln"
    status = subprocess.run([kiln, "status"], capture_output=True, text=True, check=True).stdout
    assert "server     unix:" in status, status
    subprocess.run([kiln, "stop"], check=True)
    print(f"Python {sys.version.split()[0]}, torch {torch.__version__}: first call {first_s:.2f} s")
    print(status.splitlines()[0])


if __name__ == "__main__":
    main()
