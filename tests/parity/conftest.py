"""PyTorch computes in one thread: two workers share two cores."""

import os
import tempfile

import torch

torch.set_num_threads(1)
# Where transformers copies modelling files that lie beside weights; read when it is imported.
os.environ["HF_MODULES_CACHE"] = tempfile.mkdtemp()
