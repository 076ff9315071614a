"""Which kernel a launch gets: of the config that was given, or of the choice; compiled once, loaded once."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from functools import lru_cache, partial

from ..config import Config
from ..heuristics import ANY
from ..heuristics.tuned import Pick, databases, pick
from ..pipeline import compile_to_source
from ..problem import Problem, Shape
from ..runtime import devices, driver, nvrtc
from ..runtime.cache import cached_cubin
from ..runtime.cache_index import Compiler, Ready, ready
from ..runtime.cache_index import refused as kept_refusal
from ..runtime.compiled import Compiled
from ..runtime.devices import by_name, target_of
from ..runtime.launch import LoadedKernel
from ..runtime.nvrtc import compile_cubin
from ..runtime.sms import limited
from ..target import H200, Target
from . import dependent, invariance, refused


@lru_cache(maxsize=256)
def loaded(p: Problem, c: Config, device: int) -> LoadedKernel:
    """The kernel for `p` and `c`, compiled (or compiled before: `runtime.cache`) and loaded on CUDA device
    `device`, kept for next time."""
    return _load(p, c, device)


@lru_cache(maxsize=256)
def given(p: Problem, c: Config, device: int) -> LoadedKernel:
    """As `loaded`, of a config that the caller gave: where it needs more registers than there are, it is built
    `sparing` of them."""
    return refused.as_given(p, c, partial(loaded, p, c, device), partial(_load, p, c, device))


def _load(p: Problem, c: Config, device: int) -> LoadedKernel:
    found = built(p, c)
    return LoadedKernel(found.kernel, found.cubin, device)


def built(p: Problem, c: Config, compiler: Compiler = compile_cubin) -> Ready:
    """The kernel for `p` and `c`, from the disk if it is there, else through the compiler and `compiler`."""
    return ready(asked(p, c), lambda: compile_to_source(p, c), compiler)


def asked(p: Problem, c: Config) -> str:
    """What a kernel is found by on the disk."""
    # The representation has every field and tells -0.0 from 0.0, which are equal and compile to other code.
    return f"{p!r} {c!r}"


def compiled(p: Problem, c: Config) -> Compiled:
    """The kernel for `p` and `c`, compiled (or compiled before), to look into. Needs NVRTC, no GPU.

    Raises UnsupportedProblem, IllegalConfig, CompileError and RuntimeUnavailable.
    """
    a = compile_to_source(p, c)
    return Compiled(a.kernel, cached_cubin(a.source, a.name), a.source)


def chosen(
    p: Problem, shape: Shape, groups: int = 1, device: int = 0, split_k: int | None = None
) -> Config:
    """The measured config for `groups` GEMMs of shape (M, N, K) on CUDA device `device`, or else what the cost
    model chooses (`gemmgen.heuristics.tuned`), kept for next time; with `pdl` if the process is told (`set_pdl`). Not one that the build is known to refuse.
    split_k: CTAs that divide K, 0 for as many as pay; None: as the process is told (`set_invariant`)."""
    if split_k is None:
        split_k = invariance.split_of(p, *shape[1:])
    c = kept_choice(p, shape, groups, device, len(refused.known(p)), split_k)
    return dependent.as_asked(p, c)


@lru_cache(maxsize=4096)
def kept_choice(
    p: Problem, shape: Shape, groups: int, device: int, unbuilt: int, split_k: int
) -> Config:
    """As `chosen`. unbuilt: how many configs the build is known to refuse, which may change the choice.
    split_k: CTAs that divide K, ANY to choose."""
    name, target = priced_for(device)
    return picked_for(p, shape, groups, name, target, split_k).config


def forget_figures() -> None:
    """After a GPU was calibrated: what is priced for, and what was chosen by that."""
    devices.forget()
    kept_choice.cache_clear()


def priced_for(device: int) -> tuple[str, Target]:
    """The name of CUDA device `device`, and what configs are priced for there."""
    name = driver.require_hopper(device)
    return name, limited(target_of(device, name))


def chosen_by(device: int) -> str:
    """A digest of what decides, besides a launch, which config is chosen for it on CUDA device `device`, and whether the build takes it: figures, databases,
    the compiler, whether bits may depend on the batch. Processes for which it differs may choose differently. Raises RuntimeUnavailable."""
    settings = (invariance.is_invariant(), dependent.asked)
    figures = (repr(priced_for(device)), repr(settings), nvrtc.build())
    digest = hashlib.sha256("\n".join(figures).encode())
    for path in databases():
        digest.update(path.read_bytes() if path.is_file() else b"")
    return digest.hexdigest()


def loaded_choice(
    p: Problem, shape: Shape, groups: int, device: int, split_k: int = ANY
) -> LoadedKernel:
    """As `loaded`, of the config that is `chosen`, or where the build refuses that, of the next."""

    def choose(unbuilt: Mapping[Config, str]) -> Pick:
        return Pick(config=chosen(p, shape, groups, device, split_k))

    return refused.first_built(p, choose, lambda c: loaded(p, c, device))[1]


def config_for(
    p: Problem,
    shape: Shape,
    groups: int,
    device_name: str,
    split_k: int | None = None,
    pointers: bool = True,
) -> Config:
    """As `chosen`, for a device by name, which need not be here. split_k: as of `kept_choice`; None: as the process is told
    (`set_invariant`). pointers: as of `heuristics.choose`. Compiles nothing."""
    picked = picked_for(p, shape, groups, device_name, split_k=split_k, pointers=pointers)
    return dependent.as_asked(p, picked.config)


def target_named(device_name: str) -> Target:
    """What configs are priced for on the device of that name, an H200 if no such is known."""
    return limited(by_name(device_name) or H200)


def picked_for(
    p: Problem,
    shape: Shape,
    groups: int,
    device_name: str,
    target: Target | None = None,
    split_k: int | None = None,
    pointers: bool = True,
) -> Pick:
    """As `config_for`, with where it comes from. target: None for `target_named`."""
    target = target or target_named(device_name)
    if split_k is None:
        split_k = invariance.split_of(p, *shape[1:])

    def build(c: Config) -> None:
        if error := kept_refusal(asked(p, c)):
            raise error

    def choose(unbuilt: Mapping[Config, str]) -> Pick:
        known = dependent.before(unbuilt)
        return pick(
            p, shape, target, groups, device_name, known, split_k=split_k, pointers=pointers
        )

    return refused.first_built(p, choose, build)[0]
