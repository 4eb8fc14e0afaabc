"""What the template does on one CUDA GPU, in under ten minutes: speed of a 110M-parameter encoder, and paths run once.

- Training steps in bfloat16 on texts of 128 to 512 tokens, in length-grouped batches: padded, with torch's fused
  attention; packed, with no padding at all and `varlen_attn` (torch.nn.attention.varlen); both also compiled.
  Shown are real tokens per second and the share of the fastest matrix product measured in the same run.
- The trainer with accumulation, clipping, float16 with a gradient scaler, and pinned memory.

`--dry-run` takes the same ways in tiny sizes, on the CPU where there is no GPU.
"""

import argparse
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from statistics import median
from typing import Any

import torch
import torch.nn.functional as F
from lightning.pytorch import Trainer
from torch import Tensor, nn

from benchmarks.batches import Batch, grouped_batches, uniform_texts
from benchmarks.loop import write_table
from benchmarks.peers import Sizes
from benchmarks.report import machine, markdown
from project.cli import quiet
from project.data import TableFile, TextClassificationData
from project.machine import matmul_peak
from project.nn import Encoder, MultiHeadAttention, SequenceClassifier
from project.tasks import SequenceClassification

BASE = Sizes(768, 12, 12, 3072, vocab_size=30_522, dropout=0.0)  # as BERT base; varlen_attn has no dropout
TINY = Sizes(32, 2, 2, 64, vocab_size=100, max_length=32, dropout=0.0)


@dataclass
class Packed:
    """The real tokens of a batch end to end."""

    tokens: Tensor  # (T,)
    places: Tensor  # (T,) of each token in its text
    texts: Tensor  # (T,) number of each token's text
    offsets: Tensor  # (B + 1,) where texts begin and the last one ends, int32
    longest: int

    @classmethod
    def of(cls, batch: Batch, longest: int) -> "Packed":
        texts_T, places_T = batch["padding_mask"].nonzero(as_tuple=True)
        lengths = batch["padding_mask"].sum(1)
        offsets = F.pad(lengths.cumsum(0), (1, 0)).int()
        return cls(batch["tokens"][batch["padding_mask"]], places_T, texts_T, offsets, longest)


def packed_attention(query_THK: Tensor, key_THK: Tensor, value_THK: Tensor, packed: Packed) -> Tensor:
    """Attention within each text, (T, H, K)."""
    if query_THK.is_cuda:
        from torch.nn.attention.varlen import varlen_attn

        ends, longest = packed.offsets, packed.longest
        output = varlen_attn(query_THK, key_THK, value_THK, ends, ends, longest, longest)
        assert isinstance(output, Tensor)
        return output
    heads = [x.transpose(0, 1).split(packed.offsets.diff().tolist(), 1) for x in (query_THK, key_THK, value_THK)]
    return torch.cat([F.scaled_dot_product_attention(*qkv) for qkv in zip(*heads, strict=True)], 1).transpose(0, 1)


class PackedClassifier(nn.Module):
    """A `SequenceClassifier` with a pre-norm sinusoidal encoder and mean pooling, run on the real tokens alone."""

    def __init__(self, network: SequenceClassifier) -> None:
        super().__init__()
        self.network = network

    def attend(self, attention: MultiHeadAttention, x_TD: Tensor, packed: Packed) -> Tensor:
        query, key, value = (x[0].transpose(0, 1) for x in attention.split(attention.in_projection(x_TD)[None]))
        context_THK = packed_attention(query, key, value, packed)
        return attention.out_projection(context_THK.flatten(1))

    def forward(self, packed: Packed) -> Tensor:
        encoder: Any = self.network.encoder
        x_TD = self.network.embedding(packed.tokens) * self.network.embedding_scale
        x_TD = x_TD + encoder.position.table[packed.places]
        if torch.is_autocast_enabled(x_TD.device.type):
            x_TD = x_TD.bfloat16()
        for layer in encoder.layers:
            x_TD = x_TD + self.attend(layer.attention, layer.attention_norm(x_TD), packed)
            x_TD = x_TD + layer.feed_forward(layer.feed_forward_norm(x_TD))
        x_TD = encoder.norm(x_TD)
        lengths_B1 = packed.offsets.diff()[:, None]
        sums_BD = x_TD.new_zeros(len(lengths_B1), x_TD.size(1)).index_add(0, packed.texts, x_TD)
        return self.network.head(sums_BD / lengths_B1)


def network(sizes: Sizes) -> SequenceClassifier:
    torch.manual_seed(0)
    encoder = Encoder(sizes.d_model, sizes.num_layers, sizes.num_heads, sizes.d_ff, 0.0, max_length=sizes.max_length)
    return SequenceClassifier(encoder, sizes.vocab_size, sizes.num_classes, "mean", 0.0, 0.0)


def padded_inputs(batch: Batch, longest: int) -> tuple[Any, ...]:
    return batch["tokens"], batch["padding_mask"]


def packed_inputs(batch: Batch, longest: int) -> tuple[Any, ...]:
    return (Packed.of(batch, longest),)


def speed(
    model: nn.Module,
    inputs: Callable[[Batch, int], tuple[Any, ...]],
    batches: Sequence[Batch],
    sizes: Sizes,
    device: str,
    warmup: int,
) -> tuple[float, float, float]:
    """Real tokens/s, useful FLOP/s (medians over batches), and peak GiB of training steps in bfloat16."""
    model.train()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, fused=True)
    if device == "cuda":
        torch.cuda.reset_peak_memory_stats()
    rates, flops = [], []
    for number, batch in enumerate(batches):
        lengths = batch["padding_mask"].sum(1).cpu()
        start = time.perf_counter()
        with torch.autocast(device, torch.bfloat16):
            logits = model(*inputs(batch, sizes.max_length))
        F.cross_entropy(logits.float(), batch["labels"]).backward()
        optimizer.step()
        optimizer.zero_grad()
        if device == "cuda":
            torch.cuda.synchronize()
        elapsed = time.perf_counter() - start
        if number >= warmup:
            rates.append(int(lengths.sum()) / elapsed)
            flops.append(sizes.flops(lengths) / elapsed)
    memory = torch.cuda.max_memory_allocated() / 2**30 if device == "cuda" else 0.0
    return median(rates), median(flops), memory


def speeds(sizes: Sizes, device: str, budget: int, steps: int, warmup: int) -> list[list[str]]:
    """The table's rows: each way to run the encoder."""
    texts = uniform_texts(sizes.max_length, (steps + warmup + 2) * budget, sizes.vocab_size, sizes.num_classes)
    rows = grouped_batches(texts, budget)[: steps + warmup]
    batches = [{name: tensor.to(device) for name, tensor in texts[index].items()} for index in rows]
    dense = sizes.d_model * 10
    peak = matmul_peak(torch.bfloat16, device, [(dense, dense, dense), (budget, sizes.d_model, sizes.d_ff)])
    print(f"fastest matrix product: {peak / 1e12:,.1f} TFLOP/s in bfloat16", flush=True)
    lines = []
    for name, packs, compiles in (
        ("padded, fused attention", False, False),
        ("padded, fused attention, compiled", False, True),
        ("packed, varlen attention", True, False),
        ("packed, varlen attention, compiled", True, True),
    ):
        torch.compiler.reset()
        model: nn.Module = network(sizes).to(device)
        model = PackedClassifier(model) if packs else model  # type: ignore[arg-type]
        if compiles:
            model.compile(dynamic=True, backend="inductor" if device == "cuda" else "eager")
        try:
            rate, flops, memory = speed(
                model, packed_inputs if packs else padded_inputs, batches, sizes, device, warmup
            )
        except Exception as error:  # whatever a torch or GPU of other kind cannot do: the rest is still worth having
            lines.append([name, f"failed: {type(error).__name__}: {str(error).splitlines()[0][:80]}", "", ""])
        else:
            lines.append([name, f"{rate:,.0f}", f"{flops / peak:.0%}", f"{memory:.1f} GiB"])
        print("... " + ", ".join(lines[-1]), flush=True)
    return lines


def trainer_paths(folder: Path, device: str) -> str:
    """Train with accumulation, clipping, float16, gradient scaler and pinned memory, and say what came of it.

    Raises:
        RuntimeError: one of them did not do its work.
    """
    quiet()
    write_table(folder / "texts.csv", 600)
    data = TextClassificationData(
        TableFile(str(folder / "texts.csv")), vocab_size=500, tokens_per_batch=512, cache_dir=str(folder / "cache")
    )
    encoder = Encoder(d_model=64, num_layers=1, num_heads=2, dropout=0.0, max_length=128)
    optimizer = partial(torch.optim.AdamW, lr=1e-3)
    task = SequenceClassification(encoder, data.labels, data.vocab_size, optimizer=optimizer)  # type: ignore[arg-type]
    before = {name: value.clone() for name, value in task.state_dict().items()}
    trainer = Trainer(
        accelerator="gpu" if device == "cuda" else "cpu",
        devices=1,
        precision="16-mixed",
        accumulate_grad_batches=2,
        gradient_clip_val=1.0,
        max_steps=10,
        limit_val_batches=1,
        num_sanity_val_steps=0,
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
    )
    trainer.fit(task, data)
    scaler = getattr(trainer.precision_plugin, "scaler", None)
    pinned = bool(getattr(trainer.train_dataloader, "pin_memory", False))
    loss = float(trainer.callback_metrics["train/loss"])
    after = {name: value.cpu() for name, value in task.state_dict().items()}
    checks = {
        "ten optimizer steps": trainer.global_step == 10,
        "a gradient scaler": (scaler is not None and scaler.get_scale() > 0) == (device == "cuda"),
        "pinned memory": pinned == (device == "cuda"),
        "a finite loss": loss == loss and loss < float("inf"),
        "changed, finite weights": all(v.isfinite().all() for v in after.values())
        and any(not torch.equal(before[name], after[name]) for name in before),
    }
    if missing := [what for what, holds in checks.items() if not holds]:
        raise RuntimeError(f"the trainer's paths lack {', '.join(missing)}")
    scale = f"scale {scaler.get_scale():g}" if scaler else "on a CPU bfloat16 instead"
    return f"accumulation, clipping, 16-mixed ({scale}), pinned memory {pinned}: train/loss {loss:.3f}"


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.gpu", description=(__doc__ or "").split("\n\n")[0])
    parser.add_argument("--dry-run", action="store_true", help="tiny sizes, on the CPU where there is no GPU")
    parser.add_argument("--budget", type=int, default=32_768, help="rows x longest row of a batch")
    options = parser.parse_args(arguments)
    if not torch.cuda.is_available() and not options.dry_run:
        print("no CUDA GPU here: nothing was measured (--dry-run takes the same ways on the CPU)")
        return
    device = "cuda" if torch.cuda.is_available() else "cpu"
    sizes, budget, steps, warmup = (TINY, 128, 2, 1) if options.dry_run else (BASE, options.budget, 20, 5)
    weights = sum(parameter.numel() for parameter in network(sizes).parameters())
    print(f"{machine()}; {weights / 1e6:.1f}M parameters, {budget} tokens a batch", flush=True)
    lines = speeds(sizes, device, budget, steps, warmup)
    print(f"\n{markdown(['way', 'tokens/s', 'of the peak', 'peak memory'], lines)}\n", flush=True)
    with tempfile.TemporaryDirectory() as folder:
        print(trainer_paths(Path(folder), device))


if __name__ == "__main__":
    main()
