// SPDX-License-Identifier: MIT OR Apache-2.0

//! Structs that begin with their size, so that later versions can have more fields.
//!
//! A program that was built with an older header passes a smaller struct: the missing fields have
//! their defaults. One that was built with a newer header passes a larger one, whose unknown fields
//! have to be 0.
//!
//! # Safety
//!
//! Structs consist of numbers and pointers, for which all bits are valid, and begin with a `usize`.
#![allow(unsafe_code)]

use crate::failure::Failure;
use std::{ptr, slice};

/// A larger size is taken for a struct that was not initialized.
const MAX_SIZE: usize = 4096;

/// A struct of the interface.
///
/// # Safety
/// It is `repr(C)`, begins with a `usize`, its size, and is valid with any bits.
pub unsafe trait Struct: Copy {
    /// Its name in C.
    const NAME: &'static str;
    /// Its size in the first version that had it.
    const FIRST_SIZE: usize;

    /// The value of its macro `_INIT`.
    fn init() -> Self;
}

/// Returns the size of a struct from C.
///
/// # Safety
/// As [`read`].
unsafe fn size_of_struct<T: Struct>(pointer: *const T) -> Result<usize, Failure> {
    let name = T::NAME;
    if pointer.is_null() || !pointer.is_aligned() {
        return Err(Failure::argument(format!("{name} is at {pointer:p}: pass the address of one")));
    }
    // SAFETY: every struct begins with its size.
    let size = unsafe { pointer.cast::<usize>().read() };
    if (T::FIRST_SIZE..=MAX_SIZE).contains(&size) {
        return Ok(size);
    }
    let macro_name = name.to_uppercase() + "_INIT";
    Err(Failure::argument(format!("{name} has the size {size}: initialize it with {macro_name}")))
}

/// Returns a struct from C.
///
/// # Safety
/// The pointer is NULL or points to a struct of the size that it begins with.
pub unsafe fn read<T: Struct>(pointer: *const T) -> Result<T, Failure> {
    // SAFETY: the caller's guarantee.
    let size = unsafe { size_of_struct(pointer) }?;
    let known = size.min(size_of::<T>());
    // SAFETY: by the caller's guarantee the struct has `size` bytes; any bits are valid.
    let unknown = unsafe { slice::from_raw_parts(pointer.cast::<u8>().add(known), size - known) };
    if unknown.iter().any(|byte| *byte != 0) {
        let text = "has fields of a newer version set: install the library of the header";
        return Err(Failure::argument(format!("{} {text}", T::NAME)));
    }
    let mut value = T::init();
    // SAFETY: both have at least `known` bytes; `T` is valid with any bits.
    unsafe { ptr::copy_nonoverlapping(pointer.cast::<u8>(), (&raw mut value).cast(), known) };
    Ok(value)
}

/// Returns a struct from C, or the default for NULL.
///
/// # Safety
/// As [`read`].
pub unsafe fn read_or_default<T: Struct>(pointer: *const T) -> Result<T, Failure> {
    // SAFETY: the caller's guarantee.
    if pointer.is_null() { Ok(T::init()) } else { unsafe { read(pointer) } }
}

/// Checks a struct that [`write`] will fill.
///
/// # Safety
/// As [`read`].
pub unsafe fn check<T: Struct>(pointer: *const T) -> Result<(), Failure> {
    // SAFETY: the caller's guarantee.
    unsafe { size_of_struct(pointer) }.map(drop)
}

/// Fills a struct of C's, but for its size. Fields of newer versions become 0.
///
/// # Safety
/// As [`read`], and the struct may be written.
pub unsafe fn write<T: Struct>(pointer: *mut T, value: &T) -> Result<(), Failure> {
    // SAFETY: the caller's guarantee.
    let size = unsafe { size_of_struct(pointer) }?;
    let known = size.min(size_of::<T>());
    let start = size_of::<usize>();
    let (from, to) = (ptr::from_ref(value).cast::<u8>(), pointer.cast::<u8>());
    // SAFETY: both have at least `known` bytes, and begin with a `usize`; C's has `size`.
    unsafe {
        ptr::copy_nonoverlapping(from.add(start), to.add(start), known - start);
        ptr::write_bytes(to.add(known), 0, size - known);
    }
    Ok(())
}

/// Defines a struct of the interface: its name in C, its size in the first version, its fields with
/// their defaults. Fields are added at the end, where structs that programs fill have no padding,
/// and the size stays.
macro_rules! define {
    (
        $(#[$meta:meta])* $name:ident as $c:literal of $first:literal {
            $($field:ident: $kind:ty = $default:expr,)*
        }
    ) => {
        $(#[$meta])*
        #[derive(Clone, Copy, Debug)]
        #[repr(C)]
        pub struct $name {
            pub size: usize,
            $(pub $field: $kind,)*
        }

        const _: () = assert!(size_of::<$name>() >= $first);

        // SAFETY: `repr(C)`, the size first; the fields are numbers and pointers.
        unsafe impl $crate::structs::Struct for $name {
            const NAME: &'static str = $c;
            const FIRST_SIZE: usize = $first;

            fn init() -> Self {
                Self { size: size_of::<Self>(), $($field: $default,)* }
            }
        }
    };
}
pub(crate) use define;
