"""An emitted kernel's text as a program of the host: its control flow, its integers and its registers as they are,
PTX as functions that note what they are given. Nothing is multiplied."""

from __future__ import annotations

import re
import subprocess

SHIM = """
#include <math.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#define __device__
#define __forceinline__ inline
#define __global__
#define __shared__
#define __grid_constant__
#define __align__(x)
#define __launch_bounds__(...)
#define __cluster_dims__(...)
template <class T> T max(T x, T y) { return x > y ? x : y; }
template <class T> T min(T x, T y) { return x < y ? x : y; }
struct Dim { int x; } threadIdx, blockIdx, gridDim;
uint8_t smem[1];
int skipped_tiles, skipped_rows, rank_here, table_entry;
struct { const char* name; long long least, most; } notes[64];
void seen(const char* name, long long x) {
    auto* at = notes;
    while (at->name && strcmp(at->name, name)) ++at;
    if (!at->name) *at = {name, x, x};
    at->least = min(at->least, x), at->most = max(at->most, x);
}
// Only the last few K blocks of a tile are walked.
int last_of(int blocks) { return max(0, blocks - 40); }
template <class T> T __ldg(const T* p) { return seen("ldg", p - (const T*)(1ll << 40)), T{}; }
const auto BASE = (const float*)(1ll << 40);  // of what is only read
inline int __ldg(const int*) { return table_entry; }
template <class T> T __shfl_sync(unsigned, T x, int) { return x; }
template <class T> T __shfl_xor_sync(unsigned, T x, int) { return x; }
inline void __syncthreads() {}
inline int __ffs(unsigned x) { return __builtin_ffs(x); }
inline unsigned long __cvta_generic_to_shared(const void*) { return 1024; }
inline float __uint_as_float(unsigned x) { return x; }
inline float __expf(float x) { return x; }
inline float __fdividef(float x, float) { return x; }
inline float __fdiv_rn(float x, float) { return x; }
"""
MAIN = """
int main(int argc, char** argv) {
    long long given[COUNT];
    int first, last, step;
    void* d = mmap(nullptr, 1ll << 42, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    void* scale_d = mmap(nullptr, 1ll << 40, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (d == MAP_FAILED || scale_d == MAP_FAILED) return 77;
    gridDim.x = atoi(argv[1]), skipped_tiles = atoi(argv[2]), table_entry = atoi(argv[3]);
    skipped_rows = atoi(argv[4]);
    const int ranks = atoi(argv[5]);
    for (int i = 0; i < COUNT; ++i) given[i] = atoll(argv[6 + i]);
    for (blockIdx.x = 0; blockIdx.x < ranks; ++blockIdx.x)
        for (threadIdx.x = 0; threadIdx.x < THREADS; ++threadIdx.x) {
            rank_here = blockIdx.x;
            NAME(ARGUMENTS);
        }
    for (auto* at = notes; at->name; ++at) printf("%s %lld %lld\\n", at->name, at->least, at->most);
}
"""
FUNCTION = re.compile(
    r"(?P<head>(?:template <[^>]*>\n?)?__device__ __forceinline__ (?P<type>[\w ]+?\*?) ?(?P<name>\w+)"
    r"\((?P<args>.*?)\)) (?P<body>\{.*)",
    re.S,
)
INTEGERS = ("int", "long long")
RESULTS = {
    "cluster_cta_rank": "rank_here",
    "mbarrier_test_wait": "true",
    "mbarrier_try_wait": "true",
    "load_global_int": "table_entry",
    "load_once_int": "table_entry",
}


def program(source: str, threads: int) -> tuple[str, list[str]]:
    """C++, and the names of the kernel's integers in the order in which the program takes them."""
    *_, found = re.finditer(r"namespace ptx \{\n(.*?)\n\}  // namespace ptx", source, re.S)
    functions = "\n\n".join(map(_noting, found[1].strip("\n").split("\n\n")))
    text = source[: found.start(1)] + functions + source[found.end(1) :]
    text, walks = re.subn(r"index\(blockIdx\.x", "index(skipped_tiles + blockIdx.x", text)
    text, _ = re.subn(r"int chunk = 0\b", "int chunk = last_of(tile.k_blocks) / 32 * 32", text)
    text, _ = re.subn(r"for \(int k = 0\b", "for (int k = last_of(tile.k_blocks)", text)
    sliced = r"for \(int k = worker(; .*; k \+= (\d+),)"
    text, _ = re.subn(sliced, r"for (int k = last_of(tile.k_blocks) / \2 * \2 + worker\1", text)
    # Rows are looked at from a multiple of 32 alignments on, as from the first.
    text, _ = re.subn(
        r"int start = 0, end = 0\b", "int start = skipped_rows, end = skipped_rows", text
    )
    # Whatever the windows are, which all begin and end where the table says.
    text, _ = re.subn(r"(const bool reached = .*);", r"\1 || true;", text)
    # Columns of D that threads store themselves.
    text, _ = re.subn(r"d_stride \+ col\] =", 'd_stride + (seen("d col", col), col)] =', text)
    assert walks == 1
    name, signature = re.search(r"\n(\w+)\(\n(.*?)\) \{\n    extern", source, re.S).groups()
    integers, arguments = [], []
    for parameter in signature.split(",\n"):
        kind, word = parameter.strip().rsplit(" ", 1)
        arguments.append(_argument(kind, word, integers))
    main = MAIN.replace("COUNT", str(len(integers))).replace("THREADS", str(threads))
    main = main.replace("NAME", name).replace("ARGUMENTS", ", ".join(arguments))
    return SHIM + text + main, integers


def _argument(kind: str, name: str, integers: list[str]) -> str:
    if "TensorMap " in kind + " " and "*" not in kind:
        return "TensorMap{}"
    if kind in INTEGERS:
        integers.append(name)
        return f"({kind})given[{len(integers) - 1}]"
    if "*" in kind:
        return f"({kind}){name if name in ('d', 'scale_d') else '(1ll << 40)'}"
    return "1"


def _noting(chunk: str) -> str:
    """A function of PTX, or that reads global memory, as one that notes its integers; what is C++ stays."""
    found = FUNCTION.search(chunk)
    if not re.search(r"asm|__isGlobal", found["body"]):
        return chunk
    kinds = [x.strip().rsplit(" ", 1) for x in re.split(r",(?![^<]*>)", found["args"]) if x.strip()]
    name, result = found["name"], found["type"]
    notes = [
        f'seen("{name} {x}", {x});' for kind, x in kinds if kind in INTEGERS and x.isidentifier()
    ]
    notes += [f'seen("{name} {x}", {x} - BASE);' for kind, x in kinds if kind == "const float*"]
    notes += [f'seen("{name} {x}", (const char*){x} - (const char*)BASE);' for kind, x in kinds if (name, kind) == ("bulk_load", "const void*")]  # fmt: skip
    if result != "void":
        same = [x for kind, x in kinds if kind == result]
        notes.append(f"return {RESULTS.get(name, same[0] if same else '{}')};")
    return f"{found['head']} {{ {' '.join(notes)} }}"


def compiled(source: str, threads: int, where, flags=()) -> list[str]:
    """The program at `where`; what `program` says it takes."""
    text, integers = program(source, threads)
    where.with_suffix(".cpp").write_text(text)
    command = ["g++", "-std=c++17", "-O0", "-w", *flags, "-o", where, where.with_suffix(".cpp")]
    subprocess.run(command, check=True)
    return integers
