//! Linux: sockets that carry descriptors, sealed memory, mappings, waits, locks.
//!
//! Shared memory is mapped in [`mapping`]; [`peer`] makes the socket calls that rustix lacks.

mod alarm;
mod clock;
mod foreign;
mod life;
mod listener;
mod lock;
mod mapping;
mod memfd;
mod outq;
mod peer;
mod scheduler;
mod socket;
mod udmabuf;
mod wait;

pub use alarm::Alarm;
pub use clock::monotonic_ns;
pub use foreign::{Foreign, may_accept, may_connect, too_many_parked};
pub use life::{SignOfLife, is_locked};
pub use listener::{BindFailure, FileState, Listener};
pub use mapping::{Mapping, Words, load_bytes, store_bytes};
pub use memfd::{SealedAgainst, check_memfd, memfd};
pub use outq::unreceived;
pub use peer::{Peer, file_limit, files_left, is_own_or_root, process_name, process_nonce};
pub use scheduler::{allowed_cores, involuntary_switches};
pub use socket::{Received, Socket, connect};
pub use udmabuf::{Udmabuf, udmabuf};
pub use wait::{Drained, Interrupt, SENT_OVER_WAKE, Timeout, Wake, is_ready, wait};
