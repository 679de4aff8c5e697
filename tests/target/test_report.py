"""The parsers on small dumps, shortened by hand from what the compiler writes."""

import json

import pytest

from ringsched.target.report import (
    KernelDump,
    Loop,
    build_report,
    count_cycles,
    kernel_name,
    read_bundles,
    read_cores,
    read_loops,
    read_memory,
)

# Ten bundles. The second instruction of bundle 0 goes over several lines, as DMAs do.
BUNDLES = """
= control target key start
LB: loop body
= control target key end

     0   :  { %13 = vsyncpa [#allocation8], 0  ;;  %26 = dma.hbm_to_vmem [thread:$0]  /*hbm=*/%s19 /*
base_bounds: (32, 2)
second_minor_factor: 1 */ } /* Start region 0 */
   0x1   :  {}
   0x2 LB: > { %s1_s9 = smov 0  ;;  %7 = vmatmul.bf16.gmra.mxu0 %v1_v0  ;;  %8 = vmatmul.bf16.gmra.mxu1 %v1_v1 }
   0x3 LB: >> { %9 = vmatmul.mubr.bf16.vlgmr.msra.gmra.mrb[0].mxu0 %v3_v0 }
   0x4   : >> { %59 = sbr.rel (!%p57_p3) target bundleno = 3 (0x3), region = 62 }
   0x5   : >> {}
   0x6   : > { %52 = sbr.rel (!%p50_p4) target bundleno = 2 (0x2), region = 73 }
   0x7   : > { %60 = vmatpush.bf16.msra.mxu0 %v3_v0 }
   0x8   :  { %3112 = sbr.rel (%p4184_p6) target bundleno = 10 (0xa), region = 39 }
   0x9   :  {}
   0xa PF:  {} /* Start/End empty region 39 */
"""

# The same kernel: a loop of 3 trips (bundles 2 to 7) around one of 4 (bundles 3 to 5), one delay slot a branch.
REGIONS = """
$region0: #{kernel.1}
  #allocation0 [shape = 'u32[]', space=smem, size = 0x4, offset = 0x4, fixed_abs, tag = 'core index']
  #allocation2 [shape = 's32[2]{0}', space=sflag, size = 0x8, offset = 0, scoped, tag = 'scratch operand']
  #allocation3 [shape = 's32[1]{0}', space=sflag, size = 0x4, offset = 0x8, scoped, tag = 'scratch operand']
  #allocation6 [shape = 's32[]', space=sflag, size = 0x4, offset = 0x20, fixed_abs, tag = 'barrier sync flag']
  // region range: [0, 11)
  %s197_s0 = inlined_call_operand.hbm [shape: f32[256,256], index: 0, kind: input, shape index: {}]
  %s198_s1 = inlined_call_operand.vmem [shape: bf16[8,128], index: 1, kind: output, shape index: {}]
  $region5: #{kernel.1} parent=0
    #allocation7 [shape = 'u8[4096]{0}', space=vmem, size = 0x1000, offset = 0x800, scoped, tag = 'input window']
    // region range: [0, 11)
    loop: start=0, step=1, limit=3
    $region68: #{kernel.1} parent=5 // loop_pre_header
      // region range: [1, 2)
    $region73: #{kernel.1} parent=5 // loop_body
      // region range: [2, 7)
      loop: start=8, step=-2, limit=0
      $region57: #{kernel.1} parent=73 // loop_pre_header
        // region range: [2, 3)
      $region62: #{kernel.1} parent=73 // loop_body
        // region range: [3, 6)
      $region31: #{kernel.1} parent=73 // loop_header_branch
        // region range: [3, 6)
        %59 = sbr.rel (!%p57_p3) target bundleno = 3 (0x3), region = 62
    $region24: #{kernel.1} parent=5 // loop_header_branch
      // region range: [6, 8)
      %52 = sbr.rel (!%p50_p4) target bundleno = 2 (0x2), region = 73
    $region37: #{kernel.1} parent=5 // pred_check_branch
      // region range: [8, 10)
      %3112 = sbr.rel (%p4184_p6) target bundleno = 10 (0xa), region = 39
"""

# What the compiler says of a loop whose limit only the running kernel knows: no counts.
DYNAMIC = REGIONS.replace("      loop: start=8, step=-2, limit=0", "      // DoWhile loop")

ANALYSIS = """Schedule analysis:
\ttotal scheduled bundles:    52
\t  41.00 scheduled bundles (100.00%): %ring_shift.1 = f32[256,256]{1,0:T(8,128)S(1)} custom-call(%param.1), \
custom_call_target="tpu_custom_call", operand_layout_constraints={f32[256,256]{1,0}}
"""


def report_on(*dumps, target="v5p:2x2x1"):
    return build_report(target=target, function="function", compile_seconds=1.5, dumps=dumps)


def dump(name="kernel", bundles=BUNDLES, regions=REGIONS):
    return KernelDump(name=name, bundles=bundles, regions=regions)


def test_bundles_are_counted_empty_ones_included():
    assert read_bundles(BUNDLES) == (0, 0, 2, 1, 0, 0, 0, 0, 0, 0, 0)
    assert read_bundles("") == ()


def test_loops_reach_to_the_end_of_their_branchs_delay_slots():
    assert read_loops(REGIONS) == (Loop(start=3, end=6, trips=4), Loop(start=2, end=8, trips=3))


def test_a_loop_without_counts_has_unknown_trips():
    assert read_loops(DYNAMIC) == (Loop(start=3, end=6, trips=None), Loop(start=2, end=8, trips=3))


# What the compiler makes of a copy within VMEM: a loop that says its trips only in the comparison at its end.
COPY = """
  // DoWhile loop
  $region68: #{kernel.1} parent=5 // loop_pre_header
    // region range: [1, 2)
    %s187186_s23 = smov 0 /* copy for cssa */
  $region73: #{kernel.1} parent=5 // loop_body
    // region range: [2, 8)
    %s146124_s23 = sphi %s187186_s23, %s107327_s23 /* phi copy */
    %s107327_s23 = sadd.s32 1, %s146124_s23 /* copy for cssa */
    %p107326_p10 = scmp.ge.s32.totalorder %s107327_s23, 5
    %107329 = sbr.rel (!%p107326_p10) target bundleno = 2 (0x2), region = 73
"""


@pytest.mark.parametrize(
    ("old", "new", "trips"),
    [
        ("", "", 5),
        ("smov 0", "smov 2", 3),
        ("sadd.s32 1", "sadd.s32 2", 3),
        ("sadd.s32 1", "sadd.s32 -1", None),
        ("%s107327_s23, 5", "%s107327_s23, %s1_s1", None),
        ("%s107327_s23, 5", "%s146124_s23, 5", None),
        ("%s107327_s23 /* phi", "%s1_s1 /* phi", None),
        ("smov 0", "sld 0", None),
        ("(!%p107326_p10)", "(%p107326_p10)", None),
    ],
)
def test_a_loop_that_counts_for_itself(old, new, trips):
    assert read_loops(COPY.replace(old, new) if old else COPY) == (Loop(start=2, end=8, trips=trips),)


@pytest.mark.parametrize(("step", "limit", "trips"), [(1, 8, 8), (3, 8, 3), (1, 1, 1), (0, 8, None)])
def test_trips(step, limit, trips):
    text = REGIONS.replace("start=0, step=1, limit=3", f"start=0, step={step}, limit={limit}")
    assert read_loops(text)[1].trips == trips


def test_nested_loops_multiply():
    cycles = 3 + 2 + 3 * (1 + 4 * 3 + 2)
    assert count_cycles(read_bundles(BUNDLES), read_loops(REGIONS)) == (cycles, 3 * (2 + 4 * 1))
    assert count_cycles((0, 1, 0), ()) == (3, 1)


def test_an_unknown_trip_count_leaves_the_cycles_unknown():
    assert count_cycles(read_bundles(BUNDLES), read_loops(DYNAMIC)) is None
    report = report_on(dump(regions=DYNAMIC))
    assert (report.cycles, report.ideal_cycles, report.utilization) == (None, None, None)
    assert report.vmem_bytes == 0x1800 + 2048


def test_memory_is_the_highest_address_and_barrier_semaphores_are_left_out():
    assert read_memory(REGIONS) == (0x1800 + 8 * 128 * 2, 3)
    assert read_memory("") == (0, 0)


@pytest.mark.parametrize(("shape", "size"), [("pred[4]", 4), ("f8e4m3fn[2,4]", 8), ("s4[8]", 4), ("f32[]", 4)])
def test_operands_in_vmem_count_by_their_dtype(shape, size):
    line = f"  %s1_s1 = inlined_call_operand.vmem [shape: {shape}, index: 1, kind: output, shape index: {{}}]\n"
    assert read_memory(line + line) == (size, 0)  # an operand that is listed twice is there once


@pytest.mark.parametrize("target", ["v4:2x2x1", "v5e:2x2", "v5p:2x2x1", "v6e:2x2", "tpu7x:2x2x1"])
def test_report(target):
    report = report_on(dump(), target=target)
    assert report.to_json() == {
        "target": target,
        "kernel": "kernel",
        "compile_seconds": 1.5,
        "vmem_bytes": 0x1800 + 2048,
        "semaphores": 3,
        "cores": None if target == "v5p:2x2x1" else 1,  # the text does not tell
        "cycles": 50,
        "ideal_cycles": 72,
        "utilization": 1.44,  # a made-up kernel may beat the peak
        "notes": (),
    }
    json.dumps(report.to_json())


@pytest.mark.parametrize(
    ("target", "line", "cores"),
    [
        ("v5p:2x2x1", "  $region3 (PrimaryCoreRegion): #{kernel.1} parent=0 // pred_region", 1),
        ("v5p:2x2x1", "  %26 = shalt.err (%p96504_p0) /* scheckeq: BarrierMegacore cookie: 953589213 */", 2),
        ("v5p:2x2x1", "", None),
        ("v6e:2x2", "", 1),
        ("v4:2x2x1", "", 1),
    ],
)
def test_cores(target, line, cores):
    assert read_cores(f"{REGIONS}\n{line}\n", target) == cores
    assert report_on(dump(regions=f"{REGIONS}\n{line}\n"), target=target).cores == cores


def test_a_kernel_without_matmul_has_no_ideal():
    report = report_on(dump(bundles=BUNDLES.replace("vmatmul", "vadd")))
    assert (report.cycles, report.ideal_cycles, report.utilization) == (50, None, None)


def test_kernels_that_run_one_after_another_share_memory_and_add_cycles():
    report = report_on(dump("first"), dump("second", bundles="     0   :  {}\n   0x1   :  {}\n", regions="$region0:"))
    assert report.kernel == "first + second"
    assert (report.cycles, report.ideal_cycles) == (52, 72)
    assert (report.vmem_bytes, report.semaphores) == (0x1800 + 2048, 3)


def test_without_a_dump_only_the_time_is_known():
    report = report_on()
    assert report.kernel == "function"
    figures = (report.vmem_bytes, report.semaphores, report.cycles, report.ideal_cycles, report.utilization)
    assert figures == (None,) * 5
    assert report_on(dump(bundles="")).cycles is None
    assert report_on(dump(regions="")).cycles is None and report_on(dump(regions="")).vmem_bytes is None


def test_only_pallas_kernels_have_a_name():
    assert kernel_name(ANALYSIS) == "ring_shift"
    assert (
        kernel_name(ANALYSIS.replace("f32[256,256]{1,0:T(8,128)S(1)} custom", "(f32[8], s8[4]) custom")) == "ring_shift"
    )
    assert kernel_name(ANALYSIS.replace("tpu_custom_call", "Sharding")) is None
    assert kernel_name("Schedule analysis:\n 1.00 scheduled bundles: %copy.3 = f32[8] copy(%param.1)\n") is None
