"""Data of the BERT pre-training reference: micro batches, synthetic samples, files."""

from __future__ import annotations

import importlib
import itertools
from collections import deque
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from torch import Tensor
from torch.nn import functional

from hpcbert.workloads.bert_ranks import Ranks, sum_over_ranks
from hpcbert.workloads.bert_settings import (
    FIRST_WORD,
    MASKED,
    PRECISIONS,
    SHORT,
    Settings,
    SetupError,
    mean_words,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

CLS, SEP, MASK = 101, 102, 103  # ids of BERT's uncased English vocabulary
AS_MASK, AS_OTHER = 0.8, 0.1  # shares of masked tokens
BLOCK, PREFETCHED = 4096, 256  # rows that are read at a time; rows that are ready ahead
TILE = 64  # tokens that a fixed budget is a multiple of
WIDEST = 256  # values of a head that flash attention takes


class Batch(NamedTuple):
    """One micro batch: B samples of S tokens with P predictions each."""

    input_ids: Tensor  # int64 [B, S]
    segment_ids: Tensor  # 0 or 1, int64 [B, S]
    attention_mask: Tensor  # False for padding, bool [B, S]; empty where nothing needs a mask
    masked_positions: Tensor  # 0 for padding, int64 [B, P]
    masked_ids: Tensor  # the tokens to predict, int64 [B, P]
    masked_weights: Tensor  # 1 for a prediction and 0 for padding, float32 [B, P]
    next_sentence_labels: Tensor  # 0 or 1, int64 [B]


FIELDS = len(Batch._fields)


class Packing(NamedTuple):
    """Where the T real tokens of a micro batch are, for a model that leaves padding out.

    Either each sample's length is known to the host, or all shapes are those of a fixed budget of
    tokens: then `bounds` has them on the device, and behind the real tokens come copies of the
    first one, in samples of their own.
    """

    places: Tensor  # of the real tokens among all B * S, int64 [T]
    starts: Tensor  # of each sample's first token among the real ones, int64 [B]
    predicted: Tensor  # of the N predictions to compute among all B * P, int64 [N]
    masked: Tensor  # of their tokens among the real ones, int64 [N]
    lengths: tuple[int, ...] = ()  # real tokens of each sample
    bounds: Tensor | None = None  # where samples begin, and the end, int32


class Micro(NamedTuple):
    """A micro batch with what is known about it before its step."""

    batch: Batch
    work: Tensor  # `count_work`
    layout: Packing | None = None  # None: padding is computed


def lay_out(batch: Batch, budget: int = 0) -> Packing:
    """Find the real tokens and predictions; on a GPU this waits, so sources do it beforehand.

    With a budget, at least the number of real tokens, shapes do not depend on the batch.
    """
    (size, length), predictions = batch.input_ids.shape, batch.masked_positions.shape[1]
    mask = batch.attention_mask
    lengths = mask.sum(dim=1)
    if budget:
        predicted = torch.arange(size * predictions, device=mask.device)
    else:
        predicted = batch.masked_weights.flatten().nonzero()[:, 0]
    rows, among_real = predicted // predictions, mask.flatten().cumsum(0) - 1
    among_all = rows * length + batch.masked_positions.flatten()[predicted]
    places = mask.flatten().nonzero()[:, 0]
    layout = Packing(places, lengths.cumsum(0) - lengths, predicted, among_real[among_all])
    if not budget:
        return layout._replace(lengths=tuple(lengths.tolist()))
    # As many samples of padding as there are at most, each as long as a sample may be.
    padding = torch.arange(1, budget // length + 2, device=mask.device) * length
    ends = torch.cat([lengths.cumsum(0), (len(places) + padding).clamp(max=budget)])
    return layout._replace(
        places=functional.pad(places, (0, budget - len(places))),
        bounds=functional.pad(ends, (1, 0)).int(),
    )


def _mix(bits: Tensor) -> Tensor:
    """Hash 32-bit numbers held in int64: "lowbias32" of skeeto/hash-prospector.

    The second factor is written negative so that no product leaves 64 bits.
    """
    bits = bits & 0xFFFFFFFF
    bits = ((bits ^ (bits >> 16)) * 0x7FEB352D) & 0xFFFFFFFF
    bits = ((bits ^ (bits >> 15)) * (0x846CA68B - 2**32)) & 0xFFFFFFFF
    return bits ^ (bits >> 16)


class Noise:
    """Random numbers of samples: a row depends on its sample's number and the seed alone."""

    def __init__(self, samples: Tensor, seed: int) -> None:
        self._keys = _mix(samples + (seed + 1) * 0x9E3779B9).unsqueeze(1)
        self._streams = itertools.count(1)

    def bits(self, width: int) -> Tensor:
        """Return the next `width` 32-bit numbers of each sample, int64 [B, width]."""
        columns = torch.arange(width, device=self._keys.device) * 0x9E3779B9
        return _mix(_mix(self._keys + next(self._streams) * 0x85EBCA6B) + columns)

    def uniform(self, width: int = 1) -> Tensor:
        """Return numbers in [0, 1), float64 [B, width]."""
        return self.bits(width).double() / 2**32

    def words(self, width: int, vocab: int) -> Tensor:
        """Return ordinary tokens by Zipf's law, int64 [B, width]."""
        powers = float(vocab - FIRST_WORD + 1) ** self.uniform(width)
        return (FIRST_WORD - 1 + powers.long()).clamp(max=vocab - 1)


def synthesize(samples: Tensor, settings: Settings) -> Batch:
    """Make the synthetic samples with the given numbers, int64 [B], on their device.

    A sample is the same whichever rank makes it, in whichever batch. The statistics are those of
    google-research/bert, create_pretraining_data.py: nine of ten samples are full, the others of
    any length, unless --fill spreads the lengths evenly around a mean; the two segments meet
    anywhere; 15 % of the tokens are predicted, 80 % of them replaced by [MASK] and 10 % by another
    word; half of the pairs are labelled random.
    """
    noise, room = Noise(samples, settings.seed), settings.sequence_length - 3
    is_short, size = noise.uniform() < SHORT, noise.uniform()
    if settings.fill == "generator":
        total = torch.where(is_short, 2 + (size * (room - 1)).long(), room)
    else:
        mean = mean_words(settings)
        reach = min(mean - 2, room - mean)
        total = mean - reach + (size * (2 * reach + 1)).long()
    first = 1 + (noise.uniform() * (total - 1)).long()
    position = torch.arange(settings.sequence_length, device=samples.device)
    attention_mask = position < total + 3
    is_separator = (position == first + 1) | (position == total + 2)
    is_word = attention_mask & ~is_separator & (position > 0)
    words = noise.words(settings.sequence_length, settings.vocab)
    input_ids = torch.where(is_word, words, SEP * is_separator.long())
    input_ids[:, 0] = CLS
    predictions, length = settings.predictions, settings.sequence_length
    counts = ((total + 3) * MASKED).round().long().clamp(1, predictions)
    is_wanted = torch.arange(predictions, device=samples.device) < counts
    # The position makes the key unique, so that no sort can settle a tie in another way.
    keys = (noise.bits(length) * length + position).masked_fill(~is_word, 2**62)
    positions = keys.argsort(dim=1)[:, :predictions] * is_wanted
    originals = input_ids.gather(1, positions)
    fate = noise.uniform(predictions)
    other_words = noise.words(predictions, settings.vocab)
    replaced = torch.where(fate < AS_MASK + AS_OTHER, other_words, originals)
    # Padding predictions sit on position 0, where they put back what was there: [CLS].
    replaced = torch.where(is_wanted, replaced.masked_fill(fate < AS_MASK, MASK), originals)
    return Batch(
        input_ids=input_ids.scatter(1, positions, replaced),
        segment_ids=(attention_mask & (position > first + 1)).long(),
        attention_mask=attention_mask,
        masked_positions=positions,
        masked_ids=originals * is_wanted,
        masked_weights=is_wanted.float(),
        next_sentence_labels=(noise.bits(1) % 2).squeeze(1),
    )


def synthetic_source(settings: Settings, ranks: Ranks, device: torch.device) -> Iterator[Micro]:
    """Make a rank's micro batches before the clock starts, and repeat them without end.

    Micro batch i of all ranks together is a run of consecutive samples, so two ranks see together
    what one rank with the doubled batch sees.
    """
    size = settings.batch_size
    distinct = min(settings.synthetic_batches, settings.iters * settings.accumulation)
    starts = ((number * ranks.size + ranks.rank) * size for number in range(distinct))
    pool = [
        synthesize(torch.arange(start, start + size, device=device), settings) for start in starts
    ]
    is_full = all(bool(batch.attention_mask.all()) for batch in pool)
    form = choose_form(pool, settings, device, is_full=is_full)
    return itertools.cycle([form.shape(batch) for batch in pool])


class Form(NamedTuple):
    """What all micro batches of a rank have in common, so that their shapes are the same."""

    is_full: bool  # no row has padding, so none needs a mask
    unpads: bool
    budget: int = 0  # real tokens of a micro batch, at most; 0: shapes follow the samples

    def shape(self, batch: Batch) -> Micro:
        """Return a micro batch in this form."""
        layout = lay_out(batch, self.budget) if self.unpads else None
        work = count_work(batch)
        if self.is_full:
            batch = batch._replace(attention_mask=batch.attention_mask[:0])
        return Micro(batch, work, layout)


def choose_form(
    batches: Iterable[Batch], settings: Settings, device: torch.device, *, is_full: bool
) -> Form:
    """Return the form of micro batches; it reads them where they need a budget."""
    if not (settings.unpad and has_flash(settings, device)):
        return Form(is_full, settings.unpad)
    most = max(int(batch.attention_mask.sum()) for batch in batches)
    return Form(is_full, settings.unpad, -(-most // TILE) * TILE)


def has_flash(settings: Settings, device: torch.device) -> bool:
    """Return whether samples of any lengths can be attended at once: by flash attention.

    It takes heads of up to 256 values, in multiples of 8 (Dao-AILab/flash-attention, README.md).
    """
    width = settings.hidden // settings.heads
    return (
        device.type == "cuda"
        and settings.sdpa in ("auto", "flash")
        and width % 8 == 0
        and width <= WIDEST
        and not torch.version.hip
        and PRECISIONS[settings.precision] is not None
        and torch.cuda.get_device_capability(device) >= (8, 0)
    )


def assign_shards(count: int, ranks: Ranks) -> list[tuple[int, int, int]]:
    """Return the shards that a rank reads: number, first row and row stride of each.

    Shards go round robin. Where there are fewer shards than ranks, the ranks that meet at a shard
    take its rows in turn.
    """
    if count >= ranks.size:
        return [(number, 0, 1) for number in range(ranks.rank, count, ranks.size)]
    shard = ranks.rank % count
    return [(shard, ranks.rank // count, len(range(shard, ranks.size, count)))]


class Shard(NamedTuple):
    """One rank's part of a file: rows `first`, `first` + `stride` and so on."""

    path: Path
    first: int
    stride: int


def read_shard(shard: Shard, settings: Settings) -> Iterator[Batch]:
    """Yield a shard's rows, some thousand at a time.

    The files are NVIDIA's (NVIDIA/DeepLearningExamples@fd9fecd, PyTorch/LanguageModeling/BERT,
    create_pretraining_data.py).

    SetupError if the file is not training data, or does not fit the settings.
    """
    try:
        h5py = importlib.import_module("h5py")  # only --data needs more than torch
    except ImportError as error:
        raise SetupError("--data needs the Python package h5py") from error
    try:
        with h5py.File(shard.path, "r") as columns:
            _check_columns(columns, settings)
            for begin in range(0, len(columns["input_ids"]), BLOCK):
                selection = slice((shard.first - begin) % shard.stride, None, shard.stride)
                yield _read_rows(columns, slice(begin, begin + BLOCK), selection, settings)
    except UNREADABLE as error:
        fit = "not a shard that fits --sequence-length, --predictions and --vocab"
        raise SetupError(f"{shard.path}: {fit}: {error}") from error


UNREADABLE = (OSError, KeyError, AttributeError, TypeError, ValueError, IndexError, RuntimeError)


def _expected(settings: Settings) -> dict[str, tuple[tuple[int, ...], int]]:
    """Return each column's shape of a row and limit of values, which follow from the options."""
    length, predictions, vocab = settings.sequence_length, settings.predictions, settings.vocab
    return {
        "input_ids": ((length,), vocab),
        "input_mask": ((length,), 2),
        "segment_ids": ((length,), 2),
        "masked_lm_positions": ((predictions,), length),
        "masked_lm_ids": ((predictions,), vocab),
        "next_sentence_labels": ((), 2),
    }


def _check_columns(columns: Mapping[str, Any], settings: Settings) -> None:
    for name, (shape, _) in _expected(settings).items():
        if name not in columns:
            raise ValueError(f"it has no {name}")
        column, expected = columns[name], (len(columns["input_ids"]), *shape)
        if column.shape != expected or column.dtype.kind not in "iu" or not column.size:
            actual = f"{column.dtype} {tuple(column.shape)}"
            raise ValueError(f"{name} is {actual}, which should be integers {expected}, not empty")


def _read_rows(
    columns: Mapping[str, Any], rows: slice, selection: slice, settings: Settings
) -> Batch:
    values = {}
    for name, (_, limit) in _expected(settings).items():
        column = values[name] = torch.from_numpy(columns[name][rows].astype("int64"))[selection]
        if column.numel() and not 0 <= int(column.min()) <= int(column.max()) < limit:
            raise ValueError(f"{name} has values outside 0 to {limit - 1}")
    mask, positions = values["input_mask"].bool(), values["masked_lm_positions"]
    if not mask[:, 0].all():
        raise ValueError("input_mask leaves out the first token of a sample")
    if not mask.gather(1, positions).all():
        raise ValueError("masked_lm_positions has a prediction in the padding")
    return Batch(
        input_ids=values["input_ids"],
        segment_ids=values["segment_ids"],
        attention_mask=mask,
        masked_positions=positions,
        masked_ids=values["masked_lm_ids"],
        # Position 0 holds [CLS], which is never masked: there it pads the list.
        masked_weights=(positions != 0).float(),
        next_sentence_labels=values["next_sentence_labels"],
    )


def find_shards(settings: Settings, ranks: Ranks) -> tuple[list[Shard], bool]:
    """Return this rank's part of the data, and whether no row that the run needs has padding.

    SetupError if there are no shards, one is malformed, or the rows do not fill a batch.
    """
    directory = Path(settings.data)
    try:
        paths = sorted(path for path in directory.iterdir() if "training" in path.name)
    except OSError as error:
        raise SetupError(f"--data {directory}: {error.strerror}") from error
    if not paths:
        raise SetupError(f"--data {directory}: no file has 'training' in its name")
    shares = assign_shards(len(paths), ranks)
    shards = [Shard(paths[number], first, stride) for number, first, stride in shares]
    needed, count = settings.iters * settings.accumulation * settings.batch_size, 0
    is_full = True
    for block in itertools.chain.from_iterable(read_shard(shard, settings) for shard in shards):
        count += len(block.input_ids)
        is_full = is_full and bool(block.attention_mask.all())
        if count >= needed:
            break
    if count < settings.batch_size:
        raise SetupError(
            f"--data {directory}: {count} rows do not fill a batch of {settings.batch_size}"
        )
    return shards, is_full


def batches_of(shards: Sequence[Shard], settings: Settings) -> Iterator[Batch]:
    """Yield the shards' rows in order, one micro batch at a time, without end."""
    batch: Batch | None = None
    for shard in itertools.cycle(shards):
        for block in read_shard(shard, settings):
            parts = [block] if batch is None else [batch, block]
            batch = Batch(*(torch.cat(values) for values in zip(*parts)))  # noqa: B905  # needs 3.10
            while len(batch.input_ids) >= settings.batch_size:
                yield Batch(*(values[: settings.batch_size] for values in batch))
                batch = Batch(*(values[settings.batch_size :] for values in batch))


def prefetch(
    batches: Iterator[Batch], form: Form, settings: Settings, device: torch.device
) -> Iterator[Micro]:
    """Yield micro batches that a thread reads, lays out and pins while the device computes."""

    def prepare() -> Micro:
        micro = form.shape(next(batches))
        return convert(micro, Tensor.pin_memory) if device.type == "cuda" else micro

    thread = ThreadPoolExecutor(1, "data")
    waiting = deque(
        thread.submit(prepare) for _ in range(max(2, -(-PREFETCHED // settings.batch_size)))
    )
    while True:
        micro = waiting.popleft().result()
        waiting.append(thread.submit(prepare))
        yield convert(micro, lambda value: value.to(device, non_blocking=True))


def convert(values: Any, change: Callable[[Tensor], Tensor]) -> Any:
    """Return named or plain tuples of tensors and numbers with the tensors changed."""
    if isinstance(values, Tensor):
        return change(values)
    if not isinstance(values, tuple):
        return values
    changed = [convert(value, change) for value in values]
    return type(values)(*changed) if hasattr(values, "_fields") else tuple(changed)


def open_source(settings: Settings, ranks: Ranks, device: torch.device) -> Iterator[Micro]:
    """Return this rank's endless micro batches.

    If one rank cannot use its data, every rank raises SetupError, so that none waits.
    """
    if not settings.data:
        return synthetic_source(settings, ranks, device)
    failure, shards, is_full = None, None, False
    try:
        shards, is_full = find_shards(settings, ranks)
    except SetupError as error:
        failure = error
    states = torch.tensor([float(shards is None), float(not is_full)], device=device)
    failures, padded = sum_over_ranks(states, ranks).tolist()
    if failures or shards is None:
        raise failure or SetupError(f"{int(failures)} other rank(s) cannot use their data")
    count = settings.iters * settings.accumulation
    # Iterations that --window-seconds adds begin again: form and budget are those of these batches.
    passes = (itertools.islice(batches_of(shards, settings), count) for _ in itertools.repeat(0))
    # Masks on all ranks or none: another kernel may attend without, and rank 0 records its own.
    form = choose_form(next(passes), settings, device, is_full=not padded)
    return prefetch(itertools.chain.from_iterable(passes), form, settings, device)


def count_work(batch: Batch) -> Tensor:
    """Return real tokens, squares of the samples' lengths, and predictions, float64 [3]."""
    lengths = batch.attention_mask.sum(dim=1).double()
    return torch.stack([lengths.sum(), lengths.square().sum(), batch.masked_weights.sum().double()])
