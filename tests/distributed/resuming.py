"""Training that is continued by another number of processes, from divided parameters."""

import os
from pathlib import Path

import torch
import torch.distributed as dist
from torch.distributed import checkpoint
from torch.distributed.checkpoint.state_dict import get_state_dict, set_state_dict
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard

from graphattn.distributed import sequence_parallel
from graphattn.sources import PatternSource
from tests.distributed.cases import DIFFUSER, PTR, encoder, inputs, largest


def optimizer_of(model: torch.nn.Module) -> torch.optim.Optimizer:
    return torch.optim.SGD(model.parameters(), lr=1e-3, momentum=.9)


def trained_alone(steps: int) -> torch.nn.Module:
    model = encoder(PatternSource(DIFFUSER), hops=2, teleport=.1)
    (tokens, target), optimizer = inputs(model), optimizer_of(model)
    for _ in range(steps):
        optimizer.zero_grad()
        (model(tokens, PTR) * target).sum().backward()
        optimizer.step()
    return model


def train(folder: Path, steps: int, *, resume: bool) -> float:
    """Train and save. Return the largest difference of a parameter to one process that has trained
    without a break."""
    mesh = init_device_mesh('cpu', (dist.get_world_size(),), mesh_dim_names=('tokens',))
    module = encoder(PatternSource(DIFFUSER), hops=2, teleport=.1)
    parallel = sequence_parallel(module, mesh['tokens'])
    for layer in module.layers:
        fully_shard(layer, mesh=mesh)
    model = fully_shard(parallel, mesh=mesh)
    optimizer = optimizer_of(model)
    if resume:
        saved = dict(zip(('model', 'optimizer'), get_state_dict(model, optimizer)))
        checkpoint.load(saved, checkpoint_id=folder)
        set_state_dict(model, optimizer, model_state_dict=saved['model'],
                       optim_state_dict=saved['optimizer'])
    own, (tokens, target) = parallel.share(PTR), inputs(module)
    for _ in range(steps):
        optimizer.zero_grad()
        (dist.get_world_size() * (model(tokens[own], PTR) * target[own]).sum()).backward()
        optimizer.step()
    if not resume:
        saved = dict(zip(('model', 'optimizer'), get_state_dict(model, optimizer)))
        checkpoint.save(saved, checkpoint_id=folder)
    alone = trained_alone(2 + 1 if resume else steps)
    return max(largest(p - q.full_tensor()) for p, q in zip(alone.parameters(),
                                                            module.parameters()))


def main(folder: Path, steps: int, resume: bool) -> None:
    alone = {} if 'RANK' in os.environ else dict(store=dist.HashStore(), rank=0, world_size=1)
    dist.init_process_group('gloo', **alone)
    print('difference', train(folder, steps, resume=resume))
    dist.destroy_process_group()
