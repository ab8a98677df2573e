// SPDX-License-Identifier: MIT OR Apache-2.0

//! The table for programs. Ages are in seconds, rates in frames per second.

use super::sample::{State, Stream};
use frameshare::observer::ReaderState;
use serde_json::{Value, json};

/// Returns all streams of a sample.
pub fn streams(streams: &[Stream]) -> Value {
    json!({ "streams": streams.iter().map(stream).collect::<Vec<_>>() })
}

fn stream(stream: &Stream) -> Value {
    let mut value = json!({ "stream": stream.name, "socket": stream.socket });
    match &stream.state {
        Ok(state) => add_state(&mut value, state),
        Err(error) => value["error"] = error.to_string().into(),
    }
    value
}

fn add_state(value: &mut Value, state: &State) {
    let readers = state.readers.iter().map(|(state, rate)| reader(state, *rate));
    value["rate"] = state.rate.into();
    value["age"] = state.age().map(|ns| ns as f64 / 1e9).into();
    value["lag"] = state.lag().into();
    value["held"] = state.held().into();
    value["slots"] = state.snapshot.counters.slots.into();
    value["lost"] = state.lost().into();
    value["readers"] = readers.collect();
}

fn reader(reader: &ReaderState, rate: Option<f64>) -> Value {
    json!({
        "id": reader.id,
        "name": reader.name,
        "pid": reader.pid,
        "policy": reader.policy.to_string(),
        "memory": reader.memory.to_string(),
        "rate": rate,
        "lag": reader.lag,
        "held": reader.held,
        "credit": reader.credit,
        "lost": reader.lost,
    })
}
