"""Damaged TensorFlow checkpoints and PyTorch files, as `tests/faults/test_readers.py` does with what needs no such library."""

import zipfile

import numpy as np
import pytest
import tensorflow
import torch

from bertlab.config import base_config
from bertlab.errors import UserError
from bertlab.interop import fastai, google
from bertlab.interop.base import write
from bertlab.models.presets import body_shapes
from tests.faults.damage import try_damages
from tests.faults.readers import Reader, moved
from tests.interop.test_google import directory, variables


def write_checkpoint(folder):
    given = variables()
    names = sorted(given)
    tensors = [tensorflow.constant(given[name]) for name in names]
    prefix = str(directory(folder) / "bert_model.ckpt")
    tensorflow.raw_ops.SaveV2(prefix=prefix, tensor_names=names, shape_and_slices=[""] * len(names), tensors=tensors)


def write_fastai(folder):
    """An AWD-LSTM of six words; its shapes are those that the reader itself expects."""
    words = ["xxunk", "xxpad", "xxbos", "xxeos", "a", "b"]
    (folder / "itos.txt").write_text("\n".join(words) + "\n")
    rng, config = np.random.default_rng(0), base_config()
    config.model.update(family="awd_lstm", size="tiny", width=4, hidden=6, layers=2)
    shapes = body_shapes(config, len(words))
    params = {"body": _drawn(shapes["body"], rng)}
    tensors = fastai.fastai_names(write(fastai.table(2), params))
    torch.save({name: torch.from_numpy(array.copy()) for name, array in tensors.items()}, folder / "lm_fwd.pth")


def _drawn(shapes, rng):
    if hasattr(shapes, "items"):
        return {name: _drawn(of, rng) for name, of in shapes.items()}
    return np.float32(rng.standard_normal(shapes.shape))


READERS = [
    Reader(
        "TensorFlow",
        moved(write_checkpoint),
        google.load,
        0.5,
        ("bert_model.ckpt.index", "bert_model.ckpt.data-00000-of-00001"),
    ),
    Reader("fastai", write_fastai, fastai.load, 0.5, ("lm_fwd.pth", "itos.txt")),
]


@pytest.mark.parametrize("reader", READERS, ids=lambda reader: reader.name)
def test_a_damaged_file_gives_a_result_or_a_sentence(reader, tmp_path):
    folder = tmp_path / "files"
    folder.mkdir()
    tried, wrong = try_damages(reader, folder)
    print(f"{reader.name}: {tried} damaged files")
    assert not wrong, "\n".join(f"{what}: {said}" for said, what in wrong.items())


def test_an_archive_that_unpacks_to_more_than_itself_is_refused(tmp_path):
    """torch.load would unpack it: 67 MB of 260 kB here."""
    write_fastai(tmp_path)
    path = tmp_path / "lm_fwd.pth"
    torch.save({"a": torch.zeros(1 << 24)}, path)
    with zipfile.ZipFile(path) as archive:
        contents = {name: archive.read(name) for name in archive.namelist()}
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, content in contents.items():
            archive.writestr(name, content)
    assert torch.load(path, weights_only=True)["a"].shape == (1 << 24,)
    with pytest.raises(UserError, match=r"lm_fwd\.pth.*it unpacks to more than its own size"):
        fastai.load(path)
