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

from bertlab.config import load_config
from bertlab.interop.kinds import KINDS
from bertlab.models.presets import model_shape
from workloads import WORKLOADS, tell, tell_rates


def main(name: str, folder: Path, seconds: float) -> None:
    """Measures the training step: forward, backward, clipping, AdamW."""
    device = "cuda" if torch.cuda.is_available() else "cpu"
    on_gpu = device == "cuda"
    tell(stage="builds", torch=torch.__version__, transformers=transformers.__version__)
    with np.load(folder / f"{name}.npz") as arrays:
        view = {key: torch.tensor(array, device=device) for key, array in arrays.items()}
    model, loss_of = build(name, view)
    model.to(device).train()
    optimizer = torch.optim.AdamW(model.parameters(), 1e-4, weight_decay=0.01, fused=on_gpu)
    compute = torch.compile(loss_of, dynamic=False) if on_gpu else loss_of

    def turn(steps: int) -> None:
        for _ in range(steps):
            with torch.autocast(device, torch.bfloat16, enabled=on_gpu):
                loss = compute()
            loss.backward()
            torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            optimizer.zero_grad(set_to_none=True)
        loss.item()

    tell(stage="compiles")
    begin = time.perf_counter()
    turn(1)
    tell(compile_seconds=round(time.perf_counter() - begin, 1), stage="steps")
    turn(1)
    tell_rates({"step_tokens": turn}, view["tokens"].numel(), seconds)
    if on_gpu:
        tell(gigabytes=round(torch.cuda.max_memory_allocated() / 1e9, 2))


def build(name: str, view: dict[str, torch.Tensor]):
    """transformers' BERT or GPT-2 of a workload's shape, and the function of its loss."""
    config = load_config(*WORKLOADS[name])
    model_type = "bert" if config.model.family == "bert" else "gpt2"
    shape = model_shape(config.model, config.data.tokenizer.vocab_size)
    settings = KINDS[model_type].write(shape) | {"vocab_size": shape.vocab_size}
    settings = transformers.AutoConfig.for_model(model_type, **settings)
    tokens, inside = view["tokens"].long(), view["documents"] > 0
    cross_entropy = torch.nn.functional.cross_entropy
    if model_type == "gpt2":
        model = transformers.GPT2LMHeadModel(settings)
        labels = torch.where(inside, tokens, -100)[:, 1:].flatten()
        return model, lambda: cross_entropy(model(tokens).logits[:, :-1].flatten(0, 1), labels)
    model = transformers.BertForMaskedLM(settings)
    rows, slots = (view["masked_weights"] > 0).nonzero(as_tuple=True)
    asked, labels = (view[key].long()[rows, slots] for key in ("masked_positions", "masked_labels"))

    def loss():
        hidden = model.bert(tokens, inside.long(), view["segments"].long()).last_hidden_state
        return cross_entropy(model.cls(hidden[rows, asked]), labels)

    return model, loss


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]), float(sys.argv[3]))
