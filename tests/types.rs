//! Dtypes, elements and devices: leaf values of the tensor contract.
//!
//! ```text
//!   DType     the table of §3, code by code: names and file tags are two doors
//!   Element   the Rust type of each; halves are two plain bytes that count as f32
//!   Device    §5: the exact forms and nothing near them
//! ```
//!
//! Shapes and strides, §4, are in `shapes.rs`.
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

use tenslab::types::TypeError;
use tenslab::types::half::{bf16_from_f32, bf16_to_f32, f16_from_f32, f16_to_f32};
use tenslab::{Bool8, DType, Device, Element, Tensor, bf16, f16, memory};

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
fn a_half_is_two_plain_bytes() {
    fn is_plain<T: Element + Copy + Default>() {
        assert!(!std::mem::needs_drop::<T>());
        assert_eq!((size_of::<T>(), align_of::<T>()), (2, 2));
    }
    is_plain::<f16>();
    is_plain::<bf16>();
    assert_eq!(f16::from_bits(0x1234).to_bits(), 0x1234);
    assert_eq!(bf16::from_bits(0x1234).to_bits(), 0x1234);
    assert_eq!(
        (f16::default().to_bits(), bf16::default().to_bits()),
        (0, 0)
    );
}

/// `f16` and `bf16` have no arithmetic of their own: both sides widen, and `f32` decides.
#[test]
fn halves_compute_and_compare_as_f32_does() {
    let values = [
        0x0000, 0x8000, 0x0001, 0x3c00, 0xbc00, 0x7bff, 0x7c00, 0xfc00, 0x7e00,
    ];
    for a in values {
        for b in values {
            let (x, y) = (f16::from_bits(a), f16::from_bits(b));
            let (wide_x, wide_y) = (f16_to_f32(x), f16_to_f32(y));
            assert_eq!(
                x.partial_cmp(&y),
                wide_x.partial_cmp(&wide_y),
                "{a:#x} {b:#x}"
            );
            assert_eq!(x == y, wide_x == wide_y, "{a:#x} {b:#x}");
            let sum = f16_from_f32(wide_x + wide_y);
            assert!((x + y).to_bits() == sum.to_bits() || sum.is_nan() && (x + y).is_nan());

            let (x, y) = (bf16::from_bits(a), bf16::from_bits(b));
            let (wide_x, wide_y) = (bf16_to_f32(x), bf16_to_f32(y));
            assert_eq!(
                x.partial_cmp(&y),
                wide_x.partial_cmp(&wide_y),
                "{a:#x} {b:#x}"
            );
            assert_eq!(x == y, wide_x == wide_y, "{a:#x} {b:#x}");
            let product = bf16_from_f32(wide_x * wide_y);
            let found = x * y;
            assert!(found.to_bits() == product.to_bits() || product.is_nan() && found.is_nan());
        }
    }
    assert_ne!(f16::NAN, f16::NAN);
    assert_eq!(bf16::from_bits(0x8000), bf16::ZERO, "-0 == +0");
}

/// As numbers, from the formats' definitions.
#[test]
fn the_limits_of_the_halves_are_those_of_their_formats() {
    let f16_limits = [
        (f16::MAX, 65504.0),
        (f16::MIN, -65504.0),
        (f16::MIN_POSITIVE, 2_f32.powi(-14)),
        (f16::MIN_POSITIVE_SUBNORMAL, 2_f32.powi(-24)),
        (f16::EPSILON, 2_f32.powi(-10)),
        (f16::INFINITY, f32::INFINITY),
    ];
    for (limit, value) in f16_limits {
        assert_eq!(f16_to_f32(limit), value);
    }
    let bf16_limits = [
        (bf16::MAX, f32::from_bits(0x7f7f_0000)),
        (bf16::MIN, f32::from_bits(0xff7f_0000)),
        (bf16::MIN_POSITIVE, 2_f32.powi(-126)),
        (bf16::MIN_POSITIVE_SUBNORMAL, f32::from_bits(0x0001_0000)), // 2^-133
        (bf16::EPSILON, 2_f32.powi(-7)),
        (bf16::INFINITY, f32::INFINITY),
    ];
    for (limit, value) in bf16_limits {
        assert_eq!(bf16_to_f32(limit), value);
    }
    assert_eq!((f16::MANTISSA_DIGITS, bf16::MANTISSA_DIGITS), (11, 8));
    assert!(f16_to_f32(f16::NAN).is_nan() && bf16_to_f32(bf16::NAN).is_nan());
}

#[test]
fn a_half_prints_as_the_f32_that_it_is() {
    assert_eq!(f16_from_f32(0.1).to_string(), "0.099975586");
    assert_eq!(bf16_from_f32(0.1).to_string(), "0.100097656");
    for bits in 0..=u16::MAX {
        let (half, brain) = (f16::from_bits(bits), bf16::from_bits(bits));
        assert_eq!(half.to_string(), f16_to_f32(half).to_string());
        assert_eq!(brain.to_string(), bf16_to_f32(brain).to_string());
    }
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

/// What is equal prints alike, hashes alike and parses back; what is not does not.
#[test]
fn devices_are_equal_exactly_where_they_print_alike() {
    let devices = [
        Device::Cpu,
        Device::Cuda(0),
        Device::Cuda(1),
        Device::Cuda(10),
        Device::Cuda(u32::MAX),
    ];
    for a in devices {
        for b in devices {
            assert_eq!(a == b, a.to_string() == b.to_string(), "{a} {b}");
        }
    }
    assert_eq!(HashSet::from(devices).len(), devices.len());
}

#[test]
fn dtypes_and_devices_are_made_and_asked_in_constant_expressions() {
    const DEVICE: Device = Device::Cuda(1);
    const INDEX: (u32, bool) = (DEVICE.index(), DEVICE.is_cpu());
    const DTYPE: Option<DType> = DType::from_code(2);
    const BYTES: usize = DType::BF16.bytes() + DType::I4.bits();
    assert_eq!(INDEX, (1, false));
    assert_eq!((DTYPE, BYTES), (Some(DType::BF16), 6));
}
