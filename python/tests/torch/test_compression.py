"""Gradients in 8 and 16 bits: bits as computed by NumPy, nothing lost over the steps, training as with float32."""

import itertools
import math
import os

import numpy as np
import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

import netsum
from netsum.demo.model import digits, lenet5
from netsum.torch import CompressionState, compressed, compression_hook, stats
from netsum.torch.compression import BLOCK, decode, encode, shape_of

F32 = np.float32
SUMS = ["int8:int8", "int8:int16", "e4m3:bf16", "e5m2:bf16"]
KINDS = ["int8", "bf16", *SUMS]
COUNTS = [1, 5, 1023, 1025, 3 * 1024, 10_001]


class Bucket:
    """The hook's argument from DDP."""

    def __init__(self, buffer: torch.Tensor, parameter: nn.Parameter) -> None:
        self.buffer, self.index, self.parameters = (lambda: buffer), (lambda: 0), (lambda: [parameter])
        self.is_last = lambda: True


def wild(generator: np.random.Generator, count: int) -> np.ndarray:
    """Values of many magnitudes, including zeros; whole blocks of them may be tiny."""
    exponents = (
        generator.integers(-6, 6, count) + 20.0 * generator.integers(-2, 2, -(-count // 256)).repeat(256)[:count]
    )
    values = generator.standard_normal(count) * 10.0**exponents
    return (values * (generator.random(count) < 0.9)).astype(F32)


def rounded_to_8_bits(values: np.ndarray) -> np.ndarray:
    """The decoded values of a block, computed from the documentation."""
    finite = np.where(np.isfinite(values), values, F32(0))
    largest = np.abs(finite).max()
    scale = largest / F32(126) if largest >= 126 * np.finfo(F32).tiny else F32(0)
    codes = np.rint(finite / (scale or F32(1))).astype(np.int8)
    return np.where(np.isfinite(values), codes * scale, values).astype(F32)


def blocks_of(values: np.ndarray, ranks: int) -> list[list[slice]]:
    """The blocks of each owner's share."""
    share = math.ceil(len(values) / ranks)
    block = 4 * math.ceil(share / math.ceil(share / 1024) / 4)
    padded = block * math.ceil(share / 1024)
    return [
        [slice(start, start + block) for start in range(owner * padded, (owner + 1) * padded, block)]
        for owner in range(ranks)
    ]


class Oracle:
    """All ranks of 8-bit sums of one bucket, in NumPy."""

    def __init__(self, count: int, ranks: int) -> None:
        self.count, self.ranks = count, ranks
        self.blocks = list(itertools.chain(*blocks_of(np.zeros(count), ranks)))
        self.own = np.zeros((ranks, self.blocks[-1].stop), F32)
        self.of_mean = np.zeros(self.blocks[-1].stop, F32)

    def step(self, gradients: list[np.ndarray]) -> np.ndarray:
        mean = np.zeros_like(self.of_mean)
        for at in self.blocks:
            total = None
            for rank in range(self.ranks):
                mine = self.own[rank, at]
                given = gradients[rank][at]
                mine[: len(given)] += given
                sent = rounded_to_8_bits(mine)
                self.own[rank, at] = mine - sent
                total = sent if total is None else total + sent
            self.of_mean[at] += total / F32(self.ranks)
            mean[at] = rounded_to_8_bits(self.of_mean[at])
            self.of_mean[at] -= mean[at]
        return mean[: self.count]


def bits(values) -> np.ndarray:
    return np.asarray(values, dtype=F32).view(np.uint32)


@pytest.mark.parametrize("count", COUNTS)
def test_8_bits_are_those_of_numpy_and_near(count):
    generator = np.random.default_rng(count)
    shape = shape_of(count, 3)
    padded = np.zeros(math.prod(shape), F32)
    padded[:count] = wild(generator, count)
    values = torch.from_numpy(padded.copy()).view(shape)
    found = decode(encode(values), shape).numpy().reshape(-1)
    assert shape[2] <= BLOCK and math.prod(shape) - count < 3 * (4 * shape[1] + 4)
    for at in itertools.chain(*blocks_of(np.zeros(count), 3)):
        assert (bits(found[at]) == bits(rounded_to_8_bits(padded[at]))).all()
        assert np.abs(found[at] - padded[at]).max() <= max(np.abs(padded[at]).max() / 251, 1.5e-36)


def test_the_largest_and_least_numbers_and_those_that_are_none():
    shape = (1, 1, 8)
    for largest in (np.finfo(F32).max, F32(1.5e-36), F32(1e-36), np.finfo(F32).tiny, F32(1e-45)):
        values = np.array([largest, -largest, 0, largest / 2, math.inf, -math.inf, math.nan, -0.0], F32)
        found = decode(encode(torch.from_numpy(values).view(shape)), shape).view(-1).numpy()
        np.testing.assert_array_equal(found, rounded_to_8_bits(values))
        assert np.isfinite(found[:4]).all() and abs(float(found[0]) - float(largest)) < max(largest * 1e-6, 1.5e-36)
        np.testing.assert_array_equal(found[4:7], values[4:7])


@pytest.mark.parametrize(("size", "backend"), [(2, "netsum"), (3, "netsum"), (2, "gloo")])
def test_the_hooks_bits_are_the_oracles(ranks, size, backend):
    def body(rank, size):
        state = CompressionState(to="int8")
        for count in COUNTS:
            parameter, oracle = nn.Parameter(torch.zeros(count)), Oracle(count, size)
            generator = np.random.default_rng(count)
            for _ in range(4):
                gradients = [wild(generator, count) for _ in range(size)]
                buffer = torch.from_numpy(gradients[rank].copy())
                answer = compression_hook(state, Bucket(buffer, parameter)).wait()
                assert answer is buffer
                assert (bits(answer.numpy()) == bits(oracle.step(gradients))).all()

    ranks(body, size, backend)


def numbers_of(x: np.ndarray, to: str) -> np.ndarray:
    """The nearest numbers that can be sent: torch's conversion, and for small ones multiples of 2^-9."""
    if to.startswith("int8"):
        return np.rint(x)
    kind = torch.float8_e4m3fn if to.startswith("e4m3") else torch.float8_e5m2
    converted = torch.from_numpy(x).to(kind).float().numpy()
    return np.where(np.abs(x) < 2.0**-7, np.rint(x * F32(512)) / F32(512), converted).astype(F32)


class SumsOracle:
    """All ranks of sums with shared scales of one bucket, in NumPy."""

    TOPS = {"int8:int16": lambda _: 127, "e4m3:bf16": lambda _: 448, "e5m2:bf16": lambda _: 57344}  # noqa: RUF012

    def __init__(self, count: int, ranks: int, to: str) -> None:
        self.to, self.ranks = to, ranks
        self.top = F32(self.TOPS.get(to, lambda n: 127 // n)(ranks))
        self.kept = np.zeros((ranks, count), F32)

    def step(self, gradients: list[np.ndarray]) -> np.ndarray:
        mean = np.zeros_like(self.kept[0])
        for start in range(0, len(mean), 256):
            at = slice(start, start + 256)
            for kept, given in zip(self.kept, gradients, strict=True):
                kept[at] += given[at]
            most = np.abs(self.kept[:, at]).max()
            bits = most.view(np.uint32)
            most = ((bits + np.uint32(0xFFFF)) & np.uint32(0xFFFF0000)).view(F32)
            scale = most / self.top if most >= self.top * np.finfo(F32).tiny else F32(0)
            total = np.zeros(len(mean[at]))
            for kept in self.kept:
                x = kept[at] * (F32(1) / scale) if scale else np.zeros_like(kept[at])
                sent = numbers_of(np.clip(x, -self.top, self.top), self.to)
                kept[at] -= sent * scale
                total += sent
            if self.to.endswith("bf16"):
                # To 8 bits of mantissa; torch would round to float32 first.
                fraction, exponent = np.frexp(total)
                total = np.ldexp(np.rint(fraction * 256) / 256, exponent)
            mean[at] = total.astype(F32) * scale / F32(self.ranks)
        return mean


@pytest.mark.parametrize("to", SUMS)
@pytest.mark.parametrize("size", [2, 3])
def test_the_bits_of_sums_are_the_oracles(ranks, size, to):
    def body(rank, size):
        state = CompressionState(to=to)
        for count in COUNTS:
            parameter, oracle = nn.Parameter(torch.zeros(count)), SumsOracle(count, size, to)
            generator = np.random.default_rng(count)
            for _ in range(4):
                gradients = [wild(generator, count) for _ in range(size)]
                buffer = torch.from_numpy(gradients[rank].copy())
                answer = compression_hook(state, Bucket(buffer, parameter)).wait()
                assert answer is buffer
                assert (bits(answer.numpy()) == bits(oracle.step(gradients))).all()

    ranks(body, size)


@pytest.mark.parametrize("size", [2, 3])
def test_bf16_is_added_in_float32_and_rounded_once(ranks, size):
    def body(rank, size):
        state, parameter = CompressionState(to="bf16"), nn.Parameter(torch.zeros(5000))
        generator, kept = np.random.default_rng(1), torch.zeros(size, 5000)
        for _ in range(4):
            gradients = [torch.from_numpy(wild(generator, 5000)) for _ in range(size)]
            buffer = gradients[rank].clone()
            compression_hook(state, Bucket(buffer, parameter)).wait()
            wanted = kept + torch.stack(gradients)
            sent = wanted.to(torch.bfloat16).float()
            kept = wanted - sent
            # The group's order of additions: ((0 + 1) + 2).
            total = sent[0]
            for each in sent[1:]:
                total = total + each
            assert torch.equal(buffer, total.to(torch.bfloat16).float() / size)

    ranks(body, size)


class Chosen(nn.Module):
    """A model with chosen gradients: its loss is the sum of parameters times them."""

    SHAPES = ((3,), (7, 5), (1030,), (0,), (40, 60), (1,), (5000,))

    def __init__(self) -> None:
        super().__init__()
        self.weights = nn.ParameterList(torch.zeros(shape) for shape in self.SHAPES)

    def forward(self, gradients: list[torch.Tensor]) -> torch.Tensor:
        # Last first, so that gradients arrive in another order than DDP expects, and it makes other buckets.
        pairs = list(zip(self.weights, gradients, strict=True))
        return sum((weight * gradient).sum() for weight, gradient in pairs[3:] + pairs[:3])


@pytest.mark.parametrize("to", KINDS)
@pytest.mark.parametrize("view", [False, True])
def test_over_the_steps_nothing_is_lost(ranks, to, view):
    def body(rank, size):
        model = DistributedDataParallel(Chosen(), bucket_cap_mb=0.01, gradient_as_bucket_view=view)
        state, layouts = CompressionState(to=to), []

        def hook(state: CompressionState, bucket: dist.GradBucket) -> torch.futures.Future[torch.Tensor]:
            layouts[-1].append([parameter.numel() for parameter in bucket.parameters()])
            return compression_hook(state, bucket)

        model.register_comm_hook(state, hook)
        weights = list(model.module.weights)
        true = [torch.zeros(weight.shape, dtype=torch.float64) for weight in weights]
        applied, sizes = [each.clone() for each in true], [each.clone() for each in true]
        generator = np.random.default_rng(7)
        for step in range(12):
            model.zero_grad()
            layouts.append([])
            # Every third time two batches are added at each rank before they are sent.
            for part in range(1 + (step % 3 == 2)):
                drawn = [[wild_in_range(generator, w.shape) for w in weights] for _ in range(size)]
                if part == 0 and step % 3 == 2:
                    with model.no_sync():
                        model(drawn[rank]).backward()
                else:
                    model(drawn[rank]).backward()
                for total, *parts in zip(true, *drawn, strict=True):
                    total += sum(each.double() for each in parts) / size
            for total, amount, weight in zip(applied, sizes, weights, strict=True):
                total += weight.grad.double()
                amount += weight.grad.double().abs()
        assert layouts[0] != layouts[-1] and len(layouts[-1]) > 1
        for weight, wanted, found, amount in zip(weights, true, applied, sizes, strict=True):
            kept = state.kept_of(weight).double()
            assert kept.shape == weight.shape
            dist.all_reduce(kept)
            # Rounded sums of bf16 are not fed back: 2^-8 of each at the most.
            allowed = 1e-4 + (amount * 2**-8 if to.endswith("bf16") else 0)
            assert ((found + kept / size - wanted).abs() <= allowed).all()

    ranks(body, 3)


def wild_in_range(generator: np.random.Generator, shape: tuple[int, ...]) -> torch.Tensor:
    values = generator.standard_normal(shape) * 10.0 ** generator.integers(-4, 2, shape)
    return torch.from_numpy(values.astype(F32))


@pytest.mark.parametrize("to", KINDS)
def test_what_is_not_finite_reaches_all_ranks_and_is_gone_at_the_next_step(ranks, to):
    def body(rank, size):
        model = DistributedDataParallel(nn.Linear(3000, 1, bias=False))
        compressed(model, to=to)
        x = torch.ones(1, 3000)
        if rank == 1:
            x[0, [5, 1500, 2999]] = torch.tensor([math.inf, -math.inf, math.nan])
        model(x).sum().backward()
        gradient = model.module.weight.grad[0]
        if to in SUMS:
            # The three blocks of 256 that they are in.
            assert gradient[[5, 1500, 2999]].isnan().all() and gradient.isfinite().sum() == 3000 - 2 * 256 - 184
        else:
            assert gradient[5] == math.inf and gradient[1500] == -math.inf and gradient[2999].isnan()
            assert gradient.isfinite().sum() == 2997
        assert (gradient[gradient.isfinite()] - 1).abs().max() < 0.02
        model.zero_grad()
        model(torch.ones(1, 3000)).sum().backward()
        assert (model.module.weight.grad - 1).abs().max() < 0.02

    ranks(body)


@pytest.mark.parametrize("to", KINDS)
def test_a_gradient_scaler_skips_the_step_at_all_ranks(ranks, to):
    def body(rank, size):
        model = DistributedDataParallel(nn.Linear(8, 1))
        compressed(model, to=to)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        scaler = torch.amp.GradScaler("cpu", init_scale=2.0**10)
        before = model.module.weight.detach().clone()
        for overflows in (True, False):
            x = torch.ones(4, 8)
            if overflows and rank == 1:
                x[0, 3] = math.inf
            optimizer.zero_grad()
            scaler.scale(model(x).mean()).backward()
            scaler.step(optimizer)
            scaler.update()
            assert torch.equal(model.module.weight, before) == overflows
        assert scaler.get_scale() == 2.0**9

    ranks(body)


@pytest.mark.parametrize("to", KINDS)
def test_torchs_check_for_nan_sees_it(ranks, to):
    def body(rank, size):
        model = DistributedDataParallel(nn.Linear(8, 1))
        compressed(model, to=to)
        with pytest.raises(RuntimeError, match=r"(?i)nan"):
            model(torch.full((1, 8), math.nan)).sum().backward()
        os._exit(0)

    ranks(body, TORCH_DIST_NAN_CHECK="1")


@pytest.mark.parametrize("to", KINDS)
def test_a_lost_rank_raises(ranks, to):
    def body(rank, size):
        model = DistributedDataParallel(nn.Linear(4, 4))
        compressed(model, to=to)
        dist.barrier()
        if rank == 1:
            os._exit(0)
        with pytest.raises(RuntimeError, match="rank 1"):
            model(torch.ones(2, 4)).sum().backward()
        os._exit(0)

    ranks(body)


@pytest.mark.parametrize("to", KINDS)
def test_ranks_that_have_no_more_data_join(ranks, to):
    def body(rank, size):
        model = DistributedDataParallel(nn.Linear(4, 4))
        compressed(model, to=to)
        with model.join():
            for _ in range(2 + rank):
                model(torch.ones(2, 4)).sum().backward()

    ranks(body)


@pytest.mark.parametrize("to", KINDS)
def test_gradients_of_other_float_types(ranks, to):
    def body(rank, size):
        for dtype in (torch.float16, torch.bfloat16, torch.float64):
            state, parameter = CompressionState(to=to), nn.Parameter(torch.zeros(2000, dtype=dtype))
            gradients = [torch.linspace(-1, 1 + of, 2000, dtype=dtype) for of in range(size)]
            buffer = gradients[rank].clone()
            assert state.reduce(Bucket(buffer, parameter)).wait() is buffer
            # Largest distances from values of up to 2.
            allowed = {"e4m3:bf16": 0.14, "e5m2:bf16": 0.27}.get(to, 0.03)
            assert (buffer.double() - sum(each.double() for each in gradients) / size).abs().max() < allowed
            assert state.kept_of(parameter).dtype == torch.float32

    ranks(body)


@pytest.mark.parametrize("to", KINDS)
def test_models_of_sub_groups(ranks, to):
    def body(rank, size):
        mine = [dist.new_group([0, 1]), dist.new_group([2, 3])][rank // 2]
        model = DistributedDataParallel(Chosen(), process_group=mine)
        members = dist.get_process_group_ranks(mine)
        groups = compressed(model, to=to).groups
        assert [dist.get_process_group_ranks(group) for group in groups] == [members] * (2 if to == "int8" else 1)
        model([torch.full(shape, rank + 1.0) for shape in Chosen.SHAPES]).backward()
        wanted = 1.5 if rank < 2 else 3.5
        # Values of up to 4, with two or three bits of mantissa.
        allowed = {"e4m3:bf16": 0.14, "e5m2:bf16": 0.27}.get(to, 0.03)
        assert all((weight.grad - wanted).abs().amax() < allowed for weight in model.module.weights if weight.numel())

    ranks(body, 4)


def test_wrong_use_is_named(ranks):
    def body(rank, size):
        model = DistributedDataParallel(nn.Linear(4, 4))
        with pytest.raises(ValueError, match="to='int4': expected one of bf16, int8, int8:int8"):
            compressed(model, to="int4")
        state = CompressionState(to="bf16")
        with pytest.raises(netsum.Unsupported, match="complex64"):
            state.reduce(Bucket(torch.ones(4, dtype=torch.complex64), nn.Parameter(torch.ones(4))))
        halves = dist.new_group([rank], use_local_synchronization=True)
        state.groups[0] = halves
        with pytest.raises(RuntimeError, match="made for 2 ranks, the group has 1 now"):
            state.reduce(Bucket(torch.ones(4), nn.Parameter(torch.ones(4))))
        alone, values = CompressionState(halves), torch.tensor([1.0, 1e-9, math.pi])
        assert torch.equal(alone.reduce(Bucket(values.clone(), nn.Parameter(values))).wait(), values)

    ranks(body)


def small_beside_large(to: str, feedback: bool, rank: int, steps: int) -> float:
    """Distance of a quadratic from its minimum, relative to the start, if each rank's gradient also has a large part.

    The large parts cancel each other; the small ones matter.
    """
    weight = nn.Parameter(torch.ones(64))
    model = nn.Module()
    model.weight = weight
    model.forward = lambda large: 0.5 * (model.weight[1:] ** 2).sum() + large * model.weight[0]
    replica = DistributedDataParallel(model)
    compressed(replica, to=to, error_feedback=feedback)
    optimizer = torch.optim.SGD(replica.parameters(), lr=0.02)
    for _ in range(steps):
        optimizer.zero_grad()
        replica(1000.0 if rank else -1000.0).backward()
        optimizer.step()
    return float(weight[1:].abs().max())


def test_feedback_keeps_small_gradients_beside_large_ones(ranks):
    def body(rank, size):
        # A step of 8 bits is 1000 / 126 here, and gradients are at most 1: each of them is rounded to zero.
        assert small_beside_large("int8", False, rank, 300) == 1.0
        assert small_beside_large("int8", True, rank, 300) < 0.2
        assert small_beside_large("bf16", True, rank, 300) < 0.1
        for to in SUMS:
            # Between two ranks, int8:int8 has steps of 1000 / 63. 8-bit floats have finer ones for small numbers.
            without = small_beside_large(to, False, rank, 300)
            assert without < 0.25 if to.startswith("e") else without == 1.0
            assert small_beside_large(to, True, rank, 300) < 0.25

    ranks(body)


def accuracy_on_digits(rank: int, size: int, epochs: int, to: str | None) -> float:
    images, labels, test_images, test_labels = digits(3)
    torch.manual_seed(3)
    model = DistributedDataParallel(lenet5())
    if to:
        compressed(model, to=to)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    # The learning rate decays, so that the accuracy is stable.
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, epochs * (len(labels) // size // 32))
    for epoch in range(epochs):
        order = torch.randperm(len(labels), generator=torch.Generator().manual_seed(epoch))[rank::size]
        for batch in range(len(labels) // size // 32):
            chosen = order[batch * 32 : (batch + 1) * 32]
            optimizer.zero_grad()
            nn.functional.cross_entropy(model(images[chosen]), labels[chosen]).backward()
            optimizer.step()
            schedule.step()
    with torch.no_grad():
        return float((model.module(test_images).argmax(1) == test_labels).float().mean())


def test_lenet_on_digits_ends_as_float32_does(ranks):
    def body(rank, size):
        found = {to: accuracy_on_digits(rank, size, 6, to) for to in (None, *KINDS)}
        assert found[None] > 0.93 and all(abs(each - found[None]) < 0.03 for each in found.values()), found

    ranks(body)


def test_bytes_on_the_network(ranks):
    def body(rank, size):
        def sent(to: str | None) -> int:
            model = DistributedDataParallel(nn.Linear(1000, 1000))
            groups = compressed(model, to=to).groups if to else [dist.group.WORLD]
            model(torch.randn(2, 1000)).sum().backward()
            before = sum(stats(group)["host_bytes_tx"] for group in groups)
            for _ in range(4):
                model(torch.randn(2, 1000)).sum().backward()
            return (sum(stats(group)["host_bytes_tx"] for group in groups) - before) // 4

        full, bf16, int8 = sent(None), sent("bf16"), sent("int8")
        assert 0.98 < full / (4 * 1_001_000 * 2 * (size - 1) / size) < 1.02
        assert bf16 < 0.52 * full and int8 < 0.26 * full
        # Hosts send numbers in the type of their sums, and magnitudes.
        assert sent("int8:int8") < 0.26 * full and all(sent(to) < 0.51 * full for to in SUMS[1:])

    ranks(body, NETSUM_SHARED_MEMORY="off", NETSUM_LINK_LATENCY_S="1e-4", NETSUM_LINK_BYTES_PER_S="1e8")


@pytest.mark.parametrize("to", ["bf16", *SUMS])
def test_switches_add_the_bits_that_hosts_add(ranks, fabric, to):
    def body(rank, size):
        models = [DistributedDataParallel(Chosen()), DistributedDataParallel(Chosen(), process_group=by_hosts(size))]
        for model in models:
            compressed(model, to=to)
        generator = np.random.default_rng(rank)
        for _ in range(3):
            gradients = [wild_in_range(generator, shape) for shape in Chosen.SHAPES]
            before = stats()["network_operations"]
            for model in models:
                model.zero_grad()
                model(gradients).backward()
            assert stats()["network_operations"] > before
            for one, other in zip(*(model.parameters() for model in models), strict=True):
                assert torch.equal(one.grad, other.grad)
        assert stats()["path"] == "trees"

    # Buckets of few bytes are for switches, too.
    ranks(body, 4, NETSUM_MIN_BYTES="1", **fabric.environment())


def by_hosts(size: int) -> dist.ProcessGroup:
    return dist.new_group(list(range(size)))
