"""Seeded weights that behave like trained ones.

Owns: initialisation and the calibration of BatchNorm statistics.
Must not know: any particular network; of the layers, only those that networks share.

Two things matter for a benchmark. BatchNorm must have statistics and scales that are not 0 and 1, or folding it into
a convolution would fold nothing; and activations must keep their scale from the first layer to the last, because
denormal or overflowing floats run at another speed than a trained network's.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from graphs.greedy import Greedy
from graphs.recurrent import LstmStep, SequenceLstm


def seed_convolutional(model: nn.Module, example: Tensor, seed: int) -> None:
    """Give a convolutional network seeded weights and BatchNorm statistics measured on seeded noise; ends in eval.

    example: float input with several rows; its values are replaced by noise of unit variance.
    """
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for module in model.modules():
            if isinstance(module, nn.Conv2d):
                fan_in = module.weight[0].numel()
                module.weight.normal_(0.0, (2.0 / fan_in) ** 0.5, generator=generator)
                if module.bias is not None:
                    module.bias.normal_(0.0, 0.1, generator=generator)
            elif isinstance(module, nn.BatchNorm2d):
                module.weight.uniform_(0.6, 1.4, generator=generator)
                module.bias.normal_(0.0, 0.2, generator=generator)
            elif isinstance(module, nn.Linear):
                module.weight.normal_(0.0, module.in_features**-0.5, generator=generator)
                module.bias.normal_(0.0, 0.1, generator=generator)
        _calibrate(model, torch.randn(example.shape, generator=generator))
    model.eval()


def _calibrate(model: nn.Module, noise: Tensor) -> None:
    """Set the running statistics of every BatchNorm to those the noise has there."""
    norms = [module for module in model.modules() if isinstance(module, nn.BatchNorm2d)]
    for norm in norms:
        norm.momentum = 1.0
    model.train()
    model(noise)
    for norm in norms:
        norm.momentum = 0.1


def seed_transformer(model: nn.Module, seed: int) -> None:
    """Give a transformer seeded weights as in BERT's paper (normal, 0.02), with biases and LayerNorms off 0 and 1."""
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for module in model.modules():
            if isinstance(module, nn.Linear | nn.Embedding):
                module.weight.normal_(0.0, 0.02, generator=generator)
            if isinstance(module, nn.Linear):
                module.bias.normal_(0.0, 0.02, generator=generator)
            elif isinstance(module, nn.LayerNorm):
                module.weight.normal_(1.0, 0.1, generator=generator)
                module.bias.normal_(0.0, 0.05, generator=generator)
    model.eval()


def seed_recurrent(model: nn.Module, seed: int) -> None:
    """Give a recurrent network seeded weights: unit gain from inputs, states that are kept for some steps; eval."""
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for module in model.modules():
            if isinstance(module, SequenceLstm):
                module.w.normal_(0.0, module.w.shape[2] ** -0.5, generator=generator)
                module.r.normal_(0.0, module.hidden**-0.5, generator=generator)
                module.b.zero_()
                module.b[:, 2 * module.hidden : 3 * module.hidden] = 1.0  # forget gates open
            elif isinstance(module, nn.Embedding):
                module.weight.normal_(0.0, 1.0, generator=generator)
            elif isinstance(module, nn.Linear):
                module.weight.normal_(0.0, module.in_features**-0.5, generator=generator)
                if module.bias is not None:
                    module.bias.normal_(0.0, 0.1, generator=generator)
        for module in model.modules():
            if isinstance(module, LstmStep):
                hidden = module.gates.out_features // 4
                module.gates.bias[2 * hidden : 3 * hidden] = 1.0
            elif isinstance(module, Greedy):
                module.forbid()
    model.eval()


def seed_attention(model: nn.Module, seed: int) -> None:
    """Give the translating Transformer seeded weights of unit gain; embeddings of variance 1 / width; eval."""
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for module in model.modules():
            if isinstance(module, nn.Linear):
                module.weight.normal_(0.0, module.in_features**-0.5, generator=generator)
                module.bias.normal_(0.0, 0.05, generator=generator)
            elif isinstance(module, nn.LayerNorm):
                module.weight.normal_(1.0, 0.1, generator=generator)
                module.bias.normal_(0.0, 0.05, generator=generator)
        for module in model.modules():
            if isinstance(module, Greedy):
                module.forbid()
    model.eval()
