"""What the hardware allows. Numbers only; no decisions.

Sources: CUDA C++ Programming Guide, compute capability 9.0 table; PTX ISA (mbarrier, setmaxnreg,
cp.async.bulk.tensor, wgmma); CUDA driver API, cuTensorMapEncodeTiled.
"""

from __future__ import annotations

from dataclasses import dataclass

GPC_SMS = 16  # of each GPC, which has so many SMs or two more; a cluster lies in one


def clusters(sms: int, size: int) -> int:
    """How many clusters of `size` CTAs run at once on `sms` SMs, one CTA per SM. GPCs with two SMs more hold
    another pair, but no larger cluster; fewer SMs than a GPC has are one."""
    return sms // size if size <= 2 or sms < GPC_SMS else sms // GPC_SMS * (GPC_SMS // size)


@dataclass(frozen=True, kw_only=True)
class Target:
    name: str
    device_name: str  # as the driver spells it
    sms: int
    hbm_bytes_per_second: float
    arch: str = "sm_90a"
    virtual_arch: str = "compute_90a"
    clock_hz: float = 1.755e9  # sustained SM clock the cost model assumes
    smem_bytes: int = 232448  # dynamic shared memory one CTA may use
    registers_per_sm: int = 65536
    setmaxnreg_min: int = 24
    setmaxnreg_max: int = 256
    setmaxnreg_step: int = 8
    registers_per_thread: int = 255
    tma_box: int = 256  # elements along any box dimension
    tma_alignment: int = 16  # bytes: global addresses, strides and the inner box
    mbarrier_tx_limit: int = (1 << 20) - 1
    cluster_max: int = 8
    warp: int = 32
    warpgroup: int = 128
    wgmma_m: int = 64
    wgmma_n: int = 256  # at most
    wgmma_k_bytes: int = 32
    banks: int = 32
    bank_bytes: int = 4
    l2_bytes_per_clock: float = 6154.0
    smem_bytes_per_clock: float = 128.0  # per SM
    fp8_flops_per_clock: float = 8192.0  # per SM, dense

    def clusters(self, size: int) -> int:
        """How many clusters of `size` CTAs run at once, one CTA per SM."""
        return clusters(self.sms, size)


H100 = Target(
    name="H100 SXM", device_name="NVIDIA H100 80GB HBM3", sms=132, hbm_bytes_per_second=3.35e12
)
H200 = Target(name="H200", device_name="NVIDIA H200", sms=132, hbm_bytes_per_second=4.8e12)
