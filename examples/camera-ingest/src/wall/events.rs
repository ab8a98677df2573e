// SPDX-License-Identifier: MIT OR Apache-2.0

//! Events of the site as JSON lines, for as long as the client listens.

use crate::state::{Event, State};
use axum::body::Bytes;
use futures_core::Stream;
use std::{
    convert::Infallible,
    pin::Pin,
    sync::Arc,
    task::{Context, Poll},
};
use tokio::sync::{mpsc, watch};

/// Lines that wait for a client.
const WAITING: usize = 16;

/// The lines of one client.
pub struct Lines(mpsc::Receiver<Bytes>);

/// Returns the events that the supervisor keeps, and then each new one.
pub fn lines(mut state: watch::Receiver<Option<Arc<State>>>) -> Lines {
    let (sender, receiver) = mpsc::channel(WAITING);
    state.mark_changed();
    tokio::spawn(async move {
        let mut last = None;
        loop {
            tokio::select! {
                changed = state.changed() => if changed.is_err() { return },
                () = sender.closed() => return,
            }
            let Some(now) = state.borrow_and_update().clone() else { continue };
            let new = after(last.as_ref(), &now.events);
            let lines: String = new.iter().filter_map(line).collect();
            last = now.events.last().cloned().or(last);
            if !lines.is_empty() && sender.send(lines.into()).await.is_err() {
                return;
            }
        }
    });
    Lines(receiver)
}

impl Stream for Lines {
    type Item = Result<Bytes, Infallible>;

    fn poll_next(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        self.0.poll_recv(context).map(|line| line.map(Ok))
    }
}

fn line(event: &Event) -> Option<String> {
    serde_json::to_string(event).ok().map(|line| line + "\n")
}

/// Returns the events behind the last one that was sent; all of them if it is not kept anymore.
fn after<'a>(last: Option<&Event>, events: &'a [Event]) -> &'a [Event] {
    let sent = last.and_then(|last| events.iter().rposition(|event| event == last));
    &events[sent.map_or(0, |sent| sent + 1)..]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_event_is_sent_once() {
        let event = |time: f64| Event { time, process: "p".into(), camera: None, text: "t".into() };
        let events: Vec<_> = [1.0, 2.0, 3.0].map(event).into();
        assert_eq!(after(None, &events), &events[..]);
        assert_eq!(after(Some(&events[1]), &events), &events[2..]);
        assert_eq!(after(Some(&events[2]), &events), &[]);
        assert_eq!(after(Some(&event(0.5)), &events), &events[..]);
        assert_eq!(line(&events[0]).unwrap().lines().count(), 1);
    }
}
