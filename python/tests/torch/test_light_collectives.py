"""The training of experiments/light_collectives_training for a few steps: it runs, and all libraries train equally."""

import importlib.util
import math
import shutil
import sys
from pathlib import Path

import pytest

FOLDER = Path(__file__).resolve().parents[3] / "experiments" / "light_collectives_training"


@pytest.fixture
def figure(monkeypatch):
    # The folder of the figures' shared code comes with it.
    monkeypatch.setattr(sys, "path", list(sys.path))
    spec = importlib.util.spec_from_file_location("light_collectives_run", FOLDER / "run.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_libraries_train_lenet_alike(figure):
    results = {name: figure.train(name, "lenet5", [8, 16], 2) for name in figure.libraries()}
    assert set(results) >= {"gloo", "netsum"}
    assert ("openmpi" in results) == bool(shutil.which("mpirun.openmpi"))
    for result in results.values():
        assert all(len(result[batch]["seconds"]) == 2 and min(result[batch]["seconds"]) > 0 for batch in (8, 16))
    for batch in (8, 16):
        losses = [result[batch]["loss"] for result in results.values()]
        assert all(math.isclose(loss, losses[0], rel_tol=1e-4) for loss in losses)


def test_resnet18_has_its_size():
    sys.path.insert(0, str(FOLDER))
    try:
        from train import resnet18
    finally:
        sys.path.remove(str(FOLDER))
    import torch

    model = resnet18()
    assert sum(p.numel() for p in model.parameters()) == 11_173_962
    assert model(torch.zeros(2, 3, 32, 32)).shape == (2, 10)
