// SPDX-License-Identifier: MIT OR Apache-2.0

//! Bounded number of clients, of which the least useful one gives way to the next.

use std::{
    net::IpAddr,
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicU64, Ordering::Relaxed},
    },
};
use tokio::sync::watch;

/// A bounded number of seats. When all are taken, the next client gets the seat of the least active
/// client of the network that has most: a client that opens many is its own rival first.
#[derive(Debug)]
pub struct Seats {
    limit: usize,
    taken: Mutex<Vec<Arc<Taken>>>,
    /// Counts events, as the time that orders them.
    clock: AtomicU64,
}

/// A seat, which is free again when this is dropped.
#[derive(Debug)]
pub struct Seat {
    seats: Arc<Seats>,
    taken: Arc<Taken>,
}

#[derive(Debug)]
struct Taken {
    network: IpAddr,
    since: u64,
    /// Time of the last activity; 0 before the first.
    active: AtomicU64,
    is_lost: watch::Sender<bool>,
}

impl Seats {
    /// Returns so many free seats.
    pub fn new(limit: usize) -> Arc<Self> {
        Arc::new(Self { limit, taken: Mutex::default(), clock: AtomicU64::new(1) })
    }

    /// Takes a seat for a client at this address. If none is free, another client loses its own.
    pub fn take(self: &Arc<Self>, address: IpAddr) -> Seat {
        let network = network_of(address);
        let since = self.clock.fetch_add(1, Relaxed);
        let (active, is_lost) = (AtomicU64::new(0), watch::Sender::new(false));
        let taken = Arc::new(Taken { network, since, active, is_lost });
        let mut all = self.taken();
        if all.len() >= self.limit {
            remove_least(&mut all, Some(network));
        }
        all.push(Arc::clone(&taken));
        Seat { seats: Arc::clone(self), taken }
    }

    /// Has one client lose its seat, such as to free its descriptor.
    pub fn free_one(&self) {
        remove_least(&mut self.taken(), None);
    }

    /// Returns the number of seats that are taken.
    pub fn count(&self) -> usize {
        self.taken().len()
    }

    fn taken(&self) -> MutexGuard<'_, Vec<Arc<Taken>>> {
        self.taken.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Removes the least active client of the network that has most, with the one that comes next.
fn remove_least(all: &mut Vec<Arc<Taken>>, next: Option<IpAddr>) {
    let count = |network: IpAddr| {
        let networks = all.iter().map(|taken| taken.network).chain(next);
        networks.filter(|other| *other == network).count()
    };
    let most = all.iter().map(|taken| count(taken.network)).max();
    let candidates = all.iter().enumerate().filter(|(_, taken)| Some(count(taken.network)) == most);
    // A client that was never active comes before all others.
    let least = candidates.min_by_key(|(_, taken)| (taken.active.load(Relaxed), taken.since));
    if let Some((index, _)) = least {
        all.swap_remove(index).is_lost.send_replace(true);
    }
}

/// Returns the addresses among which one client can choose: a network of 64 bits in IPv6.
fn network_of(address: IpAddr) -> IpAddr {
    match address.to_canonical() {
        IpAddr::V6(address) => IpAddr::V6((address.to_bits() & (u128::MAX << 64)).into()),
        address => address,
    }
}

impl Seat {
    /// Notes that the client is active now.
    pub fn touch(&self) {
        self.taken.active.store(self.seats.clock.fetch_add(1, Relaxed), Relaxed);
    }

    /// Completes when the client has lost the seat, and has to be disconnected.
    pub fn lost(&self) -> impl Future<Output = ()> + Send + use<> {
        let mut is_lost = self.taken.is_lost.subscribe();
        // The sender is dropped with the seat, whose client is gone then.
        async move { drop(is_lost.wait_for(|is_lost| *is_lost).await) }
    }
}

impl Drop for Seat {
    fn drop(&mut self) {
        self.seats.taken().retain(|taken| !Arc::ptr_eq(taken, &self.taken));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn is_lost(seat: &Seat) -> bool {
        *seat.taken.is_lost.borrow()
    }

    fn lost(seats: &[Seat]) -> Vec<usize> {
        (0..seats.len()).filter(|index| is_lost(&seats[*index])).collect()
    }

    fn taken(limit: usize, addresses: &[&str]) -> (Arc<Seats>, Vec<Seat>) {
        let seats = Seats::new(limit);
        let all = addresses.iter().map(|address| seats.take(address.parse().unwrap())).collect();
        (seats, all)
    }

    #[test]
    fn least_active_client_loses_its_seat() {
        let (seats, mut all) = taken(3, &["127.0.0.1"; 3]);
        all[0].touch();
        all[1].touch();
        // The third one was never active.
        all.push(seats.take("127.0.0.1".parse().unwrap()));
        assert_eq!((lost(&all), seats.count()), (vec![2], 3));
        all[3].touch();
        all[0].touch();
        all.push(seats.take("127.0.0.1".parse().unwrap()));
        assert_eq!(lost(&all), [1, 2]);
        seats.free_one();
        assert_eq!((lost(&all), seats.count()), (vec![1, 2, 4], 2));
    }

    #[test]
    fn client_with_many_seats_loses_its_own() {
        let (seats, mut all) = taken(4, &["192.0.2.1", "192.0.2.2", "192.0.2.2", "192.0.2.1"]);
        all[1].touch();
        all[2].touch();
        // Neither 192.0.2.1 was ever active; but 192.0.2.2 asks for a third seat.
        all.push(seats.take("192.0.2.2".parse().unwrap()));
        assert_eq!(lost(&all), [1]);
        // An address of its own in the same network does not help.
        let (seats, mut all) = taken(3, &["2001:db8::1", "2001:db8::2", "2001:db8:0:1::1"]);
        all.push(seats.take("192.0.2.1".parse().unwrap()));
        assert_eq!(lost(&all), [0]);
        let (seats, mut all) = taken(3, &["::ffff:192.0.2.1", "192.0.2.2", "192.0.2.1"]);
        all[0].touch();
        all.push(seats.take("192.0.2.3".parse().unwrap()));
        assert_eq!(lost(&all), [2]);
    }

    #[test]
    fn seat_of_closed_client_is_free_again() {
        let (seats, mut all) = taken(2, &["127.0.0.1"; 2]);
        drop(all.remove(0));
        all.push(seats.take("127.0.0.1".parse().unwrap()));
        assert_eq!((lost(&all), seats.count()), (vec![], 2));
        drop(all);
        assert_eq!(seats.count(), 0);
        seats.free_one();
    }
}
