"""Samples from text: WordPiece, sentence pairs, and the same masking as in synthetic samples.

Pairs are made as in google-research/bert@eedf571, create_pretraining_data.py. Empty lines separate
documents; a line may hold several sentences.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np

from hpcbert.data.samples import (
    Dice,
    Integers,
    Samples,
    StreamSettings,
    Unmasked,
    Vocabulary,
    mask_words,
)
from hpcbert.errors import UsageError, describe_error

_SENTENCE = re.compile(
    # After a full stop that precedes a possible beginning of a sentence; after a Chinese or
    # Japanese one.
    r"(?<=[.!?])\s+(?=[\"'(\[A-Z0-9\u00c0-\u00de\u0410-\u042f])|(?<=[\u3002\uff01\uff1f])"
)
_SPECIAL = ("[CLS]", "[SEP]", "[MASK]")
_SHORT_ONE_IN = 10
# Channels of a document's random numbers; see `samples.Dice`.
_IS_SHORT, _TARGET, _SPLIT, _IS_RANDOM, _OTHER, _START, _CUT = range(7)


class Pair(NamedTuple):
    """Two runs of a corpus's tokens: the beginning and the length of each.

    Attributes:
        label: 1 if the second does not follow the first.
    """

    first: int
    first_size: int
    second: int
    second_size: int
    label: int


class Corpus(NamedTuple):
    """A text as token ids.

    Attributes:
        tokens: All of them, int32.
        sentences: The start of each sentence, and the end, int64 [sentences + 1].
        documents: The first sentence of each document, and their number, int64 [documents + 1].
    """

    tokens: Integers
    sentences: Integers
    documents: Integers


def read_vocabulary(path: Path) -> Vocabulary:
    """Read the special tokens from a vocabulary file with one token per line.

    Raises:
        UsageError: It can't be read, or lacks one.
    """
    try:
        words = path.read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise UsageError(
            f"The vocabulary can't be read: {describe_error(error)}.", where=str(path)
        ) from error
    places = {word.strip(): number for number, word in enumerate(words)}
    missing = [word for word in ("[PAD]", "[UNK]", *_SPECIAL) if word not in places]
    if missing or places["[PAD]"] != 0:
        problem = f"has no {', '.join(missing)}" if missing else "does not begin with [PAD]"
        hint = "Name a vocabulary of BERT, one token per line: vocab.txt."
        raise UsageError(f"The vocabulary {problem}.", where=str(path), hint=hint)
    cls, sep, mask = (places[word] for word in _SPECIAL)
    first_ordinary = max(cls, sep, mask, places["[UNK]"]) + 1
    while first_ordinary < len(words) and words[first_ordinary].startswith("[unused"):
        first_ordinary += 1
    if first_ordinary >= len(words):
        raise UsageError("The vocabulary has no words.", where=str(path))
    return Vocabulary(size=len(words), cls=cls, sep=sep, mask=mask, first_word=first_ordinary)


def find_files(path: Path) -> tuple[Path, ...]:
    """Return the files of a text: the file itself, or all files below a directory, by name.

    Raises:
        UsageError: There is none.
    """
    if path.is_dir():
        files = tuple(sorted(file for file in path.rglob("*") if file.is_file()))
    else:
        files = (path,) if path.is_file() else ()
    if not files:
        raise UsageError(
            "The text does not exist.", where=str(path), hint="Name a file or a directory."
        )
    return files


def _read_documents(paths: Sequence[Path]) -> Iterator[list[str]]:
    """Yield the sentences of each document."""
    for path in paths:
        sentences: list[str] = []
        try:
            with path.open(encoding="utf-8") as file:
                for line in file:
                    if line.strip():
                        pieces = _SENTENCE.split(line.strip())
                        sentences += [piece for piece in pieces if piece.strip()]
                    elif sentences:
                        yield sentences
                        sentences = []
        except (OSError, UnicodeDecodeError) as error:
            raise UsageError(
                f"The text can't be read: {describe_error(error)}.", where=str(path)
            ) from error
        if sentences:
            yield sentences


def read_corpus(paths: Sequence[Path], vocabulary: Path, *, lowercase: bool) -> Corpus:
    """Return a text as token ids.

    Raises:
        UsageError: It can't be read, or has fewer than two documents of two sentences.
    """
    from tokenizers import BertWordPieceTokenizer  # slow to import
    from tokenizers.models import WordPiece

    # Given a path, 0.20 and 0.21 warn.
    words = WordPiece.read_file(str(vocabulary))
    tokenizer = BertWordPieceTokenizer(words, lowercase=lowercase)
    tokens: list[Integers] = []
    sizes, documents = [], [0]
    for document in _read_documents(paths):
        encoded = tokenizer.encode_batch(document, add_special_tokens=False)
        sentence_ids = [sentence.ids for sentence in encoded if sentence.ids]
        if sentence_ids:
            tokens += [np.array(ids, dtype=np.int32) for ids in sentence_ids]
            sizes += [len(ids) for ids in sentence_ids]
            documents.append(len(sizes))
    if len(documents) < 3:  # noqa: PLR2004 - the second sentence may come from another document
        hint = "Separate documents by empty lines."
        raise UsageError("A text needs at least two documents.", where=str(paths[0]), hint=hint)
    sentences = np.concatenate([[0], np.cumsum(sizes, dtype=np.int64)])
    return Corpus(np.concatenate(tokens), sentences, np.array(documents, dtype=np.int64))


def pair_sentences(corpus: Corpus, settings: StreamSettings, maximum: int) -> list[Pair]:
    """Return sentence pairs, document by document, pass by pass, until there are `maximum`.

    Each pass cuts and pairs differently.

    Args:
        corpus: The text.
        settings: Length and seed.
        maximum: The number of pairs; 0 for those of one pass.
    """
    chosen: list[Pair] = []
    count = len(corpus.documents) - 1
    number = 0
    while len(chosen) < maximum if maximum else number < count:
        dice = Dice(np.array([number]), settings.seed)
        chosen += _pair_document(corpus, number % count, dice, settings)
        number += 1
    return chosen[: maximum or None]


class _Rolls:
    """Random numbers of one document, drawn one after the other."""

    def __init__(self, dice: Dice) -> None:
        self._dice = dice
        self._drawn: dict[int, list[int]] = {}

    def below(self, limit: int, channel: int) -> int:
        # Drawn in thousands: a document has some tens of pairs.
        draws = self._drawn.setdefault(channel, [])
        if not draws:
            draws += self._dice.bits(channel, 1024)[0].tolist()
        return draws.pop() % limit


def _pair_document(
    corpus: Corpus, document: int, dice: Dice, settings: StreamSettings
) -> Iterator[Pair]:
    rolls, room = _Rolls(dice), settings.length - 3
    begin, end = corpus.documents[document : document + 2].tolist()
    starts = corpus.sentences
    target = room
    if rolls.below(_SHORT_ONE_IN, _IS_SHORT) == 0:
        target = 2 + rolls.below(room - 1, _TARGET)
    chunk = position = begin
    while position < end:
        position += 1
        if position < end and starts[position] - starts[chunk] < target:
            continue
        split = (
            chunk + 1 + (rolls.below(position - chunk - 1, _SPLIT) if position - chunk > 1 else 0)
        )
        first_run = (int(starts[chunk]), int(starts[split] - starts[chunk]))
        label = int(position - chunk == 1 or rolls.below(2, _IS_RANDOM))
        if label:
            second_run = _choose_other_run(corpus, document, max(1, target - first_run[1]), rolls)
            # The next pair gets the unused part.
            position = split
        else:
            second_run = (int(starts[split]), int(starts[position] - starts[split]))
        yield _shorten_runs(first_run, second_run, label, room, rolls)
        chunk = position


def _choose_other_run(corpus: Corpus, document: int, least: int, rolls: _Rolls) -> tuple[int, int]:
    """Return a run of sentences of another document, with at least `least` tokens if possible."""
    count = len(corpus.documents) - 1
    other_document = (document + 1 + rolls.below(count - 1, _OTHER)) % count
    begin, end = corpus.documents[other_document : other_document + 2].tolist()
    start = begin + rolls.below(end - begin, _START)
    stop = start + 1
    while stop < end and corpus.sentences[stop] - corpus.sentences[start] < least:
        stop += 1
    size = corpus.sentences[stop] - corpus.sentences[start]
    return int(corpus.sentences[start]), int(size)


def _shorten_runs(
    first_run: tuple[int, int], second_run: tuple[int, int], label: int, room: int, rolls: _Rolls
) -> Pair:
    """Shorten the longer run, from its front or its end by chance, until both fit."""
    runs = [list(first_run), list(second_run)]
    while runs[0][1] + runs[1][1] > room:
        longer = runs[0] if runs[0][1] > runs[1][1] else runs[1]
        longer[0] += rolls.below(2, _CUT)
        longer[1] -= 1
    return Pair(runs[0][0], runs[0][1], runs[1][0], runs[1][1], label)


def make_samples(
    corpus: Corpus,
    chosen: Sequence[Pair],
    numbers: Integers,
    settings: StreamSettings,
    vocabulary: Vocabulary,
) -> Samples:
    """Return the pairs with the given numbers as samples."""
    count = len(numbers)
    ids = np.zeros((count, settings.length), dtype=np.int64)
    is_second = np.zeros(ids.shape, dtype=bool)
    is_word = np.zeros(ids.shape, dtype=bool)
    labels = np.zeros(count, dtype=np.int64)
    for row, number in enumerate(numbers.tolist()):
        first_start, size, second_start, second_size, labels[row] = chosen[number]
        middle, end = size + 1, size + second_size + 2
        ids[row, 0] = vocabulary.cls
        ids[row, 1:middle] = corpus.tokens[first_start : first_start + size]
        ids[row, [middle, end]] = vocabulary.sep
        ids[row, middle + 1 : end] = corpus.tokens[second_start : second_start + second_size]
        is_second[row, middle + 1 : end + 1] = True
        is_word[row, 1:middle] = is_word[row, middle + 1 : end] = True
    dice = Dice(numbers, settings.seed)
    return mask_words(Unmasked(ids, is_second, is_word, labels), dice, settings, vocabulary)
