"""LeNet-5 and the handwritten digits that ship inside scikit-learn."""

import torch
from sklearn.datasets import load_digits
from torch import nn

SIDE = 32
"""LeNet-5 reads 32 x 32 pixels; the digits are 8 x 8 and are enlarged."""
TEST_SHARE = 0.2


def lenet5() -> nn.Module:
    """LeNet-5 (LeCun et al. 1998) with max pooling and ReLU: 61,706 parameters."""
    return nn.Sequential(
        nn.Conv2d(1, 6, 5),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Conv2d(6, 16, 5),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Flatten(),
        nn.Linear(400, 120),
        nn.ReLU(),
        nn.Linear(120, 84),
        nn.ReLU(),
        nn.Linear(84, 10),
    )


def digits(seed: int) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]:
    """(training images, labels, test images, labels); images are N x 1 x 32 x 32, from -1 to 1.

    The same seed gives the same split on every rank.
    """
    data = load_digits()
    small = torch.tensor(data.images, dtype=torch.float32).unsqueeze(1) / 8 - 1
    images = nn.functional.interpolate(small, (SIDE, SIDE), mode="bilinear", align_corners=False)
    labels = torch.tensor(data.target)
    order = torch.randperm(len(labels), generator=torch.Generator().manual_seed(seed))
    cut = int(len(labels) * (1 - TEST_SHARE))
    train, test = order[:cut], order[cut:]
    return images[train], labels[train], images[test], labels[test]
