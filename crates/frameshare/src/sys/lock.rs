//! The lock that owns a stream's name.

use rustix::{
    fs::{FlockOperation, Mode, OFlags, flock, ftruncate, open},
    io::{Errno, pread, pwrite},
};
use std::{io, os::fd::OwnedFd, path::Path};

/// Ownership of a stream's name, held until it is dropped or the process is gone.
///
/// The lock file stays: were it unlinked, two processes could each hold a lock on a file of that name.
#[derive(Debug)]
pub struct NameLock {
    _file: OwnedFd,
}

/// Why a name could not be had.
#[derive(Debug, thiserror::Error)]
pub enum NameTaken {
    /// Somebody else holds it.
    #[error("held by {0}")]
    By(String),
    /// The lock file could not be opened or locked; says which file, too.
    #[error(transparent)]
    Io(io::Error),
}

impl NameLock {
    /// Takes the lock, or says who holds it. Does not wait.
    pub fn take(path: &Path) -> Result<Self, NameTaken> {
        let failed = |error: Errno| {
            let cause = io::Error::from(error);
            NameTaken::Io(io::Error::new(cause.kind(), format!("cannot lock {}: {cause}", path.display())))
        };
        let flags = OFlags::RDWR | OFlags::CREATE | OFlags::CLOEXEC | OFlags::NOFOLLOW;
        let file = open(path, flags, Mode::RUSR | Mode::WUSR).map_err(failed)?;
        match flock(&file, FlockOperation::NonBlockingLockExclusive) {
            Ok(()) => {}
            Err(Errno::WOULDBLOCK) => {
                let mut text = [0; 128];
                let len = pread(&file, &mut text, 0).unwrap_or(0);
                let holder = String::from_utf8_lossy(&text[..len]).trim().to_owned();
                return Err(NameTaken::By(if holder.is_empty() { "another process".into() } else { holder }));
            }
            Err(error) => return Err(failed(error)),
        }
        let holder = format!("{} (pid {})\n", super::process_name(), std::process::id());
        ftruncate(&file, 0).and_then(|()| pwrite(&file, holder.as_bytes(), 0)).map_err(failed)?;
        Ok(Self { _file: file })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_has_one_holder_and_says_who_it_is() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("cam0.lock");
        let held = NameLock::take(&path).unwrap();
        let error = NameLock::take(&path).unwrap_err().to_string();
        assert!(error.contains(&format!("pid {}", std::process::id())), "{error}");
        drop(held);
        assert!(NameLock::take(&path).is_ok());
    }
}
