"""Classification of texts, or of pairs of texts, in the user's table."""

from jsonargparse import Namespace

from experiments.data.text.text_table import TextTable
from experiments.data.text.tokenizer import load_tokenizer
from experiments.tasks.documents import Documents
from experiments.tasks.own_sequences import fit_model


class Text(Documents):
    """The texts of a table. Each text, or pair of texts, has a class::

        text,label                       text_a,text_b,label
        "It rains, and rains.",weather   It rains.,The street is wet.,entailed

    Args:
        path, val, test, columns, label, classes: As in
            :class:`experiments.data.text.text_table.TextTable`.
        seed (int): Seed of the division into parts and of the training order.
        max_length (int): Maximum number of tokens of a text or pair, [CLS] and [SEP] included.
        batch_size (int): Number of texts per step and process.
        **kwargs: Arguments of :class:`experiments.tasks.tokenized.TokenizedTask`.
    """

    shortest = 5  # [CLS] a [SEP] b [SEP]

    def __init__(self, path: str, val: str | None = None, test: str | None = None,
                 columns: list[str] | None = None, label: str = 'label',
                 classes: list[str] | None = None, seed: int = 0, max_length: int = 512,
                 batch_size: int = 32, **kwargs):
        super().__init__(TextTable(path, val, test, columns, label, classes, seed=seed), max_length,
                         batch_size, seed=seed, **kwargs)
        self.classes = classes

    def fill_options(self, options: Namespace) -> None:
        """Write values into the options of a run: the classes of the table, and the sizes that the
        model needs."""
        self.classes = list(self.collection.classes)
        options['data.init_args.classes'] = self.classes
        num_tokens = self.vocab_size
        if self.tokenizer_path is not None:
            num_tokens = load_tokenizer(self.tokenizer_path).get_vocab_size()
        fit_model(options, len(self.classes), num_tokens=num_tokens, max_length=self.max_length)
