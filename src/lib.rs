//! tenslab
