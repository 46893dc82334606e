"""Training of a model that finds answers in texts."""

import json
import math
from itertools import pairwise
from pathlib import Path
from typing import Literal, NamedTuple

import numpy as np
import torch
from torch import Tensor, nn
from torch_geometric.utils import to_dense_batch

from experiments.data.batch import QuestionBatch
from experiments.data.text.answers import WORDS, agreement
from experiments.modules.base import Training, check_numbers
from experiments.modules.densities import Graphs
from experiments.modules.measures import Means, gathered
from experiments.modules.text_inputs import (
    check_shares_a_pattern,
    graph_of_questions,
    segments_for,
)
from graphattn.extension import cache_host_copies
from graphattn.models import SpanModel, best_spans
from graphattn.utils.files import write_whole


class Answered(NamedTuple):
    """The answer of a model to one question, and how good it is."""

    id: str
    best: list[tuple[str, float]]  # answers with their scores
    margin: float  # score of 'no answer' minus that of the best answer
    has_answer: bool
    scores: tuple[float, float]  # exact match and F1 if the best answer is predicted
    scores_of_none: tuple[float, float]  # and if none is


class QuestionAnswering(Training):
    r"""Training of a model that marks the first and the last token of an answer in a text, by
    cross-entropy.

    Exact match and F1 of the predictions are logged. The loss of a window is

    .. math:: -\tfrac12 \log \sum_{i \in A} p_\mathrm{first}(i)
        - \tfrac12 \log \sum_{j \in B} p_\mathrm{last}(j)

    where A and B are the first and the last tokens of all answers in the window (Longformer, App.
    D; for one answer it is BERT's loss). The prediction for a question is the best span over all of
    its windows.

    If questions may lack an answer, as in SQuAD 2.0, the score of no answer is its minimum over the
    windows. The prediction is no answer if this score exceeds the score of the best span by more
    than a threshold. The threshold maximises F1 on the development part, as in SQuAD's evaluation.
    ``predictions.json`` and ``nbest.json`` in the run's folder contain the predictions for the test
    part.

    Args:
        model (nn.Module): A :class:`graphattn.models.SpanModel`.
        words (str): The normalisation of answers before they are compared: ``'squad'`` or
            ``'triviaqa'``.
        may_have_none (bool): Whether some questions have no answer.
        global_question (bool): Whether the question's tokens attend to all tokens and are attended
            by all. This requires layers that share a PatternSource.
        link_equal (bool): Whether to add edges between the words of the question and equal words of
            the text. The graph then depends on words as well as positions.
        max_answer (int): Maximum number of tokens of an answer.
        num_best (int): Number of answers per question in ``nbest.json``.
        pretrained (str, optional): A checkpoint to initialise the encoder from.
        **kwargs: Arguments of :class:`experiments.modules.Training`.
    """

    model_kind, batch_kind = SpanModel, QuestionBatch

    def __init__(self, model: nn.Module, words: Literal['squad', 'triviaqa'] = 'squad',
                 may_have_none: bool = False, global_question: bool = False,
                 link_equal: bool = False, max_answer: int = 30, num_best: int = 20,
                 pretrained: str | None = None, **kwargs):
        super().__init__(model, **kwargs)
        if words not in WORDS:
            raise ValueError(f"'words' must be one of {', '.join(WORDS)} (got {words!r})")
        check_numbers(max_answer=max_answer, num_best=num_best)
        for name, value in (('max_answer', max_answer), ('num_best', num_best)):
            if value < 1:
                raise ValueError(f"'{name}' must be at least 1 (got {value})")
        for option, is_on in (('global_question', global_question), ('link_equal', link_equal)):
            if is_on:
                check_shares_a_pattern(model.encoder, option)
        self.words, self.may_have_none = WORDS[words], may_have_none
        self.global_question, self.link_equal = global_question, link_equal
        self.max_answer, self.num_best = max_answer, num_best
        self.register_buffer('threshold', torch.zeros(()))
        self.answered: list[Answered] = []
        self.means = Means()
        self.start_from(pretrained)

    @cache_host_copies
    def training_step(self, batch: QuestionBatch, batch_idx: int) -> Tensor:
        logits, graphs = self._logits(batch)
        loss = span_loss(logits, batch)
        self.log_means({'train/loss': loss}, batch.ptr.numel() - 1, prog_bar=True)
        return self.penalised(loss, graphs)

    def on_validation_epoch_end(self) -> None:
        answered = gathered(self.answered)
        if self.may_have_none:
            self.threshold.fill_(best_threshold(answered))
        self._log('val', answered)

    def on_test_epoch_end(self) -> None:
        answered = gathered(self.answered)
        self._log('test', answered)
        if self.trainer.is_global_zero:
            folder = Path(self.trainer.default_root_dir)
            said = {row.id: self._said(row) for row in answered}
            nbest = {row.id: [{'text': text, 'score': score} for text, score in row.best]
                     for row in answered}
            for name, content in (('predictions', said), ('nbest', nbest)):
                write_whole(folder / f'{name}.json', lambda path, content=content: path.write_text(
                    json.dumps(content, indent=1, ensure_ascii=False) + '\n', encoding='utf-8'))

    def _logits(self, batch: QuestionBatch) -> tuple[Tensor, Graphs]:
        encoder = self.model.encoder
        graph = graph_of_questions(encoder, batch.tokens, batch.ptr, batch.num_global,
                                   is_global=self.global_question, links_equal=self.link_equal)
        return self.model(batch.tokens, batch.ptr, graph=graph, return_graphs=True,
                          segments=segments_for(encoder, batch.segments))

    def evaluate(self, batch: QuestionBatch, stage: str) -> None:
        num_windows = batch.ptr.numel() - 1
        if num_windows:
            logits, graphs = self._logits(batch)
            self.means.add_densities(graphs, num_windows)
            self.means.add('loss', span_loss(logits, batch), num_windows)
            spans = best_spans(logits, batch.ptr, batch.offset[:, 0] >= 0,
                               num_best=self.num_best, max_tokens=self.max_answer)
            # values of these tensors are read one by one, which is faster on the CPU
            spans = [part.cpu() for part in spans]
            none = logits[batch.ptr[:-1]].float().sum(dim=1).tolist()
            batch = batch._replace(offset=batch.offset.cpu())
            best = [list(self._texts(batch, spans, window)) for window in range(num_windows)]
        for number, (begin, end) in enumerate(pairwise(batch.question_ptr.tolist())):
            scores: dict[str, float] = {}
            for text, score in (row for window in range(begin, end) for row in best[window]):
                scores[text] = max(score, scores.get(text, -math.inf))
            ranked = sorted(scores.items(), key=lambda row: (-row[1], row[0]))[:self.num_best]
            # The margin is rounded to the precision of the stored threshold, which is one of the
            # margins. Otherwise, rounding could move the threshold across its own question.
            margin = torch.tensor(min(none[begin:end]) - ranked[0][1] if ranked else math.inf,
                                  dtype=self.threshold.dtype).item()
            accepted = batch.accepted[number]
            self.answered.append(Answered(
                batch.ids[number], ranked, margin, bool(accepted),
                agreement(ranked[0][0] if ranked else '', accepted, self.words),
                agreement('', accepted, self.words)))

    @staticmethod
    def _texts(batch: QuestionBatch, spans, window: int):
        for score, first, last in zip(*(part[window].tolist() for part in spans)):
            if score > -math.inf:
                begin, end = int(batch.offset[first, 0]), int(batch.offset[last, 1])
                yield batch.contexts[window][begin:end].strip(), score

    def _said(self, row: Answered) -> str:
        return row.best[0][0] if row.best and not self._says_none(row) else ''

    def _says_none(self, row: Answered) -> bool:
        return self.may_have_none and row.margin > float(self.threshold)

    def _log(self, stage: str, answered: list[Answered]) -> None:
        """Log the metrics of a stage, given the answered questions of all processes, and forget
        these questions."""
        scores = np.array([row.scores_of_none if self._says_none(row) else row.scores
                           for row in answered]).reshape(-1, 2)
        has_answer = np.array([row.has_answer for row in answered], dtype=bool)
        values = self.means.compute()
        values |= dict(zip(('exact_match', 'f1'), scores.mean(axis=0).tolist()))
        if self.may_have_none:
            values['threshold'] = float(self.threshold)
            for name, chosen in (('f1_with_answer', has_answer), ('f1_without', ~has_answer)):
                if chosen.any():
                    values[name] = float(scores[chosen, 1].mean())
        self.answered = []
        self.log_dict({f'{stage}/{name}': value for name, value in values.items()})


def span_loss(logits: Tensor, batch: QuestionBatch) -> Tensor:
    # The loss is computed in float32, as torch's cross-entropy is under autocast.
    logits = logits.to(torch.promote_types(logits.dtype, torch.float32))
    is_answer = torch.zeros_like(logits, dtype=torch.bool)
    is_answer[batch.first, 0] = True
    is_answer[batch.last, 1] = True
    num_windows = batch.ptr.numel() - 1
    window = torch.repeat_interleave(torch.arange(num_windows, device=logits.device),
                                     batch.ptr.diff(), output_size=len(logits))
    below = torch.finfo(logits.dtype).min
    total, right = (to_dense_batch(values, window, fill_value=below, batch_size=num_windows)[0]
                    .logsumexp(dim=1) for values in (
                        logits, logits.masked_fill(~is_answer, below)))
    return (total - right).mean()


def best_threshold(answered: list[Answered]) -> float:
    """Return the margin up to which answers are predicted for the best mean F1."""
    rows = sorted(answered, key=lambda row: row.margin)
    gain = np.cumsum([0., *(row.scores[1] - row.scores_of_none[1] for row in rows)])
    margins = np.array([-math.inf, *(row.margin for row in rows)])
    # Questions with equal margins stay on the same side of the threshold.
    is_last = np.append(margins[1:] != margins[:-1], True) & (margins < math.inf)
    threshold = margins[is_last][np.argmax(gain[is_last])]
    return float(np.clip(threshold, -1e30, 1e30))
