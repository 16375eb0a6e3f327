"""PyTorch computes in one thread: two workers share two cores, and models this small gain nothing from more."""

import torch

torch.set_num_threads(1)
