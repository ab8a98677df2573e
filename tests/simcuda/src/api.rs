// SPDX-License-Identifier: MIT OR Apache-2.0

//! Result codes, and checked access to the caller's arguments.

use std::ffi::{CStr, c_char};

/// A result code other than success, with CUDA's number.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Code(pub i32);

/// Result of the body of an exported function.
pub type Answer = Result<(), Code>;

pub const INVALID_VALUE: Code = Code(1);
pub const OUT_OF_MEMORY: Code = Code(2);
pub const NOT_INITIALIZED: Code = Code(3);
pub const NO_DEVICE: Code = Code(100);
pub const INVALID_DEVICE: Code = Code(101);
pub const INVALID_CONTEXT: Code = Code(201);
pub const MAP_FAILED: Code = Code(205);
pub const ALREADY_MAPPED: Code = Code(208);
pub const PEER_ACCESS_UNSUPPORTED: Code = Code(217);
pub const INVALID_HANDLE: Code = Code(400);
pub const NOT_FOUND: Code = Code(500);
pub const NOT_READY: Code = Code(600);
pub const ILLEGAL_ADDRESS: Code = Code(700);
pub const PEER_ACCESS_ALREADY_ENABLED: Code = Code(704);
pub const PEER_ACCESS_NOT_ENABLED: Code = Code(705);
pub const CONTEXT_IS_DESTROYED: Code = Code(709);
pub const HOST_MEMORY_ALREADY_REGISTERED: Code = Code(712);
pub const HOST_MEMORY_NOT_REGISTERED: Code = Code(713);
pub const NOT_PERMITTED: Code = Code(800);
pub const NOT_SUPPORTED: Code = Code(801);
pub const STREAM_CAPTURE_UNSUPPORTED: Code = Code(900);
pub const UNKNOWN: Code = Code(999);

/// A pointer to a caller's variable that receives a result.
#[repr(transparent)]
pub struct Out<T>(*mut T);

impl<T> Out<T> {
    /// Wraps one pointer from a list that the caller passes.
    pub fn at(out: *mut T) -> Out<T> {
        Out(out)
    }

    /// Stores the result. Returns `INVALID_VALUE` if the pointer is null.
    pub fn set(&self, value: T) -> Answer {
        self.check()?;
        self.set_if_wanted(value);
        Ok(())
    }

    /// Returns `INVALID_VALUE` if the pointer is null. Called before the function has any effect.
    pub fn check(&self) -> Answer {
        if self.0.is_null() { Err(INVALID_VALUE) } else { Ok(()) }
    }

    /// Returns the present value of a variable that is replaced by the result.
    pub fn get(&self) -> Result<T, Code>
    where
        T: Copy,
    {
        In(self.0.cast_const()).get()
    }

    /// Stores an optional result: a null pointer is not an error.
    pub fn set_if_wanted(&self, value: T) {
        if !self.0.is_null() {
            // SAFETY: not null, and the caller of a CUDA function passes a place that holds a T.
            unsafe { self.0.write_unaligned(value) }
        }
    }

    /// Stores the `index`-th of several results.
    pub fn set_at(&self, index: usize, value: T) -> Answer {
        self.check()?;
        // SAFETY: not null, and the caller passed the number of results, which is above `index`.
        unsafe { self.0.add(index).write_unaligned(value) }
        Ok(())
    }
}

/// A pointer to a caller's argument.
#[repr(transparent)]
pub struct In<T>(*const T);

impl<T: Copy> In<T> {
    /// Returns a copy of the argument, or `INVALID_VALUE` if the pointer is null.
    pub fn get(&self) -> Result<T, Code> {
        self.at(0)
    }

    /// Returns a copy of the `index`-th of several arguments.
    pub fn at(&self, index: usize) -> Result<T, Code> {
        if self.0.is_null() {
            return Err(INVALID_VALUE);
        }
        // SAFETY: not null, and the caller passes at least index + 1 of them.
        Ok(unsafe { self.0.add(index).read_unaligned() })
    }
}

/// A C string of the caller.
#[repr(transparent)]
pub struct Name(*const c_char);

impl Name {
    pub fn get(&self) -> Result<&CStr, Code> {
        if self.0.is_null() {
            return Err(INVALID_VALUE);
        }
        // SAFETY: not null, and the caller passes a string that ends in a zero.
        Ok(unsafe { CStr::from_ptr(self.0) })
    }
}

/// A 64-byte handle for other processes, passed by value or by pointer.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct Blob(pub [u8; 64]);

impl Blob {
    /// Returns a blob that starts with these numbers.
    pub fn pack(numbers: &[u64]) -> Blob {
        let mut bytes = [0; 64];
        for (chunk, number) in bytes.chunks_exact_mut(8).zip(numbers) {
            chunk.copy_from_slice(&number.to_le_bytes());
        }
        Blob(bytes)
    }

    /// Returns the eight numbers in a blob.
    pub fn unpack(&self) -> [u64; 8] {
        let mut numbers = [0; 8];
        for (number, chunk) in numbers.iter_mut().zip(self.0.chunks_exact(8)) {
            *number = u64::from_le_bytes(chunk.try_into().unwrap_or_default());
        }
        numbers
    }
}
