"""The perception net and its made-up scenes.

The rule of a scene: one object, a disk at (x, y) of radius r that moves at speed v. The camera (16
x 16 pixels) sees the disk and noise; of 32 LiDAR points half lie on the disk, half anywhere; of 8
radar echoes six lie near it and tell its speed. Speed is in the radar alone, radius in camera and
LiDAR: a head that wants both needs the fusion.
"""

from collections.abc import Iterator
from typing import NamedTuple

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from labkit.case_studies.perception import CELLS, HEADS, WIDTH
from labkit.units import check_whole

POINTS = 32
ECHOES = 8
PIXELS = 16


class Scenes(NamedTuple):
    """A batch, on the rank's device."""

    camera: Tensor
    """[B, 1, 16, 16]"""
    lidar: Tensor
    """[B, 32, 3]: x, y, how much comes back"""
    radar: Tensor
    """[B, 8, 3]: x, y, speed"""
    box: Tensor
    """[B, 4]: x, y, radius, speed"""
    cells: Tensor
    """[B, 16]: 1.0 where the object covers the middle of a cell of 4 x 4"""

    def part(self, scenes: range) -> "Scenes":
        """Some of them."""
        chosen = slice(scenes.start, scenes.stop)
        return Scenes(*(each[chosen] for each in self))


def scenes(num: int, seed: int = 0) -> Scenes:
    """So many made-up scenes, always alike for a seed. Raises ValueError for fewer than one."""
    check_whole(1, 10**5, num=num)
    check_whole(0, 2**31 - 1, seed=seed)
    draw = np.random.default_rng(seed)
    place = draw.uniform(0.2, 0.8, (num, 2))
    radius = draw.uniform(0.1, 0.3, (num, 1))
    speed = draw.uniform(-1, 1, (num, 1))
    picture = _covered(place, radius, PIXELS) + 0.2 * draw.normal(size=(num, PIXELS**2))
    around = place[:, None] + radius[:, None] * draw.uniform(-0.7, 0.7, (num, POINTS // 2, 2))
    points = np.concatenate([around, draw.uniform(size=(num, POINTS // 2, 2))], axis=1)
    back = np.repeat([[1.0], [0.2]], POINTS // 2, axis=0)[None].repeat(num, axis=0)
    echoes = place[:, None] + 0.05 * draw.normal(size=(num, ECHOES, 2))
    told = speed[:, None] + 0.05 * draw.normal(size=(num, ECHOES, 1))
    echoes[:, 6:] = draw.uniform(size=(num, 2, 2))
    told[:, 6:] = draw.uniform(-1, 1, (num, 2, 1))
    made = (
        picture.reshape(num, 1, PIXELS, PIXELS),
        np.concatenate([points, back], axis=2),
        np.concatenate([echoes, told], axis=2),
        np.concatenate([place, radius, speed], axis=1),
        _covered(place, radius, 4),
    )
    device = torch.get_default_device()
    return Scenes(*(torch.tensor(each, dtype=torch.float32, device=device) for each in made))


def _covered(place: np.ndarray, radius: np.ndarray, side: int) -> np.ndarray:
    """1.0 where a cell's middle lies on the disk; [B, side x side]."""
    middles = (np.arange(side) + 0.5) / side
    y, x = np.meshgrid(middles, middles, indexing="ij")
    grid = np.stack([x.ravel(), y.ravel()], axis=1)
    apart = np.linalg.norm(grid[None] - place[:, None], axis=2)
    return (apart < radius).astype(float)


class Encoders(nn.Module):
    """Camera by convolutions, LiDAR point by point (PointNet), radar with its neighbours (a graph):
    [B, 16 + 1 + 1, 32]."""

    def __init__(self) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(1, 8, 3, stride=2, padding=1)
        self.conv2 = nn.Conv2d(8, 16, 3, stride=2, padding=1)
        self.conv3 = nn.Conv2d(16, 8, 1)
        self.camera = nn.Linear(8, WIDTH)
        self.points = nn.Linear(3, 128)
        self.lidar = nn.Linear(128, WIDTH)
        self.echo = nn.Linear(3, 64)
        self.neighbours = nn.Linear(3, 64)
        self.radar = nn.Linear(64, WIDTH)
        self.norm_camera = nn.LayerNorm(WIDTH)
        self.norm_lidar = nn.LayerNorm(WIDTH)
        self.norm_radar = nn.LayerNorm(WIDTH)

    def forward(self, seen: Scenes) -> Tensor:
        """Features of scenes."""
        picture = F.relu(self.conv2(F.relu(self.conv1(seen.camera))))
        camera = self.norm_camera(self.camera(self.conv3(picture).flatten(2).transpose(1, 2)))
        points = F.relu(self.points(seen.lidar)).amax(dim=1)
        lidar = self.norm_lidar(self.lidar(points))
        mean = seen.radar.mean(dim=1, keepdim=True)
        echoes = F.relu(self.echo(seen.radar) + self.neighbours(mean)).mean(dim=1)
        radar = self.norm_radar(self.radar(echoes))
        return torch.cat([camera, lidar[:, None], radar[:, None]], dim=1)


class Fusion(nn.Module):
    """Cross-attention: the camera's cells ask, all features answer; a rank has some of the heads
    (columns of q, k, v, rows of the output), and the ranks' outputs are to be added up."""

    def __init__(self, part: int = 0, parts: int = 1) -> None:
        super().__init__()
        self.heads = HEADS // parts
        size = WIDTH // parts
        mine = slice(part * size, (part + 1) * size)
        whole = [_drawn(WIDTH, WIDTH, seed) for seed in (11, 12, 13, 14)]
        self.qkv = nn.Parameter(torch.stack([each[:, mine] for each in whole[:3]]))
        self.out = nn.Parameter(whole[3][mine].clone())

    def forward(self, features: Tensor) -> Tensor:
        """[B, 18, 32] to this rank's share of [B, 16, 32]."""
        query = self._heads(features[:, :CELLS] @ self.qkv[0])
        key = self._heads(features @ self.qkv[1])
        value = self._heads(features @ self.qkv[2])
        scores = query @ key.transpose(2, 3) / (WIDTH / HEADS) ** 0.5
        mixed = scores.softmax(dim=3) @ value
        return mixed.transpose(1, 2).flatten(2) @ self.out

    def _heads(self, x: Tensor) -> Tensor:
        return x.unflatten(2, (self.heads, -1)).transpose(1, 2)


def _drawn(rows: int, columns: int, seed: int) -> Tensor:
    """Weights that every rank draws alike."""
    made = np.random.default_rng(seed).normal(size=(rows, columns)) / rows**0.5
    return torch.tensor(made, dtype=torch.float32, device=torch.get_default_device())


class Heads(nn.Module):
    """A box of each scene (x, y, radius, speed), and for each cell whether the object is there."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Linear(WIDTH, WIDTH)
        self.box = nn.Linear(WIDTH, 4)
        self.cell = nn.Linear(WIDTH, 1)

    def forward(self, fused: Tensor, seen: Scenes) -> Tensor:
        """The losses of the scenes, added up."""
        inner = F.relu(self.inner(fused))
        box = F.mse_loss(self.box(inner.mean(dim=1)), seen.box, reduction="sum")
        cells = self.cell(inner)[:, :, 0]
        covered = F.binary_cross_entropy_with_logits(cells, seen.cells, reduction="sum")
        return box + covered / CELLS


def kinds(encoders: nn.Module | None, heads: nn.Module | None) -> Iterator[tuple[str, list]]:
    """(kind of layer, its weights) of encoders and heads, in the order of ``WEIGHTS``; of a part
    that a rank has not, nothing."""
    by_kind: dict[str, list] = {"convolution": [], "linear": [], "norm": []}
    named = {nn.Conv2d: "convolution", nn.Linear: "linear", nn.LayerNorm: "norm"}
    for layer in encoders.children() if encoders else ():
        by_kind[named[type(layer)]] += layer.parameters()
    if encoders:
        yield from by_kind.items()
    if heads:
        yield "heads", list(heads.parameters())
