"""Samples of BERT's pre-training, and the synthetic stream, the same in every format.

Random numbers are a hash of seed, sample and draw, in 64-bit integers alone: sample i is the same
on any machine, in any file, with any release of numpy.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from hpcbert.data.names import PREDICTED_PERCENT
from hpcbert.errors import UsageError

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

    size: int = 30522
    cls: int = 101
    sep: int = 102
    mask: int = 103
    first_word: int = 999


@dataclass(frozen=True)
class StreamSettings:
    """The settings of a stream of samples.

    Attributes:
        length: Tokens in a sample, padding included.
        predictions: The most masked tokens in a sample.
        samples: Their number; 0 for as many as a text gives.
        fill: `generator` (nine of ten samples full), `full`, `wiki`, or the mean share of tokens
            that are not padding, as a number.
        seed: The seed of the random numbers.

    Raises:
        UsageError: One of them is out of range.
    """

    length: int = 128
    predictions: int = 20
    samples: int = 100_000
    fill: str = GENERATOR
    seed: int = 42

    def __post_init__(self) -> None:
        for name, value, least, most in (
            ("--sequence-length", self.length, 8, LONGEST),
            ("--predictions", self.predictions, 1, self.length - 3),
            ("--samples", self.samples, 0, 1 << 40),
            ("--seed", self.seed, 0, (1 << 63) - 1),
        ):
            if not least <= value <= most:
                raise UsageError(f"{name} {value} is out of range: {least} to {most}.")
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


def make_synthetic(
    numbers: Integers, settings: StreamSettings, vocabulary: Vocabulary = Vocabulary()
) -> Samples:
    """Make the synthetic samples with the given numbers, int64 [n]."""
    dice = Dice(numbers, settings.seed)
    words = _word_counts(dice, settings)
    first_length = 1 + dice.below(words - 1, _FIRST)
    position = np.arange(settings.length)
    is_token = position < words + 3
    is_separator = (position == first_length + 1) | (position == words + 2)
    is_word = is_token & ~is_separator & (position > 0)
    originals = np.where(is_word, dice.words(_WORDS, settings.length, vocabulary), 0)
    originals[is_separator] = vocabulary.sep
    originals[:, 0] = vocabulary.cls
    is_second = is_token & (position > first_length + 1)
    pairs = Unmasked(originals, is_second, is_word, dice.below(2, _LABEL)[:, 0])
    return mask_words(pairs, dice, settings, vocabulary)


def _word_counts(dice: Dice, settings: StreamSettings) -> NDArray[np.int64]:
    """Return the words of each sample, int64 [n, 1]."""
    room = settings.length - 3
    if settings.fill == GENERATOR:
        short = 2 + dice.below(room - 1, _TOTAL)
        return np.where(dice.below(_SHORT_ONE_IN, _SHORT) == 0, short, room)
    mean = settings.mean_words()
    reach = min(mean - 2, room - mean)
    return mean - reach + dice.below(2 * reach + 1, _TOTAL)


class Unmasked(NamedTuple):
    """Sentence pairs before masking.

    Attributes:
        originals: Token ids, 0 for padding, [n, L].
        is_second: Where the second sentence is, [n, L].
        is_word: What may be masked, [n, L].
        labels: 1 where the second sentence is a random one, [n].
    """

    originals: Integers
    is_second: NDArray[np.bool_]
    is_word: NDArray[np.bool_]
    labels: Integers


def mask_words(
    pairs: Unmasked, dice: Dice, settings: StreamSettings, vocabulary: Vocabulary
) -> Samples:
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
    random_words = dice.words(_OTHERS, predictions, vocabulary)
    replacements = np.where(
        fates < _AS_MASK, vocabulary.mask, np.where(fates < _AS_OTHER, random_words, original_ids)
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
