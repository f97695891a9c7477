"""Replaces torchvision in Horovod's examples: digits that need no download, and a network if torchvision is missing."""

import importlib
import sys
import types

import torch


def stand_in() -> None:
    """Let `from torchvision import datasets, transforms, models` work, with scikit-learn's digits as MNIST."""
    vision = types.ModuleType("torchvision")
    try:
        vision.models = importlib.import_module("torchvision").models
    except ImportError:
        vision.models = types.SimpleNamespace(resnet18=_small_network)
    vision.datasets = types.SimpleNamespace(MNIST=_Digits)
    nothing = types.SimpleNamespace
    vision.transforms = types.SimpleNamespace(
        Compose=lambda steps: None, ToTensor=lambda: nothing(), Normalize=lambda mean, deviation: nothing()
    )
    sys.modules["torchvision"] = vision


class _Digits(torch.utils.data.Dataset):
    """1,797 images of 8 x 8, enlarged to MNIST's 28 x 28; a fifth of them for the test."""

    def __init__(self, _root, train: bool = True, **_) -> None:
        from sklearn.datasets import load_digits

        digits = load_digits()
        images = torch.tensor(digits.images, dtype=torch.float32).unsqueeze(1) / 16
        images = torch.nn.functional.interpolate(images, size=(28, 28), mode="bilinear")
        mine = slice(None, 1437) if train else slice(1437, None)
        self._images = (images[mine] - 0.1307) / 0.3081
        self._labels = [int(label) for label in digits.target[mine]]

    def __len__(self) -> int:
        return len(self._labels)

    def __getitem__(self, index: int):
        return self._images[index], self._labels[index]


def _small_network() -> torch.nn.Module:
    layers = [torch.nn.Conv2d(3, 8, 7, stride=8), torch.nn.BatchNorm2d(8), torch.nn.ReLU()]
    return torch.nn.Sequential(*layers, torch.nn.AdaptiveAvgPool2d(4), torch.nn.Flatten(), torch.nn.Linear(128, 1000))
