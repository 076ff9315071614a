"""What the terms of a price, and what a launch waits for, are called, and what lowers each."""

from __future__ import annotations

# What the price adds up from (`Terms.added`).
TERMS = {
    "main": "main loop",
    "l2_exposed": "L2 time that shows",
    "zeros": "rows of zeros",
    "cluster": "lockstep with the peer",
    "epilogue": "epilogues",
    "promotion": "promotion that shows",
    "tail": "last store",
    "hbm": "HBM, beyond the SMs",
    "launch": "launch, ramp and tail",
    "link": "link to other GPUs that shows",
    "ranks": "other ranks, besides",
}
# What a launch waits for.
BOUND = {
    "tensor": "the tensor cores",
    "shared": "shared-memory bandwidth",
    "l2": "L2 bandwidth",
    "hbm": "memory bandwidth (HBM)",
    "adding": "L2, which adds to D",
    "promotion": "promotion on the CUDA cores",
    "latency": "latency: a warpgroup multiplies, drains and goes on, with too little beside it",
    "idle": "idle SMs: too few tiles to fill them",
    "zeros": "TMA, which fills the rows of a tile past an operand's last with zeros",
    "drain": "fill and drain: epilogues and the last store",
    "cluster": "lockstep of the CTAs in a cluster",
    "launch": "launch latency",
    "link": "the link to other GPUs",
    "ranks": "other ranks: CTAs fall out of step, or own rows are copied first",
}
# What lies between the floor and the modelled time, the term of the price that it is part of, and what lowers it.
LOSSES = {
    "rate": ("what wgmma lacks of the tensor cores' peak", "", "nothing, for no config changes it"),
    "idle": (
        "SMs without a tile",
        "main",
        "tiles of another size, which fill waves better, or split_k where K is long",
    ),
    "edges": ("products outside of D", "main", "tiles whose sides divide M and N"),
    "shared": (
        "main loops that wait for shared memory",
        "main",
        "a larger block_n, which makes more products of each byte read",
    ),
    "l2": (
        "main loops that wait for L2",
        "main",
        "larger tiles or multicast, which fetch fewer bytes for as many products",
    ),
    "promotion": (
        "main loops that wait for promotion",
        "main",
        "one more consumer warpgroup, or parts of a tile, to multiply meanwhile",
    ),
    "latency": (
        "main loops that wait for a warpgroup's own steps",
        "main",
        "one more consumer warpgroup, a wider tile or split_k, to keep the tensor cores busy meanwhile",
    ),
    "l2_exposed": (
        "L2 time that shows",
        "l2_exposed",
        "larger tiles or multicast, which fetch fewer bytes for as many products",
    ),
    "zeros": (
        "rows of zeros that TMA fills",
        "zeros",
        "tiles that end where M and N do: of other sides, or by swap_ab",
    ),
    "cluster": ("lockstep of a cluster", "cluster", "multicast=none, which needs none"),
    "epilogue": (
        "epilogues",
        "epilogue",
        "fewer and larger tiles",
    ),
    "shown": ("promotion that shows", "promotion", "one more consumer warpgroup to hide it"),
    "tail": ("the last store", "tail", "smaller tiles"),
    "hbm": (
        "HBM time that does not hide",
        "hbm",
        "fewer bytes: a narrower dtype, or more rows per launch",
    ),
    "hbm_rate": ("what HBM lacks of its peak", "", "fewer bytes, for no config changes it"),
    "few": (
        "too few CTAs to draw all that HBM gives",
        "hbm",
        "more CTAs that load at once, by smaller tiles or split_k",
    ),
    "again": (
        "B read by several tiles at once",
        "hbm",
        "taller tiles, of which fewer read the same rows of B",
    ),
    "adding": (
        "adding to D in L2",
        "hbm",
        "tiles of D whose rows are whole 128-byte lines, and D in 16 bits where that is enough",
    ),
    "sm": (
        "SM time that does not hide under HBM",
        "main",
        "more CTAs, by smaller tiles or split_k, so that each has less to do",
    ),
    "link": (
        "the link to other GPUs, where nothing hides it",
        "link",
        "ping_pong, of which one warpgroup multiplies while another sends, or wire=bf16 for sums",
    ),
    "ranks": (
        "other ranks, besides: CTAs out of step, or own rows copied first",
        "ranks",
        "smaller tiles, or rows written in place",
    ),
    "launch": (
        "launch, ramp and tail",
        "",
        "a CUDA graph, pdl or several GEMMs in one launch, for no tile changes it",
    ),
}
