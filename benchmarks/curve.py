"""Compare the reference's loss curve with transformers' on real text.

The text is Python's own documentation of the language (`pydoc_data.topics`), the WordPiece
vocabulary is made from it, and `hpcbert data make --text` makes samples from both. The two programs
start from the same weights and see the same batches, without dropout.

    python benchmarks/curve.py --model mini --batch-size 8 --iters 300
"""

from __future__ import annotations

import itertools
import pydoc_data.topics
import statistics
import sys
import tempfile
from pathlib import Path

from hpcbert.model import usual_predictions
from hpcbert.prepare.data_making import DataPlan, make
from hpcbert.prepare.data_samples import StreamSettings
from hpcbert.workloads import bert_data, bert_ranks, bert_settings
from hpcbert.workloads import bert_pretrain as workload

RUNS = (("adamw", "5e-4"), ("lamb", "6e-3"))
VOCABULARY = 4096


def write_text(path: Path) -> None:
    """Write each topic as a document: one line per paragraph, an empty line after the last."""
    documents = []
    for topic in pydoc_data.topics.topics.values():
        paragraphs = (" ".join(part.split()) for part in topic.split("\n\n"))
        documents.append("\n".join(part for part in paragraphs if part))
    path.write_text("\n\n".join(documents) + "\n", encoding="utf-8")


def make_data(folder: Path, length: int, samples: int, size: int) -> Path:
    """Make a vocabulary of a size and HDF5 files of the text; return the paths for the programs."""
    from tokenizers import BertWordPieceTokenizer

    text, vocabulary = folder / "text", folder / "vocab.txt"
    write_text(text)
    tokenizer = BertWordPieceTokenizer()
    tokenizer.train([str(text)], vocab_size=size, show_progress=False)
    tokenizer.save_model(str(folder))
    stream = StreamSettings(length, usual_predictions(length), samples)
    make(DataPlan(folder / "data", "hdf5", 1, stream, text, vocabulary))
    return folder / "data" / "training"


def curves(words: list[str]) -> tuple[list[float], list[float]]:
    """Return both programs' losses, step by step."""
    import peers  # needs transformers

    settings, ranks = bert_settings.parse_settings(words), bert_ranks.Ranks()
    device = bert_ranks.choose_device(settings.device, ranks)
    sources = [bert_data.open_source(settings, ranks, device) for _ in range(2)]
    trainer = workload.Trainer(settings, ranks, device, sources[0])
    peer = peers.Peer(trainer, sources[1])
    pairs = [(float(trainer.step().sum()), float(peer.step())) for _ in range(settings.iters)]
    return [pair[0] for pair in pairs], [pair[1] for pair in pairs]


def main() -> None:
    """Print a line for each optimizer and precision."""
    asked = bert_settings.parse_settings(sys.argv[1:])
    samples = asked.iters * asked.batch_size
    with tempfile.TemporaryDirectory() as folder:
        data = make_data(Path(folder), asked.sequence_length, samples, VOCABULARY)
        for (optimizer, rate), precision in itertools.product(RUNS, ("fp32", "bf16")):
            more = [f"--data={data}", f"--vocab={VOCABULARY}", "--dropout=0", f"--lr={rate}"]
            more += [f"--optimizer={optimizer}", f"--precision={precision}"]
            ours, theirs = curves([*sys.argv[1:], *more])
            apart = [abs(one - other) for one, other in zip(ours, theirs, strict=True)]
            last = [statistics.fmean(curve[-20:]) for curve in (ours, theirs)]
            sys.stdout.write(
                f"{optimizer} {precision}: {ours[0]:.3f} to {last[0]:.4f}, transformers to "
                f"{last[1]:.4f} (means of the last 20); apart {max(apart):.2g} at most, "
                f"{statistics.fmean(apart):.2g} on average\n"
            )
            sys.stdout.flush()


if __name__ == "__main__":
    main()
