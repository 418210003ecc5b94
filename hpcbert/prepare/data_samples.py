"""Samples of BERT's pre-training: the synthetic stream, the same in every format, and from text.

Random numbers are a hash of seed, sample and draw, in 64-bit integers alone: sample i is the same
on any machine, in any file, with any release of numpy. Text becomes WordPiece tokens and sentence
pairs, made as in google-research/bert@eedf571, create_pretraining_data.py, and masked in the same
way. Empty lines separate documents; a line may hold several sentences.
"""

from __future__ import annotations

import random
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from hpcbert.errors import UsageError, describe_error
from hpcbert.model import PREDICTED_PERCENT, USUAL_VOCABULARY

Integers = NDArray[np.integer]

# google-research/bert@eedf571, create_pretraining_data.py: one sample in ten is short; of ten
# predicted tokens, eight read [MASK] and one another word.
_SHORT_ONE_IN = 10
_AS_MASK, _AS_OTHER = 8, 9
# Mean share of real tokens by name. `wiki`: 255 of 512 tokens, as MLPerf Training's Wikipedia has.
FILLS = {"full": 1.0, "wiki": 255 / 512}
GENERATOR = "generator"
_BLOCK = 4096
# Draws of one sample, by their purpose; each list of draws fits into its channel.
_CHANNEL = 1 << 13
LONGEST = _CHANNEL
_SHORT, _TOTAL, _FIRST, _WORDS, _KEYS, _FATES, _OTHERS, _LABEL = range(8)
_DRAWS = 8 * _CHANNEL


class Samples(NamedTuple):
    """Some samples of sequence length L with P predictions.

    Attributes:
        input_ids: Token ids with masked ones replaced, int32 [n, L].
        input_mask: 1 for a token, 0 for padding, int8 [n, L].
        segment_ids: 1 in the second sentence, int8 [n, L].
        masked_lm_positions: Where tokens were masked, ascending, 0 for none, int32 [n, P].
        masked_lm_ids: The original tokens, 0 for none, int32 [n, P].
        next_sentence_labels: 1 where the second sentence is a random one, int8 [n].
    """

    input_ids: Integers
    input_mask: Integers
    segment_ids: Integers
    masked_lm_positions: Integers
    masked_lm_ids: Integers
    next_sentence_labels: Integers

    @property
    def masked_lm_weights(self) -> NDArray[np.float32]:
        """1 for each prediction, 0 for padding, float32 [n, P]."""
        weights: NDArray[np.float32] = (self.masked_lm_positions != 0).astype(np.float32)
        return weights

    @property
    def originals(self) -> Integers:
        """Token ids before masking, int32 [n, L]."""
        originals = self.input_ids.copy()
        rows, places = np.nonzero(self.masked_lm_positions)
        originals[rows, self.masked_lm_positions[rows, places]] = self.masked_lm_ids[rows, places]
        return originals

    @property
    def lengths(self) -> Integers:
        """Tokens of each sample, special ones included, int64 [n]."""
        lengths: Integers = self.input_mask.sum(axis=1, dtype=np.int64)
        return lengths

    def rows(self) -> bytes:
        """Return all samples as little-endian 32-bit integers, one after the other."""
        labels = self.next_sentence_labels[:, None]
        return np.concatenate([*self[:-1], labels], axis=1).astype("<i4").tobytes()


@dataclass(frozen=True)
class Vocabulary:
    """The meaning of token ids for samples; BERT's own numbers by default.

    Attributes:
        size: Token ids are below it.
        first_word: Ids from here on are ordinary words.
    """

    size: int = USUAL_VOCABULARY
    cls: int = 101
    sep: int = 102
    mask: int = 103
    first_word: int = 999


@dataclass(frozen=True)
class StreamSettings:
    """The settings of a stream of samples.

    Attributes:
        predictions: The most masked tokens in a sample.
        samples: Their number; 0 for as many as a text gives.
        fill: `generator` (nine of ten samples full), `full`, `wiki`, or the mean share of tokens
            that are not padding, as a number.
        vocabulary: What token ids mean.

    Raises:
        UsageError: One of them is out of range.
    """

    length: int = 128
    predictions: int = 20
    samples: int = 100_000
    fill: str = GENERATOR
    seed: int = 42
    vocabulary: Vocabulary = Vocabulary()

    def __post_init__(self) -> None:
        for name, value, least, most in (
            ("--sequence-length", self.length, 8, LONGEST),
            ("--predictions", self.predictions, 1, self.length - 3),
            ("--samples", self.samples, 0, 1 << 40),
            ("--seed", self.seed, 0, (1 << 63) - 1),
        ):
            if not least <= value <= most:
                raise UsageError(f"{name} {value} is out of range: {least} to {most}.")
        if self.vocabulary.first_word >= self.vocabulary.size:
            raise UsageError("The vocabulary has no words.")
        if self.fill != GENERATOR:
            self.mean_words()

    def mean_words(self) -> int:
        """Return the mean of a sample's words, without [CLS] and both [SEP].

        Raises:
            UsageError: The share of real tokens is impossible.
        """
        try:
            share = FILLS.get(self.fill) or float(self.fill)
        except ValueError:
            names = ", ".join((GENERATOR, *FILLS))
            hint = f"Choose {names}, or a number up to 1."
            raise UsageError(f"--fill {self.fill!r} is unknown.", hint=hint) from None
        # [CLS], [SEP] twice, and a word in each sentence.
        least = 5 / self.length
        if not least <= share <= 1:
            raise UsageError(f"--fill {self.fill} is out of range: {least:.3g} to 1.")
        return round(share * self.length) - 3


def _hash(values: NDArray[np.uint64]) -> NDArray[np.uint64]:
    """Return 64 random bits for each value (splitmix64; Steele, Lea, Flood, OOPSLA 2014)."""
    values = values + np.uint64(0x9E3779B97F4A7C15)
    values = (values ^ (values >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    values = (values ^ (values >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return values ^ (values >> np.uint64(31))


class Dice:
    """The random numbers of some samples."""

    def __init__(self, samples: Integers, seed: int) -> None:
        start = _hash(np.array([seed], dtype=np.uint64))
        self._base: NDArray[np.uint64] = (
            samples.astype(np.uint64) * np.uint64(_DRAWS) + start
        ).reshape(-1, 1)

    def below(self, limit: Integers | int, channel: int, width: int = 1) -> NDArray[np.int64]:
        """Return numbers from 0 to `limit` - 1, int64 [n, width]."""
        return (self.bits(channel, width) % np.asarray(limit, dtype=np.uint64)).astype(np.int64)

    def bits(self, channel: int, width: int) -> NDArray[np.uint64]:
        """Return random bits, uint64 [n, width]."""
        draws = np.arange(width, dtype=np.uint64) + np.uint64(channel * _CHANNEL)
        return _hash(self._base + draws)

    def words(self, channel: int, width: int, vocabulary: Vocabulary) -> NDArray[np.int64]:
        """Return ordinary tokens by Zipf's law, int64 [n, width].

        A word's rank is log-uniform: an octave, then a rank within it.
        """
        count = vocabulary.size - vocabulary.first_word
        bits = self.bits(channel, width)
        octave = (bits >> np.uint64(48)) % np.uint64(count.bit_length())
        low = np.uint64(1) << octave
        rank = low - np.uint64(1) + (bits & (low - np.uint64(1)))
        return (vocabulary.first_word + rank % np.uint64(count)).astype(np.int64)


def make_synthetic(numbers: Integers, settings: StreamSettings) -> Samples:
    """Make the synthetic samples with the given numbers, int64 [n]."""
    dice, vocabulary = Dice(numbers, settings.seed), settings.vocabulary
    room = settings.length - 3
    if settings.fill == GENERATOR:
        short = 2 + dice.below(room - 1, _TOTAL)
        words = np.where(dice.below(_SHORT_ONE_IN, _SHORT) == 0, short, room)
    else:
        mean = settings.mean_words()
        reach = min(mean - 2, room - mean)
        words = mean - reach + dice.below(2 * reach + 1, _TOTAL)
    first_length = 1 + dice.below(words - 1, _FIRST)
    position = np.arange(settings.length)
    is_token = position < words + 3
    is_separator = (position == first_length + 1) | (position == words + 2)
    is_word = is_token & ~is_separator & (position > 0)
    originals = np.where(is_word, dice.words(_WORDS, settings.length, vocabulary), 0)
    originals[is_separator] = vocabulary.sep
    originals[:, 0] = vocabulary.cls
    is_second = is_token & (position > first_length + 1)
    labels = dice.below(2, _LABEL)[:, 0]
    return mask_words((originals, is_second, is_word, labels), dice, settings)


# Sentence pairs before masking: token ids with 0 for padding, where the second sentence is, what
# may be masked, all [n, L], and 1 where the second sentence is a random one, [n].
Unmasked = tuple[Integers, NDArray[np.bool_], NDArray[np.bool_], Integers]


def mask_words(pairs: Unmasked, dice: Dice, settings: StreamSettings) -> Samples:
    """Return sentence pairs with words masked, by the samples' random numbers."""
    originals, is_second, is_word, labels = pairs
    length, predictions = settings.length, settings.predictions
    tokens = is_word.sum(axis=1, keepdims=True) + 3
    counts = np.clip((tokens * PREDICTED_PERCENT + 50) // 100, 1, predictions)
    # The position makes a key unique, so that every sort gives the same order.
    keys = (dice.bits(_KEYS, length) >> np.uint64(14)) * np.uint64(length) + np.arange(
        length, dtype=np.uint64
    )
    keys[~is_word] = np.iinfo(np.uint64).max
    chosen = keys.argsort(axis=1, kind="stable")[:, :predictions]
    # Fewer words than predictions: the remaining predictions are padding too.
    is_wanted = (np.arange(predictions) < counts) & np.take_along_axis(is_word, chosen, axis=1)
    positions = np.sort(np.where(is_wanted, chosen, length), axis=1)
    is_wanted = positions < length
    positions[~is_wanted] = 0
    original_ids = np.take_along_axis(originals, positions, axis=1)
    fates = dice.below(10, _FATES, predictions)
    random_words = dice.words(_OTHERS, predictions, settings.vocabulary)
    replacements = np.where(
        fates < _AS_MASK,
        settings.vocabulary.mask,
        np.where(fates < _AS_OTHER, random_words, original_ids),
    )
    # Padding has position 0, where it restores the original token: [CLS].
    input_ids = originals.copy()
    np.put_along_axis(input_ids, positions, np.where(is_wanted, replacements, original_ids), axis=1)
    return Samples(
        input_ids=input_ids.astype(np.int32),
        input_mask=(originals != 0).astype(np.int8),
        segment_ids=is_second.astype(np.int8),
        masked_lm_positions=positions.astype(np.int32),
        masked_lm_ids=(original_ids * is_wanted).astype(np.int32),
        next_sentence_labels=labels.astype(np.int8),
    )


def number_blocks(begin: int, end: int) -> Iterator[NDArray[np.int64]]:
    """Yield the numbers of samples from `begin` to `end` - 1, a few thousand at a time."""
    for start in range(begin, end, _BLOCK):
        yield np.arange(start, min(start + _BLOCK, end), dtype=np.int64)


# --- Samples from text ----------------------------------------------------------------------------

_SENTENCE = re.compile(
    # After a full stop that precedes a possible beginning of a sentence; after a Chinese or
    # Japanese one.
    r"(?<=[.!?])\s+(?=[\"'(\[A-Z0-9\u00c0-\u00de\u0410-\u042f])|(?<=[\u3002\uff01\uff1f])"
)
_SPECIAL = ("[CLS]", "[SEP]", "[MASK]")


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
    """Return the files of a text: the file itself, or all files below a directory, by name."""
    candidates = sorted(path.rglob("*")) if path.is_dir() else [path]
    files = tuple(file for file in candidates if file.is_file())
    if not files:
        hint = "Name a file or a directory."
        raise UsageError("The text does not exist.", where=str(path), hint=hint)
    return files


def _read_documents(paths: Sequence[Path]) -> Iterator[list[str]]:
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
        maximum: The number of pairs; 0 for those of one pass.
    """
    chosen: list[Pair] = []
    count = len(corpus.documents) - 1
    number = 0
    while len(chosen) < maximum if maximum else number < count:
        rolls = random.Random(f"{settings.seed} {number}")  # noqa: S311 - no secret
        chosen += _pair_document(corpus, number % count, rolls, settings)
        number += 1
    return chosen[: maximum or None]


def _pair_document(
    corpus: Corpus, document: int, rolls: random.Random, settings: StreamSettings
) -> Iterator[Pair]:
    room = settings.length - 3
    begin, end = corpus.documents[document : document + 2].tolist()
    starts = corpus.sentences
    target = room
    if rolls.randrange(_SHORT_ONE_IN) == 0:
        target = 2 + rolls.randrange(room - 1)
    chunk = position = begin
    while position < end:
        position += 1
        if position < end and starts[position] - starts[chunk] < target:
            continue
        is_single = position - chunk == 1
        split = chunk + 1 + (0 if is_single else rolls.randrange(position - chunk - 1))
        first_size = int(starts[split] - starts[chunk])
        label = int(is_single or rolls.randrange(2))
        second, stop = split, position
        if label:
            second, stop = _choose_other_run(corpus, document, max(1, target - first_size), rolls)
            # The next pair gets the unused part.
            position = split
        second_size = int(starts[stop] - starts[second])
        runs = [[int(starts[chunk]), first_size], [int(starts[second]), second_size]]
        # Shorten the longer run, from its front or its end by chance, until both fit.
        while runs[0][1] + runs[1][1] > room:
            longer = runs[0] if runs[0][1] > runs[1][1] else runs[1]
            longer[0] += rolls.randrange(2)
            longer[1] -= 1
        yield Pair(runs[0][0], runs[0][1], runs[1][0], runs[1][1], label)
        chunk = position


def _choose_other_run(
    corpus: Corpus, document: int, least: int, rolls: random.Random
) -> tuple[int, int]:
    """Return the first sentence of a run of another document, and the sentence behind it.

    It has at least `least` tokens if possible.
    """
    count = len(corpus.documents) - 1
    other_document = (document + 1 + rolls.randrange(count - 1)) % count
    begin, end = corpus.documents[other_document : other_document + 2].tolist()
    start = begin + rolls.randrange(end - begin)
    stop = start + 1
    while stop < end and corpus.sentences[stop] - corpus.sentences[start] < least:
        stop += 1
    return start, stop


def make_samples(
    corpus: Corpus, chosen: Sequence[Pair], numbers: Integers, settings: StreamSettings
) -> Samples:
    """Return the pairs with the given numbers as samples."""
    count, vocabulary = len(numbers), settings.vocabulary
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
    return mask_words((ids, is_second, is_word, labels), dice, settings)
