"""Every kernel against a plain matrix product, and the choice among those that a machine has."""

import math

import pytest
import torch

from swarm.model.linear import choice as choosing
from swarm.model.linear import layouts
from swarm.model.linear.choice import LAYOUTS, Form, KernelChoice, Shape, best_choice, is_exact, plain_choice
from swarm.model.linear.layouts import FLOATS, WIDEN, Layout
from swarm.model.linear.linear import pack_linear
from swarm.model.linear.quantized import INT4, INT4_WIDEN

OUTPUTS, INPUTS = 192, 96


def some(*shape, dtype=torch.float32, seed=0):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed)).to(dtype)


def packed_or_skip(layout, weight):
    try:
        return layout.pack(weight)
    except (RuntimeError, AttributeError):
        pytest.skip(f"this build of torch has no {layout.name}")


def is_for_this_processor(kernel):
    """How codes of 4 bits lie differs from processor to processor, and so which of these kernels fits."""
    weight = some(OUTPUTS, INPUTS)
    return kernel not in INT4_WIDEN or is_exact(INT4, kernel, INT4.pack(weight), weight, rows=4)


CASES = [
    pytest.param(layout, kernel, dtype, id=f"{layout.name}-{kernel.name}-{dtype}")
    for layout in LAYOUTS.values()
    for kernel in layout.kernels
    for dtype in layout.dtypes
    if is_for_this_processor(kernel)
]


def product(x, weight, layout, bias=None):
    exact = choosing.stands_for(weight, layout.quantization).double()
    return x.double() @ exact.T + (0 if bias is None else bias.double())


@pytest.mark.parametrize(("layout", "kernel", "dtype"), CASES)
@pytest.mark.parametrize("rows", [1, 2, 3, 8, 9, 64, 65, 500])
def test_a_kernel_equals_the_plain_product(layout, kernel, dtype, rows):
    if kernel.most_rows is not None and rows > kernel.most_rows:
        pytest.skip("it takes fewer rows")
    weight, bias = some(OUTPUTS, INPUTS, dtype=dtype) * INPUTS**-0.5, some(OUTPUTS, dtype=dtype, seed=1)
    x = some(rows, 2 * INPUTS, dtype=dtype, seed=2)[:, :INPUTS]  # a view, as the MLP gives one
    given = x.clone()
    output = kernel.run(x, packed_or_skip(layout, weight), bias)
    assert output.dtype == dtype
    assert torch.equal(x, given)
    expected = product(x, weight, layout, bias)
    rounding = 3e-6 if dtype == torch.float32 and layout.quantization == "none" else 2**-6
    size = x.double().abs() @ weight.double().abs().T + bias.double().abs()
    assert ((output.double() - expected).abs() <= rounding * size).all()


@pytest.mark.parametrize(("layout", "kernel", "dtype"), CASES)
@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
@pytest.mark.parametrize("rows", [1, 5, 70])
def test_a_row_that_is_not_finite_spoils_itself_and_no_other(layout, kernel, dtype, value, rows):
    if kernel.most_rows is not None and rows > kernel.most_rows:
        pytest.skip("it takes fewer rows")
    packed = packed_or_skip(layout, some(OUTPUTS, INPUTS, dtype=dtype))
    x = some(rows, INPUTS, dtype=dtype, seed=2)
    clean = kernel.run(x, packed, None)
    x[rows // 2, 7] = value
    output = kernel.run(x, packed, None)
    assert not output[rows // 2].isfinite().any()
    others = [row for row in range(rows) if row != rows // 2]
    assert torch.equal(output[others], clean[others])


@pytest.mark.parametrize(("layout", "kernel", "dtype"), CASES)
@pytest.mark.parametrize("size", [0.0, 1e-40, 1e-30, 1e-6, 1e4])
def test_a_kernel_bears_rows_of_every_size(layout, kernel, dtype, size):
    weight = some(OUTPUTS, INPUTS, dtype=dtype) * INPUTS**-0.5
    x = (some(1, INPUTS, seed=2).clamp(-3, 3) * size).to(dtype)
    output = kernel.run(x, packed_or_skip(layout, weight), None).double()
    expected = product(x, weight, layout)
    atol = 1e-27 if size < 1e-20 else 0.05 * size + (2e-5 if dtype == torch.float16 else 0)
    torch.testing.assert_close(output, expected, atol=atol, rtol=0.05)


@pytest.mark.parametrize(("layout", "kernel", "dtype"), CASES)
@pytest.mark.parametrize("rows", [2, 8, 30, 128])
def test_a_rows_result_does_not_depend_on_its_neighbours(layout, kernel, dtype, rows):
    if kernel.most_rows is not None:
        pytest.skip("it takes one row")
    packed = packed_or_skip(layout, some(OUTPUTS, INPUTS, dtype=dtype))
    x, others = some(rows, INPUTS, dtype=dtype, seed=2), some(rows, INPUTS, dtype=dtype, seed=3) * 100
    others[rows // 2] = x[rows // 2]
    mine = kernel.run(x, packed, None)[rows // 2]
    assert torch.equal(kernel.run(others, packed, None)[rows // 2], mine)


@pytest.mark.parametrize("layout", [each for each in LAYOUTS.values() if each.quantization == "int8"])
def test_in_8_bits_a_row_is_the_same_alone_and_among_others(layout):
    packed = packed_or_skip(layout, some(OUTPUTS, INPUTS))
    x = some(200, INPUTS, seed=2)
    together = layout.kernels[0].run(x, packed, None)
    alone = torch.cat([layout.kernels[0].run(row.unsqueeze(0), packed, None) for row in x])
    assert torch.equal(together, alone)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("bias", [None, torch.ones(700)])
def test_a_widened_product_goes_on_over_uneven_parts(monkeypatch, dtype, bias):
    monkeypatch.setattr(layouts, "WIDEN_ELEMENTS", 64 * 300)
    weight, x = some(700, 64, dtype=dtype), some(5, 64, dtype=dtype, seed=1)
    output = WIDEN.run(x, (weight,), None if bias is None else bias.to(dtype)).float()
    expected = x.float() @ weight.float().T + (0 if bias is None else bias)
    torch.testing.assert_close(output, expected, atol=0.2 if dtype == torch.bfloat16 else 0.03, rtol=0)


def test_every_candidate_that_is_here_passes_as_exact():
    weight = some(256, 128) * 128**-0.5
    for layout in LAYOUTS.values():
        packed = packed_or_skip(layout, weight)
        assert is_exact(layout, layout.kernels[0], packed, weight, rows=4), layout.name


def test_a_kernel_that_rounds_more_than_its_format_is_not_taken(monkeypatch):
    def narrow(rows, packed, bias):
        return (rows.bfloat16() @ packed[0].bfloat16().T).to(rows.dtype)

    careless = layouts.Kernel("careless", narrow)
    layout = Layout("careless", "none", FLOATS, lambda weight: (weight,), (careless,))
    weight = some(256, 128)
    assert not is_exact(layout, careless, (weight,), weight, rows=4)
    monkeypatch.setattr(choosing, "LAYOUTS", {"careless": layout, "plain": layouts.PLAIN})
    chosen = choosing.measure_choice(Shape(512, 512), Form(torch.float32))
    assert chosen.layout == "plain"


def test_a_layout_that_this_build_lacks_is_left_out(monkeypatch):
    def missing(weight):
        raise AttributeError("'_OpNamespace' 'mkldnn' object has no attribute '_reorder_linear_weight'")

    lacking = Layout("lacking", "none", FLOATS, missing, layouts.TRANSPOSED.kernels)
    monkeypatch.setattr(choosing, "LAYOUTS", {"lacking": lacking, "plain": layouts.PLAIN})
    assert choosing.measure_choice(Shape(512, 512), Form(torch.float32)).layout == "plain"
    monkeypatch.setattr(choosing, "LAYOUTS", {"lacking": lacking})
    assert choosing.measure_choice(Shape(512, 512), Form(torch.float32)) == plain_choice(Form(torch.float32))


def test_the_layout_is_chosen_whose_kernels_lose_least():
    times = {("a", "x", index): seconds for index, seconds in enumerate((1.0, 1.0, 9.0, 9.0))}
    times |= {("b", "y", index): seconds for index, seconds in enumerate((1.2, 1.1, 3.0, 3.0))}
    times |= {("b", "z", 0): 1.1}
    assert best_choice(times) == KernelChoice("b", ("z", "y", "y", "y"), (1.1e6, 1.1e6, 3e6, 3e6))


@pytest.mark.parametrize("quantization", ["none", "int8", "int4"])
def test_a_legible_weight_stays_readable(quantization):
    form = Form(torch.float32, quantization, legible=True)
    for layout in choosing.candidates(form):
        weight = some(64, 32)
        assert torch.equal(layout.pack(weight)[0], weight)


def test_the_order_of_4_bit_codes_is_known_on_this_processor():
    """If this fails on yours, its prompts are slow in int4, and an order of codes is missing."""
    if torch.backends.cpu.get_cpu_capability() in ("AVX2", "AVX512"):
        assert any(map(is_for_this_processor, INT4_WIDEN))


@pytest.mark.parametrize("kernel", INT4_WIDEN)
def test_a_weight_that_does_not_fill_blocks_has_no_such_kernel(kernel):
    weight = some(OUTPUTS + 16, INPUTS)
    assert not is_exact(INT4, kernel, INT4.pack(weight), weight, rows=4)


def test_a_packed_layer_takes_the_kernel_for_the_number_of_rows():
    seen = []

    def note(name):
        return layouts.Kernel(name, lambda rows, packed, bias: seen.append(name))

    layout = Layout("noting", "none", FLOATS, lambda weight: (weight,), tuple(map(note, "abcd")))
    linear = pack_linear(some(4, 3), None, plain_choice(Form(torch.float32)))
    linear = type(linear)(linear.shape, linear.choice, None, linear.packed, layout.kernels)
    for rows in (1, 2, 8, 9, 64, 65, 500):
        linear(some(rows, 3))
    assert seen == list("abbccdd")
