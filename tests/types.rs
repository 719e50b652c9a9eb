//! Dtypes, shapes, strides and devices: the leaf values of the tensor contract.
//!
//! ```text
//!   DType     the table of §3, code by code: names and file tags are two doors
//!   Shape     §4: what is a shape, what is none, and why
//!   Strides   §4: row-major goldens and what counts as contiguous
//!   Device    §5: the exact forms and nothing near them
//! ```
//!
//! The tables are written out here a second time on purpose: a code or a name that
//! changes in `src/` reached files already, so it has to fail.
#![cfg(not(loom))]
#![allow(clippy::unwrap_used, reason = "a test that fails should panic")]
#![allow(
    clippy::cast_possible_truncation,
    reason = "a test cuts numbers that it made to fit"
)]

use std::collections::HashSet;

use tenslab::types::{MAX_RANK, TypeError, row_major_strides};
use tenslab::{Bool8, DType, Device, Element, Shape, Strides, Tensor, bf16, f16, memory};

/// code, dtype, bits, name, tag, floating, integral, reserved
type Row = (
    u8,
    DType,
    usize,
    &'static str,
    Option<&'static str>,
    bool,
    bool,
    bool,
);

#[rustfmt::skip]
const TABLE: [Row; 16] = [
    (0,  DType::F32,    32, "float32",  Some("F32"),     true,  false, false),
    (1,  DType::F16,    16, "float16",  Some("F16"),     true,  false, false),
    (2,  DType::BF16,   16, "bfloat16", Some("BF16"),    true,  false, false),
    (3,  DType::I8,      8, "int8",     Some("I8"),      false, true,  false),
    (4,  DType::U8,      8, "uint8",    Some("U8"),      false, true,  false),
    (5,  DType::I32,    32, "int32",    Some("I32"),     false, true,  false),
    (6,  DType::I64,    64, "int64",    Some("I64"),     false, true,  false),
    (7,  DType::Bool,    8, "bool",     Some("BOOL"),    false, false, false),
    (8,  DType::F8E4M3,  8, "fp8_e4m3", Some("F8_E4M3"), true,  false, true),
    (9,  DType::I4,      4, "int4",     None,            false, true,  true),
    (10, DType::I16,    16, "int16",    Some("I16"),     false, true,  false),
    (11, DType::U16,    16, "uint16",   Some("U16"),     false, true,  false),
    (12, DType::U32,    32, "uint32",   Some("U32"),     false, true,  false),
    (13, DType::U64,    64, "uint64",   Some("U64"),     false, true,  false),
    (14, DType::F64,    64, "float64",  Some("F64"),     true,  false, false),
    (15, DType::F8E5M2,  8, "fp8_e5m2", Some("F8_E5M2"), true,  false, true),
];

#[test]
fn every_dtype_is_what_the_table_says() {
    for (code, dtype, bits, name, tag, floating, integral, reserved) in TABLE {
        assert_eq!(dtype.code(), code, "{name}");
        assert_eq!(DType::from_code(code), Some(dtype), "{name}");
        assert_eq!(dtype.bits(), bits, "{name}");
        assert_eq!(dtype.name(), name);
        assert_eq!(dtype.to_string(), name);
        assert_eq!(name.parse::<DType>(), Ok(dtype));
        assert_eq!(dtype.safetensors_tag(), tag, "{name}");
        assert_eq!(dtype.is_floating_point(), floating, "{name}");
        assert_eq!(dtype.is_integral(), integral, "{name}");
        assert_eq!(dtype.is_reserved(), reserved, "{name}");
        assert_eq!(dtype.is_sub_byte(), bits < 8, "{name}");
        if bits >= 8 {
            assert_eq!(dtype.bytes(), bits / 8, "{name}");
        }
    }
}

#[test]
fn all_lists_every_dtype_once_in_the_order_of_the_codes() {
    assert_eq!(
        DType::ALL.map(DType::code),
        std::array::from_fn(|i| i as u8)
    );
    assert_eq!(DType::ALL, TABLE.map(|row| row.1));
    let names: HashSet<_> = DType::ALL.iter().map(|dtype| dtype.name()).collect();
    assert_eq!(names.len(), 16);
}

#[test]
fn codes_that_are_not_given_out_are_no_dtype() {
    for code in 16..=255 {
        assert_eq!(DType::from_code(code), None, "{code}");
    }
}

#[test]
fn names_and_tags_are_two_doors() {
    for dtype in DType::ALL {
        assert_eq!(DType::from_safetensors_tag(dtype.name()), None, "{dtype}");
        if let Some(tag) = dtype.safetensors_tag() {
            assert_eq!(DType::from_safetensors_tag(tag), Some(dtype));
            assert!(tag.parse::<DType>().is_err(), "{tag}");
        }
    }
}

#[test]
fn only_the_exact_spelling_is_a_name_or_a_tag() {
    for name in [
        "",
        " float32",
        "float32 ",
        "Float32",
        "float",
        "torch.float32",
        "f32",
        "int",
        "fp8",
    ] {
        let unknown = TypeError::UnknownDType { name: name.into() };
        assert_eq!(name.parse::<DType>(), Err(unknown), "{name:?}");
    }
    for tag in [
        "", "f32", "F32 ", "BF-16", "I4", "bool", "Bool", "F8_E8M0", "F8E4M3",
    ] {
        assert_eq!(DType::from_safetensors_tag(tag), None, "{tag:?}");
    }
}

#[test]
#[should_panic(expected = "int4")]
fn int4_has_no_width_in_bytes() {
    let _ = DType::I4.bytes();
}

fn element_is<T: Element>(dtype: DType, align: usize) {
    assert_eq!(T::DTYPE, dtype);
    assert_eq!(size_of::<T>(), dtype.bytes());
    assert_eq!(align_of::<T>(), align);
}

#[test]
fn each_rust_type_is_the_element_of_its_dtype() {
    element_is::<f32>(DType::F32, 4);
    element_is::<f16>(DType::F16, 2);
    element_is::<bf16>(DType::BF16, 2);
    element_is::<i8>(DType::I8, 1);
    element_is::<u8>(DType::U8, 1);
    element_is::<i32>(DType::I32, 4);
    element_is::<i64>(DType::I64, 8);
    element_is::<Bool8>(DType::Bool, 1);
    element_is::<i16>(DType::I16, 2);
    element_is::<u16>(DType::U16, 2);
    element_is::<u32>(DType::U32, 4);
    element_is::<u64>(DType::U64, 8);
    element_is::<f64>(DType::F64, 8);
}

/// A file may hold any byte where a boolean belongs: it is a value all the same.
#[test]
fn every_byte_is_a_boolean_and_keeps_its_bits() {
    let bytes = Tensor::zeros([256], DType::U8, memory::cpu()).unwrap();
    for (at, byte) in bytes.write::<u8>().unwrap().iter_mut().enumerate() {
        *byte = at as u8;
    }
    let booleans = bytes.view_as_dtype(DType::Bool).unwrap();
    for (at, value) in booleans.read::<Bool8>().unwrap().iter().enumerate() {
        assert_eq!(value.get(), at != 0);
        assert_eq!(bool::from(*value), at != 0);
        assert_eq!(usize::from(value.to_bits()), at);
        assert_eq!(*value, Bool8::new(at != 0), "compared as booleans");
    }
    assert_eq!(Bool8::from(true).to_bits(), 1);
    assert_eq!(Bool8::default().to_string(), "false");
}

#[test]
fn shapes_know_their_rank_sizes_and_elements() {
    let goldens: [(&[usize], usize, &str); 7] = [
        (&[], 1, "[]"),
        (&[5], 5, "[5]"),
        (&[2, 3], 6, "[2, 3]"),
        (&[2, 3, 4], 24, "[2, 3, 4]"),
        (&[1, 1, 1, 1], 1, "[1, 1, 1, 1]"),
        (&[2, 3, 0, 5, 7], 0, "[2, 3, 0, 5, 7]"),
        (&[2; 8], 256, "[2, 2, 2, 2, 2, 2, 2, 2]"),
    ];
    for (dims, numel, text) in goldens {
        let shape = Shape::from_dims(dims).unwrap();
        assert_eq!(shape.rank(), dims.len());
        assert_eq!(shape.dims(), dims);
        assert_eq!(shape.numel(), numel, "{text}");
        assert_eq!(shape.to_string(), text);
        assert_eq!(Shape::try_from(dims), Ok(shape));
        for (index, &dim) in dims.iter().enumerate() {
            assert_eq!(shape.dim(index), dim);
        }
    }
    assert_eq!(Shape::default(), Shape::SCALAR);
    assert_eq!(Shape::from([]), Shape::SCALAR);
    assert_ne!(Shape::from([]), Shape::from([1]));
    assert_ne!(Shape::from([0]), Shape::from([0, 0]));
}

#[test]
fn equal_shapes_hash_alike_and_different_ones_are_told_apart() {
    let shapes: HashSet<Shape> = [
        Shape::from([2, 3]),
        Shape::from_dims(&[2, 3]).unwrap(),
        Shape::try_from(&[2_i64, 3][..]).unwrap(),
        Shape::from([3, 2]),
        Shape::from([2, 3, 1]),
    ]
    .into();
    assert_eq!(shapes.len(), 3);
}

#[test]
fn eight_dimensions_are_a_shape_and_nine_are_none() {
    assert_eq!(MAX_RANK, 8);
    assert!(Shape::from_dims(&[1; 8]).is_ok());
    let too_high = TypeError::RankTooHigh { rank: 9, max: 8 };
    assert_eq!(Shape::from_dims(&[1; 9]), Err(too_high.clone()));
    assert_eq!(Shape::from_dims(&[0; 9]), Err(too_high.clone()));
    assert_eq!(Shape::try_from(&[-1_i64; 9][..]), Err(too_high));
}

#[test]
fn overflow_is_judged_on_the_product_of_the_dimensions_that_are_not_zero() {
    let largest = i64::MAX as usize;
    let fine: [&[usize]; 5] = [
        &[largest],
        &[0, largest],
        &[7, 7, 73, 127, 337, 92_737, 649_657], // the factors of 2^63 - 1
        &[1 << 31, 0, 1 << 31],
        &[1 << 62, 1, 1],
    ];
    for dims in fine {
        let shape = Shape::from_dims(dims).unwrap();
        let numel = if dims.contains(&0) {
            0
        } else {
            dims.iter().product()
        };
        assert_eq!(shape.numel(), numel);
    }
    let too_many: [(&[usize], usize); 7] = [
        (&[largest + 1], 0),
        (&[usize::MAX], 0),
        (&[1 << 32, 1 << 31], 1),
        (&[1 << 32, 1 << 32], 1),    // wraps to 0
        (&[0, 1 << 32, 1 << 32], 2), // a 0 excuses nothing
        (&[1 << 32, 0, 1 << 32], 2),
        (&[3, largest / 2, 0], 1),
    ];
    for (dims, index) in too_many {
        let (rank, dim) = (dims.len(), dims[index]);
        let error = TypeError::TooManyElements { rank, index, dim };
        assert_eq!(Shape::from_dims(dims), Err(error.clone()), "{dims:?}");
        assert!(error.to_string().contains(&dim.to_string()));
    }
}

#[test]
fn signed_dimensions_below_zero_are_named() {
    assert_eq!(
        Shape::try_from(&[2_i64, -3, -4][..]),
        Err(TypeError::NegativeDim { index: 1, dim: -3 })
    );
    assert_eq!(
        Shape::try_from(&[i64::MIN][..]),
        Err(TypeError::NegativeDim {
            index: 0,
            dim: i64::MIN
        })
    );
    assert_eq!(
        Shape::try_from(&[i64::MAX][..]).unwrap().numel(),
        i64::MAX as usize
    );
    assert!(Shape::try_from(&[i64::MAX, 2][..]).is_err());
    assert_eq!(Shape::try_from(&[][..] as &[i64]), Ok(Shape::SCALAR));
}

#[test]
#[should_panic(expected = "is no shape")]
fn a_literal_of_nine_dimensions_is_a_typo() {
    let _ = Shape::from([1; 9]);
}

#[test]
#[should_panic(expected = "is no shape")]
fn a_literal_of_too_many_elements_is_a_typo() {
    let _ = Shape::from([1 << 32, 1 << 32]);
}

#[test]
#[should_panic(expected = "dimension 2 of a shape of rank 2")]
fn a_dimension_past_the_rank_is_a_typo() {
    let _ = Shape::from([2, 3]).dim(2);
}

#[test]
#[should_panic(expected = "stride 1 of 1 strides")]
fn a_stride_past_the_rank_is_a_typo() {
    let _ = row_major_strides(&Shape::from([5])).stride(1);
}

#[test]
fn row_major_strides_take_a_dimension_of_zero_for_one() {
    let goldens: [(&[usize], &[usize]); 8] = [
        (&[], &[]),
        (&[7], &[1]),
        (&[2, 3, 4], &[12, 4, 1]),
        (&[2, 0, 4], &[4, 4, 1]),
        (&[0], &[1]),
        (&[3, 2, 0], &[2, 1, 1]),
        (&[1, 1, 5, 1], &[5, 5, 1, 1]),
        (&[2; 8], &[128, 64, 32, 16, 8, 4, 2, 1]),
    ];
    for (dims, strides) in goldens {
        let shape = Shape::from_dims(dims).unwrap();
        let packed = row_major_strides(&shape);
        assert_eq!(packed.values(), strides, "{shape}");
        assert_eq!(packed.rank(), shape.rank());
        assert!(packed.are_contiguous_for(&shape), "{shape}");
    }
    // The largest stride there can be: nothing overflows.
    let shape = Shape::from([0, i64::MAX as usize]);
    assert_eq!(row_major_strides(&shape).values(), [i64::MAX as usize, 1]);
}

fn strides(dims: &[usize]) -> Strides {
    row_major_strides(&Shape::from_dims(dims).unwrap())
}

#[test]
fn contiguity_ignores_what_is_never_stepped() {
    // strides [12, 4, 1]
    let of = strides(&[2, 3, 4]);
    let goldens: [(&[usize], bool); 9] = [
        (&[2, 3, 4], true),
        (&[9, 3, 4], true), // the outermost size puts no condition on strides
        (&[1, 3, 4], true),
        (&[2, 1, 4], false), // a row skipped in between
        (&[1, 1, 4], true),
        (&[1, 1, 1], true),
        (&[2, 3, 3], false),
        (&[2, 1, 1], false),
        (&[2, 0, 3], true), // nothing to step over
    ];
    for (dims, contiguous) in goldens {
        let shape = Shape::from_dims(dims).unwrap();
        assert_eq!(
            of.are_contiguous_for(&shape),
            contiguous,
            "{shape} with {of}"
        );
    }
    assert!(!of.are_contiguous_for(&Shape::from([24])), "another rank");
    assert!(strides(&[]).are_contiguous_for(&Shape::SCALAR));
}

#[test]
fn devices_are_written_in_exactly_these_forms() {
    let forms = [
        ("cpu", Device::Cpu),
        ("cuda", Device::Cuda(0)),
        ("cuda:0", Device::Cuda(0)),
        ("cuda:7", Device::Cuda(7)),
        ("cuda:4294967295", Device::Cuda(u32::MAX)),
    ];
    for (spec, device) in forms {
        assert_eq!(spec.parse::<Device>(), Ok(device), "{spec}");
        assert_eq!(device.to_string().parse::<Device>(), Ok(device));
    }
    let none = [
        "",
        "CPU",
        "cpu ",
        " cpu",
        "cpu:0",
        "cpu:1",
        "cuda:",
        "cuda:-1",
        "cuda:+1",
        "cuda:01",
        "cuda:00",
        "cuda: 1",
        "cuda:1 ",
        "cuda:1:2",
        "cuda:4294967296",
        "cuda:x",
        "cuda:٣",
        "gpu",
        "cuda1",
        "Cuda:1",
    ];
    for spec in none {
        let unknown = TypeError::UnknownDevice { spec: spec.into() };
        assert_eq!(spec.parse::<Device>(), Err(unknown), "{spec:?}");
    }
}

#[test]
fn the_default_device_is_the_host() {
    assert_eq!(Device::default(), Device::Cpu);
    assert!(Device::Cpu.is_cpu() && !Device::Cpu.is_cuda());
    assert!(Device::Cuda(3).is_cuda() && !Device::Cuda(3).is_cpu());
    assert_eq!((Device::Cpu.index(), Device::Cuda(3).index()), (0, 3));
}
