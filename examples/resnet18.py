"""ResNet-18 on small images. A training that is killed continues from its checkpoint, with any number of ranks.

    python examples/resnet18.py images ./cifar                       # makes images, unless they are there
    dlcmd put -r ./cifar/ dl://cifar/
    dlcmd mount cifar /mnt/cifar
    torchrun --standalone --nproc-per-node 2 examples/resnet18.py train /mnt/cifar --into ./run
    torchrun --standalone --nproc-per-node 2 examples/resnet18.py train dl://cifar --into ./run     # without a mount
    python examples/resnet18.py plot ./run

The folder of a run has the checkpoint, `steps-RANK.jsonl` (what each rank read and how long it waited), and
`epochs.jsonl`. After a kill, the same command continues from the checkpoint, also with another number of ranks. Steps
after the checkpoint are repeated. Needs `pip install '.[torch]'`, and matplotlib for the plots.
"""

import json
import os
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, Protocol

import click
import numpy as np
import torch
import torch.distributed
from PIL import Image
from torch import Tensor, nn
from torch.nn.functional import cross_entropy, relu
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, Dataset

from dieselfs.torch import ChunkShuffleBatchSampler, FolderDataset

CLASSES = ("airplane", "automobile", "bird", "cat", "deer", "dog", "frog", "horse", "ship", "truck")
PIXELS = 32
CHECKPOINT, STEPS, EPOCHS = "checkpoint.pt", "steps-{}.jsonl", "epochs.jsonl"


def pixels_of(image: Image.Image) -> Tensor:
    """Shape (3, 32, 32), float32, from -1 to 1."""
    return torch.from_numpy(np.array(image, np.float32)).permute(2, 0, 1) / 127.5 - 1


class Numbered(Dataset[tuple[int, Tensor, int]]):
    """Items of a dataset, each with its index, so that the training loop can note what it has read."""

    def __init__(self, dataset: FolderDataset) -> None:
        self.dataset = dataset

    def __len__(self) -> int:
        return len(self.dataset)

    def __getitems__(self, indices: Sequence[int]) -> list[tuple[int, Tensor, int]]:
        items = self.dataset.__getitems__(indices)
        return [(index, image, label) for index, (image, label) in zip(indices, items, strict=True)]


class Block(nn.Module):
    """Two convolutions, and a short cut around them."""

    def __init__(self, channels_in: int, channels: int, stride: int) -> None:
        super().__init__()
        self.path = nn.Sequential(
            nn.Conv2d(channels_in, channels, 3, stride, 1, bias=False),
            nn.BatchNorm2d(channels),
            nn.ReLU(),
            nn.Conv2d(channels, channels, 3, 1, 1, bias=False),
            nn.BatchNorm2d(channels),
        )
        self.short_cut: nn.Module = nn.Identity()
        if stride != 1 or channels_in != channels:
            convolution = nn.Conv2d(channels_in, channels, 1, stride, bias=False)
            self.short_cut = nn.Sequential(convolution, nn.BatchNorm2d(channels))

    def forward(self, images: Tensor) -> Tensor:
        return relu(self.path(images) + self.short_cut(images))


def resnet18(width: int) -> nn.Module:
    """For images of 32 x 32 pixels: no pooling at first, as for CIFAR-10. The original network has `width` 64."""
    layers: list[nn.Module] = [nn.Conv2d(3, width, 3, 1, 1, bias=False), nn.BatchNorm2d(width), nn.ReLU()]
    channels = width
    for stage in range(4):
        for block in range(2):
            layers.append(Block(channels, width << stage, 2 if stage and not block else 1))
            channels = width << stage
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(channels, len(CLASSES)))


@click.group()
def main() -> None:
    """Make images, train, draw plots."""


@main.command()
@click.argument("folder", type=click.Path(path_type=Path))
@click.option(
    "--train", type=click.IntRange(1), default=50_000, show_default=True, help="Images to train with."
)
@click.option(
    "--val", type=click.IntRange(1), default=10_000, show_default=True, help="Images to validate with."
)
def images(folder: Path, train: int, val: int) -> None:
    """Write FOLDER/train/CLASS/NUMBER.png and FOLDER/val/CLASS/NUMBER.png, unless FOLDER is there.

    Each class is a wave of its own direction and colour, under noise: as large as CIFAR-10, and something to learn.
    """
    if folder.exists():
        print(f"{folder} is there")
        return
    chance = np.random.default_rng(1)
    across, down = np.meshgrid(np.arange(PIXELS), np.arange(PIXELS))
    for part, count in (("train", train), ("val", val)):
        for name in CLASSES:
            (folder / part / name).mkdir(parents=True)
        for number in range(count):
            label = number % len(CLASSES)
            angle, phase = np.pi * label / len(CLASSES), chance.uniform(0, 2 * np.pi)
            wave = np.sin((across * np.cos(angle) + down * np.sin(angle)) * 0.7 + phase)
            colour = 0.6 + 0.4 * np.cos(2 * np.pi * (label / len(CLASSES) + np.arange(3) / 3))
            noise = chance.normal(0, 60, (PIXELS, PIXELS, 3))
            grey = 128 + 40 * wave[..., None] * colour + noise
            picture = Image.fromarray(grey.clip(0, 255).astype(np.uint8))
            picture.save(folder / part / CLASSES[label] / f"{number:06}.png")
    print(f"{train + val} images in {folder}")


class Stateful(Protocol):
    """A part of the training that a checkpoint keeps."""

    def state_dict(self) -> dict[str, Any]: ...
    def load_state_dict(self, state: dict[str, Any], /) -> object: ...


class Run:
    """The folder of a run: the checkpoint of its parts, and what happened."""

    def __init__(self, folder: Path, rank: int, parts: dict[str, Stateful]) -> None:
        self._folder, self._rank, self._parts = folder, rank, parts
        folder.mkdir(parents=True, exist_ok=True)

    def note(self, name: str, fields: dict[str, Any]) -> None:
        """Append a line with one system call, so that a kill leaves whole lines."""
        with open(self._folder / name.format(self._rank), "ab", buffering=0) as file:
            file.write(json.dumps(fields).encode() + b"\n")

    def save(self) -> None:
        """Rank 0 replaces the checkpoint at once, so there is always a whole one."""
        if self._rank == 0:
            state = {name: part.state_dict() for name, part in self._parts.items()}
            torch.save(state, self._folder / (CHECKPOINT + ".new"))
            os.replace(self._folder / (CHECKPOINT + ".new"), self._folder / CHECKPOINT)

    def restore(self) -> None:
        """Bring the parts to the state of the checkpoint, if there is one."""
        if (self._folder / CHECKPOINT).exists():
            state = torch.load(self._folder / CHECKPOINT, weights_only=True)
            for name, part in self._parts.items():
                part.load_state_dict(state[name])


@main.command()
@click.argument("root")
@click.option(
    "--into", "folder", type=click.Path(path_type=Path), required=True, help="Its checkpoint and notes."
)
@click.option("--epochs", type=click.IntRange(1), default=10, show_default=True)
@click.option(
    "--batch", type=click.IntRange(1), default=128, show_default=True, help="Images a step, of all ranks."
)
@click.option(
    "--width", type=click.IntRange(1), default=64, show_default=True, help="Channels of the first layer."
)
@click.option(
    "--group-chunks", type=click.IntRange(0), default=100, show_default=True, help="Chunks that are mixed."
)
@click.option(
    "--workers", type=click.IntRange(0), default=2, show_default=True, help="Processes that read, a rank."
)
@click.option("--checkpoint-every", type=click.IntRange(1), default=50, show_default=True, help="Steps.")
@click.option("--seed", type=int, default=1, show_default=True)
def train(
    root: str,
    folder: Path,
    epochs: int,
    batch: int,
    width: int,
    group_chunks: int,
    workers: int,
    checkpoint_every: int,
    seed: int,
) -> None:
    """Train on ROOT/train and ROOT/val: a mount, dl://DATASET, or a plain local folder."""
    device = (
        torch.device("cuda", int(os.environ.get("LOCAL_RANK", "0"))) if torch.cuda.is_available() else "cpu"
    )
    if "RANK" in os.environ:  # under torchrun
        torch.distributed.init_process_group("nccl" if torch.cuda.is_available() else "gloo")
    torch.manual_seed(seed)  # so that all ranks begin with the same weights
    with (
        FolderDataset(f"{root}/train", pixels_of) as dataset,
        FolderDataset(f"{root}/val", pixels_of) as others,
    ):
        sampler = ChunkShuffleBatchSampler(dataset, batch, seed=seed, group_chunks=group_chunks)
        loader = DataLoader(Numbered(dataset), batch_sampler=sampler, num_workers=workers)
        model = resnet18(width).to(device)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9, weight_decay=5e-4)
        run = Run(folder, sampler.rank, {"model": model, "optimizer": optimizer, "sampler": sampler})
        run.restore()
        trained = DistributedDataParallel(model) if "RANK" in os.environ else model
        for epoch in range(sampler.epoch, epochs):
            sampler.set_epoch(epoch)
            trained.train()
            for step, (waited_s, (indices, pictures, labels)) in enumerate(
                timed(sampler.consumed(loader)), 1
            ):
                began_s = time.monotonic()
                optimizer.zero_grad()
                loss = cross_entropy(trained(pictures.to(device)), labels.to(device))
                loss.backward()
                optimizer.step()
                told = {
                    "epoch": epoch,
                    "end": sampler.position,
                    "loss": round(loss.item(), 4),
                    "waited_s": waited_s,
                    "computed_s": time.monotonic() - began_s,
                    "samples": [dataset.path(index) for index in indices.tolist()],
                }
                run.note(STEPS, told)
                if step % checkpoint_every == 0:
                    run.save()
            run.save()
            if sampler.rank == 0:
                share = accuracy(model, others, batch, device)
                run.note(EPOCHS, {"epoch": epoch, "accuracy": share, "hit_ratio": hit_ratio(root)})
                print(f"epoch {epoch}: loss {loss.item():.3f}, accuracy {share:.1%}", flush=True)
    if torch.distributed.is_initialized():
        torch.distributed.destroy_process_group()


def timed(batches: Iterator[Any]) -> Iterator[tuple[float, Any]]:
    """Each batch with the seconds that the training waited for it."""
    while True:
        began_s = time.monotonic()
        try:
            batch = next(batches)
        except StopIteration:
            return
        yield time.monotonic() - began_s, batch


@torch.no_grad()
def accuracy(model: nn.Module, dataset: FolderDataset, batch: int, device: Any) -> float:
    """The share of images that are recognised."""
    model.eval()
    right = 0
    for pictures, labels in DataLoader(dataset, batch_size=batch):
        right += int((model(pictures.to(device)).argmax(1) == labels.to(device)).sum())
    return right / len(dataset)


def hit_ratio(root: str) -> float | None:
    """The share of planned files that a mount had in memory before they were read; None without a mount."""
    place = Path(root, ".dieselfs/stats")
    if not place.exists():
        return None
    found = json.loads(place.read_text())["page_cache"]
    return round(int(found["hits"]) / max(int(found["planned_files"]), 1), 4)


@main.command()
@click.argument("run", type=click.Path(path_type=Path, exists=True, file_okay=False))
@click.option("-o", "output", type=click.Path(path_type=Path), help="An image.  [RUN/plots.png]")
def plot(run: Path, output: Path | None) -> None:
    """Draw accuracy and hit ratio over epochs, and how long each step waited for its images and computed."""
    from matplotlib.figure import Figure

    steps = [json.loads(line) for line in (run / STEPS.format(0)).read_text().splitlines()]
    epochs = [json.loads(line) for line in (run / EPOCHS).read_text().splitlines()]
    figure = Figure((12, 3.5), layout="constrained")
    learned, waiting, hits = figure.subplots(1, 3)
    learned.plot([told["epoch"] for told in epochs], [told["accuracy"] for told in epochs], marker=".")
    learned.set(title="Accuracy", xlabel="epoch", ylim=(0, 1))
    waiting.plot([told["computed_s"] * 1e3 for told in steps], label="computing")
    waiting.plot([told["waited_s"] * 1e3 for told in steps], label="waiting for images")
    waiting.set(title="Time of a step, rank 0", xlabel="step", ylabel="ms", yscale="log")
    waiting.legend()
    hits.plot(
        [told["epoch"] for told in epochs], [told["hit_ratio"] or np.nan for told in epochs], marker="."
    )
    hits.set(title="Files that were in memory in time", xlabel="epoch", ylim=(0, 1.02))
    figure.savefig(output or run / "plots.png", dpi=120)


if __name__ == "__main__":
    main()
