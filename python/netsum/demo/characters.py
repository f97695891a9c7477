"""A small GPT on characters, sharded over the ranks by FSDP2.

The text is the manual that ships with Python (`help("for")` shows parts of it): prose and code, half a megabyte.
"""

from collections.abc import Iterator
from pydoc_data.topics import topics
from typing import cast

import torch
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor

from netsum.demo.task import Task
from netsum.torch.fsdp import overlap

CONTEXT = 64
WIDTH = 64
HEADS = 4
LAYERS = 4
SEQUENCES = 8
"""Per rank and step."""
STEPS_PER_EPOCH = 25
TEST_SHARE = 0.05
TEST_SEQUENCES = 64


class Layer(nn.Module):
    """Attention and a feed-forward part, each after a norm and added to its input (Radford et al. 2019)."""

    def __init__(self) -> None:
        super().__init__()
        self.attention_norm, self.forward_norm = nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH)
        self.attention = nn.Linear(WIDTH, 3 * WIDTH)
        self.joined = nn.Linear(WIDTH, WIDTH)
        self.wide, self.narrow = nn.Linear(WIDTH, 4 * WIDTH), nn.Linear(4 * WIDTH, WIDTH)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        batch, length, _ = x.shape
        heads = self.attention(self.attention_norm(x)).view(batch, length, 3, HEADS, -1).permute(2, 0, 3, 1, 4)
        seen = nn.functional.scaled_dot_product_attention(*heads, is_causal=True)
        x = x + self.joined(seen.transpose(1, 2).reshape(batch, length, WIDTH))
        found: torch.Tensor = x + self.narrow(nn.functional.gelu(self.wide(self.forward_norm(x))))
        return found


class Gpt(nn.Module):
    """Logits of the next character, for each place of a text."""

    def __init__(self, characters: int) -> None:
        super().__init__()
        self.character, self.place = nn.Embedding(characters, WIDTH), nn.Embedding(CONTEXT, WIDTH)
        self.layers = nn.ModuleList(Layer() for _ in range(LAYERS))
        self.norm = nn.LayerNorm(WIDTH)
        self.next = nn.Linear(WIDTH, characters)

    def forward(self, text: torch.Tensor) -> torch.Tensor:
        x = self.character(text) + self.place.weight[: text.shape[1]]
        for layer in self.layers:
            x = layer(x)
        found: torch.Tensor = self.next(self.norm(x))
        return found


class Characters(Task):
    """The GPT, each layer sharded on its own; parameters of a layer are gathered while the one before computes."""

    batch = SEQUENCES * CONTEXT
    steps_per_epoch = STEPS_PER_EPOCH

    def __init__(self, seed: int, rank: int, size: int) -> None:
        self._seed, self._rank, self._size = seed, rank, size
        text, kinds = manual()
        cut = int(len(text) * (1 - TEST_SHARE))
        self._text, self._test = text[:cut], text[cut:]
        torch.manual_seed(seed)
        gpt = Gpt(kinds)
        mesh = init_device_mesh("cpu", (size,))
        for layer in gpt.layers:
            fully_shard(layer, mesh=mesh)
        self.model = fully_shard(gpt, mesh=mesh)
        overlap(gpt)
        self.optimizer = torch.optim.AdamW(gpt.parameters(), lr=3e-3)

    def loss(self, epoch: int, step: int) -> torch.Tensor:
        number = (epoch * self.steps_per_epoch + step) * self._size + self._rank
        return self._loss_on(self._text, SEQUENCES, self._seed * 1_000_003 + number)

    def score(self) -> float:
        """The mean loss on text that is not trained on, the same on every rank."""
        with torch.no_grad():
            found: float = self._loss_on(self._test, TEST_SEQUENCES, self._seed).item()
        # FSDP keeps the root's parameters for a backward pass, which does not come.
        self.model.reshard()
        return found

    def whole(self) -> Iterator[torch.Tensor]:
        for parameter in self.model.parameters():
            yield cast(DTensor, parameter).full_tensor()

    def ring_bytes(self) -> int:
        """A layer's parameters are gathered twice and its gradients scattered once; the root stays gathered for the
        backward pass. Each of these sends half of what an allreduce does.
        """
        layers = sum(parameter.numel() for parameter in cast(Gpt, self.model).layers.parameters())
        root = sum(parameter.numel() for parameter in self.model.parameters()) - layers
        found: int = 4 * (3 * layers + 2 * root) // 2
        return found

    def _loss_on(self, text: torch.Tensor, sequences: int, seed: int) -> torch.Tensor:
        places = torch.randint(len(text) - CONTEXT, (sequences,), generator=torch.Generator().manual_seed(seed))
        chosen = torch.stack([text[place : place + CONTEXT + 1] for place in places.tolist()])
        logits = self.model(chosen[:, :-1])
        return nn.functional.cross_entropy(logits.flatten(0, 1), chosen[:, 1:].flatten())


def manual() -> tuple[torch.Tensor, int]:
    """Python's manual as numbers of characters, and how many there are."""
    text = "\n".join(topics[name] for name in sorted(topics))
    known = sorted(set(text))
    numbers = {character: number for number, character in enumerate(known)}
    return torch.tensor([numbers[character] for character in text]), len(known)
