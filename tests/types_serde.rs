//! The types as serde reads and writes them, through JSON: text forms for what has one,
//! lists of numbers for shapes and strides, and the same refusals as everywhere.
#![cfg(all(not(loom), feature = "serde"))]
#![allow(clippy::unwrap_used, reason = "a test that fails should panic")]

use std::fmt::Debug;

use serde_json::{from_str, from_value, json, to_string, to_value};
use tenslab::types::row_major_strides;
use tenslab::{Bool8, DType, Device, Shape, Strides};

fn round_trip<T>(value: T, text: &str)
where
    T: serde::Serialize + serde::de::DeserializeOwned + PartialEq + Debug,
{
    assert_eq!(to_string(&value).unwrap(), text);
    assert_eq!(from_str::<T>(text).unwrap(), value);
    // Owned strings and numbers come through other doors of a visitor.
    assert_eq!(from_value::<T>(to_value(&value).unwrap()).unwrap(), value);
}

#[test]
fn every_type_comes_back_from_its_form() {
    for dtype in DType::ALL {
        round_trip(dtype, &format!("\"{dtype}\""));
    }
    round_trip(Device::Cpu, "\"cpu\"");
    round_trip(Device::Cuda(7), "\"cuda:7\"");
    round_trip(Shape::SCALAR, "[]");
    round_trip(Shape::from([2, 0, 4]), "[2,0,4]");
    round_trip(
        Shape::from([1, 1, 1, 1, 1, 1, 1, usize::MAX / 2]),
        "[1,1,1,1,1,1,1,9223372036854775807]",
    );
    round_trip(row_major_strides(&Shape::from([2, 3, 4])), "[12,4,1]");
    round_trip(Bool8::new(true), "true");
}

fn refused<T: serde::de::DeserializeOwned + Debug>(text: &str, because: &str) {
    let error = from_str::<T>(text).unwrap_err().to_string();
    assert!(error.contains(because), "{text}: {error}");
}

#[test]
fn what_is_no_value_is_refused_with_the_reason() {
    refused::<DType>("\"F32\"", "unknown dtype \"F32\"");
    refused::<DType>("3", "the name of a dtype");
    refused::<Device>("\"cpu:1\"", "unknown device \"cpu:1\"");
    refused::<Shape>("[4294967296, 4294967296]", "more than 2^63 - 1 elements");
    refused::<Shape>("[1,1,1,1,1,1,1,1,1]", "9 dimensions, at most 8");
    refused::<Shape>("[2, -1]", "-1");
    refused::<Shape>("[2.5]", "2.5");
    refused::<Shape>("\"[2]\"", "a shape: up to 8 numbers");
    refused::<Strides>("[1,1,1,1,1,1,1,1,1]", "9 dimensions, at most 8");
    refused::<Bool8>("2", "boolean");
}

#[test]
fn a_struct_of_them_reads_as_one_expects() {
    let described = json!({"dtype": "bfloat16", "shape": [32, 576], "device": "cpu"});
    let dtype: DType = from_value(described["dtype"].clone()).unwrap();
    let shape: Shape = from_value(described["shape"].clone()).unwrap();
    let device: Device = from_value(described["device"].clone()).unwrap();
    assert_eq!(
        (dtype, shape, device),
        (DType::BF16, Shape::from([32, 576]), Device::Cpu)
    );
}
