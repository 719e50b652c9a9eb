//! Caches that keep keys only, as multi-head latent attention needs them.

use tenslab::kv::{KvDims, KvError, Part};
use tenslab::{DType, bf16};

use super::contents::{LAYOUTS, shuffled, write_in_place};
use super::{DIMS, acquire, append, assert_holds, rows, salts};

/// Keys are there, values are an error with a name, in every
/// layout and through every door.
#[test]
fn a_cache_of_one_component_has_keys_only() {
    let dims = KvDims {
        kv_heads: 1,
        value_dim: 0,
        ..DIMS
    };
    for layout in LAYOUTS {
        let cache = shuffled(dims, DType::BF16, layout);
        let spec = *cache.spec();
        assert_eq!(spec.bytes_per_token(), 3 * 5 * 2);
        assert!(!spec.has_values());
        let mut sequence = acquire(&cache, 0).unwrap();
        append::<bf16>(&mut sequence, &salts(0, 6)).unwrap();

        let mut step = sequence.append(&[0; 3]).unwrap();
        let mut layer = step.layer_mut(0).unwrap();
        assert_eq!(
            layer.write(&[0.0_f32; 15], &[0.0; 1]).unwrap_err(),
            KvError::ShapeMismatch {
                part: Part::Values,
                got: 1,
                expected: 0,
                tokens: 3,
                heads: 1,
                dim: 0
            }
        );
        // float32 is narrowed as ever, and an empty slice is all values there are.
        let keys = rows::<f32>(&spec, &salts(6, 3), 0, Part::Keys);
        layer.write(&keys, &[]).unwrap();
        assert_eq!(step.values::<bf16>(0, 0).unwrap_err(), KvError::NoValues);
        assert_eq!(
            step.values_head::<bf16>(0, 0, 0).unwrap_err(),
            KvError::NoValues
        );
        assert_eq!(step.keys::<bf16>(0, 2).unwrap().tokens(), 1);
        for layer in 1..3 {
            write_in_place::<bf16>(&mut step, &spec, &salts(6, 3), layer);
            // Blocks 1 and 2, keys only.
            let pieces = step.layer_mut(layer).unwrap().runs::<bf16>().unwrap();
            assert_eq!(
                pieces.map(|run| run.part).collect::<Vec<_>>(),
                [Part::Keys; 2]
            );
        }
        step.commit().unwrap();
        assert_holds::<bf16>(&sequence, &salts(0, 9));
        assert_eq!(
            sequence.values_head::<bf16>(0, 0, 0).unwrap_err(),
            KvError::NoValues
        );
    }
}
