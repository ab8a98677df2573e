// SPDX-License-Identifier: MIT OR Apache-2.0

//! Linux: sockets that carry descriptors, sealed memory, mappings, waits, locks.
//!
//! Shared memory is mapped in [`mapping`]; [`peer`] makes the socket calls that rustix lacks.

pub mod backoff;
mod clock;
mod dma_buf;
mod epoll;
mod folder_watch;
mod futex;
mod interrupt;
mod limits;
mod listener;
mod mapping;
mod memfd;
mod name_lock;
mod outq;
mod peer;
mod poll;
mod poll_set;
mod quiet;
mod record_lock;
mod scheduler;
mod socket;
#[cfg(test)]
pub mod testing;
mod timer;
mod udmabuf;
mod untrusted_fd;
mod user_ns;
mod wake;

pub use clock::monotonic_ns;
pub use dma_buf::{DmaBufId, Fences, PendingFences, begin_cpu_read, dma_buf_size, end_cpu_read};
pub use epoll::{Epoll, Interest};
pub use folder_watch::{FolderChange, FolderWatch};
pub use frameshare_process::{PerProcess, process_number};
pub use futex::{Slept, WakeGroup, WakeWord, has_futex_waitv};
pub use interrupt::Interrupt;
pub use limits::{file_limit, files_left};
pub use listener::{BindFailure, FileState, Listener, listener_of};
pub use mapping::{FutexWords, Mapping, Words, load_bytes, load_into, store_bytes};
pub use memfd::{Label, SealedAgainst, check_memfd, memfd, read_memfd};
pub use outq::unreceived;
pub use peer::{Peer, SocketFeatures, is_own_or_root, process_name, process_nonce};
pub use poll::{FineTimer, Timeout, is_ready, wait};
pub use poll_set::PollSet;
pub use quiet::Quiet;
pub use record_lock::{ProcessLock, is_locked};
pub use scheduler::{allowed_cores, involuntary_switches};
pub use socket::{Received, Socket, abstract_name, connect};
pub use timer::Timer;
pub use udmabuf::{Udmabuf, udmabuf};
pub use untrusted_fd::{UntrustedFd, may_accept, may_connect, too_many_parked};
pub use user_ns::{is_overflow_gid, is_overflow_uid, note_on_user, overflow_uid};
pub use wake::{Drained, Sleepers, Wake};
