r"""Logistic regression on counts of words, the baseline for models of documents.

    python -m experiments.papers.diffuser.bag_of_words \
        experiments.data.text.package_docs.PackageDocs
"""

from __future__ import annotations

from experiments.data.text.document_files import Collection, DocumentSource
from experiments.runs.command_line import run_function

STRENGTHS = (1., 10., 100.)  # inverse L2 penalties; one of them is chosen on the development part


def bag_of_words(collection: Collection) -> dict[str, dict[str, float]]:
    """Fit a logistic regression on TF-IDF features of documents. Return its accuracy and macro F1
    on the development and the test part.

    Args:
        collection (Collection): The documents, which are used in full length.
    """
    from sklearn.feature_extraction.text import TfidfVectorizer
    from sklearn.linear_model import LogisticRegression
    from sklearn.metrics import accuracy_score, f1_score

    text, label = ({part: [document[field] for document in documents]
                    for part, documents in collection.parts.items()} for field in (0, 1))
    words = TfidfVectorizer(sublinear_tf=True, min_df=min(2, len(text['train'])))
    counts = {'train': words.fit_transform(text['train']), 'dev': words.transform(text['dev']),
              'test': words.transform(text['test'])}

    def scores(model: LogisticRegression, part: str) -> dict[str, float]:
        predicted = model.predict(counts[part])
        return {'accuracy': accuracy_score(label[part], predicted),
                'macro_f1': f1_score(label[part], predicted, average='macro')}

    models = [LogisticRegression(C=strength, max_iter=1000).fit(counts['train'], label['train'])
              for strength in STRENGTHS]
    best = max(models, key=lambda model: scores(model, 'dev')['macro_f1'])
    return {part: scores(best, part) for part in ('dev', 'test')}


def main(documents: DocumentSource) -> None:
    """Fit the baseline and print its scores.

    Args:
        documents: The source of the documents.
    """
    collection = documents.read()
    sizes = ', '.join(f'{len(part)} for {name}' for name, part in collection.parts.items())
    print(f'{len(collection.classes)} classes; documents: {sizes}')
    for part, values in bag_of_words(collection).items():
        print(f'{part:<5} accuracy {values["accuracy"]:.4f}   macro F1 '
              f'{values["macro_f1"]:.4f}')


if __name__ == '__main__':
    run_function(main)
