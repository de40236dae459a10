"""Loops that people do not write themselves: FSDP, Lightning, Accelerate, the Hugging Face Trainer, Keras 3."""

import importlib.util
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hindmost import ring

Train = Callable[..., dict[int, Any]]  # conftest.py: rank -> Trace

pytestmark = pytest.mark.torch


def needs(module: str) -> pytest.MarkDecorator:
    return pytest.mark.skipif(importlib.util.find_spec(module) is None, reason=f"{module} is not installed")


def test_fsdp_steps_and_phases(train: Train) -> None:
    """A fully sharded model's steps, phases and collectives are recognised on every rank."""
    script = """
        import torch, torch.distributed as dist
        from torch import nn
        from torch.distributed.fsdp import fully_shard
        from torch.utils.data import DataLoader, TensorDataset
        dist.init_process_group("gloo")
        model = nn.Sequential(nn.Linear(16, 16), nn.ReLU(), nn.Linear(16, 2))
        for layer in model:
            fully_shard(layer)
        fully_shard(model)
        optimizer = torch.optim.AdamW(model.parameters())
        for x, y in DataLoader(TensorDataset(torch.rand(64, 16), torch.randint(0, 2, (64,))), batch_size=8):
            nn.functional.cross_entropy(model(x), y).backward()
            optimizer.step()
            optimizer.zero_grad()
        dist.barrier()
        dist.barrier()  # twice: docs/how-to/troubleshoot.md
        dist.destroy_process_group()
    """
    traces = train(script)
    assert traces[0].count(ring.COLLECTIVE) == traces[1].count(ring.COLLECTIVE)
    for trace in traces.values():
        assert trace.count(ring.COLLECTIVE)["reduce_scatter"] == 16
        assert trace.count(ring.COLLECTIVE)["all_gather"] >= 16
        assert trace.count(ring.STEP) == {"train": 8}
        phases = trace.count(ring.PHASE)
        assert {phases[name] for name in ("input", "forward", "backward", "optimizer")} == {8}
        assert {event.value for event in trace.of(ring.STEP, "train")} == {8}


@needs("lightning")
def test_lightning_trains_and_validates(train: Train, tmp_path: Path) -> None:
    """Lightning runs forward and backward inside the optimizer's step; its validation batches are eval steps."""
    script = f"""
        import lightning, torch
        from torch import nn
        from torch.utils.data import DataLoader, TensorDataset
        class Model(lightning.LightningModule):
            def __init__(self):
                super().__init__()
                self.net = nn.Linear(8, 2)
            def training_step(self, batch, index):
                return nn.functional.cross_entropy(self.net(batch[0]), batch[1])
            def validation_step(self, batch, index):
                self.log("loss", nn.functional.cross_entropy(self.net(batch[0]), batch[1]))
            def configure_optimizers(self):
                return torch.optim.SGD(self.parameters(), lr=0.1)
        data = TensorDataset(torch.rand(64, 8), torch.randint(0, 2, (64,)))
        trainer = lightning.Trainer(max_epochs=2, accelerator="cpu", devices=1, logger=False, num_sanity_val_steps=0,
                                    enable_progress_bar=False, default_root_dir={str(tmp_path)!r})
        held_out = DataLoader(TensorDataset(*data[:24]), batch_size=8)
        trainer.fit(Model(), DataLoader(data, batch_size=8), held_out)
        trainer.validate(Model(), held_out, verbose=False)
    """
    (trace,) = train(script, ranks=1).values()
    # Lightning fetches no more after the last batch; the last validation is followed by nothing.
    assert trace.count(ring.STEP) == {"train": 16, "eval": 9}
    evaluated = [event.start_ns + event.duration_ns for event in trace.of(ring.STEP, "eval")]
    saved = [event.start_ns for event in trace.of(ring.PHASE, "checkpoint")]
    assert evaluated[2] < saved[0], "what Lightning does after a validation is no part of it"
    assert {event.value for event in trace.events if event.kind == ring.STEP} == {8}
    seen = trace.count(ring.PHASE)
    assert (seen["backward"], seen["optimizer"]) == (16, 16)
    assert seen["input"] >= 16
    assert seen["forward"] >= 16
    assert seen["checkpoint"] >= 2


@needs("accelerate")
def test_accelerate_fetches_ahead(train: Train) -> None:
    """Accelerate's loader is one batch ahead and its optimizer is wrapped: still a step a batch."""
    script = """
        import torch
        from accelerate import Accelerator
        from torch import nn
        from torch.utils.data import DataLoader, TensorDataset
        accelerator = Accelerator(cpu=True, gradient_accumulation_steps=2)
        model = nn.Linear(8, 2)
        data = TensorDataset(torch.rand(64, 8), torch.randint(0, 2, (64,)))
        optimizer = torch.optim.AdamW(model.parameters())
        model, optimizer, loader = accelerator.prepare(model, optimizer, DataLoader(data, batch_size=8))
        for epoch in range(2):
            for x, y in loader:
                with accelerator.accumulate(model):
                    accelerator.backward(nn.functional.cross_entropy(model(x), y))
                    optimizer.step()
                    optimizer.zero_grad()
    """
    (trace,) = train(script, ranks=1).values()
    assert trace.count(ring.STEP) == {"train": 8}
    seen = trace.count(ring.PHASE)
    assert (seen["backward"], seen["optimizer"]) == (16, 8)
    assert seen["input"] >= 16
    assert seen["forward"] >= 16
    assert {event.value for event in trace.of(ring.STEP, "train")} == {16}


@needs("transformers")
@needs("accelerate")
def test_the_hugging_face_trainer(train: Train, tmp_path: Path) -> None:
    """Trainer's steps are recognised with their tokens, its evaluation apart."""
    script = f"""
        import torch
        from transformers import GPT2Config, GPT2LMHeadModel, Trainer, TrainingArguments
        rows = [{{"input_ids": torch.arange(12) % 50, "labels": torch.arange(12) % 50}} for _ in range(32)]
        model = GPT2LMHeadModel(GPT2Config(vocab_size=50, n_positions=16, n_embd=16, n_layer=1, n_head=2))
        arguments = TrainingArguments({str(tmp_path / "out")!r}, per_device_train_batch_size=4, max_steps=6,
                                      per_device_eval_batch_size=8, eval_strategy="steps", eval_steps=6,
                                      report_to="none", use_cpu=True, disable_tqdm=True, save_strategy="no")
        Trainer(model, arguments, train_dataset=rows, eval_dataset=rows[:16]).train()
    """
    (trace,) = train(script, ranks=1).values()
    assert trace.count(ring.STEP) == {"train": 6, "eval": 2}
    assert {event.value for event in trace.of(ring.STEP, "train")} == {4 * 12}
    seen = trace.count(ring.PHASE)
    assert (seen["backward"], seen["optimizer"]) == (6, 6)
    assert seen["input"] >= 6
    assert seen["forward"] >= 6


@needs("keras")
def test_keras_trains_and_validates(train: Train) -> None:
    """Keras 3 on its torch back end: a step a batch, validation apart, with input, backward and optimizer."""
    script = """
        import os
        os.environ["KERAS_BACKEND"] = "torch"
        import keras, numpy
        keras.utils.set_random_seed(0)
        model = keras.Sequential([keras.Input((8,)), keras.layers.Dense(4), keras.layers.Dense(2)])
        model.compile("adam", keras.losses.SparseCategoricalCrossentropy(from_logits=True))
        x, y = numpy.random.rand(64, 8), numpy.random.randint(0, 2, 64)
        model.fit(x, y, batch_size=8, epochs=2, validation_data=(x[:24], y[:24]), verbose=0)
    """
    (trace,) = train(script, ranks=1).values()
    assert trace.header.framework == "keras"
    assert trace.count(ring.STEP) == {"train": 16, "eval": 6}
    phases = trace.count(ring.PHASE)
    assert {phases["backward"], phases["optimizer"]} == {16}
    assert phases["input"] >= 16
    assert phases["forward"] >= 16
    # Keras looks at one batch beforehand, to build the model: that is no step's.
    assert {event.value for event in trace.of(ring.STEP, "train")} == {8}
