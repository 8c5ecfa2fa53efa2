"""A training loop of torch's with its forward and backward graphs compiled by Kiln.

    pip install torch kiln_torch-*.whl && python train.py
"""

import torch


def main() -> None:
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(32, 64), torch.nn.GELU(), torch.nn.Linear(64, 1))
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    inputs = torch.randn(256, 32)
    targets = inputs.square().mean(dim=1, keepdim=True)

    @torch.compile(backend="kiln")
    def loss_of(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        return torch.nn.functional.mse_loss(model(x), y)

    for step in range(101):
        optimizer.zero_grad()
        loss = loss_of(inputs, targets)
        loss.backward()
        optimizer.step()
        if step % 25 == 0:
            print(f"step {step:3}: loss {loss.item():.4f}")
    assert loss.item() < 0.1


if __name__ == "__main__":
    main()
