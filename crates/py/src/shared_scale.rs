//! Rounding to numbers with a shared scale. Tensors are passed as addresses and sizes: the caller keeps them alive, and
//! nothing else uses them, during the call.

#![allow(unsafe_code)]

use netsum_collective as core;
use netsum_collective::shared_scale::{self, MAGNITUDE_BYTES};
use pyo3::prelude::*;

use crate::errors;

/// Numbers of a type that the ranks of a group can add exactly, in blocks of `block` values with one scale.
#[pyclass(frozen, module = "netsum._core")]
pub(crate) struct SharedScale {
    grid: shared_scale::Grid,
    block: usize,
}

#[pymethods]
impl SharedScale {
    /// dtype: "int8" or a narrow type, such as "int16_from_int8". Unsupported if so many ranks cannot add it.
    #[new]
    fn new(py: Python<'_>, dtype: &str, ranks: u32, block: usize) -> PyResult<SharedScale> {
        let grid = dtype.parse().ok().and_then(|dtype| shared_scale::Grid::new(dtype, ranks));
        let grid = grid.filter(|_| block > 0).ok_or_else(|| {
            let text = format!("{ranks} ranks cannot add {dtype} exactly");
            errors::raise(py, core::Error::Unsupported(text))
        })?;
        Ok(SharedScale { grid, block })
    }

    /// The largest number that a rank sends, in steps of the scale.
    fn top(&self) -> f32 {
        self.grid.top()
    }

    /// Number of blocks of so many values.
    fn blocks(&self, numel: usize) -> usize {
        numel.div_ceil(self.block)
    }

    /// Adds `values` to `kept`, both float32, and writes the largest magnitude of each block, bfloat16.
    fn largest(&self, py: Python<'_>, kept: usize, values: usize, numel: usize, out: usize) {
        let blocks = self.blocks(numel);
        py.detach(|| {
            // SAFETY: by this module's contract, and because float32 tensors are aligned to their elements.
            let (kept, values, out) = unsafe {
                (
                    floats_mut(kept, numel),
                    floats(values, numel),
                    bytes_mut(out, blocks * MAGNITUDE_BYTES),
                )
            };
            shared_scale::largest(kept, values, self.block, out);
        });
    }

    /// Rounds `kept`, float32, to numbers in `out`, and leaves the rounding errors in it. `magnitudes`: over all ranks.
    fn round(&self, py: Python<'_>, kept: usize, numel: usize, magnitudes: usize, out: usize) {
        let (blocks, size) = (self.blocks(numel), self.grid.dtype().size());
        py.detach(|| {
            // SAFETY: as in `largest`.
            let (kept, magnitudes, out) = unsafe {
                (
                    floats_mut(kept, numel),
                    bytes(magnitudes, blocks * MAGNITUDE_BYTES),
                    bytes_mut(out, numel * size),
                )
            };
            self.grid.round(kept, self.block, magnitudes, out);
        });
    }

    /// Writes the mean over the ranks to `out`, float32, from the sums of their numbers.
    fn mean(&self, py: Python<'_>, sums: usize, numel: usize, magnitudes: usize, out: usize) {
        let (blocks, size) = (self.blocks(numel), self.grid.dtype().size());
        py.detach(|| {
            // SAFETY: as in `largest`.
            let (sums, magnitudes, out) = unsafe {
                (
                    bytes(sums, numel * size),
                    bytes(magnitudes, blocks * MAGNITUDE_BYTES),
                    floats_mut(out, numel),
                )
            };
            self.grid.mean(sums, self.block, magnitudes, out);
        });
    }
}

/// # Safety
/// `at` is 0 with `len` 0, or the address of `len` bytes that nothing else uses while the result lives.
unsafe fn bytes_mut<'a>(at: usize, len: usize) -> &'a mut [u8] {
    if len == 0 {
        return &mut [];
    }
    // SAFETY: the caller's promise.
    unsafe { std::slice::from_raw_parts_mut(at as *mut u8, len) }
}

/// # Safety
/// As `bytes_mut`, but others may read.
unsafe fn bytes<'a>(at: usize, len: usize) -> &'a [u8] {
    if len == 0 {
        return &[];
    }
    // SAFETY: the caller's promise.
    unsafe { std::slice::from_raw_parts(at as *const u8, len) }
}

/// # Safety
/// As `bytes_mut`, for `numel` float32 at an address that is aligned to them.
unsafe fn floats_mut<'a>(at: usize, numel: usize) -> &'a mut [f32] {
    if numel == 0 {
        return &mut [];
    }
    // SAFETY: the caller's promise.
    unsafe { std::slice::from_raw_parts_mut(at as *mut f32, numel) }
}

/// # Safety
/// As `floats_mut`, but others may read.
unsafe fn floats<'a>(at: usize, numel: usize) -> &'a [f32] {
    if numel == 0 {
        return &[];
    }
    // SAFETY: the caller's promise.
    unsafe { std::slice::from_raw_parts(at as *const f32, numel) }
}
