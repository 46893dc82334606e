"""Losses and metrics of graphs: those of scikit-learn over a whole part, in batches of any size."""

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from sklearn import metrics
from torch import Tensor, nn
from torch_geometric.data import Batch, Data

from experiments.data.batch import NO_LABEL
from experiments.modules import GraphPrediction

NUM_EXAMPLES, WIDTH = 30, 4


class Known(nn.Module):
    """Returns the outputs that a batch carries."""

    out_channels = WIDTH

    def __init__(self):
        super().__init__()
        self.shift = nn.Parameter(torch.zeros(()))

    def forward(self, data: Data, return_graphs: bool = False):
        out = data.out + self.shift
        return (out, []) if return_graphs else out


def scored(target: str, out: Tensor, y: Tensor, batch_size: int) -> dict[str, float]:
    module = GraphPrediction(Known(), target=target)
    logged = {}
    module.log = lambda name, value, **_: logged.update({name: value})
    rows = [Data(out=out[i:i + 1], y=y[i:i + 1], num_nodes=1, edge_index=torch.empty(2, 0).long())
            for i in range(len(y))]
    for first in range(0, len(rows), batch_size):
        module.test_step(Batch.from_data_list(rows[first:first + batch_size]), 0)
    module.on_test_epoch_end()
    return logged


def drawn() -> torch.Generator:
    return torch.Generator().manual_seed(0)


@pytest.mark.parametrize('batch_size', [1, 7])
def test_classes(batch_size):
    out = torch.randn(NUM_EXAMPLES, WIDTH, generator=drawn())
    y = torch.randint(WIDTH - 1, (NUM_EXAMPLES,), generator=drawn())  # the last class is absent
    y[::7] = NO_LABEL
    got, given = scored('classes', out, y, batch_size), y != NO_LABEL
    guess, right = out[given].argmax(1).numpy(), y[given].numpy()
    assert got['test/accuracy'] == pytest.approx(metrics.accuracy_score(right, guess))
    recall = [(guess[right == c] == c).mean() for c in np.unique(right)]
    assert got['test/balanced_accuracy'] == pytest.approx(np.mean(recall))
    assert got['test/macro_f1'] == pytest.approx(metrics.f1_score(right, guess, average='macro'))


@pytest.mark.parametrize('batch_size', [1, 7])
def test_labels_with_missing_ones_and_one_of_a_single_class(batch_size):
    out = 30 * torch.randn(NUM_EXAMPLES, WIDTH, generator=drawn())
    y = torch.randint(2, (NUM_EXAMPLES, WIDTH), generator=drawn()).float()
    y[:, 0], y[::5, 1] = 1., torch.nan
    got = scored('labels', out, y, batch_size)
    kept = [(y[given, c].numpy(), out[given, c].numpy()) for c in range(1, WIDTH)
            for given in [~y[:, c].isnan()]]
    assert got['test/average_precision'] == pytest.approx(
        np.mean([metrics.average_precision_score(*pair) for pair in kept]))
    assert got['test/roc_auc'] == pytest.approx(
        np.mean([metrics.roc_auc_score(*pair) for pair in kept]))


@pytest.mark.parametrize('batch_size', [1, 7])
def test_values_with_missing_ones(batch_size):
    out, y = torch.randn(2, NUM_EXAMPLES, WIDTH, generator=drawn())
    y[::4, 2] = torch.nan
    got, given = scored('values', out, y, batch_size), ~y.isnan()
    assert got['test/mae'] == pytest.approx(float((out - y)[given].abs().mean()))


def test_balanced_loss_weighs_classes_as_the_benchmark():
    out, y = torch.randn(6, WIDTH, generator=drawn()), torch.tensor([0, 0, 0, 1, 1, 3])
    weight = torch.tensor([3 / 6, 4 / 6, 0., 5 / 6])  # 1 - share, 0 for absent classes
    module = GraphPrediction(Known(), balanced=True)
    torch.testing.assert_close(module.loss(out, y), F.cross_entropy(out, y, weight))


@pytest.mark.parametrize('stage', ['train', 'val', 'test'])
def test_only_the_nodes_of_a_stage_count(stage):
    y = torch.tensor([0, 1, 2, 3])
    data = Data(out=10. * torch.eye(WIDTH)[[0, 0, 2, 3]], y=y, num_nodes=4,
                edge_index=torch.empty(2, 0).long())
    for number, part in enumerate(('train', 'val', 'test')):
        data[f'{part}_mask'] = y == number
    module, logged = GraphPrediction(Known()), {}
    module.log = lambda name, value, **_: logged.update({name: value})
    module.evaluate(data, stage)
    module._log(stage)
    assert logged[f'{stage}/accuracy'] == (0. if stage == 'val' else 1.)


@pytest.mark.parametrize('options, name', [
    (dict(target='nosuch'), 'target'), (dict(target='values', balanced=True), 'balanced'),
    (dict(density_weight=-1.), 'density_weight'), (dict(density_weight=1.), 'density_weight')])
def test_bad_options_are_refused(options, name):
    with pytest.raises(ValueError, match=f"'{name}'"):
        GraphPrediction(Known(), **options)
