"""A task as a fork may write it: no tokens, one dimension that varies, two outputs, a metric that is to be small."""

import torch
import torch.nn.functional as F
from lightning.pytorch import LightningDataModule
from torch import Tensor, nn
from torch.distributed.fsdp import FSDPModule, fully_shard
from torch.utils.data import DataLoader, Dataset

from project.tasks import Task
from project.tasks.export_spec import ExportSpec


class TwoHeads(nn.Module):
    def __init__(self, size: int) -> None:
        super().__init__()
        self.hidden = nn.Linear(size, 16)
        self.dropout = nn.Dropout(0.5)
        self.mean, self.scale = nn.Linear(16, 1), nn.Linear(16, 1)
        self.unused = nn.Linear(16, 1)  # in training alone

    def forward(self, features: Tensor) -> tuple[Tensor, Tensor]:
        hidden = self.dropout(self.hidden(features).relu())
        return self.mean(hidden).squeeze(-1), F.softplus(self.scale(hidden).squeeze(-1))


class Regression(Task):
    def __init__(self, size: int = 5) -> None:
        super().__init__()
        self.save_config()
        self.size = size
        self.network = TwoHeads(size)

    def export_spec(self) -> ExportSpec:
        return ExportSpec({"features": torch.randn(3, self.size)}, {"features": {0: "batch"}}, ["mean", "scale"])

    def step(self, batch: dict[str, Tensor]) -> Tensor:
        mean, scale = self.network(batch["features"])
        return F.gaussian_nll_loss(mean, batch["target"], scale)

    def training_step(self, batch: dict[str, Tensor], batch_idx: int) -> Tensor:
        return self.step(batch)

    def validation_step(self, batch: dict[str, Tensor], batch_idx: int) -> None:
        self.log("val/nll", self.step(batch), batch_size=len(batch["target"]))

    def test_step(self, batch: dict[str, Tensor], batch_idx: int) -> None:
        self.log("test/nll", self.step(batch), batch_size=len(batch["target"]))


class Silent(Regression):
    """Does not say how it is exported."""

    export_spec = Task.export_spec


class Numbers(Dataset[dict[str, Tensor]]):
    def __init__(self) -> None:
        self.features = torch.randn(64, 5, generator=torch.Generator().manual_seed(0))

    def __len__(self) -> int:
        return len(self.features)

    def __getitem__(self, i: int) -> dict[str, Tensor]:
        return {"features": self.features[i], "target": self.features[i].sum()}


class Data(LightningDataModule):
    def train_dataloader(self) -> DataLoader[dict[str, Tensor]]:
        return DataLoader(Numbers(), batch_size=16)

    val_dataloader = test_dataloader = train_dataloader


class Compiled(Regression):
    """Wraps its network, and a part of it in place."""

    def __init__(self, size: int = 5) -> None:
        super().__init__(size)
        self.network.hidden.compile(backend="eager")
        self.network = torch.compile(self.network, backend="eager")


class Sharded(Regression):
    """Splits its weights over processes."""

    def __init__(self, size: int = 5) -> None:
        super().__init__(size)
        self.network.unused.requires_grad_(False)  # Lightning looks for the optimizer's state of whatever is trained

    def configure_model(self) -> None:
        if self.device_mesh is not None and not isinstance(self.network, FSDPModule):
            fully_shard(self.network, mesh=self.device_mesh["data_parallel"])
