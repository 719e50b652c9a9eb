use tenslab::memory::{self, *};
use tenslab::*;
#[test]
fn t() {
    let t = Tensor::zeros([2, 3], DType::F32, memory::cpu()).unwrap();
    t.write::<f32>().unwrap()[5] = 1.5e-7;
    println!("{t}");
    let c = ops::cast(&t.slice(1, 1, 3).unwrap(), DType::BF16, memory::cpu()).unwrap();
    println!("{c}");
    let slab = SharedAllocator::new(Meter::new(SlabAllocator::new(4096, 3).unwrap()));
    let a = Tensor::empty([1024], DType::F32, &slab).unwrap();
    let b = a.slice(0, 5, 10).unwrap();
    drop(slab);
    drop(a);
    assert_eq!(b.read::<f32>().unwrap()[0], 0.0);
}
