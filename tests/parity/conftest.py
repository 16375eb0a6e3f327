"""PyTorch computes in one thread: two workers share two cores, and models this small gain nothing from more."""

import os
import tempfile

import torch

torch.set_num_threads(1)
# Where transformers copies modelling files that lie beside weights; it reads the name when it is imported.
os.environ["HF_MODULES_CACHE"] = tempfile.mkdtemp()
