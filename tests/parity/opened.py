"""What transformers computes from an exported or a published directory.

    python -m tests.parity.opened

records it in tests/interop/recorded, for tests without torch.
"""

import json
import tempfile
from pathlib import Path

import numpy as np
import torch
import transformers

from tests.interop import published

RECORDED = Path(__file__).parent.parent / "interop" / "recorded"


def open_model(directory: Path, auto: str = ""):
    """The model in evaluation, of its config's class or an Auto class; no weight is missing or
    unexpected."""
    config = json.loads((directory / "config.json").read_text())
    name = auto or config["architectures"][0]
    if name.startswith("Bertlab"):
        name = f"AutoModel{name.removeprefix('Bertlab').removeprefix('Model')}"
    options = {} if config["model_type"] == "bertlab" else {"attn_implementation": "eager"}
    model, info = getattr(transformers, name).from_pretrained(
        directory, trust_remote_code=True, output_loading_info=True, dtype=torch.float32, **options
    )
    assert not any(info.values()), info
    return model.eval()


def tensors(view, *names) -> dict[str, torch.Tensor]:
    """Of (their name, ours)."""
    return {name: torch.tensor(view[ours], dtype=torch.long) for name, ours in names}


def padded(view, segments: bool = True) -> dict[str, torch.Tensor]:
    """Arguments for padded rows of one document."""
    names = [("input_ids", "tokens")] + [("token_type_ids", "segments")] * segments
    return tensors(view, *names) | {"attention_mask": torch.tensor(view["documents"] > 0).long()}


def packed(view) -> dict[str, torch.Tensor]:
    """For packed rows: which position sees which, and positions that begin anew."""
    documents = view["documents"]
    same = documents[:, :, None] == documents[:, None, :]
    positions = tensors(view, ("position_ids", "positions"))
    return padded(view) | positions | {"attention_mask": torch.tensor(same)}


def outputs(model, arguments) -> dict[str, np.ndarray]:
    """`layers` and `logits` as of `published.compute`."""
    with torch.no_grad():
        found = model(**arguments, output_hidden_states=True)
    logits = found.prediction_logits if "prediction_logits" in found else found.logits
    layers = np.stack([state.numpy() for state in found.hidden_states])
    return {"layers": layers, "logits": logits.numpy()}


def compute(model, view) -> dict[str, np.ndarray]:
    """What `published.compute` gives, each document of a packed row by itself."""
    (count, length), found = view["tokens"].shape, {}
    has_segments = model.config.model_type == "bert"

    def put(name, row, where, value):
        shape = (*value.shape[:-3], count, length, value.shape[-1])
        found.setdefault(name, np.zeros(shape, np.float32))[..., row, where, :] = value[
            ..., 0, :, :
        ]

    for row in range(count):
        is_packed = view["documents"][row].max() > 1
        for document in range(1, view["documents"][row].max() + 1):
            where = view["documents"][row] == document if is_packed else np.ones(length, bool)
            one = {name: array[row : row + 1, where] for name, array in view.items()}
            for name, value in outputs(model, padded(one, has_segments)).items():
                put(name, row, where, value)
    if hasattr(model, "cls") and hasattr(model.cls, "seq_relationship"):
        first = [np.flatnonzero(row == 1)[-1] + 1 for row in view["documents"]]
        for row, length in enumerate(first):
            single = view["documents"][row].max() == 1
            one = {
                k: array[row : row + 1, : None if single else length] for k, array in view.items()
            }
            with torch.no_grad():
                states = model.bert(**padded(one))
                pairs = model.cls.seq_relationship(states.pooler_output)
            for name, value in (("pooled", states.pooler_output), ("nsp", pairs)):
                size = (count, value.shape[-1])
                found.setdefault(name, np.zeros(size, np.float32))[row] = value[0]
    return found


def main() -> None:
    """Records every kind."""
    with tempfile.TemporaryDirectory() as folder:
        for kind in (*published.CORE, *published.RARE):
            model = open_model(published.write_directory(kind, Path(folder) / kind))
            np.savez_compressed(RECORDED / f"{kind}.npz", **compute(model, published.rows()))


if __name__ == "__main__":
    main()
