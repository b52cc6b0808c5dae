"""What would an H200 need for Ouro-1.4B's launches, by its data sheet?

Question: what can be simulated for a GPU before a log of one is there to fit costs to?
Method: a cost table from data sheets, a guess with its reasons written:

    pass    = layers' weight bytes / (bandwidth x weight_efficiency)           the floor
    row     = 2 x layers' weights / (flops x matmul_efficiency)
    key     = bytes of its K and V, all layers / (bandwidth x cache_efficiency)      decode
            = 4 x query width x layers / (flops x attention_efficiency)              prompt

and the LM head likewise; a head that fills skipped planes takes so much more as 16 rows of three
planes each are to read and to write. Overheads and the host's time are plain assumptions. Such a
table is marked `is_estimate`, and every result that rests on it is called an estimate.

    python experiments/estimate_h200_costs.py >sched/costing/cost_tables/ouro-1.4b-h200.json

Result (2026-12-01, computed, no GPU): the table of that name, which is shipped; its `source` names
what was assumed.
"""

import json
from dataclasses import dataclass

from looped.bench.model_maker import SHAPES
from looped.config import ModelConfig
from looped.sched import PROGRAM_KINDS, CostModel, read_cost_table

ANY_BUCKET = 2
"""A single named bucket stands for all."""
TABLE = "ouro-1.4b-h200"


@dataclass(frozen=True, kw_only=True)
class Device:
    """What a data sheet says, and what is assumed to be had of it."""

    name: str
    bytes_per_second: float
    """Of its memory."""
    flops_per_second: float
    """Of dense products in the weights' type."""
    weight_efficiency: float = 0.7
    """Share of the bandwidth when weights are read."""
    cache_efficiency: float = 0.6
    """The same when cached keys and values are, through a block table."""
    matmul_efficiency: float = 0.5
    """Share of the FLOP/s in products of many rows."""
    attention_efficiency: float = 0.3
    """The same in attention of prompt rows."""
    pass_overhead: float = 200e-6
    """Seconds to launch a pass over the layers, beyond its work."""
    head_overhead: float = 60e-6
    """Of an LM head, one more call in a launch."""
    copies_factor: float = 1.05
    """What a head takes over another one where it fills planes: 16 x 3 x 2 x 197 kB at the cache's
    bandwidth are 7 us beside 120."""
    host_launch_seconds: float = 150e-6
    host_item_seconds: float = 10e-6


H200 = Device(name="H200", bytes_per_second=4.8e12, flops_per_second=989e12)
"""HBM3e at 4.8 TB/s; 989 TFLOP/s in dense bfloat16."""


def estimate_costs(config: ModelConfig, device: Device, *, name: str, source: str) -> CostModel:
    """A cost table by the formulas above, for weights and cache of two bytes a number.

    Args:
        config: shape of the model.
        device: data sheet and assumptions.
        name: of the table.
        source: data and assumptions in words.
    """
    query_width = config.num_heads * config.head_dim
    kv_width = config.num_kv_heads * config.head_dim
    attention_weights = 2 * config.hidden_size * (query_width + kv_width)
    weights = config.num_layers * (
        attention_weights + 3 * config.hidden_size * config.intermediate_size
    )
    head = config.hidden_size * config.vocab_size
    weight_bandwidth = device.bytes_per_second * device.weight_efficiency
    matmul_flops = device.flops_per_second * device.matmul_efficiency
    key_bytes = 2 * 2 * config.num_layers * kv_width
    return CostModel(
        name=name,
        source=source,
        num_planes=config.num_loops,
        weight_floor=2 * weights / weight_bandwidth,
        row_seconds=2 * weights / matmul_flops,
        decode_key_seconds=key_bytes / (device.bytes_per_second * device.cache_efficiency),
        prompt_key_seconds=4
        * query_width
        * config.num_layers
        / (device.flops_per_second * device.attention_efficiency),
        head_floor=2 * head / weight_bandwidth,
        head_row_seconds=2 * head / matmul_flops,
        overheads={
            kind: {ANY_BUCKET: device.pass_overhead if kind.runs_layers else device.head_overhead}
            for kind in PROGRAM_KINDS
            if kind.stand_in is kind
        },
        head_factors={"copies": device.copies_factor},
        host_launch_seconds=device.host_launch_seconds,
        host_item_seconds=device.host_item_seconds,
        is_estimate=True,
    )


def main() -> None:
    source = read_cost_table(TABLE).source
    costs = estimate_costs(SHAPES["1.4b"], H200, name=TABLE, source=source)
    print(json.dumps(costs.to_json(), indent=2))


if __name__ == "__main__":
    main()
