//! `to_string`, `display` and `Display`.

use tenslab::memory::cpu;
use tenslab::ops::{PrintOptions, Scientific};
use tenslab::{Bool8, DType, Tensor, f16, ops};

use super::{counted, tensor};

/// What is behind the header line.
fn rows(tensor: &Tensor) -> String {
    rows_by(tensor, &PrintOptions::default())
}

fn rows_by(tensor: &Tensor, options: &PrintOptions) -> String {
    let text = ops::to_string(tensor, options);
    text.split_once('\n').unwrap().1.to_owned()
}

#[test]
fn a_header_line_says_shape_dtype_and_device() {
    let header = |shape, dtype| format!("Tensor(shape={shape}, dtype={dtype}, device=cpu)\n");
    let scalar = tensor::<f32>(&[], &[1.5]);
    assert_eq!(scalar.to_string(), header("[]", "float32") + "1.5");
    let matrix = counted(&[2, 3]);
    let expected = header("[2, 3]", "uint16") + "[[0, 1, 2],\n [3, 4, 5]]";
    assert_eq!(matrix.to_string(), expected);
    assert_eq!(ops::to_string(&matrix, &PrintOptions::default()), expected);
    assert_eq!(
        ops::display(&matrix, &PrintOptions::default()).to_string(),
        expected
    );
}

#[test]
fn rows_are_nested_and_their_columns_line_up() {
    assert_eq!(rows(&tensor::<i32>(&[3], &[1, -2, 30])), "[ 1, -2, 30]");
    assert_eq!(
        rows(&counted(&[2, 2, 2])),
        "[[[0, 1],\n  [2, 3]],\n\n [[4, 5],\n  [6, 7]]]"
    );
    let deep = rows(&counted(&[2, 1, 2, 1]));
    assert_eq!(deep, "[[[[0],\n   [1]]],\n\n\n [[[2],\n   [3]]]]");
    let matrix = counted(&[3, 5]);
    assert_eq!(
        rows(&matrix.slice(1, 2, 3).unwrap()),
        "[[ 2],\n [ 7],\n [12]]"
    );
    assert_eq!(
        rows(&matrix.transpose(0, 1).unwrap())
            .lines()
            .next()
            .unwrap(),
        "[[ 0,  5, 10],"
    );
    let booleans = tensor::<Bool8>(&[2], &[Bool8::new(true), Bool8::new(false)]);
    assert_eq!(rows(&booleans), "[ true, false]");
}

#[test]
fn every_dtype_is_shown() {
    for dtype in DType::ALL.into_iter().filter(|dtype| !dtype.is_reserved()) {
        let expected = match dtype {
            DType::Bool => "[false,  true]",
            dtype if dtype.is_floating_point() => "[0., 1.]",
            _ => "[0, 1]",
        };
        assert_eq!(
            rows(&ops::arange(0, 2, 1, dtype, cpu()).unwrap()),
            expected,
            "{dtype}"
        );
    }
    let limits = tensor::<u64>(&[2], &[0, u64::MAX]);
    assert_eq!(
        rows(&limits),
        "[                   0, 18446744073709551615]"
    );
    assert_eq!(
        rows(&tensor::<i64>(&[1], &[i64::MIN])),
        "[-9223372036854775808]"
    );
}

#[test]
fn floats_share_as_many_digits_as_one_of_them_needs() {
    assert_eq!(
        rows(&tensor::<f32>(&[3], &[1.0, 2.5, -10.25])),
        "[  1.00,   2.50, -10.25]"
    );
    assert_eq!(rows(&tensor::<f32>(&[2], &[1.0, 200.0])), "[  1., 200.]");
    assert_eq!(
        rows(&tensor::<f64>(&[2], &[1.0 / 3.0, 1.0])),
        "[0.3333, 1.0000]"
    );
    assert_eq!(
        rows(&tensor::<f16>(&[1], &[f16::from_bits(0x3555)])),
        "[0.3333]"
    );
    let odd = tensor::<f32>(&[4], &[f32::NAN, f32::INFINITY, f32::NEG_INFINITY, -0.0]);
    assert_eq!(rows(&odd), "[ NaN,  inf, -inf,  -0.]");
}

#[test]
fn floats_have_an_exponent_where_digits_would_hide_them() {
    // The largest is at least 1e8.
    assert_eq!(
        rows(&tensor::<f64>(&[2], &[99_999_999.0, 5e7])),
        "[99999999., 50000000.]"
    );
    assert_eq!(rows(&tensor::<f64>(&[2], &[1e8, 2e8])), "[1e8, 2e8]");
    // The smallest is below 1e-4.
    assert_eq!(
        rows(&tensor::<f64>(&[2], &[1e-4, 2e-4])),
        "[0.0001, 0.0002]"
    );
    assert_eq!(
        rows(&tensor::<f64>(&[2], &[0.99e-4, 2e-4])),
        "[9.9e-5, 2.0e-4]"
    );
    // The one is at least 1000 times the other; signs, zeros and infinities do not count.
    assert_eq!(rows(&tensor::<f64>(&[2], &[-0.5, 499.0])), "[ -0.5, 499.0]");
    assert_eq!(rows(&tensor::<f64>(&[2], &[-0.5, 500.0])), "[-5e-1,   5e2]");
    assert_eq!(
        rows(&tensor::<f64>(&[3], &[0.0, f64::INFINITY, 1.0])),
        "[ 0., inf,  1.]"
    );
    let mixed = tensor::<f32>(&[3], &[0.0, -3.4e38, 1.0 / 3.0]);
    assert_eq!(rows(&mixed), "[  0.0000e0, -3.4000e38,  3.3333e-1]");
}

#[test]
fn only_what_is_shown_decides_on_the_exponent_and_the_width() {
    let row = ops::ones([2001], DType::F32, cpu()).unwrap();
    row.write::<f32>().unwrap()[1000] = 1e30;
    assert_eq!(rows(&row), "[1., 1., 1., ..., 1., 1., 1.]");
    row.write::<f32>().unwrap()[2] = 1e30;
    assert_eq!(rows(&row), "[ 1e0,  1e0, 1e30, ...,  1e0,  1e0,  1e0]");
}

#[test]
fn large_tensors_show_three_elements_at_each_edge() {
    assert_eq!(
        rows(&counted(&[1001])),
        "[   0,    1,    2, ...,  998,  999, 1000]"
    );
    assert!(
        rows(&counted(&[1000])).contains("499, 500, 501"),
        "1,000 are shown whole"
    );
    let matrix = rows(&counted(&[100, 20]));
    let lines: Vec<&str> = matrix.lines().collect();
    assert_eq!(lines[0], "[[   0,    1,    2, ...,   17,   18,   19],");
    assert_eq!(lines[3], " ...,");
    assert_eq!(lines[6], " [1980, 1981, 1982, ..., 1997, 1998, 1999]]");
    assert_eq!(lines.len(), 7);
    // A dimension of six is not cut: nothing would be saved.
    assert_eq!(rows(&counted(&[6, 200])).lines().count(), 6);
}

#[test]
fn options_are_of_one_call() {
    let row = ops::arange(0, 10, 1, None, cpu()).unwrap();
    let default = PrintOptions::default();
    let short = PrintOptions {
        threshold: 9,
        ..default
    };
    assert_eq!(rows_by(&row, &short), "[0, 1, 2, ..., 7, 8, 9]");
    assert_eq!(
        rows_by(
            &row,
            &PrintOptions {
                edge_items: 1,
                ..short
            }
        ),
        "[0, ..., 9]"
    );
    assert_eq!(
        rows_by(
            &row,
            &PrintOptions {
                edge_items: 5,
                ..short
            }
        ),
        rows(&row)
    );
    let value = tensor::<f64>(&[1], &[std::f64::consts::PI]);
    assert_eq!(
        rows_by(
            &value,
            &PrintOptions {
                precision: 6,
                ..default
            }
        ),
        "[3.141593]"
    );
    assert_eq!(
        rows_by(
            &value,
            &PrintOptions {
                precision: 0,
                ..default
            }
        ),
        "[3.]"
    );
    let scientific = Scientific::Always;
    assert_eq!(
        rows_by(
            &value,
            &PrintOptions {
                scientific,
                ..default
            }
        ),
        "[3.1416e0]"
    );
    let large = tensor::<f64>(&[1], &[1e9]);
    let scientific = Scientific::Never;
    assert_eq!(
        rows_by(
            &large,
            &PrintOptions {
                scientific,
                ..default
            }
        ),
        "[1000000000.]"
    );
    assert_eq!(
        rows(&row),
        "[0, 1, 2, 3, 4, 5, 6, 7, 8, 9]",
        "and nothing of it stays"
    );
}

/// The standard library panics from 65,536 digits on; with an exponent it counts one more.
#[test]
fn any_precision_can_be_asked_for() {
    let values = tensor::<f64>(&[3], &[5e-324, 0.1, f64::NAN]);
    for scientific in [
        Scientific::WhenNeeded,
        Scientific::Always,
        Scientific::Never,
    ] {
        for precision in [0, 400, 65_533, 65_534, 65_535, 65_536, usize::MAX] {
            let options = PrintOptions {
                precision,
                scientific,
                ..PrintOptions::default()
            };
            let text = rows_by(&values, &options);
            // All that there are, and no more than one of them needs.
            let exact = "000000000000000055511151231257827021181583404541015625";
            assert_eq!(text.contains(exact), precision >= 400, "{precision}");
            assert!(text.len() < 5000, "{} bytes", text.len());
        }
    }
}

#[test]
fn long_rows_go_on_in_the_next_line() {
    let narrow = PrintOptions {
        line_width: 12,
        ..PrintOptions::default()
    };
    assert_eq!(
        rows_by(&counted(&[9]), &narrow),
        "[0, 1, 2, 3,\n 4, 5, 6, 7,\n 8]"
    );
    assert_eq!(
        rows_by(&counted(&[2, 5]), &narrow),
        "[[0, 1, 2,\n  3, 4],\n [5, 6, 7,\n  8, 9]]"
    );
    assert!(rows(&counted(&[1000])).lines().all(|line| line.len() <= 80));
    let one = PrintOptions {
        line_width: 0,
        ..PrintOptions::default()
    };
    assert_eq!(
        rows_by(&counted(&[3]), &one),
        "[0,\n 1,\n 2]",
        "one at least"
    );
}

#[test]
#[should_panic(expected = "edge_items is 0, must be positive")]
fn no_edge_items_are_a_callers_mistake() {
    let none = PrintOptions {
        edge_items: 0,
        ..PrintOptions::default()
    };
    let _ = ops::to_string(&counted(&[3]), &none);
}

#[test]
fn no_tensor_is_shown_as_undefined() {
    let none: Option<&Tensor> = None;
    assert_eq!(
        ops::to_string(none, &PrintOptions::default()),
        "Tensor(undefined)"
    );
    let some = counted(&[1]);
    assert_eq!(
        ops::to_string(Some(&some), &PrintOptions::default()),
        some.to_string()
    );
}

#[test]
fn what_cannot_be_shown_is_not_waited_for() {
    let matrix = counted(&[2, 2]);
    let guard = matrix.write::<u16>().unwrap();
    let text = "Tensor(shape=[2, 2], dtype=uint16, device=cpu)\n<borrowed>";
    assert_eq!(matrix.to_string(), text);
    drop(guard);
    let _reader = matrix.read::<u16>().unwrap();
    assert_eq!(rows(&matrix), "[[0, 1],\n [2, 3]]");
    // No elements in very many rows: shown at once.
    let empty = Tensor::zeros([1 << 62, 0], DType::F32, cpu()).unwrap();
    assert_eq!(rows(&empty), "[]");
}
