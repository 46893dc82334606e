"""Shell completion of the command line, by argcomplete."""

import os
from argparse import ArgumentParser
from collections.abc import Iterable

import argcomplete
from argcomplete.completers import FilesCompleter
from argcomplete.lexers import split_line


def words_before() -> list[str]:
    """Return the words between ``graphattn`` and the word that is being typed."""
    *_, words, _ = split_line(os.environ['COMP_LINE'], int(os.environ['COMP_POINT']))
    return words[1:]


def offer(words: Iterable[str], files: bool = False) -> None:
    """Print those of ``words`` that match the word being typed, for the shell's completion, and
    exit. With ``files``, print matching files as well."""
    parser = ArgumentParser(add_help=False)
    files_of = FilesCompleter() if files else lambda prefix, **_: []
    parser.add_argument('next').completer = lambda prefix, **options: [
        *words, *files_of(prefix, **options)]
    skip_words(len(words_before()))
    argcomplete.autocomplete(parser, always_complete_options=False)


def skip_words(number: int) -> None:
    """Hide the first ``number`` words of the command line from the parser that completes options,
    as if they belonged to the command."""
    os.environ['_ARGCOMPLETE'] = str(1 + number)
