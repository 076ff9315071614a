"""`import deep_gemm` without DeepGEMM: `install`, the modules that it serves, and `deep_gemm.testing`."""

from __future__ import annotations

import importlib
import importlib.util
import sys
from types import ModuleType, SimpleNamespace

import numpy as np
import pytest

from gemmgen.compat import deep_gemm
from gemmgen.compat.deep_gemm import legacy, mega, stand_in, testing, utils
from gemmgen.compat.deep_gemm.testing import numeric
from gemmgen.errors import ArgumentError, UnsupportedProblem

MODULES = {
    "deep_gemm": "fp8_gemm_nt bf16_gemm_nt einsum utils testing ceil_div __version__",
    "deep_gemm.utils": "math layout dist ceil_div align per_token_cast_to_fp8 per_token_cast_to_fp4 "
    "get_tma_aligned_size get_mk_alignment_for_contiguous_layout init_dist",
    "deep_gemm.utils.math": "ceil_div align per_token_cast_to_fp8 per_channel_cast_to_fp8 "
    "per_block_cast_to_fp8 per_custom_dims_cast_to_fp8 ceil_to_ue8m0 pack_ue8m0_to_int unpack_ue8m0_from_int "
    "transpose_packed_fp4 cast_back_from_fp4",
    "deep_gemm.utils.layout": "get_tma_aligned_size get_mn_major_tma_aligned_tensor "
    "get_mn_major_tma_aligned_packed_ue8m0_tensor get_k_grouped_mn_major_tma_aligned_packed_ue8m0_tensor set_mk_alignment_for_contiguous_layout "
    "get_theoretical_mk_alignment_for_contiguous_layout get_m_alignment_for_contiguous_layout",
    "deep_gemm.legacy": "m_grouped_bf16_gemm_nt_contiguous_tl m_grouped_bf16_gemm_nn_contiguous_tl "
    "a_fused_m_grouped_bf16_gemm_nt_contiguous_tl a_fused_m_grouped_bf16_gemm_nn_contiguous_tl "
    "a_fused_k_grouped_bf16_gemm_tn_contiguous_tl b_fused_k_grouped_bf16_gemm_tn_contiguous_tl",
    "deep_gemm.mega": "SymmBuffer get_symm_buffer_for_mega_moe transform_weights_for_mega_moe fp8_fp4_mega_moe bf16_mega_moe",
    "deep_gemm.utils.dist": "init_dist uneven_all_gather dist_print",
    "deep_gemm.testing": "bench bench_kineto calc_diff count_bytes assert_bitwise_equal get_arch_major "
    "test_filter ignore_env numeric utils",
    "deep_gemm.testing.bench": "bench bench_kineto empty_suppress suppress_stdout_stderr",
    "deep_gemm.testing.numeric": "calc_diff count_bytes assert_bitwise_equal",
    "deep_gemm.testing.utils": "get_arch_major test_filter ignore_env",
}


@pytest.fixture(autouse=True)
def alone(monkeypatch):
    """No module of that name before the test, nor what the test brought after it."""
    held = {name: sys.modules.pop(name) for name in stand_in._loaded()}
    yield
    deep_gemm.uninstall()
    for name in stand_in._loaded():
        del sys.modules[name]
    sys.modules.update(held)
    deep_gemm.utils, deep_gemm.testing, deep_gemm.mega = utils, testing, mega
    deep_gemm.legacy = legacy


def installed():
    deep_gemm.install()


def put_there():
    """What a program does that knows nothing of `install`."""
    sys.modules["deep_gemm"] = deep_gemm


def foreign(name: str) -> ModuleType:
    module = ModuleType(name)
    module.__file__ = f"/site/{name}/__init__.py"
    sys.modules[name] = module
    return module


def imports(module: str, names: str) -> list[str]:
    """Every form."""
    forms = [f"from {module} import {', '.join(names.split())}", f"import {module} as m"]
    parent, _, last = module.rpartition(".")
    forms += [f"from {parent} import {last} as m"] if parent else []
    return [*forms, f"import {module}\nm = {module}", f"from {module} import *"]


@pytest.mark.parametrize("module", MODULES)
@pytest.mark.parametrize("way", (installed, put_there))
def test_every_form_of_import(way, module):
    way()
    found = importlib.import_module(module)
    for form in imports(module, MODULES[module]):
        space: dict[str, object] = {}
        exec(form, space)
        for name in MODULES[module].split():
            assert space.get(name, getattr(found, name)) is getattr(found, name), form


@pytest.mark.parametrize("way", (installed, put_there))
def test_its_functions_are_those_of_the_package(way):
    way()
    space: dict[str, object] = {}
    exec("from deep_gemm import ceil_div\nfrom deep_gemm.utils.math import align", space)
    assert space["ceil_div"] is deep_gemm.ceil_div and space["align"] is deep_gemm.align
    exec("from deep_gemm.utils.math import *", space)
    assert space["per_token_cast_to_fp8"] is deep_gemm.per_token_cast_to_fp8


@pytest.mark.parametrize("name", ("_C", "jit", "fp8_gemm_xx"))
def test_what_it_does_not_serve(name):
    deep_gemm.install()
    with pytest.raises(ModuleNotFoundError, match=name):
        importlib.import_module(f"deep_gemm.{name}")
    with pytest.raises(ImportError, match=name):
        exec(f"from deep_gemm.utils import {name}")


def test_names_of_what_is_refused_can_be_imported_from_where_deep_gemm_has_them():
    deep_gemm.install()
    space: dict[str, object] = {}
    exec("from deep_gemm.utils.math import per_token_cast_to_fp4 as f", space)
    with pytest.raises(UnsupportedProblem, match="per_token_cast_to_fp4"):
        space["f"](None)


def test_nothing_is_imported_before_a_program_asks():
    deep_gemm.install()
    assert stand_in._loaded() == [] and deep_gemm.is_installed()
    assert importlib.util.find_spec("deep_gemm").name == "deep_gemm"
    assert stand_in._loaded() == []
    importlib.import_module("deep_gemm")
    assert {*stand_in._loaded()} == {*MODULES}
    assert sys.modules["deep_gemm"] is deep_gemm


@pytest.mark.parametrize("module", MODULES)
def test_modules_keep_what_they_are(module):
    """The import system describes in a module what it was found as."""
    own = "gemmgen.compat." + module
    deep_gemm.install()
    found = importlib.import_module(module)
    assert found is sys.modules[own]
    assert found.__name__ == found.__spec__.name == own
    assert found.__package__ == found.__spec__.parent
    assert importlib.util.find_spec(module) is found.__spec__


def test_a_second_install_changes_nothing():
    deep_gemm.install()
    importlib.import_module("deep_gemm.utils")
    before = {name: sys.modules[name] for name in stand_in._loaded()}
    finders = [*sys.meta_path]
    deep_gemm.install()
    assert before == {name: sys.modules[name] for name in stand_in._loaded()}
    assert finders == sys.meta_path


def test_uninstalled_it_finds_what_it_found_before(tmp_path, monkeypatch):
    (tmp_path / "deep_gemm").mkdir()
    (tmp_path / "deep_gemm/__init__.py").write_text("mine = True\n")
    monkeypatch.syspath_prepend(tmp_path)
    finders = [*sys.meta_path]
    deep_gemm.install()
    assert importlib.import_module("deep_gemm") is deep_gemm  # though another is installed
    deep_gemm.uninstall()
    assert stand_in._loaded() == [] and finders == sys.meta_path
    assert importlib.import_module("deep_gemm").mine
    deep_gemm.uninstall()  # of nothing
    assert sys.modules["deep_gemm"].mine and not deep_gemm.is_installed()


def test_uninstalled_modules_that_were_replaced_are_back():
    before = {name: foreign(name) for name in ("deep_gemm", "deep_gemm.jit")}
    deep_gemm.install(replace=True)
    assert importlib.import_module("deep_gemm") is deep_gemm
    deep_gemm.uninstall()
    assert {name: sys.modules[name] for name in stand_in._loaded()} == before


@pytest.mark.parametrize("name", ("dense", "operands", "stand_in", "jit", "utils.nothing"))
def test_files_of_this_package_are_no_modules_of_deep_gemm(name):
    """Python would find them beside those that are, and make copies."""
    deep_gemm.install()
    with pytest.raises(ModuleNotFoundError, match=f"deep_gemm.{name}"):
        importlib.import_module(f"deep_gemm.{name}")
    assert importlib.import_module("deep_gemm") is deep_gemm


def test_installed_over_what_a_program_put_there():
    put_there()
    copy = importlib.import_module("deep_gemm.utils.math")
    deep_gemm.install()
    found = importlib.import_module("deep_gemm.utils.math")
    assert found is not copy and found is deep_gemm.utils.math is utils.math


@pytest.mark.parametrize("name", ("deep_gemm", "deep_gemm.utils"))
def test_another_deep_gemm_is_not_replaced_unasked(name):
    other = foreign(name)
    with pytest.raises(ArgumentError, match=f"/site/{name}") as e:
        deep_gemm.install()
    assert (e.value.argument, e.value.value) == ("replace", False)
    assert sys.modules[name] is other and stand_in._loaded() == [name]


def test_another_deep_gemm_is_replaced_as_a_whole():
    for name in ("deep_gemm", "deep_gemm.utils", "deep_gemm.jit"):
        foreign(name)
    deep_gemm.install(replace=True)
    assert stand_in._loaded() == []
    assert importlib.import_module("deep_gemm.utils") is utils
    assert {*stand_in._loaded()} == {*MODULES}
    deep_gemm.install()


# ---- deep_gemm.testing --------------------------------------------------------------------


class Numbers(np.ndarray):
    """As much of a tensor as `numeric` asks for."""

    def double(self):
        return self.astype(np.float64)

    def square(self):
        return self * self

    def numel(self):
        return self.size

    def element_size(self):
        return self.itemsize


def numbers(*values: float) -> Numbers:
    return np.array(values, dtype=np.float32).view(Numbers)


def test_how_far_tensors_are_apart():
    x = numbers(1, 2, 3)
    assert numeric.calc_diff(x, x) == 0
    assert numeric.calc_diff(numbers(0, 0), numbers(0, 0)) == 0.0
    assert numeric.calc_diff(numbers(1, 0), numbers(0, 1)) == 1
    assert numeric.calc_diff(numbers(3, 0), numbers(4, 0)) == pytest.approx(1 / 25)
    assert np.isnan(numeric.calc_diff(numbers(1, 0), numbers(1, np.nan)))


def test_bytes_of_nested_tensors():
    x = numbers(1, 2, 3)
    assert numeric.count_bytes(x, None, (x, [x, (x,)])) == 4 * 12
    assert numeric.count_bytes() == 0


def test_filters_ask_when_they_run():
    ran, wanted = [], [False]
    test = testing.test_filter(lambda: wanted[0])(ran.append)
    test(1)
    wanted[0] = True
    test(2)
    assert ran == [2]


@pytest.mark.parametrize("holds", (True, False))
def test_an_environment_variable_that_is_ignored(holds, monkeypatch):
    monkeypatch.setenv("GEMMGEN_X", "1")
    seen = []

    def look():
        seen.append(testing.utils.os.environ.get("GEMMGEN_X"))
        raise KeyError

    with pytest.raises(KeyError):
        testing.ignore_env("GEMMGEN_X", lambda: holds)(look)()
    assert seen == [None if holds else "1"]
    assert testing.utils.os.environ["GEMMGEN_X"] == "1"


class Event:
    """Two milliseconds from one to the next that is recorded."""

    now = 0.0

    def __init__(self, enable_timing: bool):
        assert enable_timing

    def record(self):
        Event.now += 2.0
        self.at = Event.now

    def synchronize(self):
        pass

    def elapsed_time(self, later: Event):
        return later.at - self.at


@pytest.fixture
def flushes(monkeypatch):
    """A torch whose events tell time, and every overwriting of the L2."""
    seen: list[int] = []
    made = SimpleNamespace(zero_=lambda: seen.append(1))
    torch = SimpleNamespace(
        cuda=SimpleNamespace(Event=Event), empty=lambda *shape, **of: made, int32="int32"
    )
    monkeypatch.setattr(sys.modules[testing.bench.__module__], "torch", lambda: torch)
    return seen


def test_bench_calls_the_function(flushes):
    calls = []
    assert testing.bench(lambda: calls.append(1), num_warmups=3, num_tests=4) == pytest.approx(5e-4)
    assert len(calls) == 7


@pytest.mark.parametrize("flush", (True, False))
def test_bench_kineto_times_whole_calls(flush, flushes):
    calls, barriers = [], []
    found = testing.bench_kineto(
        lambda: calls.append(1),
        ("nvjet", "reduce"),
        num_tests=5,
        flush_l2=flush,
        barrier=lambda: barriers.append(1),
    )
    assert found == (pytest.approx(2e-3), 0.0)
    assert (len(calls), len(barriers), len(flushes)) == (6, 5, 5 * flush)
    assert testing.bench_kineto(print, "gemm_", num_tests=1) == pytest.approx(2e-3)


@pytest.mark.parametrize(
    ("argument", "changes"), (("trace_path", {"trace_path": "x.json"}), ("kernel_names", {"kernel_names": 1}))
)  # fmt: skip
def test_what_bench_kineto_cannot_do(argument, changes, flushes):
    with pytest.raises(ArgumentError) as e:
        testing.bench_kineto(**{"fn": print, "kernel_names": "gemm_"} | changes)
    assert e.value.argument == argument


def test_output_is_suppressed_and_comes_back(capfd):
    with testing.suppress_stdout_stderr():
        print("hidden")
        print("hidden", file=sys.stderr)
    with testing.empty_suppress():
        print("seen")
    out, err = capfd.readouterr()
    assert "hidden" not in out + err and "seen" in out
