"""Forms of ONNX that converters get wrong are loaded as what onnxruntime says they are.

Each network is converted, traced, and run on one batch of 20 inputs against onnxruntime. A failure
means that a real network of that form is refused, or, worse, that another function is verified.
"""

from __future__ import annotations

from collections import Counter

import numpy as np
import pytest
from onnx import helper

from complete_verifier.model.errors import ModelError
from complete_verifier.model.normalise import normalise
from complete_verifier.model.onnx_file import read_onnx

RNG = np.random.default_rng(7)
node = helper.make_node


def random(*shape: int) -> np.ndarray:
    return RNG.normal(size=shape).astype(np.float32)


def operators(path) -> Counter:
    return Counter(n.op_type for n in normalise(read_onnx(path)).model.graph.node)


# Field case 8: constants as first operand, transposes, factors.


def test_constant_matrix_from_the_left_without_batch_axis(write_onnx, load_and_compare) -> None:
    path = write_onnx(
        [
            node("MatMul", ["W", "x"], ["h"]),
            node("Add", ["h", "b"], ["a"]),
            node("Relu", ["a"], ["r"]),
            node("MatMul", ["V", "r"], ["y"]),
        ],
        [4, 1],
        {"W": random(6, 4), "b": random(6, 1), "V": random(3, 6)},
    )
    load_and_compare(path)
    assert operators(path)["Gemm"] == 2


def test_constant_matrix_times_a_vector(write_onnx, load_and_compare) -> None:
    path = write_onnx(
        [
            node("MatMul", ["W", "x"], ["h"]),
            node("Add", ["b", "h"], ["a"]),
            node("Relu", ["a"], ["y"]),
        ],
        [4],
        {"W": random(6, 4), "b": random(6)},
    )
    load_and_compare(path)
    assert operators(path) == {"Gemm": 1, "Relu": 1}


def test_constant_matrix_times_several_columns(write_onnx, load_and_compare) -> None:
    load_and_compare(
        write_onnx([node("MatMul", ["W", "x"], ["y"])], [1, 4, 3], {"W": random(6, 4)})
    )


def test_square_matrix_from_the_left_is_not_taken_for_one_from_the_right(
    write_onnx, load_and_compare
) -> None:
    load_and_compare(
        write_onnx([node("MatMul", ["W", "x"], ["y"])], [1, 4, 4], {"W": random(4, 4)})
    )


def test_column_times_row(write_onnx, load_and_compare) -> None:
    path = write_onnx(
        [node("MatMul", ["W", "x"], ["h"]), node("Relu", ["h"], ["y"])], [1, 4], {"W": random(3, 1)}
    )
    load_and_compare(path)


@pytest.mark.parametrize("trans_b", [0, 1])
@pytest.mark.parametrize(("alpha", "beta"), [(1.0, 1.0), (0.5, 1.0), (1.0, -2.0), (0.25, 3.0)])
@pytest.mark.parametrize("addend", [None, (5,), (1, 5), (1,), ()])
def test_gemm_with_factors_and_transposed_weight(
    write_onnx, load_and_compare, trans_b, alpha, beta, addend
) -> None:
    constants = {"W": random(5, 4) if trans_b else random(4, 5)}
    inputs = ["x", "W"]
    if addend is not None:
        constants["C"] = random(*addend)
        inputs.append("C")
    gemm = node("Gemm", inputs, ["y"], transB=trans_b, alpha=alpha, beta=beta)
    path = write_onnx([gemm], ["batch", 4], constants)
    load_and_compare(path)
    assert operators(path) == {"Gemm": 1}


def test_gemm_that_transposes_its_input(write_onnx, load_and_compare) -> None:
    gemm = node("Gemm", ["x", "W", "C"], ["y"], transA=1, alpha=2.0, beta=0.5)
    path = write_onnx([gemm], [4, 1], {"W": random(4, 3), "C": random(3)})
    load_and_compare(path)


def test_gemm_with_the_constant_first_and_both_transposed(write_onnx, load_and_compare) -> None:
    gemm = node("Gemm", ["W", "x", "C"], ["y"], transA=1, transB=1, alpha=2.0, beta=-1.0)
    path = write_onnx([gemm], [1, 4], {"W": random(4, 3), "C": random(3, 1)})
    load_and_compare(path)


def test_gemm_whose_addend_depends_on_the_input(write_onnx, load_and_compare) -> None:
    path = write_onnx(
        [
            node("Relu", ["x"], ["r"]),
            node("Gemm", ["r", "W", "x"], ["y"], transB=1, alpha=0.5, beta=3.0),
        ],
        [1, 4],
        {"W": random(4, 4)},
    )
    load_and_compare(path)


def test_two_gemms_added(write_onnx, load_and_compare) -> None:
    """Field case 20, the load of it."""
    path = write_onnx(
        [
            node("Flatten", ["x"], ["f"]),
            node("Gemm", ["f", "W", "b"], ["p"], transB=1),
            node("Gemm", ["f", "V"], ["q"], transB=1),
            node("Add", ["p", "q"], ["y"]),
        ],
        [1, 1, 6, 6],
        {"W": random(5, 36), "V": random(5, 36), "b": random(5)},
    )
    load_and_compare(path)


def test_product_read_twice_keeps_its_unbiased_value(write_onnx, load_and_compare) -> None:
    path = write_onnx(
        [
            node("MatMul", ["x", "W"], ["h"]),
            node("Add", ["h", "b"], ["a"]),
            node("Sub", ["a", "h"], ["d"]),
            node("Add", ["d", "h"], ["y"]),
        ],
        [1, 4],
        {"W": random(4, 3), "b": random(3)},
    )
    load_and_compare(path)


# Field case 23: constants of a normalising first layer.


@pytest.mark.parametrize("shape", [(1, 1, 1, 1), (1,), (), (5,), (1, 5), (1, 1, 1, 5)])
@pytest.mark.parametrize("input_shape", [[1, 1, 1, 5], [1, 5], [5], ["N", 5]])
def test_normalising_constants_of_any_shape(
    write_onnx, load_and_compare, shape, input_shape
) -> None:
    path = write_onnx(
        [
            node("Sub", ["x", "mean"], ["c"]),
            node("Div", ["c", "std"], ["n"]),
            node("Flatten", ["n"], ["f"], axis=1 if len(input_shape) > 1 or len(shape) > 1 else 0),
            node("MatMul", ["f", "W"], ["h"]),
            node("Relu", ["h"], ["y"]),
        ],
        input_shape,
        {"mean": random(*shape), "std": 0.5 + abs(random(*shape)), "W": random(5, 3)},
    )
    load_and_compare(path)


def test_channelwise_constants_and_constant_minus_input(write_onnx, load_and_compare) -> None:
    path = write_onnx(
        [node("Sub", ["mean", "x"], ["c"]), node("Mul", ["c", "scale"], ["y"])],
        [1, 3, 4, 4],
        {"mean": random(1, 3, 1, 1), "scale": random(3, 1, 1)},
    )
    load_and_compare(path)


def test_constant_with_more_rows_than_the_input(write_onnx, load_and_compare) -> None:
    """[1, 4] + [3, 4] is [3, 4]: the three rows are no batch."""
    load_and_compare(write_onnx([node("Add", ["x", "C"], ["y"])], [1, 4], {"C": random(3, 4)}))


# Field case 32: batch norm, dropout, dynamic batch.


@pytest.mark.parametrize("batch", [1, "N"])
@pytest.mark.parametrize("opset", [9, 13])
def test_batch_norm_2d_after_relu_with_dropout(write_onnx, load_and_compare, batch, opset) -> None:
    ratio, constants = (["D", "ratio"], {"ratio": 0.5}) if opset > 11 else (["D"], {})
    attributes = {} if opset > 11 else {"ratio": 0.5}
    path = write_onnx(
        [
            node("Conv", ["x", "W"], ["C"], kernel_shape=[3, 3], pads=[1, 1, 1, 1]),
            node("Relu", ["C"], ["R"]),
            node("BatchNormalization", ["R", "s", "b", "m", "v"], ["D"], epsilon=1e-3),
            node("Dropout", ratio, ["E"], **attributes),
            node("Flatten", ["E"], ["F"]),
            node("MatMul", ["F", "V"], ["y"]),
        ],
        [batch, 2, 5, 5],
        {
            "W": random(3, 2, 3, 3),
            "s": random(3),
            "b": random(3),
            "m": random(3),
            "v": abs(random(3)) + 0.1,
            "V": random(75, 2),
        }
        | constants,
        opset=opset,
    )
    load_and_compare(path)
    assert operators(path)["Dropout"] == 0


@pytest.mark.parametrize("batch", [1, "N"])
def test_batch_norm_1d_after_relu(write_onnx, load_and_compare, batch) -> None:
    path = write_onnx(
        [
            node("Gemm", ["x", "W"], ["h"]),
            node("Relu", ["h"], ["r"]),
            node("BatchNormalization", ["r", "s", "b", "m", "v"], ["n"]),
            node("Dropout", ["n"], ["y"]),
        ],
        [batch, 4],
        {"W": random(4, 6), "s": random(6), "b": random(6), "m": random(6), "v": abs(random(6))},
    )
    load_and_compare(path)


# Batch sizes fixed in the file, and layouts.


def test_reshape_to_batch_one_runs_on_any_batch(write_onnx, load_and_compare) -> None:
    path = write_onnx(
        [
            node("Reshape", ["x", "a_shape"], ["h"]),
            node("Relu", ["h"], ["r"]),
            node("Reshape", ["r", "b_shape"], ["f"]),
            node("Gemm", ["f", "W"], ["y"]),
        ],
        [1, 8],
        {"a_shape": [1, 2, 2, 2], "b_shape": [1, -1], "W": random(8, 3)},
    )
    load_and_compare(path)


def test_channels_last_input(write_onnx, load_and_compare) -> None:
    path = write_onnx(
        [
            node("Transpose", ["x"], ["t"], perm=[0, 3, 1, 2]),
            node("Conv", ["t", "W"], ["c"], kernel_shape=[2, 2]),
            node("Transpose", ["c"], ["u"], perm=[0, 2, 3, 1]),
            node("Reshape", ["u", "to_shape"], ["f"]),
            node("MatMul", ["f", "V"], ["y"]),
        ],
        ["N", 4, 4, 2],
        {"W": random(3, 2, 2, 2), "to_shape": [-1, 27], "V": random(27, 2)},
    )
    load_and_compare(path)


def test_transposed_weight_constant_is_computed(write_onnx, load_and_compare) -> None:
    path = write_onnx(
        [node("Transpose", ["W"], ["V"], perm=[1, 0]), node("MatMul", ["x", "V"], ["y"])],
        ["N", 4],
        {"W": random(3, 4)},
    )
    load_and_compare(path)
    assert operators(path) == {"Gemm": 1}


def test_identity_output_and_unused_nodes(write_onnx, load_and_compare) -> None:
    path = write_onnx(
        [
            node("Gemm", ["x", "W"], ["h"]),
            node("Relu", ["h"], ["idle"]),
            node("Identity", ["h"], ["y"]),
        ],
        [1, 4],
        {"W": random(4, 3)},
    )
    load_and_compare(path)
    assert operators(path)["Relu"] == 0


def test_a_batch_that_moves_is_refused_by_the_comparison(write_onnx, load_and_compare) -> None:
    """Right for one input; for several the Reshape would mix them."""
    path = write_onnx(
        [
            node("Transpose", ["x"], ["t"], perm=[2, 0, 1]),
            node("Reshape", ["t", "to_shape"], ["f"]),
            node("Gemm", ["f", "W"], ["y"]),
        ],
        [1, 3, 4],
        {"to_shape": [1, 12], "W": random(12, 2)},
    )
    with pytest.raises(ModelError, match="batch of 20 inputs"):
        load_and_compare(path)


def test_swapped_dimensions_of_size_one_are_only_a_reshape(write_onnx, load_and_compare) -> None:
    path = write_onnx(
        [
            node("Transpose", ["x"], ["t"], perm=[1, 0, 2]),
            node("Reshape", ["t", "to_shape"], ["f"]),
            node("Gemm", ["f", "W"], ["y"]),
        ],
        [1, 3, 4],
        {"to_shape": [1, 12], "W": random(12, 2)},
    )
    load_and_compare(path)
    assert operators(path)["Transpose"] == 0


# Refusals, each in one sentence that names the node.


def test_operator_that_needs_a_batch_axis_is_refused(write_onnx) -> None:
    path = write_onnx([node("Hardmax", ["x"], ["y"], name="/hard")], [4])
    with pytest.raises(ModelError, match=r'"/hard" \(Hardmax\): .*\[4\] has no batch axis'):
        normalise(read_onnx(path))


@pytest.mark.parametrize("shape", [[1, 4], [4], [2, 3]])
def test_an_output_that_ignores_the_input_is_what_it_is(
    write_onnx, load_and_compare, shape
) -> None:
    path = write_onnx([node("Neg", ["c"], ["y"])], shape, {"c": random(3)})
    assert load_and_compare(path)[0] == 0
    path = write_onnx([node("Shape", ["x"], ["s"]), node("Cast", ["s"], ["y"], to=1)], shape)
    assert load_and_compare(path)[0] == 0


def test_shapes_that_do_not_fit_are_refused(write_onnx, load_and_compare) -> None:
    path = write_onnx([node("MatMul", ["x", "W"], ["y"])], [1, 4], {"W": random(5, 3)})
    with pytest.raises(ModelError, match=r'"y" \(MatMul\)|"y" \(Gemm\)'):
        load_and_compare(path)


def test_old_opset_is_refused(write_onnx) -> None:
    path = write_onnx([node("Relu", ["x"], ["y"])], [1, 4], opset=6)
    with pytest.raises(ModelError, match="expected ONNX opset 7 or newer, got 6"):
        normalise(read_onnx(path))


def test_control_flow_is_refused(write_onnx) -> None:
    path = write_onnx([node("Loop", ["", "", "x"], ["y"], name="again")], [1, 4])
    with pytest.raises(ModelError, match=r'"again" \(Loop\): control flow'):
        normalise(read_onnx(path))
