"""What the hardware allows. Numbers only; no decisions.

Sources: CUDA C++ Programming Guide, compute capability 9.0 table; PTX ISA (mbarrier, setmaxnreg,
cp.async.bulk.tensor, wgmma); CUDA driver API, cuTensorMapEncodeTiled.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

GPC_SMS = 16  # about as many as a GPC has; a cluster lies in one GPC
# Clusters of so many CTAs that an H200's 132 SMs run at once, as cuOccupancyMaxActiveClusters says: what is left of
# a GPC's SMs holds no other. Of sixteen at most half as many as of eight: they are refused, and priced only to say so.
H200_SMS, AT_ONCE = 132, {4: 30, 8: 15, 16: 7}


def clusters(sms: int, size: int) -> int:
    """How many clusters of `size` CTAs run at once on `sms` SMs, one CTA per SM: pairs fill them, fewer SMs
    than a GPC has are one, and of more the share that is filled is an H200's."""
    return sms // size if size <= 2 or sms < GPC_SMS else sms * AT_ONCE[size] // H200_SMS


MEASURED = "measured"  # what the cost model's constants were fitted to
ASSUMED = "assumed"  # from data sheets, or the driver's attributes
CALIBRATED = "calibrated"  # by `gemmgen tune --calibrate`, on this machine


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
    smem_per_sm: int = 233472  # of all CTAs on an SM, of which the system takes `smem_system` each
    smem_system: int = 1024
    threads_per_sm: int = 2048
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
    fp8_flops_per_clock: float = 8192.0  # per SM, dense: of operands of 8 bits
    wide_flops_per_clock: float | None = None  # of 16 bits; None: half as many
    launch_seconds: float = (
        3e-6  # of ramp and tail: what the fastest kernel that only reads takes besides its bytes
    )
    # Of NVLink, one way, what stores to other GPUs reach; None: none. And how many GPUs of a host it joins at most.
    link_bytes_per_second: float | None = None
    linked: int = 8
    figures: str = ASSUMED  # what rates and seconds are

    def flops_per_clock(self, operand_bytes: int) -> float:
        """Of one SM's tensor cores, dense."""
        if operand_bytes == 2 and self.wide_flops_per_clock is not None:
            return self.wide_flops_per_clock
        return self.fp8_flops_per_clock / operand_bytes

    @property
    def rates(self) -> str:
        """What it is priced by, and what these figures are."""
        peaks = (self.sms * self.flops_per_clock(size) * self.clock_hz for size in (1, 2))
        eight, sixteen = (f"{peak * 1e-12:.0f}" for peak in peaks)
        return (
            f"{self.sms} SMs at {self.clock_hz * 1e-9:.3f} GHz, {self.hbm_bytes_per_second * 1e-12:.2f} TB/s, "
            f"{eight} TFLOP/s of 8 bits, {sixteen} of 16; figures {self.figures}"
        )

    def clusters(self, size: int) -> int:
        """How many clusters of `size` CTAs run at once, one CTA per SM."""
        return clusters(self.sms, size)


# NVLink as data sheets have it, both ways: 900 GB/s of H100, H200 and GH200 (fourth generation, 18 links), and of H20 as the press
# has it; 600 of an H100 NVL, whose bridge joins two boards; 900 of an H200 NVL, whose bridge joins four; 400 of an H800. A PCIe
# board is taken to be alone: a bridge, which joins two, is an option. One way it is half of that, of which stores of
# all SMs reach 365 GB/s on two H100s and 386 on two H200s; the share on an H100 is assumed of all others.
SHEET, MEASURED_H100, MEASURED_H200 = 900e9, 365e9, 386e9


def stored(sheet: float) -> float:
    """Bytes per second that stores to another GPU are taken to reach. sheet: both ways, as a data sheet has it."""
    return MEASURED_H100 * sheet / SHEET


# By what the driver calls them. SMs and bandwidth: NVIDIA's data sheets of H100 (SXM 3.35, PCIe 2.0, NVL 3.9 TB/s), H200 (4.8 TB/s)
# and GH200 (4.0 TB/s with 96 GB HBM3, 4.9 with 144 GB HBM3e), and the architecture's white paper (132 SMs of an SXM, 114 of a PCIe
# board). No sheet says the SMs of NVL boards and GH200: an SXM's are assumed; and an H800 is taken for an H100 with slower links.
# Of the H20 NVIDIA publishes none: 78 SMs, 4.0 TB/s and 296 dense FP8 TFLOP/s are what sellers and the press say alike. Nothing
# here but an H200 was measured, and NVLink of an H100.
H100 = Target(
    name="H100 SXM",
    device_name="NVIDIA H100 80GB HBM3",
    sms=132,
    hbm_bytes_per_second=3.35e12,
    link_bytes_per_second=MEASURED_H100,
)
H200 = Target(
    name="H200",
    device_name="NVIDIA H200",
    sms=132,
    hbm_bytes_per_second=4.8e12,
    link_bytes_per_second=MEASURED_H200,
    figures=MEASURED,
)
TARGETS = (
    H200,
    H100,
    replace(
        H200,
        name="H200 NVL",
        device_name="NVIDIA H200 NVL",
        link_bytes_per_second=stored(900e9),
        linked=4,
        figures=ASSUMED,
    ),
    replace(
        H100,
        name="H100 PCIe",
        device_name="NVIDIA H100 PCIe",
        sms=114,
        hbm_bytes_per_second=2.0e12,
        link_bytes_per_second=None,
    ),
    replace(
        H100,
        name="H100 NVL",
        device_name="NVIDIA H100 NVL",
        hbm_bytes_per_second=3.9e12,
        link_bytes_per_second=stored(600e9),
        linked=2,
    ),
    replace(
        H100,
        name="H800 SXM",
        device_name="NVIDIA H800",
        link_bytes_per_second=stored(400e9),
    ),
    replace(
        H100,
        name="H800 PCIe",
        device_name="NVIDIA H800 PCIe",
        sms=114,
        hbm_bytes_per_second=2.0e12,
        link_bytes_per_second=None,
    ),
    replace(
        H100,
        name="H20",
        device_name="NVIDIA H20",
        sms=78,
        hbm_bytes_per_second=4.0e12,
        fp8_flops_per_clock=296e12 / 78 / Target.clock_hz,
    ),
    replace(H100, name="GH200", device_name="NVIDIA GH200 480GB", hbm_bytes_per_second=4.0e12),
    replace(
        H200,
        name="GH200 144G",
        device_name="NVIDIA GH200 144G HBM3e",
        hbm_bytes_per_second=4.9e12,
        link_bytes_per_second=stored(900e9),
        figures=ASSUMED,
    ),
)
BY_DEVICE = {t.device_name: t for t in TARGETS}


def named(device_name: str) -> Target | None:
    """The target that the driver calls so, if it is known."""
    return BY_DEVICE.get(device_name)
