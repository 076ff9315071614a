"""The translation unit around a kernel's statements, in the IR's words: parameters, launch bounds, where shared
memory's parts lie, who takes which role, and the functions and structs beside the kernel.

`PROLOGUE` and `ROLE_0` stand for statements. The structs Tile and Scheduler are there; what they hold is the
schedule audit's.
"""

from __future__ import annotations

from ..ir import nodes as ir
from .parts import index

TYPES = """
#ifdef __CUDACC_RTC__
typedef unsigned char uint8_t;
typedef unsigned short uint16_t;
typedef unsigned int uint32_t;
typedef unsigned long long uint64_t;
#else
#include <cstdint>
#endif
struct alignas(64) TensorMap { char opaque[128]; };
"""

TILES = """
struct Tile {};
struct Scheduler {};
"""
RING = """
struct Ring {
    int stage = 0;
    uint32_t phase = 0;
    __device__ void advance() { if (++stage == STAGES) stage = 0, phase ^= 1; }
    __device__ int previous() const { return stage == 0 ? STAGES - 1 : stage - 1; }
};
"""

SLICED_RING = """
struct Ring {
    int stage = 0;
    uint32_t phase = 0;
    __device__ void advance() { if (++stage == STAGES) stage = 0, phase ^= 1; }
    __device__ void skip(int blocks) { stage += blocks; if (stage >= STAGES) stage -= STAGES, phase ^= 1; }
    __device__ void back(int blocks) { stage -= blocks; if (stage < 0) stage += STAGES, phase ^= 1; }
    __device__ int before(int blocks) const { return stage < blocks ? stage + STAGES - blocks : stage - blocks; }
};
"""

# What epilogues call (gemmgen/ir/spelling.py), and the rounding of two values, the first computed first.
FUNCTIONS = """
__device__ __forceinline__ uint32_t pair_bf16(float low, float high) { return "cvt.rn.bf16x2.f32"($r, high, low); }
__device__ __forceinline__ uint32_t pair_f16(float low, float high) { return "cvt.rn.f16x2.f32"($r, high, low); }
__device__ __forceinline__ float load_once_float(const float* from) { return $once("ld.global.f32"($f, [from])); }
__device__ __forceinline__ int load_once_int(const int* from) { return $once("ld.global.s32"($r, [from])); }
template <typename T> __device__ __forceinline__ const T* opaque(const T* p) { return $opaque(p); }
template <int kStep> __device__ __forceinline__ float paced(float x, int i) {
    if (i % kStep == 0) "bar.warp.sync"(0xFFFFFFFF);
    return x;
}
__device__ __forceinline__ float element_f32(const float* at, int which) {
    __builtin_assume(__isGlobal(at));
    const uint64_t pair = *reinterpret_cast<const uint64_t*>(at);
    return __uint_as_float(uint32_t(which ? pair >> 32 : pair));
}
__device__ __forceinline__ float element_bf16(const uint16_t* at, int which) {
    __builtin_assume(__isGlobal(at));
    const uint32_t pair = *reinterpret_cast<const uint32_t*>(at);
    return __uint_as_float(which ? pair & 0xFFFF0000 : pair << 16);
}
__device__ __forceinline__ float element_f16(const uint16_t* at, int which) {
    __builtin_assume(__isGlobal(at));
    const uint32_t pair = *reinterpret_cast<const uint32_t*>(at);
    return "cvt.f32.f16"($f, uint16_t(which ? pair >> 16 : pair));
}
"""

TRY_WAIT = '"selp.u32"($r, 1, 0, "mbarrier.try_wait.parity.shared::cta.b64"($pred, [bar], parity))'
NANOSECONDS = '"mov.u64"($l, "%globaltimer")'
CYCLES = '"mov.u64"($l, "%clock64")'

SEEN = '"ld.acquire.gpu.global.u32"($r, [flag])'
REACHED = '"ld.acquire.sys.global.u64"($l, [flag])'
ONE_OF_A_WARP = "if (threadIdx.x % 32 == 0) "


def watched(over: str, who: str) -> str:
    """A wait that returns only where `over` was seen to hold. who: the condition of threads that report."""
    return f"""
    if ({over}) return;
    const uint64_t since = {NANOSECONDS};
    while (!{over}) {{
        if ({NANOSECONDS} - since < 2000000000ull) continue;
        {who}{{
            const unsigned entry = atomicAdd_system(&report->count, 1u);
            if (entry < 2047) report->entries[entry] = stuck;
            __threadfence_system();
        }}
        const uint64_t reported = {NANOSECONDS};
        while ({NANOSECONDS} - reported < 200000000ull) {{}}
        __trap();
    }}"""


WATCHDOG = f"""
struct Stuck {{ int cta, role, barrier, stage, parity, row, col, k; }};
struct Watchdog {{ unsigned count, unused[7]; Stuck entries[2047]; }};
__device__ __forceinline__ void watchdog_wait(Watchdog* report, uint32_t bar, uint32_t parity, Stuck stuck) {{
    {watched(f"bool({TRY_WAIT})", ONE_OF_A_WARP)}
}}
"""
WATCHDOG_FLAG = f"""
__device__ __forceinline__ void watchdog_wait_flag(Watchdog* report, const void* flag, Stuck stuck) {{
    {watched(f"(uint32_t({SEEN}) != 0)", "")}
}}
"""

WATCHDOG_EPOCH = f"""
__device__ __forceinline__ void watchdog_wait_epoch(Watchdog* report, const void* flag, uint64_t epoch, Stuck stuck) {{
    {watched(f"(uint64_t({REACHED}) >= epoch)", "")}
}}
"""


def stamps(k: ir.Kernel) -> str:
    """One thread of a warpgroup writes, all count. The predicate is the store's, so no branch is between products."""
    warpgroups = k.threads // 128
    word = '"mov.u32"($b32, "%clock")'
    where = f"&ring->newest[count++ % {k.stamps}]"
    store = f'"st.global.v4.b32"([{where}], {{{word}, event, of_tile, k}})'
    return f"""
struct alignas(16) Stamp {{ uint32_t clock, event; int tile, k; }};
struct alignas(16) StampRing {{
    uint64_t opened, opened_ns, closed, closed_ns;
    uint32_t count, unused[7];
    Stamp newest[{k.stamps}];
}};
struct Stamps {{
    StampRing* ring;
    bool writes = threadIdx.x % 128 == 0;
    uint32_t count = 0;
    int tile = -1;
    __device__ Stamps(StampRing* rings, int warpgroup) : ring(rings + blockIdx.x * {warpgroups} + warpgroup) {{
        if (writes) ring->opened_ns = {NANOSECONDS}, ring->opened = {CYCLES};
    }}
    __device__ void add(uint32_t event, int of_tile, int k) {{
        $when("setp.ne.b32"($pred, int(bool(writes)), 0), {store});
    }}
    __device__ void close() {{
        if (writes) ring->closed_ns = {NANOSECONDS}, ring->closed = {CYCLES}, ring->count = count;
    }}
}};
"""


DEVICE_CODE = {
    "watchdog": lambda k: WATCHDOG,
    "watchdog_flag": lambda k: WATCHDOG_FLAG,
    "watchdog_epoch": lambda k: WATCHDOG_EPOCH,
    "stamps": stamps,
}


def text(k: ir.Kernel) -> str:
    c, b = k.cluster, k.block
    divided = f", CLUSTER_K = {c.k}" if c.k > 1 else ""
    return "\n".join(
        (
            TYPES,
            f"constexpr int BLOCK_M = {b.m}, BLOCK_N = {b.n}, BLOCK_K = {b.k};",
            f"constexpr int CLUSTER_M = {c.m}, CLUSTER_N = {c.n}{divided};",
            *[f"constexpr int STAGES = {k.stages};"] * k.ring,
            f"namespace ptx {{ {FUNCTIONS} }}",
            *(DEVICE_CODE[name](k) for name in k.device_code),
            TILES,
            *[SLICED_RING if k.consumer.slices > 1 else RING] * k.ring,
            head(k),
            f"{{ {shared(k)} PROLOGUE; {start(k)} {roles(k)} }}",
        )
    )


def head(k: ir.Kernel) -> str:
    maps = [f"const __grid_constant__ TensorMap {m.name}" for m in k.maps]
    parameters = ", ".join((*maps, *(f"{p.ctype} {p.name}" for p in k.params)))
    bounds = f"__launch_bounds__({k.threads}, {k.per_sm})"
    bounds += f" __cluster_dims__({k.cluster.size}, 1, 1)" * (k.cluster.size > 1)
    return f'extern "C" __global__ void {bounds} {k.name}({parameters})'


def shared(k: ir.Kernel) -> str:
    """Where the parts of shared memory lie, and who a thread is."""
    base = "uint32_t(__cvta_generic_to_shared(smem))"
    number = "__shfl_sync(0xffffffff, threadIdx.x / 128, 0)"
    shared = {s.name: s.offset for s in k.smem if s.copies == 1}
    places = {**shared, **{b.name: b.offset for b in k.barriers}}
    lines = [
        "extern __shared__ __align__(1024) uint8_t smem[]",
        f"const uint32_t smem_base = {f'$opaque({base})' if k.keeps_address else base}",
        *(f"const uint32_t {name} = smem_base + {at}" for name, at in places.items()),
        f"const int {index(k)} = {number}",
        *["constexpr int warpgroup = 0"] * k.consumer.numbered,
        "const int warp = threadIdx.x / 32 % 4, lane = threadIdx.x % 32",
        'const int cta_rank = "mov.u32"($r, "%cluster_ctarank")',
    ]
    return "".join(f"{line};" for line in lines)


def start(k: ir.Kernel) -> str:
    depth = "const int depth = (shape_k + BLOCK_K - 1) / BLOCK_K * BLOCK_K;" * k.groups.summed
    all_k = "depth * groups" if k.groups.summed else "shape_k"
    parameters = ("shape_m", "shape_n", all_k, *k.scheduler.params)
    return f"{depth}Scheduler scheduler({', '.join(parameters)});{' Ring ring;' * k.ring}"


def roles(k: ir.Kernel) -> str:
    return " else ".join(
        f"if ({index(k)} < {r.warpgroups[1]}) {{ {own(k, r)} ROLE_{i}; }}"
        for i, r in enumerate(k.roles)
    )


def own(k: ir.Kernel, r: ir.Role) -> str:
    """What a role has for itself: its copies of buffers, and registers."""
    copies = [s for s in k.smem if s.copies == r.turns > 1]
    at = (f"smem_base + {s.offset} + worker * {s.copy_bytes}" for s in copies)
    lines = [f"const uint32_t {s.name} = {x};" for s, x in zip(copies, at, strict=True)]
    return "".join((*lines, *(f"{x.dtype.cuda} {x.name}[{x.count}];" for x in r.locals)))
