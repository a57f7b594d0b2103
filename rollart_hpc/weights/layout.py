"""The layout of tensors in buckets. Owns the manifest's format and the packing rule; uses neither torch nor files.

Worked example, bucket_bytes=1024, two float32 tensors of 100 and 200 elements and a bfloat16 one of 300:

    bucket 0:  a.weight [0, 400)   b.weight [448, 1248) would not fit -> next bucket
    bucket 1:  b.weight [0, 800)   c.weight [832, 1432) would not fit -> next bucket
    bucket 2:  c.weight [0, 600)

A tensor starts at a multiple of 64 bytes. A tensor larger than a bucket gets its own bucket.
"""

from __future__ import annotations

import math

import msgspec

from rollart_hpc.errors import SiteError
from rollart_hpc.types import WeightsId

ALIGNMENT = 64
ITEM_BYTES = {
    "float64": 8, "float32": 4, "bfloat16": 2, "float16": 2, "float8_e4m3fn": 1, "float8_e5m2": 1,
    "int64": 8, "int32": 4, "int16": 2, "int8": 1, "uint8": 1, "bool": 1,
}  # fmt: skip


class BadWeights(SiteError):
    """Weights that are missing, incomplete or fail their checksum. Nothing was installed from them."""


class TensorInfo(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    name: str
    dtype: str
    shape: list[int]
    offset: int

    @property
    def num_bytes(self) -> int:
        return math.prod(self.shape) * ITEM_BYTES[self.dtype]


class BucketInfo(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    num_bytes: int
    checksum: str  # xxh3_64 of the bucket's bytes, padding included
    tensors: list[TensorInfo]

    def check(self) -> None:
        """A manifest may come from another node or a damaged disk: no tensor in it may point outside its bucket."""
        end = 0
        for tensor in self.tensors:
            known = tensor.dtype in ITEM_BYTES and all(n >= 0 for n in tensor.shape)
            if not known or tensor.offset < end or tensor.offset + tensor.num_bytes > self.num_bytes:
                raise BadWeights(f"tensor {tensor.name} ({tensor.dtype} {tensor.shape}) does not fit its bucket")
            end = tensor.offset + tensor.num_bytes


class Manifest(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    attempt: int
    version: int
    digest: str
    buckets: list[BucketInfo]

    @property
    def weights_id(self) -> WeightsId:
        return WeightsId(self.attempt, self.version)

    @property
    def num_bytes(self) -> int:
        return sum(bucket.num_bytes for bucket in self.buckets)

    def encode(self) -> bytes:
        return msgspec.json.encode(self)

    @classmethod
    def decode(cls, data: bytes) -> Manifest:
        try:
            manifest = msgspec.json.decode(data, type=cls)
        except (msgspec.DecodeError, UnicodeDecodeError) as error:
            raise BadWeights(f"the weight manifest does not parse: {error}") from None
        for bucket in manifest.buckets:
            bucket.check()
        return manifest


class Packer:
    """Assigns each tensor, in order, a bucket and an offset."""

    def __init__(self, bucket_bytes: int) -> None:
        self._limit = bucket_bytes
        self._bucket = 0
        self._used = 0

    def place(self, num_bytes: int) -> tuple[int, int]:
        """(bucket, offset) of the next tensor."""
        offset = -(-self._used // ALIGNMENT) * ALIGNMENT
        if self._used and offset + num_bytes > self._limit:
            self._bucket, offset = self._bucket + 1, 0
        self._used = offset + num_bytes
        return self._bucket, offset
