#!/usr/bin/env python3
"""Writes tests/golden/casts.bin: what NumPy and ml_dtypes make of every cast.

    python3 -m venv venv && venv/bin/pip install numpy ml_dtypes
    venv/bin/python scripts/golden_casts.py            # writes the file
    venv/bin/python scripts/golden_casts.py --check    # says whether it is what would be written

The file is one record for each pair of dtypes, little-endian:

    u8   code of the source dtype       u8   code of the target dtype      u16  elements
    the source's elements               a byte each: does it fit?          the target's elements

The order of the casts is the contract's: to a float through float64 and float32
(so int64 -> bfloat16 rounds three times, as it says), to an integer by cutting towards zero.
What does not fit an integer (NaN, infinities, out of range) is 0 there; NumPy wraps or
saturates, we refuse. A NaN is some NaN: NumPy and ml_dtypes keep other parts of its payload.
"""

import argparse
import math
import pathlib
import struct
import sys

import ml_dtypes
import numpy as np

TARGET = pathlib.Path(__file__).parent.parent / "tests" / "golden" / "casts.bin"

# Stable codes (src/types/dtype.rs) and NumPy's types.
DTYPES = {
    0: np.dtype(np.float32),
    1: np.dtype(np.float16),
    2: np.dtype(ml_dtypes.bfloat16),
    3: np.dtype(np.int8),
    4: np.dtype(np.uint8),
    5: np.dtype(np.int32),
    6: np.dtype(np.int64),
    10: np.dtype(np.int16),
    11: np.dtype(np.uint16),
    12: np.dtype(np.uint32),
    13: np.dtype(np.uint64),
    14: np.dtype(np.float64),
}
FLOATS = {0, 1, 2, 14}

# Where something happens: limits of the integers and of the halves, ties, last exact integers.
EDGES = [0, 1, 2, 3, 127, 128, 129, 255, 256, 257, 2047, 2048, 2049, 2051, 32767, 32768, 65503,
         65504, 65519, 65520, 65535, 65536, 2**24, 2**24 + 1, 2**31 - 1, 2**31, 2**32 - 1, 2**32,
         4311744513, 2**53, 2**53 + 1, 2**63 - 1025, 2**63 - 1, 2**63, 2**64 - 1, 2**64 - 2049]
FRACTIONS = [0.1, 0.5, 0.999, 1.5, 2.5, 1 + 2**-11, 1 + 2**-11 + 2**-40, 1 + 2**-8, 1 + 3 * 2**-8,
             65519.999999999, 65519.5, 127.5, 127.99, 128.5, 255.5, 2147483647.5, 4294967295.5,
             2.0**-14, 2.0**-24, 2.0**-25, 1.5 * 2.0**-25, 2.0**-126, 2.0**-133, 2.0**-134,
             2.0**-149, 5e-324, 3.3895313892515355e38, 3.3961775292304957e38, 3.4028235677973366e38,
             1e39, 1.7976931348623157e308, math.inf, math.nan]


def source(code, dtype):
    """Edges and their neighbours of either sign, then random bit patterns."""
    rng = np.random.Generator(np.random.PCG64(code))
    bits = rng.integers(0, 256, size=(32, dtype.itemsize), dtype=np.uint8)
    random = bits.view(dtype).reshape(-1)
    if code in FLOATS:
        with np.errstate(over="ignore"):
            exact = np.array([float(e) for e in EDGES] + FRACTIONS).astype(np.float64)
            narrow = exact if code == 14 else exact.astype(np.float32).astype(dtype)
        return np.concatenate([narrow, -narrow, random])
    limits = np.iinfo(dtype)
    edges = EDGES + [-e for e in EDGES] + [limits.min, limits.max]
    inside = sorted({e for e in edges if limits.min <= e <= limits.max})
    return np.concatenate([np.array(inside, dtype=dtype), random])


def cast(values, to_code, to):
    """The target's elements, and which of them are meant."""
    with np.errstate(all="ignore"):
        if to_code in FLOATS:
            wide = values.astype(np.float64)
            found = wide if to_code == 14 else wide.astype(np.float32).astype(to)
            return found, np.ones(len(values), dtype=np.uint8)
        limits = np.iinfo(to)
        whole = []
        for value in values:
            number = float(value) if values.dtype.kind not in "iu" else int(value)
            whole.append(math.trunc(number) if math.isfinite(number) else limits.max + 1)
        fits = np.array([limits.min <= w <= limits.max for w in whole])
        exact = np.array([w if f else 0 for w, f in zip(whole, fits)], dtype=to)
        wide = values if values.dtype.kind in "iu" else values.astype(np.float64)
        by_numpy = np.where(fits, wide, 0).astype(to) if values.dtype.kind not in "iu" else np.where(
            fits, wide.astype(to), np.zeros(len(fits), to)).astype(to)
        assert (by_numpy == exact).all(), (values.dtype, to)
        return by_numpy, fits.astype(np.uint8)


def golden():
    out = bytearray()
    for code, dtype in DTYPES.items():
        values = source(code, dtype)
        for to_code, to in DTYPES.items():
            found, fits = cast(values, to_code, to)
            assert found.dtype == to and len(found) == len(values)
            out += struct.pack("<BBH", code, to_code, len(values))
            out += values.tobytes() + fits.tobytes() + found.tobytes()
    return bytes(out)


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--check", action="store_true", help="compare and write nothing")
    options = parser.parse_args()
    data = golden()
    if options.check:
        if TARGET.read_bytes() != data:
            sys.exit(f"{TARGET} is not what numpy {np.__version__} and ml_dtypes "
                     f"{ml_dtypes.__version__} make of it")
        return
    TARGET.parent.mkdir(exist_ok=True)
    TARGET.write_bytes(data)
    print(f"{TARGET}: {len(data)} bytes, numpy {np.__version__}, ml_dtypes {ml_dtypes.__version__}")


if __name__ == "__main__":
    main()
