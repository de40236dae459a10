"""minGPT-ddp's model and data set on CPUs: its own trainer refuses to start without two GPUs.

    torchrun --nproc-per-node 2 mingpt_loop.py FOLDER_OF_MINGPT

The loop is the trainer's: a data loader, forward, backward in DDP, clipping, an optimizer step. The text is read from
a file for each sample, as a data set larger than memory is.
"""

import os
import sys
from pathlib import Path

import torch
from torch.distributed import destroy_process_group, init_process_group
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, Dataset
from torch.utils.data.distributed import DistributedSampler

SOURCE = Path(sys.argv[1])
sys.path.insert(0, str(SOURCE))

from char_dataset import CharDataset, DataConfig  # noqa: E402 - lies in that folder
from model import GPT, GPTConfig, OptimizerConfig, create_optimizer  # noqa: E402

BLOCK, BATCH, STEPS = 64, 4, 500
#: Each rank reads files of its own, each sample once.
RECORD = 256 * 1024


class Records(Dataset[tuple[torch.Tensor, torch.Tensor]]):
    """Samples of minGPT's data set, behind a read of a record each."""

    def __init__(self, data: CharDataset, path: str) -> None:
        self.data, self.file = data, os.open(path, os.O_RDONLY)
        self.records = os.fstat(self.file).st_size // RECORD

    def __len__(self) -> int:
        """As many as the data set has."""
        return len(self.data)

    def __getitem__(self, index: int) -> tuple[torch.Tensor, torch.Tensor]:
        """One sample, once its record was read."""
        os.pread(self.file, RECORD, index % self.records * RECORD)
        source, targets = self.data[index]
        return source, targets


def main() -> None:
    """Train for a few hundred steps."""
    init_process_group("gloo")
    torch.set_num_threads(1)
    data = CharDataset(DataConfig(path=str(SOURCE / "data/input.txt"), block_size=BLOCK, truncate=0.05))
    path = Path(f"records.{os.environ['RANK']}")
    path.write_bytes(os.urandom(RECORD) * 256)
    records = Records(data, str(path))
    model = GPT(GPTConfig(n_layer=2, n_head=4, n_embd=128, vocab_size=data.vocab_size, block_size=BLOCK))
    optimizer = create_optimizer(model, OptimizerConfig(learning_rate=3e-4, weight_decay=0.1))
    net = DistributedDataParallel(model)
    loader = DataLoader(records, batch_size=BATCH, sampler=DistributedSampler(records))
    for _, (source, targets) in zip(range(STEPS), loader, strict=False):
        _, loss = net(source, targets)
        optimizer.zero_grad(set_to_none=True)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(net.parameters(), 1.0)
        optimizer.step()
    destroy_process_group()


if __name__ == "__main__":
    main()
