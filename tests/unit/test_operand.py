import pytest

from ringsched.collectives import Promise
from ringsched.diagnostics import DiagnosticError
from ringsched.operand import Operand, check_operand, default_operand, parse_dtype, parse_operand, smallest_operand
from ringsched.topology import Topology


def promise(kind: str, ranks: int, dims: tuple[int, ...]) -> Promise:
    group = 0 if kind in ("all_reduce", "broadcast", "reduce") else 1
    return Promise(kind=kind, topology=Topology(kind="ring", sides=(ranks,)), dims=dims, group=group)


@pytest.mark.parametrize(
    ("text", "shape", "dtype"),
    [
        ("x=256x1024:bf16", (256, 1024), "bfloat16"),
        ("x=256x1024", (256, 1024), "float32"),
        ("x=8:f8_e4m3fn", (8,), "float8_e4m3fn"),
        (" x = 2 x 3 x 4 : int8 ", (2, 3, 4), "int8"),
        ("x=0x128:f16", (0, 128), "float16"),
    ],
)
def test_shapes(text, shape, dtype):
    operand = parse_operand(text)
    assert (operand.shape, operand.dtype) == (shape, dtype)
    assert parse_operand(str(operand)) == operand


@pytest.mark.parametrize(
    "text",
    ["", "x", "x=", "256x1024", "x=8x", "x=x8", "x=8:", "x=8:f64", "x=8:f33", "y=8x128", "x=-8", "x=" + "9" * 30],
)
def test_texts_that_are_no_shape(text):
    with pytest.raises(DiagnosticError) as raised:
        parse_operand(text)
    [finding] = raised.value.diagnostics
    assert finding.code == "RS112"
    assert finding.help


def test_the_dtype_comes_from_either_option_but_not_from_both():
    assert parse_operand("x=8", "int8").dtype == "int8"
    assert parse_operand("x=8:i8", "int8").dtype == "int8"
    with pytest.raises(DiagnosticError):
        parse_operand("x=8:i8", "bfloat16")
    with pytest.raises(DiagnosticError, match="wider than 32 bits"):
        parse_dtype("float64")


def test_defaults_suit_the_collective():
    gather, scatter = promise("all_gather", 4, (4,)), promise("reduce_scatter", 4, (4, 2))
    assert default_operand(gather).shape == (256, 512)
    assert default_operand(scatter).shape == (1024, 512)
    assert smallest_operand(gather).shape == (8, 128)
    assert smallest_operand(scatter, "bfloat16").shape == (4 * 2 * 16, 128)
    assert smallest_operand(scatter, "int8").shape == (4 * 2 * 32, 128)


def test_operands_that_do_not_divide():
    scatter = promise("reduce_scatter", 4, (4,))
    check_operand(scatter, Operand(name="x", shape=(12, 3), dtype="float32"))
    check_operand(promise("all_gather", 4, (4,)), Operand(name="x", shape=(10, 3), dtype="float32"))
    with pytest.raises(DiagnosticError, match="10 is not a multiple of 4") as raised:
        check_operand(scatter, Operand(name="x", shape=(10, 3), dtype="float32"))
    [finding] = raised.value.diagnostics
    assert (finding.code, finding.help) == ("RS607", "--shape x=12x3")
