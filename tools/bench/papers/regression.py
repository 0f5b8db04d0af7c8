"""The loss of a regression with images drawn from groups of chunks: figures 3 and 4 of "Asynchronous I/O Strategy for
Large-Scale Deep Learning Applications", on scikit-learn's handwritten digits.

The paper trains networks that find the parameters of a simulation. Here a network finds where the ink of an image is,
and how far it spreads. A buffer of the paper is a chunk, and its processes, which have a buffer each, are a group.
"""

from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import torch
from torch import nn

from bench.harness.agreement import Storing
from bench.harness.figures import Scale
from bench.papers.digits import by_class, mixed
from bench.papers.lessons import Images, Subject, learn, mean_loss
from bench.papers.opportunistic_training import stored_digits

_HIDDEN = 64


def regression(folder: Path, scale: Scale, groups: Sequence[int]) -> Iterator[Storing]:
    """For each way to store the digits, by the chunks of a group: the mean squared errors by seed, then by epoch.
    0 shuffles fully.
    """
    for title, entries in (("stored class by class", by_class), ("stored in mixed order", mixed)):
        with stored_digits(folder / entries.__name__, entries) as stored:
            subject = _described(stored.subject)
            runs = {
                group: [
                    learn(subject, seed, scale.epochs, stored.planned(seed, group)).accuracies
                    for seed in range(scale.seeds)
                ]
                for group in groups
            }
            chunks = int(np.count_nonzero(stored.data.plan(folder=b"train").layout.counts))
        yield Storing(title, chunks, {}, runs)


def _described(subject: Subject) -> Subject:
    """With four numbers for each image instead of its class, of mean 0 and deviation 1."""
    moments = _moments(subject.train.images)
    mean, deviation = moments.mean(dim=0), moments.std(dim=0)

    def described(images: Images) -> Images:
        return replace(images, labels=(_moments(images.images) - mean) / deviation)

    return replace(
        subject,
        train=described(subject.train),
        validation=described(subject.validation),
        test=described(subject.test),
        network=_regressor,
        loss=nn.functional.mse_loss,
        score=mean_loss,
    )


def _moments(images: torch.Tensor) -> torch.Tensor:
    """The mean place of the ink and its variance, by row and by column. `images`: shape (n, 1, rows, columns); result:
    (n, 4).
    """
    found = []
    for axis in (3, 2):
        ink = images.sum(dim=(1, axis))
        ink = ink / ink.sum(dim=1, keepdim=True)
        places = torch.arange(ink.shape[1], dtype=ink.dtype)
        mean = (ink * places).sum(dim=1, keepdim=True)
        found += [mean, (ink * (places - mean) ** 2).sum(dim=1, keepdim=True)]
    return torch.cat(found, dim=1)


def _regressor(seed: int) -> nn.Module:
    torch.manual_seed(seed)
    return nn.Sequential(nn.Flatten(), nn.Linear(64, _HIDDEN), nn.ReLU(), nn.Linear(_HIDDEN, 4))
