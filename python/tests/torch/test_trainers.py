"""Libraries that train with torch, on netsum: Lightning and Accelerate. `make setup-frameworks` installs them."""

import os

import pytest
import torch
import torch.distributed as dist
from torch import nn

from netsum.fabric.reservations import free_port


def _model() -> nn.Module:
    torch.manual_seed(1)
    return nn.Linear(8, 1)


def _data() -> torch.utils.data.TensorDataset:
    generator = torch.Generator().manual_seed(2)
    x = torch.randn(64, 8, generator=generator)
    return torch.utils.data.TensorDataset(x, x.sum(1, keepdim=True))


def _is_alike_everywhere(model: nn.Module, size: int) -> None:
    mine = torch.cat([parameter.detach().flatten() for parameter in model.parameters()])
    all_of_them = [torch.empty_like(mine) for _ in range(size)]
    dist.all_gather(all_of_them, mine)
    assert all(torch.equal(each, mine) for each in all_of_them)
    assert not torch.equal(mine[:8], _model().weight.detach().flatten())


def test_lightning_trains(ranks, tmp_path):
    lightning = pytest.importorskip("lightning", reason="Lightning is missing: make setup-frameworks")
    from lightning.pytorch.plugins.environments import LightningEnvironment
    from lightning.pytorch.strategies import DDPStrategy

    class Model(lightning.LightningModule):
        def __init__(self) -> None:
            super().__init__()
            self.inner = _model()

        def training_step(self, pair, _):
            x, wanted = pair
            loss = (self.inner(x) - wanted).pow(2).mean()
            self.log("loss", loss, sync_dist=True, logger=False)
            return loss

        def configure_optimizers(self):
            return torch.optim.SGD(self.parameters(), lr=0.1)

    def body(rank, size):
        # Lightning initializes the world itself, from a launcher's variables.
        dist.destroy_process_group()
        os.environ.update(LOCAL_RANK=str(rank), NODE_RANK="0", WORLD_SIZE=str(size), MASTER_ADDR="127.0.0.1")
        strategy = DDPStrategy(process_group_backend="netsum", cluster_environment=LightningEnvironment())
        trainer = lightning.Trainer(
            accelerator="cpu",
            devices=size,
            strategy=strategy,
            max_epochs=2,
            enable_progress_bar=False,
            enable_model_summary=False,
            enable_checkpointing=False,
            logger=False,
            default_root_dir=tmp_path,
        )
        model = Model()
        trainer.fit(model, torch.utils.data.DataLoader(_data(), batch_size=8))
        assert "netsum" in dist.get_backend_config() and trainer.world_size == size
        assert trainer.global_step == 2 * 64 // 8 // size
        _is_alike_everywhere(model, size)

    ranks(body, MASTER_PORT=str(free_port()))


def test_accelerate_trains_in_a_world_that_was_made_before(ranks):
    accelerate = pytest.importorskip("accelerate", reason="Accelerate is missing: make setup-frameworks")

    def body(rank, size):
        # Accelerate supports only the backends it knows: InitProcessGroupKwargs(backend="netsum") is rejected.
        os.environ.update(LOCAL_RANK=str(rank), WORLD_SIZE=str(size), LOCAL_WORLD_SIZE=str(size))
        os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT="1", ACCELERATE_USE_CPU="true")
        accelerator = accelerate.Accelerator(cpu=True)
        model = _model()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        loader = torch.utils.data.DataLoader(_data(), batch_size=8)
        model, optimizer, loader = accelerator.prepare(model, optimizer, loader)
        assert accelerator.num_processes == size and isinstance(model, nn.parallel.DistributedDataParallel)
        for x, wanted in loader:
            optimizer.zero_grad()
            accelerator.backward((model(x) - wanted).pow(2).mean())
            optimizer.step()
        gathered = accelerator.gather(torch.tensor([rank]))
        assert gathered.tolist() == list(range(size))
        assert type(dist.group.WORLD).__name__ == "NetsumProcessGroup"
        _is_alike_everywhere(model, size)

    ranks(body)


def test_accelerate_refuses_to_make_the_world(ranks):
    accelerate = pytest.importorskip("accelerate", reason="Accelerate is missing: make setup-frameworks")

    def body(rank, size):
        dist.destroy_process_group()
        os.environ.update(LOCAL_RANK=str(rank), WORLD_SIZE=str(size), MASTER_ADDR="127.0.0.1", MASTER_PORT="1")
        with pytest.raises(ValueError, match="not available"):
            accelerate.Accelerator(cpu=True, kwargs_handlers=[accelerate.InitProcessGroupKwargs(backend="netsum")])
        os._exit(0)

    ranks(body)
