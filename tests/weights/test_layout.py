"""Properties of the packing, for any sizes."""

from __future__ import annotations

import pytest
import torch
from hypothesis import example, given
from hypothesis import strategies as st

from rollart_hpc.types import WeightsId
from rollart_hpc.weights.digest import Digest, digest
from rollart_hpc.weights.direct import BucketStream
from rollart_hpc.weights.layout import ALIGNMENT, ITEM_BYTES, BadWeights, Manifest, Packer
from rollart_hpc.weights.store import NodeStore, check_bucket, views

sizes = st.lists(st.integers(0, 5000), max_size=40)
limits = st.integers(1, 4000)
shapes = st.lists(st.integers(0, 7), max_size=3)
dtypes = st.sampled_from(["float32", "bfloat16", "float16", "int64", "uint8"])
tensors = st.lists(st.tuples(shapes, dtypes), max_size=12)
Specs = list[tuple[list[int], str]]


@given(sizes, limits)
def test_packing_is_ordered_aligned_disjoint_and_bounded(sizes: list[int], limit: int) -> None:
    packer = Packer(limit)
    last_bucket, end = 0, 0
    for size in sizes:
        bucket, offset = packer.place(size)
        assert bucket in (last_bucket, last_bucket + 1)
        assert offset % ALIGNMENT == 0
        if bucket == last_bucket:
            assert offset >= end
        else:
            assert offset == 0
        assert offset + size <= limit or offset == 0  # beyond the limit only alone
        last_bucket, end = bucket, offset + size


@given(sizes, limits)
def test_no_bucket_is_left_while_the_next_tensor_fits(sizes: list[int], limit: int) -> None:
    packer = Packer(limit)
    last_bucket, end = 0, 0
    for size in sizes:
        bucket, offset = packer.place(size)
        if bucket != last_bucket:
            assert -(-end // ALIGNMENT) * ALIGNMENT + size > limit
        last_bucket, end = bucket, offset + size


def make(specs: Specs) -> list[tuple[str, torch.Tensor]]:
    generator = torch.Generator().manual_seed(len(specs))
    return [
        (f"t{i}", (torch.rand(shape, generator=generator) * 100).to(getattr(torch, dtype)))
        for i, (shape, dtype) in enumerate(specs)
    ]


def same(left: list[tuple[str, torch.Tensor]], right: list[tuple[str, torch.Tensor]]) -> bool:
    return [n for n, _ in left] == [n for n, _ in right] and all(
        a.dtype == b.dtype and a.shape == b.shape and torch.equal(a, b)
        for (_, a), (_, b) in zip(left, right, strict=True)
    )


@given(tensors, limits)
def test_store_round_trip(tmp_path_factory: pytest.TempPathFactory, specs: Specs, limit: int) -> None:
    named = make(specs)
    store = NodeStore(tmp_path_factory.mktemp("store") / "root", "n")
    manifest = store.write(WeightsId(1, 0), named, limit)
    assert manifest.digest == digest(named)
    assert same(named, list(store.open(WeightsId(1, 0))))


@given(tensors, limits)
@example([([0], "float32"), ([7, 7], "float32")], 1)
def test_stream_and_store_make_the_same_buckets(
    tmp_path_factory: pytest.TempPathFactory, specs: Specs, limit: int
) -> None:
    named = make(specs)
    store = NodeStore(tmp_path_factory.mktemp("store") / "root", "n")
    manifest = store.write(WeightsId(1, 0), named, limit)
    stream = BucketStream(named, limit)
    received = []
    infos = []
    for info, raw in stream:
        check_bucket(info, raw, "stream")
        infos.append(info)
        received.extend((name, tensor.clone()) for name, tensor in views(info, raw))
    assert infos == manifest.buckets
    assert stream.digest.hexdigest() == manifest.digest
    assert same(named, received)


def test_two_buffers_are_all_a_stream_needs() -> None:
    stream = BucketStream(((f"t{i}", torch.full((200,), float(i))) for i in range(10)), 1024)
    addresses = {raw.data_ptr() for _, raw in stream}
    assert len(addresses) == 2


def test_every_dtype_has_its_size() -> None:
    for name, num_bytes in ITEM_BYTES.items():
        assert torch.empty(0, dtype=getattr(torch, name)).element_size() == num_bytes


@given(st.binary(max_size=200))
def test_garbage_is_no_manifest(data: bytes) -> None:
    with pytest.raises(BadWeights):
        Manifest.decode(data)


def test_incremental_digest_is_the_digest() -> None:
    named = make([([2, 3], "float32"), ([4], "bfloat16")])
    whole = Digest()
    for name, tensor in named:
        whole.add(name, tensor)
    assert whole.hexdigest() == digest(named)
