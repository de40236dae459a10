"""DeepSpeed's ZeRO on CPUs: an MLP, sharded optimizer states, gloo.

torchrun --nproc-per-node 2 deepspeed_loop.py
"""

import deepspeed
import torch
from torch.utils.data import DataLoader, TensorDataset

CONFIG = {
    "train_micro_batch_size_per_gpu": 16,
    "zero_optimization": {"stage": 1},
    "bf16": {"enabled": True},
    "zero_allow_untested_optimizer": True,
}
WIDTH, STEPS = 512, 700


def main() -> None:
    """Train for a few hundred steps."""
    torch.set_num_threads(1)
    model = torch.nn.Sequential(*(torch.nn.Linear(WIDTH, WIDTH) for _ in range(4)))
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    deepspeed.ops.__compatible_ops__["deepspeed_shm_comm"] = False  # compiled at first use, for minutes
    deepspeed.init_distributed(dist_backend="gloo")
    engine, *_ = deepspeed.initialize(model=model, optimizer=optimizer, config=CONFIG)
    print("training")
    data = TensorDataset(torch.randn(16 * STEPS, WIDTH))
    for (batch,) in DataLoader(data, batch_size=16):
        loss = engine(batch.bfloat16()).square().mean()
        engine.backward(loss)
        engine.step()


if __name__ == "__main__":
    main()
