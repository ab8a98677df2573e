// SPDX-License-Identifier: MIT OR Apache-2.0

//! Rules of memory.

use std::os::fd::OwnedFd;

use anyhow::Result;
use frameshare::MemoryKind;

use super::command::{Command, Content, Memory};
use super::sides::{Handle, Refusal, Side};
use super::{Subject, rule};

type Kind = Subject<MemoryKind>;

/// A page, a size that is no multiple of one, and some MiB.
const SIZES: [u64; 3] = [4096, 10_000, 3 << 20];
const SIZE: u64 = 3 << 20;

/// Returns whether readers of a kind cannot write the memory.
fn is_read_only(kind: MemoryKind) -> bool {
    matches!(kind, MemoryKind::Host | MemoryKind::Vmm)
}

pub fn fresh_memory_is_zero(subject: Kind) -> Result<()> {
    let exporter = Side::new()?;
    let allocator = exporter.allocator(subject)?;
    for size in SIZES {
        let (id, ..) = allocator.allocate(size)?;
        let wrong = exporter.differing(Memory::Allocation(id), size, Content::Fill(0))?;
        rule!(wrong == 0, "{wrong} of {size} fresh bytes are not zero");
    }
    Ok(())
}

pub fn allocation_has_requested_size(subject: Kind) -> Result<()> {
    let exporter = Side::new()?;
    let allocator = exporter.allocator(subject)?;
    for size in SIZES {
        let (id, actual, _) = allocator.allocate(size)?;
        rule!(actual >= size, "{actual} bytes instead of {size}");
        let content = Content::Pattern(subject.seed);
        exporter.write(Memory::Allocation(id), actual, content)?;
        let wrong = exporter.differing(Memory::Allocation(id), actual, content)?;
        rule!(wrong == 0, "{wrong} of {actual} bytes do not hold what was written");
    }
    Ok(())
}

pub fn import_shows_allocation(subject: Kind) -> Result<()> {
    let (exporter, reader) = (Side::new()?, Side::new()?);
    let allocator = exporter.allocator(subject)?;
    let importer = reader.importer(subject, &allocator)?;
    for size in SIZES {
        let (id, actual, handle) = allocator.allocate(size)?;
        let import = importer.import(actual, &handle)?;
        // Written again after the import: an import is no copy.
        for seed in [subject.seed, subject.seed + 1] {
            exporter.write(Memory::Allocation(id), size, Content::Pattern(seed))?;
            let wrong = reader.differing(Memory::Import(import), size, Content::Pattern(seed))?;
            rule!(wrong == 0, "{wrong} of {size} imported bytes differ from the allocation");
        }
        reader.execute(Command::DropImport(import))?;
        exporter.execute(Command::Free(id))?;
    }
    Ok(())
}

/// Allocations of one generation, of two and of two exporters are distinct.
pub fn handle_names_one_allocation(subject: Kind) -> Result<()> {
    let (one, two, reader) = (Side::new()?, Side::new()?, Side::new()?);
    let allocators =
        [(&one, one.allocator(subject)?), (&one, one.allocator(subject)?), (&two, two.allocator(subject)?)];
    let mut allocations = Vec::new();
    for (exporter, allocator) in &allocators {
        let importer = reader.importer(subject, allocator)?;
        for _ in 0..2 {
            let (id, size, handle) = allocator.allocate(SIZE)?;
            let content = Content::Pattern(subject.seed + allocations.len() as u64);
            exporter.write(Memory::Allocation(id), SIZE, content)?;
            match importer.try_import(size, &handle)? {
                Ok(import) => allocations.push((import, content)),
                Err(refusal) => rule!(false, "a handle of its own is refused: {}", refusal.text),
            }
        }
    }
    for (number, (import, content)) in allocations.into_iter().enumerate() {
        let wrong = reader.differing(Memory::Import(import), SIZE, content)?;
        rule!(wrong == 0, "{wrong} bytes of import {number} belong to another allocation");
    }
    Ok(())
}

pub fn import_can_be_repeated(subject: Kind) -> Result<()> {
    let (exporter, reader) = (Side::new()?, Side::new()?);
    let allocator = exporter.allocator(subject)?;
    let importer = reader.importer(subject, &allocator)?;
    let (id, size, handle) = allocator.allocate(SIZE)?;
    let content = Content::Pattern(subject.seed);
    exporter.write(Memory::Allocation(id), SIZE, content)?;
    for round in 1..=3 {
        match importer.try_import(size, &handle)? {
            Ok(import) => {
                let wrong = reader.differing(Memory::Import(import), SIZE, content)?;
                rule!(wrong == 0, "{wrong} bytes of import {round} differ from the allocation");
                reader.execute(Command::DropImport(import))?;
            }
            Err(refusal) => rule!(false, "import {round} is refused: {}", refusal.text),
        }
    }
    Ok(())
}

pub fn import_outlives_allocation(subject: Kind) -> Result<()> {
    let (exporter, reader) = (Side::new()?, Side::new()?);
    let allocator = exporter.allocator(subject)?;
    let importer = reader.importer(subject, &allocator)?;
    let (id, size, handle) = allocator.allocate(SIZE)?;
    let content = Content::Pattern(subject.seed);
    exporter.write(Memory::Allocation(id), SIZE, content)?;
    let before = importer.import(size, &handle)?;
    exporter.execute(Command::Free(id))?;
    // The handle keeps the memory too.
    let after = importer.import(size, &handle)?;
    for import in [before, after] {
        let wrong = reader.differing(Memory::Import(import), SIZE, content)?;
        rule!(wrong == 0, "{wrong} imported bytes changed when the allocation was freed");
    }
    drop(exporter);
    for import in [before, after] {
        let wrong = reader.differing(Memory::Import(import), SIZE, content)?;
        rule!(wrong == 0, "{wrong} imported bytes changed when the exporter died");
    }
    Ok(())
}

/// An exporter that is killed without GPU work under way leaves its memory readable.
pub fn import_survives_killed_exporter(subject: Kind) -> Result<()> {
    let (mut exporter, reader) = (Side::new()?, Side::new()?);
    let content = Content::Pattern(subject.seed);
    let import = {
        let allocator = exporter.allocator(subject)?;
        let importer = reader.importer(subject, &allocator)?;
        let (id, size, handle) = allocator.allocate(SIZE)?;
        exporter.write(Memory::Allocation(id), SIZE, content)?;
        importer.import(size, &handle)?
    };
    exporter.kill()?;
    let wrong = reader.differing(Memory::Import(import), SIZE, content)?;
    rule!(wrong == 0, "{wrong} imported bytes changed when the exporter died");
    reader.execute(Command::DropImport(import))
}

/// Readers of host and vmm memory cannot write it; other kinds are shared for writing.
pub fn readers_write_is_refused_or_shared(subject: Kind) -> Result<()> {
    let (exporter, reader) = (Side::new()?, Side::new()?);
    let allocator = exporter.allocator(subject)?;
    let importer = reader.importer(subject, &allocator)?;
    let (id, size, handle) = allocator.allocate(SIZE)?;
    let content = Content::Pattern(subject.seed);
    exporter.write(Memory::Allocation(id), SIZE, content)?;
    let import = importer.import(size, &handle)?;
    let is_written = reader.answer(Command::TryFill { import, size: SIZE as usize, value: 7 })?;
    let expected = if is_read_only(subject.kind) {
        rule!(!is_written, "a reader can write its import");
        content
    } else {
        rule!(is_written, "a write to an import is refused");
        Content::Fill(7)
    };
    let wrong = exporter.differing(Memory::Allocation(id), SIZE, expected)?;
    rule!(wrong == 0, "{wrong} bytes of the allocation are not as expected after the reader's write");
    Ok(())
}

pub fn invalid_handle_is_an_error(subject: Kind) -> Result<()> {
    let (exporter, reader) = (Side::new()?, Side::new()?);
    let allocator = exporter.allocator(subject)?;
    let importer = reader.importer(subject, &allocator)?;
    let (_, size, handle) = allocator.allocate(SIZE)?;
    let check = |result: Result<_, Refusal>, what: &str| -> Result<()> {
        match result {
            Ok(_) => rule!(false, "{what} is imported"),
            Err(Refusal { doing, kind, text }) => {
                rule!((doing.as_str(), kind) == ("import", subject.kind), "{what} is reported as: {text}");
            }
        }
        Ok(())
    };
    if let Some(fd) = &handle.fd {
        let with = |fd: Option<OwnedFd>| Handle { bytes: handle.bytes.clone(), fd };
        check(importer.try_import(size, &with(None))?, "a handle without its descriptor")?;
        check(importer.try_import(size, &with(Some(rustix::pipe::pipe()?.0)))?, "a pipe")?;
        let file = rustix::fs::memfd_create("unsealed", rustix::fs::MemfdFlags::CLOEXEC)?;
        rustix::fs::ftruncate(&file, size)?;
        check(importer.try_import(size, &with(Some(file)))?, "an unsealed memory file")?;
        let file = std::fs::File::open("/proc/self/exe")?;
        check(importer.try_import(size, &with(Some(file.into())))?, "a regular file")?;
        let whole = with(Some(fd.try_clone()?));
        for larger in [2 * size, 1 << 39] {
            check(importer.try_import(larger, &whole)?, "an allocation that is smaller")?;
        }
    }
    if !handle.bytes.is_empty() {
        let mut short = Handle { bytes: handle.bytes.clone(), fd: None };
        short.bytes.pop();
        check(importer.try_import(size, &short)?, "a handle that is too short")?;
    }
    // The valid handle still works.
    importer.import(size, &handle)?;
    Ok(())
}

pub fn excessive_size_is_an_error(subject: Kind) -> Result<()> {
    let exporter = Side::new()?;
    let allocator = exporter.allocator(subject)?;
    match allocator.try_allocate(1 << 50)? {
        Ok((_, size)) => rule!(false, "1 PiB is allocated, with {size} bytes"),
        Err(Refusal { doing, kind, text }) => {
            rule!((doing.as_str(), kind) == ("allocate", subject.kind), "1 PiB is refused as: {text}");
        }
    }
    allocator.allocate(SIZE)?;
    Ok(())
}
