"""How the training scripts of the Horovod benches begin: a small model on one thread, and its optimizer."""

OPENING = """
import os, sys, time, torch
import horovod.torch as hvd
from torch import nn
from torch.utils.data import DataLoader, TensorDataset
hvd.init()
torch.set_num_threads(1)
model = nn.Sequential(nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 10))
optimizer = hvd.DistributedOptimizer(
    torch.optim.SGD(model.parameters(), lr=0.01), named_parameters=model.named_parameters()
)
"""
