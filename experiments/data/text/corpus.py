"""Text corpora from files, folders, saved data sets, and installed documentation."""

import ast
import json
import re
import sys
import sysconfig
import warnings
from collections import Counter
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from hashlib import blake2b
from inspect import cleandoc
from itertools import islice
from pathlib import Path

from tqdm import tqdm

from experiments.data.text.tables import is_data_set, splits_of
from experiments.data.what_was_read import listed, number_of, tell
from graphattn.utils.files import new_folder
from graphattn.utils.reading import read_lines

Document = list[str]  # its sentences
HELD_OUT_SHARE = 0.05
MAX_ABBREVIATION = 16  # letters, with preceding punctuation


def read_documents(path: str | Path) -> Iterator[Document]:
    """Yield the documents of a corpus, each a list of sentences.

    ``path`` is a text file, a folder of such files (``*.txt``), or a data set whose rows' ``text``
    are documents: a folder of ``save_to_disk``, a Parquet file, or a name on the hub. In a text
    file of which half the lines end a sentence, as in BERT's format, blank lines separate
    documents. Any other is one document.
    """
    path = Path(path)
    if is_data_set(path):
        yield from _read_data_set(path)
        return
    for file in text_files(path):
        try:
            yield from _read_text_file(file)
        except ValueError as error:
            raise ValueError(f"'corpus' cannot be read: {error}") from error


def text_files(path: Path) -> list[Path]:
    """Return ``path`` if it is a text file, or all text files in the folder ``path``."""
    files, left_out = listed(path, ('.txt',)) if path.is_dir() else ([path], {})
    if not files or not all(file.is_file() for file in files):
        raise ValueError(f"'corpus' must be a text file, a folder of *.txt files, or a data set "
                         f"saved by save_to_disk (got {path}, which contains none of these)")
    if left_out:
        tell(path, number_of('text file', len(files)), left_out)
    return files


def is_held_out(document: Document) -> bool:
    """Return whether a document, one in twenty by its text, is for development."""
    digest = blake2b('\n'.join(document).encode(), digest_size=8).digest()
    return int.from_bytes(digest) < HELD_OUT_SHARE * 2**64


def split_sentences(text: str) -> list[str]:
    """Return the sentences of a text, which end with a full stop, ``?`` or ``!``."""
    sentences, start = [], 0
    for end in _SENTENCE_END.finditer(text):
        before = text[max(start, end.start() - MAX_ABBREVIATION):end.start() + 1]
        last_word = before.rsplit(maxsplit=1)[-1].lower().lstrip('("\'')
        if last_word in _ABBREVIATIONS or re.fullmatch(r'[a-z]\.', last_word):
            continue
        sentences.append(text[start:end.end()].strip())
        start = end.end()
    return [*sentences, *filter(None, [text[start:].strip()])]


_SENTENCE_END = re.compile(r'[.!?]["\')\]]*\s+(?=["\'(\[]*[A-Z0-9])')
_ABBREVIATIONS = {'e.g.', 'i.e.', 'cf.', 'vs.', 'etc.', 'fig.', 'eq.', 'sec.', 'no.', 'pp.', 'vol.',
                  'dr.', 'mr.', 'mrs.', 'st.', 'al.', 'resp.', 'approx.', 'inc.'}
_ENDS_SENTENCE = re.compile(r'[.!?:;]["\')\]]*$')


def _read_text_file(path: Path) -> Iterator[Document]:
    ends = [bool(_ENDS_SENTENCE.search(line.rstrip()))
            for _, line in islice(read_lines(path), 1000) if line.strip()]
    lines = (line for _, line in read_lines(path))
    if 2 * sum(ends) < len(ends):
        yield split_sentences(' '.join(word for line in lines for word in line.split()))
        return
    document: Document = []
    for line in lines:
        if line.strip():
            document += split_sentences(' '.join(line.split()))
        elif document:
            yield document
            document = []
    if document:
        yield document


def _read_data_set(path: Path) -> Iterator[Document]:
    splits = splits_of(path, 'corpus')
    if 'train' not in splits:
        raise ValueError(f"'corpus' must have a split 'train' (got {path}, with the splits "
                         f"{', '.join(splits)})")
    data = splits['train']
    if 'text' not in data.features:
        raise ValueError(f"'corpus' must have a column 'text' (got {path}, with the columns "
                         f"{', '.join(data.features)})")
    for number, row in enumerate(data.rows):
        if not isinstance(row['text'], str | None):
            raise ValueError(f"'corpus' must have a column 'text' of strings (got "
                             f"{row['text']!r:.60} in row {number} of {path})")
        document = [sentence for line in (row['text'] or '').splitlines() if line.strip()
                    for sentence in split_sentences(' '.join(line.split()))]
        if document:
            yield document


@contextmanager
def new_data(out: Path) -> Iterator[Path]:
    """Yield a folder to write, which becomes ``out`` if this context ends without an error; refuse
    an ``out`` that contains files."""
    if out.is_file() or (out.is_dir() and any(out.iterdir())):
        raise ValueError(f"'out' must be a new or empty folder (got {out}, which contains files); "
                         f"choose another folder")
    with new_folder(out) as folder:
        yield folder


def build_docs(out: Path) -> dict:
    """Write the docstrings of the installed Python as a corpus, complete or not at all."""
    parts = {'train': Counter(), 'val': Counter()}
    packages: Counter[str] = Counter()
    with new_data(out) as folder:
        with (folder / 'train.txt').open('w', encoding='utf-8') as train, \
                (folder / 'val.txt').open('w', encoding='utf-8') as val:
            for package, document in distinct(installed_documents()):
                part, file = ('val', val) if is_held_out(document) else ('train', train)
                words = sum(len(sentence.split()) for sentence in document)
                parts[part].update(documents=1, sentences=len(document), words=words)
                packages[package] += words
                file.write('\n'.join(document) + '\n\n')
        counts = {**parts, 'python': sys.version.split()[0],
                  'words_of_package': dict(packages.most_common())}
        (folder / 'sources.json').write_text(json.dumps(counts, indent=2) + '\n')
    return counts


def installed_documents() -> Iterator[tuple[str, Document]]:
    """Yield the package and the sentences of every module and every licence, in a fixed order."""
    for package, texts in _installed_texts():
        yield package, [sentence for text in texts for sentence in english_sentences(text)]


def installed_docstrings() -> Iterator[tuple[str, Document]]:
    """Yield the package and the sentences of every single docstring."""
    for package, texts in _installed_texts():
        for text in texts:
            yield package, english_sentences(text)


def _installed_texts() -> Iterator[tuple[str, Iterator[str]]]:
    """Yield the package of every installed module with the module's docstrings, and of every
    licence with its text."""
    paths = sysconfig.get_paths()
    roots = dict.fromkeys(Path(paths[name]) for name in ('stdlib', 'purelib', 'platlib'))
    files = [(root, file) for root in roots for file in sorted(root.rglob('*'))
             if _is_source(file.relative_to(root)) and file.is_file()]
    for root, file in tqdm(files, desc='reading documentation', unit=' files', disable=None):
        read = docstrings if file.suffix == '.py' else _whole_text
        package = 'python' if root == Path(paths['stdlib']) else file.relative_to(root).parts[0]
        yield package.removesuffix('.py'), read(file)


def _is_source(path: Path) -> bool:
    folders = path.parts[:-1]
    if folders[:1] in {('site-packages',), ('idlelib',), ('lib2to3',)}:
        return False
    if path.suffix == '.py':
        is_test = any(part in {'test', 'tests', 'testing'} for part in folders)
        return not is_test and not path.name.startswith('test_')
    return path.name.upper().startswith(('LICENSE', 'LICENCE', 'COPYING', 'NOTICE'))


def docstrings(path: Path) -> Iterator[str]:
    """Yield the docstrings of a source file. The file is parsed, never executed."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter('ignore')  # other people's escape sequences
            tree = ast.parse(path.read_bytes())
    except (SyntaxError, ValueError, RecursionError):
        return
    for node in _definitions(tree):
        docstring = ast.get_docstring(node, clean=False)
        if docstring:
            yield cleandoc(docstring)


def _definitions(node: ast.AST) -> Iterator[ast.AST]:
    """Yield a module and the classes and functions in its syntax tree, in the order of the file."""
    yield node
    for child in node.body:
        if isinstance(child, ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            yield from _definitions(child)


def _whole_text(path: Path) -> Iterator[str]:
    try:
        yield path.read_text(encoding='utf-8')
    except UnicodeDecodeError:
        return


def distinct(documents: Iterable[tuple[str, Document]]) -> Iterator[tuple[str, Document]]:
    """Yield documents without sentences of earlier ones, unless they are then too short."""
    seen: set[bytes] = set()
    for package, document in documents:
        fresh = []
        for sentence in document:
            letters = re.sub('[^a-z]', '', sentence.lower())
            key = blake2b(letters.encode(), digest_size=8).digest()
            if key not in seen:
                seen.add(key)
                fresh.append(sentence)
        if len(fresh) >= 2:
            yield package, fresh


def english_sentences(text: str) -> list[str]:
    """Return the English sentences of a docstring or licence, without code, tables and lists of
    names.

    Example:
        >>> english_sentences('''Returns the :class:`Mask` of a *head*.
        ...
        ... >>> Mask()
        ...
        ... x : int
        ...     The number of rows, e.g. one. It must be positive.''')
        ['Returns the Mask of a head.', 'The number of rows, e.g. one.', 'It must be positive.']
    """
    return [sentence for block in _blocks(text) for sentence in split_sentences(_plain(block))
            if _is_english(sentence)]


def _blocks(text: str) -> Iterator[str]:
    """Yield the paragraphs of a docstring: joined lines of one indentation, no lists or code."""
    block: list[str] = []
    item_indent = 0
    block_indent: int | None = None  # indentation of the second line of a list item
    code_indent: int | None = None  # deeper lines are code
    for line in [*text.expandtabs().splitlines(), '']:
        bare = line.strip()
        indent = len(line) - len(line.lstrip())
        if bare and code_indent is not None:
            if indent > code_indent:
                continue
            code_indent = None
        item = _ITEM.match(bare)
        if block and block_indent is None and indent > item_indent:
            block_indent = indent
        if _UNDERLINE.fullmatch(bare) and len(block) == 1:
            block = []  # the block was a heading
        if block and (not bare or item or indent != block_indent):
            yield ' '.join(block)
            block = []
        if not bare or bare.startswith(('>>>', '...', '@', '#!')) or _RULE.fullmatch(bare):
            continue
        if bare.startswith('.. '):
            code_indent = None if _NOTE.match(bare) else indent
            continue
        if bare.endswith('::'):
            code_indent, bare = indent, bare[:-1]
        if item:
            item_indent, block_indent, bare = indent, None, bare[item.end():]
        elif not block:
            block_indent = indent
        block.append(bare)


_UNDERLINE = re.compile(r'([-=~^"\'*+#_.])\1{2,}')
_RULE = re.compile(r'[-=~^"\'*+#_|.: ]{3,}|[|+].*')
_NOTE = re.compile(r'\.\. (note|warning|seealso|versionadded|versionchanged|deprecated)')
_ITEM = re.compile(r'([-*+•#]|\(?[0-9a-z]{1,2}[.)]|:\w+[^:]*:'
                   r'|\*{0,2}\w+(, \*{0,2}\w+)*( ?\([^)]*\))?:)\s+')


def _plain(text: str) -> str:
    """Return running text without the markup of reST and Markdown."""
    for pattern, replacement in _MARKUP:
        text = pattern.sub(replacement, text)
    return ' '.join(text.split())


_MARKUP = [(re.compile(pattern), replacement) for pattern, replacement in [
    (r':[\w:+-]+:`~?[\w.]*?([\w ]+?)(\(\))?(\s*<[^>`]*>)?`', r'\1'),  # :class:`~package.Name`
    (r'`([^`<]+?)\s*<[^>`]*>`_*', r'\1'),  # `text <address>`_
    (r'\[([^]]+)\]\([^)]*\)', r'\1'),  # [text](address)
    (r'``?([^`]+)``?_*', r'\1'),
    (r'\[[\w#]+\]_', ''),  # [1]_
    (r'(?<!\w)\*\*?([^*\s][^*]*)\*\*?(?!\w)', r'\1'),
]]


def _is_english(sentence: str) -> bool:
    """Return whether a text begins and ends like a sentence, and consists nearly only of plain
    words."""
    words = sentence.split()
    if not 4 <= len(words) <= 100 or not re.match(r'["\'(]*[A-Z]', sentence):
        return False
    if not re.search(r'[.!?]["\')]*$', sentence) or re.search(r'[{}<>=\\|@$~^`]|://', sentence):
        return False
    plain = sum(bool(_PLAIN_WORD.fullmatch(word)) or word.lower().strip('(,') in _ABBREVIATIONS
                for word in words)
    return plain >= 0.85 * len(words)


_PLAIN_WORD = re.compile(r'["\'(\[]*[A-Za-z]?[a-z]*([-/\'][A-Za-z]?[a-z]+)*'
                         r'["\')\]]*[.,;:!?]*["\')\]]*')
