"""What gemmgen asks of torch tensors: dtype, shape, stride and device checks, streams, allocation."""

from __future__ import annotations

import sys
from collections.abc import Callable
from functools import cache, partial
from typing import Any

from ..errors import ArgumentError, RuntimeUnavailable
from ..ir.dtypes import BF16, E4M3, E5M2, F16, F32, S8, S32, DType
from .arrays import Array, ArrayDevice

NAMES = {  # torch's, of dtypes
    BF16: "bfloat16",
    F16: "float16",
    F32: "float32",
    E4M3: "float8_e4m3fn",
    E5M2: "float8_e5m2",
    S8: "int8",
    S32: "int32",
}


@cache
def torch() -> Any:
    """torch. Raises RuntimeUnavailable if it is not installed."""
    try:
        import torch as module
    except ImportError as e:
        raise RuntimeUnavailable(f"torch is not installed ({e}). Run: pip install torch") from e
    return module


@cache
def torch_dtype(dtype: DType) -> Any:
    return getattr(torch(), NAMES[dtype])


def dtype_of(argument: str, tensor: Any, allowed: tuple[DType, ...]) -> DType:
    """The gemmgen dtype of `tensor`. Raises ArgumentError if it is none of `allowed`."""
    if isinstance(tensor, Array):
        if tensor.dtype not in allowed:
            said = f"must be {' or '.join(map(str, allowed))}; see gemmgen.as_tensor"
            raise ArgumentError(f"{argument} dtype", str(tensor.dtype), said)
        return next(dtype for dtype in allowed if dtype == tensor.dtype)
    require_tensor(argument, tensor)
    for dtype in allowed:
        if tensor.dtype == torch_dtype(dtype):
            return dtype
    names = " or ".join(str(torch_dtype(t)) for t in allowed)
    raise ArgumentError(f"{argument} dtype", tensor.dtype, f"must be {names}")


def check_tensor(
    argument: str,
    tensor: Any,
    dtype: DType,
    shape: tuple[int | None, ...],
    device: Any = None,
    *,
    contiguous: bool = False,
) -> tuple[int, ...]:
    """`tensor`'s shape, once it is a CUDA tensor of `dtype` and `shape` (None: any) on `device`,
    with a contiguous last dimension if asked for. Raises ArgumentError naming `argument`."""
    dtype_of(argument, tensor, (dtype,))
    if tensor.device.type != "cuda" or (device is not None and tensor.device != device):
        allowed = "must be on a CUDA device" if device is None else f"must be on {device}, as a is"
        raise ArgumentError(f"{argument} device", str(tensor.device), allowed)
    got = tuple(tensor.shape)
    if len(got) != len(shape) or any(w not in (None, g) for g, w in zip(got, shape, strict=True)):
        want = ", ".join("any" if s is None else str(s) for s in shape)
        raise ArgumentError(f"{argument} shape", got, f"must be [{want}]")
    if contiguous and got[-1] > 1 and tensor.stride(-1) != 1:
        raise ArgumentError(f"{argument} last stride", tensor.stride(-1), "must be 1")
    if any(s < 0 for s in tensor.stride()):
        raise ArgumentError(f"{argument} strides", tensor.stride(), "must not be negative")
    return got


def check_apart(argument: str, tensor: Any, others: dict[str, Any]) -> None:
    """Raise ArgumentError if `tensor` may share memory with one of `others`, by name."""
    first, end, pitch = _extent(tensor)
    for name, other in others.items():
        start, stop, step = _extent(other)
        if first < stop and start < end and not (pitch == step and _side_by_side(tensor, other)):
            raise ArgumentError(argument, hex(first), f"must not overlap {name}")


def same_memory(x: Any, y: Any) -> bool:
    """Whether two arguments are tensors or arrays, and those one matrix in memory."""
    if not all(isinstance(t, Array) or _is_torchs(t) for t in (x, y)):
        return False
    one, other = ((t.data_ptr(), tuple(t.shape), t.stride(), t.dtype) for t in (x, y))
    return x is y or one == other


def _extent(t: Any) -> tuple[int, int, int]:
    """Address, end and bytes per row."""
    last = sum((s - 1) * d for s, d in zip(t.shape, t.stride(), strict=True)) if t.numel() else -1
    size = t.element_size()
    return t.data_ptr(), t.data_ptr() + (last + 1) * size, t.stride(-2) * size if t.dim() > 1 else 0


def _side_by_side(x: Any, y: Any) -> bool:
    """Whether two matrices, or groups of them, of one pitch are different columns of one parent."""
    pitch = x.stride(-2) * x.element_size()
    leading = [s * t.element_size() for t in (x, y) for s in t.stride()[:-2]]
    if not pitch or any(step % pitch for step in leading):
        return False
    shift = (y.data_ptr() - x.data_ptr()) % pitch
    return bool(
        x.shape[-1] * x.element_size() <= shift and shift + y.shape[-1] * y.element_size() <= pitch
    )


def empty(shape: tuple[int, ...], dtype: DType, device: Any, argument: str = "out") -> Any:
    """An uninitialised tensor [..., rows, columns] whose row stride is a multiple of 16 bytes. Raises
    ArgumentError naming `argument` where the operands are not torch's."""
    return maker(shape, dtype, device, argument)()


def maker(
    shape: tuple[int, ...], dtype: DType, device: Any, argument: str = "out"
) -> Callable[[], Any]:
    """Of tensors as `empty` returns: what does not change from one to the next is found out now. Raises as that."""
    if isinstance(device, ArrayDevice):
        raise ArgumentError(argument, None, "must be given: gemmgen allocates torch's tensors only")
    *lead, cols = shape
    step = 16 // dtype.bytes
    pitch = -(-cols // step) * step
    wide = partial(torch().empty, *lead, pitch, dtype=torch_dtype(dtype), device=device)
    return wide if pitch == cols else lambda: wide()[..., :cols]  # a view takes longer than wide


def mn_major(scales: Any) -> Any:
    """`scales` [..., M, blocks] copied so that M is contiguous and columns are 16-byte aligned."""
    if isinstance(scales, Array):
        raise ArgumentError("layout", "row", "must be 'mn': gemmgen copies torch's tensors only")
    *lead, m, blocks = scales.shape
    pitch = -(-m // 4) * 4
    copied = torch().empty(*lead, blocks, pitch, dtype=scales.dtype, device=scales.device)
    copied[..., :m] = scales.mT
    return copied[..., :m].mT


def current_stream(device: Any) -> int:
    """The raw handle of torch's current stream on `device`, or an array's own."""
    return reader_of(device)(device.index)


def on_stream(handle: int, index: int) -> Any:
    """A context in which the stream of that raw handle is torch's current one on CUDA device `index`."""
    cuda = torch().cuda
    # Of handle 0, the default stream's, ExternalStream would make a new stream.
    stream = cuda.ExternalStream(handle, index) if handle else cuda.default_stream(index)
    return cuda.stream(stream)


def reader_of(device: Any) -> Callable[[int], int]:
    """As `stream_reader`; for arrays that are not torch's the stream that they are used on."""
    return (lambda index: device.stream) if isinstance(device, ArrayDevice) else stream_reader()


@cache
def stream_reader() -> Callable[[int], int]:
    """Finds the raw handle of torch's current stream on a CUDA device, by its number. The public API takes
    40 times as long as the function that torch's own compiler calls: it makes an object."""
    raw: Callable[[int], int] | None = getattr(torch()._C, "_cuda_getCurrentRawStream", None)
    return raw or (lambda index: int(torch().cuda.current_stream(index).cuda_stream))


def _is_torchs(x: Any) -> bool:
    """Whether `x` is a torch tensor; there is none before torch is imported."""
    return "torch" in sys.modules and isinstance(x, torch().Tensor)


def require_tensor(argument: str, tensor: Any) -> None:
    """Raise ArgumentError unless `tensor` is a torch tensor."""
    if not _is_torchs(tensor):
        allowed = "must be a torch tensor, or an array on the GPU"
        raise ArgumentError(argument, type(tensor).__name__, allowed)
