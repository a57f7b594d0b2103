"""A vLLM KV connector over files in shared memory: passes a prefilled prompt to another engine on CPU machines.

    prefill  {"save": KEY}             -> once the prompt is computed, its whole blocks are written to KEY
    decode   {"load": KEY, "tokens"}   -> the blocks are read back once, before the first forward

Runs inside vLLM's scheduler and workers, which share the directory. A missing file is not an error: vLLM computes the
blocks itself. On GPUs vLLM's NixlConnector is used instead (`settings`).
"""

from __future__ import annotations

import os
import re
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file
from vllm.distributed.kv_transfer.kv_connector.v1.base import (
    KVConnectorBase_V1,
    KVConnectorMetadata,
    KVConnectorRole,
)
from vllm.distributed.parallel_state import get_tensor_model_parallel_rank

from rollart_hpc.engines.vllm.handles import kv_file

_KEY = re.compile(r"[0-9a-f]{1,64}")


@dataclass
class Blocks:
    """Blocks of one request to write to a file or read from one."""

    key: str
    ids: list[int]


@dataclass
class Transfers(KVConnectorMetadata):
    """What the workers save and load around the next forward."""

    saves: list[Blocks] = field(default_factory=list)
    loads: list[Blocks] = field(default_factory=list)


class KvFiles(KVConnectorBase_V1):
    def __init__(self, vllm_config: Any, role: KVConnectorRole, kv_cache_config: Any) -> None:
        super().__init__(vllm_config, role, kv_cache_config)
        self._directory = Path(self._kv_transfer_config.get_from_extra_config("directory", ""))
        self._block_tokens = int(vllm_config.cache_config.block_size)
        self._caches: dict[str, torch.Tensor] = {}
        self._failed: set[int] = set()
        self._saving: dict[str, tuple[str, int, list[int]]] = {}  # request -> key, prompt tokens, its blocks so far
        self._loading: dict[str, tuple[str, int]] = {}  # request -> key, blocks to read

    # --- in the scheduler ----------------------------------------------------------------------

    def get_num_new_matched_tokens(self, request: Any, num_computed_tokens: int) -> tuple[int | None, bool]:
        params = request.kv_transfer_params or {}
        key = params.get("load")
        if not key or not self._path(key, 0).exists():
            return 0, False
        usable = min(int(params["tokens"]), request.num_prompt_tokens - 1) // self._block_tokens * self._block_tokens
        return max(0, usable - num_computed_tokens), False

    def update_state_after_alloc(self, request: Any, blocks: Any, num_external_tokens: int) -> None:
        params = request.kv_transfer_params or {}
        key = params.pop("load", None)  # once: after an install the request computes its KV itself
        if key and num_external_tokens:
            usable = min(int(params["tokens"]), request.num_prompt_tokens - 1) // self._block_tokens
            self._loading[request.request_id] = (key, usable)
        if params.get("save"):
            self._saving[request.request_id] = (params["save"], request.num_prompt_tokens, [])

    def build_connector_meta(self, scheduler_output: Any) -> KVConnectorMetadata:
        meta = Transfers()
        for new in scheduler_output.scheduled_new_reqs:
            self._plan(meta, scheduler_output, new.req_id, new.num_computed_tokens, new.block_ids[0])
        cached = scheduler_output.scheduled_cached_reqs
        for request, done, blocks in zip(cached.req_ids, cached.num_computed_tokens, cached.new_block_ids, strict=True):
            if request in cached.resumed_req_ids and request in self._saving:
                self._saving[request] = (*self._saving[request][:2], [])
            self._plan(meta, scheduler_output, request, done, blocks[0] if blocks else [])
        return meta

    def _plan(self, meta: Transfers, output: Any, request: str, num_done: int, new_blocks: list[int]) -> None:
        if request in self._loading:
            key, num_blocks = self._loading.pop(request)
            meta.loads.append(Blocks(key, new_blocks[:num_blocks]))
        if request in self._saving:
            key, num_prompt_tokens, blocks = self._saving[request]
            blocks.extend(new_blocks)
            if num_done + output.num_scheduled_tokens[request] >= num_prompt_tokens:
                meta.saves.append(Blocks(key, blocks[: num_prompt_tokens // self._block_tokens]))

    def request_finished(self, request: Any, block_ids: list[int]) -> tuple[bool, dict[str, Any] | None]:
        saved = self._saving.pop(request.request_id, None)
        self._loading.pop(request.request_id, None)
        if saved is None:
            return False, None
        key, num_tokens, _ = saved
        return False, {"load": key, "tokens": num_tokens // self._block_tokens * self._block_tokens}

    def reset_cache(self) -> bool:
        """New weights: KV that is still being loaded is useless."""
        self._loading.clear()
        return True

    # --- in the workers ------------------------------------------------------------------------

    def register_kv_caches(self, kv_caches: dict[str, torch.Tensor]) -> None:
        self._caches = kv_caches

    def start_load_kv(self, forward_context: Any, **kwargs: Any) -> None:
        meta = self._get_connector_metadata()
        assert isinstance(meta, Transfers)
        for blocks in meta.loads:
            try:
                layers = load_file(self._path(blocks.key, _rank()))
            except OSError:
                self._failed.update(blocks.ids)
                continue
            for name, cache in self._caches.items():
                cache[blocks.ids] = layers[name][: len(blocks.ids)]

    def wait_for_layer_load(self, layer_name: str) -> None:
        pass

    def save_kv_layer(self, layer_name: str, kv_layer: torch.Tensor, attn_metadata: Any, **kwargs: Any) -> None:
        pass

    def wait_for_save(self) -> None:
        meta = self._get_connector_metadata()
        assert isinstance(meta, Transfers)
        for blocks in meta.saves:
            path = self._path(blocks.key, _rank())
            part = path.with_suffix(".part")
            save_file({name: cache[blocks.ids].contiguous() for name, cache in self._caches.items()}, part)
            os.replace(part, path)

    def get_block_ids_with_load_errors(self) -> set[int]:
        failed, self._failed = self._failed, set()
        return failed

    def _path(self, key: str, rank: int) -> Path:
        """Keys come from another process and must not name a path outside our directory."""
        if not _KEY.fullmatch(key):
            raise ValueError(f"{key!r} is not a valid key of a KV file: expected 1 to 64 hexadecimal digits")
        return kv_file(self._directory, key, rank)


def _rank() -> int:
    return int(get_tensor_model_parallel_rank())
