"""What transformers computes from the tiny models of tests/interop, live or recorded.

    python -m tests.parity.record

writes tests/interop/recorded/*.npz, with which `make test` compares where there is no torch.
"""

import tempfile
from pathlib import Path

import numpy as np
import torch
import transformers

from tests.interop import published

RECORDED = Path(__file__).parent.parent / "interop" / "recorded"


def open_model(directory: Path):
    """The model that a directory's config names, in evaluation, and what transformers says of the loading."""
    name = transformers.AutoConfig.from_pretrained(directory).architectures[0]
    model, info = getattr(transformers, name).from_pretrained(
        directory, output_loading_info=True, attn_implementation="eager", dtype=torch.float32
    )
    return model.eval(), info


def inputs_of(model, view, row: int, where) -> dict[str, torch.Tensor]:
    """Arguments for some positions of one row, or (row a slice) for whole rows."""
    tensor = lambda array: torch.tensor(np.atleast_2d(array[row][..., where]), dtype=torch.long)
    arguments = {"input_ids": tensor(view["tokens"]), "attention_mask": tensor((view["documents"] > 0) * 1)}
    if model.config.model_type == "bert":
        arguments["token_type_ids"] = tensor(view["segments"])
    return arguments


def compute(model, view) -> dict[str, np.ndarray]:
    """What `published.run` gives: padded rows with an attention mask, each document of a packed row alone."""
    rows, length = view["tokens"].shape
    out = {}

    def put(name: str, row: int, where, value: torch.Tensor) -> None:
        value = value.detach().numpy()
        if where is None:
            out.setdefault(name, np.zeros((rows, *value.shape), np.float32))[row] = value
            return
        axis_free = value.shape[:-2]
        out.setdefault(name, np.zeros((*axis_free, rows, length, value.shape[-1]), np.float32))[..., row, where, :] = value

    for row in range(rows):
        packed = view["documents"][row].max() > 1
        for document in range(1, view["documents"][row].max() + 1):
            where = view["documents"][row] == document if packed else np.ones(length, bool)
            given = model(**inputs_of(model, view, row, where), output_hidden_states=True)
            put("layers", row, where, torch.stack(given.hidden_states)[:, 0])
            logits = given.prediction_logits if "prediction_logits" in given else given.logits
            put("logits", row, where, logits[0])
            if "seq_relationship_logits" in given and document == 1:
                put("nsp", row, None, given.seq_relationship_logits[0])
                put("pooled", row, None, model.bert.pooler(given.hidden_states[-1])[0])
    return out


def main() -> None:
    RECORDED.mkdir(exist_ok=True)
    with tempfile.TemporaryDirectory() as folder:
        for kind in published.KINDS:
            model, _ = open_model(published.write_directory(kind, Path(folder) / kind))
            np.savez_compressed(RECORDED / f"{kind}.npz", **compute(model, published.batch()))


if __name__ == "__main__":
    main()
