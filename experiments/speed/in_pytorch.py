"""The rival of a workload of `bench.py`: transformers' model in PyTorch on the same rows and masks.

    python experiments/speed/in_pytorch.py WORKLOAD FOLDER SECONDS_A_TURN

BERT's output layer is on the masked positions only, as ours. On a GPU it computes in bfloat16, with
`scaled_dot_product_attention`, `torch.compile` and the fused AdamW; on a CPU in float32, eagerly.
"""

import sys
import time
from pathlib import Path

import numpy as np
import torch
import transformers

from workloads import WORKLOADS, tell

SIZES = {"tiny": (2, 128), "mini": (4, 256), "base": (12, 768), "large": (24, 1024)}
"""Layers and width of BERT."""


def main(name: str, folder: Path, seconds: float) -> None:
    """Measures the training step: forward, backward, clipping, AdamW."""
    device = "cuda" if torch.cuda.is_available() else "cpu"
    on_gpu = device == "cuda"
    tell(stage="builds", torch=torch.__version__, transformers=transformers.__version__)
    recipe, overrides = WORKLOADS[name]
    view = np.load(folder / f"{name}.npz")
    dropout = overrides.get("model.dropout", 0.1)
    build = build_bert if "bert" in name else build_gpt2
    size = recipe.partition("size=")[2].partition(",")[0]
    model, loss_of = build(size, view, overrides["data.tokenizer.vocab_size"], dropout, device)
    optimizer = torch.optim.AdamW(model.parameters(), 1e-4, weight_decay=0.01, fused=on_gpu)
    compute = torch.compile(loss_of, dynamic=False) if on_gpu else loss_of

    def step():
        with torch.autocast(device, torch.bfloat16, enabled=on_gpu):
            loss = compute()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        return loss

    def turn(steps: int) -> float:
        begin = time.perf_counter()
        for _ in range(steps):
            loss = step()
        loss.item()
        return time.perf_counter() - begin

    tell(stage="compiles")
    tell(compile_seconds=round(turn(1), 1), stage="steps")
    turn(1)
    steps, best = max(2, round(seconds * 2 / turn(2))), 0.0
    for _ in range(3):
        best = max(best, steps * view["tokens"].size / turn(steps))
        tell(step_tokens=round(best))
    if on_gpu:
        tell(gigabytes=round(torch.cuda.max_memory_allocated() / 1e9, 2))


def build_bert(size: str, view, vocab_size: int, dropout: float, device: str):
    """A model in training, and the function of its loss."""
    layers, width = SIZES[size]
    config = transformers.BertConfig(
        vocab_size=vocab_size,
        hidden_size=width,
        num_hidden_layers=layers,
        num_attention_heads=width // 64,
        intermediate_size=4 * width,
        hidden_dropout_prob=dropout,
        attention_probs_dropout_prob=dropout,
    )
    model = transformers.BertForMaskedLM(config).to(device).train()
    rows, slots = (view["masked_weights"] > 0).nonzero()
    asked = [view[key][rows, slots] for key in ("masked_positions", "masked_labels")]
    arrays = [view["tokens"], view["segments"], view["documents"] > 0, rows, *asked]
    tensors = [torch.tensor(array).long().to(device) for array in arrays]
    tokens, segments, inside, rows, positions, labels = tensors

    def loss():
        hidden = model.bert(tokens, inside, segments).last_hidden_state
        return torch.nn.functional.cross_entropy(model.cls(hidden[rows, positions]), labels)

    return model, loss


def build_gpt2(size: str, view, vocab_size: int, dropout: float, device: str):
    """GPT-2 of 124 million parameters, and the function of its loss."""
    if size != "gpt2":
        raise SystemExit(f"no rival for GPT of size {size}")
    dropouts = dict.fromkeys(("resid_pdrop", "embd_pdrop", "attn_pdrop"), dropout)
    config = transformers.GPT2Config(vocab_size=vocab_size, **dropouts)
    model = transformers.GPT2LMHeadModel(config).to(device).train()
    tokens, inside = (torch.tensor(view[key]).long().to(device) for key in ("tokens", "documents"))
    labels = torch.where(inside > 0, tokens, -100)[:, 1:].flatten()

    def loss():
        logits = model(tokens).logits[:, :-1]
        return torch.nn.functional.cross_entropy(logits.flatten(0, 1), labels)

    return model, loss


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]), float(sys.argv[3]))
