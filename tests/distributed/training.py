"""Three steps by Lightning's strategies, beside those of one process."""

import os

import lightning
import torch
from lightning.pytorch.strategies import ModelParallelStrategy, Strategy
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor

from graphattn.distributed import sequence_parallel
from graphattn.sources import PatternSource
from tests.distributed.cases import DIFFUSER, PTR, encoder, inputs, largest

STEPS = 3


class Model(lightning.LightningModule):
    def __init__(self):
        super().__init__()
        self.encoder = sequence_parallel(
            encoder(PatternSource(DIFFUSER), hops=2, teleport=.1))

    def training_step(self, batch, _):
        tokens, ptr, target = batch
        own = self.encoder.share(ptr)
        loss = (self.encoder(tokens[own], ptr) * target[own]).sum()
        return loss * self.trainer.world_size  # for gradients are averaged

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=1e-3)


class ShardedModel(Model):
    """Divides its parameters over the processes, which divide the tokens too."""

    def configure_model(self):
        mesh = self.device_mesh['tensor_parallel']
        self.encoder = fully_shard(sequence_parallel(self.encoder.module, mesh), mesh=mesh)


def by_ddp() -> None:
    train(Model(), 'ddp')


def by_model_parallel_strategy() -> None:
    world = int(os.environ['WORLD_SIZE'])
    train(ShardedModel(), ModelParallelStrategy(data_parallel_size=1, tensor_parallel_size=world))


def train(model: Model, strategy: str | Strategy) -> None:
    """Prints the largest difference of a parameter."""
    one = encoder(PatternSource(DIFFUSER), hops=2, teleport=.1)
    tokens, target = inputs(one)
    optimizer = torch.optim.SGD(one.parameters(), lr=1e-3)
    for _ in range(STEPS):
        optimizer.zero_grad()
        (one(tokens, PTR) * target).sum().backward()
        optimizer.step()
    trainer = lightning.Trainer(
        max_steps=STEPS, accelerator='cpu', strategy=strategy,
        devices=int(os.environ['WORLD_SIZE']), logger=False, enable_checkpointing=False,
        enable_progress_bar=False, enable_model_summary=False, use_distributed_sampler=False)
    batch = (tokens, PTR, target)
    trainer.fit(model, torch.utils.data.DataLoader([batch] * STEPS, batch_size=None))
    trained = (p.full_tensor() if isinstance(p, DTensor) else p
               for p in model.encoder.module.parameters())
    print('difference', max(largest(p - q) for p, q in zip(one.parameters(), trained)))
